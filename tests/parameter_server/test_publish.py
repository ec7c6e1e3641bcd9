"""Publishes of a learner in the server's process: once each, alone, and there after a crash.

covers R22, R24
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bridge import ONES, serve
from support.threads import Caller, wait_until

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import Counts, Episode, Publication, Push, Received, Reply
from relaax_like.parameter_server import parameter_server
from relaax_like.parameter_server.applier import Applier
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.published_state import NAMES
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots, list_names, read_best
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from relaax_like.wire import failpoints
from relaax_like.wire.errors import InvalidInputError, JournalError, LeasedError, SnapshotError

VARIABLES = (
    Variable("W1", np.zeros((2, 3), np.float32)),
    Variable("b1", np.zeros(3, np.float32)),
)
SIZE = 9  # of float32


def make_server(
    folder: Path | None = None,
    enabled: bool = False,
    keep_best: int = 0,
    target_score: float | None = None,
    **options: Any,
) -> ParameterServer:
    """Makes a server as a run does that learns in it, or, with `enabled`, beside its agents."""
    manifest = make_manifest(VARIABLES)
    flat = np.zeros(manifest.total_bytes, np.uint8)
    store = Store(manifest, flat, {"default": OptimizerConfig(name="adam", learning_rate=0.1)})
    options.setdefault("metrics", NullMetrics())
    if folder is None:
        return ParameterServer(store, **options)
    snapshots = Snapshots(folder, 1 if keep_best else 3, keep_best)
    options.setdefault("stop", StopCondition(target_score=target_score))
    journal = PushJournal(folder / "journal", manifest.fingerprint, enabled=enabled)
    try:
        server = ParameterServer(store, snapshots=snapshots, journal=journal, **options)
    except BaseException:
        snapshots.close()
        raise
    try:
        server.restore_latest_checkpoint()
    except BaseException:
        server.close(save=False)
        raise
    return server


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with make_server() as server:
        yield server


def make_publish(number: int, value: float | None = None, **fields: Any) -> Publication:
    """Makes a publish in which all follows from one number."""
    value = float(number) if value is None else value
    fields.setdefault("values", np.full(SIZE, value, np.float32).view(np.uint8))
    fields.setdefault("slots", {"default": np.full((2, SIZE), 0.5 * value, np.float32)})
    fields.setdefault("steps", {"default": 10 * number})
    return Publication(number=number, env_steps=fields.pop("env_steps", 20), **fields)


def make_push(server: ParameterServer, **fields: Any) -> Push:
    fields.setdefault("gradient", np.ones(SIZE, np.float32).view(np.uint8))
    return Push(
        client_id="agent",
        gradient_version=server.version,
        fingerprint=server.manifest.fingerprint,
        **fields,
    )


def read(server: ParameterServer) -> np.ndarray:
    values = server.pull().values
    assert values is not None
    return values.flat.view(np.float32)


def assert_is_publish(
    server: ParameterServer,
    number: int,
    version: int | None = None,
    env_steps: int | None = None,
) -> None:
    lease = server.lease()
    assert lease.number == number
    assert server.version == (number if version is None else version)
    assert server.global_t == (20 * number if env_steps is None else env_steps)
    assert lease.steps == {"default": 10 * number}
    np.testing.assert_array_equal(read(server), number)
    np.testing.assert_array_equal(lease.slots["default"], 0.5 * number)


# What a publish does.


def test_a_publish_is_one_version_with_all_that_belongs_to_it(server: ParameterServer) -> None:
    lease = server.lease()
    assert (lease.number, lease.version, lease.steps, lease.finished) == (0, 0, {"default": 0}, "")
    reply = server.publish(make_publish(1, episodes=(Episode(4.0, 7), Episode(6.0, 9))))
    assert (reply.outcome, reply.version, reply.global_t) == ("applied", 1, 20)
    assert_is_publish(server, 1)
    assert (server.status().episodes, server.status().mean_return) == (2, 5.0)
    server.publish(make_publish(2))
    assert_is_publish(server, 2)


def test_a_publish_that_comes_again_takes_no_effect(server: ParameterServer) -> None:
    server.lease()
    for number in (1, 2):
        server.publish(make_publish(number, episodes=(Episode(1.0, 1),)))
    for number in (1, 2, 2):
        again = server.publish(make_publish(number, value=99.0, episodes=(Episode(1.0, 1),)))
        assert (again.outcome, again.version, again.global_t) == ("nothing", 2, 40)
    assert_is_publish(server, 2)
    assert server.status().episodes == 2


@pytest.mark.parametrize("writable", [True, False])
def test_arrays_that_can_change_are_copied(server: ParameterServer, writable: bool) -> None:
    server.lease()
    publish = make_publish(1)
    arrays = [publish.values, publish.slots["default"]]
    for array in arrays:
        array.flags.writeable = writable
    server.publish(publish)
    lease = server.lease()
    for given, kept in zip(arrays, [lease.values, lease.slots["default"]], strict=True):
        assert np.shares_memory(given, kept) != writable
        assert not kept.flags.writeable


def test_values_that_were_handed_out_never_change(server: ParameterServer) -> None:
    server.lease()
    held = []
    for number in range(1, 8):
        server.publish(make_publish(number))
        held.append((number, read(server), server.lease()))
    for number, values, lease in held:
        np.testing.assert_array_equal(values, number)
        np.testing.assert_array_equal(lease.slots["default"], 0.5 * number)


NAN, INF = float("nan"), float("inf")
BAD = {
    "values NaN": ({"value": 0.0, "values": np.full(SIZE, NAN, np.float32).view(np.uint8)}, "W1"),
    "values too short": ({"values": np.zeros(4 * SIZE - 4, np.uint8)}, "values"),
    "values of float32": ({"values": np.zeros(SIZE, np.float32)}, "values"),
    "slots infinite": (
        {"slots": {"default": np.full((2, SIZE), INF, np.float32)}},
        "state contains inf, expected finite",
    ),
    "slots of another shape": ({"slots": {"default": np.zeros((1, SIZE), np.float32)}}, "slots"),
    "slots missing": ({"slots": {}}, "default"),
    "a return NaN": ({"episodes": (Episode(1.0, 1), Episode(NAN, 1))}, "return nan"),
    "steps negative": ({"env_steps": -1}, "env_steps"),
    "steps beyond 2^40": ({"env_steps": (1 << 40) + 1}, "env_steps"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_publish_with_a_mistake_changes_nothing(server: ParameterServer, name: str) -> None:
    fields, match = BAD[name]
    server.lease()
    server.publish(make_publish(1, episodes=(Episode(3.0, 1),)))
    with pytest.raises(InvalidInputError, match=match):
        server.publish(make_publish(2, **fields))
    assert_is_publish(server, 1)
    assert (server.status().episodes, server.status().mean_return) == (1, 3.0)
    server.publish(make_publish(2))
    assert_is_publish(server, 2)


def test_after_the_end_a_publish_takes_no_effect() -> None:
    with make_server(stop=StopCondition(20)) as server:
        server.lease()
        assert "budget" in server.publish(make_publish(1)).finished
        reply = server.publish(make_publish(2))
        assert reply.outcome == "nothing"
        # Its steps were taken all the same.
        assert reply.global_t == 40
        assert_is_publish(server, 1, env_steps=40)
        assert "budget" in server.lease().finished


def test_counts_alone_change_no_values_and_end_the_training_too() -> None:
    with make_server(stop=StopCondition(30)) as server:
        server.lease()
        server.publish(make_publish(1))
        before = server.pull().values
        reply = server.count(Counts(env_steps=7, episodes=(Episode(3.0, 2),)))
        assert (reply.version, reply.global_t, reply.finished) == (1, 27, "")
        after = server.pull().values
        assert before is not None
        assert after is not None
        assert after.flat is before.flat
        assert_is_publish(server, 1, env_steps=27)
        assert "budget" in server.count(Counts(env_steps=3, episodes=(Episode(5.0, 2),))).finished
        # The mean return at the end of the training stays what it was.
        assert server.count(Counts(env_steps=4, episodes=(Episode(9.0, 2),))).global_t == 34
        assert (server.status().episodes, server.status().mean_return) == (2, 4.0)
        for counts in (Counts(env_steps=-1), Counts(env_steps=1, episodes=(Episode(NAN, 1),))):
            with pytest.raises(InvalidInputError):
                server.count(counts)
        assert server.global_t == 34


def test_a_publish_can_reach_the_target() -> None:
    with make_server(stop=StopCondition(target_return=5.0), window=2) as server:
        server.lease()
        assert not server.publish(make_publish(1, episodes=(Episode(9.0, 1),))).finished
        assert server.publish(make_publish(2, episodes=(Episode(1.0, 1),))).finished


def test_a_publish_waits_while_too_many_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()
    monkeypatch.setattr(parameter_server, "QUEUE_SIZE", 1)
    with make_server() as server:
        real = Applier._apply

        def apply(self: Applier, push: Push) -> Reply:
            entered.set()
            assert release.wait(20)
            return real(self, push)

        monkeypatch.setattr(Applier, "_apply", apply)
        first = Caller(lambda: server.push(Push(client_id="a", env_steps=1)))
        assert entered.wait(20)
        second = Caller(lambda: server.push(Push(client_id="b", env_steps=1)))
        wait_until(lambda: len(server._queue._waiting) == 1, "a full queue")
        publisher = Caller(lambda: server.publish(make_publish(1)))
        release.set()
        assert publisher.get().outcome == "applied"
        assert {first.get().outcome, second.get().outcome} == {"nothing"}
        assert server.global_t == 22


# Others' gradients.


def test_before_a_lease_gradients_are_applied(server: ParameterServer) -> None:
    assert server.push(make_push(server)).outcome == "applied"


@pytest.mark.parametrize("kind", ["gradient", "statistics"])
def test_while_leased_gradients_and_statistics_of_others_are_refused(kind: str) -> None:
    variables = [
        Variable("W1", np.zeros((2, 3), np.float32)),
        *(
            Variable(f"x.{part}", np.zeros(size, dtype), kind="statistic")
            for part, size, dtype in (
                ("count", (), np.float64),
                ("mean", (2,), np.float64),
                ("m2", (2,), np.float64),
            )
        ),
    ]
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    with ParameterServer(
        Store(manifest, flat, {"default": OptimizerConfig(name="sgd")}), metrics=NullMetrics()
    ) as server:
        server.lease()
        statistics = {"x": Moments.of(np.ones((3, 2)))}
        push = (
            make_push(server, gradient=np.ones(6, np.float32).view(np.uint8))
            if kind == "gradient"
            else Push(client_id="agent", statistics=statistics)
        )
        with pytest.raises(LeasedError, match=r"learner\.placement: server"):
            server.push(push)
        assert server.version == 0
        assert server.status().refused == {"leased": 1}


def test_a_gradient_that_was_waiting_when_the_lease_came_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with make_server() as server:
        waits, goes_on = threading.Event(), threading.Event()
        real = Applier._apply

        def apply(self: Applier, push: Push) -> Reply:
            waits.set()
            assert goes_on.wait(20)
            return real(self, push)

        monkeypatch.setattr(Applier, "_apply", apply)
        caller = Caller(lambda: server.push(make_push(server)))
        assert waits.wait(20)
        lease = server.lease()
        goes_on.set()
        with pytest.raises(LeasedError):
            caller.get()
        assert server.version == lease.version == 0
        np.testing.assert_array_equal(read(server), 0.0)


def test_steps_of_others_are_counted_while_leased(server: ParameterServer) -> None:
    server.lease()
    assert server.push(Push(client_id="agent", env_steps=5)).global_t == 5
    assert server.publish(make_publish(1)).global_t == 25


def test_over_the_bridge_the_refusal_is_final(server: ParameterServer) -> None:
    server.lease()
    with serve(server) as address, BridgeControl().connect(address) as link:
        client = link.parameter_server_stub(timeout_sec=10)
        with pytest.raises(LeasedError, match=r"placement: server"):
            client.push_pull(ONES)
        assert client.discarded_pushes == 0
        # Values can be read all the same.
        np.testing.assert_array_equal(client.get_values()[0], 0.0)


# After a crash, the newest of snapshot and published state.


def crash(server: ParameterServer) -> None:
    """Ends a server as `kill -9` does: nothing more is written, and the folder is free."""
    server.close(save=False)


def test_a_crash_costs_no_publish(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    for number in range(1, 6):
        server.publish(make_publish(number, episodes=(Episode(float(number), 1),)))
        crash(server)
        server = make_server(tmp_path)
        assert_is_publish(server, number)
        assert server.status().episodes == number
        assert server.publish(make_publish(number, value=99.0)).outcome == "nothing"
    crash(server)


@pytest.mark.parametrize("saves", [False, True])
def test_a_crash_costs_no_count_and_keeps_what_it_contains(tmp_path: Path, saves: bool) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1, received={"one": Received(7, 3, 2)}))
    for more in (1, 2, 3):  # the values are those of one version, in whichever file
        if saves:
            server.save_checkpoint()
        received = {"one": Received(7, 3 + more, 2), "two": Received(8, more, more)}
        server.count(Counts(env_steps=more, received=received))
        crash(server)
        server = make_server(tmp_path)
        assert_is_publish(server, 1, env_steps=20 + sum(range(more + 1)))
        assert server.lease().received == received
    crash(server)


@pytest.mark.parametrize("table", [[1], {"one": [1, 2]}, {"one": "abc"}, {"one": 3}])
def test_a_table_of_received_experience_that_cannot_be_read_is_named(
    tmp_path: Path, table: Any
) -> None:
    server = make_server(tmp_path)
    server._applier._export_statistics = lambda: {"received": table}  # type: ignore[method-assign]
    server.lease()
    server.publish(make_publish(1))
    server.close()
    with pytest.raises(SnapshotError, match="list of received experience"):
        make_server(tmp_path)


def test_a_restart_says_which_publish_it_took_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))
    crash(server)
    crash(make_server(tmp_path))
    assert "restored publication 1, step 20" in caplog.text


def test_a_snapshot_that_is_newer_than_the_published_state_wins(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))
    server.publish(make_publish(2))
    kept = {name: (tmp_path / name).read_bytes() for name in NAMES}
    server.publish(make_publish(3))
    server.save_checkpoint()
    crash(server)
    for name, data in kept.items():
        (tmp_path / name).write_bytes(data)
    server = make_server(tmp_path)
    assert_is_publish(server, 3)
    crash(server)


def test_a_published_state_of_the_snapshots_version_changes_nothing(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))
    server.close()
    assert len(list_names(tmp_path)) == 2  # the first and this one
    server = make_server(tmp_path)
    assert_is_publish(server, 1)
    server.close()
    assert len(list_names(tmp_path)) == 2


def test_what_was_taken_up_is_saved_at_the_end(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))
    crash(server)
    make_server(tmp_path).close()
    for name in NAMES:
        (tmp_path / name).unlink(missing_ok=True)
    server = make_server(tmp_path)
    assert_is_publish(server, 1)
    crash(server)


def test_when_both_files_are_damaged_the_snapshot_is_there(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))
    server.save_checkpoint()
    for number in (2, 3):
        server.publish(make_publish(number))
    crash(server)
    for name in NAMES:
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-1])
    server = make_server(tmp_path)
    assert_is_publish(server, 1)
    crash(server)


def test_a_published_state_alone_is_enough(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    for number in (1, 2):
        server.publish(make_publish(number))
    crash(server)
    for name in list_names(tmp_path):
        for path in sorted((tmp_path / name).rglob("*"), reverse=True):
            path.unlink()
        (tmp_path / name).rmdir()
    server = make_server(tmp_path)
    assert_is_publish(server, 2)
    assert len(list_names(tmp_path)) == 1
    crash(server)


def test_a_failing_disk_costs_what_it_could_not_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwritev", fail)
        for number in (2, 3):
            assert server.publish(make_publish(number)).outcome == "applied"
    assert_is_publish(server, 3)
    assert caplog.text.count("a publication could not be written") == 1
    crash(server)
    server = make_server(tmp_path)
    assert_is_publish(server, 1)
    crash(server)


def test_a_crash_between_the_file_and_the_answer_keeps_the_publish(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    failpoints.arm("ps.after_publish=error@1")
    try:
        with pytest.raises(OSError, match="failpoint"):
            server.publish(make_publish(1))
    finally:
        failpoints.arm("")
    crash(server)
    server = make_server(tmp_path)
    assert_is_publish(server, 1)
    assert server.publish(make_publish(1)).outcome == "nothing"
    crash(server)


# A run that learned beside its agents, and one that does again.


def test_a_run_may_move_its_learner_into_the_server_and_back(tmp_path: Path) -> None:
    server = make_server(tmp_path, enabled=True)
    for _ in range(3):
        server.push(make_push(server, env_steps=2))
    crash(server)  # all three are in the journal alone
    server = make_server(tmp_path)
    assert (server.version, server.global_t) == (3, 6)
    assert server.lease().number == 0
    server.publish(make_publish(1))
    crash(server)
    # The published state is newer than the journal's records, which are not applied to it.
    server = make_server(tmp_path, enabled=True)
    assert (server.version, server.global_t) == (4, 26)
    np.testing.assert_array_equal(read(server), 1.0)
    server.push(make_push(server, env_steps=2))
    weights = read(server).copy()
    crash(server)
    # Back again: the journal continues from the published state.
    server = make_server(tmp_path, enabled=True)
    assert (server.version, server.global_t) == (5, 28)
    np.testing.assert_array_equal(read(server), weights)
    server.close()
    server = make_server(tmp_path)
    lease = server.lease()
    assert (lease.number, lease.version, lease.steps) == (1, 5, {"default": 11})
    server.publish(make_publish(2))
    crash(server)
    server = make_server(tmp_path)
    assert (server.version, server.lease().number) == (6, 2)
    crash(server)


def test_weights_from_before_a_publication_are_forgotten_at_a_restart(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    server.lease()
    server.publish(make_publish(1))
    crash(server)
    # Back beside its agents: gradients are compensated for the changes since the publication.
    server = make_server(tmp_path, enabled=True, combine=CombineConfig(method="dc"))
    history = server._applier.combiner._state.history
    values = history.find(1)
    assert values is not None
    np.testing.assert_array_equal(history.get_weights(values, ()), 1.0)
    crash(server)


def test_a_lease_on_a_full_disk_is_given_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(tmp_path, enabled=True)
    server.push(make_push(server, env_steps=2))
    crash(server)
    server = make_server(tmp_path)

    def fail(*_: Any) -> None:
        raise SnapshotError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "save", fail)
        assert server.lease().version == 1
    assert "the disk is full; training continues" in caplog.text
    assert server.snapshot_failures == 1
    server.publish(make_publish(1))
    server.close()
    server = make_server(tmp_path)
    assert (server.version, server.lease().number) == (2, 1)
    crash(server)


def test_a_kill_after_a_lease_on_a_full_disk_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication contains the journal's record, which cannot be replayed onto it."""
    server = make_server(tmp_path, enabled=True)
    server.push(make_push(server, env_steps=2))
    crash(server)
    server = make_server(tmp_path)

    def fail(*_: Any) -> None:
        raise SnapshotError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Snapshots, "save", fail)
        server.lease()
    server.publish(make_publish(1))
    crash(server)
    with pytest.raises(
        JournalError,
        match=r"continues version 0, step 0, but the restored state is already at version 2, step "
        r"22, as after a publication .* could be written\. Restore .*--to-last-good",
    ):
        make_server(tmp_path)


