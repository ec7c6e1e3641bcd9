"""The parameter server's side of combining: plans pushes, and reproduces the journal's plans."""

import time
from collections.abc import Callable, Mapping

import numpy as np

from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import Outcome, Push, Values
from relaax_like.parameter_server.combining.averaging import Averaging
from relaax_like.parameter_server.combining.delay_compensation import DelayCompensation
from relaax_like.parameter_server.combining.fifo import Fifo
from relaax_like.parameter_server.combining.staleness import Bounded, Dropping
from relaax_like.parameter_server.combining.strategy import (
    CombineCounts,
    CombiningState,
    CombiningStrategy,
    Groups,
    Pending,
    PushPlan,
)
from relaax_like.parameter_server.combining.sync import Sync

# `combine.method` -> its strategy.
METHODS: Mapping[str, type[CombiningStrategy]] = {
    "fifo": Fifo,
    "avg": Averaging,
    "dc": DelayCompensation,
    "sync": Sync,
}
# `combine.when_stale` -> strategy for gradients that are too stale; "apply": as for any other.
_WHEN_STALE: Mapping[str, type[CombiningStrategy]] = {
    "compensate": DelayCompensation,
    "drop": Dropping,
}


def make_strategy(config: CombineConfig, state: CombiningState) -> CombiningStrategy:
    """Makes the strategy that the settings define, including that for gradients too stale."""
    strategy = METHODS[config.method](config, state)
    stale = _WHEN_STALE.get(config.when_stale)
    if config.max_staleness is None or stale is None or not strategy.accepts_stale:
        return strategy
    return Bounded(strategy, stale(config, state), config.max_staleness)


class Combiner:
    """Decides what happens to gradients. Used by one thread at a time.

        plan = combiner.plan(push)
        ...                                     # apply plan.effective
        combiner.note(plan, push.groups, store.values)

    A record of the journal contains the decision; `replan` reproduces it, whatever the current
    strategy is.

    Args:
      config: the method, and its settings.
      manifest: of the run.
      clock: returns monotonic seconds.

    Attributes:
      strategy: decides about each gradient.
    """

    def __init__(
        self,
        config: CombineConfig,
        manifest: Manifest,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._state = CombiningState(manifest, clock)
        self.strategy = make_strategy(config, self._state)
        # Enough versions to decide whether a gradient is too stale.
        self._state.history.keep((config.max_staleness or 0) + 1, self.strategy.kept_values)

    @property
    def counts(self) -> CombineCounts:
        """Numbers of gradients since the start, by what happened to them."""
        return self._state.counts

    @property
    def pending(self) -> Mapping[Groups, Pending]:
        """The gradients that are held back."""
        return self._state.held_back.pending

    def begin(self, values: Values, pending: Mapping[Groups, tuple[np.ndarray, int]]) -> None:
        """Sets the initial state.

        Args:
          values: the current values.
          pending: groups of pushes -> sum `[n]` float32 and number of the held-back gradients.
        """
        self._state.history.begin(values)
        self._state.held_back.begin(pending)

    def drop_unsupported_pending(self) -> int:
        """Drops held-back gradients if the strategy holds none back; returns their number."""
        if self.strategy.holds_back:
            return 0
        count = sum(pending.count for pending in self.pending.values())
        self._state.held_back.begin({})
        return count

    def plan(self, push: Push) -> PushPlan:
        """Returns the plan for a push, whose gradient is float32 or None."""
        if push.gradient is None:
            return PushPlan(outcome="nothing")
        staleness = self._state.history.compute_staleness(push.gradient_version)
        return self.strategy.plan(push, push.gradient, staleness)

    def replan(self, outcome: Outcome, takes_pending: bool, push: Push, reason: str) -> PushPlan:
        """Returns the plan that led to a record of the journal.

        Args:
          outcome: of the record.
          takes_pending: of the record.
          push: of the record; its gradient is float32 or None.
          reason: of the record.
        """
        gradient, held = push.gradient, self._state.held_back
        if gradient is None:
            return PushPlan(outcome=outcome, reason=reason)
        if takes_pending:
            return held.plan_applying(push.groups, gradient)
        if outcome == "pending":
            return held.plan_holding(push.groups, gradient)
        return PushPlan(outcome=outcome, gradient=gradient, effective=gradient)

    def note(self, plan: PushPlan, groups: Groups, values: Values) -> None:
        """Notes an executed plan, and the values afterwards. Allocates nothing large."""
        self._state.held_back.note(plan, groups)
        if plan.effective is not None:
            self._state.history.note(values)
