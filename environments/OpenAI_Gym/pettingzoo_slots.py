"""PettingZoo's environments as the slots that an `Interactor` drives: one slot for each agent."""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from relaax_like.client.gym_spaces import SpaceCodec
from relaax_like.client.interactor import Transition
from relaax_like.client.values import SpaceValues, UserSpace, Values
from relaax_like.wire import ConfigError, InvalidInputError
from relaax_like.wire.spaces import (
    ACTION,
    MASK,
    OBSERVATION,
    MultiBinary,
)

from . import gym_legal
from .gym_slots import FAILURES, explain, find_fps, join_rewards, render
from .pettingzoo_games import Game, make_game

_MASKED = gym.spaces.Discrete | gym.spaces.MultiDiscrete
_NUMBER = re.compile(r"_\d+$")
_NOT_IN_KINDS = re.compile(r"[^A-Za-z0-9_\-.]")
_KIND_LENGTH = 50
# Spaces of an agent's observation, with the mask if it is in it, and action; and the mask's name.
_Spaces = tuple[gym.Space, gym.Space, str]


def make_slots(
    make: Callable[..., Any],
    games: int,
    *,
    seed: int | None,
    seed_resets: bool,
    action_repeat: int,
    env_args: Mapping[str, Any],
    draw: bool,
    masks: str,
) -> "PettingZooSlots":
    """Makes the slots of `games` games.

    Args:
      make: makes an environment of `env_args`.
      games: their number.
      draw: whether the first game will be drawn.
      seed, seed_resets, action_repeat, env_args, masks: as for `gym_make.make_slots`; game i is
        seeded like its slot i.

    Raises:
      ConfigError: the environment is not PettingZoo's, has no frames, or does not fit the settings.
      Exception: whatever `make` raises.
    """
    with contextlib.ExitStack() as made:
        first_args = dict(env_args)
        if draw and "render_mode" not in first_args:
            env = make_game(make(**env_args), action_repeat).env
            env.close()
            if "rgb_array" not in env.metadata.get("render_modes", ()):
                raise ConfigError(
                    f"display (--display, --video): {env!s:.100} has no render mode rgb_array; "
                    "play without"
                )
            first_args["render_mode"] = "rgb_array"
        played: list[Game] = []
        for number in range(games):
            game = make_game(make(**(env_args if number else first_args)), action_repeat)
            made.callback(game.env.close)
            played.append(game)
        slots = PettingZooSlots(played, seed, seed_resets, masks)
        made.pop_all()
    return slots


