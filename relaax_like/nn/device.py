"""Which device TensorFlow uses in this process: the key `device` of a role."""

from __future__ import annotations

from typing import Any, Literal

from relaax_like.wire.errors import ConfigError

Device = Literal["auto", "cpu", "gpu"]

_device: Device = "auto"
_key = ""


def set_device(device: Device, key: str) -> None:
    """Sets the device; once TensorFlow has been loaded it stays as it is.

    Args:
      device: auto: a GPU if there is one.
      key: of the configuration that names it, for errors.
    """
    global _device, _key
    _device, _key = device, key


def apply_device(tf: Any) -> None:
    """Makes TensorFlow use the device; called once, right after it was imported.

    Of a GPU's memory it takes what it needs, as it needs it: the processes of a run share the GPU.

    Raises:
      ConfigError: there is no GPU, but one is required.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if _device == "gpu" and not gpus:
        raise ConfigError(
            f"{_key}: gpu, but TensorFlow finds no GPU on this machine; install a driver and "
            "tensorflow[and-cuda], or set it to auto or cpu"
        )
    if _device == "cpu":
        tf.config.set_visible_devices([], "GPU")
        return
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
