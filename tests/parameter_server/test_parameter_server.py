"""The parameter server in process: records, threads, the end, checkpoints.

covers R2, R11, R22, R24, R28, R29, R30
"""

import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.threads import WAIT_SEC, Caller, wait_until

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.records import Counts, Episode, Playing, Push, Reply
from relaax_like.parameter_server import parameter_server
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
    SnapshotError,
)

SGD = OptimizerConfig(name="sgd", learning_rate=1.0)


class ListMetrics(Metrics):
    def __init__(self) -> None:
        self.points: list[tuple[str, float, float | None]] = []

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        self.points.append((name, y, x))

    def named(self, name: str) -> list[float]:
        return [y for point, y, _ in self.points if point == name]


class BlockedStore(Store):
    """A store whose steps wait for a permit: holds the apply thread where a test wants it."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.entered = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def prepare(self, *record: Any) -> Any:
        self.entered.release()
        assert self.permits.acquire(timeout=WAIT_SEC)
        return super().prepare(*record)


def make_store(
    size: int = 4, config: OptimizerConfig = SGD, store_class: type[Store] = Store
) -> Any:
    manifest = make_manifest(
        [
            Variable("w1", np.zeros((2, size), np.float32)),
            Variable("w2", np.zeros(size, np.float32)),
        ]
    )
    flat = np.zeros(manifest.total_bytes, np.uint8)
    return store_class(manifest, flat, {"default": config})


@contextmanager
def run_server(store: Store | None = None, **options: Any) -> Iterator[ParameterServer]:
    options.setdefault("metrics", NullMetrics())
    server = ParameterServer(store or make_store(), **options)
    try:
        yield server
    finally:
        server.close(save=False)


def make_push(server: ParameterServer, value: float = -1.0, **changes: Any) -> Push:
    gradient = np.full(server.manifest.gradient_bytes // 4, value, np.float32)
    fields: dict[str, Any] = {
        "client_id": "agent",
        "gradient": gradient.view(np.uint8),
        "gradient_version": server.version,
        "fingerprint": server.manifest.fingerprint,
    }
    return Push(**{**fields, **changes})


def pull_weights(server: ParameterServer) -> np.ndarray:
    values = server.pull().values
    assert values is not None
    return values.flat.view(np.float32)


# Records.


def test_gradient_steps_and_episodes_take_effect_together() -> None:
    with run_server() as server:
        push = make_push(server, env_steps=5, episodes=(Episode(3.0, 5),))
        reply = server.push(push)
        assert (reply.outcome, reply.version, reply.global_t) == ("applied", 1, 5)
        assert reply.values is None
        np.testing.assert_array_equal(pull_weights(server), 1.0)
        status = server.status()
        assert (status.version, status.global_t, status.episodes) == (1, 5, 1)
        assert (status.mean_return, status.return_episodes) == (3.0, 1)
        assert (status.clients, status.parameters) == (1, 12)
        assert status.env_steps_per_sec > 0


def test_steps_without_gradient_make_no_version() -> None:
    with run_server() as server:
        reply = server.push(Push(client_id="agent", env_steps=7))
        assert (reply.outcome, reply.version, reply.global_t) == ("nothing", 0, 7)


def test_pull_gives_values_only_when_they_are_newer() -> None:
    with run_server() as server:
        first = server.pull("agent")
        assert first.values is not None
        assert server.pull("agent", have_version=0).values is None
        server.push(make_push(server))
        second = server.pull("agent", have_version=0)
        assert second.values is not None
        assert (second.values.version, second.version) == (1, 1)
        # A client that is ahead of a server that went back to a snapshot gets values, too.
        assert server.pull("agent", have_version=9).values is not None
        assert first.values.flat.tobytes() == bytes(48)


BAD_PUSHES: list[tuple[str, dict[str, Any], str, str]] = [
    ("no client id", {"client_id": ""}, "client_id", "bad client id"),
    ("long client id", {"client_id": "x" * 201}, "client_id", "bad client id"),
    ("unprintable client id", {"client_id": "a\nb"}, "client_id", "bad client id"),
    ("negative steps", {"env_steps": -1}, "env_steps", "bad count"),
    ("too many steps", {"env_steps": 2**40 + 1}, "env_steps", "bad count"),
    ("half a step", {"env_steps": 0.5}, "env_steps", "bad count"),
    ("NaN return", {"episodes": (Episode(1.0, 1), Episode(float("nan"), 1))}, "1", "bad episode"),
    ("infinite return", {"episodes": (Episode(float("-inf"), 1),)}, "0", "bad episode"),
    ("no length", {"episodes": (Episode(1.0, 0),)}, r"0.*length", "bad episode"),
    ("too many episodes", {"episodes": (Episode(1.0, 1),) * 1_001}, "1001", "bad episode"),
    ("foreign layout", {"fingerprint": 12345}, "fingerprint", "foreign layout"),
    ("negative version", {"gradient_version": -1}, "gradient_version", "bad count"),
    ("short gradient", {"gradient": np.zeros(44, np.uint8)}, "44 bytes", "wrong length"),
    ("empty gradient", {"gradient": np.zeros(0, np.uint8)}, "0 bytes", "wrong length"),
]


@pytest.mark.parametrize(
    ("changes", "message", "reason"), [c[1:] for c in BAD_PUSHES], ids=[c[0] for c in BAD_PUSHES]
)
def test_bad_push_has_no_effect_at_all(changes: dict[str, Any], message: str, reason: str) -> None:
    with run_server() as server:
        push = make_push(server, **{"env_steps": 3, "episodes": (Episode(1.0, 3),), **changes})
        with pytest.raises(InvalidInputError, match=message):
            server.push(push)
        status = server.status()
        assert (status.version, status.global_t, status.episodes) == (0, 0, 0)
        assert status.refused == {reason: 1}
        assert server.push(make_push(server)).outcome == "applied"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("index", "name"), [(0, "w1"), (7, "w1"), (8, "w2"), (11, "w2")])
def test_not_finite_gradient_names_the_variable(bad: float, index: int, name: str) -> None:
    with run_server() as server:
        gradient = np.ones(12, np.float32)
        gradient[index] = bad
        with pytest.raises(InvalidInputError, match=name) as caught:
            server.push(make_push(server, gradient=gradient.view(np.uint8), env_steps=1))
        assert caught.value.field == name
        assert not pull_weights(server).any()
        assert server.status().refused == {"not finite": 1}


def test_gradient_whose_square_overflows_is_refused() -> None:
    # Finite, but Adam's second moment would be infinite and the weight would never move again.
    with run_server(make_store(config=OptimizerConfig())) as server:
        with pytest.raises(InvalidInputError, match="norm"):
            server.push(make_push(server, 1e30))
        server.push(make_push(server, 1e18))
        server.push(make_push(server, 1.0))
        assert np.isfinite(pull_weights(server)).all()


def test_one_poisoned_client_does_not_disturb_the_others() -> None:
    with run_server() as server:
        stop = threading.Event()

        def poison() -> int:
            count = 0
            while not stop.is_set() or count < 20:
                with pytest.raises(InvalidInputError):
                    server.push(make_push(server, np.nan, client_id="poisoned"))
                count += 1
            return count

        poisoned = Caller(poison)
        for _ in range(50):
            assert server.push(make_push(server), WAIT_SEC).outcome == "applied"
        stop.set()
        count = poisoned.get()
        assert server.version == 50
        np.testing.assert_array_equal(pull_weights(server), 50.0)
        assert server.status().refused == {"not finite": count}


def test_bad_client_id_in_a_pull_is_refused() -> None:
    with run_server() as server, pytest.raises(InvalidInputError, match="client_id"):
        server.pull("x" * 1000)


def test_env_steps_cannot_overflow_global_t() -> None:
    store = make_store()
    store.apply(None, env_steps=2**62 - 1)
    with run_server(store) as server:
        with pytest.raises(InvalidInputError, match="env_steps"):
            server.push(Push(client_id="agent", env_steps=2))
        assert server.push(Push(client_id="agent", env_steps=1)).global_t == 2**62


# Threads.


def test_many_threads_lose_no_push_and_see_whole_versions() -> None:
    # Rate 1 and gradient -1: every weight equals the version, in every pull.
    threads, pushes, size = 4, 60, 20_000
    with run_server(make_store(size)) as server:
        start = threading.Barrier(threads)

        def work(number: int) -> list[int]:
            start.wait(WAIT_SEC)
            versions = []
            for _ in range(pushes):
                push = make_push(
                    server, client_id=f"agent-{number}", env_steps=3, episodes=(Episode(1.0, 3),)
                )
                versions.append(server.push(push, WAIT_SEC).version)
                values = server.pull(f"agent-{number}").values
                assert values is not None
                weights = values.flat.view(np.float32)
                assert weights.min() == weights.max() == values.version >= versions[-1]
            return versions

        callers = [Caller(lambda number=number: work(number)) for number in range(threads)]  # type: ignore[misc]
        versions = [version for caller in callers for version in caller.get()]
        total = threads * pushes
        assert sorted(versions) == list(range(1, total + 1))
        status = server.status()
        assert (status.version, status.global_t, status.episodes) == (total, 3 * total, total)
        assert status.clients == threads


def test_timed_out_push_is_withdrawn_and_never_applied() -> None:
    store = make_store(store_class=BlockedStore)
    with run_server(store) as server:
        first = Caller(lambda: server.push(make_push(server, env_steps=1)))
        assert store.entered.acquire(timeout=WAIT_SEC)  # the apply thread is busy now
        with pytest.raises(TimeoutError, match="withdrawn"):
            server.push(make_push(server, env_steps=100), timeout_sec=0.05)
        third = Caller(lambda: server.push(make_push(server, env_steps=10)))
        store.permits.release(2)
        assert first.get().global_t == 1
        assert third.get().global_t == 11
        assert server.version == 2
        assert server.status().refused == {"timeout": 1}


def test_push_that_was_taken_before_its_time_ran_out_is_answered() -> None:
    store = make_store(store_class=BlockedStore)
    with run_server(store) as server:
        caller = Caller(lambda: server.push(make_push(server, env_steps=1), timeout_sec=0.02))
        assert store.entered.acquire(timeout=WAIT_SEC)
        caller.join(0.1)  # longer than its time; that it still waits is checked below
        assert caller.is_alive()
        store.permits.release()
        reply = caller.get()
        assert (reply.outcome, reply.version, reply.global_t) == ("applied", 1, 1)


def test_push_beyond_the_queue_is_refused_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(store_class=BlockedStore)
    monkeypatch.setattr(parameter_server, "QUEUE_SIZE", 2)
    with run_server(store) as server:
        callers = [Caller(lambda: server.push(make_push(server, env_steps=1)))]
        assert store.entered.acquire(timeout=WAIT_SEC)
        callers += [Caller(lambda: server.push(make_push(server, env_steps=1))) for _ in range(2)]
        wait_until(lambda: len(server._queue._waiting) == 2, "two that wait")
        with pytest.raises(ServerUnavailableError, match="busy"):
            server.push(make_push(server))
        assert server.pull().version == 0  # a pull waits for nothing
        store.permits.release(3)
        assert sorted(caller.get().version for caller in callers) == [1, 2, 3]
        assert server.status().refused == {"busy": 1}


def test_failure_while_applying_costs_this_push_only(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Store):
        fail = True

        def prepare(self, *record: Any) -> Any:
            if self.fail:
                raise MemoryError("no room")
            return super().prepare(*record)

    store = make_store(store_class=Failing)
    with run_server(store) as server:
        with pytest.raises(MemoryError):
            server.push(make_push(server, env_steps=1, episodes=(Episode(1.0, 1),)))
        assert (server.status().episodes, server.global_t) == (0, 0)
        store.fail = False
        assert server.push(make_push(server)).version == 1


def test_metrics_that_fail_do_not_stop_the_training() -> None:
    class Failing(Metrics):
        def scalar(self, name: str, y: float, x: float | None = None) -> None:
            raise RuntimeError("no recorder")

    now = [0.0]
    with run_server(metrics=Failing(), clock=lambda: now[0]) as server:
        for _ in range(3):
            now[0] += 2
            assert server.push(make_push(server)).outcome == "applied"


def test_staleness_is_recorded_as_a_mean_once_a_second() -> None:
    now, metrics = [0.0], ListMetrics()
    server = ParameterServer(make_store(), metrics=metrics, clock=lambda: now[0])
    for _ in range(3):
        server.push(make_push(server, gradient_version=0, env_steps=1))  # 0, 1, 2
    assert metrics.points == []
    now[0] = 1.5
    server.push(make_push(server, gradient_version=3, env_steps=1))  # 0
    wait_until(lambda: len(metrics.points) == 2, "the first points")
    server.push(make_push(server, gradient_version=2))  # 2
    server.close()
    assert metrics.named("Optimizer/staleness") == [0.75, 2.0]
    assert metrics.named("Optimizer/learning_rate/default") == [1.0, 1.0]
    assert metrics.points[0][2] == 4
    assert server.metrics() is metrics


# The end.


def test_budget_ends_the_training_and_later_gradients_are_dropped() -> None:
    with run_server(stop=StopCondition(10)) as server:
        assert server.push(make_push(server, env_steps=9)).finished == ""
        assert server.wait_finished(0.0) == ""
        # The last push goes over the budget: its experience is used, not lost.
        last = server.push(make_push(server, env_steps=4))
        assert (last.outcome, last.global_t, last.version) == ("applied", 13, 2)
        assert last.finished == "budget of 10 env steps used up"
        assert server.wait_finished() == server.finished == last.finished
        late = server.push(make_push(server, env_steps=4, episodes=(Episode(1.0, 1),)))
        assert (late.outcome, late.reason) == ("dropped", "training has finished")
        # Its steps were taken all the same.
        assert (late.version, late.global_t) == (2, 17)
        steps = server.push(Push(client_id="agent", env_steps=5))
        assert (steps.outcome, steps.global_t) == ("nothing", 22)
        assert server.status().episodes == 0
        assert server.status().finished == server.pull().finished == last.finished


def test_steps_alone_use_up_the_budget() -> None:
    with run_server(stop=StopCondition(10)) as server:
        waiting = Caller(lambda: server.wait_finished(WAIT_SEC))
        assert server.push(Push(client_id="agent", env_steps=10)).global_t == 10
        assert waiting.get() == "budget of 10 env steps used up"


def test_episodes_use_up_their_budget() -> None:
    # covers F31, J15
    with run_server(stop=StopCondition(max_episodes=3)) as server:
        assert not push_episode(server, 1.0).finished
        assert not push_episode(server, 2.0).finished
        assert push_episode(server, 3.0).finished == "budget of 3 episodes used up"
        assert server.status().episodes == 3


def test_target_counts_only_over_a_full_window() -> None:
    with run_server(stop=StopCondition(target_return=2.5), window=4) as server:
        for episode_return in (9.0, 9.0, -9.0):
            assert not push_episode(server, episode_return).finished
        assert not push_episode(server, 0.0).finished  # 9, 9, -9, 0: 2.25
        reply = push_episode(server, 10.0)  # 9, -9, 0, 10: 2.5
        assert reply.finished == "mean return 2.5 of the last 4 episodes reached the target 2.5"
        # It stays finished, whatever came later.
        assert push_episode(server, -100.0).finished == reply.finished


PLAYS, LEAVES = Playing("robot", 2, 0), Playing("robot", 0, 0)


def leave_with_a_push(server: ParameterServer) -> None:
    server.push(
        Push(
            client_id="learner", env_steps=7, episodes=(PLAYS, Episode(-9.0, 7, 0, "robot"), LEAVES)
        )
    )


def leave_without_steps(server: ParameterServer) -> None:
    server.push(Push(client_id="learner", episodes=(PLAYS, LEAVES)))


def leave_through_a_learner(server: ParameterServer) -> None:
    server.count(Counts(env_steps=7, episodes=(PLAYS, Episode(-9.0, 7, 0, "robot"), LEAVES)))


@pytest.mark.parametrize("leave", [leave_with_a_push, leave_without_steps, leave_through_a_learner])
def test_after_the_end_it_knows_who_still_plays_and_the_mean_return_stays(leave: Any) -> None:
    with run_server(stop=StopCondition(target_return=2.0), window=2) as server:
        assert not server.has_players
        episodes = (
            Playing("robot", 2, 4),
            Episode(2.0, 2, 0, "robot"),
            Episode(2.0, 2, 1, "robot"),
        )
        assert server.push(Push(client_id="learner", env_steps=4, episodes=episodes)).finished
        assert server.has_players
        leave(server)
        assert not server.has_players
        assert (server.status().mean_return, server.status().episodes) == (2.0, 2)


def test_plain_agents_play_until_they_are_notified() -> None:
    with run_server(stop=StopCondition(5)) as server:
        server.push(make_push(server, client_id="one", sequence=1, env_steps=4))
        server.push(make_push(server, client_id="two", sequence=1, env_steps=4))
        assert server.has_players
        assert server.pull("one").finished
        assert not server.has_players


def push_episode(server: ParameterServer, episode_return: float) -> Reply:
    push = Push(client_id="agent", env_steps=1, episodes=(Episode(episode_return, 1),))
    return server.push(push)


def test_one_push_may_bring_more_episodes_than_the_window() -> None:
    with run_server(stop=StopCondition(target_return=1.0), window=2) as server:
        episodes = tuple(Episode(r, 1) for r in (-100, -100, 1, 1))
        assert server.push(Push(client_id="agent", env_steps=4, episodes=episodes)).finished


@pytest.mark.parametrize("options", [{"every_sec": 0.0}, {"every_env_steps": -1}])
def test_impossible_interval_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="every"):
        Snapshots(tmp_path, **options)


def test_impossible_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_global_step: 0"):
        StopCondition(0)


def test_impossible_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="target"):
        StopCondition(target_return=float("nan"))


# Checkpoints.


def open_server(
    directory: Path,
    config: OptimizerConfig = SGD,
    keep: int = 3,
    every_sec: float | None = None,
    every_env_steps: int | None = None,
    **options: Any,
) -> ParameterServer:
    options.setdefault("metrics", NullMetrics())
    snapshots = Snapshots(
        directory, keep=keep, every_sec=every_sec, every_env_steps=every_env_steps
    )
    return ParameterServer(make_store(config=config), snapshots=snapshots, **options)


def push_random(server: ParameterServer, seeds: range) -> None:
    for seed in seeds:
        random = np.random.default_rng(seed)
        gradient = random.normal(size=12).astype(np.float32)
        push = make_push(
            server,
            gradient=gradient.view(np.uint8),
            env_steps=seed,
            episodes=(Episode(float(seed), seed + 1),),
        )
        server.push(push)


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd"])
def test_resumed_equals_uninterrupted(tmp_path: Path, name: str) -> None:
    config = OptimizerConfig(
        name=name,  # type: ignore[arg-type]
        momentum=0.9 if name in ("rmsprop", "sgd") else 0.0,
        schedule="linear",
        learning_rate=0.1,
        learning_rate_end=0.01,
        schedule_env_steps=200,
    )
    store = make_store(config=config)
    with run_server(store) as whole:
        push_random(whole, range(20))
        want, status = store.export_state(), whole.status()
    for part in (range(0, 7), range(7, 8), range(8, 20)):  # two restarts
        server = open_server(tmp_path, config)
        assert server.restore_latest_checkpoint() == (part.start > 0)
        if not part.start:
            first = server.epoch
        push_random(server, part)
        server.close()
    server = open_server(tmp_path, config)
    assert server.restore_latest_checkpoint()
    got = server._store.export_state()
    assert (got.version, got.global_t, got.steps) == (want.version, want.global_t, want.steps)
    assert got.values.tobytes() == want.values.tobytes()
    assert got.slots["default"].tobytes() == want.slots["default"].tobytes()
    restored = server.status()
    assert restored.mean_return == status.mean_return
    assert (restored.episodes, restored.epoch) == (20, first + 3)
    assert restored.snapshot_global_t == want.global_t
    assert restored.checkpoint_dir == str(tmp_path)
    server.close()


def test_nothing_to_restore_and_no_place_for_snapshots(tmp_path: Path) -> None:
    with run_server() as server:
        assert server.restore_latest_checkpoint() is False
        assert server.save_checkpoint() is None
        assert server.status().checkpoint_dir == ""
    server = open_server(tmp_path)
    assert server.restore_latest_checkpoint() is False
    server.close()


def list_snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("cp-"))


def test_close_saves_only_what_is_new(tmp_path: Path) -> None:
    open_server(tmp_path).close()
    assert list_snapshots(tmp_path) == []  # nothing happened: nothing to lose
    server = open_server(tmp_path)
    push_random(server, range(1, 3))
    path = server.save_checkpoint()
    assert path is not None
    before = (path / "values.npy").stat().st_ino
    assert server.save_checkpoint() == path
    server.close()
    server.close()
    assert (path / "values.npy").stat().st_ino == before
    assert list_snapshots(tmp_path) == [path.name] == [f"cp-{3:020d}-{2:020d}"]


def test_close_without_saving_writes_nothing(tmp_path: Path) -> None:
    server = open_server(tmp_path)
    push_random(server, range(1, 3))
    server.close(save=False)
    assert list_snapshots(tmp_path) == []


def test_close_applies_what_waits_and_refuses_what_comes(tmp_path: Path) -> None:
    store = make_store(store_class=BlockedStore)
    server = ParameterServer(store, snapshots=Snapshots(tmp_path), metrics=NullMetrics())
    callers = [Caller(lambda: server.push(make_push(server, env_steps=1))) for _ in range(5)]
    assert store.entered.acquire(timeout=WAIT_SEC)
    wait_until(lambda: len(server._queue._waiting) == 4, "four that wait")
    closing = Caller(server.close)
    wait_until(lambda: server._closed, "the server closes")
    with pytest.raises(ServerUnavailableError, match="closing"):
        server.push(make_push(server))
    store.permits.release(5)
    closing.get()
    assert sorted(caller.get().version for caller in callers) == [1, 2, 3, 4, 5]
    assert list_snapshots(tmp_path) == [f"cp-{5:020d}-{5:020d}"]
    assert server.pull().version == 5  # reading continues


def test_damaged_newest_snapshot_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = open_server(tmp_path)
    push_random(server, range(1, 3))
    server.save_checkpoint()
    push_random(server, range(3, 5))
    newest = server.save_checkpoint()
    server.close()
    assert newest is not None
    (newest / "values.npy").write_bytes(b"")
    server = open_server(tmp_path)
    assert server.restore_latest_checkpoint()
    assert (server.version, server.global_t) == (2, 3)
    assert newest.name in caplog.text
    server.close()


def test_all_snapshots_damaged_is_no_fresh_start(tmp_path: Path) -> None:
    server = open_server(tmp_path)
    push_random(server, range(1, 3))
    path = server.save_checkpoint()
    assert path is not None
    (path / "manifest.json").unlink()
    server.close()
    server = open_server(tmp_path)
    with pytest.raises(SnapshotError, match="damaged"):
        server.restore_latest_checkpoint()
    server.close()
    assert list_snapshots(tmp_path) == [path.name]  # nothing written over the evidence


def test_restored_budget_is_used_up_at_once(tmp_path: Path) -> None:
    server = open_server(tmp_path)
    server.push(make_push(server, env_steps=50))
    server.close()
    for budget, finished in ((50, True), (51, False)):
        server = open_server(tmp_path, stop=StopCondition(budget))
        server.restore_latest_checkpoint()
        assert bool(server.finished) == finished
        server.close()


def test_restored_target_goes_on_with_the_old_episodes(tmp_path: Path) -> None:
    server = open_server(tmp_path, stop=StopCondition(target_return=5.0), window=3)
    push_episode(server, 5.0)
    push_episode(server, 5.0)
    server.close()
    server = open_server(tmp_path, stop=StopCondition(target_return=5.0), window=3)
    server.restore_latest_checkpoint()
    assert not server.finished
    assert push_episode(server, 5.0).finished
    server.close()


def test_snapshots_by_env_steps(tmp_path: Path) -> None:
    server = open_server(tmp_path, keep=100, every_env_steps=10)
    for _ in range(9):
        server.push(Push(client_id="agent", env_steps=1))
    server.push(Push(client_id="agent", env_steps=1))
    wait_until(lambda: len(list_snapshots(tmp_path)) == 1, "the first snapshot")
    wait_until(lambda: server.status().snapshot_global_t == 10, "its number")
    server.push(Push(client_id="agent", env_steps=25))
    wait_until(lambda: server.status().snapshot_global_t == 35, "the second one")
    server.push(Push(client_id="agent", env_steps=9))
    server.close(save=False)
    assert list_snapshots(tmp_path) == [f"cp-{t:020d}-{0:020d}" for t in (10, 35)]


def test_snapshots_by_time_only_when_global_t_moved(tmp_path: Path) -> None:
    server = open_server(tmp_path, keep=100, every_sec=0.01)
    attempts: list[int] = []
    assert server._saver is not None
    save_if_moved = server._saver._save_if_moved

    def save_and_count() -> None:
        save_if_moved()
        attempts.append(1)

    server._saver._save_if_moved = save_and_count  # type: ignore[method-assign]
    for global_t in (1, 2):
        server.push(Push(client_id="agent", env_steps=1))
        wait_until(lambda t=global_t: server.status().snapshot_global_t == t, "a snapshot")  # type: ignore[misc]
        done = len(attempts)
        wait_until(lambda n=done: len(attempts) > n + 3, "some more looks at global_t")  # type: ignore[misc]
        assert len(list_snapshots(tmp_path)) == global_t
    server.close()


def test_full_disk_costs_one_line_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = open_server(tmp_path, every_env_steps=10)
    server.push(make_push(server, env_steps=10))
    wait_until(lambda: server.status().snapshot_global_t == 10, "the first snapshot")

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(os, "fsync", fsync)
        server.push(make_push(server, env_steps=10))
        wait_until(lambda: server.snapshot_failures == 1, "the failure")
        for _ in range(9):  # no second attempt before its turn
            assert server.push(make_push(server, env_steps=1)).outcome == "applied"
        assert server.snapshot_failures == 1
        with pytest.raises(SnapshotError, match="No space left"):
            server.save_checkpoint()
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [("No space left" in r.message, r.exc_info) for r in errors] == [(True, None)]
    assert list_snapshots(tmp_path) == [f"cp-{10:020d}-{1:020d}"]
    server.push(make_push(server, env_steps=10))
    wait_until(lambda: server.status().snapshot_global_t == 39, "room again")
    server.close()


def test_close_that_cannot_save_says_so_and_has_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = open_server(tmp_path)
    server.push(make_push(server, env_steps=1))

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(SnapshotError, match="No space left"):
            server.close()
    open_server(tmp_path).close()  # the folder is free


def test_serving_goes_on_while_a_snapshot_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = open_server(tmp_path)
    server.push(make_push(server, env_steps=1))
    writing, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow_fsync(descriptor: int) -> None:
        writing.set()
        assert go_on.wait(WAIT_SEC)
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", slow_fsync)
        saving = Caller(server.save_checkpoint)
        assert writing.wait(WAIT_SEC)
        for _ in range(5):
            assert server.push(make_push(server, env_steps=1), WAIT_SEC).outcome == "applied"
        assert server.pull().version == 6
        go_on.set()
        saving.get()
    server.close(save=False)
    # What was written is the state of the moment when it began.
    server = open_server(tmp_path)
    server.restore_latest_checkpoint()
    assert (server.version, server.global_t) == (1, 1)
    np.testing.assert_array_equal(pull_weights(server), 1.0)
    server.close()


def test_snapshots_taken_under_load_are_of_one_moment(tmp_path: Path) -> None:
    # Each push: version + 1, global_t + 2, one episode; each weight equals the version.
    server = open_server(tmp_path, keep=1000)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            server.push(make_push(server, env_steps=2, episodes=(Episode(0.0, 2),)), WAIT_SEC)

    callers = [Caller(work) for _ in range(2)]
    for _ in range(15):
        server.save_checkpoint()
    stop.set()
    for caller in callers:
        caller.get()
    server.close()
    with Snapshots(tmp_path, keep=1000) as snapshots:
        for _ in list_snapshots(tmp_path):
            state = snapshots.restore_latest(server.manifest)
            assert state is not None
            assert state.global_t == 2 * state.version == 2 * state.statistics["episodes"]
            np.testing.assert_array_equal(state.values.view(np.float32), state.version)
            (snapshots.path_of(state) / "manifest.json").unlink()
        with pytest.raises(SnapshotError):
            snapshots.restore_latest(server.manifest)


def test_threads_end_with_the_server(tmp_path: Path) -> None:
    before = threading.active_count()
    with open_server(tmp_path, every_sec=100.0, every_env_steps=100) as server:
        assert (
            threading.active_count() == before + 1
        )  # snapshots; pushes are applied by their callers
        server.push(make_push(server))
    assert threading.active_count() == before


def test_epoch_grows_without_a_folder_too() -> None:
    with run_server() as one:
        first = one.epoch
    wait_until(lambda: time.time_ns() // 1_000_000 > first, "the clock")
    with run_server() as other:
        assert other.pull().epoch == other.status().epoch == other.epoch > first


def test_every_refusal_is_a_user_error() -> None:
    with run_server() as server, pytest.raises(RelaaxError):
        server.push(make_push(server, client_id=""))


LOST = [
    # epoch (relative to the server's own), version -> is it lost? The restart restored version 2.
    ("a version that this start never had", 0, 4, True),
    ("the newest of this start", 0, 3, False),
    ("before the restored snapshot", -1, 2, False),
    ("after it, in the start before", -1, 3, True),
    ("of an unknown epoch", None, 3, False),
]


@pytest.mark.parametrize(
    ("epoch", "version", "lost"), [c[1:] for c in LOST], ids=[c[0] for c in LOST]
)
def test_gradient_of_a_version_that_a_restart_took_back_is_dropped(
    tmp_path: Path, epoch: int | None, version: int, lost: bool
) -> None:
    with run_server(snapshots=Snapshots(tmp_path)) as server:
        for _ in range(2):
            server.push(make_push(server))
        server.save_checkpoint()
    with run_server(snapshots=Snapshots(tmp_path)) as server:
        assert server.restore_latest_checkpoint()
        server.push(make_push(server, gradient_version=2))
        absolute = 0 if epoch is None else server.epoch + epoch
        push = make_push(server, gradient_version=version, gradient_epoch=absolute, env_steps=7)
        reply = server.push(push)
        assert reply.outcome == ("dropped" if lost else "applied")
        assert server.version == (3 if lost else 4)
        assert server.status().refused == ({"lost version": 1} if lost else {})
        if lost:
            assert "pull first" in reply.reason
            assert ("was lost in a restart" in reply.reason) == (epoch == -1)


def test_a_snapshot_folder_that_was_removed_under_the_server_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with run_server(snapshots=Snapshots(folder)) as server:
        server.push(make_push(server))
        shutil.rmtree(folder)
        saved = server.save_checkpoint()
        assert saved is not None
        assert saved.is_dir()


def test_the_end_waits_until_all_present_clients_have_been_told_and_no_longer() -> None:
    with run_server(stop=StopCondition(10)) as server:
        for name in ("one", "two"):
            server.pull(name)
        server.push(Push(client_id="one", env_steps=10))  # its reply says that it has ended
        told = threading.Event()

        def wait() -> None:
            server.wait_notified(60.0)
            told.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not told.wait(0.2)  # nobody has told two
        server.pull("two")
        assert told.wait(10.0)
        waiting.join()
