"""The file `RUN/training_error.npz`: all that led to an update that could not be made.

Plain arrays, which `numpy.load(path, allow_pickle=False)` reads, too:

| name | what it is |
|---|---|
| `batch/PART/NAME` | the iteration, as `ComputationTask.compute_gradients` takes it |
| `value/NAME`, `slots/GROUP` | weights, statistics, optimizers after the last good update |
| `updates`, `global_t` | made so far; environment steps that were learned from |
| `cost/NAME` | costs and metrics, means over the iteration's updates up to the one that failed |
| `task` | name of the task; `RL` where the algorithm has one |
| `settings` | text of the run's config.yaml, where there is one |
"""

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relaax_like.wire.errors import ConfigError
from relaax_like.wire.ndarray import is_finite

FILE_NAME = "training_error.npz"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError)


def find_not_finite(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Finds arrays with NaN or infinity.

    Returns:
      Name -> index of the first such number; in the order of the arrays.
    """
    found = {}
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not is_finite(array):
            first = np.argwhere(~np.isfinite(array))[0]
            found[name] = tuple(int(index) for index in first)
    return found


def describe_place(name: str, index: tuple[int, ...]) -> str:
    """Says where a number lies: "NAME at step 3, column 0, component 2"."""
    if not index:
        return name
    if not name.startswith("batch/"):
        return f"{name} at {list(index)}"
    axes = ("column",) if name.startswith("batch/states/") else ("step", "column")
    words = [f"{axis} {number}" for axis, number in zip(axes, index, strict=False)]
    words += [f"component {number}" for number in index[len(axes) :]]
    return f"{name} at {', '.join(words)}"


def save_training_error(run_dir: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """Writes the file into a run's folder; one that is there is replaced.

    Raises:
      OSError: it could not be written; one that was there is as it was.
    """
    path = run_dir / FILE_NAME
    config = run_dir / "config.yaml"
    if config.is_file():
        arrays = {**arrays, "settings": np.array(config.read_text())}
    temporary = path.with_name(f".tmp-{FILE_NAME}")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load_training_error(path: Path) -> dict[str, np.ndarray]:
    """Reads the file of a run.

    Args:
      path: the file, or the run's folder.

    Raises:
      ConfigError: there is none, or it is damaged.
    """
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"{file}: no such file; a learner only writes it when it encounters numbers that "
            "are not finite"
        )
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except _DAMAGE as error:
        raise ConfigError(f"{file}: damaged, or not a training error file: {error}") from None
