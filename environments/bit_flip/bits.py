"""Bit-flip: flip one bit in each step until all bits are those of the goal."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.client import Transition
from relaax_like.client.values import UserSpace
from relaax_like.wire import Box, ConfigError, Discrete, InvalidInputError

BITS = 20
# Of all slots together, so that memory suffices.
_MAX_BITS = 1 << 24
ACHIEVED, DESIRED = "achieved_goal", "desired_goal"


class BitSlots:
    """k games, stepped together; an `EnvironmentSlots`.

    Observations are the current bits, `achieved_goal`, and the wanted bits, `desired_goal`, each
    `[bits]` float32 of 0 and 1, both drawn uniformly and different at the start of an episode. An
    action flips one bit. The reward is 0 when the bits are the goal's, which terminates the episode
    with success, and -1 otherwise. After `bits` steps an episode is truncated.

    Source: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, section 3.1.

    Attributes:
      slots: k.
      observation_space: a dict of `achieved_goal` and `desired_goal`.
      action_space: discrete, one choice for each bit.
    """

    def __init__(self, slots: int = 1, *, bits: int = BITS, seed: int | None = None) -> None:
        """Makes the games; `reset` begins them.

        Args:
          slots: k.
          bits: 1 or more; also the longest episode.
          seed: of bits and goals.

        Raises:
          ConfigError: a number is out of range, or there are more than 2^24 bits in all slots.
        """
        least_of = {"slots": (slots, 1), "environment.args.bits (--env-arg)": (bits, 1)}
        if seed is not None:
            least_of["seed"] = (seed, 0)
        for name, (value, least) in least_of.items():
            # True is an int too.
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"{name}: expected an integer of {least} or more, got {value!r:.60}"
                )
        if slots * bits > _MAX_BITS:
            raise ConfigError(
                f"environment.args.bits (--env-arg): bits times slots is {bits!s:.20} x "
                f"{slots!s:.20}, expected at most {_MAX_BITS:,}; use fewer bits or slots"
            )
        self.slots = slots
        box = Box(
            dtype="float32",
            shape=(bits,),
            low=np.zeros(bits, np.float32),
            high=np.ones(bits, np.float32),
        )
        self.observation_space: UserSpace = {ACHIEVED: box, DESIRED: box}
        self.action_space: UserSpace = Discrete(n=bits)
        self._bits = np.zeros((slots, bits), np.float32)
        self._goals = np.zeros((slots, bits), np.float32)
        self._time = np.zeros(slots, np.int64)
        self._rng = np.random.default_rng(seed)

    def reset(self, mask: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Begins new episodes in the slots in `mask`, `[k]` bool; None: in all."""
        chosen = np.arange(self.slots) if mask is None else np.flatnonzero(mask)
        shape = (len(chosen), self._bits.shape[1])
        self._bits[chosen] = self._rng.integers(2, size=shape)
        self._goals[chosen] = self._rng.integers(2, size=shape)
        self._time[chosen] = 0
        same = chosen[(self._bits[chosen] == self._goals[chosen]).all(1)]
        self._bits[same, 0] = 1.0 - self._goals[same, 0]
        return self._look()

    def step(self, actions: Any) -> Transition:
        """Steps all slots; those whose episode ends are reset in the same call."""
        rows = np.arange(self.slots)
        self._bits[rows, actions] = 1.0 - self._bits[rows, actions]
        self._time += 1
        reached = (self._bits == self._goals).all(1)
        truncated = ~reached & (self._time >= self._bits.shape[1])
        ended = reached | truncated
        finals = self._look() if ended.any() else None
        return Transition(
            observations=self._look() if finals is None else self.reset(ended),
            rewards=np.where(reached, 0.0, -1.0),
            terminated=reached,
            truncated=truncated,
            final_observations=finals,
            success=None if finals is None else np.where(ended, reached, -1).astype(np.int8),
        )

    def get_state(self) -> dict[str, Any]:
        """Returns bits, goals, times and the state of the random generator."""
        return {
            "bits": self._bits.copy(),
            "goals": self._goals.copy(),
            "time": self._time.copy(),
            "generator": dict(self._rng.bit_generator.state),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the games to a state that `get_state` returned.

        Raises:
          InvalidInputError: the state has another number of games or bits.
        """
        if np.shape(state["bits"]) != self._bits.shape:
            raise InvalidInputError(
                f"saved state has [slots, bits] of {list(np.shape(state['bits']))}, expected "
                f"{list(self._bits.shape)}; use the slots and bits with which it was saved"
            )
        self._bits[:], self._goals[:] = state["bits"], state["goals"]
        self._time[:] = state["time"]
        self._rng.bit_generator.state = state["generator"]

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def _look(self) -> dict[str, np.ndarray]:
        """Returns the current observations."""
        return {ACHIEVED: self._bits.copy(), DESIRED: self._goals.copy()}


def make_bits(args: Mapping[str, Any], slots: int, seed: int | None) -> BitSlots:
    """Makes the games from a user's arguments.

    Args:
      args: `bits`, optional.
      slots: k.
      seed: as for `BitSlots`.

    Raises:
      ConfigError: an argument is unknown, or its value is invalid.
    """
    unknown = [name for name in args if name != "bits"]
    if unknown:
        raise ConfigError(
            f"environment.args.{unknown[0]!s:.60} (--env-arg): no such argument, expected bits"
        )
    return BitSlots(slots, seed=seed, **args)
