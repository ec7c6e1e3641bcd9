"""What happened in all slots since the last actions, checked against the spaces of the hello."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import MASK, Spaces, check_arrays, read_arrays

Arrays = Mapping[str, np.ndarray]
Sent = Mapping[str, Any]
_MAX_REWARD = 1e18
_BOOL = np.dtype(np.bool_)
_REWARDS = (np.dtype(np.float32), np.dtype(np.float64))
_OUTCOME = ("rewards", "terminated", "truncated")
_ARRAYS = (*_OUTCOME, "success", "present", "overridden")
_NO_MASKS: Spaces = {}


class EndedEpisode(NamedTuple):
    """An episode that ended: its slot, undiscounted sum of rewards and environment steps.

    A slot that was absent from the complete episode made 0 steps.
    """

    slot: int
    episode_return: float
    length: int


class ReceivedStep(NamedTuple):
    """One step of k slots. The first one, or one after a step without observations, has no outcome.

    Attributes:
      observations: leaf -> [k, ...]; None when every slot has ended and no new episode has begun.
      rewards: [k, r] float64; None without an outcome, as the next two.
      terminated: [k] bool.
      truncated: [k] bool, not where terminated.
      ended: [k] bool, terminated or truncated; None if no slot's episode has ended.
      success: [k] int8 (1 solved, 0 not solved, -1 unknown), or None.
      final_observations: leaf -> [k, ...], meaningless rows where no episode ended; or None.
      episodes: that ended in this step.
      step_id: number of the step; 0: it has no number.
      absent: [k] bool, slots that take no part in this step; None: all take part.
      executed: leaf -> [k, ...], what was carried out instead of the last actions; or None.
      overridden: [k] bool, slots where something other than the policy decided; None: those where
        `executed` differs from the server's actions.
    """

    observations: Arrays | None
    rewards: np.ndarray | None = None
    terminated: np.ndarray | None = None
    truncated: np.ndarray | None = None
    ended: np.ndarray | None = None
    success: np.ndarray | None = None
    final_observations: Arrays | None = None
    episodes: tuple[EndedEpisode, ...] = ()
    step_id: int = 0
    absent: np.ndarray | None = None
    executed: Arrays | None = None
    overridden: np.ndarray | None = None


def read_step(
    step: rlx_pb2.Step,
    spaces: Spaces,
    action_spaces: Spaces,
    slots: int,
    running: bool,
    masks: Spaces = _NO_MASKS,
) -> ReceivedStep:
    """Reads and checks a received step; see `check_step`."""
    arrays: dict[str, Any] = {
        name: message_to_ndarray(getattr(step, name), name)
        for name in _ARRAYS
        if step.HasField(name)
    }
    maps = ["observations", "executed", "masks"]
    if any(arrays[name].any() for name in ("terminated", "truncated") if name in arrays):
        maps += ["final_observations", "final_masks"]  # which no other step has use for
    for name in maps:
        if messages := getattr(step, name):
            arrays[name] = read_arrays(messages, name)
    arrays["step_id"] = step.step_id
    return check_step(arrays, spaces, action_spaces, slots, running, masks)


def check_step(
    step: Sent,
    spaces: Spaces,
    action_spaces: Spaces,
    slots: int,
    running: bool,
    masks: Spaces = _NO_MASKS,
) -> ReceivedStep:
    """Checks a received step.

    Args:
      step: the fields of `rlx_pb2.Step` that were sent, by name: arrays, dicts leaf -> array, and
        the number of the step, 0 if it has none. Nothing in it is trusted.
      spaces: observation leaves of the hello.
      action_spaces: action leaves of the hello.
      slots: k.
      running: whether actions were sent whose rewards are due.
      masks: of the hello; they are returned with the observations, full of True where none is sent.

    Raises:
      ProtocolError: OUT_OF_ORDER: a part of the outcome is missing, or a part was sent at the wrong
        time.
      InvalidInputError: another part is missing, or a part has a wrong shape, dtype or value; the
        error names it.
    """
    outcome_parts = [name for name in _OUTCOME if name in step]
    observations, absent = _check_observed(step, spaces, slots, masks)
    step_id = step.get("step_id", 0)
    if not running:
        _validate_start(step, outcome_parts)
        return ReceivedStep(observations=observations, step_id=step_id, absent=absent)
    if len(outcome_parts) != 3:
        raise ProtocolError(
            "a step after actions needs rewards, terminated and truncated, but has "
            f"{', '.join(outcome_parts) or 'none of them'}; send all three",
            "OUT_OF_ORDER",
        )
    executed, overridden = _check_executed(step, action_spaces, slots)
    transition = _check_outcome(step, spaces, slots, observations)
    if (finals := transition.final_observations) is not None:  # nothing follows a terminal state
        cut = transition.truncated
        finals = _add_masks(finals, step, "final_masks", masks, slots, cut)
    return transition._replace(
        final_observations=finals,
        step_id=step_id,
        absent=absent,
        executed=executed,
        overridden=overridden,
    )


def _check_observed(
    step: Sent, spaces: Spaces, slots: int, masks: Spaces
) -> tuple[Arrays | None, np.ndarray | None]:
    """Returns observations with masks, None if there are none, and the slots that are absent."""
    present = _check_flags(step["present"], "present", slots) if "present" in step else None
    if "observations" not in step:
        for field in ("present", "masks"):
            if field in step:
                raise ProtocolError(
                    f"{field}: received without observations; send both, or neither",
                    "OUT_OF_ORDER",
                    field,
                )
        return None, None
    observations = check_arrays(step["observations"], spaces, slots, "observations")
    legal = _add_masks(observations, step, "masks", masks, slots, present)
    return legal, None if present is None else find_absent(present)


def _add_masks(
    observations: Arrays,
    step: Sent,
    field: str,
    masks: Spaces,
    slots: int,
    chosen: np.ndarray | None = None,
) -> Arrays:
    """Returns the observations with the masks of a step; those of other slots are not checked."""
    if not masks:
        return observations
    sent = step.get(field, {})
    spaces = {name.removeprefix(MASK): space for name, space in masks.items()}
    known = {leaf: space for leaf, space in spaces.items() if leaf in sent}
    legal = {leaf: np.ones((slots, *space.shape), np.bool_) for leaf, space in spaces.items()}
    legal |= check_arrays(sent, known, slots, field, chosen)
    return {**observations, **{MASK + leaf: mask for leaf, mask in legal.items()}}


def _check_executed(
    step: Sent, action_spaces: Spaces, slots: int
) -> tuple[Arrays | None, np.ndarray | None]:
    """Returns what was carried out, and where something else decided; None: not sent."""
    executed = step.get("executed")
    if executed is not None:
        executed = check_arrays(executed, action_spaces, slots, "executed")
    if "overridden" not in step:
        return executed, None
    if executed is None:
        raise InvalidInputError(
            "overridden: received without executed; also send what was carried out"
        )
    return executed, _check_flags(step["overridden"], "overridden", slots)


def find_absent(present: np.ndarray) -> np.ndarray | None:
    """Returns the slots that are not present, `[k] bool`; None: all are."""
    return None if present.all() else ~present


def _validate_start(step: Sent, outcome_parts: list[str]) -> None:
    if "executed" in step or "overridden" in step:
        field = "executed" if "executed" in step else "overridden"
        raise ProtocolError(
            f"{field} received before any action was sent for this episode; the first step of a "
            "session, and the step after one without observations, must only have observations "
            "(and present)",
            "OUT_OF_ORDER",
            field,
        )
    if outcome_parts:
        raise ProtocolError(
            f"{outcome_parts[0]} received before any action was sent for this episode; the first "
            "step of a session, and the step after one without observations, must only have "
            "observations (and present)",
            "OUT_OF_ORDER",
            outcome_parts[0],
        )
    if "observations" not in step:
        raise ProtocolError(
            "observations: missing, although no action was sent before this step; send the first "
            "observations of all slots",
            "OUT_OF_ORDER",
            "observations",
        )


def _check_outcome(
    step: Sent, spaces: Spaces, slots: int, observations: Arrays | None
) -> ReceivedStep:
    terminated = _check_flags(step["terminated"], "terminated", slots)
    truncated = _check_flags(step["truncated"], "truncated", slots)
    rewards = _check_rewards(step["rewards"], slots)
    if not (terminated.any() or truncated.any()):
        ended = None  # as in nearly all steps
    else:
        # Gymnasium sets both when a time limit meets a terminal state; the state decides.
        truncated = truncated & ~terminated
        ended = terminated | truncated
    if observations is None and (ended is None or not ended.all()):
        going_on = 0 if ended is None else np.flatnonzero(~ended)[0]
        raise InvalidInputError(
            f"observations: missing, but the episode of slot {going_on} continues; send the next "
            "observations of all slots"
        )
    return ReceivedStep(
        observations=observations,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        ended=ended,
        success=_check_success(step["success"], slots) if "success" in step else None,
        final_observations=(
            None if ended is None else _check_final(step, spaces, slots, ended, truncated)
        ),
    )


def _check_flags(flags: np.ndarray, field: str, slots: int) -> np.ndarray:
    if flags.shape != (slots,) or flags.dtype != _BOOL:
        raise InvalidInputError(
            f"{field}: {flags.dtype} {list(flags.shape)}, expected bool [{slots}]"
        )
    return flags


def _check_rewards(rewards: np.ndarray, slots: int) -> np.ndarray:
    if rewards.dtype not in _REWARDS:
        raise InvalidInputError(
            f"rewards: dtype {rewards.dtype}, expected float32 or float64; convert them first"
        )
    if rewards.ndim not in (1, 2) or len(rewards) != slots or rewards.size == 0:
        raise InvalidInputError(
            f"rewards: shape {list(rewards.shape)}, expected [{slots}], or [{slots}, r] with "
            "r of 1 or more"
        )
    rewards = rewards.reshape(slots, -1).astype(np.float64)
    validate_rewards(rewards)
    return rewards


def validate_rewards(rewards: np.ndarray) -> None:
    """Checks `[k, r] float64` rewards.

    Raises:
      InvalidInputError: NaN, infinity, or too large; the error names the slot.
    """
    if np.vdot(rewards, rewards) <= _MAX_REWARD:  # the sum of squares: fast and conservative
        return
    # Rewards are learned from as float32, whose largest number is 3.4e38; squares must fit, too.
    bad = ~(np.abs(rewards) <= _MAX_REWARD)
    if bad.any():
        slot, column = np.argwhere(bad)[0]
        raise InvalidInputError(
            f"rewards: {rewards[slot, column]:g} in slot {slot}, expected finite numbers of at "
            f"most {_MAX_REWARD:g} in magnitude; check the rewards of the environment"
        )


def _check_success(success: np.ndarray, slots: int) -> np.ndarray:
    if success.shape != (slots,) or success.dtype != np.int8:
        raise InvalidInputError(
            f"success: {success.dtype} {list(success.shape)}, expected int8 [{slots}]"
        )
    wrong = success != success.clip(-1, 1)  # not with abs: that of -128 is -128
    if wrong.any():
        slot = int(wrong.argmax())
        raise InvalidInputError(
            f"success: {success[slot]} in slot {slot}, expected 1 (solved), 0 (not solved) or -1 "
            "(unknown)"
        )
    return success


def _check_final(
    step: Sent, spaces: Spaces, slots: int, ended: np.ndarray, truncated: np.ndarray
) -> Arrays | None:
    if "final_observations" not in step:
        if truncated.any():
            raise InvalidInputError(
                f"final_observations: missing, but slot {np.flatnonzero(truncated)[0]} was "
                "truncated; send the last observation of that episode, from which its value is "
                "estimated"
            )
        if "final_masks" in step:
            raise ProtocolError(
                "final_masks: received without final_observations; send both, or neither",
                "OUT_OF_ORDER",
                "final_masks",
            )
        return None
    # Rows of slots that continue are ignored, so only the others are checked for range and NaN.
    return check_arrays(step["final_observations"], spaces, slots, "final_observations", ended)
