"""BatchAgent: one client's k slots, as arrays, through one or several ComputationTasks."""

import abc
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.bridge.service import Episode
from relaax_like.computation.prediction import TASK, Prediction, Request
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED

Arrays = Mapping[str, np.ndarray]
# Task -> name -> [k, ...].
States = Mapping[str, Arrays]
# Yields what a task is to predict, is sent its answer, and returns actions and next states.
Predicting = Generator[Request, Prediction, tuple[Arrays, States]]


class BatchAgent(abc.ABC):
    """Acts for k slots through one or several tasks, and has them learn.

    Its owner calls `observe` with what happened, then, when it is not `waiting`, answers its
    requests until it has its actions:

        agent.observe(observations, rewards, terminated, truncated, ended, finals, episodes)
        actions = None
        while actions is None:
            actions = agent.take(predict(agent.request()))

    Requests of many agents can so be answered in one call. What the tasks predict and store is up
    to three hooks: `_get_init_states`, `_cts_predict` and `_cts_store_data`.

    Attributes:
      helpers: task -> its helper.
      learning: False stores and learns nothing; predictions are the best actions then.

    Args:
      helpers: as the attribute.
      slots: k.
      learning: as the attribute.
      reward_shaping_f: applied to `[k, r]` rewards before they are stored.
    """

    def __init__(
        self,
        helpers: Mapping[str, OnlineHelper],
        slots: int,
        *,
        learning: bool = True,
        reward_shaping_f: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.helpers = dict(helpers)
        self.learning = learning
        self._slots = slots
        self._shape = reward_shaping_f
        self._alive = np.full(slots, ALIVE, np.float32)
        self._init_states = self._get_init_states()
        self._states: States = self._init_states
        self._observations: Arrays = {}
        # What was asked of each task in the step at hand, and its answer.
        self._asked: dict[str, tuple[Request, Prediction]] = {}
        self._predicting: Predicting | None = None
        self._request: Request | None = None

    @property
    def waiting(self) -> bool:
        """True while a task has so much to learn from that the agent should not act on."""
        return any(helper.waiting for helper in self.helpers.values())

    @property
    def discarded_rollouts(self) -> int:
        """Whole rollouts that were thrown away, as nobody learned from them in time."""
        return sum(helper.discarded_rollouts for helper in self.helpers.values())

    # The hooks.

    def _get_init_states(self) -> States:
        """Returns the memory at the start of an episode: task -> name -> `[k, ...]`; zeros."""
        return {name: helper.make_init_states() for name, helper in self.helpers.items()}

    @abc.abstractmethod
    def _cts_predict(self, observations: Arrays, states: States) -> Predicting:
        """Asks the tasks: `prediction = yield self._ask(task, inputs, states[task])`.

        Args:
          observations: name -> `[k, ...]`.
          states: task -> name -> `[k, ...]`, the memory before this step.

        Returns:
          Actions for the environment, name -> `[k, ...]`; and the memory after this step.
        """

    def _cts_store_data(
        self,
        asked: Mapping[str, tuple[Request, Prediction]],
        rewards: np.ndarray,
        next_alive: np.ndarray,
        next_observations: Arrays,
        final_observations: Arrays | None,
        episodes: Sequence[Episode],
    ) -> None:
        """Stores a step; by default, each task that was asked stores it with the same reward.

        Args:
          asked: task -> what it was asked in this step and what it answered.
          rewards: `[k, r]`, shaped.
          next_alive: `[k]`: 1 goes on, 0 terminated, -1 truncated.
          next_observations: name -> `[k, ...]`; where an episode ended the next one's first.
          final_observations: name -> `[k, ...]`, rows of slots that were truncated.
          episodes: that ended with this step; reported by the first task.
        """
        for name, (request, prediction) in asked.items():
            helper = self.helpers[name]
            helper.add_actions(request.inputs, request.states, prediction)
            helper.add_outcome(rewards, next_alive, next_observations, final_observations, episodes)
            episodes = ()

    def _ask(self, task: str, inputs: Arrays, states: Arrays) -> Request:
        """Returns the request to yield in `_cts_predict`."""
        return Request(inputs, states, exploit=not self.learning, task=task)

    # What the owner calls.

    def observe(
        self,
        observations: Arrays | None,
        rewards: np.ndarray | None = None,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
        ended: np.ndarray | None = None,
        final_observations: Arrays | None = None,
        episodes: Sequence[Episode] = (),
    ) -> None:
        """Takes what the last actions led to.

        Args:
          observations: name -> [k, ...]; where an episode ended the next one's first. None when all
            slots ended and none goes on yet.
          rewards: [k, r]; None at the start, when there were no actions.
          terminated: [k] bool.
          truncated: [k] bool, not where terminated.
          ended: [k] bool, either of them; None where no episode ended.
          final_observations: name -> [k, ...], rows of slots that were truncated.
          episodes: that ended with this step.
        """
        if rewards is not None:
            if self.learning:
                alive = self._alive
                if ended is not None:
                    assert terminated is not None
                    assert truncated is not None
                    alive = np.where(truncated, TRUNCATED, np.where(terminated, TERMINATED, ALIVE))
                self._cts_store_data(
                    self._asked,
                    rewards if self._shape is None else self._shape(rewards),
                    alive,
                    # What follows a terminal state is multiplied by zero: any array will do.
                    self._observations if observations is None else observations,
                    final_observations,
                    episodes,
                )
            elif ended is not None:
                for helper in self.helpers.values():
                    helper.refresh()
            if ended is not None:
                self._reset_states(ended)
        if observations is not None:
            self._observations = observations

    def request(self) -> Request:
        """Returns the rows that a task is to predict for."""
        if self._request is None:
            self._asked = {}
            self._predicting = self._cts_predict(self._observations, self._states)
            self._request = next(self._predicting)
        return self._request

    def take(self, prediction: Prediction) -> Arrays | None:
        """Takes the answer to `request`.

        Returns:
          The actions, name -> [k, ...]; None when another task is to be asked first.
        """
        assert self._predicting is not None
        assert self._request is not None
        self._asked[self._request.task] = (self._request, prediction)
        try:
            self._request = self._predicting.send(prediction)
        except StopIteration as end:
            self._request = self._predicting = None
            actions, self._states = end.value
            return actions
        return None

    def close(self) -> None:
        """Forgets unfinished rollouts; episodes that ended in them are still reported."""
        for helper in self.helpers.values():
            helper.close()

    def _reset_states(self, ended: np.ndarray) -> None:
        states = {}
        for task, arrays in self._states.items():
            init = self._init_states[task]
            states[task] = {
                name: np.where(_widen(ended, array.ndim), init[name], array)
                for name, array in arrays.items()
            }
        self._states = states


class SimpleRLAgent(BatchAgent):
    """One task, named `RL`, that sees the observations and chooses the actions."""

    def _cts_predict(self, observations: Arrays, states: States) -> Predicting:
        prediction = yield self._ask(TASK, observations, states[TASK])
        return prediction.actions, {TASK: prediction.next_states}


def _widen(mask: np.ndarray, axes: int) -> np.ndarray:
    return mask.reshape(mask.shape + (1,) * (axes - 1))
