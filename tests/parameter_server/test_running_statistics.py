"""Running statistics in the store and in snapshots. covers P16, R22"""

import threading
from pathlib import Path

import numpy as np
import pytest

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import STATISTIC, Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import Push, Values
from relaax_like.parameter_server.initial_values import load_variables, save_variables
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import InvalidInputError

ROWS = np.array([1.0, 3.0, 8.0])  # mean 4, m2 26


def make_variables(size: int = 1, start: tuple[float, float, float] = (0, 0, 0)) -> list[Variable]:
    count, mean, m2 = start
    return [
        Variable("s.m2", np.full(size, m2, np.float64), kind=STATISTIC),
        Variable("w", np.arange(3, dtype=np.float32)),
        Variable("s.count", np.array(count, np.float64), kind=STATISTIC),
        Variable("s.mean", np.full(size, mean, np.float64), kind=STATISTIC),
    ]


def make_store(variables: list[Variable] | None = None, optimizer: str = "adam") -> Store:
    variables = variables or make_variables()
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    config = OptimizerConfig(name=optimizer, learning_rate=1.0)  # type: ignore[arg-type]
    return Store(manifest, flat, {"default": config})


def make_delta(rows: np.ndarray, size: int = 1) -> dict[str, Moments]:
    return {"s": Moments.of(np.repeat(rows[:, None], size, axis=1))}


def read(store: Store) -> list[float]:
    return [float(a.min()) for a in store.manifest.view_statistic(store.values.flat, "s")]


def test_statistics_alone_are_a_version_but_no_optimizer_step() -> None:
    one, other = make_store(), make_store()
    gradient = np.array([1.0, -2.0, 0.5], np.float32)
    one.apply(gradient)
    assert one.apply(None, 2, make_delta(ROWS[:2])) == 2
    assert one.apply(gradient, 3, make_delta(ROWS[2:])) == 3
    for _ in range(2):
        other.apply(gradient)
    assert (one.version, one.global_t, other.version) == (3, 5, 2)
    trainable = slice(0, one.manifest.gradient_bytes)
    # Adam's slots and step count went on as if nothing had come between.
    assert one.values.flat[trainable].tobytes() == other.values.flat[trainable].tobytes()
    assert one.export_state().steps == {"default": 2}
    assert read(one) == [3, 4, 26]


def test_held_values_keep_the_statistics_of_their_version() -> None:
    store = make_store()
    versions = [store.values]
    for row in ROWS:
        store.apply(None, 0, make_delta(np.array([row])))
        versions.append(store.values)
    seen = [store.manifest.view_statistic(values.flat, "s")[1].item() for values in versions]
    assert seen == [0, 1, 2, 4]


def test_a_reader_never_sees_a_half_merged_state() -> None:
    # The k-th row is k in all elements, so after n rows the mean is (n - 1) / 2 everywhere.
    size = 20_000
    store = make_store(make_variables(size))
    stop, errors = threading.Event(), []
    seen: set[int] = set()

    def read_on() -> None:
        held: list[Values] = []
        while not stop.is_set():
            held = [*held[-2:], store.values]
            for values in held:
                count, mean, _ = store.manifest.view_statistic(values.flat, "s")
                want = max(values.version - 1, 0) / 2
                if count != values.version or abs(mean - want).max() > 1e-9:
                    errors.append((values.version, float(count), mean.min(), mean.max()))
            seen.add(held[-1].version)

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    while (len(seen) < 20 or store.version < 200) and not errors:
        store.apply(None, 0, make_delta(np.array([float(store.version)]), size))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_largest_deltas_never_become_infinite() -> None:
    store = make_store()
    for sign in (1, -1) * 50:
        delta = Moments(2.0**40, np.full(1, sign * 1e100), np.full(1, 1e250))
        store.manifest.validate_moments("s", delta)
        store.apply(None, 0, {"s": delta})
    assert np.isfinite(read(store)).all()


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ((np.nan, 0, 0), "s.count: nan"),
        ((-1, 0, 0), "s.count: -1"),
        ((1, np.inf, 0), "s.mean: inf"),
        ((1, -1e200, 0), r"s.mean: -1e\+200"),
        ((1, 0, np.nan), "s.m2: nan"),
        ((1, 0, -1), "s.m2: -1"),
    ],
)
def test_a_run_does_not_start_from_impossible_statistics(
    start: tuple[float, float, float], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        make_store(make_variables(1, start))


def test_a_run_may_start_from_statistics_of_another_one(tmp_path: Path) -> None:
    save_variables(tmp_path / "values.npz", make_variables(2, (2, 2, 2)))
    store = make_store(load_variables(tmp_path / "values.npz"))
    store.apply(None, 0, make_delta(ROWS[2:], 2))
    assert read(store) == [3, 4, 26]


def open_server(path: Path, **options: int) -> ParameterServer:
    store = make_store(optimizer="sgd")
    return ParameterServer(store, snapshots=Snapshots(path), metrics=NullMetrics(), **options)


def make_push(server: ParameterServer, rows: np.ndarray, version: int = 0) -> Push:
    return Push(
        client_id="agent",
        gradient=np.ones(3, np.float32),
        gradient_version=version,
        gradient_epoch=server.epoch,
        env_steps=1,
        fingerprint=server.manifest.fingerprint,
        statistics=make_delta(rows),
    )


def read_server(server: ParameterServer) -> list[float]:
    values = server.pull().values
    assert values is not None
    return [float(a.min()) for a in server.manifest.view_statistic(values.flat, "s")]


def test_a_snapshot_keeps_them_and_a_restart_goes_on(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        server.push(make_push(server, ROWS[:1]))
        server.push(Push(client_id="agent", statistics=make_delta(ROWS[1:2])))  # no step at all
    with open_server(tmp_path) as server:
        assert server.restore_latest_checkpoint()
        assert (server.version, server.global_t) == (2, 1)
        assert read_server(server) == [2, 2, 2]
        server.push(make_push(server, ROWS[2:], version=2))
        assert read_server(server) == [3, 4, 26]


def test_a_dropped_gradient_takes_its_statistics_with_it(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        reply = server.push(make_push(server, ROWS, version=7))  # a version that never was
        assert reply.outcome == "dropped"
        assert (server.version, server.global_t, read_server(server)) == (0, 0, [0, 0, 0])


def test_after_the_end_nothing_is_merged_any_more(tmp_path: Path) -> None:
    with open_server(tmp_path, stop=StopCondition(1)) as server:
        server.push(make_push(server, ROWS))
        assert server.finished
        assert server.push(make_push(server, ROWS, version=1)).outcome == "dropped"
        server.push(Push(client_id="agent", statistics=make_delta(ROWS)))
        assert (server.version, read_server(server)) == (1, [3, 4, 26])


def test_a_bad_gradient_takes_its_statistics_with_it(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        push = make_push(server, ROWS)
        assert push.gradient is not None
        push.gradient[1] = np.nan
        with pytest.raises(InvalidInputError, match="w: "):
            server.push(push)
        assert (server.version, read_server(server)) == (0, [0, 0, 0])
