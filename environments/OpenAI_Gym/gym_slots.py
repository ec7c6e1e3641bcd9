"""Gymnasium environments, single or vectorised, as the slots that an `Interactor` drives.

A slot whose episode ends is always reset in the same step: the observation is already the next
episode's first, and the final one is returned separately. A vector environment of mode NEXT_STEP
would instead spend its next step on the reset, with an action that it ignores. That step is not a
transition, and the other slots cannot wait for it. So it is avoided: the slots that ended are reset
at once (`reset_mask`), or, if an environment cannot do that, k environments of one slot are made.
"""

import contextlib
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from relaax_like.client.gym_spaces import SpaceCodec
from relaax_like.client.interactor import Transition
from relaax_like.client.values import UserSpace, Values
from relaax_like.wire import ConfigError, InvalidInputError, RelaaxError
from relaax_like.wire.errors import describe_exception
from relaax_like.wire.ndarray import make_array
from relaax_like.wire.spaces import Discrete, Space

with contextlib.suppress(ImportError):  # below Gymnasium 1.1, vectorised forms are not made
    from gymnasium.vector import AutoresetMode

logger = logging.getLogger(__name__)
# What a simulator raises; also sys.exit, which would otherwise end the program silently.
FAILURES = (Exception, SystemExit)
_SUCCESS_KEYS = ("is_success", "success")
# Longer episodes cannot be replayed, and so not saved, because of the memory and time required.
_MAX_REPLAYED = 100_000


@dataclass
class _Episode:
    """How an episode reached its state: its initial conditions, and the actions since.

    Attributes:
      seed: seed of its reset; None: the reset had no seed.
      generator: state of the environment's random generator before the reset; None: unknown, or not
        needed because there is a seed.
      actions: rows without a slot axis.
    """

    seed: int | None
    generator: Any
    actions: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class FirstReset:
    """A reset of one environment that was made before its first episode.

    Attributes:
      seed: of the reset; None: it had none.
      generator: state of the environment's random generator before it; None: not needed.
      result: what it returned.
    """

    seed: int | None
    generator: Any
    result: Any


