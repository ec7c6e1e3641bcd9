"""dc: gradients of older weights are corrected for the changes since then (arXiv 1609.08326)."""

import math

import numpy as np

from relaax_like.core.records import Push
from relaax_like.parameter_server.combining.strategy import CombiningStrategy, PushPlan


class DelayCompensation(CombiningStrategy):
    """Applies each gradient at once, approximately corrected for the current weights.

    A gradient is not corrected if the weights of its version are no longer known (`dc_history`), or
    if the result would be too large for an optimizer.
    """

    @property
    def kept_values(self) -> int:
        """See the base class."""
        return self.config.dc_history

    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """See the base class."""
        gradient = self._compensate(push, gradient)
        return PushPlan(outcome="applied", gradient=gradient, effective=gradient)

    def _compensate(self, push: Push, gradient: np.ndarray) -> np.ndarray:
        """Returns g + lambda g*g*(w_now - w_then): equation 10 of arXiv 1609.08326."""
        history, counts = self.state.history, self.state.counts
        now, then = history.newest, history.find(push.gradient_version)
        if then is None:
            counts.not_compensated += 1
            return gradient
        if then is now:
            counts.compensated += 1
            return gradient
        moved = history.get_weights(now, push.groups) - history.get_weights(then, push.groups)
        with np.errstate(all="ignore"):
            scale = np.float32(self.config.dc_lambda)
            compensated = gradient + scale * gradient * gradient * moved
            # The square of a large gradient can exceed what any optimizer can handle.
            if not math.isfinite(np.dot(compensated, compensated)):
                counts.not_compensated += 1
                return gradient
        counts.compensated += 1
        return compensated
