"""Settings of all tests."""

import pytest
import torch
from hypothesis import HealthCheck, settings

# An example may take as long as a busy machine needs.
settings.register_profile("wavecore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wavecore")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(0))


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
