"""Small games of PettingZoo for tests, with outcomes that can be worked out by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv


class Party(ParallelEnv):
    """All act at once. `guest` leaves (terminated) in step 2, in which `late` joins; `host` and
    `late` are truncated in step 4. A step pays 1 to each that took part; the observation is 10 plus
    the number of steps."""

    metadata = {"name": "party", "render_modes": []}  # noqa: RUF012
    possible_agents = ["host", "guest", "late"]  # noqa: RUF012

    def __init__(self, returns: bool = False, fails_at: int = 0) -> None:
        self.returns, self.fails_at = returns, fails_at
        self.seeds: list[int | None] = []
        self.taken: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Box(10, 100, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(3)

    def _see(self, *agents: str) -> dict[str, np.ndarray]:
        return {agent: np.full(1, 10 + self.steps, np.float32) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.steps, self.agents = 0, ["host", "guest"]
        return self._see(*self.agents), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        if self.steps == self.fails_at:
            raise KeyError("broken")
        assert actions.keys() == set(self.agents)
        self.taken.append(actions)
        rewards = dict.fromkeys(actions, 1.0)
        seen = self._see(*actions)
        terminated = dict.fromkeys(actions, False)
        if self.steps == 2:
            terminated["guest"] = True
            self.agents = ["host", "late"]
            seen |= self._see("late")
        if self.steps == 3 and self.returns:
            self.agents.append("guest")
        over = self.steps == 4
        if over:
            self.agents = []
        return seen, rewards, terminated, dict.fromkeys(actions, over), {}


class Elimination(AECEnv):
    """Turns of a, b and c. Who chooses 0 is out (-1); each turn pays 1 to all others that live. The
    last one wins. The observation is the number of turns; `info` has a mask."""

    metadata = {"name": "elimination", "render_modes": ["ansi"]}  # noqa: RUF012
    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(2)

    def observe(self, agent: str) -> Any:
        return np.full(1, self.turns, np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.turns, self.agents = 0, list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {"action_mask": np.ones(2, np.int8)} for agent in self.agents}
        self.agent_selection = "a"

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self.turns += 1
        for other in self.agents:
            self.rewards[other] = 1.0 if other != agent else -1.0 * (action == 0)
        self.terminations[agent] = action == 0
        order = [*self.possible_agents, *self.possible_agents]
        living = [one for one in self.agents if not self.terminations[one]]
        first = order.index(agent) + 1
        self.agent_selection = next(one for one in order[first:] if one in living)
        if len(living) == 1:
            self.terminations[living[0]] = True
        self._accumulate_rewards()
        self._deads_step_first()


class Nameless(Party):
    """Does not say who can take part."""

    possible_agents = None  # type: ignore[assignment]


def make_nothing() -> object:
    return object()
