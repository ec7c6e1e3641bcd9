"""Files of named arrays, `.npz` as NumPy reads it, that are written atomically."""

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from relaax_like.wire.syncing import sync_path

_SUFFIX = ".npy"
# What zipfile, NumPy and json raise for a file that is something else.
DAMAGE = (
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


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], sync: bool = True) -> None:
    """Writes a file; replaces one of that name.

    Args:
      path: of the file.
      arrays: by name.
      sync: return when the disk has it. False: a power failure can damage it, nothing else can.

    Raises:
      OSError: it could not be written; a file of that name is unchanged.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, array in arrays.items():
                    _write_entry(archive, name, array)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_path(path.parent)
    finally:
        _remove(temporary)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads a complete file, and verifies checksums.

    Arrays keep their memory order; those of bfloat16 are returned as nameless bytes.

    Raises:
      FileNotFoundError: there is no such file.
      *DAMAGE: it is something else.
    """
    with zipfile.ZipFile(path) as archive:
        return {
            name.removesuffix(_SUFFIX): _read_entry(archive, name) for name in archive.namelist()
        }


def _write_entry(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(name + _SUFFIX, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)


def _read_entry(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    # Read completely, so that zipfile verifies the entry's checksum.
    return np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # its parent is not a folder
        pass
