"""The rlx server over real sockets: the three verbs, isolation, limits, going down."""

# covers R1, R8, R9, R10, R19, R26, R27, R30

import contextlib
import logging
import re
import threading

import numpy as np
import pytest
from support.bridge import make_backend
from support.event_files import read_scalars
from support.rlx import (
    RawClient,
    RecordingAgent,
    ServerThread,
    array,
    make_hello,
    make_next,
    make_start,
    make_step,
    serve_rlx,
)

from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.rlx_server import answer_times
from relaax_like.v1 import metrics_pb2, rlx_pb2
from relaax_like.wire.errors import RelaaxError, ServerUnavailableError
from relaax_like.wire.framing import HEADER, pack_frame
from relaax_like.wire.ndarray import message_to_ndarray


def read_actions(answer):
    assert answer.WhichOneof("body") == "actions", answer
    return message_to_ndarray(answer.actions.actions["action"]).tolist()


def test_one_slot_is_driven_by_the_three_verbs(client):
    client.greet()
    assert read_actions(client.ask(make_start())) == [0]
    assert read_actions(client.ask(make_next(rewards=array([0.5])))) == [1]
    answer = client.ask(
        make_step(rewards=array([2]), terminated=array([1], "bool"), truncated=array([0], "bool"))
    )
    assert not answer.actions.actions
    (episode,) = answer.actions.episodes
    assert (episode.slot, episode.score, episode.length) == (0, 2.5, 2)
    assert read_actions(client.ask(make_start())) == [0]
    (agent,) = RecordingAgent.instances
    assert agent.calls == [
        ("act", [0, 0]),
        ("reward_and_act", 0.5, [1, 1]),
        ("reward_and_reset", 2.0, None, False, None),
        ("act", [0, 0]),
    ]


def test_several_slots_are_stepped_together_and_end_apart(client):
    client.greet(slots=2)
    client.ask(make_start(2))
    answer = client.ask(
        make_next(
            2,
            rewards=array([1, 5]),
            truncated=array([0, 1], "bool"),
            final_observations={"observation": array([[0, 0], [7, 8]])},
            success=array([-1, 1], "int8"),
        )
    )
    assert read_actions(answer) == [1, 2]
    assert [(e.slot, e.score) for e in answer.actions.episodes] == [(1, 5.0)]
    first, second = RecordingAgent.instances
    assert first.calls[-1] == ("reward_and_act", 1.0, [1, 1])
    assert second.calls[-2:] == [("reward_and_reset", 5.0, [7, 8], True, True), ("act", [1, 1])]


def test_a_step_that_is_both_terminated_and_truncated_is_terminated(client):
    client.greet()
    client.ask(make_start())
    both = {name: array([1], "bool") for name in ("terminated", "truncated")}
    client.ask(make_next(**both))
    assert RecordingAgent.instances[0].calls[1] == ("reward_and_reset", 1.0, None, False, None)


def test_an_agent_whose_reset_takes_the_reward_alone_is_served(backend):
    class TutorialAgent(RecordingAgent):
        def reward_and_reset(self, reward):
            self.calls.append(("reward_and_reset", reward))
            return reward

    with serve_rlx(backend, TutorialAgent) as port, RawClient(port) as client:
        client.greet()
        client.ask(make_start())
        client.ask(
            make_next(
                truncated=array([1], "bool"),
                final_observations={"observation": array([[3, 3]])},
            )
        )
    assert ("reward_and_reset", 1.0) in RecordingAgent.instances[0].calls


def test_integer_rewards_stay_fractions(client):
    """covers R29: rewards are floats on the wire, integers are refused."""
    client.greet()
    client.ask(make_start())
    answer = client.ask(make_next(rewards=array([1], "int64")))
    assert answer.error.field == "rewards"


def test_training_episodes_are_counted_and_exploiting_ones_are_not(backend, port):
    for mode, want in ((rlx_pb2.EXPLOIT, 0), (rlx_pb2.TRAIN, 1)):
        with RawClient(port) as client:
            client.greet(mode=mode)
            client.ask(make_start())
            client.ask(make_next(terminated=array([1], "bool")))
            agent = RecordingAgent.instances[-1]
            assert agent.exploit == (mode == rlx_pb2.EXPLOIT)
            agent.parameter_server.push_pull()
            assert backend.status().episodes == want


