import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for a second thread to help."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
