"""Recall: a cue is shown, then nothing for some steps, and then the agent must repeat the cue."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.client import Transition
from relaax_like.client.values import UserSpace
from relaax_like.wire import Box, ConfigError, Discrete, InvalidInputError

DELAY = 8
CUES = 2
# Of all slots together, so that memory suffices.
_MAX_CUES = 1 << 24


class RecallSlots:
    """k games of recall, stepped together; an `EnvironmentSlots`.

    An observation is `[cues + 1]` float32. An episode's first one shows the cue, one-hot in the
    first `cues` components. `delay` blank ones follow, all zeros. The last one is the go signal, 1
    in the last component. The action that answers it is correct if it is the cue: reward and
    success are 1, otherwise 0. Earlier actions have no effect. The episode terminates after
    `delay + 2` steps.

    Attributes:
      slots: k.
      observation_space: `[cues + 1]` of 0 to 1.
      action_space: discrete, with `cues` choices.
    """

    def __init__(
        self, slots: int = 1, *, delay: int = DELAY, cues: int = CUES, seed: int | None = None
    ) -> None:
        """Makes the games; `reset` begins them.

        Args:
          slots: k.
          delay: number of blank steps between cue and go signal, 0 or more.
          cues: number of different cues, 2 or more; drawn uniformly.
          seed: seed for drawing all cues.

        Raises:
          ConfigError: a number is out of range, or there are more than 2^24 cues in all slots.
        """
        least_of = {
            "slots": (slots, 1),
            "environment.args.delay (--env-arg)": (delay, 0),
            "environment.args.cues (--env-arg)": (cues, 2),
        }
        if seed is not None:
            least_of["seed"] = (seed, 0)
        for name, (value, least) in least_of.items():
            # True is an int too.
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"{name}: expected an integer of {least} or more, got {value!r:.60}"
                )
        if slots * cues > _MAX_CUES:
            raise ConfigError(
                f"environment.args.cues (--env-arg): cues times slots is {cues!s:.20} x "
                f"{slots!s:.20}, expected at most {_MAX_CUES:,}; use fewer cues or slots"
            )
        self.slots = slots
        self.observation_space: UserSpace = Box(
            dtype="float32",
            shape=(cues + 1,),
            low=np.zeros(cues + 1, np.float32),
            high=np.ones(cues + 1, np.float32),
        )
        self.action_space: UserSpace = Discrete(n=cues)
        self._cues = cues
        self._go_at = delay + 1
        self._rng = np.random.default_rng(seed)
        self._cue = np.zeros(slots, np.int64)  # [k]
        self._time = np.zeros(slots, np.int64)  # [k], steps since the cue

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        """Begins new episodes in the slots in `mask`, `[k]` bool; None: in all."""
        chosen = np.arange(self.slots) if mask is None else np.flatnonzero(mask)
        self._cue[chosen] = self._rng.integers(self._cues, size=len(chosen))
        self._time[chosen] = 0
        return self._look()

    def step(self, actions: Any) -> Transition:
        """Steps all slots; those whose episode ends are reset in the same call."""
        ended = self._time == self._go_at
        right = ended & (np.asarray(actions) == self._cue)
        self._time += 1
        over = bool(ended.any())
        return Transition(
            observations=self.reset(ended) if over else self._look(),
            rewards=right.astype(np.float64),
            terminated=ended,
            truncated=np.zeros(self.slots, np.bool_),
            # Blank: all that there was to see has been seen.
            final_observations=np.zeros((self.slots, self._cues + 1), np.float32) if over else None,
            success=np.where(ended, right, -1).astype(np.int8) if over else None,
        )

    def get_state(self) -> dict[str, Any]:
        """Returns cues, times and the state of the random generator."""
        generator = dict(self._rng.bit_generator.state)
        return {"cue": self._cue.copy(), "time": self._time.copy(), "generator": generator}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the games to a state that `get_state` returned.

        Raises:
          InvalidInputError: the state has another number of games.
        """
        if len(state["cue"]) != self.slots:
            raise InvalidInputError(
                f"slots: {len(state['cue'])} in the saved state, expected {self.slots}; use the "
                "number of slots with which it was saved"
            )
        self._cue[:], self._time[:] = state["cue"], state["time"]
        self._rng.bit_generator.state = state["generator"]

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def _look(self) -> np.ndarray:
        """Returns the current observations, `[k, cues + 1]`."""
        seen = np.zeros((self.slots, self._cues + 1), np.float32)
        starting = np.flatnonzero(self._time == 0)
        seen[starting, self._cue[starting]] = 1
        seen[self._time == self._go_at, -1] = 1
        return seen


def make_recall(args: Mapping[str, Any], slots: int, seed: int | None) -> RecallSlots:
    """Makes the games from a user's arguments.

    Args:
      args: `delay` and `cues`, both optional.
      slots: k.
      seed: as for `RecallSlots`.

    Raises:
      ConfigError: an argument is unknown, or its value is invalid.
    """
    unknown = [name for name in args if name not in ("delay", "cues")]
    if unknown:
        raise ConfigError(
            f"environment.args.{unknown[0]!s:.60} (--env-arg): no such argument, expected delay or "
            "cues"
        )
    return RecallSlots(slots, seed=seed, **args)
