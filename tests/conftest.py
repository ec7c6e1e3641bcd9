"""Settings for all tests."""

import gc
import importlib.metadata
import os
import signal
from pathlib import Path

from hypothesis import settings

from relaax_like.nn.compiling import use_compile_cache
from relaax_like.wire.errors import ConfigError

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# All tests and TensorFlow are in one process: a full collection takes half a second, and the many
# objects of a graph stay for as long as it is needed.
gc.set_threshold(20_000, 10, 100)
# The machine is shared: a slow example says nothing about the code.
settings.register_profile("relaax", deadline=None)
settings.load_profile("relaax")
# Tests read videos beside threads of gRPC; see relaax_like/runs/folders/video.py.
os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
# Tests wait less for XLA: the processes that they start load what an earlier one has compiled, the
# code is not optimized, and operations are fused in the way that compiles sooner, by a quarter or
# more. The Procfiles alone are compiled as they are for users. A checkout whose path the flags
# cannot express has no cache.
XLA_FLAGS = "--xla_backend_optimization_level=0"
_VERSION = importlib.metadata.version("tensorflow").split(".")
if (int(_VERSION[0]), int(_VERSION[1])) >= (2, 21):  # an older one can end at an unknown flag
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
COMPILED = Path(__file__).parents[1] / "build" / "compiled"
try:
    use_compile_cache(COMPILED)
except ConfigError:  # neither is the folder of the user who tests
    os.environ["TF_XLA_FLAGS"] = "--tf_xla_persistent_cache_directory="
