"""The agent: action 1 with probability sigmoid(W s); one update per episode."""

import numpy as np

from relaax_like.agent.agent import Agent as BaseAgent
from relaax_like.agent.agent import State
from relaax_like.core.roles import ParameterServerClient
from relaax_like.experience.returns import compute_discounted_returns, normalize

from .config import Config


class Agent(BaseAgent):
    """Learns from one episode at a time."""

    def __init__(self, config: Config, parameter_server: ParameterServerClient):
        super().__init__(config, parameter_server)
        self._random = np.random.default_rng()
        self._weights = parameter_server.get_values()[0]
        self._clear()

    def act(self, state: State) -> int:
        """Returns an action drawn from the policy; its best one when exploiting."""
        state = np.asarray(state, np.float64)
        probability = self._probability(state)
        threshold = 0.5 if self.exploit else self._random.random()
        action = int(probability > threshold)
        self._states.append(state)
        self._actions.append(action)
        return action

    def reward_and_act(self, reward: float, state: State) -> int | None:
        """Takes a reward; returns the next action, or None when the budget is used up."""
        return self.act(state) if self._reward(reward) else None

    def reward_and_reset(
        self,
        reward: float,
        state: State | None = None,
        truncated: bool = False,
        success: bool | None = None,
    ) -> float | None:
        """Ends the episode: one update."""
        goes_on = self._reward(reward)
        score = float(np.sum(self._rewards))
        self.metrics().scalar("episode reward", score)
        if self.exploit:
            self._weights = self.parameter_server.get_values()[0]
        else:
            self._weights = self.parameter_server.push_pull([self._gradient()])[0]
        self._clear()
        return score if goes_on else None

    def _probability(self, states: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-(states @ self._weights[0].astype(np.float64))))

    def _gradient(self) -> np.ndarray:
        """The descent direction of -mean(R_t log pi(a_t | s_t)): [1, 4] float32."""
        states, actions = np.array(self._states), np.array(self._actions)
        returns = normalize(compute_discounted_returns(np.array(self._rewards), 0.99))
        error = (self._probability(states) - actions) * returns
        return (error @ states / len(states))[None].astype(np.float32)

    def _reward(self, reward: float) -> bool:
        self._rewards.append(reward)
        return self.parameter_server.increment_global_t() < self.config.max_global_step

    def _clear(self) -> None:
        self._states: list[np.ndarray] = []
        self._actions: list[int] = []
        self._rewards: list[float] = []
