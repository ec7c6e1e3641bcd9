"""The Buffer of trajectories: collects steps, or complete trajectories; returns minibatches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from relaax_like.experience.growing_array import GrowingArray, GrowingTree, Tree
from relaax_like.experience.returns import compute_gae, normalize
from relaax_like.wire.errors import ConfigError, InvalidInputError

# Minimum divisor of the minibatches' advantages.
_EPSILON = 1e-4


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
        self._states = GrowingTree("state")
        self._actions = GrowingTree("action")
        self._extras = GrowingTree("additional info")
        self._rewards = GrowingArray("reward", np.float32)
        self._values = GrowingArray("value", np.float32)
        self._returns = GrowingArray("return", np.float32)
        self._traj_idx = [0]
        self._terminal_values: list[float] = []
        self._length = 0
        self._num_extras = 0

    def __len__(self) -> int:
        """Returns the number of steps, including those of the unfinished trajectory."""
        return self._length

    @property
    def traj_idx(self) -> list[int]:
        """Borders of the n ended trajectories, n + 1 numbers: 0, and the last step + 1 of each."""
        return list(self._traj_idx)

    @property
    def terminal_values(self) -> list[float]:
        """V of the state after the last step of each trajectory; 0 if it terminated."""
        return list(self._terminal_values)

    def push(
        self,
        state: ArrayLike | Mapping[str, ArrayLike],
        action: ArrayLike | Mapping[str, ArrayLike],
        reward: ArrayLike,
        value: ArrayLike,
    ) -> None:
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
        row = self._length
        self._rewards.put(row, _to_number(reward, "reward"))
        self._values.put(row, _to_number(value, "value"))
        try:
            self._states.put(row, state)
            self._actions.put(row, action)
        except ValueError:  # an InvalidInputError, or one of NumPy
            if not row:  # its shapes are not those of the first step
                self._states, self._actions = GrowingTree("state"), GrowingTree("action")
            raise
        self._length = row + 1

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
        self._extras.put(self._num_extras, info)
        self._num_extras += 1

    def end_trajectory(self, terminal_value: ArrayLike = 0.0) -> None:
        """Ends the trajectory and computes its returns.

        Args:
          terminal_value: one number, V of the state after the last step; 0 if the episode
            terminated.

        Raises:
          InvalidInputError: no step was pushed since the last end, additional info was not pushed
            for each step, or terminal_value is not one number.
        """
        start, stop = self._traj_idx[-1], self._length
        if start == stop:
            raise InvalidInputError(
                "the trajectory has no steps; push a step before end_trajectory", ""
            )
        if self._extras.names and self._num_extras != stop:
            raise InvalidInputError(
                f"additional info was pushed {self._num_extras} time(s) for {stop} step(s); call "
                "push_additional_info once for each step of all trajectories, or never",
                "additional info",
            )
        rewards, values = self._rewards.view(stop)[start:], self._values.view(stop)[start:]
        terminal_value = _to_number(terminal_value, "terminal_value")
        next_values = np.append(values[1:], np.float32(terminal_value))
        # Never terminated: after a termination the value is 0 anyway.
        advantages = compute_gae(
            rewards, values, next_values, np.ones(stop - start), self.discount, self.gae_lambda
        )
        self._returns.write(start, advantages + values)
        self._traj_idx.append(stop)
        self._terminal_values.append(terminal_value)

    def push_trajectory(
        self,
        states: ArrayLike | Mapping[str, ArrayLike],
        actions: ArrayLike | Mapping[str, ArrayLike],
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
        number, row = rewards.size, self._length
        for name, array in (("rewards", rewards), ("values", values)):
            if array.shape != (number,) or not number:
                raise InvalidInputError(
                    f"{name} has shape {list(array.shape)}, expected [{number or 'T'}]: one number "
                    "for each step, at least one step, and as many values as rewards",
                    name,
                )
        terminal_value = _to_number(terminal_value, "terminal_value")
        if row:
            self._require_same_extras(set(extras or ()))
        self._rewards.write(row, rewards)
        self._values.write(row, values)
        try:
            self._states.write(row, states, number)
            self._actions.write(row, actions, number)
            if extras:
                self._extras.write(row, extras, number)
        except ValueError:  # an InvalidInputError, or one of NumPy
            if not row:  # its shapes are not those of the first step
                self._states, self._actions = GrowingTree("state"), GrowingTree("action")
            raise
        if extras:
            self._num_extras += number
        self._length += number
        self.end_trajectory(terminal_value)

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
        self._require_trajectories()
        available = len(self._traj_idx) - 1 if recurrent else self._length
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
        self._require_trajectories()
        number = len(self._traj_idx) - 1
        chosen = np.arange(number) if trajectories is None else np.asarray(trajectories)
        wrong = chosen[(chosen < 0) | (chosen >= number)]
        if not len(chosen) or len(wrong):
            given = wrong[0] if len(wrong) else "empty"
            raise InvalidInputError(
                f"trajectories: {given}, expected at least one index, each from 0 to {number - 1}",
                "trajectories",
            )
        return self._pad(chosen, self._compute_advantages())

    def rows(self) -> Minibatch:
        """Returns all steps `[B, ...]`, trajectory after trajectory.

        Raises:
          InvalidInputError: the buffer is empty, or a trajectory has not ended.
        """
        self._require_trajectories()
        everything = np.arange(self._length)
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
        self._require_trajectories()
        length = self._length
        return {
            "states": self._states.map(_keep, length),
            "actions": self._actions.map(_keep, length),
            "rewards": self._rewards.view(length),
            "values": self._values.view(length),
            "returns": self._returns.view(length),
            "extras": self._extras.map(_keep, length),
            "traj_idx": np.array(self._traj_idx),
            "terminal_values": np.array(self._terminal_values),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; the buffer must be empty. The arrays are copied."""
        length = int(state["traj_idx"][-1])
        for tree, elements in (
            (self._states, state["states"]),
            (self._actions, state["actions"]),
            (self._extras, state["extras"]),
        ):
            tree.write(0, elements, length)
        for array, name in (
            (self._rewards, "rewards"),
            (self._values, "values"),
            (self._returns, "returns"),
        ):
            array.write(0, state[name])
        self._traj_idx = [int(border) for border in state["traj_idx"]]
        self._terminal_values = [float(value) for value in state["terminal_values"]]
        self._length = length
        self._num_extras = length if state["extras"] else 0

    def _extend(self, other: "Buffer") -> None:
        other._require_ended()
        if not other._length:
            return
        if self._length:
            self._require_same_extras(other._extras.names)
        row, number = self._length, other._length
        for mine, theirs in (
            (self._states, other._states),
            (self._actions, other._actions),
            (self._extras, other._extras),
        ):
            if theirs.names:
                mine.write(row, theirs.map(_keep, number), number)
        for target, source in (
            (self._rewards, other._rewards),
            (self._values, other._values),
            (self._returns, other._returns),
        ):
            target.write(row, source.view(number))
        self._traj_idx += [row + stop for stop in other._traj_idx[1:]]
        self._terminal_values += other._terminal_values
        self._length += number
        self._num_extras += other._num_extras

    def _require_ended(self) -> None:
        steps = self._length - self._traj_idx[-1]
        if not steps and self._num_extras not in (0, self._length):
            raise InvalidInputError(
                f"additional info was pushed {self._num_extras} time(s) for {self._length} step(s);"
                " push both for each step, or use a new Buffer",
                "additional info",
            )
        if steps:
            raise InvalidInputError(
                f"the last trajectory, with {steps} step(s), has not ended; call end_trajectory "
                "first, with the value of its final state if it was truncated",
                "",
            )

    def _require_trajectories(self) -> None:
        self._require_ended()
        if not self._length:
            raise InvalidInputError("the buffer is empty; push a trajectory first", "")

    def _require_same_extras(self, names: set[str | None] | set[str]) -> None:
        if names != self._extras.names:
            mine, theirs = sorted(map(str, self._extras.names)), sorted(map(str, names))
            raise InvalidInputError(
                f"additional info is {theirs}, expected {mine} as in the previous steps; use the "
                "same names for all steps",
                "additional info",
            )

    def _compute_advantages(self) -> np.ndarray:
        """Returns `[steps] float32`, with mean 0 and standard deviation 1 over the buffer."""
        length = self._length
        advantages = self._returns.view(length) - self._values.view(length)
        return normalize(advantages, _EPSILON).astype(np.float32)

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

        length = self._length
        extras = self._extras.map(take, length)
        assert isinstance(extras, dict)
        return Minibatch(
            states=self._states.map(take, length),
            actions=self._actions.map(take, length),
            rewards=take(self._rewards.view(length)),
            values=take(self._values.view(length)),
            returns=take(self._returns.view(length)),
            advantages=take(advantages),
            mask=is_step.astype(np.float32),
            extras=extras,
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


def _keep(array: np.ndarray) -> np.ndarray:
    return array


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
