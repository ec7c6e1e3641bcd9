"""fifo: each gradient is applied when it arrives."""

import numpy as np

from relaax_like.core.records import Push
from relaax_like.parameter_server.combining.strategy import CombiningStrategy, PushPlan


class Fifo(CombiningStrategy):
    """Applies each gradient at once, by itself."""

    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """See the base class."""
        return PushPlan(outcome="applied", gradient=gradient, effective=gradient)
