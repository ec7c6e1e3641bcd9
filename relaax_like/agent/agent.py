"""The role of an agent: three verbs, one environment."""

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.core.metrics import Metrics
from relaax_like.core.roles import ParameterServerClient

# A plain space's array, or named arrays for Dict and Tuple spaces; without a slot axis.
State = np.ndarray | Mapping[str, np.ndarray]


class Agent(abc.ABC):
    """A plain agent: one instance per environment slot, with its own network.

    Only the environment's loop calls it, one call at a time:

        action = agent.act(env.reset())
        while action is not None:
            state, reward, terminated, truncated = env.step(action)
            if terminated or truncated:
                agent.reward_and_reset(reward, state, truncated=truncated)
                action = agent.act(env.reset())
            else:
                action = agent.reward_and_act(reward, state)

    Attributes:
      config: the algorithm's `Config`.
      parameter_server: provides weights and receives gradients.
      exploit: whether to choose the best actions and learn nothing. Set by the agent's `AgentHost`.

    Args:
      config: as the attribute.
      parameter_server: as the attribute.
    """

    def __init__(self, config: Any, parameter_server: ParameterServerClient):
        self.config = config
        self.parameter_server = parameter_server
        self.exploit = False

    @abc.abstractmethod
    def act(self, state: State) -> Any:
        """Returns the action for the first state of an episode.

        Returns:
          The action, or None when the training's budget is used up.
        """

    @abc.abstractmethod
    def reward_and_act(self, reward: float, state: State) -> Any:
        """Receives the reward of the last action and returns the next action.

        Args:
          reward: of the last action; `[r]` float64 from a client that sends several.
          state: after the last action.

        Returns:
          The action, or None when the training's budget is used up.
        """

    @abc.abstractmethod
    def reward_and_reset(
        self,
        reward: float,
        state: State | None = None,
        truncated: bool = False,
        success: bool | None = None,
    ) -> float | None:
        """Receives the last reward of an episode.

        Args:
          reward: as in `reward_and_act`.
          state: the final state, if it is known; always known if `truncated`.
          truncated: the episode was cut off; it did not end in a terminal state.
          success: whether the problem was solved; None: unknown.

        Returns:
          The episode's score, or None when the training's budget is used up.
        """

    def metrics(self) -> Metrics:
        """Returns the recorder of metrics."""
        return self.parameter_server.metrics()

    def close(self) -> None:  # noqa: B027 - optional: most agents hold nothing
        """Releases the agent's resources; its unfinished episode is discarded."""
