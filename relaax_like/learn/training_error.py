"""The file `RUN/training_error.npz`: everything that led to a failed update.

It contains plain arrays, which `numpy.load(path, allow_pickle=False)` also reads:

| name | content |
|---|---|
| `batch/PART/NAME` | the iteration, as `CompiledAlgorithm.compute_gradients` takes it |
| `value/NAME` | weights and statistics after the last good update |
| `slots/GROUP`, `steps/GROUP` | optimizer state, and numbers of optimizer steps, after it |
| `updates`, `global_t` | numbers of updates and of environment steps so far |
| `cost/NAME` | costs and metrics, if updates were made: means up to the one that failed |
| `algorithm` | name of the Algorithm; `RL` if there is only one |
| `settings` | text of the run's config.yaml, if there is one |
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relaax_like.wire.array_file import read_arrays, write_arrays
from relaax_like.wire.errors import ConfigError, DamagedError
from relaax_like.wire.ndarray import is_finite

FILE_NAME = "training_error.npz"
_KIND = "training error 2"


def find_not_finite(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Finds arrays with NaN or infinity.

    Returns:
      Name -> index of the first such number, in the order of the arrays.
    """
    found = {}
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not is_finite(array):
            first = np.argwhere(~np.isfinite(array))[0]
            found[name] = tuple(int(index) for index in first)
    return found


def count_leading_axes(arrays: Mapping[str, np.ndarray]) -> int:
    """Returns 2 if the batch is `[T, k, ...]`, or unknown; 1 if it consists of rows `[B, ...]`."""
    alive = arrays.get("batch/next_alive/alive")
    return 2 if alive is None else alive.ndim


def describe_place(name: str, index: tuple[int, ...], leading_axes: int = 2) -> str:
    """Describes the place of a number: "NAME at step 3, column 0, component 2".

    Args:
      name: of the array.
      index: of the number.
      leading_axes: see `count_leading_axes`.
    """
    if not index:
        return name
    if not name.startswith("batch/"):
        return f"{name} at {list(index)}"
    axes: tuple[str, ...] = ("row",) if leading_axes == 1 else ("step", "column")
    if name.startswith("batch/states/"):
        axes = ("column",)
    words = [f"{axis} {number}" for axis, number in zip(axes, index, strict=False)]
    words += [f"component {number}" for number in index[len(axes) :]]
    return f"{name} at {', '.join(words)}"


def save_training_error(run_dir: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Writes the file to a run's folder, and replaces an existing one.

    Args:
      run_dir: the run's folder, which must exist.
      arrays: name -> array, as in the table above; the settings are added here.

    Returns:
      The path of the file.

    Raises:
      OSError: the file could not be written, or config.yaml not read; an existing file is complete,
        old or new.
    """
    path = run_dir / FILE_NAME
    config = run_dir / "config.yaml"
    if config.is_file():
        arrays = {**arrays, "settings": np.array(config.read_text())}
    write_arrays(path, arrays, _KIND)
    return path


def load_training_error(path: Path) -> dict[str, np.ndarray]:
    """Reads the file of a run.

    Args:
      path: the file, or the run's folder.

    Returns:
      The arrays of the table above, by name.

    Raises:
      ConfigError: there is no such file, or it cannot be read, is damaged or is of another kind.
    """
    # Unlike Path's methods, these functions do not raise without access.
    file = path / FILE_NAME if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise ConfigError(
            f"{file}: no such file, or no access to it; a learner writes it when it encounters "
            "numbers that are not finite, but not with learner.placement: agent"
        )
    try:
        return read_arrays(file, _KIND)
    except DamagedError as error:
        raise ConfigError(
            f"{file}: unreadable, damaged, or not a training error file: {error}"
        ) from None
