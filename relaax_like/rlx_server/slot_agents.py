"""What a session needs of its agents: plain ones, which answer themselves, or batch-native ones."""

import abc
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from relaax_like.core.prediction import Prediction, Request
from relaax_like.rlx_server.transition import Transition
from relaax_like.wire.errors import RelaaxError

# Optional parts of the protocol that not all agents can use; see Hello.features.
PRESENT, EXECUTED = "present", "executed"


class Decision(NamedTuple):
    """The agents' answer to one step.

    Attributes:
      actions: leaf -> [k, ...] in the leaf's dtype; None when every slot has ended.
      finished: what ended the training, or "".
      version: of the weights that chose the actions.
    """

    actions: Mapping[str, np.ndarray] | None
    finished: str
    version: int


class AgentFailure(RelaaxError):
    """A user's agent raised, or its answer was not a valid action."""


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
        """Takes what happened and returns the next actions."""

    @abc.abstractmethod
    def close(self) -> None:
        """Discards unfinished episodes and releases resources."""


class BatchAgents(abc.ABC):
    """Agents whose predictions are made together with those of other sessions. Nothing blocks.

        agents.observe(transition)
        if agents.ready: decision = agents.decide(prediction_of(agents.request()))

    Attributes:
      ready: False while a rollout is being learned from; `on_ready` is called when that is over.
      discarded_steps: environment steps that were not learned from, as no learner was ready.
      unsupported: feature of the protocol -> why these agents cannot use it.
    """

    ready: bool
    discarded_steps: int
    unsupported: Mapping[str, str]

    @abc.abstractmethod
    def observe(self, transition: Transition) -> None:
        """Takes what happened."""

    @abc.abstractmethod
    def request(self) -> Request | None:
        """Returns the rows that need actions; None when every slot has ended, or at the end."""

    @abc.abstractmethod
    def decide(self, prediction: Prediction | None) -> Decision | None:
        """Turns the prediction for `request` (None for None) into the answer.

        Returns:
          None when another task must be asked first: `request` returns which.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Discards unfinished rollouts and releases resources."""


SlotAgents = PlainAgents | BatchAgents
