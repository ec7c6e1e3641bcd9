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
_STEPS, _MAX_BYTES = 32, 1 << 18
# Of the first numbers of a check, so many other than 0 can show that nearly all are subnormal.
_MAX_NUMBERS, _MIN_NUMBERS, _NEARLY_ALL = 1000, 16, 0.9


class RangeWatch:
    """Reports, once per leaf, values outside of its box, and at the end their share.

        watch = RangeWatch()
        ranges = Ranges(watch, observation_spaces, action_spaces)
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

    def note(self, leaf: str, rows: int, wrong: int, example: str) -> None:
        """Counts the rows of a leaf, one for each step of a slot.

        Args:
          leaf: names it in lines.
          rows: number of rows.
          wrong: number of those with a wrong number.
          example: what is wrong with one of them.
        """
        with self._lock:
            counts = self._counts.setdefault(leaf, np.zeros(2, np.int64))
            is_first = wrong and not counts[1]
            counts += rows, wrong
        if is_first and not self.is_quiet:
            logger.warning(
                "%s: %s; nothing is clipped. Correct the values, or the space; how often this "
                "occurs is reported at the end",
                *(leaf, example),
            )

    def close(self) -> None:
        """Reports the shares. Idempotent."""
        with self._lock:
            counts, self._counts = self._counts, {}
        for leaf, (rows, wrong) in counts.items():
            if wrong and not self.is_quiet:
                share = 100 * wrong / rows
                logger.warning("%s: %.3g %% of %d were outside of the space", leaf, share, rows)


class Ranges:
    """Watches the leaves of one client, or of recordings. Not thread-safe.

    A component whose bounds are infinite or equal has no range. Floats of which nearly all are
    subnormal count as outside: their bytes might be swapped.

    Args:
      watch: of the run.
      observations: leaf -> space.
      actions: leaf -> space.
      kind: of the actions, for lines.
    """

    def __init__(
        self, watch: RangeWatch, observations: Spaces, actions: Spaces, kind: str = "executed"
    ):
        self._watch = watch
        self._kinds = {OBSERVATION: OBSERVATION, ACTION: f"{kind} {ACTION}"}
        self._limits = {
            (what, name): limits
            for what, spaces in ((OBSERVATION, observations), (ACTION, actions))
            for name, space in spaces.items()
            if (limits := _find_limits(space)) is not None
        }
        self._is_bounded = {
            key: bool(np.isfinite([lowest, highest]).any())
            for key, (_, _, lowest, highest) in self._limits.items()
        }
        self._waiting: dict[tuple[str, str], list[np.ndarray]] = {key: [] for key in self._limits}

    def add(
        self, what: str, arrays: Mapping[str, np.ndarray] | None, chosen: np.ndarray | None = None
    ) -> None:
        """Adds arrays, which must not change from then on.

        Args:
          what: OBSERVATION or ACTION.
          arrays: leaf -> `[..., *shape]`; leaves can be missing. None: nothing.
          chosen: `[...] bool`, the rows whose values matter; None: all.
        """
        for name, array in (arrays or {}).items():
            waiting = self._waiting.get((what, name))
            if waiting is not None:
                waiting.append(array if chosen is None else array[chosen])
                if len(waiting) >= _STEPS or array.nbytes * len(waiting) > _MAX_BYTES:
                    self._check((what, name))

    def close(self) -> None:
        """Checks the rest. Idempotent."""
        for key, waiting in self._waiting.items():
            if waiting:
                self._check(key)

    def _check(self, key: tuple[str, str]) -> None:
        (what, name), (low, high, lowest, highest) = key, self._limits[key]
        rows = np.concatenate([array.reshape(-1, low.size) for array in self._waiting[key]])
        self._waiting[key] = []
        count, example = 0, ""
        if self._is_bounded[key] and (wrong := (rows < lowest) | (rows > highest)).any():
            count = int(wrong.any(1).sum())
            row, column = np.argwhere(wrong)[0]
            bounds = f"{low[column]:g} to {high[column]:g}"
            example = f"{rows[row, column]:g} is outside of {bounds} (component {column})"
        numbers = rows.ravel()[:_MAX_NUMBERS]
        numbers = numbers[numbers != 0]
        if rows.dtype.kind == "f" and numbers.size >= _MIN_NUMBERS:
            is_tiny = np.abs(numbers) < np.finfo(rows.dtype).tiny
            if is_tiny.mean() > _NEARLY_ALL:
                count = len(rows)
                example = (
                    f"nearly all are subnormal, such as {numbers[is_tiny][0]:g}: swapped bytes"
                )
        leaf = self._kinds[what] if name == what else f"{self._kinds[what]} {name}"
        self._watch.note(leaf, len(rows), count, example)


UNWATCHED = Ranges(RangeWatch(), {}, {})


def _find_limits(space: Space) -> tuple[np.ndarray, ...] | None:
    """Returns the bounds of each component, and what is tolerated; None: nothing can be wrong."""
    dtype = DTYPES[space.dtype]
    if not isinstance(space, Box) or dtype.kind not in "iuf" or 0 in space.shape:
        return None
    low, high = (
        np.broadcast_to(infinite if bound is None else bound, space.shape).ravel().astype(float)
        for bound, infinite in ((space.low, -np.inf), (space.high, np.inf))
    )
    has_range = np.isfinite(low) & np.isfinite(high) & (low < high)
    if dtype.kind in "iu":  # a range that the dtype has anyway
        has_range &= (low > np.iinfo(dtype).min) | (high < np.iinfo(dtype).max)
        if not has_range.any():
            return None
        dtype = np.dtype(np.float64)
    tolerance = np.where(has_range, _TOLERANCE * np.maximum(np.abs(low), np.abs(high)), np.inf)
    with np.errstate(over="ignore"):
        low, high, tolerance = (one.astype(dtype) for one in (low, high, tolerance))
        return low, high, low - tolerance, high + tolerance