def test_two_clients_at_once_have_agents_of_their_own(port):
    with RawClient(port) as first, RawClient(port) as second:
        first.greet()
        second.greet()
        first.ask(make_start())
        second.ask(make_start())
        assert read_actions(first.ask(make_next())) == [1]
        assert [len(agent.calls) for agent in RecordingAgent.instances] == [2, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"rewards": array([1e18], "float64")},
        {"observations": {"observation": array([[3e38, 0.0]])}},
        {
            "final_observations": {"observation": array([[3e38, 0.0]])},
            "truncated": array([True], "bool"),
        },
    ],
    ids=["rewards", "observations", "final observations"],
)
def test_numbers_too_large_to_learn_from_do_not_reach_a_plain_agent(port, fields):
    name = next(iter(fields))
    for mode in (rlx_pb2.EXPLOIT, rlx_pb2.TRAIN):
        with RawClient(port) as client:
            client.greet(mode=mode)
            client.ask(make_start())
            answer = client.ask(make_next(**fields))
            if mode == rlx_pb2.EXPLOIT:  # nothing is learned
                assert answer.WhichOneof("body") == "actions"
                continue
            assert answer.error.code == rlx_pb2.INVALID_FIELD
            assert answer.error.field.startswith(name)
            assert "in slot 0; expected finite numbers of at most 1e+08" in answer.error.message
            assert len(RecordingAgent.instances[-1].calls) == 1


class StumblingAgent(RecordingAgent):
    """Raises in the second step of the client called "bad"."""

    def reward_and_act(self, reward, state):
        if reward == 13:
            raise ZeroDivisionError("the user's bug")
        return super().reward_and_act(reward, state)


def test_a_crashing_agent_ends_its_own_session_only(backend):
    with serve_rlx(backend, StumblingAgent) as port:
        with RawClient(port) as bad, RawClient(port) as good:
            for client in (bad, good):
                client.greet()
                client.ask(make_start())
            answer = bad.ask(make_next(rewards=array([13])))
            assert answer.error.code == rlx_pb2.AGENT_FAILED
            want = rf"slot 0: {re.escape(__file__)}:\d+: ZeroDivisionError: the user's bug; correct"
            assert re.search(want, answer.error.message)
            assert bad.is_closed_by_server()
            assert read_actions(good.ask(make_next())) == [1]


@pytest.mark.parametrize("action", [3, -1, 0.5, "left", [1, 2], float("nan")], ids=repr)
def test_an_action_outside_of_the_space_is_the_agents_failure(backend, action):
    class WrongAgent(RecordingAgent):
        def act(self, state):
            return action

    with serve_rlx(backend, WrongAgent) as port, RawClient(port) as client:
        client.greet()
        answer = client.ask(make_start())
    assert answer.error.code == rlx_pb2.AGENT_FAILED
    assert "action" in answer.error.message


def test_a_blocked_agent_holds_up_nobody_else(backend):
    release = threading.Event()

    class BlockedAgent(RecordingAgent):
        def reward_and_act(self, reward, state):
            if reward == 13:
                release.wait(20)
            return 0

    with serve_rlx(backend, BlockedAgent) as port:
        with RawClient(port) as slow, RawClient(port) as quick:
            for client in (slow, quick):
                client.greet()
                client.ask(make_start())
            slow.send(make_next(rewards=array([13])))
            for _ in range(20):
                assert read_actions(quick.ask(make_next())) == [0]
            release.set()
            assert read_actions(slow.receive()) == [0]


