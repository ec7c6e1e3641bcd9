"""RolloutLayout: the layout of a model's rollouts; checks those that are received or recorded."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from relaax_like.algorithm.model import Model, Specs, get_learning_specs, get_reward_columns
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Arrays, Rollout
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import is_finite
from relaax_like.wire.spaces import Space

# Name -> shape after the first axes, and dtype.
_Specs = dict[str, tuple[tuple[int, ...], np.dtype]]
_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)
# Where the numbers of a field come from; those of all others come from the environment.
_ORIGINS = {
    **dict.fromkeys(("actions", "log_prob", "states"), "the policy"),
    "extras": "the data handler",
}


class RolloutLayout:
    """Names, shapes, types and ranges of a model's rollouts.

        layout = RolloutLayout(model, steps=32, action_spaces={"action": Discrete(n=2)})
        rollout = layout.conform(rollout)

    Args:
      model: its specs define the layout.
      steps: T.
      action_spaces: spaces of the model's distributions, if they are known: integers outside of
        them are refused.

    Raises:
      ConfigError: the model's reward specs are not valid; the error names the line.
    """

    def __init__(self, model: Model, steps: int, action_spaces: Mapping[str, Space] | None = None):
        self._steps = steps
        self._inputs = _read_specs(get_learning_specs(model))
        self._states = _read_specs(model.get_state_specs())
        self._actions = _read_specs(model.get_action_specs())
        self._rewards = max(part.stop for part in get_reward_columns(model).values())
        self._action_spaces = action_spaces or {}

    def conform(self, rollout: Rollout) -> Rollout:
        """Returns a rollout with the arrays that the model reads, in its types.

        Raises:
          InvalidInputError: an array is missing, or has another shape, a type that does not fit, or
            numbers that cannot be learned from; the error names it.
        """
        steps, alive = self._steps, rollout.next_alive
        if alive.ndim != 2 or len(alive) != steps or not alive.shape[1]:
            raise InvalidInputError(
                f"next_alive: shape {list(alive.shape)}, expected [{steps}, k] (steps of a "
                "rollout, slots); do server and agents have the same algorithm settings?"
            )
        slots = alive.shape[1]
        both = (steps, slots)
        actions = _select("actions", rollout.actions, self._actions, both)
        for name, space in self._action_spaces.items():
            if name in actions:
                rows = actions[name].reshape(-1, *space.shape)
                space.validate(rows.astype(space.dtype, copy=False), len(rows), f"actions {name}")
        inputs = self._cut_inputs(rollout.history)
        return Rollout(
            inputs=_select("inputs", rollout.inputs, inputs, both),
            next_inputs=_select("next_inputs", rollout.next_inputs, inputs, both),
            next_alive=_conform_alive(alive),
            rewards=_conform("rewards", rollout.rewards, (*both, self._rewards), _FLOAT32),
            actions=actions,
            log_prob=_conform("log_prob", rollout.log_prob, both, _FLOAT32),
            states=_select("states", rollout.states, self._states, (slots,)),
            versions=_conform("versions", rollout.versions, (steps,), _INT64),
            valid=_conform_valid(rollout.valid, both),
            starts=_conform_starts(rollout.starts, slots),
            extras=_conform_extras(rollout.extras, both),
            history={
                name: _conform(
                    f"history {name}",
                    array,
                    (len(array), slots, *inputs[name][0]),
                    inputs[name][1],
                )
                for name, array in rollout.history.items()
                if name in inputs
            },
        )

    def select(self, rollout: Rollout) -> Rollout:
        """Returns a rollout without the inputs that only other Algorithms of the agent see."""
        if rollout.inputs.keys() <= self._inputs.keys():
            return rollout
        return replace(
            rollout,
            inputs=self._keep(rollout.inputs),
            next_inputs=self._keep(rollout.next_inputs),
            history=self._keep(rollout.history),
        )

    def _keep(self, arrays: Arrays) -> Arrays:
        return {name: array for name, array in arrays.items() if name in self._inputs}

    def _cut_inputs(self, history: Arrays) -> _Specs:
        """Returns the specs of single observations for inputs that are joined with earlier ones.

        Raises:
          InvalidInputError: the model's input does not consist of that many observations.
        """
        inputs = dict(self._inputs)
        for name, array in history.items():
            if name not in inputs:
                continue
            shape, dtype = inputs[name]
            number = len(array) + 1 if array.ndim else 0
            if number < 2 or not shape or shape[-1] % number:
                raise InvalidInputError(
                    f"history {name}: shape {list(array.shape)}, expected [n - 1, k, ...] for the "
                    f"model's input {list(shape)} of n observations; do server and agents have the "
                    "same algorithm.observation_history?",
                    "history",
                )
            inputs[name] = (*shape[:-1], shape[-1] // number), dtype
        return inputs


def remove_question(error: InvalidInputError) -> str:
    """Returns the text of an error of `conform` without the question about server and agents.

    For rollouts that come from a file, not from an agent.
    """
    return str(error).partition("; do server and agents have")[0]


def _read_specs(specs: Specs) -> _Specs:
    return {name: (tuple(p["shape"]), np.dtype(p.get("dtype", "float32"))) for name, p in specs}


def _select(field: str, arrays: Arrays, specs: _Specs, leading: tuple[int, ...]) -> Arrays:
    """Returns the arrays that the specs name; a client can observe more than the model reads."""
    selected = {}
    for name, (shape, dtype) in specs.items():
        if name not in arrays:
            came = ", ".join(sorted(arrays))[:200] or "nothing"
            raise InvalidInputError(
                f"{field}: {name} is missing, received {came}; do server and agents have the same "
                "algorithm?"
            )
        selected[name] = _conform(f"{field} {name}", arrays[name], (*leading, *shape), dtype)
    return selected


def _conform(field: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if array.shape != shape or not _fits(array.dtype, dtype):
        raise InvalidInputError(
            f"{field}: {array.dtype} of {list(array.shape)}, expected {dtype} of "
            f"{list(shape)}; do server and agents have the same algorithm settings?"
        )
    if array.dtype.kind == "f" and not is_finite(array):
        first = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise InvalidInputError(
            f"{field}: {array[first]} at {list(first)}, expected finite numbers; check "
            f"{_find_origin(field)}"
        )
    came = array
    with np.errstate(over="ignore"):
        array = array.astype(dtype, copy=False)
    if dtype.kind == "f":
        # Costs are squares: an overflow would end the run for all clients.
        flat = array.ravel()
        with np.errstate(over="ignore"):
            squares = np.dot(flat, flat)
        if not math.isfinite(squares):
            raise InvalidInputError(
                f"{field}: contains numbers up to {np.abs(came.astype(np.float64)).max():.0e}; the "
                f"sum of all squares overflows {dtype}; make {_find_origin(field)} return smaller "
                "numbers"
            )
    return array


def _find_origin(field: str) -> str:
    return _ORIGINS.get(field.partition(" ")[0], "the environment")


def _fits(came: np.dtype, wanted: np.dtype) -> bool:
    """Returns whether numbers of one dtype are accepted in place of another."""
    if wanted.kind == "f":
        return came.kind in "fiub"
    return came == wanted or (wanted.kind == came.kind == "i")


def _conform_alive(alive: np.ndarray) -> np.ndarray:
    known = np.isin(alive, (ALIVE, TERMINATED, TRUNCATED))
    if not known.all():
        raise InvalidInputError(
            f"next_alive: {alive[~known][0]}, expected 1 (continues), 0 (terminated) or -1 "
            "(truncated)"
        )
    return alive.astype(np.float32, copy=False)


def _conform_valid(valid: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray | None:
    if valid is None:
        return None
    if valid.shape != shape or valid.dtype != np.bool_:
        raise InvalidInputError(
            f"valid: {valid.dtype} of {list(valid.shape)}, expected bool of {list(shape)}"
        )
    if not valid.any():
        raise InvalidInputError("valid: all False, expected a rollout with at least one valid row")
    return None if valid.all() else valid


def _conform_starts(starts: np.ndarray | None, slots: int) -> np.ndarray | None:
    if starts is None:
        return None
    starts = _conform("starts", starts, (slots, 3), _INT64)
    wrong = (starts[:, 1:] < 0).any(axis=1)
    if wrong.any():
        raise InvalidInputError(
            f"starts: {starts[wrong][0].tolist()} (slot, episode, step), expected an episode and a "
            "step of 0 or more"
        )
    return starts


def _conform_extras(extras: Arrays, leading: tuple[int, int]) -> Arrays:
    conformed = {}
    for name, array in extras.items():
        if array.shape[:2] != leading:
            raise InvalidInputError(
                f"extras {name}: {array.dtype} of {list(array.shape)}, expected [{leading[0]}, "
                f"{leading[1]}, ...]",
                "extras",
            )
        conformed[name] = _conform(f"extras {name}", array, array.shape, _FLOAT32)
    return conformed
