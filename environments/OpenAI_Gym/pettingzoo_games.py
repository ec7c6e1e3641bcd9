"""Games of several agents: those of PettingZoo, all agents at once or turn by turn."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import (
    aec_to_parallel,
    turn_based_aec_to_parallel,
    turn_based_aec_to_parallel_wrapper,
)

from relaax_like.wire import ConfigError, InvalidInputError

from .gym_slots import make_misshapen, read_step

# Of one agent: observation (None: there is none), rewards `[r]`, terminated, truncated, info.
AgentStep = tuple[Any, np.ndarray, bool, bool, Mapping[str, Any]]


class Game:
    """One game, and what its agents have seen and earned in its newest step.

        game.begin(seed)
        while game.present:
            game.step({agent: choose(game.results[agent]) for agent in game.present})

    Attributes:
      env: the environment.
      agents: all that can take part, in a fixed order.
      present: those that take part in the next step; none: the game has ended.
      results: of the newest step, of each agent that it says something of and whose part had not
        ended before.
      ended: agents whose part ended in the newest step; at the end of the game, all others, too.

    Args:
      env: a ParallelEnv; in a converted game of turns, one agent is present in each step.
      action_repeat: steps of the environment per action, with rewards summed; fewer if an agent
        comes or leaves.

    Raises:
      ConfigError: it does not say which agents can take part.
    """

    def __init__(self, env: Any, action_repeat: int = 1) -> None:
        self.env = env
        self._action_repeat = action_repeat
        self._has_turns = isinstance(env, turn_based_aec_to_parallel_wrapper)
        agents = getattr(env, "possible_agents", None)
        if not agents:
            raise ConfigError(
                f"environment {env}: no possible_agents, expected the names of all agents that can "
                "take part, as each has a slot; set the attribute"
            )
        self.agents = list(agents)
        self.present: set[Any] = set()
        self.results: dict[Any, AgentStep] = {}
        self.ended: set[Any] = set()
        self._gone: set[Any] = set()  # agents whose part has ended in this game

    def begin(self, seed: int | None) -> None:
        """Begins the next game.

        Raises:
          Exception: whatever the environment raises.
          InvalidInputError, ConfigError: it returned something wrong.
        """
        self._gone = set()
        result = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            raise make_misshapen("reset", "observations, infos", result, "PettingZoo")
        self._note(*result)
        if not self.present:
            raise InvalidInputError("agents: none takes part after the reset")

    def step(self, actions: Mapping[Any, Any]) -> None:
        """Steps with the actions of the agents that are present.

        Raises:
          Exception: see `begin`.
        """
        earned: dict[Any, np.ndarray] = {}
        for _ in range(self._action_repeat):
            result = self.env.step(dict(actions))
            if not isinstance(result, tuple) or len(result) != 5:
                names = "observations, rewards, terminations, truncations, infos"
                raise make_misshapen("step", names, result, "PettingZoo")
            seen, rewards, terminated, truncated, infos = result
            self._note(seen, infos, rewards, terminated, truncated)
            for agent, (_, reward, *_) in self.results.items():
                earned[agent] = earned.get(agent, 0) + reward
            if self.present != actions.keys():
                break
        self.results = {
            agent: (result[0], earned[agent], *result[2:]) for agent, result in self.results.items()
        }

    def _note(self, seen: Any, infos: Any, *outcome: Any) -> None:
        """Notes a step or a reset.

        Args:
          seen: agent -> observation.
          infos: agent -> info.
          *outcome: agent -> reward, terminated and truncated; nothing after a reset.
        """
        rewards, terminated, truncated = outcome or ({}, {}, {})
        living = set(self.env.agents)
        named = living.union(seen, rewards, terminated, truncated)
        if unknown := named.difference(self.agents):
            raise InvalidInputError(
                f"agents: {sorted(map(str, unknown))!s:.100}, expected those of possible_agents "
                f"{self.agents!s:.100}",
            )
        results = {
            agent: read_step(
                (
                    seen.get(agent),
                    rewards.get(agent, 0.0),
                    terminated.get(agent, False),
                    truncated.get(agent, False),
                    infos.get(agent),
                )
            )
            for agent in self.agents
            if agent in named
        }
        ended = {agent for agent, result in results.items() if result[2] or result[3]}
        self.present = living - ended
        if self._has_turns and living:
            self.present &= {self.env.aec_env.agent_selection}
        if back := self.present & self._gone:
            raise InvalidInputError(
                f"agents: {sorted(map(str, back))!s:.100} takes part again, although its episode "
                "has ended; an agent whose episode has ended waits for the next game",
            )
        self.results = {agent: results[agent] for agent in results if agent not in self._gone}
        self.ended = (ended if self.present else set(self.agents)) - self._gone
        self._gone |= self.ended


def make_game(env: Any, action_repeat: int) -> Game:
    """Returns an environment as a game; all agents act at once if the environment allows it.

    Raises:
      ConfigError: it is not PettingZoo's, or does not say which agents can take part; or an action
        is to be repeated in a game of turns.
    """
    if isinstance(env, AECEnv):
        if env.metadata.get("is_parallelizable"):
            return Game(aec_to_parallel(env), action_repeat)
        if action_repeat > 1:
            raise ConfigError(
                f"action_repeat (--action-repeat): {action_repeat}, but the agents of {env!s:.100} "
                "act one after the other; remove the setting"
            )
        return Game(turn_based_aec_to_parallel(env))
    if not isinstance(env, ParallelEnv):
        raise ConfigError(f"made a {type(env).__name__}, expected an AECEnv or a ParallelEnv")
    return Game(env, action_repeat)
