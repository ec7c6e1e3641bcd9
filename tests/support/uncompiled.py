"""Algorithms without XLA, for tests of runs that are about something else.

XLA takes seconds for the update of each run; without it, TensorFlow runs the same graph as it is.
"""

import shutil
from pathlib import Path

from relaax_like.config.loader import load_experiment
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.parameter_server.initial_values import save_variables
from support.cluster import ROOT

UNCOMPILED = """

_make_compiled = make_model


def make_model(config, seed):
    model = _make_compiled(config, seed)
    model.xla = False
    return model
"""


def copy_uncompiled(name: str, folder: Path, more: str = "") -> Path:
    """Copies an algorithm, with a model that XLA does not compile; returns the copy's path.

    Args:
      name: of the algorithm.
      folder: to put the copy in, which is called as the algorithm is.
      more: Python code to add to its `algorithm.py`.
    """
    copy = folder / name
    shutil.copytree(ROOT / "algorithms" / name, copy, ignore=shutil.ignore_patterns("__*"))
    for file, code in (("model.py", UNCOMPILED), ("algorithm.py", more)):
        path = copy / file
        path.write_text(path.read_text() + code)
    return copy


def write_initial_values(algorithm: Path, *sets: str) -> str:
    """Builds what runs start from, for which each server would load TensorFlow in a process.

    Args:
      algorithm: its folder.
      sets: overrides, "key=value"; with those of the spaces.

    Returns:
      The override that has a parameter server start from them.
    """
    file, values = algorithm.with_suffix(".yaml"), algorithm.with_suffix(".npz")
    file.write_text(f"algorithm: {{path: '{algorithm}'}}\n")
    save_variables(values, make_initial_values(load_experiment(file, sets)))
    return f"relaax-parameter-server.initial_values={values}"
