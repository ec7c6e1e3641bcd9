"""Which device TensorFlow uses in this process: the key `device` of a role."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Literal

from relaax_like.wire.errors import ConfigError

Device = Literal["auto", "cpu", "gpu"]

_device: Device = "auto"
_key = ""
_has_gpu = False
_gpu_lock = threading.RLock()


def set_device(device: Device, key: str) -> None:
    """Sets the device; without effect once TensorFlow has been loaded.

    Args:
      device: "cpu"; "gpu": required; "auto": a GPU if there is one.
      key: of the configuration that names it, for errors.
    """
    global _device, _key
    _device, _key = device, key


def uses_gpu() -> bool:
    """Returns whether TensorFlow has been loaded and computes on a GPU."""
    return _has_gpu


def hold_gpu() -> contextlib.AbstractContextManager[Any]:
    """Returns a context manager that locks the GPU for a thread; it does nothing without a GPU.

    Operations that are not compiled are not thread-safe on a GPU: of 6 000 calls in two threads of
    TensorFlow 2.21, 54 had the shape of the other thread's call.
    """
    return _gpu_lock if _has_gpu else contextlib.nullcontext()


def apply_device(tf: Any) -> None:
    """Makes TensorFlow use the device; called once, by `runtime`.

    Memory of a GPU is allocated as needed, because the processes of a run share the GPU. Matrix
    products are computed in float32. TensorFlow's default there is TF32 with 10 bits of fraction,
    which would give actions another probability than NumPy does, by about 0.1 %.

    Raises:
      ConfigError: there is no GPU, but the device is "gpu".
      RuntimeError: this process has already computed something, so TensorFlow's settings are fixed.
    """
    global _has_gpu
    gpus = tf.config.list_physical_devices("GPU")
    if _device == "gpu" and not gpus:
        raise ConfigError(
            f"{_key}: gpu, but TensorFlow finds no GPU on this machine; install a driver and "
            "tensorflow[and-cuda], or set it to auto or cpu"
        )
    if _device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return
    _has_gpu = bool(gpus)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.experimental.enable_tensor_float_32_execution(False)
