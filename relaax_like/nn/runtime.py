"""TensorFlow's settings for this process; our modules that use TensorFlow import it first.

Importing it gives TensorFlow one thread per call, before anything has been computed, or as many as
`nn.threads` says: small networks lose more to the hand-over between threads than they gain, and
many agents run side by side anyway.
"""

import tensorflow as tf

from relaax_like.nn.threads import get_threads

try:
    tf.config.threading.set_intra_op_parallelism_threads(get_threads())
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Brings the runtime up here and now, where its greetings can be hidden.
    tf.config.list_logical_devices()
except RuntimeError:
    # The user's own program has computed something before; its settings stand.
    pass
