"""The stub and the in-process twin: the same tests for both."""

# covers R4, R10, R11, R12, R14, R28, R31

import time

import numpy as np
import pytest
from support.bridge import ONES, VARIABLES, make_backend
from support.event_files import read_scalars

from relaax_like.bridge import client as client_module
from relaax_like.bridge import stub as stub_module
from relaax_like.core.manifest import Variable
from relaax_like.core.records import MAX_EPISODES, Episode
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.wire.errors import InvalidInputError


def test_get_values_gives_the_initial_values_in_manifest_order(connect, backend):
    values = connect(backend).get_values()
    for value, variable in zip(values, VARIABLES, strict=True):
        np.testing.assert_array_equal(value, variable.value)


def test_values_cannot_be_written_to(connect, backend):
    values = connect(backend).get_values()
    with pytest.raises(ValueError, match="read-only"):
        values[0][0, 0] = 7.0


def test_apply_gradients_moves_the_weights_once_per_call_and_can_be_called_again(connect, backend):
    client = connect(backend)
    for _ in range(3):
        client.apply_gradients(ONES)
    np.testing.assert_array_equal(client.get_values()[0], VARIABLES[0].value - 3)
    assert client.version == 3


def test_push_pull_returns_the_values_after_its_own_gradient(connect, backend):
    client = connect(backend)
    values = client.push_pull(ONES)
    np.testing.assert_array_equal(values[1], [-1, -1, -1])
    assert client.version == backend.version == 1


def test_push_pull_without_a_gradient_keeps_the_version(connect, backend):
    client = connect(backend)
    client.increment_global_t(5)
    client.push_pull()
    assert (backend.version, backend.global_t) == (0, 5)


def test_two_clients_see_each_others_updates(connect, backend):
    first, second = connect(backend), connect(backend)
    first.apply_gradients(ONES)
    np.testing.assert_array_equal(second.get_values()[1], [-1, -1, -1])


def test_steps_are_counted_at_once_and_sent_with_the_next_push(connect, backend, monkeypatch):
    monkeypatch.setattr(client_module, "FLUSH_SEC", 1e9)
    client = connect(backend)
    assert [client.increment_global_t() for _ in range(3)] == [1, 2, 3]
    assert backend.global_t == 0
    client.apply_gradients(ONES)
    assert backend.global_t == client.global_t == 3


def test_steps_of_an_agent_that_never_pushes_are_sent_by_themselves(connect, backend, monkeypatch):
    monkeypatch.setattr(client_module, "FLUSH_SEC", 0.0)
    client = connect(backend)
    client.increment_global_t()
    assert backend.global_t == 1


def test_steps_that_come_long_after_a_push_wait_for_the_next_one(connect, backend, monkeypatch):
    """So that a gradient meets the learning rate of the steps before its own."""
    client = connect(backend)
    client.apply_gradients(ONES)
    monkeypatch.setattr(client_module, "FLUSH_SEC", 1e-3)
    time.sleep(0.01)
    client.increment_global_t(5)
    assert backend.global_t == 0
    time.sleep(0.01)
    client.increment_global_t()
    assert backend.global_t == 6


def test_close_sends_what_is_pending(connect, backend):
    client = connect(backend)
    client.increment_global_t(4)
    client.add_episodes([Episode(9.0, 4)])
    client.close()
    assert (backend.global_t, backend.status().episodes) == (4, 1)


def test_episodes_reach_the_status(connect, backend):
    client = connect(backend)
    for score in (10.0, 20.0):
        client.add_episodes([Episode(score, 5)])
    client.push_pull()
    assert backend.status().mean_return == 15.0
    assert backend.status().episodes == 2


def test_wrong_counts_are_refused_at_once_and_later_pushes_are_not(connect, backend):
    client = connect(backend)
    for n in (-1, 2**41):
        with pytest.raises(InvalidInputError, match=rf"n: {n} environment steps, expected 0 to 2"):
            client.increment_global_t(n)
    bad = ((float("nan"), 1), (float("inf"), 1), (1.0, 0), (1.0, -2), (1.0, 2**70))
    for episode_return, length in bad:
        with pytest.raises(InvalidInputError, match=r"^episodes\[0\].* expected a"):
            client.add_episodes([Episode(episode_return, length)])
    client.push_pull(ONES)
    assert (client.version, client.discarded_pushes) == (1, 0)
    assert (backend.global_t, backend.status().episodes) == (0, 0)


