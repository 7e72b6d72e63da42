"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# An example may take as long as a busy machine needs.
settings.register_profile("wavecore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wavecore")
