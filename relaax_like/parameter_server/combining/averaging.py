"""avg: several gradients computed with the same weights are applied together, as their mean."""

import numpy as np

from relaax_like.config.combine import CombineConfig
from relaax_like.core.records import Push
from relaax_like.parameter_server.combining.strategy import (
    CombiningState,
    CombiningStrategy,
    PushPlan,
)

# A client that has pushed no gradient for this time is no longer waited for.
_LIVE_SEC = 10.0
_MAX_WAIT_SEC = 1.0


class Averaging(CombiningStrategy):
    """Holds gradients back until `num_gradients` can be averaged; drops those of older weights.

    Fewer are averaged if fewer clients still push, or if the first gradient has already been held
    back for `max_wait_sec` when another one arrives.
    """

    accepts_stale = False
    holds_back = True

    def __init__(self, config: CombineConfig, state: CombiningState):
        super().__init__(config, state)
        self._max_wait_sec = _MAX_WAIT_SEC if config.max_wait_sec is None else config.max_wait_sec
        self._last_push: dict[str, float] = {}

    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """See the base class."""
        if staleness:
            return self.drop(
                "the weights have changed since the gradient's version; "
                "relaax-parameter-server.combine.method: avg only accepts fresh gradients"
            )
        self.note_client(push.client_id)
        held = self.state.held_back
        is_due = held.get_waited_sec(push.groups) > self._max_wait_sec
        if is_due or held.count_with(push.groups) >= self._count_wanted():
            return held.plan_applying(push.groups, gradient)
        self.state.counts.held_back += 1
        return held.plan_holding(push.groups, gradient)

    def note_client(self, client_id: str) -> None:
        """Notes that a client pushes gradients, so that others wait for its next one."""
        self._last_push[client_id] = self.state.clock()

    def _count_wanted(self) -> int:
        """Returns the number of gradients to average, at most one per client that still pushes.

        If the number were larger, clients would wait for others that have left.
        """
        oldest = self.state.clock() - max(_LIVE_SEC, 2 * self._max_wait_sec)
        self._last_push = {name: at for name, at in self._last_push.items() if at >= oldest}
        return min(self.config.num_gradients, len(self._last_push))
