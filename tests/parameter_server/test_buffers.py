"""Buffers in the store: set to what a gradient has in their place, and again in a replay."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compare import compare

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Follow, Variable, find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Push
from relaax_like.parameter_server.initial_values import load_variables, save_variables
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.push_validation import Refused
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store

ADAM = OptimizerConfig(learning_rate=0.1)
VARIABLES = [
    Variable("actor/W", np.zeros(3, np.float32), "actor"),
    Variable("critic/W", np.zeros(2, np.float32), "critic"),
    Variable("critic/mean", np.full(2, 5.0, np.float32), "critic", "buffer"),
    Variable(
        "target/mean", np.full(2, 1.0, np.float32), kind="target", follow=Follow("critic/mean", 2)
    ),
    Variable("scale", np.array(9, np.int64), kind="constant"),
]
# Of all groups: three numbers of the actor, two of the critic, and its buffer.
NAMES = [variable.name for variable in VARIABLES]


def make_store() -> Store:
    manifest = make_manifest(VARIABLES)
    flat = manifest.pack([variable.value for variable in VARIABLES])
    return Store(manifest, flat, {"actor": ADAM, "critic": ADAM}, find_follows(VARIABLES))


def read_values(values: Any) -> dict[str, list[float]]:
    arrays = make_manifest(VARIABLES).unpack(values.flat)
    return {name: array.tolist() for name, array in zip(NAMES, arrays, strict=True)}


def test_a_gradient_sets_the_buffers_of_its_groups_and_their_targets() -> None:
    store = make_store()
    store.apply(np.float32([1, 1, 1, 1, 1, 7, 8]))
    named = read_values(store.values)
    assert named["critic/mean"] == [7.0, 8.0]
    assert named["critic/W"] == pytest.approx([-0.1, -0.1], rel=1e-4)  # a step of Adam
    assert (named["target/mean"], named["scale"]) == ([1.0, 1.0], 9)  # every second step
    store.apply(np.float32([1, 1, 1]), groups=("actor",))
    assert read_values(store.values)["critic/mean"] == [7.0, 8.0]
    store.apply(np.float32([1, 1, 3, 4]), groups=("critic",))
    named = read_values(store.values)
    assert (named["critic/mean"], named["target/mean"]) == ([3.0, 4.0], [3.0, 4.0])
    # The optimizer has no state of buffers.
    assert {g: slots.shape for g, slots in store.export_state().slots.items()} == {
        "actor": (2, 3),
        "critic": (2, 2),
    }


def make_push(client: str, sequence: int, *gradient: float, version: int = 0) -> Push:
    return Push(
        client_id=client,
        incarnation=1,
        sequence=sequence,
        gradient=np.float32(gradient).view(np.uint8),
        gradient_version=version,
        fingerprint=make_manifest(VARIABLES).fingerprint,
    )


def test_a_mean_of_gradients_sets_the_mean_of_the_new_values() -> None:
    combine = CombineConfig(method="avg", num_gradients=2)
    with ParameterServer(make_store(), metrics=NullMetrics(), combine=combine) as server:
        for client in "ab":
            server._applier.combiner.strategy.note_client(client)
        first = server.push(make_push("a", 1, 0, 0, 0, 0, 0, 2, 4))
        assert (first.outcome, read_values(server.pull().values)["critic/mean"]) == (
            "pending",
            [5.0, 5.0],
        )
        server.push(make_push("b", 1, 0, 0, 0, 0, 0, 4, 12))
        assert read_values(server.pull().values)["critic/mean"] == [3.0, 8.0]


@pytest.mark.parametrize("method", ["fifo", "dc"])
def test_the_last_of_several_learners_wins_and_nothing_corrects_it_for_its_delay(method) -> None:
    combine = CombineConfig(method=method)
    with ParameterServer(make_store(), metrics=NullMetrics(), combine=combine) as server:
        server.push(make_push("a", 1, 1, 1, 1, 1, 1, 20, 40))
        server.push(make_push("b", 1, 1, 1, 1, 1, 1, 2, 4))  # computed before that of a
        assert read_values(server.pull().values)["critic/mean"] == [2.0, 4.0]


def test_a_client_pushes_new_values_and_what_is_not_finite_is_refused() -> None:
    with (
        ParameterServer(make_store(), metrics=NullMetrics()) as server,
        InProcessClient(server, "client") as client,
    ):
        arrays = [np.ones(2, np.float32), np.float32([6, 7])]
        values = client.push_pull(arrays, ("critic",))
        np.testing.assert_array_equal(values[2], [6, 7])
        with pytest.raises(Refused, match="critic/mean"):
            server.push(make_push("a", 1, 1, 1, 1, 1, 1, np.nan, 1))


def test_kinds_survive_a_file_of_initial_values(tmp_path: Path) -> None:
    save_variables(tmp_path / "initial.npz", VARIABLES)
    loaded = load_variables(tmp_path / "initial.npz")
    assert make_manifest(loaded) == make_manifest(VARIABLES)
    assert find_follows(loaded) == find_follows(VARIABLES)


def open_server(folder: Path) -> ParameterServer:
    store = make_store()
    journal = PushJournal(folder / "journal", store.manifest.fingerprint)
    snapshots = Snapshots(folder, 3)
    server = ParameterServer(store, snapshots=snapshots, journal=journal, metrics=NullMetrics())
    server.restore_latest_checkpoint()
    return server


def push(server: ParameterServer, sequence: int) -> None:
    random = np.random.default_rng(sequence)
    server.push(make_push("a", sequence, *random.standard_normal(7)))


@pytest.mark.parametrize("saved", [0, 3])
def test_a_replay_of_the_journal_sets_them_again(tmp_path: Path, saved: int) -> None:
    server = open_server(tmp_path / "killed")
    for sequence in range(1, 6):
        push(server, sequence)
        if sequence == saved:
            server.save_checkpoint()
    wanted, _ = server._applier.export()
    # What a killed process leaves: its files, and none of what a stop would write.
    shutil.copytree(tmp_path / "killed", tmp_path / "left")
    last = np.random.default_rng(5).standard_normal(7).astype(np.float32)[5:]
    assert read_values(server.pull().values)["critic/mean"] == last.tolist()
    server.close(save=False)
    with open_server(tmp_path / "left") as again:
        state, _ = again._applier.export()
        assert compare(state.values, wanted.values) == ""
        assert compare(dict(state.slots), dict(wanted.slots)) == ""
        assert state.version == 5