class AgentSpaces:
    """The spaces of agents that have equal ones, under their names on the wire.

    Attributes:
      kind: the argument.
      observations: leaf -> space, with the mask.
      actions: leaf -> space.

    Args:
      spaces: of observation and action, and the name of the mask; see `_find_spaces`.
      kind: name of the agents' kind; "": they are the only ones.
    """

    def __init__(self, spaces: _Spaces, kind: str) -> None:
        observation, action, self._mask = spaces
        self.kind = kind
        self._is_inside = _has(observation, self._mask)
        self._is_alone = False
        if isinstance(observation, gym.spaces.Dict) and self._is_inside:
            rest = {key: leaf for key, leaf in observation.spaces.items() if key != self._mask}
            self._is_alone = rest.keys() == {OBSERVATION}
            observation = rest[OBSERVATION] if self._is_alone else gym.spaces.Dict(rest)
        self._seen = SpaceCodec(_name(kind, observation), OBSERVATION)
        self._acts = SpaceCodec(_name(kind, action), ACTION)
        self.observations, self.actions = dict(self._seen.spaces), self._acts.spaces
        self._sizes = next(iter(self.actions.values())).sizes
        self._mask_leaf = MASK + (kind or ACTION)
        if self._mask:
            choices = (sum(self._sizes),)
            self.observations[self._mask_leaf] = MultiBinary(shape=choices, dtype="bool")

    def write(
        self, rows: dict[str, np.ndarray], slot: int, seen: Any, info: Any, acts: bool
    ) -> None:
        """Writes what an agent sees.

        Args:
          rows: leaf -> `[k, ...]`.
          slot: of the agent.
          seen: its observation; None: there is none, and the row stays as it is.
          info: beside the observation.
          acts: whether it takes part in the next step; if not, each choice is legal where its mask
            has none.

        Raises:
          InvalidInputError: the observation does not fit the space, or the mask is missing.
        """
        if self._mask:
            rows[self._mask_leaf][slot] = True
        if seen is None:
            return
        if self._mask:
            source = seen if self._is_inside else info
            if self._mask in source:
                legal = gym_legal.read_mask(source[self._mask], self._mask, sum(self._sizes))
                starts = np.cumsum((0, *self._sizes[:-1]))
                if acts or np.logical_or.reduceat(legal, starts).all():
                    rows[self._mask_leaf][slot] = legal
            elif acts:
                raise InvalidInputError(
                    f"{self._mask}: missing; return it in each step, or correct its name (--masks)"
                )
            if self._is_inside:
                seen = {key: value for key, value in seen.items() if key != self._mask}
                seen = seen[OBSERVATION] if self._is_alone else seen
        into: Values = rows[OBSERVATION] if self._seen.bare else rows
        self._seen.write_row(into, slot, {self.kind: seen} if self.kind else seen)

    def read_actions(self, actions: Values, slots: Sequence[int]) -> list[Any]:
        """Returns the actions of some slots, as their environments take them."""
        if isinstance(actions, np.ndarray):
            return self._acts.unpack_rows(actions[slots])
        rows = self._acts.unpack_rows({leaf: actions[leaf][slots] for leaf in self.actions})
        return [row[self.kind] for row in rows] if self.kind else rows