def test_a_run_that_learns_beside_its_agents_writes_no_published_state(tmp_path: Path) -> None:
    server = make_server(tmp_path, enabled=True)
    server.push(make_push(server))
    server.close()
    assert not [name for name in NAMES if (tmp_path / name).exists()]


def test_a_crash_loses_what_was_learned_since_the_newest_publication(tmp_path: Path) -> None:
    with make_server(tmp_path) as server:
        assert server.status().durability == "snapshot"
        server.lease()
        assert server.publish(make_publish(1)).durability == "publication"
        assert server.status().durability == "publication"
        for name in NAMES:
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).mkdir()  # a disk that fails
        assert server.publish(make_publish(2)).durability == "snapshot"


# Scores of tests. covers P18


def test_a_publish_with_a_score_is_kept_when_newer_snapshots_come(tmp_path: Path) -> None:
    with make_server(tmp_path, keep_best=1, scores_returns=False) as server:
        server.lease()
        assert server.best_score is None
        server.save_next_publication(7.5)
        server.publish(make_publish(1))
        assert server.best_score == 7.5
        server.publish(make_publish(2))
        server.save_checkpoint()
    best = read_best(tmp_path)
    assert best is not None
    assert (best.score, best.global_t) == (7.5, 20)
    assert len(list_names(tmp_path)) == 2
    with make_server(tmp_path, keep_best=1, scores_returns=False) as again:
        assert again.best_score == 7.5


