"""Several processes with TensorFlow, which is imported once for all of them.

The import takes seconds in each process. It starts no threads and makes no settings: that comes
with the first computation. So a process that has imported TensorFlow, and computed nothing, can
fork; each child is then as if it had imported TensorFlow itself. The import reads the flags of
TF_XLA_FLAGS: these are the same for all children.
"""

import os
import sys
import traceback
from collections.abc import Callable

import numpy as np


def import_tensorflow() -> None:
    """Imports TensorFlow, without Keras as our runtime does, and starts nothing of it."""
    keras = "keras.src.optimizers"
    np.ones((2, 2)) @ np.ones((2, 2))
    # Those of NumPy's matrix library, which starts new ones after a fork.
    threads = os.listdir("/proc/self/task")
    sys.modules[keras] = None  # type: ignore[assignment]
    import tensorflow  # noqa: F401

    del sys.modules[keras]
    assert os.listdir("/proc/self/task") == threads, "a thread would be missing in a child"


def run_forked(run: Callable[[], None], processes: int = 1) -> int:
    """Calls a function in children of this process, in all of them at once.

    Returns:
      An exit status that is not 0, or minus a signal; 0: each child has ended with 0.
    """
    sys.stdout.flush()
    children = [_fork(run) for _ in range(processes)]
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return next(filter(None, ends), 0)


def _fork(run: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return child
