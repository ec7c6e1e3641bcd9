"""compare: the differences of two states as text."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_MAX_LINES = 40


def compare(a: Any, b: Any, name: str = "state") -> str:
    """Returns what differs, bit for bit, one line for each part; "" when nothing does.

    Args:
      a: mappings, lists and tuples of arrays and plain values.
      b: the same.
      name: of the whole, which the names of its parts begin with.
    """
    lines = list(_find_differences(a, b, name))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"and {len(lines) - _MAX_LINES} more"]
    return "\n".join(lines)


def _find_differences(a: Any, b: Any, name: str) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(key for key in b if key not in a)]:
            if key in a and key in b:
                yield from _find_differences(a[key], b[key], f"{name}/{key}")
            else:
                yield f"{name}/{key}: only in the {'first' if key in a else 'second'}"
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{name}: {len(a)} and {len(b)} items"
        else:
            for index, (one, other) in enumerate(zip(a, b, strict=True)):
                yield from _find_differences(one, other, f"{name}/{index}")
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        yield from _compare_arrays(a, b, name)
    elif type(a) is not type(b) or a != b:
        yield f"{name}: {_shorten(a)} and {_shorten(b)}"


def _compare_arrays(a: np.ndarray, b: np.ndarray, name: str) -> Iterator[str]:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        yield f"{name}: {a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        return
    as_bytes = (-1, a.dtype.itemsize)
    differs = (
        np.ascontiguousarray(a).view(np.uint8).reshape(as_bytes)
        != np.ascontiguousarray(b).view(np.uint8).reshape(as_bytes)
    ).any(1)
    if not differs.any():
        return
    places = np.flatnonzero(differs)
    line = f"{name}: {len(places)} of {a.size} differ"
    place, what = places[0], "first"
    if np.issubdtype(a.dtype, np.floating):
        distances = np.abs(a.ravel() - b.ravel())[places]
        if np.isfinite(distances).all():
            place, what = places[distances.argmax()], f"by at most {distances.max():.3g},"
    index = [int(i) for i in np.unravel_index(place, a.shape)]
    yield f"{line}, {what} at {index}: {a.ravel()[place]!r} and {b.ravel()[place]!r}"


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
