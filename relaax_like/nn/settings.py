"""Settings of TensorFlow in one of our processes, made before it is loaded."""

from relaax_like.config.models import Experiment
from relaax_like.nn.compiling import use_compile_cache
from relaax_like.nn.device import set_device


def prepare_tensorflow(experiment: Experiment, learns: bool) -> None:
    """Sets the device and the cache of compiled functions; without effect once it is loaded.

    Args:
      experiment: has the settings.
      learns: whether the device is that of the learner, or that of the rlx server.

    Raises:
      ConfigError: see `use_compile_cache`.
    """
    use_compile_cache(experiment.compile_cache)
    if learns:
        set_device(experiment.learner.device, "learner.device")
    else:
        set_device(experiment.rlx_server.device, "relaax-rlx-server.device")
