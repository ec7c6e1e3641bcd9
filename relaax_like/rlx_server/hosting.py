"""Builds the agents of a session from the experiment's algorithm folder."""

import inspect
from collections.abc import Callable
from typing import Any

from relaax_like.agent.agent import Agent
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.service import ParameterServerClient
from relaax_like.rlx_server.exploit import ReadOnlyClient
from relaax_like.rlx_server.plain_slots import PlainSlots
from relaax_like.rlx_server.session import Greeting
from relaax_like.rlx_server.slot_agents import SlotAgents
from relaax_like.wire.errors import InvalidInputError, ProtocolError, RelaaxError
from relaax_like.wire.spaces import Spaces

_VERBS = ("act", "reward_and_act", "reward_and_reset")


class AgentHost:
    """Makes the agents that serve a client.

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

    def make_agents(self, greeting: Greeting) -> SlotAgents:
        """Builds the agents of a greeted client; see `make_slot_agents`."""
        return self.make_slot_agents(
            greeting.observation_spaces,
            greeting.action_spaces,
            greeting.slots,
            client_id=make_client_id(greeting.client_name),
            exploit=greeting.exploit,
        )

    def make_slot_agents(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        slots: int,
        *,
        client_id: str,
        exploit: bool = False,
    ) -> SlotAgents:
        """Builds one plain agent per slot.

        Args:
          observation_spaces: leaf -> space.
          action_spaces: leaf -> space.
          slots: k.
          client_id: of the agents; each adds the number of its slot.
          exploit: best actions, nothing learned.

        Raises:
          ProtocolError: SPACE_MISMATCH, when the algorithm cannot use the spaces.
          ServerUnavailableError: the parameter server cannot be reached.
        """
        try:
            self._config.validate_spaces(observation_spaces, action_spaces)
        except InvalidInputError as error:
            raise ProtocolError(str(error), "SPACE_MISMATCH", error.field) from error
        clients = [self._make_client(f"{client_id}-{slot}") for slot in range(slots)]
        if exploit:
            clients = [ReadOnlyClient(client) for client in clients]

        def make_agent(client: ParameterServerClient) -> Any:
            agent = self._agent_class(self._config, client)
            agent.exploit = exploit
            return agent

        return PlainSlots(make_agent, clients, observation_spaces, action_spaces)


def _validate_agent_class(agent_class: Any) -> None:
    name = getattr(agent_class, "__name__", repr(agent_class))
    missing = [verb for verb in _VERBS if not callable(getattr(agent_class, verb, None))]
    if missing:
        raise RelaaxError(f"class {name} has no {', '.join(missing)}: an Agent needs {_VERBS}")
    if inspect.isabstract(agent_class) and issubclass(agent_class, Agent):
        raise RelaaxError(f"class {name} does not implement all of {_VERBS}")
