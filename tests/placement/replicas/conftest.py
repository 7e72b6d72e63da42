import pytest
from support.models import tiny_dit

from wavecore.placement.nursery import Nursery


@pytest.fixture(scope="session")
def dit():
    return tiny_dit()


@pytest.fixture(scope="session")
def nursery(dit):
    """Loads once; every test takes its processes from here."""
    nursery = Nursery(dit)
    yield nursery
    nursery.close()
