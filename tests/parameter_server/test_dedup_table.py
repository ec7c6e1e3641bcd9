"""Repeated pushes are answered and not applied, also after a restart."""

import threading

import numpy as np
import pytest
from support.bridge import ONES, VARIABLES, make_backend, serve

from relaax_like.bridge import stub as stub_module
from relaax_like.bridge.control import BridgeControl
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Episode, Push, Reply
from relaax_like.parameter_server.dedup_table import DedupTable
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.wire.errors import SnapshotError

GRADIENT = np.concatenate([one.reshape(-1) for one in ONES]).view(np.uint8)


ANSWERED = Reply(outcome="applied", version=1, global_t=5)


def make_push(backend, incarnation=1, sequence=1, client_id="a", **fields):
    fields.setdefault("gradient", GRADIENT)
    return Push(
        client_id=client_id,
        incarnation=incarnation,
        sequence=sequence,
        fingerprint=backend.manifest.fingerprint,
        **fields,
    )


def get_sum(backend):
    return sum(float(value.sum()) for value in backend.get_values())


def test_a_repeated_push_has_its_effect_once():
    with make_backend() as backend:
        push = make_push(backend, env_steps=5, episodes=(Episode(1.0, 5),))
        first, again = backend.push(push), backend.push(push)
        assert (first.outcome, first.version, first.global_t) == ("applied", 1, 5)
        assert (again.outcome, again.version, again.global_t) == ("applied", 1, 5)
        assert backend.status().episodes == 1
        assert get_sum(backend) == 15 - 9  # SGD with rate 1, nine ones


def test_a_repeated_push_hears_of_its_own_version_also_when_others_came_after_it():
    with make_backend() as backend:
        push = make_push(backend, env_steps=5)
        first = backend.push(push)
        backend.push(make_push(backend, client_id="b", env_steps=1))
        again = backend.push(push)
        assert again == first
        assert (again.version, again.global_t, backend.version) == (1, 5, 2)


@pytest.mark.parametrize(
    ("incarnation", "sequence"), [(2, 1), (1, 7)], ids=["an older life", "an older number"]
)
def test_what_comes_late_is_dropped_and_counted(incarnation, sequence):
    with make_backend() as backend:
        backend.push(make_push(backend, incarnation=2, sequence=8))
        if incarnation == 1:
            reply = backend.push(make_push(backend, incarnation, 9))
        else:
            reply = backend.push(make_push(backend, incarnation, sequence))
        assert (reply.outcome, reply.version) == ("dropped", 1)
        assert "arrived late" in reply.reason
        assert backend.status().refused == {"late": 1}


def test_the_same_numbers_of_other_clients_and_lives_are_new():
    with make_backend() as backend:
        for client_id, incarnation, sequence in [
            ("a", 1, 1),
            ("b", 1, 1),
            ("a", 2, 1),
            ("a", 2, 2),
        ]:
            assert backend.push(make_push(backend, incarnation, sequence, client_id)).outcome
        assert backend.version == 4


def test_pushes_without_a_number_are_all_applied():
    with make_backend() as backend:
        for _ in range(3):
            backend.push(make_push(backend, 0, 0))
        assert backend.version == 3


def test_steps_without_a_gradient_are_counted_once():
    with make_backend() as backend:
        push = make_push(backend, gradient=None, env_steps=3)
        assert [backend.push(push).outcome for _ in range(2)] == ["nothing", "nothing"]
        assert backend.global_t == 3


def test_the_push_that_ended_the_training_is_answered_as_applied_when_it_comes_again():
    with make_backend(stop=StopCondition(5)) as backend:
        push = make_push(backend, env_steps=5)
        assert [backend.push(push).outcome for _ in range(2)] == ["applied", "applied"]
        assert backend.push(make_push(backend, sequence=2)).outcome == "dropped"


def test_a_repeated_push_is_known_after_a_restart(tmp_path):
    with make_backend(snapshots=Snapshots(tmp_path, 3)) as backend:
        push = make_push(backend, env_steps=5)
        backend.push(push)
    with make_backend(snapshots=Snapshots(tmp_path, 3)) as backend:
        assert backend.restore_latest_checkpoint()
        assert backend.push(push).outcome == "applied"
        assert (backend.version, backend.global_t) == (1, 5)


def test_the_one_that_pushed_the_longest_ago_is_forgotten_first():
    replies = DedupTable(max_clients=2)
    pushes = [Push(client_id=name, incarnation=1, sequence=1) for name in "abac"]
    for push in pushes:
        replies.note(push, ANSWERED)
    found = {push.client_id: replies.find(push) for push in pushes}
    assert found == {"a": ANSWERED, "b": None, "c": ANSWERED}
    assert len(replies) == 2


@pytest.mark.parametrize(
    "data", [{"a": 1}, {"a": [1, 2]}, {"a": ["x", 1, "applied", 1, 1, ""]}, [1]]
)
def test_a_list_that_cannot_be_read_changes_nothing(data):
    replies = DedupTable()
    replies.note(Push(client_id="a", incarnation=1, sequence=1), ANSWERED)
    with pytest.raises(SnapshotError, match="answered pushes"):
        replies.restore(data)
    assert len(replies) == 1


def test_a_push_that_finds_no_server_is_repeated_until_one_is_back(monkeypatch):
    monkeypatch.setattr(stub_module, "_RETRY_SEC", 30.0)
    with make_backend() as backend:
        with serve(backend) as address:
            link = BridgeControl().connect(address)
            stub = link.parameter_server_stub("a", NullMetrics())
            stub.get_values()
        # The server has gone; the next one on the same port comes a moment later.
        stub.increment_global_t(7)
        served, done = threading.Event(), threading.Event()

        def serve_again():
            served.wait(0.5)
            with serve(backend, address):
                done.wait(30)

        thread = threading.Thread(target=serve_again)
        thread.start()
        stub.push_pull([np.ones(v.value.shape, np.float32) for v in VARIABLES])
        assert stub.discarded_pushes == 0
        assert (backend.version, backend.global_t) == (1, 7)
        done.set()
        stub.close()
        link.close()
        thread.join()