def test_a_score_is_kept_when_the_same_state_is_saved_again(tmp_path: Path) -> None:
    with make_server(tmp_path, keep_best=1, scores_returns=False) as server:
        server.lease()
        server.save_next_publication(7.5)
        server.publish(make_publish(1))
        assert server.save_checkpoint() == tmp_path / list_names(tmp_path)[-1]
        assert server.best_score == 7.5
    best = read_best(tmp_path)
    assert best is not None
    assert (best.score, best.version) == (7.5, 1)


def test_a_target_that_was_reached_is_in_the_snapshot_that_reached_it(tmp_path: Path) -> None:
    with make_server(tmp_path, keep_best=1, scores_returns=False, target_score=7.0) as server:
        server.lease()
        server.publish(make_publish(1, score=7.5))
        assert "of an evaluation reached the target 7" in server.finished
        server.close(save=False)  # as if it were killed
    with make_server(tmp_path, keep_best=1, scores_returns=False, target_score=7.0) as again:
        assert "of an evaluation reached the target 7" in again.finished


def test_a_target_that_a_judged_state_reached_is_in_its_snapshot(tmp_path: Path) -> None:
    with make_server(tmp_path, keep_best=1, scores_returns=False, target_score=7.0) as server:
        server.save_judged(lambda state: 7.5)
        assert "of an evaluation reached the target 7" in server.finished
        server.close(save=False)  # as if it were killed
    with make_server(tmp_path, keep_best=1, scores_returns=False, target_score=7.0) as again:
        assert "of an evaluation reached the target 7" in again.finished


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_a_score_that_is_not_finite_does_not_prevent_what_is_written_later(
    score: float, tmp_path: Path
) -> None:
    with make_server(tmp_path, keep_best=1, scores_returns=False) as server:
        server.lease()
        server.publish(make_publish(1, score=score))
        assert server.best_score is None
        server.publish(make_publish(2, score=7.5))
        server.publish(make_publish(3))
        server.save_checkpoint()
        assert (server.best_score, server.snapshot_failures) == (7.5, 0)


