"""The agent of policy_gradient: one update per episode, through a CompiledAlgorithm."""

import numpy as np

from relaax_like.agent import Agent as BaseAgent
from relaax_like.agent import State
from relaax_like.config import derive_seed
from relaax_like.core import ParameterServerClient
from relaax_like.experience.returns import compute_discounted_returns, normalize
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm

from .algorithm import PolicyGradient
from .config import Config
from .model import make_model


class Agent(BaseAgent):
    """Collects one episode, pushes its gradient, and continues with the newest weights.

    While the agent exploits, it pushes nothing.

    A truncated episode is used unchanged: REINFORCE has no value function to bootstrap from.
    """

    def __init__(self, config: Config, parameter_server: ParameterServerClient):
        super().__init__(config, parameter_server)
        client_id = getattr(parameter_server, "client_id", "")
        seed = derive_seed(config.seed, "agent", client_id)
        self.compiled = CompiledAlgorithm(PolicyGradient(make_model(config, 0), config, seed))
        self._clear()
        self.compiled.set_values(parameter_server.get_values())

    def act(self, state: State) -> int:
        """Returns an action sampled from the policy; while the agent exploits, the best one."""
        observation = np.asarray(state, np.float32).ravel()
        actions, _ = self.compiled.predict({"observation": observation[None]}, exploit=self.exploit)
        action = int(actions["action"][0])
        self._observations.append(observation)
        self._actions.append(action)
        return action

    def reward_and_act(self, reward: float, state: State) -> int | None:
        """Adds a reward; returns the next action, or None when the budget is used up."""
        return self.act(state) if self._reward(reward) else None

    def reward_and_reset(
        self,
        reward: float,
        state: State | None = None,
        truncated: bool = False,
        success: bool | None = None,
    ) -> float | None:
        """Ends the episode, with an update unless the agent exploits.

        Returns:
          The sum of the episode's rewards, or None if the budget is used up.
        """
        goes_on = self._reward(reward)
        score = float(np.sum(self._rewards))
        self.metrics().scalar("episode reward", score)
        if success is not None:
            self.metrics().scalar("success", float(success))
        self._learn()
        self._clear()
        return score if goes_on else None

    def _reward(self, reward: float) -> bool:
        self._rewards.append(reward)
        return self.parameter_server.increment_global_t() < self.config.max_global_step

    def _learn(self) -> None:
        if self.exploit:
            self.compiled.set_values(self.parameter_server.get_values())
            return
        rewards = np.array(self._rewards, np.float64)
        returns = normalize(compute_discounted_returns(rewards, self.config.gamma))
        observations = np.array(self._observations)
        next_alive = np.ones((len(returns), 1), np.float32)
        next_alive[-1] = 0.0
        gradients, costs = self.compiled.compute_gradients(
            inputs={"observation": observations},
            next_inputs={"observation": np.roll(observations, -1, axis=0)},
            next_alive={"alive": next_alive},
            rewards={"reward": returns[:, None]},
            actions={"action": np.array(self._actions)},
        )
        self.metrics().scalar("Optimizer/actor", costs["default"])
        self.compiled.set_values(self.parameter_server.push_pull(gradients))

    def _clear(self) -> None:
        self._observations: list[np.ndarray] = []
        self._actions: list[int] = []
        self._rewards: list[float] = []