def test_a_killed_client_costs_its_unfinished_episode_and_nothing_else(backend, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with TensorBoardRecorder(tmp_path) as recorder:
        with serve_rlx(backend, metrics=recorder) as port, RawClient(port) as other:
            other.greet()
            other.ask(make_start())
            with RawClient(port) as killed:
                killed.greet()
                killed.ask(make_start())
                killed.ask(make_next())
            assert read_actions(other.ask(make_next())) == [1]
            agent = RecordingAgent.instances[1]
            assert wait_for(lambda: agent.closed)
        recorder.flush()
        assert read_scalars(tmp_path)["discarded episodes"][0][1] == 1
        assert "left in the middle of 1 episode(s) of 1 steps, which have no return" in caplog.text


def test_one_client_too_many_is_turned_away_and_let_in_later(backend):
    with serve_rlx(backend, max_clients=1) as port:
        with RawClient(port) as first:
            first.greet()
            with RawClient(port) as second:
                answer = second.ask(make_hello())
                assert answer.error.code == rlx_pb2.OVERLOADED
                assert "max_clients" in answer.error.message
        assert wait_for(lambda: is_let_in(port))


def test_without_free_memory_new_clients_are_turned_away(backend):
    with serve_rlx(backend, min_free_memory_mb=1e9) as port, RawClient(port) as client:
        answer = client.ask(make_hello())
    assert answer.error.code == rlx_pb2.OVERLOADED
    assert "min_free_memory_mb" in answer.error.message


def test_a_connection_that_never_says_hello_is_closed(backend):
    with serve_rlx(backend, hello_timeout_sec=0.2) as port, RawClient(port) as client:
        client.socket.sendall(b"\x00\x00")
        assert client.receive().error.code == rlx_pb2.UNAVAILABLE
        assert client.is_closed_by_server()


def test_an_idle_client_is_sent_away(backend):
    with serve_rlx(backend, idle_timeout_sec=2.0) as port, RawClient(port) as client:
        client.greet()
        client.ask(make_start())
        assert client.receive().error.code == rlx_pb2.UNAVAILABLE


def test_after_its_time_a_client_is_sent_away_at_an_episodes_end_only(backend):
    with serve_rlx(backend, time_limit_sec=0.0) as port, RawClient(port) as client:
        client.greet()
        client.ask(make_start())
        assert read_actions(client.ask(make_next())) == [1]
        answer = client.ask(make_next(terminated=array([1], "bool")))
    assert answer.error.code == rlx_pb2.UNAVAILABLE
    assert "reconnect" in answer.error.message


def test_the_end_of_training_is_told_with_the_last_episode_and_the_connection_closed():
    class CountingAgent(RecordingAgent):
        def reward_and_reset(self, reward, state=None, truncated=False, success=None):
            self.parameter_server.increment_global_t(10)
            self.parameter_server.push_pull()
            return reward

    with make_backend(stop=StopCondition(10)) as backend:
        with serve_rlx(backend, CountingAgent) as port, RawClient(port) as client:
            client.greet()
            client.ask(make_start())
            answer = client.ask(make_next(terminated=array([1], "bool")))
            assert "budget" in answer.actions.finished
            assert not answer.actions.actions
            assert [e.score for e in answer.actions.episodes] == [1.0]
            client.socket.shutdown(1)
            assert client.is_closed_by_server()


def test_an_agent_that_answers_none_ends_the_session_cleanly(backend):
    class TiredAgent(RecordingAgent):
        def reward_and_act(self, reward, state):
            return None

    with serve_rlx(backend, TiredAgent) as port, RawClient(port) as client:
        client.greet()
        client.ask(make_start())
        answer = client.ask(make_next())
    assert "budget" in answer.actions.finished


def test_without_a_parameter_server_a_client_is_asked_to_come_back(backend):
    def make_client(client_id):
        raise ServerUnavailableError("no answer from the parameter server at localhost:1")

    with serve_rlx(backend, make_client=make_client) as port, RawClient(port) as client:
        answer = client.ask(make_hello())
    assert answer.error.code == rlx_pb2.UNAVAILABLE
    assert "parameter server" in answer.error.message


def test_going_down_tells_the_clients_and_frees_the_port(backend):
    serving = serve_rlx(backend)
    port = serving.__enter__()
    with RawClient(port) as client:
        client.greet()
        client.ask(make_start())
        stopper = threading.Thread(target=serving.__exit__, args=(None, None, None))
        stopper.start()
        assert client.receive().error.code == rlx_pb2.UNAVAILABLE
        assert client.is_closed_by_server()
    stopper.join(20)
    with pytest.raises(ConnectionRefusedError):
        RawClient(port)


def test_a_used_port_is_an_error_that_names_the_holder(port):
    from relaax_like.rlx_server.admission import Admission
    from relaax_like.rlx_server.server import RlxServer

    server = RlxServer(
        lambda name: None,
        Admission(1, 0),
        max_message_bytes=1,
        hello_timeout_sec=1,
        idle_timeout_sec=1,
    )
    with pytest.raises(RelaaxError, match=rf"{port}.*pid \d+"):
        ServerThread(server, "127.0.0.1", port)


def test_client_and_server_latency_reach_the_curves(backend, tmp_path, monkeypatch):
    monkeypatch.setattr(answer_times, "_INTERVAL_SEC", 0.0)
    with TensorBoardRecorder(tmp_path) as recorder:
        with serve_rlx(backend, metrics=recorder) as port, RawClient(port) as client:
            client.greet()
            client.ask(make_start())
            scalar = metrics_pb2.Scalar(name="client latency", y=0.25, x=4)
            client.send(
                rlx_pb2.ClientMessage(scalars=metrics_pb2.StoreScalarsRequest(scalars=[scalar]))
            )
            client.ask(make_next())
        recorder.flush()
        curves = read_scalars(tmp_path)
    assert curves["client latency"] == [(4, 0.25)]
    assert all(0 < y < 20 for _, y in curves["server latency"])


def is_let_in(port):
    with RawClient(port) as client:
        return client.ask(make_hello()).WhichOneof("body") == "ready"


def wait_for(condition, timeout_sec=10.0):
    for _ in range(int(timeout_sec / 0.02)):
        if condition():
            return True
        threading.Event().wait(0.02)
    return False


def test_dict_spaces_reach_the_agent_as_named_arrays(backend):
    from relaax_like.wire.spaces import Box, MultiBinary, space_to_message

    class DictAgent(RecordingAgent):
        def act(self, state):
            self.calls.append({name: value.tolist() for name, value in state.items()})
            return {"grip": np.array([1, 0]), "move": np.array([0.5], np.float32)}

    spaces = {"camera": Box(dtype="uint8", shape=(2,)), "arm/joint": Box(dtype="float32", shape=())}
    actions = {"grip": MultiBinary(shape=(2,)), "move": Box(dtype="float32", shape=(1,))}
    with serve_rlx(backend, DictAgent) as port, RawClient(port) as client:
        client.greet(
            observation_spaces={name: space_to_message(s) for name, s in spaces.items()},
            action_spaces={name: space_to_message(s) for name, s in actions.items()},
        )
        observations = {"camera": array([[1, 2]], "uint8"), "arm/joint": array([0.25])}
        answer = client.ask(make_step(observations=observations))
    assert RecordingAgent.instances[0].calls == [{"camera": [1, 2], "arm/joint": 0.25}]
    assert message_to_ndarray(answer.actions.actions["grip"]).tolist() == [[1, 0]]
    assert message_to_ndarray(answer.actions.actions["move"]).tolist() == [[0.5]]


def send_for_ever(client, message):
    while True:
        client.socket.sendall(message)


def test_a_client_that_sends_ahead_for_ever_is_cut_off_and_disturbs_nobody(backend):
    with serve_rlx(backend) as port, RawClient(port) as flooder, RawClient(port) as other:
        flooder.greet(slots=4)
        flooder.send(make_start(4))
        message = pack_frame(make_next(4).SerializeToString())
        with pytest.raises(ConnectionError):  # a timeout would be another error
            send_for_ever(flooder, message)
        other.greet()
        other.ask(make_start())
        assert read_actions(other.ask(make_next())) == [1]


def drip(client):
    """Sends a byte now and then, and never a whole message, until the server closes."""
    client.socket.settimeout(0.1)
    client.socket.sendall(HEADER.pack(10_000))
    for _ in range(200):
        client.socket.sendall(b"\x00")
        try:
            if client.socket.recv(4096) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_single_bytes_now_and_then_do_not_keep_a_connection_alive(backend):
    with serve_rlx(backend, hello_timeout_sec=0.5) as port, RawClient(port) as client:
        with contextlib.suppress(ConnectionError):
            assert drip(client)
