"""TensorFlow with this process's settings; our modules that need it when imported use this `tf`.

Importing it makes TensorFlow use one thread per call, or the number in `nn.threads`, before
anything has been computed: small networks lose more by switching threads than they gain, and many
agents run side by side anyway.
"""

import gc
import sys

from relaax_like.nn.compiled_files import clean
from relaax_like.nn.compiling import tend_compile_cache
from relaax_like.nn.device import apply_device
from relaax_like.nn.late_modules import late_parts
from relaax_like.nn.threads import get_threads

_is_first = "tensorflow" not in sys.modules
tend_compile_cache(clean)
# TensorFlow's import ends with importing Keras, which takes up to a third of the time, unless that
# fails. It fails while this entry is None. An algorithm that uses `tf.keras` imports Keras later.
_KERAS = "keras.src.optimizers"
_is_held_back = _is_first and _KERAS not in sys.modules
if _is_held_back:
    sys.modules[_KERAS] = None  # type: ignore[assignment]
# All objects of the import stay. The garbage collector would search them dozens of times during the
# import, and repeatedly afterwards, which takes almost a second.
_is_collecting = gc.isenabled()
gc.disable()
try:
    with late_parts():
        import tensorflow as tf
finally:
    if _is_held_back:
        del sys.modules[_KERAS]
    if _is_first:
        gc.freeze()
    if _is_collecting:
        gc.enable()

__all__ = ["tf"]

try:
    apply_device(tf)
    tf.config.threading.set_intra_op_parallelism_threads(get_threads())
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Starts the runtime here, where its startup messages can be hidden.
    tf.config.list_logical_devices()
except RuntimeError:
    # The user's own program has already computed something; its settings stay in effect.
    pass
