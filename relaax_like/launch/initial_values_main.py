"""`python -m ...`: builds an algorithm's initial values and writes them to an .npz.

A process of its own, so that the parameter server never imports TensorFlow.
"""

import sys
from pathlib import Path

from relaax_like.bridge.manifest import Variable
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.launch.process import run_main, setup_logging, without_native_stderr
from relaax_like.parameter_server.initial_values import save_variables
from relaax_like.wire.errors import ConfigError


def main() -> int:
    """Takes the YAML file, overrides, and the path of the .npz to write."""
    setup_logging("WARNING")
    file, *overrides, path = sys.argv[1:]
    experiment = load_experiment(file, overrides)
    save_variables(Path(path), make_initial_values(experiment))
    return 0


def make_initial_values(experiment: Experiment) -> list[Variable]:
    """Runs the algorithm folder's code, TensorFlow included.

    `make_initial_values` in `model.py` decides; without it, all variables are taken of the Models
    behind `make_algorithms` in `algorithm.py`, or else of `make_model` in `model.py`.

    Raises:
      ConfigError: the folder has none of them, or they cannot be loaded.
    """
    folder, config, seed = experiment.algorithm_folder, experiment.algorithm, experiment.seed
    with without_native_stderr():
        modules = [
            load_algorithm_module(folder, name)
            for name in ("model", "algorithm")
            if (folder / f"{name}.py").is_file()
        ]
    exported = {k: v for module in modules for k, v in vars(module).items()}
    if "make_initial_values" in exported:
        return list(exported["make_initial_values"](config, seed))
    if "make_algorithms" in exported:
        from relaax_like.computation.tasks import Tasks

        return Tasks(exported["make_algorithms"](config, seed)).get_variables()
    if "make_model" in exported:
        from relaax_like.computation.model import get_variables

        return get_variables(exported["make_model"](config, seed))
    raise ConfigError(
        f"{folder}: no make_initial_values or make_model in a model.py, and no make_algorithms in "
        "an algorithm.py: a run has nothing to start from"
    )


if __name__ == "__main__":
    run_main(main)
