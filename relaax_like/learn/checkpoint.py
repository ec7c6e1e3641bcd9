"""Checkpoint files of a learner: `EXP/ckpt/iteration_N.npz`, or another name such as `best.npz`.

A file contains the policy's state as plain arrays, by name, and the progress of the training.
`numpy.load(path, allow_pickle=False)` reads it, too. A file is complete or absent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.wire.array_file import finding_damage, read_arrays, write_arrays
from relaax_like.wire.errors import DamagedError, InvalidInputError, SnapshotError
from relaax_like.wire.ndarray import DTYPES

_KIND = "checkpoint 1"
# Entry with everything that is not an array of the policy: JSON as a uint8 array.
_METADATA = "relaax_learner_checkpoint"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a learner needs to resume.

    Attributes:
      policy: name -> array, of any dtype of `wire.ndarray.DTYPES`.
      last_iter: number of iterations that the policy has learned from.
      last_step: number of environment steps that it has learned from.
    """

    policy: Mapping[str, np.ndarray]
    last_iter: int
    last_step: int


def checkpoint_path(exp_dir: Path, name: str) -> Path:
    """Returns the path of an experiment's checkpoint with this name.

    Raises:
      InvalidInputError: the name is not a file name, is not printable, or begins with a dot.
    """
    if not name.isprintable() or not name or Path(name).name != name or name.startswith("."):
        raise InvalidInputError(
            f"checkpoint name {name!r:.80}, expected a file name, such as best: printable, without "
            "a folder, and not beginning with a dot",
            "name",
        )
    return exp_dir / "ckpt" / f"{name}.npz"


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint, which replaces an existing one; returns when it is synced to disk.

    Raises:
      InvalidInputError: the policy's state contains something other than plain arrays, or a
        reserved name; the error names it.
      SnapshotError: the file could not be written; an existing one is complete, old or new.
    """
    arrays = {name: _check_array(name, array) for name, array in checkpoint.policy.items()}
    metadata = {
        "last_iter": checkpoint.last_iter,
        "last_step": checkpoint.last_step,
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
    }
    try:
        packed = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
        write_arrays(path, {**arrays, _METADATA: packed}, _KIND)
    except OSError as error:
        raise SnapshotError(
            f"{path}: the checkpoint could not be written ({error.strerror or error})"
        ) from error


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint completely, and verifies its checksums.

    Raises:
      SnapshotError: there is no such file, it cannot be read, is damaged, or is not a learner's
        checkpoint; the error names the file.
    """
    try:
        with finding_damage():
            arrays = read_arrays(path, _KIND)
            if _METADATA in arrays:
                metadata = json.loads(arrays.pop(_METADATA).tobytes())
                return _make_checkpoint(arrays, metadata)
    except FileNotFoundError:
        raise SnapshotError(f"{path}: no such checkpoint") from None
    except DamagedError as error:
        raise SnapshotError(
            f"{path}: unreadable, damaged, or not a learner's checkpoint ({error}); use another one"
        ) from error
    raise SnapshotError(
        f"{path}: not a learner's checkpoint, but another .npz file; pass a file that a learner "
        "has written"
    )


def _check_array(name: str, array: Any) -> np.ndarray:
    if name == _METADATA:
        raise InvalidInputError(f"policy state: {name}: this name is reserved; use another", name)
    if not isinstance(array, np.ndarray | np.generic):
        raise InvalidInputError(
            f"policy state: {name}: expected a NumPy array, got {type(array).__name__}", name
        )
    if array.dtype.name not in DTYPES:
        raise InvalidInputError(
            f"policy state: {name}: dtype {array.dtype}, expected one of {', '.join(DTYPES)}", name
        )
    return np.asarray(array)


def _make_checkpoint(arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> Checkpoint:
    dtypes = metadata["dtypes"]
    if arrays.keys() != dtypes.keys():
        differing = ", ".join(sorted(arrays.keys() ^ dtypes.keys()))[:200]
        raise ValueError(f"missing or unknown entries: {differing}")
    for name, array in arrays.items():
        # NumPy writes bfloat16 as untyped bytes.
        if array.dtype.kind == "V":
            arrays[name] = array.view(DTYPES[dtypes[name]])
    counts = [int(metadata[key]) for key in ("last_iter", "last_step")]
    if min(counts) < 0:
        raise ValueError(f"last_iter and last_step are {counts}, expected 0 or more")
    return Checkpoint(policy=arrays, last_iter=counts[0], last_step=counts[1])
