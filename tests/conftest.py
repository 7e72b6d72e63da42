"""Settings of all tests."""

from hypothesis import settings

# An example may take as long as a busy machine needs.
settings.register_profile("wavecore", deadline=None)
settings.load_profile("wavecore")
