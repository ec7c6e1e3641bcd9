"""Reports values outside of what their spaces declare; they are neither refused nor clipped."""

import logging
import threading
from collections.abc import Mapping

import numpy as np

from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import ACTION, OBSERVATION, Box, Space, Spaces

logger = logging.getLogger(__name__)
# Rounding errors of a simulator, relative to the larger bound.
_TOLERANCE = 1e-5
# So many steps, or bytes, are checked together, which costs less.
_STEPS = 16
_MAX_BYTES = 1 << 18
# Numbers other than 0 that are looked at for swapped bytes, and how many of them are tiny then.
_MIN_NUMBERS = 16
_SWAPPED = 0.9


class RangeWatch:
    """Reports, once per leaf, values outside of its box, and at the end their share.

        watch = RangeWatch()
        ranges = Ranges(watch, {"observation": observation_spaces})
        ranges.add("observation", observations)   # each step
        ranges.close()
        watch.close()

    Thread-safe.

    Attributes:
      is_quiet: whether to report nothing, as where another watch sees the same environment.
    """

    def __init__(self) -> None:
        self.is_quiet = False
        self._lock = threading.Lock()
        self._counts: dict[str, np.ndarray] = {}  # leaf -> rows, wrong rows

    def note(self, label: str, rows: int, wrong: int, example: str) -> None:
        """Counts the rows of a leaf, one for each step of a slot.

        Args:
          label: of the leaf.
          rows: number of rows.
          wrong: number of those with a wrong number.
          example: what is wrong with the first one.
        """
        with self._lock:
            counts = self._counts.setdefault(label, np.zeros(2, np.int64))
            is_first = wrong and not counts[1]
            counts += rows, wrong
        if is_first and not self.is_quiet:
            logger.warning(
                "%s: %s; nothing is clipped. Correct the values, or the space; how often this "
                "occurs is reported at the end",
                *(label, example),
            )

    def close(self) -> None:
        """Reports the shares. Idempotent."""
        with self._lock:
            counts, self._counts = self._counts, {}
        for label, (rows, wrong) in counts.items():
            if wrong and not self.is_quiet:
                share = 100 * wrong / rows
                logger.warning("%s: %.3g %% of %d were outside of the space", label, share, rows)


class Ranges:
    """Watches the leaves of one client, or of recordings. Not thread-safe.

    A component whose bounds are infinite or equal has no range. Floats of which nearly all are
    subnormal count as outside: their bytes might be swapped.

    Args:
      watch: of the run.
      spaces: what is watched, such as "observation" -> leaf -> space.
    """

    def __init__(self, watch: RangeWatch, spaces: Mapping[str, Spaces]):
        self._watch = watch
        self._spaces: dict[tuple[str, str], Box] = {}
        self._limits: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}
        self._fresh: set[tuple[str, str]] = set()  # leaves that can have swapped bytes
        self._waiting: dict[tuple[str, str], list[np.ndarray]] = {}  # not checked yet
        for what, named in spaces.items():
            for name, space in named.items():
                self._begin((what, name), space)

    def _begin(self, key: tuple[str, str], space: Space) -> None:
        kind = DTYPES[space.dtype].kind
        if not isinstance(space, Box) or kind not in "iuf" or 0 in space.shape:
            return
        self._spaces[key], self._limits[key] = space, _find_limits(space)
        if kind == "f":
            self._fresh.add(key)
        self._keep(key)

    def _keep(self, key: tuple[str, str]) -> None:
        if key in self._fresh or np.isfinite(self._limits[key]).any():
            self._waiting[key] = []

    def add(
        self, what: str, arrays: Mapping[str, np.ndarray] | None, chosen: np.ndarray | None = None
    ) -> None:
        """Adds arrays, which must not change from then on.

        Args:
          what: one of the keys of the spaces.
          arrays: leaf -> `[..., *shape]`; leaves can be missing. None: nothing.
          chosen: `[...] bool`, the rows whose values matter; None: all.
        """
        for name, array in (arrays or {}).items():
            waiting = self._waiting.get((what, name))
            if waiting is None:
                continue
            waiting.append(array if chosen is None else array[chosen])
            if len(waiting) >= _STEPS or array.nbytes * len(waiting) > _MAX_BYTES:
                self._check((what, name))
                self._keep((what, name))

    def close(self) -> None:
        """Checks the rest. Idempotent."""
        for key in list(self._waiting):
            self._check(key)

    def _check(self, key: tuple[str, str]) -> None:
        waiting, space, (low, high) = self._waiting.pop(key), self._spaces[key], self._limits[key]
        if not waiting:
            return
        rows, example = np.concatenate([array.reshape(-1, low.size) for array in waiting]), ""
        outside = (rows < low) | (rows > high)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            place = [int(index) for index in np.unravel_index(column, space.shape)]
            bounds = f"{space.low.flat[column]:g} to {space.high.flat[column]:g}"
            example = f"{rows[row, column]:g} at {place} is outside of {bounds}"
        if key in self._fresh and np.count_nonzero(rows) >= _MIN_NUMBERS:
            self._fresh.discard(key)
            is_tiny = (np.abs(rows) < np.finfo(rows.dtype).tiny) & (rows != 0)
            if is_tiny.sum() > _SWAPPED * np.count_nonzero(rows):
                example = f"nearly all are subnormal, such as {rows[is_tiny][0]:g}: swapped bytes"
                outside |= is_tiny
        what, name = key
        label = what if name in (OBSERVATION, ACTION) else f"{what} {name}"
        self._watch.note(label, len(rows), int(outside.any(1).sum()), example)


def _find_limits(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """Returns the limits of each component, with the tolerance; infinite ones without a range."""
    low, high = (
        np.broadcast_to(infinite if bound is None else bound, space.shape).astype(np.float64)
        for bound, infinite in ((space.low, -np.inf), (space.high, np.inf))
    )
    has_range = np.isfinite(low) & np.isfinite(high) & (low < high)
    dtype = DTYPES[space.dtype]
    if dtype.kind in "iu":  # a range that the dtype has anyway
        has_range &= (low > np.iinfo(dtype).min) | (high < np.iinfo(dtype).max)
        dtype = np.dtype(np.float64)
    tolerance = np.where(has_range, _TOLERANCE * np.maximum(np.abs(low), np.abs(high)), np.inf)
    with np.errstate(over="ignore"):
        return (low - tolerance).astype(dtype).ravel(), (high + tolerance).astype(dtype).ravel()
