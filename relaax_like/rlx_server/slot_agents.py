"""The two interfaces of a session's agents: `PlainAgents` and `BatchAgents`."""

import abc
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from relaax_like.core.prediction import Prediction, Request
from relaax_like.experience.ranges import Ranges
from relaax_like.rlx_server.greeting import EXECUTED, PRESENT
from relaax_like.rlx_server.transition import Transition
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.spaces import ACTION, OBSERVATION


def watch_ranges(ranges: Ranges, transition: Transition) -> None:
    """Adds a transition's observations and executed actions to what is watched."""
    present = None if transition.absent is None else ~transition.absent
    ranges.add(OBSERVATION, transition.observations, present)
    if transition.ended is not None:
        ranges.add(OBSERVATION, transition.final_observations, transition.ended)
    ranges.add(ACTION, transition.executed, present)


class Decision(NamedTuple):
    """The agents' answer to one step.

    Attributes:
      actions: leaf -> [k, ...] in the leaf's dtype; None if every slot or the training has ended.
      finished: what ended the training; "": it has not ended.
      version: of the weights that chose the actions.
    """

    actions: Mapping[str, np.ndarray] | None
    finished: str
    version: int


class AgentFailure(RelaaxError):
    """A user's agent raised an error, or its answer was not a valid action."""


class PlainAgents(abc.ABC):
    """Agents that answer a step by themselves, and can block while they do.

    Attributes:
      unsupported: feature of the protocol -> why these agents cannot use it.
    """

    unsupported: Mapping[str, str] = dict.fromkeys(
        (PRESENT, EXECUTED), "the agents of this algorithm run their own code (agent.py)"
    )

    @abc.abstractmethod
    def step(self, transition: Transition) -> Decision:
        """Processes a transition and returns the next actions.

        Raises:
          AgentFailure, InvalidInputError, ServerUnavailableError: see `PlainSlots.step`.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Discards unfinished episodes and releases resources.

        Raises:
          Exception: see `PlainSlots.close`.
        """


class BatchAgents(abc.ABC):
    """Agents whose predictions are made together with those of other sessions. Nothing blocks.

        agents.observe(transition)
        if agents.ready: decision = agents.decide(prediction_of(agents.request()))

    Attributes:
      ready: False while the agents must wait for the learner: until it has answered, which calls
        `AgentHost.on_ready`, or until their longest wait is over, which calls nothing.
      discarded_steps: environment steps that were not learned from because no learner was ready.
      unfinished_steps: those of rollouts that are not complete yet, which `close` discards.
      unsupported: feature of the protocol -> why these agents cannot use it.
    """

    ready: bool
    discarded_steps: int
    unfinished_steps: int = 0
    unsupported: Mapping[str, str]

    @abc.abstractmethod
    def observe(self, transition: Transition) -> None:
        """Processes a transition.

        Raises:
          Exception: see `BatchSlots.observe`.
        """

    @abc.abstractmethod
    def request(self) -> Request | None:
        """Returns the rows that need actions; None if every slot or the training has ended.

        Raises:
          Exception: an error of the agent's own code.
        """

    @abc.abstractmethod
    def decide(self, prediction: Prediction | None) -> Decision | None:
        """Converts the prediction for `request` to the answer.

        Args:
          prediction: None if `request` returned None.

        Returns:
          The answer; None if another task must be asked first: `request` returns which.

        Raises:
          AgentFailure: the model has an action that the client does not have.
          Exception: an error of the agent's own code.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Discards unfinished rollouts and releases resources.

        Raises:
          Exception: see `BatchSlots.close`.
        """


SlotAgents = PlainAgents | BatchAgents