def test_a_publish_that_is_refused_is_not_kept_as_the_best(tmp_path: Path) -> None:
    with make_server(tmp_path, keep_best=1, scores_returns=False) as server:
        server.lease()
        server.save_next_publication(7.5)
        with pytest.raises(InvalidInputError):
            server.publish(make_publish(1, np.nan))
        server.publish(make_publish(1))
        assert server.best_score is None


def test_returns_of_the_training_are_no_score_where_tests_are(tmp_path: Path) -> None:
    episodes = tuple(Episode(3.0, 20) for _ in range(100))
    for name, scores_returns, want in (("tests", False, None), ("training", True, 3.0)):
        with make_server(tmp_path / name, keep_best=1, scores_returns=scores_returns) as server:
            server.lease()
            server.publish(make_publish(1, episodes=episodes))
            server.save_checkpoint()
            assert server.best_score == want


def test_the_learning_rate_that_a_publish_was_made_with_is_a_curve() -> None:
    class Recorder(NullMetrics):
        def __init__(self) -> None:
            self.points: list[tuple[str, float, float | None]] = []

        def scalar(self, name: str, y: float, x: float | None = None) -> None:
            self.points.append((name, y, x))

    recorder = Recorder()
    with make_server(metrics=recorder) as server:
        server.lease()
        server.publish(make_publish(1))
    assert ("Optimizer/learning_rate/default", 0.1, 20) in recorder.points
    assert not [name for name, *_ in recorder.points if name == "Optimizer/staleness"]
