"""Files of named arrays, `.npz` as NumPy reads it, that are written atomically.

Each says in its archive's comment what it holds, and in which version of that format, such as
"trajectories 1".
"""

import contextlib
import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from relaax_like.wire.errors import DamagedError
from relaax_like.wire.syncing import sync_path

_SUFFIX = ".npy"
_OURS = "relaax_like "
# What zipfile, NumPy and json raise for a file that is something else.
_DAMAGE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    NotImplementedError,
    MemoryError,
    RuntimeError,  # an encrypted entry
)
with contextlib.suppress(ImportError):  # without it, zipfile refuses such entries
    import lzma

    _DAMAGE = (*_DAMAGE, lzma.LZMAError)
# What NumPy raises for a header that it cannot read, or for an impossible shape.
_NO_ARRAY = (ValueError, SyntaxError, OverflowError, tokenize.TokenError)


@contextlib.contextmanager
def finding_damage() -> Iterator[None]:
    """Converts errors of reading a file, or of using its content, to a `DamagedError`.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedError: the file is of another kind, is damaged, or cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except _DAMAGE as error:
        raise DamagedError(f"{type(error).__name__}: {error}") from error


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], kind: str, sync: bool = True
) -> None:
    """Writes a file, and replaces an existing one.

    Args:
      path: of the file.
      arrays: by name.
      kind: what the file holds, and the version of that format; `read_arrays` compares it.
      sync: return when the file is on disk. False: a power failure can damage it; a process that
        is killed cannot.

    Raises:
      OSError: the file could not be written; an existing one is complete, the old or the new one.
      ValueError: an array contains Python objects.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            pack_arrays(file, arrays, kind)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_path(path.parent)
    finally:
        _remove(temporary)


def pack_arrays(file: BinaryIO, arrays: Mapping[str, np.ndarray], kind: str) -> None:
    """Writes what `write_arrays` writes to an open file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            _write_entry(archive, name, array)
        archive.comment = f"{_OURS}{kind}".encode()


def read_arrays(path: Path | BinaryIO, kind: str) -> dict[str, np.ndarray]:
    """Reads a complete file, verifies its checksums, and returns its arrays by name.

    Arrays keep their memory order; arrays of bfloat16 are returned as untyped bytes.

    Args:
      path: of the file, or a file that is open.
      kind: see `write_arrays`. A file of another program, which has no kind, is read, too.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedError: it is not a file of arrays, is damaged, cannot be read, or is of another kind
        or version.
    """
    with finding_damage(), zipfile.ZipFile(path) as archive:
        found = _get_kind(archive)
        if found not in ("", kind):
            raise DamagedError(
                f"its format is {found!r:.80}, expected {kind!r}: it is another kind of file, or "
                "was written by another version of relaax_like"
            )
        return {
            name.removesuffix(_SUFFIX): _read_entry(archive, name) for name in archive.namelist()
        }


def read_kind(path: Path) -> str:
    """Returns the kind that was given to `write_arrays`; "" for a file of another program.

    Raises:
      FileNotFoundError: there is no such file.
      DamagedError: it is not an archive, or cannot be read. Its arrays are not checked.
    """
    with finding_damage(), zipfile.ZipFile(path) as archive:
        return _get_kind(archive)


def _get_kind(archive: zipfile.ZipFile) -> str:
    comment = archive.comment.decode()
    return comment.removeprefix(_OURS) if comment.startswith(_OURS) else ""


def _write_entry(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(name + _SUFFIX, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def _read_entry(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    # Read completely, so that zipfile verifies the entry's checksum.
    data = io.BytesIO(archive.read(name))
    try:
        return np.lib.format.read_array(data, allow_pickle=False)
    except _NO_ARRAY as error:
        raise DamagedError(f"{name.removesuffix(_SUFFIX)}: not a plain array ({error})") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # its parent is not a folder
        pass
