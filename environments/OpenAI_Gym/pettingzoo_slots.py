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
from relaax_like.client.values import UserSpace, Values
from relaax_like.wire import ConfigError, InvalidInputError
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import (
    ACTION,
    MASK,
    OBSERVATION,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    split_masks,
)

from . import gym_legal
from .gym_slots import FAILURES, explain, find_fps, join_rewards, read_success, render
from .pettingzoo_games import Game, make_game

_MASKED = gym.spaces.Discrete | gym.spaces.MultiDiscrete
_NUMBER = re.compile(r"_\d+$")
_NOT_IN_KINDS = re.compile(r"[^A-Za-z0-9_\-.]")
_KIND_LENGTH = 50


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
    """The spaces of agents that have equal ones, and where their values stand.

    Attributes:
      key: the arguments, by which they are compared.
      kind: their name; "": they are the only ones.
      names: wire name of each leaf of the observation without the mask.
      mask_leaf: wire name of the mask.
      has_mask: whether the agents have one.
      actions: of their action space.

    Args:
      observation: space of the observation, with the mask if it is in it.
      action: space of the action.
      mask: name of the mask in the observation or in `info`; "": there is none.
    """

    def __init__(self, observation: gym.Space, action: gym.Space, mask: str) -> None:
        self.key = observation, action, mask
        self._mask, self.has_mask = mask, bool(mask)
        self._is_inside = isinstance(observation, gym.spaces.Dict) and mask in observation.spaces
        if isinstance(observation, gym.spaces.Dict) and self._is_inside:
            rest = {key: leaf for key, leaf in observation.spaces.items() if key != mask}
            self._is_alone = rest.keys() == {OBSERVATION}
            observation = rest[OBSERVATION] if self._is_alone else gym.spaces.Dict(rest)
        self._observations = SpaceCodec(observation, OBSERVATION)
        self.actions = SpaceCodec(action, ACTION)
        self._sizes = next(iter(self.actions.spaces.values())).sizes
        self.name("")

    def name(self, kind: str) -> None:
        """Sets the names of the leaves: KIND or KIND/name; of the only kind, "", without it."""
        self.kind = kind
        self.mask_leaf = MASK + (kind or ACTION)
        self.names = {leaf: self._name(self._observations, leaf) for leaf in self.leaves}

    def _name(self, codec: SpaceCodec, leaf: str) -> str:
        return leaf if not self.kind else self.kind if codec.bare else f"{self.kind}/{leaf}"

    @property
    def leaves(self) -> dict[str, Space]:
        """Leaves of the observation without the mask."""
        return self._observations.spaces

    def find_spaces(self) -> tuple[dict[str, Space], dict[str, Space]]:
        """Returns the leaves of observations and actions by their wire names."""
        observations = {self.names[leaf]: space for leaf, space in self.leaves.items()}
        if self.has_mask:
            observations[self.mask_leaf] = MultiBinary(shape=(sum(self._sizes),), dtype="bool")
        actions = {self._name(self.actions, leaf): s for leaf, s in self.actions.spaces.items()}
        return observations, actions

    def write(
        self, rows: dict[str, np.ndarray], slot: int, seen: Any, info: Any, acts: bool
    ) -> None:
        """Writes what an agent sees.

        Args:
          rows: wire name -> `[k, ...]`.
          slot: of the agent.
          seen: its observation; None: there is none, and the row becomes an empty one.
          info: beside the observation.
          acts: whether it takes part in the next step; if not, each choice is legal where its mask
            has none.

        Raises:
          InvalidInputError: the observation does not fit the space, or the mask is missing.
        """
        if self.has_mask:
            rows[self.mask_leaf][slot] = True
        if seen is None:
            for leaf, space in self.leaves.items():
                rows[self.names[leaf]][slot] = _make_blank(space)
            return
        if self.has_mask:
            source = seen if self._is_inside else info
            if self._mask in source:
                choices = sum(self._sizes)
                legal = gym_legal.read_mask(source[self._mask], self._mask, choices)
                starts = np.cumsum((0, *self._sizes[:-1]))
                if acts or np.logical_or.reduceat(legal, starts).all():
                    rows[self.mask_leaf][slot] = legal
            elif acts:
                raise InvalidInputError(
                    f"{self._mask}: missing, although the first reset had it; return it in each "
                    "step",
                    self._mask,
                )
            if self._is_inside:
                seen = {key: value for key, value in seen.items() if key != self._mask}
                seen = seen[OBSERVATION] if self._is_alone else seen
        own = {leaf: rows[name] for leaf, name in self.names.items()}
        into: Values = next(iter(own.values())) if self._observations.bare else own
        self._observations.write_row(into, slot, seen)

    def read_actions(self, actions: Values, slots: Sequence[int]) -> list[Any]:
        """Returns the actions of some slots, as their environments take them."""
        if isinstance(actions, np.ndarray):
            return self.actions.unpack_rows(actions[slots])
        own = {leaf: actions[self._name(self.actions, leaf)][slots] for leaf in self.actions.spaces}
        return self.actions.unpack_rows(next(iter(own.values())) if self.actions.bare else own)


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
        first_seed = self._take_seed(0)
        self._own = _find_spaces(games[0], masks, first_seed) * len(games)  # of each slot
        self._seeds[0], self._is_begun = first_seed, bool(games[0].present)
        self._slots = {group: _find(self._own, group) for group in dict.fromkeys(self._own)}
        self.kinds = None
        if len(self._slots) > 1:
            _name_kinds(
                {group: [self.agents[i] for i in own] for group, own in self._slots.items()}
            )
            self.kinds = [group.kind for group in self._own]
        self._current, self._lengths = 0, [0] * len(games)
        self._lay_out(list(self._slots))

    def _lay_out(self, groups: Sequence[AgentSpaces]) -> None:
        """Joins the spaces of all kinds, and makes the rows of observations."""
        leaves: dict[str, Space] = {}
        actions: dict[str, Space] = {}
        for group in groups:
            observed, acted = group.find_spaces()
            leaves |= observed
            actions |= acted
        self.observation_space: UserSpace = leaves
        if leaves.keys() == {OBSERVATION}:
            self.observation_space = leaves[OBSERVATION]
        is_bare = len(groups) == 1 and groups[0].actions.bare
        self.action_space: UserSpace = actions[ACTION] if is_bare else actions
        self._rows = {
            name: np.broadcast_to(_make_blank(space), (self.slots, *space.shape)).copy()
            for name, space in leaves.items()
        }
        for name, mask in split_masks(self._rows)[1].items():
            self._rows[name] = np.ones_like(mask)

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
        success = np.full(self.slots, -1, np.int8)
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
                    success[slot] = -1 if result is None else read_success(result[4])
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
            success=success if (success >= 0).any() else None,
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
        begin: Callable[[], None] = functools.partial(self._games[number].begin, seed)
        if not number and self._is_begun:  # its first reset was the look for masks
            begin, self._is_begun = lambda: None, False
        self._lengths[number] = 0
        self._call(number, begin)

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
                        "or was truncated",
                        "observations",
                    )
                self._own[slot].write(self._rows, slot, seen, info, agent in game.present)
        except FAILURES as error:
            raise explain(error, f"game {number}", self.where, game.env) from error

    def _export(self) -> Values:
        rows = {name: leaf.copy() for name, leaf in self._rows.items()}
        return rows if isinstance(self.observation_space, dict) else rows[OBSERVATION]


