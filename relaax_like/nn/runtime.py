"""TensorFlow with this process's settings; our modules that need it at import time take `tf` from
here.

Importing it gives TensorFlow one thread per call, before anything has been computed, or as many as
`nn.threads` says: small networks lose more to the hand-over between threads than they gain, and
many agents run side by side anyway.
"""

import gc
import sys

from relaax_like.nn.threads import get_threads

_is_first = "tensorflow" not in sys.modules
# At its end, TensorFlow imports Keras, unless that fails, which takes up to a third of the time. It
# fails while this entry is None. An algorithm that uses `tf.keras` imports Keras then.
_KERAS = "keras.src.optimizers"
_is_held_back = _is_first and _KERAS not in sys.modules
if _is_held_back:
    sys.modules[_KERAS] = None  # type: ignore[assignment]
# All that the import makes stays. The garbage collector would search it dozens of times meanwhile,
# and again and again afterwards: almost a second.
_is_collecting = gc.isenabled()
gc.disable()
try:
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
    tf.config.threading.set_intra_op_parallelism_threads(get_threads())
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Brings the runtime up here and now, where its greetings can be hidden.
    tf.config.list_logical_devices()
except RuntimeError:
    # The user's own program has computed something before; its settings stand.
    pass
