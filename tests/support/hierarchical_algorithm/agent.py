"""The agent: a goal every `goal_steps` steps of an episode, an action at each."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.agent.batch_agent import Arrays, BatchAgent, Predicting, States
from relaax_like.core.prediction import Prediction, Request
from relaax_like.experience.rollout import ALIVE

_ONE_HOT = np.eye(2, dtype=np.float32)


class Agent(BatchAgent):
    """`goal` learns from the sum of the rewards while its goal held, `control` from each one.

    Episodes end at different times in the slots, so each slot stores its goals apart.
    """

    main_algorithm = "control"

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._goals = self._split("goal")
        self._sums = np.zeros((self._slots, 1))

    def take_state(self) -> dict[str, Any] | None:
        """Adds the rewards of the goals in force."""
        state = super().take_state()
        return None if state is None else {**state, "sums": self._sums}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues with them."""
        super().set_state(state)
        self._sums = np.array(state["sums"])

    def _get_init_states(self) -> States:
        """Adds the goal in force, and for how many steps it has held."""
        nothing = np.zeros(self._slots, np.int64)
        return {**super()._get_init_states(), "plan": {"goal": nothing, "age": nothing}}

    def _cts_predict(self, observations: Arrays, states: States) -> Predicting:
        """Asks for goals where one is due, then for actions everywhere."""
        goal, age = states["plan"]["goal"], states["plan"]["age"]
        due = age == 0
        if due.any():
            answer = yield self._ask("goal", observations, states["goal"])
            goal = np.where(due, answer.actions["goal"], goal)
        inputs = {**observations, "goal": _ONE_HOT[goal]}
        control = yield self._ask("control", inputs, states["control"])
        plan = {"goal": goal, "age": (age + 1) % self.config.goal_steps}
        return control.actions, {**states, "plan": plan}

    def _cts_store_data(
        self,
        asked: Mapping[str, tuple[Request, Prediction]],
        rewards: np.ndarray,
        next_alive: np.ndarray,
        next_observations: Arrays,
        final_observations: Arrays | None,
    ) -> None:
        """Stores each step for `control`, and for `goal` what began or ended with it."""
        rest = (rewards, next_alive, next_observations, final_observations)
        super()._cts_store_data({"control": asked["control"]}, *rest)
        self._sums += rewards
        age = self._states["plan"]["age"]  # after the step
        begins = age == 1 % self.config.goal_steps
        ends = (age == 0) | (next_alive != ALIVE)
        for slot, helper in enumerate(self._goals):
            row = slice(slot, slot + 1)
            if begins[slot]:
                request, prediction = asked["goal"]
                inputs, states = _select(request.inputs, row), _select(request.states, row)
                helper.add_actions(inputs, states, prediction.rows(slot, slot + 1))
            if ends[slot]:
                finals = None if final_observations is None else _select(final_observations, row)
                following = _select(next_observations, row)
                helper.add_outcome(self._sums[row], next_alive[row], following, finals)
                self._sums[slot] = 0


def _select(arrays: Arrays, row: slice) -> Arrays:
    return {name: array[row] for name, array in arrays.items()}
