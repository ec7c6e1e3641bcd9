"""Settings for all tests."""

import contextlib
import os
from pathlib import Path

from hypothesis import settings

from relaax_like.nn.compiling import use_compile_cache
from relaax_like.wire.errors import ConfigError

# The machine is shared: a slow example says nothing about the code.
settings.register_profile("relaax", deadline=None)
settings.load_profile("relaax")
# Tests read videos beside threads of gRPC; see relaax_like/launch/video.py.
os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
# What several tests compile is compiled once; the Procfiles alone compile all, as for users. A
# checkout whose path the flags cannot express has no cache.
COMPILED = Path(__file__).parents[1] / "build" / "compiled"
with contextlib.suppress(ConfigError):
    use_compile_cache(COMPILED)
