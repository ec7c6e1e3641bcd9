"""Nested arrays and JSON types as named arrays, and as bytes; nothing is pickled."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.wire.array_file import pack_arrays, read_arrays
from relaax_like.wire.ndarray import DTYPES

# Entry with everything that is not an array: JSON as a uint8 array. The name is that of files.
_DOCUMENT = "relaax_serial_state"
# Represents an array in the JSON: its entry and its dtype.
_ARRAY = "$array"


def split_tree(tree: Any) -> dict[str, np.ndarray]:
    """Converts nested mappings and lists to named arrays, one of which has all other values."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_split(tree, "", arrays))
    return {**arrays, _DOCUMENT: np.frombuffer(text.encode(), np.uint8)}


def join_tree(arrays: Mapping[str, np.ndarray]) -> Any:
    """Restores what was given to `split_tree`; tuples are lists.

    Raises:
      KeyError, ValueError: the arrays are others.
    """
    return _join(json.loads(arrays[_DOCUMENT].tobytes()), arrays)


def tree_to_bytes(tree: Any, kind: str) -> bytes:
    """Returns the bytes of a file with the arrays of `split_tree`.

    Args:
      tree: nested mappings and lists of arrays and JSON types.
      kind: see `write_arrays`.

    Raises:
      ValueError: an array contains Python objects.
    """
    file = io.BytesIO()
    pack_arrays(file, split_tree(tree), kind)
    return file.getvalue()


def bytes_to_tree(data: bytes | memoryview, kind: str) -> Any:
    """Restores what was given to `tree_to_bytes`.

    Raises:
      DamagedError: the bytes are not those of such a file.
      KeyError, ValueError: the file has no tree.
    """
    return join_tree(read_arrays(io.BytesIO(data), kind))


def _split(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Converts a value to JSON types; adds arrays to `arrays`, named by their path."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {_ARRAY: name, "dtype": value.dtype.name}
    if isinstance(value, Mapping):
        return {
            key: _split(part, f"{name}/{key}".lstrip("/"), arrays) for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_split(part, f"{name}/{index}", arrays) for index, part in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def _join(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_join(part, arrays) for part in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY not in value:
        return {key: _join(part, arrays) for key, part in value.items()}
    array = arrays[value[_ARRAY]]
    # NumPy writes bfloat16 as untyped bytes.
    return array.view(DTYPES[value["dtype"]]) if array.dtype.kind == "V" else array
