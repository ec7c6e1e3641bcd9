"""The Buffer of trajectories: collects steps, or complete trajectories; returns minibatches."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from relaax_like.experience.returns import compute_gae, normalize
from relaax_like.wire.errors import ConfigError, InvalidInputError

# One array, or several by name.
Tree = np.ndarray | dict[str, np.ndarray]
_Given = ArrayLike | Mapping[str, ArrayLike]
_Leaves = dict[str | None, np.ndarray]  # None: the one without a name

# Minimum divisor of the minibatches' advantages.
_EPSILON = 1e-4
_KINDS = "biufcV"  # numbers, and V: bfloat16
_NUMBER: _Leaves = {None: np.zeros(0, np.float32)}
_STATE, _ACTION, _INFO, _REWARD, _VALUE = "state", "action", "additional info", "reward", "value"
_RETURN = "return"
_FIELDS = (_STATE, _ACTION, _REWARD, _VALUE, _RETURN)


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    """Steps `[B, ...]`, or complete trajectories `[T, N, ...]`; the reader owns the arrays.

    In the second form T is the length of the longest trajectory, and shorter ones are padded with
    zeros: compute a mean over steps as `sum(mask * x) / sum(mask)`.

    Attributes:
      states: `[B, ...]` or `[T, N, ...]`, one array or name -> array, as they were pushed.
      actions: the same for actions.
      rewards: `[B]` or `[T, N] float32`.
      values: same shape, V(x_t) when the action was chosen.
      returns: same shape, lambda-returns, the targets of the value function.
      advantages: same shape, returns - values, normalised to mean 0 and standard deviation 1 over
        the complete buffer.
      mask: same shape, 1 for a step, 0 for padding.
      extras: name -> `[B, ...]` or `[T, N, ...]`, from `push_additional_info` or
        `push_trajectory`.
    """

    states: Tree
    actions: Tree
    rewards: np.ndarray
    values: np.ndarray
    returns: np.ndarray
    advantages: np.ndarray
    mask: np.ndarray
    extras: dict[str, np.ndarray]


class Buffer:
    """Stores trajectories one after another, and returns minibatches of them.

        buffer = Buffer(discount=0.99, gae_lambda=0.95)
        buffer.push(state, action, reward, value)        # each step
        buffer.push_additional_info({"foot forces": forces})
        buffer.end_trajectory(terminal_value=0.0)        # or V of the last state, if truncated
        for minibatch in buffer.sample(64, rng=rng): ...
        merged = buffer + other

    Advantages and returns are those of generalised advantage estimation (Schulman et al. 2016,
    equation 16, https://arxiv.org/abs/1506.02438); returns are computed when a trajectory ends,
    advantages when minibatches are made. Not thread-safe; everything stays in memory. For an
    argument that cannot be converted to an array, such as lists of different lengths, methods raise
    NumPy's ValueError.

    Attributes:
      discount: as the argument.
      gae_lambda: as the argument.
    """

    def __init__(self, discount: float, gae_lambda: float):
        """Starts empty.

        Args:
          discount: gamma, 0 to 1.
          gae_lambda: 0 (one step) to 1 (the complete trajectory).

        Raises:
          ConfigError: discount or gae_lambda is not between 0 and 1.
        """
        for name, value in (("discount", discount), ("gae_lambda", gae_lambda)):
            if not 0 <= value <= 1:
                raise ConfigError(f"buffer: {name} {value}, expected 0 to 1")
        self.discount = discount
        self.gae_lambda = gae_lambda
        # Field -> leaves [0, ...], with the names, shapes and dtypes of the first element.
        self._first: dict[str, _Leaves] = {_REWARD: _NUMBER, _VALUE: _NUMBER, _RETURN: _NUMBER}
        # Field -> leaves [n, ...], of ended trajectories.
        self._parts: list[dict[str, _Leaves]] = []
        # Of the trajectory that has not ended: leaves [...] of each step.
        self._steps: list[dict[str, _Leaves]] = []
        self._infos: list[_Leaves] = []
        self._traj_idx = [0]
        self._terminal_values: list[float] = []

    def __len__(self) -> int:
        """Returns the number of steps, including those of the unfinished trajectory."""
        return self._traj_idx[-1] + len(self._steps)

    @property
    def traj_idx(self) -> list[int]:
        """Borders of the n ended trajectories, n + 1 numbers: 0, and the last step + 1 of each."""
        return list(self._traj_idx)

    @property
    def terminal_values(self) -> list[float]:
        """V of the state after the last step of each trajectory; 0 if it terminated."""
        return list(self._terminal_values)

    def push(self, state: _Given, action: _Given, reward: ArrayLike, value: ArrayLike) -> None:
        """Stores one step.

        Args:
          state: `[...]` or name -> `[...]`, the observation; copied.
          action: `[...]` or name -> `[...]`, the action; copied.
          reward: one number, the reward of the action.
          value: one number, V(state).

        Raises:
          InvalidInputError: reward or value is not one number; state or action does not consist of
            numbers; or names or shapes are not those of the first step, or an array cannot be
            converted to the dtype of the first step. Nothing is stored.
        """
        step: dict[str, _Leaves] = {
            _REWARD: {None: np.float32(_to_number(reward, "reward"))},  # type: ignore[dict-item]
            _VALUE: {None: np.float32(_to_number(value, "value"))},  # type: ignore[dict-item]
            _STATE: self._convert(_STATE, state),
            _ACTION: self._convert(_ACTION, action),
        }
        if not len(self):
            self._keep_first(step)
        self._steps.append(step)

    def push_additional_info(self, info: Mapping[str, ArrayLike]) -> None:
        """Stores more arrays of a step: once for each step, before or after its `push`, or never.

        A call before a trajectory's first `push` begins that trajectory, which must then be ended.

        Args:
          info: name -> `[...]`; the same names each time. The arrays are copied, and returned as
            `extras`. {}: no effect.

        Raises:
          InvalidInputError: an array does not consist of numbers; or names or shapes are not those
            of the first call, or an array cannot be converted to the dtype of the first call.
        """
        if not info:
            return
        leaves = self._convert(_INFO, info)
        if _INFO not in self._first:
            self._keep_first({_INFO: leaves})
        self._infos.append(leaves)

    def end_trajectory(self, terminal_value: ArrayLike = 0.0) -> None:
        """Ends the trajectory and computes its returns.

        Args:
          terminal_value: one number, V of the state after the last step; 0 if the episode
            terminated.

        Raises:
          InvalidInputError: no step was pushed since the last end, additional info was not pushed
            for each step, or terminal_value is not one number.
        """
        if not self._steps:
            raise InvalidInputError(
                "the trajectory has no steps; push a step before end_trajectory", ""
            )
        if _INFO in self._first and self._num_infos != len(self):
            raise InvalidInputError(
                f"additional info was pushed {self._num_infos} time(s) for {len(self)} "
                "step(s); call push_additional_info once for each step of all trajectories, or "
                "never",
                _INFO,
            )
        value = _to_number(terminal_value, "terminal_value")
        part = {field: _stack([step[field] for step in self._steps]) for field in self._steps[0]}
        if self._infos:
            part[_INFO] = _stack(self._infos)
        self._add(part, value)

    def push_trajectory(
        self,
        states: _Given,
        actions: _Given,
        rewards: ArrayLike,
        values: ArrayLike,
        terminal_value: ArrayLike = 0.0,
        extras: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        """Stores a complete trajectory of T steps at once.

        Args:
          states: `[T, ...]` or name -> `[T, ...]`; copied, like all arrays.
          actions: `[T, ...]` or name -> `[T, ...]`.
          rewards: `[T]`.
          values: `[T]`.
          terminal_value: one number, V of the state after the last step; 0 if the episode
            terminated.
          extras: name -> `[T, ...]`, the same names for each trajectory; None: no extras.

        Raises:
          InvalidInputError: T is 0, or lengths differ; an array does not consist of numbers; names
            or shapes are not those of the first step, or an array cannot be converted to the dtype
            of the first step; terminal_value is not one number; or a trajectory that was pushed by
            steps has not ended. Nothing is stored.
        """
        self._require_ended()
        rewards, values = np.asarray(rewards), np.asarray(values)
        number = rewards.size
        for name, array in (("rewards", rewards), ("values", values)):
            if array.shape != (number,) or not number:
                raise InvalidInputError(
                    f"{name} has shape {list(array.shape)}, expected [{number or 'T'}]: one number "
                    "for each step, at least one step, and as many values as rewards",
                    name,
                )
        terminal_value = _to_number(terminal_value, "terminal_value")
        if self._parts:
            self._require_same_extras(set(extras or ()))
        given = {_REWARD: rewards, _VALUE: values, _STATE: states, _ACTION: actions}
        if extras:
            given[_INFO] = extras
        self._add(self._convert_all(given, number), terminal_value)

    def _add(self, part: dict[str, _Leaves], terminal_value: float) -> None:
        """Adds a trajectory, which was checked, and its returns."""
        rewards, values = part[_REWARD][None], part[_VALUE][None]
        next_values = np.append(values[1:], np.float32(terminal_value))
        # Never terminated: after a termination the value is 0 anyway.
        advantages = compute_gae(
            rewards, values, next_values, np.ones(len(rewards)), self.discount, self.gae_lambda
        )
        part[_RETURN] = {None: (advantages + values).astype(np.float32)}
        self._parts.append(part)
        self._steps, self._infos = [], []
        self._traj_idx.append(self._traj_idx[-1] + len(rewards))
        self._terminal_values.append(terminal_value)

    def sample(
        self, batch_size: int, recurrent: bool = False, rng: np.random.Generator | None = None
    ) -> Iterator[Minibatch]:
        """Returns one epoch of minibatches, in random order.

        The buffer must not change before the last minibatch has been returned.

        Args:
          batch_size: B steps, or, if recurrent, N complete trajectories.
          recurrent: whether to return complete trajectories `[T, N, ...]`, zero-padded to the
            longest of the minibatch; the last minibatch can have fewer. Otherwise steps `[B, ...]`;
            a last minibatch that is not full is left out.
          rng: draws the order; None: the order differs in each run.

        Raises:
          InvalidInputError: the buffer is empty, a trajectory has not ended, batch_size is below 1,
            or there are too few steps for one minibatch.
        """
        self._join()
        available = len(self._traj_idx) - 1 if recurrent else len(self)
        if batch_size < 1 or (not recurrent and batch_size > available):
            expected = "1 or more" if recurrent else f"1 to {available}, the buffer's steps"
            raise InvalidInputError(
                f"batch_size is {batch_size}, expected {expected}", "batch_size"
            )
        order = (rng or np.random.default_rng()).permutation(available)
        return self._iterate(order, batch_size, recurrent)

    def pad(self, trajectories: Sequence[int] | np.ndarray | None = None) -> Minibatch:
        """Returns complete trajectories as one batch `[T, N, ...]`, zero-padded to the longest.

        Args:
          trajectories: indices of the trajectories, 0 for the first; None: all, in order.

        Raises:
          InvalidInputError: an index is out of range, no index is given, the buffer is empty, or a
            trajectory has not ended.
        """
        self._join()
        number = len(self._traj_idx) - 1
        chosen = np.arange(number) if trajectories is None else np.asarray(trajectories)
        wrong = chosen[(chosen < 0) | (chosen >= number)]
        if not len(chosen) or len(wrong):
            given = wrong[0] if len(wrong) else "empty"
            raise InvalidInputError(
                f"trajectories: {given}, expected at least one index, each from 0 to {number - 1}"
            )
        return self._pad(chosen, self._compute_advantages())

    def rows(self) -> Minibatch:
        """Returns all steps `[B, ...]`, trajectory after trajectory.

        Raises:
          InvalidInputError: the buffer is empty, or a trajectory has not ended.
        """
        self._join()
        everything = np.arange(len(self))
        return self._gather(everything, everything >= 0, self._compute_advantages())

    @classmethod
    def join(cls, buffers: Sequence["Buffer"]) -> "Buffer":
        """Returns a new buffer with the trajectories of all buffers; faster than repeated `+`.

        Args:
          buffers: at least one.

        Raises:
          InvalidInputError: extras, shapes, discount or gae_lambda differ, arrays cannot be
            converted to the dtypes of the first buffer with trajectories, or a trajectory has not
            ended.
        """
        first = buffers[0]
        joined = cls(first.discount, first.gae_lambda)
        for buffer in buffers:
            for name in ("discount", "gae_lambda"):
                mine, theirs = getattr(first, name), getattr(buffer, name)
                if mine != theirs:
                    raise InvalidInputError(
                        f"buffers with {name} {mine} and {theirs} cannot be joined, because "
                        f"their returns differ in meaning; create all with the same {name}",
                        name,
                    )
            joined._extend(buffer)
        return joined

    def __add__(self, other: "Buffer") -> "Buffer":
        """Returns a new buffer with the trajectories of both, this one's first.

        Raises:
          InvalidInputError: extras, shapes, discount or gae_lambda differ, arrays cannot be
            converted to the dtypes of the first buffer with trajectories, or a trajectory has not
            ended.
        """
        if not isinstance(other, Buffer):
            return NotImplemented
        return Buffer.join([self, other])

    def get_state(self) -> dict[str, Any]:
        """Returns all trajectories, as arrays and dicts of arrays.

        The arrays of steps are views of the buffer's memory.

        Raises:
          InvalidInputError: the buffer is empty, or a trajectory has not ended.
        """
        rows = self._join()
        return {
            **{f"{field}s": _to_tree(rows[field]) for field in _FIELDS},
            "extras": _to_tree(rows.get(_INFO, {})),
            "traj_idx": np.array(self._traj_idx),
            "terminal_values": np.array(self._terminal_values),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; the buffer must be empty. The arrays are copied."""
        self._traj_idx = [int(border) for border in state["traj_idx"]]
        length = self._traj_idx[-1]
        given = {field: state[f"{field}s"] for field in _FIELDS}
        if state["extras"]:
            given[_INFO] = state["extras"]
        self._parts = [self._convert_all(given, length)]
        self._terminal_values = [float(value) for value in state["terminal_values"]]

    def _extend(self, other: "Buffer") -> None:
        other._require_ended()
        if not other._parts:
            return
        if self._parts:
            self._require_same_extras(set(other._first.get(_INFO, ())))
        row, rows = self._traj_idx[-1], other._join()
        given = {field: _to_tree(leaves) for field, leaves in rows.items()}
        self._parts.append(self._convert_all(given, len(other)))
        self._traj_idx += [row + stop for stop in other._traj_idx[1:]]
        self._terminal_values += other._terminal_values

    def _convert_all(self, given: Mapping[str, _Given], rows: int) -> dict[str, _Leaves]:
        """Converts the fields of `rows` steps; the first ones decide the shapes and dtypes."""
        part = {field: self._convert(field, given[field], rows) for field in given}
        first = {f: {n: leaf[0] for n, leaf in leaves.items()} for f, leaves in part.items()}
        self._keep_first(first)
        return part

    def _keep_first(self, elements: dict[str, _Leaves]) -> None:
        """Keeps names, shapes and dtypes of the first element of each field."""
        for field, leaves in elements.items():
            first = {name: np.empty((0, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}
            self._first.setdefault(field, first)

    def _convert(self, field: str, given: _Given, rows: int | None = None) -> _Leaves:
        """Returns copies of arrays that fit the first ones of their field.

        Args:
          field: of the arrays, for errors.
          given: `[...]`, or `[rows, ...]`; or name -> these.
          rows: None: one element.

        Raises:
          InvalidInputError: they have other names or shapes, or cannot be converted.
          ValueError: NumPy cannot convert one to an array.
        """
        first = self._first.get(field)
        if first is not None and rows is None and not hasattr(given, "keys") and None in first:
            array, like = np.array(given), first[None]  # the common case, in half the time
            if array.dtype == like.dtype and array.shape == like.shape[1:]:
                return {None: array}
        leaves: Mapping[Any, ArrayLike] = given if isinstance(given, Mapping) else {None: given}
        if first is not None and leaves.keys() != first.keys():
            raise InvalidInputError(
                f"{field} is {_describe(leaves)}, expected {_describe(first)} as in the first push",
                field,
            )
        return {
            name: _convert_leaf(
                field if name is None else f"{field}[{name!r}]",
                np.array(leaf),
                None if first is None else first[name],
                rows,
            )
            for name, leaf in leaves.items()
        }

    @property
    def _num_infos(self) -> int:
        is_kept = bool(self._parts) and _INFO in self._parts[0]
        return self._traj_idx[-1] * is_kept + len(self._infos)

    def _join(self) -> dict[str, _Leaves]:
        """Returns field -> leaves `[steps, ...]`, of all trajectories.

        Raises:
          InvalidInputError: the buffer is empty, or a trajectory has not ended.
        """
        self._require_ended()
        if not self._parts:
            raise InvalidInputError("the buffer is empty; push a trajectory first", "")
        if len(self._parts) > 1:
            first, parts = self._parts[0], self._parts
            joined = {
                field: {n: np.concatenate([part[field][n] for part in parts]) for n in leaves}
                for field, leaves in first.items()
            }
            self._parts = [joined]
        return self._parts[0]

    def _require_ended(self) -> None:
        ended, steps, infos = self._traj_idx[-1], len(self._steps), self._num_infos
        if not steps and infos not in (0, ended):
            raise InvalidInputError(
                f"additional info was pushed {infos} time(s) for {ended} step(s); push both for "
                "each step, or use a new Buffer",
                _INFO,
            )
        if steps:
            raise InvalidInputError(
                f"the last trajectory, with {steps} step(s), has not ended; call end_trajectory "
                "first, with the value of its final state if it was truncated",
                "",
            )

    def _require_same_extras(self, names: Iterable[str | None]) -> None:
        mine, theirs = (sorted(map(str, some)) for some in (self._parts[0].get(_INFO, ()), names))
        if mine != theirs:
            raise InvalidInputError(
                f"additional info is {theirs}, expected {mine} as in the previous steps; use the "
                "same names for all steps",
                _INFO,
            )

    def _compute_advantages(self) -> np.ndarray:
        """Returns `[steps] float32`, with mean 0 and standard deviation 1 over the buffer."""
        rows = self._join()
        return normalize(rows[_RETURN][None] - rows[_VALUE][None], _EPSILON).astype(np.float32)

    def _iterate(self, order: np.ndarray, batch_size: int, recurrent: bool) -> Iterator[Minibatch]:
        advantages = self._compute_advantages()
        if recurrent:
            for start in range(0, len(order), batch_size):
                yield self._pad(order[start : start + batch_size], advantages)
            return
        for start in range(0, len(order) - batch_size + 1, batch_size):
            rows = order[start : start + batch_size]
            yield self._gather(rows, np.ones(batch_size, np.bool_), advantages)

    def _pad(self, trajectories: np.ndarray, advantages: np.ndarray) -> Minibatch:
        borders = np.array(self._traj_idx)
        starts, lengths = borders[trajectories], np.diff(borders)[trajectories]
        rows, is_step = lay_side_by_side(starts, lengths, lengths.max())
        return self._gather(rows, is_step, advantages)

    def _gather(self, rows: np.ndarray, is_step: np.ndarray, advantages: np.ndarray) -> Minibatch:
        """Copies rows, and zeros where `is_step` is False; both `[B]` or `[T, N]`."""
        is_padding = None if is_step.all() else ~is_step

        def take(array: np.ndarray) -> np.ndarray:
            taken = array[rows]
            if is_padding is not None:
                taken[is_padding] = 0
            return taken

        taken = {
            field: {name: take(leaf) for name, leaf in leaves.items()}
            for field, leaves in self._join().items()
        }
        return Minibatch(
            **{f"{field}s": _to_tree(taken[field]) for field in _FIELDS},
            advantages=take(advantages),
            mask=is_step.astype(np.float32),
            extras={str(name): leaf for name, leaf in taken.get(_INFO, {}).items()},
        )


def lay_side_by_side(
    starts: np.ndarray, lengths: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row of each step of trajectories that are laid side by side, `[T, N]`.

    Args:
      starts: row of the first step of each trajectory, `[N]`.
      lengths: steps of each, `[N]`.
      steps: T, at least the longest.

    Returns:
      Rows `[T, N] int64`, 0 after the end of a trajectory; and whether each is a step of its
      trajectory, `[T, N] bool`.
    """
    t = np.arange(steps)[:, None]
    is_step = t < lengths
    return np.where(is_step, starts + t, 0), is_step


def _stack(elements: Sequence[_Leaves]) -> _Leaves:
    """Joins elements `[...]` to leaves `[n, ...]`."""
    return {
        name: np.array([element[name] for element in elements], leaf.dtype)
        for name, leaf in elements[0].items()
    }


def _to_tree(leaves: _Leaves) -> Any:
    return leaves.get(None, leaves)


def _describe(leaves: Mapping[Any, object]) -> str:
    return "one array" if None in leaves else f"a dict of {sorted(map(str, leaves))}"


def _convert_leaf(
    field: str, array: np.ndarray, first: np.ndarray | None, rows: int | None
) -> np.ndarray:
    """Returns the array, or one of the dtype of `first` `[0, ...]`; see `Buffer._convert`."""
    shape, dtype = array.shape, array.dtype
    if rows is not None:
        if shape[:1] != (rows,):
            raise InvalidInputError(
                f"{field} has shape {list(shape)}, expected [{rows}, ...], as long as the rewards",
                field,
            )
        shape = shape[1:]
    if first is None:
        if dtype.kind not in _KINDS:
            found = next(iter(array.ravel()[:1].tolist()), "nothing")
            raise InvalidInputError(
                f"{field} contains {found!r:.80} (dtype {dtype}), expected a number or an array "
                "of numbers",
                field,
            )
        return array
    own = first.dtype
    if shape != first.shape[1:] or not (dtype == own or np.can_cast(dtype, own, "same_kind")):
        raise InvalidInputError(
            f"{field} is {dtype} of {list(shape)}, expected {own} of {list(first.shape[1:])}; "
            "all elements must have the same shape and dtype",
            field,
        )
    if dtype == own:
        return array
    converted = array.astype(own)
    # Floats are rounded; integers must fit.
    if own.kind in "iu" and (wrong := array[converted != array]).size:
        raise InvalidInputError(
            f"{field} contains {wrong[0]}, which {own}, the dtype of the first element, cannot "
            "represent; use one dtype for all elements",
            field,
        )
    return converted


def _to_number(value: ArrayLike, field: str) -> float:
    """Returns a number, or the only element of an array, as a float."""
    if isinstance(value, float):
        return value
    array = np.asarray(value)
    if array.size != 1:
        shape = list(array.shape)
        raise InvalidInputError(f"{field} has shape {shape}, expected one number", field)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidInputError(
            f"{field} is {value!r:.80} (dtype {array.dtype}), expected one number", field
        )
    return float(array.astype(np.float64).item())
