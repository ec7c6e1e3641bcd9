"""`python -m ...`: builds an algorithm's initial values and writes them to an .npz.

A process of its own, so that the parameter server never imports TensorFlow.
"""

import sys
from pathlib import Path

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.launch.process import run_main, setup_logging, without_native_stderr
from relaax_like.parameter_server.initial_values import save_variables


def main() -> int:
    """Takes the YAML file, overrides, and the path of the .npz to write."""
    setup_logging("WARNING")
    file, *overrides, path = sys.argv[1:]
    experiment = load_experiment(file, overrides)
    with without_native_stderr():
        module = load_algorithm_module(experiment.algorithm_folder, "model")
    if hasattr(module, "make_initial_values"):
        variables = module.make_initial_values(experiment.algorithm, experiment.seed)
    else:
        from relaax_like.computation.model import get_variables

        variables = get_variables(module.make_model(experiment.algorithm, experiment.seed))
    save_variables(Path(path), variables)
    return 0


if __name__ == "__main__":
    run_main(main)
