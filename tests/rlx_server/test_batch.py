"""Batch-native agents behind real sockets: many clients, one prediction, nobody hurt by another."""

# covers F11, F16, R19, R30

import contextlib
import threading
import time

import numpy as np
import pytest
from support.batch import make_config, serve_a2c, serve_batch
from support.rlx import RawClient, array, make_next, make_step

from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.experience.rollout import stack_history
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.framing import pack_frame
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import Box, Discrete, space_to_message

CONFIG = make_config(layers=(8,), rollout_steps=4)


@pytest.fixture
def backend():
    with serve_a2c(CONFIG) as server:
        yield server


@pytest.fixture
def port(backend):
    with serve_batch(backend, CONFIG) as port:
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


def test_only_the_hello_of_a_batch_client_needs_a_thread(port):
    def count():
        return sum(thread.name.startswith("session-") for thread in threading.enumerate())

    with contextlib.ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(RawClient(port))
            greet(client)
            read_actions(client.ask(make_step(observations=observe(1))))
        assert wait_for(lambda: count() == 0)
        step(client)
        assert count() == 0


def test_a_client_whose_observations_have_more_axes_is_flattened_and_hurts_nobody(port):
    with RawClient(port) as square, RawClient(port) as flat:
        greet(square, shape=(2, 2))
        greet(flat)
        square.send(make_step(observations=observe(1, (2, 2))))
        flat.send(make_step(observations=observe(1)))
        for client in (square, flat):
            assert read_actions(client.receive()).shape == (1,)


@pytest.mark.parametrize(
    ("rewards", "code"),
    [
        ([1e300], rlx_pb2.INVALID_FIELD),
        ([float("inf")], rlx_pb2.INVALID_FIELD),
        ([[1.0, 2.0]], rlx_pb2.SPACE_MISMATCH),
    ],
    ids=["too large", "infinite", "two columns"],
)
def test_rewards_that_would_spoil_others_rollouts_are_refused_by_name(backend, port, rewards, code):
    with RawClient(port) as bad, RawClient(port) as good:
        for client in (bad, good):
            greet(client)
            client.ask(make_step(observations=observe(1)))
        answer = step(bad, rewards=array(rewards, "float64"))
        assert (answer.error.field, answer.error.code) == ("rewards", code)
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
    with serve_a2c(CONFIG, stop=StopCondition(8)) as backend, serve_batch(backend, CONFIG) as port:
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