def _find_spaces(game: Game, where: str, seed: int | None) -> list[AgentSpaces]:
    """Returns the spaces of each agent of a game; those that are equal are one object.

    Args:
      game: is reset if that is needed to see `info`.
      where: the masks are; see `gym_legal.add_masks`.
      seed: of the reset.

    Raises:
      ConfigError: no agent has the mask that is named.
    """
    name = gym_legal.USUAL if where == gym_legal.AUTO else where
    env, agents = game.env, game.agents
    spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
    open_ones = [
        (observation, action)
        for observation, action in spaces
        if isinstance(action, _MASKED) and where != gym_legal.OFF and not _has(observation, name)
    ]
    in_info: list[Any] = []  # spaces of agents whose info has a mask
    if open_ones:
        with contextlib.suppress(*FAILURES):  # the first reset of the run reports it
            game.begin(seed)
            pairs = zip(agents, spaces, strict=True)
            seen = [(game.results[agent][4], one) for agent, one in pairs if agent in game.results]
            in_info = [one for info, one in seen if name in info and one in open_ones]
    found: list[AgentSpaces] = []
    for observation, action in spaces:
        is_inside = isinstance(action, _MASKED) and _has(observation, name)
        has_mask = where != gym_legal.OFF and (is_inside or (observation, action) in in_info)
        key = observation, action, name if has_mask else ""
        same = next((one for one in found if one.key == key), None)
        found.append(same or AgentSpaces(*key))
    if where not in (gym_legal.AUTO, gym_legal.OFF) and not any(one.has_mask for one in found):
        raise ConfigError(
            f"masks (--masks): neither an observation nor info has {where!r:.60} for an agent with "
            "Discrete or MultiDiscrete actions; correct the name"
        )
    return found


def _has(observation: gym.Space, name: str) -> bool:
    return isinstance(observation, gym.spaces.Dict) and name in observation.spaces


def _find(own: Sequence[AgentSpaces], group: AgentSpaces) -> list[int]:
    return [slot for slot, one in enumerate(own) if one is group]


def _name_kinds(members: Mapping[AgentSpaces, Sequence[str]]) -> None:
    """Names each kind by what the names of its agents begin with: good_0, good_1 -> good."""
    taken: set[str] = set()
    for group, agents in members.items():
        stems = [_NUMBER.sub("", agent) for agent in agents]
        letters = itertools.takewhile(lambda same: len({*same}) == 1, zip(*stems, strict=False))
        kind = _clean("".join(one for one, *_ in letters).rstrip("_"))
        if not kind or kind in taken:
            kind = _clean(agents[0]) or "agent"
        while kind in taken:
            kind += "_"
        taken.add(kind)
        group.name(kind)


def _clean(name: str) -> str:
    return _NOT_IN_KINDS.sub("_", name)[:_KIND_LENGTH]


def _make_blank(space: Space) -> np.ndarray:
    """Returns a valid value: zeros, or what is nearest to them within the bounds."""
    blank = np.zeros(space.shape, DTYPES[space.dtype])
    if isinstance(space, Box):
        blank = blank if space.low is None else np.maximum(blank, space.low)
        return blank if space.high is None else np.minimum(blank, space.high)
    if isinstance(space, MultiDiscrete):
        return space.get_start()
    return blank + space.start if isinstance(space, Discrete) else blank
