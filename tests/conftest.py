"""Settings for all tests."""

from hypothesis import settings

# The machine is shared: a slow example says nothing about the code.
settings.register_profile("relaax", deadline=None)
settings.load_profile("relaax")