def test_episodes_beyond_those_of_one_message_go_ahead_of_it(connect, backend):
    client = connect(backend)
    for score in range(2 * MAX_EPISODES + 500):
        client.add_episodes([Episode(float(score), 1)])
    client.increment_global_t(7)
    client.push_pull(ONES)
    assert client.version == 1
    assert backend.status().episodes == 2 * MAX_EPISODES + 500
    # The last 100 are the newest.
    assert backend.status().mean_return == 2 * MAX_EPISODES + 500 - 50.5
    assert backend.global_t == 7


def test_a_push_that_was_withdrawn_from_the_queue_is_discarded_and_counted(
    connect, backend, monkeypatch
):
    def refuse(push, timeout_sec):
        raise TimeoutError("waited in the queue and was withdrawn")

    client = connect(backend)
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 0.0)
    with monkeypatch.context() as blocked:
        blocked.setattr(backend, "push", refuse)
        values = client.push_pull(ONES)
    np.testing.assert_array_equal(values[0], VARIABLES[0].value)
    assert client.discarded_pushes == 1
    client.push_pull(ONES)
    assert (client.version, client.discarded_pushes) == (1, 1)


@pytest.mark.parametrize(
    ("gradients", "names"),
    [
        (ONES[:1], "W1"),
        ([np.ones((3, 2), np.float32), ONES[1]], "W1"),
        ([ONES[0], np.ones(3, np.float64)], "b1"),
        ([ONES[0], np.array([1, np.nan, 1], np.float32)], "b1"),
        ([ONES[0] * np.float32(np.inf), ONES[1]], "W1"),
    ],
    ids=["one missing", "wrong shape", "wrong dtype", "NaN", "infinity"],
)
def test_a_bad_gradient_is_refused_by_name_and_changes_nothing(connect, backend, gradients, names):
    client = connect(backend)
    client.get_values()
    client.increment_global_t(7)
    with pytest.raises(InvalidInputError, match=names):
        client.apply_gradients(gradients)
    assert (backend.version, backend.global_t) == (0, 0)
    client.apply_gradients(ONES)
    # Its steps were taken all the same.
    assert (backend.version, backend.global_t) == (1, 7)


def test_finished_is_told_when_the_budget_is_used_up(connect):
    with make_backend(stop=StopCondition(10)) as backend:
        client = connect(backend)
        client.increment_global_t(9)
        client.push_pull(ONES)
        assert client.finished == ""
        client.increment_global_t(1)
        client.push_pull(ONES)
        assert "budget" in client.finished
        assert client.increment_global_t() >= 10


def test_pushes_after_the_end_are_dropped_without_an_error(connect):
    with make_backend(stop=StopCondition(1)) as backend:
        client = connect(backend)
        client.increment_global_t(1)
        client.push_pull(ONES)
        client.push_pull(ONES)
        assert backend.version == 1


def test_values_larger_than_a_chunk_arrive_whole(connect):
    big = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    with make_backend([Variable("big", big)]) as backend:
        client = connect(backend)
        values = client.push_pull([np.ones_like(big)])
        np.testing.assert_array_equal(values[0], big - 1)


def test_metrics_end_up_in_event_files_with_and_without_x(connect, tmp_path):
    with TensorBoardRecorder(tmp_path) as recorder, make_backend(metrics=recorder) as backend:
        client = connect(backend)
        client.increment_global_t(7)
        client.push_pull(ONES)
        client.metrics().scalar("episode reward", 21.0)
        client.metrics().scalar("latency", 0.5, x=3)
        if hasattr(client.metrics(), "flush"):
            client.metrics().flush()
        recorder.flush()
        curves = read_scalars(tmp_path)
        assert curves["latency"] == [(3, 0.5)]
        assert curves["episode reward"][0][1] == 21.0
