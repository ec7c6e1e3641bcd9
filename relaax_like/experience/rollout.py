"""Rollouts: T steps of k slots as arrays, filled in place as they happen."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]

# Column of `Rollout.extras`: 1 where something other than the policy decided, else 0.
OVERRIDDEN = "overridden"
# Values of `next_alive`: the next state is normal, terminal, or truncated.
ALIVE, TERMINATED, TRUNCATED = 1.0, 0.0, -1.0


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """T rows of k slots; a row is a step of a slot. The reader owns the arrays.

    A row that is not valid is a hole: it is not learned from, and recursions over time, such as
    those of advantages and of memory, continue from the previous valid row. In a hole, the arrays
    contain any finite numbers.

    Attributes:
      inputs: name -> [T, k, ...], observations from which the actions were chosen.
      next_inputs: name -> [T, k, ...], observations after the actions; where an episode was
        truncated, its final ones; where it terminated, its final ones if the client sent them, else
        any others.
      next_alive: [T, k] float32: 1 continues, 0 terminated, -1 truncated.
      rewards: [T, k, r] float32.
      actions: name -> [T, k, ...].
      log_prob: [T, k] float32, of the actions under the policy that acted.
      states: name -> [k, ...], memory at the first step; empty without memory.
      versions: [T] int64, of the values that acted; if those of the slots differ, the oldest.
      valid: [T, k] bool; None: all rows are valid.
      starts: [k, 3] int64, for each slot's first row: a number that is unique to the slot in the
        run, the number of its episode, starting at 0, and that of its step in the episode. See
        `find_episodes`. None: unknown, as in rollouts that a script has made.
      extras: name -> [T, k, ...] float32, columns that a data handler adds; see `Batch.extras`.
      history: name -> [n - 1, k, ...], the observations before the first row, oldest first, for
        inputs that the model sees with n - 1 earlier ones. `inputs` and `next_inputs` only have the
        newest one; `stack_history` joins them.
    """

    inputs: Arrays
    next_inputs: Arrays
    next_alive: np.ndarray
    rewards: np.ndarray
    actions: Arrays
    log_prob: np.ndarray
    states: Arrays
    versions: np.ndarray
    valid: np.ndarray | None = None
    starts: np.ndarray | None = None
    extras: Arrays = field(default_factory=dict)
    history: Arrays = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Number of slots, k."""
        return self.next_alive.shape[1]

    @property
    def env_steps(self) -> int:
        """Number of valid rows: T * k without holes."""
        return int(self.next_alive.size if self.valid is None else self.valid.sum())


class Executed(NamedTuple):
    """What was carried out instead of the policy's actions.

    Attributes:
      actions: name -> [k, ...], in the form in which the policy draws them.
      overridden: [k] bool, slots where something other than the policy decided.
    """

    actions: Arrays
    overridden: np.ndarray


