"""`python -m ...`: builds an algorithm's initial values and writes them to an .npz.

It runs in its own process, so that a parameter server need not import TensorFlow. A training run in
one process calls `make_initial_values` itself, unless it must still choose TensorFlow's threads.
"""

import argparse
import contextlib
import os
import stat
import threading
from pathlib import Path
from typing import Any

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.core.manifest import Variable
from relaax_like.launch.algorithm_code import locate_errors, make_model
from relaax_like.parameter_server.initial_values import save_variables
from relaax_like.runs.processes.process import run_main, setup_logging, without_native_stderr
from relaax_like.wire.errors import ConfigError, RelaaxError


def main() -> int:
    """Writes the values; the arguments are the YAML file, overrides, and the path of the .npz.

    With the option `--error=FILE`, a RelaaxError is written to that file, if that is possible,
    before it is raised.
    """
    # A signal might have ended the parameter server just after it had started this process.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    setup_logging("WARNING")
    arguments = _parse_arguments()
    try:
        experiment = load_experiment(arguments.file, arguments.overrides)
        save_variables(arguments.values, make_initial_values(experiment))
    except RelaaxError as error:
        if arguments.error is not None:
            with contextlib.suppress(OSError):  # a full disk: the error is printed
                arguments.error.write_text(str(error), "utf-8")
        raise
    return 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--error", type=Path, help="file to which an error is written, if there is one"
    )
    parser.add_argument("file", type=Path, help="the experiment's YAML file")
    parser.add_argument("overrides", nargs="*", help="override of one key: section.key=value")
    parser.add_argument("values", type=Path, help="the .npz file to write")
    return parser.parse_args()


def _end_with_parent() -> None:
    if stat.S_ISFIFO(os.fstat(0).st_mode):  # a pipe from the parameter server
        while os.read(0, 4096):
            pass
        os._exit(1)


def make_initial_values(experiment: Experiment) -> list[Variable]:
    """Returns an algorithm's initial variables, from the code of its folder.

    Calls `make_initial_values` in `model.py`; without it, uses all variables of `make_model` in
    `model.py`, or else of the Models that `make_algorithms` in `algorithm.py` makes. If `model.py`
    is enough, `algorithm.py`, which imports TensorFlow, is not even loaded.

    Raises:
      ConfigError: the folder has none of these functions, or its code cannot be loaded, or fails;
        the error names the line.
    """
    with locate_errors(experiment.algorithm_folder):
        return _make_initial_values(experiment)


def _make_initial_values(experiment: Experiment) -> list[Variable]:
    folder, config, seed = experiment.algorithm_folder, experiment.algorithm, experiment.seed
    model = _load(folder, "model")
    if hasattr(model, "make_initial_values"):
        return list(model.make_initial_values(config, seed))
    if hasattr(model, "make_model"):
        from relaax_like.algorithm.model import get_variables

        return get_variables(make_model(experiment))
    algorithm = _load(folder, "algorithm")
    if hasattr(algorithm, "make_algorithms"):
        from relaax_like.learn.named_algorithms import NamedAlgorithms

        return NamedAlgorithms(algorithm.make_algorithms(config, seed)).get_variables()
    raise ConfigError(
        f"{folder}: nothing provides initial values; define make_initial_values or make_model "
        "in model.py, or make_algorithms in algorithm.py"
    )


def _load(folder: Path, name: str) -> Any:
    """Returns a module of the folder; None if there is no such file."""
    if not (folder / f"{name}.py").is_file():
        return None
    with without_native_stderr():
        return load_algorithm_module(folder, name)


if __name__ == "__main__":
    run_main(main)