class EnvListSlots:
    """k environments, stepped one after another. Each can also be stepped alone.

    They are seeded once, slot i with seed + i; later resets continue each environment's random
    stream, or get a new seed each with `seed_resets`.

    An environment cannot report its state. So the saved state is how it got there: the state of
    `np_random` before the reset, and the actions since, which are replayed. Draws from another
    generator are detected if the last observation differs.

        slots = EnvListSlots([gym.make("CartPole-v1") for _ in range(8)], seed=1)
        observations = slots.reset()
    """

    def __init__(
        self,
        envs: Sequence[gym.Env],
        seed: int | None = None,
        seed_resets: bool = False,
        firsts: "Sequence[FirstReset | None]" = (),
    ) -> None:
        """Wraps environments with equal spaces.

        Args:
          envs: at least one.
          seed: of the first reset of slot 0; None: no seeds, or random ones with `seed_resets`.
          seed_resets: pass a new seed to every reset, drawn from each slot's own stream.
          firsts: of each environment, a reset that was made before; None: there was none.

        Raises:
          ConfigError: `envs` is empty, a space is of an unsupported kind, or a mirror is not a list
            of numbers.
          InvalidInputError: a space has a leaf that the protocol does not allow.
        """
        if not envs:
            raise ConfigError("envs: an empty list, expected at least one environment")
        self._envs = list(envs)
        self.simulator = type(self._envs[0].unwrapped)
        self.slots = len(self._envs)
        self._seeds: list[int | None] = [
            None if seed is None else seed + slot for slot in range(self.slots)
        ]
        self._firsts = dict(enumerate(firsts))
        # Of later seeds; empty: there are none.
        self._streams = [np.random.default_rng(one) for one in self._seeds if seed_resets]
        self._observations = SpaceCodec(self._envs[0].observation_space, "observation")
        self._actions = SpaceCodec(self._envs[0].action_space, "action")
        self.observation_space = _add_mirror(self._observations.space, self._envs[0], "observation")
        self.action_space = _add_mirror(self._actions.space, self._envs[0], "action")
        # Current observations. An environment can reuse the array that it returned, or share it
        # with others: it is written here before anything else is stepped.
        self._now = self._observations.empty(self.slots)
        self._episodes: list[_Episode | None] = [None] * self.slots
        self._current = 0  # the slot that is stepped or reset

    @property
    def where(self) -> str:
        """The slot that is stepped or reset, and the step of its episode; from any thread."""
        slot = self._current
        episode = self._episodes[slot]
        step = len(episode.actions) if episode is not None else 0
        return f"slot {slot}, step {step}" if step else f"slot {slot}, reset"

    @property
    def reward_size(self) -> int | None:
        """Number of rewards per step, if the environment declares a `reward_space`; None: unknown.

        Also None where a wrapper that is not Gymnasium's could add them up.
        """
        env = self._envs[0]
        while isinstance(env, gym.Wrapper):
            if not type(env).__module__.startswith(("gymnasium.", __package__)):
                return None
            env = env.env
        space = getattr(env, "reward_space", None)
        return math.prod(space.shape) if isinstance(space, gym.spaces.Box) else None

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Begins new episodes in the slots in `mask`, `[k]` bool; None: in all.

        Raises:
          InvalidInputError, RelaaxError: see `step`.
          ConfigError: the environment cannot draw, because there is no screen.
        """
        is_first = self._episodes[0] is None
        for slot in range(self.slots) if mask is None else np.flatnonzero(mask).tolist():
            self._reset_slot(slot)
        if is_first:
            _warn_of_equal_starts(self, self._now)
        return _copy(self._now)

    def step(self, actions: Values) -> Transition:
        """Steps all slots; those whose episode ends are reset in the same call.

        Raises:
          InvalidInputError: an environment returned a wrong value; the error names the slot.
          ConfigError, RelaaxError: an environment failed; the error names the slot.
        """
        return self._step(actions, range(self.slots))

    def partial_step(self, actions: Values, mask: np.ndarray) -> Transition:
        """Steps only the slots in `mask`, `[k]` bool; the others get reward 0.

        Raises:
          InvalidInputError: see `step`.
        """
        return self._step(actions, np.flatnonzero(mask).tolist())

    def get_state(self) -> dict[str, Any] | None:
        """Returns how all slots reached their state; None: that is not known."""
        episodes = [_export_episode(episode) for episode in self._episodes]
        generators = [get_generator(env) for env in self._envs]
        if None in episodes or None in generators:
            return None
        state = {
            "episodes": episodes,
            "observations": _copy(self._now),
            "generators": generators,
        }
        streams = [stream.bit_generator.state for stream in self._streams]
        return {**state, "streams": streams} if streams else state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the slots to a state that `get_state` returned.

        Raises:
          InvalidInputError: the state is of another class or has another number of slots, or the
            replay fails or leads to a different state; the error names the slot.
        """
        streams = ["streams"] * bool(self._streams)
        _validate_keys(state, ("episodes", "observations", "generators", *streams))
        if len(state["episodes"]) != self.slots:
            raise InvalidInputError(
                f"slots: {len(state['episodes'])} in the saved state, expected {self.slots}; use "
                "the number of slots with which it was saved"
            )
        self._firsts.clear()
        for slot, episode in enumerate(state["episodes"]):
            try:
                self._replay(slot, episode)
            except InvalidInputError:
                raise
            except FAILURES as error:
                raise InvalidInputError(
                    f"slot {slot}: replaying the actions of its episode failed "
                    f"({type(error).__name__}: {error!s:.200}); use the version and the arguments "
                    f"of {self._envs[slot]} with which the state was saved",
                    "",
                ) from error
        for slot, env in enumerate(self._envs):
            same = _equal(_get_row(self._now, slot), _get_row(state["observations"], slot))
            if not same or not _equal(get_generator(env), state["generators"][slot]):
                raise InvalidInputError(
                    f"slot {slot}: replaying the actions of its episode led to a different "
                    f"state; {env} depends on more than np_random and these actions, such as on "
                    "earlier episodes, or is a different version, or has other arguments; use the "
                    "version and the arguments with which the state was saved",
                    "",
                )
        for stream, its_state in zip(self._streams, state.get("streams", ()), strict=True):
            stream.bit_generator.state = its_state

    def _replay(self, slot: int, episode: Mapping[str, Any]) -> None:
        env, actions = self._envs[slot], episode["actions"]
        self._seeds[slot] = episode["seed"]
        if episode["generator"] is not None:
            _set_generator(env, episode["generator"])
        self._reset_slot(slot)
        if actions is None:
            return
        for index, row in enumerate(self._actions.unpack_rows(actions)):
            self._keep(slot, _get_row(actions, index))
            self._observations.write_row(self._now, slot, env.step(row)[0])

    def _keep(self, slot: int, action: Any) -> None:
        episode = self._episodes[slot]
        if episode is not None and len(episode.actions) < _MAX_REPLAYED:
            episode.actions.append(action)

    def _step(self, actions: Values, chosen: Sequence[int]) -> Transition:
        rows = self._actions.unpack_rows(actions)
        earned: dict[int, np.ndarray] = {}
        terminated = np.zeros(self.slots, np.bool_)
        truncated = np.zeros(self.slots, np.bool_)
        success = np.full(self.slots, -1, np.int8)
        for slot in chosen:
            self._current = slot
            self._keep(slot, _get_row(actions, slot))
            try:
                result = read_step(self._envs[slot].step(rows[slot]))
            except FAILURES as error:
                raise self._explain(error, slot) from error
            seen, earned[slot], terminated[slot], cut, info = result
            self._observations.write_row(self._now, slot, seen)
            # A terminal state needs no bootstrapping, even if a time limit is reached.
            truncated[slot] = cut and not terminated[slot]
            if terminated[slot] or cut:
                success[slot] = read_success(info)
        ended = np.flatnonzero(terminated | truncated).tolist()
        final = _copy(self._now) if ended else None
        for slot in ended:
            self._reset_slot(slot)
        return Transition(
            observations=_copy(self._now),
            rewards=join_rewards(earned, self.slots),
            terminated=terminated,
            truncated=truncated,
            final_observations=final,
            success=success if (success >= 0).any() else None,
        )

    def _reset_slot(self, slot: int) -> None:
        env, seed, self._current = self._envs[slot], self._seeds[slot], slot
        if seed is None and self._streams:
            seed = int(self._streams[slot].integers(1 << 31))
        made = self._firsts.pop(slot, None)
        if made is not None and made.seed != seed:
            made = None
        generator = get_generator(env) if made is None else made.generator
        self._episodes[slot] = _Episode(seed, generator if seed is None else None)
        try:
            seen = _read_reset(env.reset(seed=seed) if made is None else made.result)
        except FAILURES as error:
            raise self._explain(error, slot) from error
        self._observations.write_row(self._now, slot, seen)
        # The same seed again would replay the same episode forever.
        self._seeds[slot] = None

    def _explain(self, error: BaseException, slot: int) -> RelaaxError:
        return explain(error, f"slot {slot}", self.where, self._envs[slot])

    def render(self) -> np.ndarray | None:
        """Draws slot 0."""
        return render(self._envs[0])

    @property
    def render_fps(self) -> float:
        """Frames per second of the environment's own time."""
        return find_fps(self._envs[0].metadata)

    def close(self) -> None:
        """Closes the environments."""
        for env in self._envs:
            env.close()


