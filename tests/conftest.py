"""Settings for all tests."""

import os

from hypothesis import settings

# The machine is shared: a slow example says nothing about the code.
settings.register_profile("relaax", deadline=None)
settings.load_profile("relaax")
# Tests read videos beside threads of gRPC; see relaax_like/launch/video.py.
os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