def test_statistics_of_what_training_clients_saw_reach_the_parameter_server():
    config = make_config(layers=(8,), rollout_steps=4, normalize_observations=True)
    with serve_a2c(config) as backend, serve_batch(backend, config) as port:
        with RawClient(port) as client, RawClient(port) as watcher:
            greet(client, 2)
            greet(watcher, mode=rlx_pb2.EXPLOIT)
            rows = np.random.default_rng(0).normal(5.0, 3.0, (5, 2, 4)).astype(np.float32)
            client.ask(make_step(observations={"observation": array(rows[0])}))
            watcher.ask(make_step(observations=observe(1, value=1e6)))
            for t in range(1, 5):
                step(watcher, observations=observe(1, value=1e6))
                step(client, 2, observations={"observation": array(rows[t])})
            step(client, 2)  # after the rollout has been learned from
        count, mean, m2 = backend.manifest.view_statistic(backend.pull().values.flat, "observation")
    seen = rows[:4].reshape(-1, 4).astype(np.float64)
    assert count == 8
    np.testing.assert_allclose(mean, seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(m2, ((seen - seen.mean(0)) ** 2).sum(0), rtol=1e-9)


def test_the_model_sees_the_newest_observations_of_the_episode_at_hand():
    config = make_config(layers=(8,), rollout_steps=4, observation_history=2)
    rollouts = []
    with serve_a2c(config) as backend, serve_batch(backend, config, rollouts) as port:
        with RawClient(port) as client:
            greet(client)
            client.ask(make_step(observations=observe(1, value=1)))
            step(client, observations=observe(1, value=2))
            step(
                client,
                observations=observe(1, value=10),
                truncated=array([1], "bool"),
                final_observations=observe(1, value=3),
            )
            step(client, observations=observe(1, value=11))
            step(client, observations=observe(1, value=12))
    (once,) = rollouts
    np.testing.assert_array_equal(once.inputs["observation"][:, 0, 0], [1, 2, 10, 11])
    rollout = stack_history(once)
    seen = rollout.inputs["observation"][:, 0, ::4]
    np.testing.assert_array_equal(seen, [[1, 1], [1, 2], [10, 10], [10, 11]])
    after = rollout.next_inputs["observation"][:, 0, ::4]
    np.testing.assert_array_equal(after, [[1, 2], [2, 3], [10, 11], [11, 12]])


def test_a_frame_may_come_in_pieces_and_several_at_once(port):
    with RawClient(port) as client:
        greet(client)
        first = make_step(observations=observe(1)).SerializeToString()
        for byte in pack_frame(first):
            client.socket.sendall(bytes([byte]))
        assert read_actions(client.receive()).shape == (1,)
        scalars = rlx_pb2.ClientMessage()
        scalars.scalars.scalars.add(name="x" * 200, y=1.0)
        many = pack_frame(scalars.SerializeToString()) * 45
        next_step = make_next(1, observations=observe(1)).SerializeToString()
        client.socket.sendall(many + pack_frame(next_step) + many)
        assert read_actions(client.receive()).shape == (1,)
        assert read_actions(step(client)).shape == (1,)


def test_a_message_larger_than_the_buffer_is_read_whole():
    config = make_config(layers=(4,), rollout_steps=4, state_size=30_000)
    with (
        serve_a2c(config) as backend,
        serve_batch(backend, config) as port,
        RawClient(port) as client,
    ):
        greet(client, 2, (30_000,))
        values = np.arange(60_000, dtype=np.float32).reshape(2, -1)
        observations = {"observation": array(values)}
        assert read_actions(client.ask(make_step(observations=observations))).shape == (2,)
        for _ in range(3):
            assert read_actions(step(client, 2, observations=observations)).shape == (2,)


def test_a_client_whose_session_failed_waits_for_its_next_greeting_and_no_other_does(
    port, monkeypatch
):
    monkeypatch.setattr("relaax_like.rlx_server.server._GREETING_DELAY_SEC", 3.0)

    def greet_timed(name):
        with RawClient(port) as client:
            start = time.monotonic()
            greet(client, client_name=name)
            took = time.monotonic() - start
            client.ask(make_step(observations=observe(1, value=float("nan"))))
            return took

    with RawClient(port) as first:  # loads the model
        greet(first)
    took = [greet_timed(name) for name in ("bad", "bad", "good")]
    assert took[1] > 2.9 > max(took[0], took[2])


def test_a_client_that_goes_on_sending_after_its_error_is_cut(port):
    with RawClient(port) as client:
        greet(client)
        client.ask(make_step(observations=observe(1)))
        assert step(client, rewards=array([float("nan")])).error.field == "rewards"
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            client.socket.sendall(bytes(1 << 26))


EXPLODING = {
    "rewards": {"rewards": array([1e18], "float64")},
    "observations": {"observations": observe(1, value=3e38)},
}


@pytest.mark.parametrize("fields", EXPLODING.values(), ids=EXPLODING.keys())
def test_numbers_that_explode_cost_their_own_client_alone(
    backend, port, caplog, monkeypatch, fields
):
    monkeypatch.setattr(OnlineHelper, "_next_refused_line", 0.0)
    with RawClient(port) as bad, RawClient(port) as good:
        greet(bad, client_name="bad")
        greet(good, client_name="good")
        for client in (bad, good):
            client.ask(make_step(observations=observe(1)))
        answers = [step(bad, **fields) for _ in range(3 * CONFIG.rollout_steps)]
        for answer in answers[:-1]:
            assert answer.WhichOneof("body") == "actions", answer
        error = answers[-1].error
        assert error.code == rlx_pb2.INVALID_FIELD
        assert "slot 0; expected finite numbers of at most 1e+08" in error.message
        assert "3 rollouts in a row" in error.message
        assert bad.is_closed_by_server()
        for _ in range(2 * CONFIG.rollout_steps):
            read_actions(step(good))
        assert wait_for(lambda: backend.version >= 2)
        values = backend.manifest.unpack(backend.pull("test").values.flat)
        assert all(np.isfinite(array).all() for array in values)
    assert caplog.text.count("bad-") in (1, 2)  # at most one in a second
    assert "discarding a rollout (1 so far)" in caplog.text


def test_a_single_rollout_that_explodes_ends_no_session(backend, port):
    with RawClient(port) as client:
        greet(client)
        client.ask(make_step(observations=observe(1)))
        for rollout in range(6):
            for _ in range(CONFIG.rollout_steps):
                rewards = array([1e18 if rollout % 2 else 1.0], "float64")
                read_actions(step(client, rewards=rewards))
        assert wait_for(lambda: backend.global_t == 6 * CONFIG.rollout_steps)
        assert backend.version == 3


def wait_for(condition, timeout_sec=20.0):
    deadline = time.monotonic() + timeout_sec
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
