"""One client's k slots: what agents that can block have in common with those that never do."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from relaax_like.core.prediction import Prediction, Request
from relaax_like.experience.ranges import UNWATCHED, Ranges
from relaax_like.rlx_server.greeting import EXECUTED, MASKS, PRESENT
from relaax_like.rlx_server.transition import EndedEpisode, ReceivedStep
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.spaces import ACTION, OBSERVATION, Spaces


class SlotSpec(NamedTuple):
    """The slots that agents are made for.

    Attributes:
      observation_spaces: leaf -> space, with those of masks.
      action_spaces: leaf -> space.
      slots: k.
      client_id: of the agents.
      exploit: choose the best actions; learn nothing.
      max_wait_sec: longest time from a step to its answer; None: no limit.
      is_pinged: whether the client waits for its agents as long as it is pinged.
      draws: whether those that exploit draw their actions all the same.
      agents: name of the agent in each slot; (): they have none.
      kinds: of each slot; see `Hello.kinds`.
    """

    observation_spaces: Spaces
    action_spaces: Spaces
    slots: int
    client_id: str
    exploit: bool = False
    max_wait_sec: float | None = None
    is_pinged: bool = False
    draws: bool = False
    agents: Sequence[str] = ()
    kinds: Sequence[str] = ()


class Decision(NamedTuple):
    """The agents' answer to one step.

    Attributes:
      actions: leaf -> [k, ...] in the leaf's dtype; None if every slot or the training has ended.
      finished: what ended the training; "": it has not ended.
      version: of the weights that chose the actions.
      versions: the same for each slot, `[k]`; None: all have the same.
    """

    actions: Mapping[str, np.ndarray] | None
    finished: str
    version: int
    versions: np.ndarray | None = None


class AgentFailure(RelaaxError):
    """A user's agent raised an error, or its answer was not a valid action."""


class Slots(abc.ABC):
    """Counts the episodes of k slots, and lets their agents act.

        slots.observe(slots.count(transition))
        decision = None
        while decision is None:  # once slots.ready
            decision = slots.decide(prediction_of(slots.request()))

    Attributes:
      blocking: whether `decide` runs the agents' own code, which can block; then there are no
        requests.
      unsupported: feature of the protocol -> why these agents cannot use it.
      policies: of each slot; (): the run has only one.

    Args:
      slots: k.
      ranges: watch observations and executed actions; closed with the agents.
    """

    blocking = True
    policies: Sequence[str] = ()
    unsupported: Mapping[str, str] = dict.fromkeys(
        (PRESENT, EXECUTED, MASKS), "the agents of this algorithm run their own code (agent.py)"
    )

    def __init__(self, slots: int, ranges: Ranges = UNWATCHED):
        self._ranges = ranges
        self._transition: ReceivedStep | None = None
        self._returns = np.zeros(slots)
        self._steps = 0
        self._began = np.zeros(slots, np.int64)  # steps before each episode
        self._absent: np.ndarray | None = None  # from the newest step

    @property
    def remembers(self) -> bool:
        """Whether actions can depend on earlier steps of an episode."""
        return True

    @property
    def ready(self) -> bool:
        """Whether the newest step can be answered now."""
        return True

    @property
    def discarded_steps(self) -> int:
        """Environment steps that were not learned from because no learner was ready."""
        return 0

    @property
    def unfinished_steps(self) -> int:
        """Environment steps of rollouts that are not complete yet, which `close` discards."""
        return 0

    @property
    def unfinished_episodes(self) -> tuple[int, int]:
        """Number of episodes with at least one step that have not ended, and their total steps."""
        lengths = self._steps - self._began
        return int((lengths > 0).sum()), int(lengths.sum())

    def count(self, transition: ReceivedStep) -> ReceivedStep:
        """Adds the outcome of a step; returns the step with the episodes that ended in it."""
        rewards, absent, self._absent = transition.rewards, self._absent, transition.absent
        if rewards is None:
            return transition
        self._returns += rewards[:, 0] if rewards.shape[1] == 1 else rewards.sum(axis=1)
        self._steps += 1
        if absent is not None:
            self._began[absent] += 1  # the step is not one of their episodes
        if transition.ended is None:
            return transition
        slots = np.flatnonzero(transition.ended)
        episodes = tuple(
            EndedEpisode(int(s), float(self._returns[s]), self._steps - int(self._began[s]))
            for s in slots
        )
        self._returns[slots] = 0.0
        self._began[slots] = self._steps
        return transition._replace(episodes=episodes)

    def get_counts(self) -> dict[str, Any]:
        """Returns the returns and lengths of the unfinished episodes, each `[k]`."""
        return {"returns": self._returns.copy(), "lengths": self._steps - self._began}

    def set_counts(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `get_counts` returned."""
        self._returns[:] = state["returns"]
        self._began[:] = self._steps - state["lengths"]

    def observe(self, transition: ReceivedStep) -> None:
        """Passes a step to the agents.

        Raises:
          ProtocolError, InvalidInputError, Exception: see the subclass.
        """
        self._transition = transition

    def request(self) -> Request | None:
        """Returns the rows that need actions; None if the step needs no prediction.

        Raises:
          Exception: see the subclass.
        """
        return None

    def decide(self, prediction: Prediction | None) -> Decision | None:
        """Returns the answer to the newest step; None if there is another request first.

        Raises:
          AgentFailure, Exception: see the subclass.
        """
        assert self._transition is not None
        return self.step(self._transition)

    def step(self, transition: ReceivedStep) -> Decision:
        """Answers a step, for agents that run their own code.

        Raises:
          AgentFailure, InvalidInputError, ServerUnavailableError: see `PlainSlots.step`.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def close(self) -> None:
        """Discards unfinished episodes and releases resources.

        Raises:
          Exception: see the subclass.
        """

    def _watch(self, transition: ReceivedStep) -> None:
        """Adds observations and executed actions to what is watched."""
        present = None if transition.absent is None else ~transition.absent
        self._ranges.add(OBSERVATION, transition.observations, present)
        if transition.ended is not None:
            self._ranges.add(OBSERVATION, transition.final_observations, transition.ended)
        if transition.executed is not None:
            self._ranges.add(ACTION, transition.executed, present)
