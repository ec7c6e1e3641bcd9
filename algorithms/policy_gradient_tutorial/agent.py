"""The tutorial's agent: one network, one environment, one update per episode."""

from typing import Any

import numpy as np

from relaax_like.config import derive_seed
from relaax_like.core import ParameterServerClient
from relaax_like.experience.returns import compute_discounted_returns, normalize

from .config import Config
from .model import AgentPolicyNN


class Agent:
    """Acts with its own copy of the weights; sends gradients and fetches weights at episode ends.

    The class needs no base class: the rlx server only requires `act`, `reward_and_act` and
    `reward_and_reset`.

    Attributes:
      exploit: whether to choose the more probable action instead of drawing one; gradients are
        pushed in both cases.
      network: the agent's copy of the weights.
      global_t: newest known environment steps of the run.
      episode_reward: sum of the current episode's rewards.
      states, actions, rewards: those of the current episode.
    """

    def __init__(self, config: Config, parameter_server: ParameterServerClient):
        self.config = config
        self.parameter_server = parameter_server
        self.exploit = False
        self.network = AgentPolicyNN(config)
        self.random = np.random.default_rng(
            derive_seed(config.seed, "agent", getattr(parameter_server, "client_id", ""))
        )
        self.global_t = 0
        self.episode_reward = 0.0
        self.states: list[np.ndarray] = []
        self.actions: list[list[int]] = []
        self.rewards: list[float] = []
        self.network.assign_values(parameter_server.get_values())

    def act(self, state: np.ndarray) -> int:
        """Returns action 0 with probability pi(state), else 1; if `exploit`, the likelier one."""
        state = np.asarray(state, np.float32).ravel()
        pi = self.network.run_policy(state)
        draw = 0.5 if self.exploit else self.random.uniform()
        action = 0 if draw < pi else 1
        self.states.append(state)
        self.actions.append([action])
        return action

    def reward_and_act(self, reward: float, state: np.ndarray) -> int | None:
        """Adds a reward; returns the next action, or None when the budget is used up."""
        if self._reward(reward):
            return self.act(state)
        return None

    def reward_and_reset(self, reward: float) -> float | None:
        """Ends the episode with an update. Returns the score, or None if the budget is used up."""
        goes_on = self._reward(reward)
        score = self.episode_reward
        self.metrics().scalar("episode reward", score)
        self._update_global()
        self.episode_reward = 0.0
        self.states, self.actions, self.rewards = [], [], []
        return score if goes_on else None

    def metrics(self) -> Any:
        """Returns the recorder."""
        return self.parameter_server.metrics()

    def _reward(self, reward: float) -> bool:
        self.episode_reward += reward
        self.rewards.append(reward)
        self.global_t = self.parameter_server.increment_global_t()
        return self.global_t < self.config.max_global_step

    def _update_global(self) -> None:
        gradients = self.network.compute_gradients(
            np.array(self.states),
            np.array(self.actions),
            self.discounted_reward(np.array(self.rewards, np.float64)).reshape(-1, 1),
        )
        self.parameter_server.apply_gradients(gradients)
        self.network.assign_values(self.parameter_server.get_values())

    def discounted_reward(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the discounted returns of `[T]` rewards, normalised to mean 0 and deviation 1."""
        return normalize(compute_discounted_returns(rewards, self.config.gamma))
