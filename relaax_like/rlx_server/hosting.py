"""Builds the agents of a session from the experiment's algorithm folder."""

import abc
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from relaax_like.agent.agent import Agent
from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.agent.history import ObservationHistory
from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.service import ParameterServerClient
from relaax_like.computation.data_processor import ComputationDataProcessor
from relaax_like.computation.prediction import TASK, Prediction, Request
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.exploit import ReadOnlyClient
from relaax_like.rlx_server.plain_slots import PlainSlots
from relaax_like.rlx_server.session import Greeting
from relaax_like.rlx_server.slot_agents import SlotAgents
from relaax_like.wire.errors import (
    InvalidInputError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.spaces import Spaces

_START_WAIT_SEC = 5.0
_VERBS = ("act", "reward_and_act", "reward_and_reset")


class AgentHost(abc.ABC):
    """Makes the agents that serve a client."""

    def make_agents(self, greeting: Greeting) -> SlotAgents:
        """Builds the agents of a greeted client; see `make_slot_agents`."""
        return self.make_slot_agents(
            greeting.observation_spaces,
            greeting.action_spaces,
            greeting.slots,
            client_id=make_client_id(greeting.client_name),
            exploit=greeting.exploit,
        )

    @abc.abstractmethod
    def make_slot_agents(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        slots: int,
        *,
        client_id: str,
        exploit: bool = False,
    ) -> SlotAgents:
        """Builds the agents of k slots.

        Args:
          observation_spaces: leaf -> space.
          action_spaces: leaf -> space.
          slots: k.
          client_id: of the agents.
          exploit: best actions, nothing learned.

        Raises:
          ProtocolError: SPACE_MISMATCH, when the algorithm cannot use the spaces.
          ServerUnavailableError: the parameter server cannot be reached.
        """

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers the requests of batch-native agents; plain ones have none."""
        raise NotImplementedError("plain agents ask for no predictions")

    def close(self) -> None:  # noqa: B027 - optional
        """Lets go of what the agents share."""


class BatchHost(AgentHost):
    """Makes batch-native agents, which share one model, one processor and one set of values.

    Args:
      config: the algorithm's `Config`; names `rollout_steps`.
      make_processor: opens the shared processor, on the first client; not started yet.
      rollouts_ahead: see `OnlineHelper`.

    Attributes:
      on_ready: called, from any thread, when an agent that waited can go on.
    """

    def __init__(
        self,
        config: Any,
        make_processor: Callable[[], ComputationDataProcessor],
        rollouts_ahead: int = 0,
    ):
        self._config = config
        self._rollouts_ahead = rollouts_ahead
        self._make_processor = make_processor
        self._lock = threading.Lock()  # guards the making of _processor
        self._processor: ComputationDataProcessor | None = None
        self.on_ready: Callable[[], None] = lambda: None

    def make_slot_agents(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        slots: int,
        *,
        client_id: str,
        exploit: bool = False,
    ) -> SlotAgents:
        """Builds one agent for all slots."""
        _validate_spaces(self._config, observation_spaces, action_spaces)
        processor = self._get_processor()

        def make_agent(on_ready: Callable[[], None]) -> BatchAgent:
            helper = OnlineHelper(
                processor,
                slots,
                self._config.rollout_steps,
                ahead=self._rollouts_ahead,
                on_learned=on_ready,
            )
            return SimpleRLAgent({TASK: helper}, slots, learning=not exploit)

        length = self._config.observation_history
        history = ObservationHistory(length, slots) if length > 1 else None
        shapes = {
            name: (*shape[:-1], shape[-1] // length) if history else shape
            for name, shape in processor.input_shapes.items()
        }
        return BatchSlots(
            make_agent,
            processor,
            action_spaces,
            shapes,
            lambda: self.on_ready(),
            exploit,
            history,
        )

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers the requests of all agents in one call."""
        assert self._processor is not None
        return self._processor.predict(requests)

    def close(self) -> None:
        """Stops learning, after the gradient at hand."""
        if self._processor is not None:
            self._processor.stop()

    def _get_processor(self) -> ComputationDataProcessor:
        # Hellos must not queue up behind each other while the parameter server is away.
        if not self._lock.acquire(timeout=_START_WAIT_SEC):
            raise ServerUnavailableError("the parameter server has not answered yet; come back")
        try:
            if self._processor is None:
                processor = self._make_processor()
                processor.start()
                self._processor = processor
            processor = self._processor
        finally:
            self._lock.release()
        if processor.finished:
            # The parameter server may have been started anew since, with a larger budget.
            refreshed = threading.Event()
            processor.refresh(refreshed.set)
            refreshed.wait(_START_WAIT_SEC)
        return processor


class PlainHost(AgentHost):
    """Makes plain agents, an instance and a view of the parameter server for each slot.

    Args:
      config: the algorithm's `Config`.
      agent_class: the algorithm folder's `Agent(config, parameter_server)`.
      make_client: opens one more agent's view of the parameter server from its client id.
    """

    def __init__(
        self,
        config: Any,
        agent_class: Callable[[Any, ParameterServerClient], Any],
        make_client: Callable[[str], ParameterServerClient],
    ):
        _validate_agent_class(agent_class)
        self._config = config
        self._agent_class = agent_class
        self._make_client = make_client

    def make_slot_agents(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        slots: int,
        *,
        client_id: str,
        exploit: bool = False,
    ) -> SlotAgents:
        """Builds one plain agent per slot."""
        _validate_spaces(self._config, observation_spaces, action_spaces)
        clients = [self._make_client(f"{client_id}-{slot}") for slot in range(slots)]
        if exploit:
            clients = [ReadOnlyClient(client) for client in clients]

        def make_agent(client: ParameterServerClient) -> Any:
            agent = self._agent_class(self._config, client)
            agent.exploit = exploit
            return agent

        return PlainSlots(make_agent, clients, observation_spaces, action_spaces)


def _validate_spaces(config: Any, observation_spaces: Spaces, action_spaces: Spaces) -> None:
    try:
        config.validate_spaces(observation_spaces, action_spaces)
    except InvalidInputError as error:
        raise ProtocolError(str(error), "SPACE_MISMATCH", error.field) from error


def _validate_agent_class(agent_class: Any) -> None:
    name = getattr(agent_class, "__name__", repr(agent_class))
    missing = [verb for verb in _VERBS if not callable(getattr(agent_class, verb, None))]
    if missing:
        raise RelaaxError(f"class {name} has no {', '.join(missing)}: an Agent needs {_VERBS}")
    if inspect.isabstract(agent_class) and issubclass(agent_class, Agent):
        raise RelaaxError(f"class {name} does not implement all of {_VERBS}")
