"""sync: one gradient for each update: the sum of the gradients of all learners."""

import numpy as np

from relaax_like.core.records import Push
from relaax_like.parameter_server.combining.strategy import CombiningStrategy, PushPlan

# Client id of the learners' joint gradients.
GROUP = "learner-group"


class Sync(CombiningStrategy):
    """Applies the joint gradients of a `LearnerGroup`, and drops all others."""

    accepts_stale = False

    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """See the base class."""
        if push.client_id != GROUP:
            return self.drop(
                "relaax-parameter-server.combine.method: sync only applies gradients that all "
                "learners have made together; set it to sync for the agents, too, which must "
                "derive from BatchAgent, or set it to fifo for the parameter server"
            )
        return PushPlan(outcome="applied", gradient=gradient, effective=gradient)
