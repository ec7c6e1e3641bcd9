"""Checks what happened in the slots since the last actions."""

from typing import Any

import numpy as np

from relaax_like.client.arrays import validate_array
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import describe_not_finite


def validate_outcome(
    slots: int, rewards: Any, terminated: Any, truncated: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checks rewards and ends.

    Args:
      slots: k.
      rewards: `[k]` or `[k, r]`.
      terminated: `[k]` bool; None: all False.
      truncated: `[k]` bool; None: all False.

    Returns:
      rewards as float32 or float64, and terminated and truncated, `[k]` bool.

    Raises:
      InvalidInputError: wrong shape or dtype, a reward that is not finite, or a slot that is both
        terminated and truncated.
    """
    terminated = validate_flags(terminated, slots, "terminated")
    truncated = validate_flags(truncated, slots, "truncated")
    if (terminated & truncated).any():
        raise InvalidInputError(
            f"truncated: slot {int((terminated & truncated).argmax())} is also terminated; a "
            "terminal state is not a truncation, so set truncated to False",
        )
    rewards = validate_array(rewards, "rewards", (slots, "..."))
    return _validate_rewards(rewards, slots), terminated, truncated


def validate_success(success: Any, slots: int) -> np.ndarray:
    """Returns success, `[k] int8` of 1 (solved), 0 (not solved) and -1 (unknown).

    Raises:
      InvalidInputError: wrong shape or value.
    """
    array = validate_array(success, "success", (slots,))
    if array.shape != (slots,):
        raise InvalidInputError(
            f"success: shape {list(array.shape)}, expected [{slots}] of 1 (solved), 0 (not "
            "solved) and -1 (unknown)"
        )
    is_known = np.isin(array, (-1, 0, 1))
    if not is_known.all():
        slot = int(is_known.argmin())
        raise InvalidInputError(
            f"success: {array[slot]!s:.50} in slot {slot}, expected 1 (solved), 0 (not solved) or "
            "-1 (unknown)"
        )
    return array.astype(np.int8)


def _validate_rewards(rewards: np.ndarray, slots: int) -> np.ndarray:
    if rewards.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"rewards: expected numbers of shape [{slots}] or [{slots}, r], got "
            f"{rewards.tolist()!s:.100}"
        )
    # Always floats: the server does not accept integers.
    if rewards.dtype != np.float32:
        rewards = rewards.astype(np.float64)
    if rewards.ndim not in (1, 2) or len(rewards) != slots:
        raise InvalidInputError(
            f"rewards: shape {list(rewards.shape)}, expected [{slots}] or [{slots}, r]"
        )
    if not np.isfinite(rewards).all():
        raise InvalidInputError(f"rewards: {describe_not_finite(rewards)}, expected finite numbers")
    return rewards


def validate_flags(flags: Any, slots: int, field: str) -> np.ndarray:
    """Returns flags as `[k] bool`; None: all are False.

    Raises:
      InvalidInputError: wrong shape or dtype.
    """
    if flags is None:
        return np.zeros(slots, np.bool_)
    array = validate_array(flags, field, (slots,))
    if array.shape != (slots,) or array.dtype != np.bool_:
        raise InvalidInputError(
            f"{field}: {array.dtype} {list(array.shape)}, expected bool [{slots}]"
        )
    return array