class RolloutBuffer:
    """Collects one rollout after another.

        buffer = RolloutBuffer(steps=32, agents=make_agent_ids("rlx-1/agent-7", slots=8))
        buffer.add_actions(inputs, actions, log_prob, states, version)
        rollout = buffer.add_outcome(rewards, next_alive, next_inputs, final_inputs)
        # a Rollout after each 32nd outcome, None before

    Arrays are made at the first step, with its shapes and dtypes; a finished rollout's arrays are
    returned and new ones made. Not thread-safe.

    A slot can be absent from a step: the row is a hole, and its reward is added to that of the
    slot's last row. If the slot is still absent when the rollout is complete, that last row moves
    to the next rollout, because what follows the row is not known yet; with `overridden` "only" the
    row stays, since what follows it is not needed.

    Args:
      steps: T.
      agents: [k] int64, the number of each slot; see `Rollout.starts`.
      overridden: what happens to steps whose action was overridden: "cut" and "only", see
        `OnPolicy`; "keep": they are rows like all others, with the executed actions and the
        log-probability 0; "mark": as "keep", and rollouts have the column `OVERRIDDEN`.
      overlap: whether the last row of each rollout is also the first row of the next one, so that T
        - 1 rows are new; before the first one, also after `discard`, comes a row that ended. See
        `OnPolicy`.

    Attributes:
      env_steps: number of steps that slots have taken in the unfinished rollout.
      newest_env_steps: the same for the newest complete rollout, including overridden steps.
      length: number of complete rows of the unfinished rollout, including one that is repeated.
    """

    def __init__(
        self,
        steps: int,
        agents: np.ndarray,
        overridden: Literal["cut", "only", "keep", "mark"] = "cut",
        overlap: bool = False,
    ):
        self.env_steps = 0
        self.newest_env_steps = 0
        self._overridden = overridden
        self._overlap = overlap
        self._steps = steps
        self._slots = slots = len(agents)
        # Start of the unfinished rollout; see `Rollout.starts`.
        self._starts = np.stack([agents, *np.zeros((2, slots), np.int64)], 1)
        self.length = 0
        self._waiting = False
        self._inputs: dict[str, np.ndarray] = {}
        self._joined: dict[str, int] = {}
        self._rewards = np.empty((0, slots, 1), np.float32)
        # The arguments of `add_actions` for the newest row; with overlap.
        self._newest: tuple[Any, ...] = ()
        # In these slots, the observation after a row differs from that of the next row.
        self._followers: list[tuple[int, np.ndarray, dict[str, np.ndarray]]] = []
        # None while no slot was absent and no action was overridden.
        self._holes: _Holes | None = None
        self._states_before: Arrays = {}  # of the newest row

    def add_actions(
        self,
        inputs: Arrays,
        actions: Arrays,
        log_prob: np.ndarray,
        states: Arrays,
        version: int,
        joined: Mapping[str, int] | None = None,
        absent: np.ndarray | None = None,
    ) -> None:
        """Stores observations and actions; `add_outcome` must follow.

        Args:
          inputs: name -> [k, ...].
          actions: name -> [k, ...].
          log_prob: [k].
          states: name -> [k, ...], the memory before the step; must not change until the next call
            has returned.
          version: of the values that acted.
          joined: name of an input that joins several observations on its last axis, the newest
            last -> their number, 2 or more; each observation is stored once. The same at each call.
          absent: [k] bool, slots that take no part in this step; None: all take part.
        """
        assert not self._waiting, "add_actions was called twice without an outcome in between"
        if self._overlap:
            copies = [{k: np.array(a) for k, a in part.items()} for part in (inputs, actions)]
            self._newest = (*copies, np.array(log_prob), states, version, joined)
            if not self.length:
                # The row before the first one: it has ended.
                self._put_first(np.full(self._slots, TERMINATED, np.float32), None)
        t = self.length
        if t == 0:
            self._joined = dict(joined or {})
            self._history = {n: _split(inputs[n], number) for n, number in self._joined.items()}
            self._states = {name: np.array(array) for name, array in states.items()}
        inputs = self._cut(inputs)
        if not self._inputs:
            self._allocate(inputs, actions)
        for stored, arrays in ((self._inputs, inputs), (self._actions, actions)):
            for name, array in arrays.items():
                stored[name][t] = array
        self._log_prob[t], self._versions[t] = log_prob, version
        self._waiting = True
        if absent is not None and self._holes is None:
            self._holes = self._make_holes()
        if self._holes is not None:
            nobody = np.zeros(self._slots, bool)
            self._note_absent(self._holes, nobody if absent is None else absent)
            self._holes.keep_states(states)
        self._states_before = states

    def add_outcome(
        self,
        rewards: np.ndarray,
        next_alive: np.ndarray,
        next_inputs: Arrays,
        final_inputs: Arrays | None = None,
        executed: Executed | None = None,
        absent_next: np.ndarray | None = None,
        is_due: bool = False,
    ) -> Rollout | None:
        """Stores the outcome of the actions.

        Args:
          rewards: [k, r].
          next_alive: [k]: 1, 0 or -1.
          next_inputs: name -> [k, ...]; where an episode ended, the next one's first observation.
            Missing inputs, which are not observations, count as unchanged.
          final_inputs: name -> [k, ...], last observations where an episode was truncated and, if
            they are known, where one terminated; rows of other slots are not used. None: they are
            not known.
          executed: what was carried out; None: the policy's actions.
          absent_next: [k] bool, slots that are absent from the next step; None: no slot.
          is_due: whether the rollout ends with this step, even if it has fewer than T; missing rows
            become holes.

        Returns:
          The rollout if this was its last step, else None.
        """
        assert self._waiting, "an outcome without a preceding add_actions"
        t = self.length
        if t == 0 or not len(self._rewards):
            self._rewards = np.zeros((self._steps, *rewards.shape), np.float32)
        self._rewards[t], self._next_alive[t] = rewards, next_alive
        finals: dict[str, np.ndarray] = {}
        if final_inputs is not None:
            finals = {name: np.array(array) for name, array in self._cut(final_inputs).items()}
            self._followers.append((t, next_alive != ALIVE, finals))
        self.env_steps += self._slots
        if executed is not None and self._overridden in ("keep", "mark"):
            self._put_executed(executed.actions, executed.overridden)
            executed = None
        if self._holes is None and (executed is not None or self._overridden == "only"):
            self._holes = self._make_holes()
        if self._holes is not None:
            self._add_outcome_with_holes(self._holes, rewards, next_alive, finals, executed)
        self.length = t + 1
        self._waiting = False
        if self.length < self._steps and not is_due:
            return None
        return self._take(next_inputs, absent_next)

    def get_state(self) -> dict[str, Any]:
        """Returns the unfinished rollout, not copied, and actions that wait for their outcome.

        All slots must have been present, and their actions must not have been overridden.
        """
        holes, length = self._holes, self.length
        is_present = holes is None or (not holes.absent.any() and holes.carried is None)
        assert is_present, "environments of this process are always present"
        stop = length + self._waiting
        if not stop:
            return {"starts": self._starts}
        return {
            # With `overridden` "only", rows are holes.
            **({} if holes is None else {"valid": holes.valid[:length]}),
            "inputs": {name: array[:stop] for name, array in self._inputs.items()},
            "actions": {name: array[:stop] for name, array in self._actions.items()},
            "log_prob": self._log_prob[:stop],
            "versions": self._versions[:stop],
            "next_alive": self._next_alive[:length],
            "rewards": self._rewards[:length],
            "states": self._states,
            "followers": [list(follower) for follower in self._followers],
            "starts": self._starts,
            "history": self._history,
            "joined": self._joined,
            "newest": list(self._newest),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; the buffer must be empty."""
        self._starts = np.array(state["starts"])
        if "inputs" not in state:
            return
        inputs, actions, rewards = state["inputs"], state["actions"], state["rewards"]
        self._history = dict(state["history"])
        self._joined = {name: int(number) for name, number in state["joined"].items()}
        self._allocate(
            {name: array[0] for name, array in inputs.items()},
            {name: array[0] for name, array in actions.items()},
        )
        self._rewards = np.empty((self._steps, *rewards.shape[1:]), np.float32)
        self._newest = tuple(state["newest"])
        length = self.length = len(state["next_alive"])
        stop = len(state["log_prob"])
        self._waiting = stop > length
        for name, array in inputs.items():
            self._inputs[name][:stop] = array
        for name, array in actions.items():
            self._actions[name][:stop] = array
        self._log_prob[:stop] = state["log_prob"]
        self._versions[:stop] = state["versions"]
        self._next_alive[:length] = state["next_alive"]
        if len(rewards):
            self._rewards[:length] = rewards
        else:
            self._rewards = rewards
        self._states = dict(state["states"])
        self._followers = [(int(t), mask, dict(arrays)) for t, mask, arrays in state["followers"]]
        self.env_steps = (length - self._overlap) * self._slots
        if "valid" in state:
            self._holes = self._make_holes()
            self._holes.valid[:length] = state["valid"]

    def discard(self) -> int:
        """Discards the unfinished rollout; returns its number of complete steps per slot."""
        length, self.length, self._waiting = self.length, 0, False
        self._followers = []
        self._holes = None
        self.env_steps = 0
        if length:
            self._starts = find_next_starts(self._starts, self._next_alive[:length])
        return max(length - self._overlap, 0)

    def _put_first(self, next_alive: np.ndarray, rewards: np.ndarray | None) -> None:
        """Stores the newest row again, as the first one of an empty rollout.

        Args:
          next_alive: of the row, [k].
          rewards: of the row, [k, r]; None: zeros, as many as the next row has.
        """
        inputs, actions, log_prob, states, version, joined = self._newest
        self._overlap = False  # until it is stored
        self.add_actions(inputs, actions, log_prob, states, version, joined)
        self._overlap = True
        self._waiting = False
        self._next_alive[0] = next_alive
        self._rewards = np.empty((0, self._slots, 1), np.float32)
        if rewards is not None:
            self._rewards = np.empty((self._steps, *rewards.shape), np.float32)
            self._rewards[0] = rewards
        self.length = 1

    def _allocate(self, inputs: Arrays, actions: Arrays) -> None:
        steps, slots = self._steps, self._slots
        # One additional row for the observation after the last step.
        self._inputs = {k: np.empty((steps + 1, *a.shape), a.dtype) for k, a in inputs.items()}
        self._actions = {k: np.empty((steps, *a.shape), a.dtype) for k, a in actions.items()}
        self._log_prob = np.empty((steps, slots), np.float32)
        self._next_alive = np.empty((steps, slots), np.float32)
        self._versions = np.empty(steps, np.int64)
        self._marks = np.zeros((steps, slots), np.float32)
        self._followers = []

    def _cut(self, inputs: Arrays) -> Arrays:
        """Returns the inputs; of those that are joined, only the newest observation."""
        if not self._joined:
            return inputs
        return {
            name: array[..., -(array.shape[-1] // self._joined.get(name, 1)) :]
            for name, array in inputs.items()
        }

    def _take(self, next_inputs: Arrays, absent_next: np.ndarray | None) -> Rollout:
        next_inputs, length = self._cut(next_inputs), self.length
        for name, array in self._inputs.items():
            array[length] = next_inputs.get(name, array[length - 1])
        if self._holes is None and (absent_next is not None or length < self._steps):
            self._holes = self._make_holes()
        if self._holes is not None:
            absent = np.zeros(self._slots, np.bool_) if absent_next is None else absent_next
            self._note_return(self._holes, absent, length)
            self._carry(self._holes, absent)
            self._fill_rest(self._holes)
        rollout = Rollout(
            inputs={name: array[:-1] for name, array in self._inputs.items()},
            next_inputs={name: self._shift(name) for name in self._inputs},
            next_alive=self._next_alive,
            rewards=self._rewards,
            actions=self._actions,
            log_prob=self._log_prob,
            states=self._states,
            versions=self._versions,
            valid=None if self._holes is None else self._holes.valid,
            starts=self._starts,
            extras={OVERRIDDEN: self._marks} if self._overridden == "mark" else {},
            history=self._history,
        )
        self.newest_env_steps, self.env_steps = self.env_steps, 0
        if self._holes is not None:
            self._holes = self._holes.make_next()
        self._starts = find_next_starts(self._starts, self._next_alive[: length - self._overlap])
        self._inputs = {}
        self.length = 0
        if self._overlap:
            finals = [(0, slots, x) for t, slots, x in self._followers if t == length - 1]
            self._put_first(rollout.next_alive[-1], rollout.rewards[-1])
            self._followers += finals
        return rollout

    def _shift(self, name: str) -> np.ndarray:
        array = self._inputs[name][1:]
        if not self._followers:
            return array
        array = array.copy()
        for t, slots, following in self._followers:
            array[t, slots] = following.get(name, self._inputs[name][t])[slots]
        return array

    # Holes.

    def _make_holes(self) -> "_Holes":
        """Returns the holes of a rollout that had none so far."""
        t = self.length
        last_rows = np.full(self._slots, -1)
        if t:
            last_rows[self._next_alive[t - 1] == ALIVE] = t - 1
        states = {name: np.array(array) for name, array in self._states_before.items()}
        return _Holes(np.ones((self._steps, self._slots), np.bool_), last_rows, states)

    def _note_absent(self, holes: "_Holes", absent: np.ndarray) -> None:
        """Records the slots that are absent from the row that `add_actions` has just stored."""
        t = self.length
        holes.absent = absent
        holes.valid[t] = ~absent
        if t == 0 and holes.carried is not None:
            self._place_carried(holes, holes.carried)
        self._note_return(holes, absent, t)

    def _note_return(self, holes: "_Holes", absent: np.ndarray, t: int) -> None:
        """Records what follows the last row of each slot that is present again in row t."""
        back = ~absent & (holes.last_rows >= 0) & (holes.last_rows < t - 1)
        for row in np.unique(holes.last_rows[back]):
            slots = back & (holes.last_rows == row)
            seen = {name: np.array(array[t]) for name, array in self._inputs.items()}
            self._followers.append((int(row), slots, seen))

    def _place_carried(self, holes: "_Holes", carried: "_Carried") -> None:
        slots = carried.slots & holes.absent
        for stored, arrays in ((self._inputs, carried.inputs), (self._actions, carried.actions)):
            for name, array in arrays.items():
                stored[name][0, slots] = array[slots]
        for name, array in carried.states.items():
            self._states[name][slots] = array[slots]
        self._log_prob[0, slots] = carried.log_prob[slots]
        self._versions[0] = min(self._versions[0], carried.version)
        holes.valid[0, slots] = True
        holes.last_rows[slots] = 0

    def _add_outcome_with_holes(
        self,
        holes: "_Holes",
        rewards: np.ndarray,
        next_alive: np.ndarray,
        finals: Arrays,
        executed: Executed | None,
    ) -> None:
        t, absent, last_rows = self.length, holes.absent, holes.last_rows
        ended = next_alive != ALIVE
        self.env_steps -= int(absent.sum())
        if absent.any():
            self._rewards[t, absent] = 0.0
            if t == 0 and holes.carried is not None:
                slots = holes.carried.slots & absent
                self._rewards[0, slots] = holes.carried.rewards[slots]
            waiting = np.flatnonzero(absent & (last_rows >= 0))
            rows = last_rows[waiting]
            self._rewards[rows, waiting] += rewards[waiting]
            self._next_alive[t, waiting] = ALIVE
            # Afterwards, because a row that was carried is row t.
            self._next_alive[rows, waiting] = next_alive[waiting]
            for row, slot in zip(rows, waiting, strict=True):
                if ended[slot] and finals:
                    self._followers.append((int(row), np.arange(len(ended)) == slot, dict(finals)))
        played = ~absent
        if self._overridden == "only":
            holes.valid[t] = False
        if executed is not None:
            overridden = executed.overridden & played
            played &= ~self._take_executed(holes, executed.actions, overridden)
        last_rows[played] = t
        last_rows[ended] = -1
        holes.carried = None

    def _put_executed(self, actions: Arrays, overridden: np.ndarray) -> None:
        """Replaces actions of the current row that were overridden by those that were executed."""
        t = self.length
        for name, array in actions.items():
            self._actions[name][t, overridden] = array[overridden]
        self._log_prob[t, overridden] = 0.0
        self._marks[t, overridden] = 1.0

    def _take_executed(
        self, holes: "_Holes", actions: Arrays, overridden: np.ndarray
    ) -> np.ndarray:
        """Stores the actions that were executed; returns the slots whose trace is cut."""
        t = self.length
        self._put_executed(actions, overridden)
        if self._overridden == "only":
            holes.valid[t] = overridden
            return np.zeros_like(overridden)
        holes.valid[t, overridden] = False
        slots = np.flatnonzero(overridden & (holes.last_rows >= 0))
        rows = holes.last_rows[slots]
        self._next_alive[rows, slots] = TRUNCATED
        row = self._next_alive[t]
        row[overridden & (row == ALIVE)] = TRUNCATED
        holes.last_rows[overridden] = -1
        # The trace after it begins with an empty memory.
        begins = overridden & ~holes.valid[:t].any(0)
        for array in self._states.values():
            array[begins] = 0.0
        return overridden

    def _fill_rest(self, holes: "_Holes") -> None:
        """Makes the missing rows of a rollout holes."""
        length = self.length
        holes.valid[length:] = False
        self._versions[length:] = self._versions[length - 1]
        self._next_alive[length:] = ALIVE
        for array in self._inputs.values():
            array[length + 1 :] = 0
        for array in (self._rewards, self._log_prob, *self._actions.values()):
            array[length:] = 0

    def _carry(self, holes: "_Holes", absent_next: np.ndarray) -> None:
        """Moves rows to the next rollout: those of absent slots whose episode continues."""
        holes.carried = None
        slots = absent_next & (holes.last_rows >= 0)
        if self._overridden == "only" or not slots.any():  # cloning does not need successors
            return
        rows, all_slots = np.maximum(holes.last_rows, 0), np.arange(self._slots)
        holes.carried = _Carried(
            slots=slots,
            inputs={name: array[rows, all_slots] for name, array in self._inputs.items()},
            actions={name: array[rows, all_slots] for name, array in self._actions.items()},
            log_prob=self._log_prob[rows, all_slots],
            rewards=self._rewards[rows, all_slots],
            states={name: np.array(array) for name, array in holes.states.items()},
            version=int(self._versions[rows[slots]].min()),
        )
        holes.valid[rows[slots], np.flatnonzero(slots)] = False


class _Carried(NamedTuple):
    """Rows of the previous rollout, one per slot; only those of `slots` count.

    Attributes:
      slots: [k] bool.
      inputs: name -> [k, ...].
      actions: name -> [k, ...].
      log_prob: [k].
      rewards: [k, r].
      states: name -> [k, ...].
      version: the oldest that acted in these rows.
    """

    slots: np.ndarray
    inputs: Arrays
    actions: Arrays
    log_prob: np.ndarray
    rewards: np.ndarray
    states: Arrays
    version: int


class _Holes:
    """The rows of the unfinished rollout that are learned from, and the state for this.

    Attributes:
      valid: [T, k] bool.
      absent: [k] bool, from the newest row.
      last_rows: [k], the newest row of each slot, to which its next reward or observation belongs;
        -1: there is none.
      states: name -> [k, ...], the memory before the newest row in which each slot took part.
      carried: rows from the previous rollout; None: there are none.
    """

    def __init__(self, valid: np.ndarray, last_rows: np.ndarray, states: dict[str, np.ndarray]):
        self.valid = valid
        self.absent = np.zeros(valid.shape[1], np.bool_)
        self.last_rows = last_rows
        self.states = states
        self.carried: _Carried | None = None

    def keep_states(self, states: Arrays) -> None:
        """Stores the memory before the newest row, for the slots that are not absent from it."""
        present = ~self.absent
        for name, array in states.items():
            if name in self.states:
                self.states[name][present] = array[present]
            else:
                self.states[name] = np.array(array)

    def make_next(self) -> "_Holes":
        """Returns the holes of the next rollout."""
        last_rows = np.full_like(self.last_rows, -1)
        following = _Holes(np.ones_like(self.valid), last_rows, self.states)
        following.carried = self.carried
        return following


# The axes of a rollout's arrays: rows `[T, k, ...]`, slots `[k, ...]`, history `[n - 1, k, ...]`.
# The remaining field is `versions`, `[T]`.
ROWS = ("inputs", "next_inputs", "next_alive", "rewards", "actions", "log_prob", "valid", "extras")
SLOTS = ("states", "starts")
HISTORY = ("history",)
VERSIONS = ("versions",)


def combine(
    rollouts: Sequence[Rollout],
    *,
    rows: Callable[..., np.ndarray],
    slots: Callable[..., np.ndarray],
    history: Callable[..., np.ndarray],
    versions: Callable[..., np.ndarray],
) -> Rollout:
    """Makes one rollout of one or several that have the same arrays.

    Each function makes an array from those of all rollouts, which are its arguments. `starts` are
    left out if they are unknown in one of them, and `valid` if all rows are valid in each.
    """
    made: dict[str, Any] = {}
    for names, join in ((ROWS, rows), (SLOTS, slots), (HISTORY, history), (VERSIONS, versions)):
        for name in names:
            parts = [getattr(rollout, name) for rollout in rollouts]
            if name == "valid" and any(part is not None for part in parts):
                parts = [get_valid(rollout) for rollout in rollouts]
            if any(part is None for part in parts):
                made[name] = None
            elif isinstance(parts[0], Mapping):
                made[name] = {key: join(*(part[key] for part in parts)) for key in parts[0]}
            else:
                made[name] = join(*parts)
    return Rollout(**made)


def concatenate(rollouts: Sequence[Rollout]) -> Rollout:
    """Joins rollouts of the same length side by side: `[T, k1 + k2 + ..., ...]`.

    `versions` are those of the oldest values that acted at each step. A single rollout is returned
    itself.
    """
    if len(rollouts) == 1:
        return rollouts[0]

    def join(*arrays: np.ndarray) -> np.ndarray:
        return np.concatenate(arrays, 1)

    return combine(
        rollouts,
        rows=join,
        slots=lambda *arrays: np.concatenate(arrays),
        history=join,
        versions=lambda *arrays: np.min(arrays, axis=0),
    )


def slice_slots(rollout: Rollout, start: int, stop: int) -> Rollout:
    """Returns the slots `start` to `stop - 1`, as views."""

    def cut(array: np.ndarray) -> np.ndarray:
        return array[:, start:stop]

    return combine(
        [rollout],
        rows=cut,
        slots=lambda array: array[start:stop],
        history=cut,
        versions=lambda array: array,
    )


def slice_steps(rollout: Rollout, slot: int, start: int, stop: int) -> Rollout:
    """Returns the steps `start` to `stop - 1` of one slot, `[stop - start, 1, ...]`, as views.

    If `start` is not 0, it must be the first step of an episode, where the memory is zero.
    """
    column = slice(slot, slot + 1)
    part = combine(
        [rollout],
        rows=lambda array: array[start:stop, column],
        slots=lambda array: array[column],
        history=lambda array: array[:, column],
        versions=lambda array: array[start:stop],
    )
    if not start:
        return part
    starts = part.starts
    if starts is not None:
        ends = np.count_nonzero(rollout.next_alive[:start, slot] != ALIVE)
        starts = np.array([[starts[0, 0], starts[0, 1] + ends, 0]])
    return dataclasses.replace(
        part,
        states={name: np.zeros_like(array) for name, array in part.states.items()},
        starts=starts,
        history={
            name: np.repeat(part.inputs[name][:1], len(array), 0)
            for name, array in part.history.items()
        },
    )


def stack_history(rollout: Rollout) -> Rollout:
    """Returns a rollout whose inputs are joined with earlier observations, as the model sees them.

    Vectors `[T, k, d]` become `[T, k, n * d]`, images `[T, k, h, w, c]` become `[T, k, h, w, n *
    c]`, oldest first. At the start of an episode, its first observation replaces those before it;
    see `agent.history.ObservationHistory`.
    """
    if not rollout.history:
        return rollout
    ended = rollout.next_alive != ALIVE
    rows = np.arange(len(ended) + 1)[:, None]
    begins = np.concatenate([np.zeros((1, rollout.slots), np.bool_), ended])
    # The row where the episode of each row began; far below 0 if that was before the rollout.
    first_rows = np.maximum.accumulate(np.where(begins, rows, np.iinfo(np.int64).min), 0)
    slots = np.arange(rollout.slots)
    inputs, next_inputs = dict(rollout.inputs), dict(rollout.next_inputs)
    for name, history in rollout.history.items():
        newest, following = rollout.inputs[name], rollout.next_inputs[name]
        before, depth = len(history), newest.shape[-1]
        frames = np.concatenate([history, newest, following[-1:]])
        stacked = np.empty((*rows.shape[:1], *newest.shape[1:-1], before + 1, depth), frames.dtype)
        for place, age in enumerate(range(before, -1, -1)):
            stacked[..., place, :] = frames[before + np.maximum(rows - age, first_rows), slots]
        after = stacked[1:]
        # The observation after a row is usually that of the next row.
        others = ended.copy()
        axes = tuple(range(2, newest.ndim))
        others[:-1] |= (following[:-1] != newest[1:]).any(axes)
        if others.any():
            after = after.copy()
            after[others, ..., :-1, :] = stacked[:-1][others][..., 1:, :]
            after[others, ..., -1, :] = following[others]
        inputs[name] = stacked[:-1].reshape(*newest.shape[:-1], -1)
        next_inputs[name] = after.reshape(*newest.shape[:-1], -1)
    return dataclasses.replace(rollout, inputs=inputs, next_inputs=next_inputs, history={})


def _split(joined: np.ndarray, number: int) -> np.ndarray:
    """Returns all but the newest of the observations in `[k, ..., n * d]`, `[n - 1, k, ..., d]`."""
    parts = joined.reshape(*joined.shape[:-1], number, -1)
    return np.array(np.moveaxis(parts[..., :-1, :], -2, 0))


def get_valid(rollout: Rollout) -> np.ndarray:
    """Returns `valid` as an array, `[T, k] bool`."""
    if rollout.valid is None:
        return np.ones(rollout.next_alive.shape, np.bool_)
    return rollout.valid


def make_agent_ids(name: str, slots: int) -> np.ndarray:
    """Returns a number for each slot of an agent, `[k] int64`, the first of `Rollout.starts`.

    Args:
      name: of the agent; unique in the run.
      slots: k.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    first = int.from_bytes(digest, "big") >> 1
    return (first + np.arange(slots)) & np.iinfo(np.int64).max


def find_episodes(starts: np.ndarray, next_alive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the episode of each row, and its step in the episode, `[T, k] int64` each.

    Args:
      starts: of the rollout, `[k, 3]`.
      next_alive: of the rollout, `[T, k]`.
    """
    begins = np.zeros(next_alive.shape, np.bool_)
    begins[1:] = next_alive[:-1] != ALIVE
    rows = np.arange(len(next_alive))[:, None]
    # The row where the episode of each row began, or the rollout.
    first_rows = np.maximum.accumulate(np.where(begins, rows, 0))
    episodes = starts[:, 1] + np.cumsum(begins, 0)
    return episodes, np.where(first_rows > 0, rows - first_rows, starts[:, 2] + rows)


def find_next_starts(starts: np.ndarray, next_alive: np.ndarray) -> np.ndarray:
    """Returns `starts` of the next rollout, `[k, 3] int64`.

    Args:
      starts: of this rollout, `[k, 3]`.
      next_alive: of this rollout, `[T, k]`.
    """
    ended = next_alive != ALIVE
    following = starts.copy()
    following[:, 2] += len(ended)
    if ended.any():
        counts = ended.sum(0)
        following[:, 1] += counts
        # Rows after the last end.
        following[:, 2] = np.where(counts > 0, ended[::-1].argmax(0), following[:, 2])
    return following
