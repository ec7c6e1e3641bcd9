"""The bound on staleness: gradients above it are treated differently."""

import numpy as np

from relaax_like.core.records import Push
from relaax_like.parameter_server.combining.strategy import CombiningStrategy, PushPlan


class Dropping(CombiningStrategy):
    """Drops every gradient; used for gradients that are too stale."""

    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """See the base class."""
        return self.drop(
            "the weights have changed more often since the gradient's version than "
            f"relaax-parameter-server.combine.max_staleness ({self.config.max_staleness}) allows"
        )


class Bounded(CombiningStrategy):
    """Combines two strategies: one for fresh gradients, and another for those that are too stale.

    Args:
      fresh: strategy for a staleness of at most `max_staleness`.
      stale: strategy for all others.
      max_staleness: see `CombineConfig`.
    """

    def __init__(self, fresh: CombiningStrategy, stale: CombiningStrategy, max_staleness: int):
        super().__init__(fresh.config, fresh.state)
        self._fresh, self._stale = fresh, stale
        self._max_staleness = max_staleness

    @property
    def kept_values(self) -> int:
        """See the base class."""
        return max(self._fresh.kept_values, self._stale.kept_values)

    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """See the base class."""
        chosen = self._fresh if staleness <= self._max_staleness else self._stale
        return chosen.plan(push, gradient, staleness)
