"""Initial values of a run as an `.npz` file, and the command that writes such a file.

An algorithm builds its model in a separate process, because building can import TensorFlow; the
parameter server reads the file. `relaax train`, if it loads TensorFlow itself, builds the model in
its own process, and writes the file for later starts. In an `.npz` file of `numpy.savez`, all
arrays are trainable.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from relaax_like.core.manifest import TRAINABLE, Follow, Variable, make_manifest
from relaax_like.wire.array_file import finding_damage, read_arrays, read_kind, write_arrays
from relaax_like.wire.errors import ConfigError, DamagedError, InvalidInputError
from relaax_like.wire.ndarray import DTYPES

# Entry with the metadata: a JSON list of {name, dtype, follow, group, kind} as a uint8 array.
_METADATA = "relaax_variables"
_KIND = "initial values 1"
_STDERR_LINES = 15
_STDERR_BYTES = 16 * 1024


def save_variables(path: str | os.PathLike[str], variables: Iterable[Variable]) -> None:
    """Writes variables to an `.npz` file, in the given order; `numpy.load` can read them, too.

    The file is complete or absent, even after a power cut; an existing file is replaced.

    Raises:
      InvalidInputError: no run could start from these variables (see `make_manifest`), or one has a
        reserved name.
      ConfigError: the file cannot be written (disk full, ...); an existing file is complete, the
        old or the new one.
    """
    variables = list(variables)
    make_manifest(variables)
    if any(variable.name == _METADATA for variable in variables):
        raise InvalidInputError(f"{_METADATA}: this variable name is reserved; rename the variable")
    arrays = {variable.name: np.asarray(variable.value) for variable in variables}
    metadata = []
    for variable in variables:
        entry: dict[str, Any] = {"name": variable.name, "dtype": arrays[variable.name].dtype.name}
        if variable.follow is not None:
            entry["follow"] = asdict(variable.follow)
        metadata.append({**entry, "group": variable.group, "kind": variable.kind})
    arrays[_METADATA] = np.frombuffer(json.dumps(metadata).encode(), np.uint8)
    try:
        # The archive's directory has no checksum of its own: a damaged one might hide entries.
        write_arrays(Path(path), arrays, _KIND)
    except OSError as error:
        raise ConfigError(
            f"{path}: the initial values cannot be written: {error}; free disk space, make the "
            "folder writable, or choose another one"
        ) from None


def load_variables(path: str | os.PathLike[str]) -> list[Variable]:
    """Reads variables from an `.npz` file, in their order.

    In a file that `save_variables` did not write, every array is trainable, in group "default".

    Raises:
      InvalidInputError: the file does not exist, cannot be read, is not an `.npz` file, is damaged,
        contains pickled objects, or no run could start from it (a trainable float64 array, ...);
        the error names the file, and the variable if there is one.
    """
    try:
        with finding_damage():
            arrays, is_ours = read_arrays(Path(path), _KIND), read_kind(Path(path)) == _KIND
            metadata = arrays.pop(_METADATA, None)
            if metadata is None and is_ours:
                raise DamagedError("its list of variables is missing")
            if metadata is None:
                variables = [Variable(name, array) for name, array in arrays.items()]
            else:
                entries = json.loads(metadata.tobytes())
                variables = [_make_variable(entry, arrays) for entry in entries]
    except FileNotFoundError:
        raise InvalidInputError(
            f"{path}: no such file, expected an .npz file of initial values"
        ) from None
    except DamagedError as error:
        raise InvalidInputError(
            f"{path}: not a file of initial values, or damaged or unreadable ({error}); expected "
            "a readable .npz file of plain arrays, as save_variables and numpy.savez write it"
        ) from error
    _validate(path, variables)
    return variables


def compute_initial_values(argv: Sequence[str], timeout_sec: float) -> list[Variable]:
    """Runs a command that writes initial values, and reads them.

    Args:
      argv: the command; the path of the `.npz` file to write is appended as its last argument.
      timeout_sec: the command and its children are killed after this time.

    Raises:
      ConfigError: the command cannot be started, fails, takes too long, or writes no file; or
        temporary files cannot be created.
      InvalidInputError: the command wrote an unusable file, see `load_variables`.
    """
    with open_temporary_folder("relaax-initial-values-") as directory:
        path = directory / "values.npz"
        with _create(directory / "stderr") as stderr:
            _run([*argv, str(path)], timeout_sec, stderr)
            if not path.exists():
                raise ConfigError(
                    f"initial values: {_describe(argv)} succeeded, but did not write the file "
                    f"named by its last argument{_tail(stderr)}"
                )
        return load_variables(path)


@contextlib.contextmanager
def open_temporary_folder(prefix: str) -> Iterator[Path]:
    """Makes a temporary folder, and deletes it afterwards.

    Args:
      prefix: of its name.

    Raises:
      ConfigError: it cannot be made.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise ConfigError(
            f"initial values: no temporary folder can be made: {error}; free disk space, or set "
            "the environment variable TMPDIR to a writable folder"
        ) from error
    with folder as name:
        yield Path(name)


def _create(path: Path) -> IO[bytes]:
    try:
        return open(path, "w+b")
    except OSError as error:
        raise ConfigError(
            f"initial values: {path} cannot be created: {error.strerror}; free disk space, or set "
            "the environment variable TMPDIR to a writable folder"
        ) from error


def _run(argv: Sequence[str], timeout_sec: float, stderr: IO[bytes]) -> None:
    """Runs a command in a process group of its own, which is killed after the time limit.

    Its stderr goes to a file, because a pipe would stay open as long as any grandchild lives.

    Raises:
      ConfigError: the command cannot be started, fails, or takes too long.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(
            f"initial values: cannot start {_describe(argv)}: {error}; end other programs, or set "
            "relaax-parameter-server.initial_values to an .npz file"
        ) from error
    try:
        status = process.wait(timeout_sec)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"initial values: {_describe(argv)} did not finish within {timeout_sec:g} s and was "
            "killed; make it faster, or set relaax-parameter-server.initial_values to an .npz file"
            f"{_tail(stderr)}"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if status != 0:
        how = f"failed with status {status}" if status > 0 else f"was killed by signal {-status}"
        raise ConfigError(f"initial values: {_describe(argv)} {how}{_tail(stderr)}")


def _describe(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    return text if len(text) <= 200 else text[:200] + "..."


def _tail(file: IO[bytes]) -> str:
    """Returns the last lines of a command's stderr, for the end of a message; "" without any."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - _STDERR_BYTES))
    lines = file.read().decode(errors="replace").rstrip().splitlines()[-_STDERR_LINES:]
    return "; its last output:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _make_variable(entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> Variable:
    array = arrays[entry["name"]]
    # NumPy writes bfloat16 as nameless bytes; the metadata knows better.
    if array.dtype.kind == "V":
        array = array.view(DTYPES[entry["dtype"]])
    follow = Follow(**entry["follow"]) if "follow" in entry else None
    return Variable(entry["name"], array, entry["group"], entry["kind"], follow)


def _validate(path: str | os.PathLike[str], variables: list[Variable]) -> None:
    for variable in variables:
        if variable.kind == TRAINABLE and variable.value.dtype != np.float32:
            raise InvalidInputError(
                f"{path}: {variable.name} is {variable.value.dtype}, but trainable variables "
                "must be float32; save array.astype(numpy.float32)",
                variable.name,
            )
    try:
        make_manifest(variables)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}", error.field) from None