class PettingZooSlots:
    """Games of several agents: one slot for each possible agent of each game, game by game.

    Agents with equal spaces share a kind. Games are seeded once, game i with seed + i; later ones
    continue each environment's random stream, or get a new seed each with `seed_resets`. Where a
    game ends, the next one begins in the same step.

        slots = PettingZooSlots([make_game(parallel_env(), 1) for _ in range(8)], seed=1)
        observations = slots.reset()

    Attributes:
      agents: name of the agent of each slot.
      games: number of each slot's game.
      kinds: of each slot; None: all agents have equal spaces.
    """

    def __init__(
        self,
        games: Sequence[Game],
        seed: int | None = None,
        seed_resets: bool = False,
        masks: str = gym_legal.AUTO,
    ) -> None:
        """Takes games of the same environment.

        Args:
          games: at least one.
          seed: of the first reset of the first game; None: no seeds, or random ones.
          seed_resets: pass a new seed to every reset, drawn from each game's own stream.
          masks: see `gym_legal.add_masks`.

        Raises:
          ConfigError: a space is of an unsupported kind, or there is no such mask.
          InvalidInputError: a space has a leaf that the protocol does not allow.
        """
        self._games = list(games)
        agents = games[0].agents
        self.simulator = type(games[0].env.unwrapped)
        self.slots = len(games) * len(agents)
        self.agents = [str(agent) for agent in agents] * len(games)
        self.games = [slot // len(agents) for slot in range(self.slots)]
        self._seeds = [None if seed is None else seed + game for game in range(len(games))]
        # Of later seeds; empty: there are none.
        self._streams = [np.random.default_rng(one) for one in self._seeds if seed_resets]
        described = _find_spaces(games[0], masks) * len(games)  # of each slot
        self._own = _group(described, self.agents)
        groups = list(dict.fromkeys(self._own))
        self.kinds = [group.kind for group in self._own] if len(groups) > 1 else None
        self._slots = {one: [i for i, own in enumerate(self._own) if own is one] for one in groups}
        self._current, self._lengths = 0, [0] * len(games)
        leaves = {leaf: space for one in groups for leaf, space in one.observations.items()}
        actions = {leaf: space for one in groups for leaf, space in one.actions.items()}
        self.observation_space: UserSpace = leaves
        if leaves.keys() == {OBSERVATION}:
            self.observation_space = leaves[OBSERVATION]
        self.action_space: UserSpace = actions[ACTION] if actions.keys() == {ACTION} else actions
        # Of agents that have seen nothing yet, and of those without the leaf: any valid values.
        valid = SpaceValues(leaves, OBSERVATION).sample(self.slots, np.random.default_rng(0))
        assert isinstance(valid, dict), "it is a dict of leaves"
        self._rows = {
            name: np.ones_like(rows) if name.startswith(MASK) else rows
            for name, rows in valid.items()
        }

    @property
    def where(self) -> str:
        """The game that is stepped or reset, and its step; from any thread."""
        step = self._lengths[self._current]
        return f"game {self._current}, {f'step {step}' if step else 'reset'}"

    @property
    def present(self) -> np.ndarray | None:
        """Slots that take part in the next step, `[k]` bool; None: all."""
        flags = np.array([agent in game.present for game in self._games for agent in game.agents])
        return None if flags.all() else flags

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Begins new games where `mask`, `[k]` bool, has one of their slots; None: all games.

        Raises:
          InvalidInputError, ConfigError, RelaaxError: see `step`.
        """
        for number in range(len(self._games)):
            if mask is None or any(mask[slot] for slot, _ in self._list_agents(number)):
                self._begin(number)
        return self._export()

    def step(self, actions: Values) -> Transition:
        """Steps all games with the actions of the agents that are present.

        Raises:
          InvalidInputError: an environment returned a wrong value; the error names the game.
          ConfigError, RelaaxError: an environment failed; the error names the game.
        """
        earned: dict[int, np.ndarray] = {}
        terminated = np.zeros(self.slots, np.bool_)
        truncated = np.zeros(self.slots, np.bool_)
        taken = self._read_actions(actions)
        for number, game in enumerate(self._games):
            self._lengths[number] += 1
            self._call(number, functools.partial(game.step, taken[number]))
            for slot, agent in self._list_agents(number):
                result = game.results.get(agent)
                if result is not None:
                    earned[slot] = result[1]
                if agent in game.ended:
                    # A terminal state needs no bootstrapping, even if a limit is reached.
                    truncated[slot] = result is not None and result[3] and not result[2]
                    terminated[slot] = not truncated[slot]
        ended = bool((terminated | truncated).any())
        final = self._export() if ended else None
        for number, game in enumerate(self._games):
            if not game.present:
                self._begin(number)
        return Transition(
            observations=self._export(),
            rewards=join_rewards(earned, self.slots),
            terminated=terminated,
            truncated=truncated,
            final_observations=final,
        )

    def render(self) -> np.ndarray | None:
        """Draws the first game."""
        return render(self._games[0].env)

    @property
    def render_fps(self) -> float:
        """Frames per second of the environment's own time."""
        return find_fps(self._games[0].env.metadata)

    def close(self) -> None:
        """Closes the environments."""
        for game in self._games:
            game.env.close()

    def _list_agents(self, number: int) -> list[tuple[int, Any]]:
        """Returns slot and agent of a game."""
        agents = self._games[number].agents
        return list(enumerate(agents, number * len(agents)))

    def _read_actions(self, actions: Values) -> list[dict[Any, Any]]:
        """Returns agent -> action of each game, of the agents that are present."""
        rows: dict[int, Any] = {}
        for group, slots in self._slots.items():
            rows.update(zip(slots, group.read_actions(actions, slots), strict=True))
        return [
            {
                agent: rows[slot]
                for slot, agent in self._list_agents(number)
                if agent in game.present
            }
            for number, game in enumerate(self._games)
        ]

    def _take_seed(self, number: int) -> int | None:
        """Returns the seed of a game's next reset; the same again would repeat the game forever."""
        seed, self._seeds[number] = self._seeds[number], None
        if seed is None and self._streams:
            seed = int(self._streams[number].integers(1 << 31))
        return seed

    def _begin(self, number: int) -> None:
        seed = self._take_seed(number)
        self._lengths[number] = 0
        self._call(number, functools.partial(self._games[number].begin, seed))

    def _call(self, number: int, function: Callable[[], None]) -> None:
        """Steps or resets a game, and writes what its agents see.

        Raises:
          InvalidInputError, ConfigError, RelaaxError: see `step`.
        """
        self._current = number
        game = self._games[number]
        try:
            function()
            for slot, agent in self._list_agents(number):
                result = game.results.get(agent)
                seen, info = (None, {}) if result is None else (result[0], result[4])
                is_cut = agent in game.ended and result is not None and result[3] and not result[2]
                if seen is None and (is_cut or agent in game.present):
                    raise InvalidInputError(
                        f"observations: none of {agent!s:.100}, which takes part in the next step, "
                        "or was truncated"
                    )
                self._own[slot].write(self._rows, slot, seen, info, agent in game.present)
        except FAILURES as error:
            raise explain(error, f"game {number}", self.where, game.env) from error

    def _export(self) -> Values:
        rows = {name: leaf.copy() for name, leaf in self._rows.items()}
        return rows if isinstance(self.observation_space, dict) else rows[OBSERVATION]


def _find_spaces(game: Game, where: str) -> list[_Spaces]:
    """Returns the spaces of each agent of a game, and the name of its mask; "": it has none.

    Args:
      game: is not begun.
      where: the masks are: an observation's leaf or, if it has none of this name, an entry of
        `info`; auto: the leaf `action_mask`, if there is one; off: nowhere.

    Raises:
      ConfigError: no agent can have the mask that is named.
    """
    is_named = where not in (gym_legal.AUTO, gym_legal.OFF)
    name = where if is_named else gym_legal.USUAL
    found: list[_Spaces] = []
    for agent in game.agents:
        observation, action = game.env.observation_space(agent), game.env.action_space(agent)
        can_have = isinstance(action, _MASKED) and where != gym_legal.OFF
        has_mask = can_have and (is_named or _has(observation, name))
        found.append((observation, action, name if has_mask else ""))
    if is_named and not any(mask for *_, mask in found):
        raise ConfigError(
            f"masks (--masks): {where!r:.60}, but no agent has Discrete or MultiDiscrete actions; "
            "remove the setting"
        )
    return found


def _has(observation: gym.Space, name: str) -> bool:
    return isinstance(observation, gym.spaces.Dict) and name in observation.spaces


def _name(kind: str, space: gym.Space) -> gym.Space:
    return gym.spaces.Dict({kind: space}) if kind else space


def _group(described: Sequence[_Spaces], agents: Sequence[str]) -> list[AgentSpaces]:
    """Returns the spaces of each slot; equal ones are one object.

    Each kind is named by what the names of its agents begin with: good_0, good_1 -> good.
    """
    members: list[tuple[_Spaces, list[str]]] = []
    for one, agent in zip(described, agents, strict=True):
        own = next((names for known, names in members if known == one), None)
        if own is None:
            members.append((one, own := []))
        own.append(agent)
    kinds: dict[str, _Spaces] = {}
    for one, names in members:
        stems = [_NUMBER.sub("", name) for name in names]
        letters = itertools.takewhile(lambda same: len({*same}) == 1, zip(*stems, strict=False))
        kind = _clean("".join(one for one, *_ in letters).rstrip("_"))
        if not kind or kind in kinds:
            kind = _clean(names[0]) or "agent"
        while kind in kinds:
            kind += "_"
        kinds[kind] = one
    groups = [(one, AgentSpaces(one, kind * (len(kinds) > 1))) for kind, one in kinds.items()]
    return [next(group for known, group in groups if known == one) for one in described]


def _clean(name: str) -> str:
    return _NOT_IN_KINDS.sub("_", name)[:_KIND_LENGTH]
