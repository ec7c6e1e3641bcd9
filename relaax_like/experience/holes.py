"""Holes: rows of a rollout that are not valid; removes and restores them.

    order = find_order(valid)                 # [T, k]
    rewards = remove_holes(rewards, order)    # valid rows first, in order
    advantages = restore_holes(compute_gae(rewards, ...), order, valid)

Recursions over time need not handle holes: each slot's valid rows are moved to its first rows, and
copies of the last one fill the rest. A recursion must stop after the last valid row, as at the end
of a rollout.
"""

import dataclasses

import numpy as np

from relaax_like.experience.rollout import ALIVE, TRUNCATED, Rollout, combine


def find_order(valid: np.ndarray) -> np.ndarray:
    """Returns which row to take for each row after the removal of holes, `[T, k] int64`.

    Args:
      valid: `[T, k] bool`.

    Returns:
      In each column the numbers of the valid rows, ascending, then the last of them repeatedly;
      zeros if there are none.
    """
    order = np.argsort(~valid, axis=0, kind="stable")
    counts = valid.sum(0)
    last = np.take_along_axis(order, np.maximum(counts - 1, 0)[None], 0)
    return np.where(counts > 0, np.where(_find_first_rows(valid), order, last), 0)


def remove_holes(array: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns the rows of `[T, k, ...]` in an order from `find_order`, as a copy."""
    return np.take_along_axis(array, order.reshape(*order.shape, *[1] * (array.ndim - 2)), 0)


def restore_holes(array: np.ndarray, order: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Reverses `remove_holes` for floats `[T, k, ...]`; the holes become NaN."""
    restored = np.full(array.shape, np.nan, array.dtype)
    steps, columns = np.nonzero(_find_first_rows(valid))
    restored[order[steps, columns], columns] = array[steps, columns]
    return restored


def cut_ends(rollout: Rollout) -> np.ndarray:
    """Returns `next_alive` with truncations where copies follow the last valid row of a column.

    The copies are not the next steps of that row, so the row bootstraps from `next_inputs`, as at
    the end of a rollout; where its episode terminated or was truncated, nothing is changed.

    Args:
      rollout: its valid rows are the first ones of each column.
    """
    next_alive, valid = rollout.next_alive, rollout.valid
    if valid is None:
        return next_alive
    cut = valid.copy()
    cut[:-1] &= ~valid[1:]
    cut[-1] = False  # the rollout's own end
    return np.where(cut & (next_alive == ALIVE), np.float32(TRUNCATED), next_alive)


@dataclasses.dataclass(frozen=True)
class DenseRollout:
    """A rollout whose valid rows are the first ones of each slot, and its source.

    Attributes:
      rollout: its valid rows are the first ones of each column; slots without valid rows come last.
        If the source has no holes, it is the source, without `valid`.
      order: rows of each column, see `find_order`; None: nothing was moved.
      columns: `[k]`, the source's column for each column; empty if nothing was moved.
      source: the rollout that was passed to `make_dense`.
    """

    rollout: Rollout
    order: np.ndarray | None
    columns: np.ndarray
    source: Rollout

    def restore(self, array: np.ndarray) -> np.ndarray:
        """Returns `[T, k]` results at the positions of the source's rows; NaN in holes."""
        if self.order is None:
            return array
        valid = self.source.valid
        assert valid is not None
        back = np.argsort(self.columns)
        return restore_holes(array[:, back], self.order[:, back], valid)


def make_dense(rollout: Rollout) -> DenseRollout:
    """Moves the valid rows of a rollout to the first rows of each slot; see `DenseRollout`.

    `next_alive` is moved, but not cut: see `cut_ends`. If rows are moved, `versions` stays as it
    is, and `history` is left out: call `stack_history` before.
    """
    valid = rollout.valid
    if valid is None or valid.all():
        return DenseRollout(dataclasses.replace(rollout, valid=None), None, np.zeros(0), rollout)
    columns = np.argsort(~valid.any(0), kind="stable")
    order = find_order(valid)[:, columns]

    def move(array: np.ndarray) -> np.ndarray:
        return remove_holes(array[:, columns], order)

    dense = combine(
        [rollout],
        rows=move,
        slots=lambda array: array[columns],
        history=lambda array: array,
        versions=lambda array: array,
    )
    first = _find_first_rows(valid)[:, columns]
    dense = dataclasses.replace(dense, valid=first, history={})
    return DenseRollout(dense, order, columns, rollout)


def _find_first_rows(valid: np.ndarray) -> np.ndarray:
    """Returns as many first rows of each column as are valid in it, `[T, k] bool`."""
    return np.arange(len(valid))[:, None] < valid.sum(0)
