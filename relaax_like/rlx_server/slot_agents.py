"""What a session's agents have in common; those of a `BatchSlots` never block."""

import abc
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

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
