"""What ends with a client's agents, and with a host, when one of them fails in it."""

import numpy as np
import pytest

from relaax_like.agent.batch_agent import SimpleRLAgent
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.plain_slots import PlainSlots
from relaax_like.rlx_server.session import Session
from relaax_like.rlx_server.slots import AgentFailure
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.wire.errors import InvalidInputError, NotAllowedError
from relaax_like.wire.spaces import Discrete


class Part:
    """Notes that it was closed, or stopped; can fail in it."""

    unfinished_episodes, unfinished_steps = (1, 5), 0

    def __init__(self, error=None):
        self.closed = 0
        self._error = error

    def close(self):
        self.closed += 1
        if self._error is not None:
            raise self._error

    stop = close

    def reward_and_reset(self, reward):
        """What an agent has."""


def test_an_agent_that_fails_in_its_close_keeps_no_other_from_it():
    agents = {0: Part(ValueError("first")), 1: Part(), 2: Part()}
    clients = [Part() for _ in agents]
    made = iter(agents.values())
    slots = PlainSlots(lambda client: next(made), clients, {}, {"action": Discrete(n=2)})
    with pytest.raises(ValueError, match="first"):
        slots.close()
    assert [part.closed for part in (*agents.values(), *clients)] == [1] * 6


def test_an_agent_that_cannot_be_made_leaves_nothing_open():
    agents, clients = [Part(ValueError("closing")), Part()], [Part() for _ in range(3)]
    made = iter(agents)

    def make_agent(client):
        agent = next(made, None)
        if agent is None:
            raise OSError("no third one")
        return agent

    with pytest.raises(OSError, match="no third one"):
        PlainSlots(make_agent, clients, {}, {"action": Discrete(n=2)})
    assert [part.closed for part in (*agents, *clients)] == [1] * 5


def test_a_recorder_that_fails_does_not_keep_a_session_from_closing(caplog):
    class Failing(Metrics):
        def scalar(self, name, y, x=None):
            raise OSError("disk full")

    session = Session("one", lambda greeting: None, Failing(), max_slots=1, max_message_bytes=1)
    session._slots = agents = Part()
    session.close()
    assert agents.closed == 1
    assert "a curve point of its session could not be recorded" in caplog.text


def test_a_report_that_fails_leaves_no_agents_open():
    def fail(event, client):
        raise OSError("broken pipe")

    metrics = NullMetrics()
    session = Session("one", lambda greeting: None, metrics, max_slots=1, max_message_bytes=1)
    session._slots = agents = Part()
    session.report = fail
    with pytest.raises(OSError, match="broken pipe"):
        session.close()
    assert agents.closed == 1


def test_what_a_learner_raises_at_the_end_is_not_swallowed():
    host = BatchHost(None, dict, SimpleRLAgent)
    host._processors = {"one": Part(OSError("disk full")), "two": Part()}
    with pytest.raises(OSError, match="disk full"):
        host.close()
    assert [part.closed for part in host._processors.values()] == [1, 1]


@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        (ValueError("no"), True),
        (InvalidInputError("a gradient is missing"), True),
        (NotAllowedError("the token has another role"), False),
    ],
)
def test_only_a_mistake_of_the_agent_is_to_be_corrected_in_its_code(error, is_own):
    class Agent:
        def act(self, state):
            raise error

        def reward_and_reset(self, reward):
            """What an agent has."""

    spaces = {"observation": Discrete(n=2)}, {"action": Discrete(n=2)}
    slots = PlainSlots(lambda client: Agent(), [Part()], *spaces)
    with pytest.raises(AgentFailure, match=str(error)) as raised:
        slots.step(ReceivedStep(observations={"observation": np.zeros(1, np.int64)}))
    assert ("correct the agent's code" in str(raised.value)) is is_own
