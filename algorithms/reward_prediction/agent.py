"""The agent: the actor-critic acts, and each step is stored for the predictions, too."""

from collections.abc import Mapping
from typing import Any

from relaax_like.agent.batch_agent import Arrays, BatchAgent, Predicting, States
from relaax_like.core.prediction import Prediction, Request

from .config import ACTOR_CRITIC


class Agent(BatchAgent):
    """Asks one of the two algorithms, and stores its steps for both."""

    main_task = ACTOR_CRITIC

    def _cts_predict(self, observations: Arrays, states: States) -> Predicting:
        """Returns the actions of the actor-critic."""
        prediction = yield self._ask(ACTOR_CRITIC, observations, states[ACTOR_CRITIC])
        return prediction.actions, {**states, ACTOR_CRITIC: prediction.next_states}

    def _cts_store_data(
        self, asked: Mapping[str, tuple[Request, Prediction]], *outcome: Any
    ) -> None:
        """Stores the step in all helpers."""
        super()._cts_store_data(dict.fromkeys(self.helpers, asked[ACTOR_CRITIC]), *outcome)
