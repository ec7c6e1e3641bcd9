"""The slots of a client whose agents have several policies: each policy sees its own slots."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from relaax_like.core.prediction import Prediction, Request
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.slots import Decision, Slots
from relaax_like.rlx_server.transition import Arrays, ReceivedStep
from relaax_like.wire.spaces import Spaces


class Leaves(NamedTuple):
    """The leaves of a policy's slots: name in its own spaces -> name in those of the client.

    Attributes:
      observations: of observations and masks.
      actions: of actions.
    """

    observations: Mapping[str, str]
    actions: Mapping[str, str]


class PolicyPart(NamedTuple):
    """The slots of one policy.

    Attributes:
      policy: its name.
      rows: their numbers, increasing.
      leaves: that these slots have.
      slots: make their agents act.
      trains: whether the policy learns here.
    """

    policy: str
    rows: np.ndarray
    leaves: Leaves
    slots: BatchSlots
    trains: bool


class PolicySlots(Slots):
    """Splits the steps of k slots by policy, and joins the actions.

    The policies are asked one after the other. The training ends for the client when it has ended
    for all policies that learn; those whose own has ended before keep acting.

    Args:
      parts: the policies of the client; each slot is in one of them.
      slots: k.
      action_spaces: of the client.
    """

    blocking = False

    def __init__(self, parts: Sequence[PolicyPart], slots: int, action_spaces: Spaces):
        super().__init__(slots)
        self._parts = parts
        self._action_spaces = action_spaces
        self._slots = slots
        self._waiting: list[PolicyPart] = []
        self._decisions: dict[str, Decision] = {}
        self.unsupported: Mapping[str, str] = {
            feature: f"policy {part.policy}: {why}"
            for part in parts
            for feature, why in part.slots.unsupported.items()
        }
        # Row of each slot in its part.
        self._places = np.zeros(slots, np.int64)
        names = {row: part.policy for part in parts for row in part.rows}
        self.policies = [names[row] for row in range(slots)]
        for part in parts:
            self._places[part.rows] = np.arange(len(part.rows))
            part.slots.plays_on = True

    @property
    def remembers(self) -> bool:
        """See `Slots`."""
        return any(part.slots.remembers for part in self._parts)

    @property
    def ready(self) -> bool:
        """False while an agent of one of the policies must wait for its learner."""
        return all(part.slots.ready for part in self._parts)

    @property
    def discarded_steps(self) -> int:
        """See `Slots`."""
        return sum(part.slots.discarded_steps for part in self._parts)

    @property
    def unfinished_steps(self) -> int:
        """See `Slots`."""
        return sum(part.slots.unfinished_steps for part in self._parts)

    def observe(self, transition: ReceivedStep) -> None:
        """Passes each policy its rows of a step; see `BatchSlots.observe`, also for the errors."""
        for part in self._parts:
            part.slots.observe(self._select(part, transition))
        self._waiting = list(self._parts)
        self._decisions = {}

    def request(self) -> Request | None:
        """Returns the rows of the next policy that needs actions; None: no policy needs any."""
        while self._waiting:
            part = self._waiting[0]
            request = part.slots.request()
            if request is not None:
                return request._replace(algorithm=f"{part.policy}/{request.algorithm}")
            self._note(part, part.slots.decide(None))
        return None

    def decide(self, prediction: Prediction | None) -> Decision | None:
        """See `Slots`; takes the prediction of the policy that was asked last."""
        if prediction is not None:
            part = self._waiting[0]
            self._note(part, part.slots.decide(prediction))
        return None if self._waiting else self._join()

    def close(self) -> None:
        """Closes the agents of all policies, even if closing one fails."""
        with contextlib.ExitStack() as ends:
            for part in self._parts:
                ends.callback(part.slots.close)

    def _note(self, part: PolicyPart, decision: Decision | None) -> None:
        if decision is not None:
            self._decisions[part.policy] = decision
            del self._waiting[0]

    def _join(self) -> Decision:
        ends = [part.slots.finished for part in self._parts if part.trains]
        finished = ends[0] if ends and all(ends) else ""
        chosen = [(part, self._decisions[part.policy]) for part in self._parts]
        versions = np.zeros(self._slots, np.uint64)
        for part, decision in chosen:
            versions[part.rows] = decision.version
        if finished or any(decision.actions is None for _, decision in chosen):
            return Decision(None, finished, 0, versions)
        actions = {
            name: np.zeros((self._slots, *space.shape), space.dtype)
            for name, space in self._action_spaces.items()
        }
        for part, decision in chosen:
            assert decision.actions is not None
            for name, array in decision.actions.items():
                actions[part.leaves.actions[name]][part.rows] = array
        return Decision(actions, "", int(versions[0]), versions)

    def _select(self, part: PolicyPart, step: ReceivedStep) -> ReceivedStep:
        """Returns a policy's rows, under its own names of the leaves."""
        rows = part.rows

        def take(arrays: Arrays | None, leaves: Mapping[str, str]) -> Arrays | None:
            if arrays is None:
                return None
            return {name: arrays[leaf][rows] for name, leaf in leaves.items() if leaf in arrays}

        ended = _take_any(step.ended, rows)
        return ReceivedStep(
            observations=take(step.observations, part.leaves.observations),
            rewards=_take(step.rewards, rows),
            terminated=_take(step.terminated, rows),
            truncated=_take(step.truncated, rows),
            ended=ended,
            success=_take(step.success, rows),
            final_observations=(
                None if ended is None else take(step.final_observations, part.leaves.observations)
            ),
            episodes=tuple(
                one._replace(slot=int(self._places[one.slot]))
                for one in step.episodes
                if one.slot in rows
            ),
            step_id=step.step_id,
            absent=_take_any(step.absent, rows),
            executed=take(step.executed, part.leaves.actions),
            overridden=_take(step.overridden, rows),
        )


def _take(array: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if array is None else array[rows]


def _take_any(flags: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    """Returns the flags of the rows; None if none of them is set."""
    if flags is None or not (chosen := flags[rows]).any():
        return None
    return chosen
