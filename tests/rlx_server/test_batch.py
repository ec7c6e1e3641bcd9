"""Batch-native agents behind real sockets: many clients, one prediction, nobody hurt by another."""

# covers F11, F16, R19, R30

import contextlib

import numpy as np
import pytest
from support.batch import make_config, make_processor, serve_a2c
from support.rlx import RawClient, array, make_next, make_step

from relaax_like.bridge.service import NullMetrics
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.server import RlxServer, ServerThread
from relaax_like.rlx_server.session import Session
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import Box, Discrete, space_to_message

CONFIG = make_config(layers=(8,), rollout_steps=4)


@contextlib.contextmanager
def serve(server, config=CONFIG):
    host = BatchHost(config, lambda: make_processor(config, server))

    def make_session(name):
        options = {"max_slots": 8, "max_message_bytes": 1 << 20, "score_lines": False}
        return Session(name, host.make_agents, NullMetrics(), **options)

    rlx = RlxServer(
        make_session,
        Admission(16, 0),
        max_message_bytes=1 << 20,
        hello_timeout_sec=10,
        idle_timeout_sec=60,
        predict=host.predict,
    )
    host.on_ready = rlx.wake
    with ServerThread(rlx, "127.0.0.1", 0) as running:
        yield running.port
    host.close()


@pytest.fixture
def backend():
    with serve_a2c(CONFIG) as server:
        yield server


@pytest.fixture
def port(backend):
    with serve(backend) as port:
        yield port


def greet(client, slots=1, shape=(4,), **fields):
    client.greet(
        slots=slots,
        observation_spaces={"observation": space_to_message(Box(dtype="float32", shape=shape))},
        action_spaces={"action": space_to_message(Discrete(n=2))},
        **fields,
    )


def observe(slots, shape=(4,), value=1.0):
    return {"observation": array(np.full((slots, *shape), value))}


def step(client, slots=1, shape=(4,), **fields):
    return client.ask(make_next(slots, **{"observations": observe(slots, shape), **fields}))


def read_actions(answer):
    assert answer.WhichOneof("body") == "actions", answer
    return message_to_ndarray(answer.actions.actions["action"])


def test_several_clients_with_different_slots_learn_together(backend, port):
    with contextlib.ExitStack() as stack:
        clients = [(stack.enter_context(RawClient(port)), k) for k in (1, 3, 2)]
        for client, k in clients:
            greet(client, k)
            assert read_actions(client.ask(make_step(observations=observe(k)))).shape == (k,)
        for _ in range(8):
            for client, k in clients:
                client.send(make_next(k, observations=observe(k)))
            for client, k in clients:
                assert read_actions(client.receive()).shape == (k,)
        assert backend.global_t == 8 * 6
        assert backend.version >= 4


def test_a_client_whose_observations_have_more_axes_is_flattened_and_hurts_nobody(port):
    with RawClient(port) as square, RawClient(port) as flat:
        greet(square, shape=(2, 2))
        greet(flat)
        square.send(make_step(observations=observe(1, (2, 2))))
        flat.send(make_step(observations=observe(1)))
        for client in (square, flat):
            assert read_actions(client.receive()).shape == (1,)


@pytest.mark.parametrize(
    "rewards", [[1e300], [float("inf")], [[1.0, 2.0]]], ids=["too large", "infinite", "two columns"]
)
def test_rewards_that_would_spoil_others_rollouts_are_refused_by_name(backend, port, rewards):
    with RawClient(port) as bad, RawClient(port) as good:
        for client in (bad, good):
            greet(client)
            client.ask(make_step(observations=observe(1)))
        answer = step(bad, rewards=array(rewards, "float64"))
        assert (answer.error.field, answer.error.code) == ("rewards", rlx_pb2.INVALID_FIELD)
        for _ in range(4):
            read_actions(step(good))
        assert backend.version == 1


def test_finished_episodes_count_when_the_client_leaves_before_the_rollout_is_whole(backend, port):
    with RawClient(port) as client:
        greet(client)
        client.ask(make_step(observations=observe(1)))
        for _ in range(2):
            step(client, terminated=array([1], "bool"))
    for _ in range(500):
        if backend.status().episodes == 2:
            break
        with RawClient(port) as other:  # anything that takes a moment
            greet(other)
    assert (backend.status().episodes, backend.global_t) == (2, 2)


def test_exploiting_moves_nothing(backend, port):
    with RawClient(port) as client:
        greet(client, mode=rlx_pb2.EXPLOIT)
        client.ask(make_step(observations=observe(1)))
        chosen = {int(read_actions(step(client))[0]) for _ in range(12)}
    assert len(chosen) == 1
    assert (backend.version, backend.global_t) == (0, 0)


def test_the_end_of_training_is_told_to_batch_clients_too():
    with serve_a2c(CONFIG, max_global_step=8) as backend, serve(backend) as port:
        with RawClient(port) as client:
            greet(client, 2)
            answer = client.ask(make_step(observations=observe(2)))
            for _ in range(4):
                assert not answer.actions.finished
                answer = step(client, 2)
            assert "budget" in answer.actions.finished
            assert not answer.actions.actions


def test_reward_and_reset_and_act_work_on_batch_agents(port):
    with RawClient(port) as client:
        greet(client)
        client.ask(make_step(observations=observe(1)))
        over = make_step(
            rewards=array([2.0]), terminated=array([1], "bool"), truncated=array([0], "bool")
        )
        answer = client.ask(over)
        assert [e.score for e in answer.actions.episodes] == [2.0]
        assert not answer.actions.actions
        assert read_actions(client.ask(make_step(observations=observe(1)))).shape == (1,)
