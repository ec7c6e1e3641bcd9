"""RateLimiter: keeps the number of updates per environment step in a range."""

from collections.abc import Mapping
from typing import Any


class RateLimiter:
    """Counts environment steps and minibatches, and decides which of the two must wait.

        limiter = RateLimiter(updates_per_step=1.0, warm_up_steps=1_000, max_segment_steps=64)
        if limiter.can_insert(64):
            limiter.note_insert(64)
        if limiter.can_sample(1):
            limiter.note_sample(1)

    `updates_per_step` minibatches are *due* for each step after the first `warm_up_steps`; none is
    taken before it is due. The *deficit* is how many of these have not been taken yet; it stays
    between 0 and `tolerance`, unless steps are counted although `can_insert` is False, as `Table`
    does while there is nothing to sample, or with `slip`; larger segments than `max_segment_steps`
    can exceed it by the updates for their further steps. So insertion and sampling never wait at
    the same time: an insertion waits only if the deficit is above `tolerance - updates_per_step *
    max_segment_steps`, sampling only if it is below `max_minibatches`, which is the same number.

    The limiter only counts; `Table` has the lock, and waits. Source of the idea: Cassirer et al.
    2021, https://arxiv.org/abs/2102.04736, section 3.4 (samples per insert).

    Attributes:
      updates_per_step, warm_up_steps, max_segment_steps, max_minibatches: as the arguments.
      tolerance: maximum deficit: `updates_per_step * max_segment_steps + max_minibatches`.
      steps: environment steps counted so far.
      minibatches: minibatches counted so far.

    Args:
      updates_per_step: minibatches per environment step; finite, above 0.
      warm_up_steps: environment steps after which minibatches become due; 0 or more.
      max_segment_steps: environment steps of a segment, of all its slots.
      max_minibatches: maximum number of minibatches of one request (U).
    """

    def __init__(
        self,
        updates_per_step: float,
        warm_up_steps: int = 0,
        *,
        max_segment_steps: int = 1,
        max_minibatches: int = 1,
    ):
        self.updates_per_step = updates_per_step
        self.warm_up_steps = warm_up_steps
        self.tolerance = updates_per_step * max_segment_steps + max_minibatches
        self.max_segment_steps = max_segment_steps
        self.max_minibatches = max_minibatches
        self.steps = 0
        self.minibatches = 0
        self._correction = 0.0

    @property
    def deficit(self) -> float:
        """Number of minibatches that are due and have not been taken."""
        return self._count_deficit(self.steps)

    def can_insert(self, steps: int) -> bool:
        """Returns whether inserting `steps` steps leaves the deficit in its range."""
        further = self.updates_per_step * max(steps - self.max_segment_steps, 0)
        return self._count_deficit(self.steps + steps) <= self.tolerance + further

    def can_sample(self, minibatches: int) -> bool:
        """Returns whether `minibatches` minibatches are due."""
        return self.deficit >= minibatches

    def note_insert(self, steps: int) -> None:
        """Counts steps, whether or not `can_insert` allows them."""
        self.steps += steps

    def note_sample(self, minibatches: int) -> None:
        """Counts minibatches, whether or not `can_sample` allows them."""
        self.minibatches += minibatches

    def drop_due(self) -> None:
        """Makes nothing due, since nothing could be taken; what was due is never made up."""
        self._correction -= max(self.deficit, 0.0)

    def get_state(self) -> dict[str, Any]:
        """Returns the counts."""
        counts = {"steps": self.steps, "minibatches": self.minibatches}
        return {**counts, "deficit": self.deficit, "correction": self._correction}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned.

        The deficit is the one of then, even if a run continues with another `updates_per_step` or
        `warm_up_steps`: the new ones hold from here on, and make no updates due for earlier steps.

        Raises:
          KeyError, TypeError, ValueError: the state is incomplete or damaged.
        """
        self.steps, self.minibatches = int(state["steps"]), int(state["minibatches"])
        self._correction = float(state["correction"])
        self._correction += float(state["deficit"]) - self.deficit  # 0 with the same settings

    def set_counts(self, steps: int, minibatches: int) -> None:
        """Restores the counts alone; the deficit is moved into its range, if they are of a run
        with another `updates_per_step` or `warm_up_steps` (see `set_state`)."""
        self.steps, self.minibatches, self._correction = steps, minibatches, 0.0
        self._correction = min(max(self.deficit, 0.0), self.tolerance) - self.deficit

    def _count_deficit(self, steps: int) -> float:
        due = self.updates_per_step * max(0, steps - self.warm_up_steps)
        return due - self.minibatches + self._correction
