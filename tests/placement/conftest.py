import pytest


@pytest.fixture(autouse=True)
def small_models(one_thread):
    """The models are too small for a second thread to help."""