class VectorEnvSlots:
    """One vector environment of any autoreset mode; slots are stepped together only.

    Mode SAME_STEP is used unchanged. In the modes DISABLED and NEXT_STEP, the slots that ended are
    reset at once; see `find_masked_reset`. Without such a function, slots cannot have a step limit.
    """

    def __init__(self, env: VectorEnv, seed: int | None = None) -> None:
        """Wraps a vector environment.

        Args:
          env: of any autoreset mode.
          seed: of the first reset of all slots; None: no seed.

        Raises:
          ConfigError: the environment has mode NEXT_STEP and is not known to reset single slots, a
            space is of an unsupported kind, or a mirror is not a list of numbers.
          InvalidInputError: a space has a leaf that the protocol does not allow.
          ValueError: see `autoreset_mode`.
        """
        self._env = env
        self._mode = autoreset_mode(env)
        self._masked_reset = find_masked_reset(env)
        if self._masked_reset is None and self._mode is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                f"{env}: autoreset mode {self._mode.name} resets in the step after the end of an "
                "episode, which is not a transition, and the environment is not known to reset "
                "single slots (reset_mask); create it with autoreset_mode SAME_STEP or DISABLED, "
                "or pass several environments of one slot (JoinedSlots)"
            )
        self.slots, self.simulator = env.num_envs, type(env.unwrapped)
        self._seed, self._has_begun = seed, False
        self._observations = SpaceCodec(env.single_observation_space, "observation")
        self._actions = SpaceCodec(env.single_action_space, "action")
        self.observation_space = _add_mirror(self._observations.space, env, "observation")
        self.action_space = _add_mirror(self._actions.space, env, "action")

    def get_state(self) -> dict[str, Any] | None:
        """Returns arrays, numbers and random generator; None: the state might not be complete.

        It is known to be complete only for gymnasium's cart poles without a wrapper.
        """
        env = self._env
        if type(env) is not CartPoleVectorEnv or env.state is None:
            return None
        return {
            "attributes": _get_plain_attributes(env),
            "generator": get_generator(env),
            "observations": self._observations.pack(env.state.T),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the slots to a state that `get_state` returned.

        Raises:
          InvalidInputError: the state is of another class, or belongs to other environments, or to
            another version of them.
        """
        _validate_keys(state, ("attributes", "observations", "generator"))
        env, saved = self._env, state["attributes"]
        self.reset()  # creates all of its arrays
        own = _get_plain_attributes(env)
        arrays = {name: value for name, value in saved.items() if isinstance(value, np.ndarray)}
        for name in sorted({*saved, *own}):
            there, here = (
                value.shape if isinstance(value, np.ndarray) else value
                for value in (saved.get(name), own.get(name))
            )
            if there != here:
                raise InvalidInputError(
                    f"{env}: {name} was {there!r:.80} when the state was saved, but is "
                    f"{here!r:.80} now; use the slots, version and arguments of the environment "
                    "with which it was saved",
                    name,
                )
        for name, array in arrays.items():
            setattr(env, name, array.copy())
        _set_generator(env, state["generator"])
        if not _equal(self._observations.pack(env.state.T), state["observations"]):
            raise InvalidInputError(
                f"{env}: the saved state leads to a different observation; use the same version of "
                "the environment",
                "",
            )

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Begins new episodes in the slots in `mask`, `[k]` bool; None: in all.

        Raises:
          ConfigError: the environment cannot reset single slots.
          InvalidInputError: the environment returned a wrong value.
        """
        if mask is None:
            result = _call(lambda: self._env.reset(seed=self._seed), "reset")
            observations = self._observations.pack(_read_reset(result))
            if not self._has_begun:
                _warn_of_equal_starts(self, observations)
            self._seed, self._has_begun = None, True
            return observations
        if self._masked_reset is None:
            raise ConfigError(
                f"{self._env} cannot reset single slots, which max_episode_steps requires; omit "
                "max_episode_steps, or make the environments with make_slots(needs=['slot_resets'])"
            )
        masked_reset = self._masked_reset
        return self._observations.pack(_call(lambda: masked_reset(mask), "reset"))

    def step(self, actions: Values) -> Transition:
        """Steps all slots; those whose episode ends are reset in the same call.

        Raises:
          InvalidInputError: the environment returned a wrong value.
          ConfigError: an episode ended in mode SAME_STEP without a final observation.
        """
        taken = self._actions.unpack(actions)
        now, rewards, terminated, truncated, infos = _call(lambda: self._env.step(taken), "step")
        observations = self._observations.pack(now)
        # A reset can change the arrays of an environment that reuses them.
        rewards, terminated = _read_rewards(rewards, self.slots), np.array(terminated, np.bool_)
        truncated = np.logical_and(truncated, np.logical_not(terminated))
        ended = terminated | truncated
        final, success = None, None
        if ended.any():
            if self._mode is AutoresetMode.SAME_STEP:
                final = self._final_observations(infos, observations, ended)
                success = _batched_success(infos.get("final_info", infos), ended)
            else:
                final, success = observations, _batched_success(infos, ended)
                observations = self.reset(ended)
        return Transition(
            observations=observations,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_observations=final,
            success=success,
        )

    def _final_observations(
        self, infos: Mapping[str, Any], observations: Values, ended: np.ndarray
    ) -> Values:
        """Reads final observations; the other rows are filled with values within the space."""
        if "final_obs" not in infos:
            raise ConfigError(
                f"{self._env}: autoreset mode is SAME_STEP, but an episode ended without "
                "infos['final_obs']; correct the environment, or use a single slot "
                "(environment.slots: 1, --num-envs 1) or --vectorization-mode sync"
            )
        final = infos["final_obs"]
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return self._fill(self._observations.pack(final, ended), observations, ended)
        filled = _copy(observations)
        for slot in np.flatnonzero(ended).tolist():
            self._observations.write_row(filled, slot, final[slot])
        return filled

    def _fill(self, final: Values, observations: Values, ended: np.ndarray) -> Values:
        if isinstance(final, np.ndarray) and isinstance(observations, np.ndarray):
            final[~ended] = observations[~ended]
        elif isinstance(final, dict) and isinstance(observations, dict):
            for name, leaf in final.items():
                leaf[~ended] = observations[name][~ended]
        return final

    def render(self) -> np.ndarray | None:
        """Returns slot 0 as `[height, width, 3]` uint8; None if it cannot be drawn.

        An environment without single environments draws all slots; the first frame is returned.
        """
        envs = getattr(self._env.unwrapped, "envs", None)
        if envs:
            return render(envs[0])
        if self._env.render_mode != "rgb_array":
            return None
        frames = self._env.render()
        return None if frames is None or len(frames) == 0 else np.asarray(frames[0])

    @property
    def render_fps(self) -> float:
        """Frames per second of the environment's own time."""
        return find_fps(self._env.metadata)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class JoinedSlots:
    """Joins vector environments of one slot each, as the slots of one object."""

    def __init__(self, parts: Sequence[VectorEnvSlots]) -> None:
        """Joins parts with one slot each and with equal spaces.

        Raises:
          ConfigError: there are no parts, or a part has several slots.
        """
        slots = [part.slots for part in parts]
        if not parts or set(slots) != {1}:
            raise ConfigError(
                f"parts: their numbers of slots are {slots!s:.80}, expected at least one part, "
                "each with one slot"
            )
        self._parts = list(parts)
        self.slots, self.simulator = len(self._parts), parts[0].simulator
        self.observation_space = parts[0].observation_space
        self.action_space = parts[0].action_space
        self._now: list[Values] = []

    def get_state(self) -> dict[str, Any] | None:
        """Returns the states of all parts; None: a part has none."""
        parts = [part.get_state() for part in self._parts]
        return None if None in parts else {"parts": parts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the slots to a state that `get_state` returned.

        Raises:
          InvalidInputError: the state is of another class, or belongs to other environments, or to
            another version of them.
        """
        _validate_keys(state, ("parts",))
        if len(state["parts"]) != self.slots:
            raise InvalidInputError(
                f"slots: {len(state['parts'])} in the saved state, expected {self.slots}; use "
                "the number of slots with which it was saved"
            )
        for part, its_state in zip(self._parts, state["parts"], strict=True):
            part.set_state(its_state)
        self._now = [its_state["observations"] for its_state in state["parts"]]

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Begins new episodes in the slots in `mask`, `[k]` bool; None: in all.

        Raises:
          InvalidInputError: an environment returned a wrong value.
        """
        if mask is None:
            is_first = not self._now
            self._now = [part.reset() for part in self._parts]
            if is_first:
                _warn_of_equal_starts(self, _join(self._now))
        else:
            for slot in np.flatnonzero(mask).tolist():
                self._now[slot] = self._parts[slot].reset()
        return _join(self._now)

    def step(self, actions: Values) -> Transition:
        """Steps all slots; those whose episode ends are reset in the same call.

        Raises:
          InvalidInputError, ConfigError: see `VectorEnvSlots.step`.
        """
        return self.partial_step(actions, np.ones(self.slots, np.bool_))

    def partial_step(self, actions: Values, mask: np.ndarray) -> Transition:
        """Steps only the slots in `mask`, `[k]` bool; the others get reward 0.

        Raises:
          InvalidInputError, ConfigError: see `VectorEnvSlots.step`.
        """
        final = list(self._now)
        rewards = np.zeros(self.slots)
        terminated = np.zeros(self.slots, np.bool_)
        truncated = np.zeros(self.slots, np.bool_)
        success = np.full(self.slots, -1, np.int8)
        for slot in np.flatnonzero(mask).tolist():
            one = self._parts[slot].step(_slice(actions, slot))
            self._now[slot] = one.observations
            final[slot] = one.observations
            rewards[slot], terminated[slot] = one.rewards[0], one.terminated[0]
            truncated[slot] = one.truncated[0]
            if one.final_observations is not None:
                final[slot] = one.final_observations
            if one.success is not None:
                success[slot] = one.success[0]
        ended = bool((terminated | truncated).any())
        return Transition(
            observations=_join(self._now),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            final_observations=_join(final) if ended else None,
            success=success if (success >= 0).any() else None,
        )

    def render(self) -> np.ndarray | None:
        """Draws slot 0."""
        return self._parts[0].render()

    @property
    def render_fps(self) -> float:
        """Frames per second of the environment's own time."""
        return self._parts[0].render_fps

    def close(self) -> None:
        """Closes the environments."""
        for part in self._parts:
            part.close()


# `EnvironmentSlots` that can also be drawn and closed, as the program needs.
GymSlots = EnvListSlots | VectorEnvSlots | JoinedSlots


def read_step(result: Any) -> tuple[Any, np.ndarray, bool, bool, Mapping[str, Any]]:
    """Returns what `step` of one environment returned, with rewards `[r]` float64.

    Raises:
      ConfigError: it has another number of values than Gymnasium prescribes.
      InvalidInputError: a reward or a flag is wrong.
    """
    if not isinstance(result, tuple) or len(result) != 5:
        raise make_misshapen("step", "observation, reward, terminated, truncated, info", result)
    seen, reward, terminated, truncated, info = result
    array = make_array(reward)
    if array is None or array.ndim > 1 or not array.size or array.dtype.kind not in "biuf":
        raise InvalidInputError(f"rewards: expected a number, got {reward!r:.100}")
    return (
        seen,
        array.reshape(-1).astype(np.float64),
        _read_flag("terminated", terminated),
        _read_flag("truncated", truncated),
        info if isinstance(info, Mapping) else {},
    )


def _read_flag(name: str, value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = make_array(value)
    if array is None or array.size != 1 or array.dtype.kind not in "biu":
        raise InvalidInputError(f"{name}: expected True or False, got {value!r:.100}")
    return bool(array.item())


def _read_reset(result: Any) -> Any:
    """Returns the observation of what `reset` of one environment returned."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        return result[0]
    raise make_misshapen("reset", "observation, info", result)


def make_misshapen(method: str, expected: str, result: Any, api: str = "Gymnasium") -> ConfigError:
    """Returns the error of a method that returned another number of values than prescribed.

    Args:
      method: its name.
      expected: names of the values, separated by commas.
      result: what it returned.
      api: what prescribes it.
    """
    came = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
    return ConfigError(
        f"{method} returned {came}, expected the {expected.count(',') + 1} values of {api} "
        f"({expected}); wrap the environment in one that returns them"
    )


def explain(error: BaseException, place: str, where: str, env: Any) -> RelaaxError:
    """Returns an error of an environment with the slot or game, and the step of its episode.

    Args:
      error: the error.
      place: the slot or game, for errors that are already explained.
      where: the same with the step.
      env: the environment.
    """
    if isinstance(error, InvalidInputError):
        return InvalidInputError(f"{error} ({place})", error.field)
    if isinstance(error, ConfigError):
        return ConfigError(f"{error} ({place})")
    text = f"{where}: {describe_exception(error)}"
    if _lacks_screen(env, error):
        return ConfigError(
            f"{text}; there is no screen: set render_mode=rgb_array in environment.args (--env-arg)"
        )
    return RelaaxError(text)


def join_rewards(earned: Mapping[int, np.ndarray], slots: int) -> np.ndarray:
    """Returns rewards `[slots]`, or `[slots, r]`; zeros for the slots that have none."""
    sizes = {len(row) for row in earned.values()} or {1}
    if len(sizes) > 1:
        raise InvalidInputError(
            f"rewards: {', '.join(f'{len(row)} in slot {slot}' for slot, row in earned.items())}, "
            "expected equally many of all slots"
        )
    rewards = np.zeros((slots, *sizes))
    for slot, row in earned.items():
        rewards[slot] = row
    return rewards[:, 0] if sizes == {1} else rewards


def _call(function: Callable[[], Any], method: str) -> Any:
    try:
        return function()
    except FAILURES as error:
        raise RelaaxError(f"all slots, {method}: {describe_exception(error)}") from error


def _warn_of_equal_starts(slots: "GymSlots", observations: Values) -> None:
    """Warns if all slots begin alike, except where states are numbered, as in FrozenLake."""
    if slots.slots == 1 or isinstance(slots.observation_space, Discrete):
        return
    leaves = observations.values() if isinstance(observations, dict) else [observations]
    if all((leaf == leaf[:1]).all() for leaf in leaves):
        logger.warning(
            "all %d slots of %s begin with the same observation; if that is because it ignores "
            "its seed, set random_steps, so that the slots play different episodes",
            *(slots.slots, slots.simulator.__name__),
        )


def _read_rewards(rewards: Any, slots: int) -> np.ndarray:
    array = make_array(rewards)
    shape = () if array is None else array.shape
    if array is None or shape[:1] != (slots,) or len(shape) > 2 or array.dtype.kind not in "biuf":
        came = "lists of different lengths"
        if array is not None:
            came = f"{array.dtype} {list(array.shape)}"
        raise InvalidInputError(f"rewards: expected numbers of shape [{slots}], got {came}")
    return array.astype(np.float64)


def autoreset_mode(env: VectorEnv) -> "AutoresetMode":
    """Returns what a vector environment does at an episode's end.

    Raises:
      ConfigError: the environment does not state it, as those of SuperSuit.
      ValueError: the environment's metadata states an unknown mode.
    """
    mode = (env.metadata or {}).get("autoreset_mode")
    if mode is None:
        raise ConfigError(
            f"{env}: {type(env).__module__}.{type(env).__name__} does not state what it does at an "
            "episode's end (metadata['autoreset_mode']); use single environments "
            "(--vectorization-mode sync), or wrap it in a VectorEnv that states it"
        )
    return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)


def find_masked_reset(env: VectorEnv) -> Callable[[np.ndarray], Any] | None:
    """Finds a function that resets the slots in a mask, `[k]` bool, and returns all observations.

    It is `reset(options={"reset_mask": mask})`, or another one for a single slot and for
    gymnasium's cart poles. Returns None if the environment is not known to have one. By gymnasium's
    rules, an unknown environment that declares DISABLED must have one; any other might silently
    ignore `reset_mask` and reset everything.
    """
    base = env.unwrapped
    if env.num_envs == 1:
        return lambda mask: env.reset()[0]
    # A wrapper might keep its own state per slot: only the bare class is known.
    if type(base) is CartPoleVectorEnv and env is base:
        return lambda mask: _reset_cart_poles(base, mask)
    # Without shared memory the workers of AsyncVectorEnv forget that they were reset.
    forgets = (
        isinstance(base, AsyncVectorEnv)
        and not base.shared_memory
        and autoreset_mode(env) is AutoresetMode.NEXT_STEP
    )
    known = isinstance(base, SyncVectorEnv | AsyncVectorEnv) and not forgets
    if known or autoreset_mode(env) is AutoresetMode.DISABLED:
        return lambda mask: env.reset(options={"reset_mask": np.array(mask, np.bool_)})[0]
    return None


def _reset_cart_poles(env: CartPoleVectorEnv, mask: np.ndarray) -> np.ndarray:
    """Resets slots of gymnasium's cart poles immediately; they do not support `reset_mask`."""
    env.state[:, mask] = env.np_random.uniform(env.low, env.high, size=(4, int(mask.sum())))
    env.steps[mask] = 0
    env.prev_done[mask] = False
    return env.state.T.astype(np.float32)


def _add_mirror(space: UserSpace, env: gym.Env | VectorEnv, name: str) -> UserSpace:
    """Returns a space with the mirror that the environment offers, if it offers one.

    Args:
      space: the space; without a single leaf it has no mirror.
      env: the environment; can have a method get_observation_mirror_indices or
        get_action_mirror_indices, which returns one number for each component.
      name: "observation" or "action".

    Raises:
      ConfigError: the method returned something else.
    """
    method = f"get_{name}_mirror_indices"
    if isinstance(env, VectorEnv):
        envs = getattr(env.unwrapped, "envs", None)
        env = envs[0] if envs else env
    get = getattr(env, method, None) if isinstance(env, VectorEnv) else None
    if not isinstance(env, VectorEnv):
        with contextlib.suppress(AttributeError):
            get = env.get_wrapper_attr(method)
    if get is None or not isinstance(space, Space):
        return space
    indices = get()
    try:
        return replace(space, mirror=tuple(float(index) for index in indices))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{env}: {method}() returned {indices!r:.80}, expected a list of numbers ({error})"
        ) from None


def get_generator(env: gym.Env | VectorEnv) -> Any:
    """Returns the state of an environment's random generator; None: no known generator."""
    generator = getattr(env.unwrapped, "np_random", None)
    return getattr(getattr(generator, "bit_generator", None), "state", None)


def _set_generator(env: gym.Env | VectorEnv, state: Any) -> None:
    """Sets what `_get_generator` returned.

    Raises:
      InvalidInputError: it is the state of another kind of generator.
    """
    try:
        env.unwrapped.np_random.bit_generator.state = state
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{env}: the saved state of its random generator does not fit the generator that it "
            f"has now ({type(error).__name__}: {error!s:.200}); use the same version of the "
            "environment",
            "",
        ) from None


def _get_plain_attributes(env: VectorEnv) -> dict[str, Any]:
    """Returns copies of an environment's arrays, numbers and strings, except its first seed."""
    return {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in vars(env).items()
        if isinstance(value, np.ndarray | int | float | str) and name != "_np_random_seed"
    }


def _validate_keys(state: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Checks that a saved state is of the class that is to continue from it."""
    if state.keys() != set(keys):
        raise InvalidInputError(
            f"saved state has {', '.join(map(str, state))[:200] or 'nothing'}, expected "
            f"{', '.join(keys)}: the environments were made in another form (single, vectorised, "
            "vectorised with one slot each, or with seed_resets); use the arguments with which it "
            "was saved",
            "",
        )


def _export_episode(episode: _Episode | None) -> dict[str, Any] | None:
    if episode is None or len(episode.actions) >= _MAX_REPLAYED:
        return None
    if episode.seed is None and episode.generator is None:
        return None
    actions = _stack(episode.actions) if episode.actions else None
    return {"seed": episode.seed, "generator": episode.generator, "actions": actions}


def _get_row(values: Values, slot: int) -> Any:
    """Returns a copy of a slot's values, without the slot axis."""
    if isinstance(values, dict):
        return {name: leaf[slot].copy() for name, leaf in values.items()}
    return values[slot].copy()


def _stack(rows: Sequence[Any]) -> Values:
    if isinstance(rows[0], dict):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return np.stack(rows)


def _equal(one: Any, other: Any) -> bool:
    """Compares nested values; NaN is equal to itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray | np.generic):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    return bool(one == other)


def read_success(info: Mapping[str, Any]) -> int:
    """Returns whether an episode that has ended was a success: 1, 0, or -1 if it is not known."""
    for key in _SUCCESS_KEYS:
        if key in info:
            return int(np.all(info[key]))
    return -1


def _batched_success(infos: Mapping[str, Any], ended: np.ndarray) -> np.ndarray | None:
    for key in _SUCCESS_KEYS:
        if key in infos:
            said = np.logical_and(ended, infos.get(f"_{key}", ended))
            values = np.asarray(infos[key]).reshape(len(ended), -1).astype(np.bool_).all(axis=1)
            return np.where(said, values, -1).astype(np.int8)
    return None


def _lacks_screen(env: Any, error: BaseException) -> bool:
    """Returns whether an error is that of drawing without a screen, where rgb_array would work."""
    modes = (env.metadata or {}).get("render_modes", ())
    text = f"{type(error).__module__} {type(error).__name__} {error}".lower()
    return (
        getattr(env, "render_mode", None) != "rgb_array"
        and "rgb_array" in modes
        and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
        and any(word in text for word in ("display", "screen", "window", "video", "opengl", "egl"))
    )


def render(env: Any) -> np.ndarray | None:
    """Draws an environment, `[height, width, 3]` uint8; None: it was not made for that."""
    frame = env.render() if getattr(env, "render_mode", None) == "rgb_array" else None
    return None if frame is None else np.asarray(frame)


def find_fps(metadata: Mapping[str, Any]) -> float:
    """Returns the frames per second of an environment's own time."""
    return float(metadata.get("render_fps") or 30)


def _copy(values: Values) -> Values:
    if isinstance(values, dict):
        return {name: leaf.copy() for name, leaf in values.items()}
    return values.copy()


def _slice(values: Values, slot: int) -> Values:
    if isinstance(values, dict):
        return {name: leaf[slot : slot + 1] for name, leaf in values.items()}
    return values[slot : slot + 1]


def _join(parts: Sequence[Values]) -> Values:
    if isinstance(parts[0], dict):
        named = [part for part in parts if isinstance(part, dict)]
        return {name: np.concatenate([part[name] for part in named]) for name in parts[0]}
    return np.concatenate([part for part in parts if isinstance(part, np.ndarray)])
