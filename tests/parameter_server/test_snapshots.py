"""Snapshots on a real disk: whole or absent, newest valid one, one server. covers R22, R24"""

import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relaax_like.bridge.manifest import STATISTIC, Manifest, Variable, make_manifest
from relaax_like.parameter_server.snapshots import Snapshots, State, read_latest
from relaax_like.wire.errors import ConfigError, SnapshotError


def make_layout(hidden: int = 3) -> Manifest:
    return make_manifest(
        [
            Variable("w1", np.zeros((2, hidden), np.float32), "actor"),
            Variable("w2", np.zeros(hidden, np.float32), "critic/é"),
            Variable("mean", np.zeros(2, np.float64), kind=STATISTIC),
        ]
    )


def make_state(global_t: int = 10, version: int = 2, manifest: Manifest | None = None) -> State:
    manifest = manifest or make_layout()
    random = np.random.default_rng(version)
    groups = manifest.groups()
    sizes = {group: part.stop - part.start for group, part in groups.items()}
    return State(
        manifest=manifest,
        version=version,
        global_t=global_t,
        values=random.integers(0, 256, manifest.total_bytes, np.uint8),
        slots={
            "actor": random.normal(size=(2, sizes["actor"])).astype(np.float32),
            "critic/é": np.zeros((0, sizes["critic/é"]), np.float32),
        },
        slot_names={"actor": ("first_moment", "second_moment"), "critic/é": ()},
        steps={"actor": version, "critic/é": version + 1},
        statistics={"returns": [1.5, 2.0], "episodes": 2},
    )


def assert_same(got: State | None, want: State) -> None:
    assert got is not None
    assert got.manifest == want.manifest
    assert (got.version, got.global_t) == (want.version, want.global_t)
    assert got.values.tobytes() == want.values.tobytes()
    assert got.slots.keys() == want.slots.keys()
    for group, slots in want.slots.items():
        assert got.slots[group].tobytes() == slots.tobytes()
        assert got.slots[group].shape == slots.shape
        assert got.slots[group].dtype == np.float32
    assert (got.slot_names, got.steps) == (want.slot_names, want.steps)
    assert got.statistics == want.statistics


def list_snapshots(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("cp-"))


def test_restored_is_what_was_saved(tmp_path: Path) -> None:
    with Snapshots(tmp_path / "new" / "folder") as snapshots:
        assert snapshots.restore_latest(make_layout()) is None
        path = snapshots.save(make_state())
        assert path == snapshots.path_of(make_state())
        assert_same(snapshots.restore_latest(make_layout()), make_state())
    assert path.name == "cp-00000000000000000010-00000000000000000002"


def test_newest_by_number_is_restored(tmp_path: Path) -> None:
    counts = [(9, 9), (10, 1), (10, 2), (2**64 - 1, 3), (100, 200)]
    with Snapshots(tmp_path, keep=10) as snapshots:
        for global_t, version in counts:
            snapshots.save(make_state(global_t, version))
        assert_same(snapshots.restore_latest(make_layout()), make_state(2**64 - 1, 3))


def test_oldest_are_deleted(tmp_path: Path) -> None:
    with Snapshots(tmp_path, keep=2) as snapshots:
        for version in range(1, 6):
            snapshots.save(make_state(10 * version, version))
        kept = [snapshots.path_of(make_state(10 * v, v)).name for v in (4, 5)]
    assert list_snapshots(tmp_path) == kept
    assert sorted(p.name for p in tmp_path.iterdir()) == [*kept, "epoch", "lock"]


def test_saving_the_same_state_again_replaces_it(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state())
        (path / "values.npy").write_bytes(b"damaged")
        assert snapshots.save(make_state()) == path
        assert_same(snapshots.restore_latest(make_layout()), make_state())
        assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, "epoch", "lock"]


FILES = ["manifest.json", "values.npy", "slots-0.npy", "slots-1.npy"]


@pytest.mark.parametrize("file", FILES)
def test_any_flipped_bit_is_noticed_and_the_one_before_restored(
    tmp_path: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Snapshots(tmp_path, keep=2) as snapshots:
        snapshots.save(make_state(10, 1))
        path = snapshots.save(make_state(20, 2))
        whole = (path / file).read_bytes()
        for offset in range(0, len(whole), max(1, len(whole) // 40)):
            for bit in (0, 7):
                flipped = bytearray(whole)
                flipped[offset] ^= 1 << bit
                (path / file).write_bytes(flipped)
                assert_same(snapshots.restore_latest(make_layout()), make_state(10, 1))
        assert "damaged snapshot skipped" in caplog.text
        assert path.name in caplog.text
        (path / file).write_bytes(whole)
        assert_same(snapshots.restore_latest(make_layout()), make_state(20, 2))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("length", [None, 0, 1, 0.5, -1, +1])
def test_truncated_missing_or_longer_file_is_noticed(
    tmp_path: Path, file: str, length: float | None
) -> None:
    with Snapshots(tmp_path) as snapshots:
        snapshots.save(make_state(10, 1))
        path = snapshots.save(make_state(20, 2)) / file
        whole = path.read_bytes()
        if length is None:
            path.unlink()
        elif length == +1:
            path.write_bytes(whole + b"x")
        else:
            path.write_bytes(whole[: int(len(whole) * length) if length == 0.5 else int(length)])
        if length == 1 and len(whole) == 1:
            pytest.fail("nothing was truncated")
        assert_same(snapshots.restore_latest(make_layout()), make_state(10, 1))


def test_newest_can_be_read_beside_the_server_that_holds_the_folder(tmp_path: Path) -> None:
    assert read_latest(tmp_path / "none") is None
    with Snapshots(tmp_path) as snapshots:
        assert read_latest(tmp_path) is None
        snapshots.save(make_state(10, 1))
        (snapshots.save(make_state(20, 2)) / "values.npy").unlink()
        assert_same(read_latest(tmp_path), make_state(10, 1))
        (snapshots.path_of(make_state(10, 1)) / "values.npy").unlink()
        with pytest.raises(SnapshotError, match="damaged"):
            read_latest(tmp_path)


def test_none_valid_is_an_error_and_no_fresh_start(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        for version in (1, 2):
            (snapshots.save(make_state(10, version)) / "values.npy").write_bytes(b"")
    with Snapshots(tmp_path) as snapshots:
        with pytest.raises(SnapshotError, match="all 2 snapshots are damaged"):
            snapshots.restore_latest(make_layout())


def test_empty_directory_named_like_a_snapshot_is_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / f"cp-{5:020d}-{5:020d}").mkdir()
    with Snapshots(tmp_path) as snapshots, pytest.raises(SnapshotError, match="damaged"):
        snapshots.restore_latest(make_layout())


def test_new_snapshot_is_kept_although_damaged_ones_are_newer(tmp_path: Path) -> None:
    with Snapshots(tmp_path, keep=2) as snapshots:
        snapshots.save(make_state(10, 1))
        bad = snapshots.save(make_state(90, 9))
        (bad / "values.npy").write_bytes(b"")
    with Snapshots(tmp_path, keep=2) as snapshots:
        assert_same(snapshots.restore_latest(make_layout()), make_state(10, 1))
        snapshots.save(make_state(20, 2))
        assert_same(snapshots.restore_latest(make_layout()), make_state(20, 2))
        assert not bad.exists()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ([("w1", 3, "a"), ("w2", 4, "a")], r"w2 is trainable float32 \[3\].*here .*\[4\]"),
        ([("w1", 3, "a")], "w2 is only in the snapshot"),
        ([("w1", 3, "a"), ("w2", 3, "a"), ("w3", 1, "a")], "w3 is missing in the snapshot"),
        ([("w1", 3, "a"), ("w2", 3, "b")], "w2 .*in group a, here .*in group b"),
        ([("w2", 3, "a"), ("w1", 3, "a")], "another order"),
    ],
)
def test_foreign_layout_names_what_differs(
    tmp_path: Path, variables: list[tuple[str, int, str]], message: str
) -> None:
    def make(entries: list[tuple[str, int, str]]) -> Manifest:
        return make_manifest([Variable(n, np.zeros(k, np.float32), g) for n, k, g in entries])

    saved = make([("w1", 3, "a"), ("w2", 3, "a")])
    state = State(
        manifest=saved,
        version=1,
        global_t=1,
        values=np.zeros(saved.total_bytes, np.uint8),
        slots={},
        slot_names={},
        steps={},
    )
    with Snapshots(tmp_path) as snapshots:
        snapshots.save(state)
        with pytest.raises(SnapshotError, match=message):
            snapshots.restore_latest(make(variables))
        assert_same(snapshots.restore_latest(saved), state)


def test_disk_full_leaves_the_old_snapshots_and_no_rubbish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Snapshots(tmp_path) as snapshots:
        snapshots.save(make_state(10, 1))
        for call in range(1, 6):  # the disk is full at another file each time
            left = [call]

            def fsync(descriptor: int, left: list[int] = left) -> None:
                left[0] -= 1
                if not left[0]:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(os, "fsync", fsync)
            with pytest.raises(SnapshotError, match="No space left"):
                snapshots.save(make_state(20, 2))
            assert sorted(p.name[:3] for p in tmp_path.iterdir()) == ["cp-", "epo", "loc"]
            assert_same(snapshots.restore_latest(make_layout()), make_state(10, 1))
        monkeypatch.undo()
        snapshots.save(make_state(20, 2))
        assert_same(snapshots.restore_latest(make_layout()), make_state(20, 2))


SAVE_ON_A_FULL_DISK = """
import resource, sys
import numpy as np
from relaax_like.bridge.manifest import Variable, make_manifest
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import SnapshotError

manifest = make_manifest([Variable("w", np.zeros(100_000, np.float32))])
flat = np.zeros(manifest.total_bytes, np.uint8)
store = Store(manifest, flat, {"default": OptimizerConfig(name="sgd")})
with Snapshots(sys.argv[1]) as snapshots:
    snapshots.save(store.export_state())
    store.apply(None, env_steps=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    try:
        snapshots.save(store.export_state())
    except SnapshotError as error:
        print(error)
"""


def test_write_that_fails_in_the_middle_leaves_the_old_snapshot(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAVE_ON_A_FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "was not written: [Errno 27]" in done.stdout, done.stderr
    assert sorted(path.name[:3] for path in tmp_path.iterdir()) == ["cp-", "epo", "loc"]


def test_statistics_that_are_no_json_are_a_snapshot_error(tmp_path: Path) -> None:
    state = State(**{**vars(make_state()), "statistics": {"mean": float("nan")}})
    with Snapshots(tmp_path) as snapshots, pytest.raises(SnapshotError, match="not written"):
        snapshots.save(state)


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state())
    shutil.copytree(path, tmp_path / f".tmp-{path.name}")
    shutil.copytree(path, tmp_path / f".old-{path.name}")
    (tmp_path / ".tmp-epoch").write_text("1")
    (tmp_path / "notes.txt").write_text("the user's own")
    with Snapshots(tmp_path):
        names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [path.name, "epoch", "lock", "notes.txt"]


def test_crash_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state())
    path.rename(tmp_path / f".old-{path.name}")
    with Snapshots(tmp_path) as snapshots:
        assert_same(snapshots.restore_latest(make_layout()), make_state())


HOLD = """
import sys
from relaax_like.parameter_server.snapshots import Snapshots
with Snapshots(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_server_is_refused_and_told_the_pid_of_the_first(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(SnapshotError, match=f"pid {process.pid}"):
                Snapshots(tmp_path)
        finally:
            process.kill()  # a dead process holds nothing
            process.wait()
    with Snapshots(tmp_path) as snapshots:
        assert snapshots.epoch == 2


def test_two_in_one_process_are_refused_as_well(tmp_path: Path) -> None:
    with Snapshots(tmp_path):
        with pytest.raises(SnapshotError, match=f"pid {os.getpid()}"):
            Snapshots(tmp_path)
    Snapshots(tmp_path).close()


def test_epoch_grows_with_each_start(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with Snapshots(tmp_path) as snapshots:
            epochs.append(snapshots.epoch)
    assert epochs == [1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"three", b"\xff\xfe"])
def test_epoch_grows_over_a_damaged_file(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "epoch").write_bytes(content)
    with caplog.at_level(logging.WARNING), Snapshots(tmp_path) as snapshots:
        first = snapshots.epoch
    assert "epoch: damaged" in caplog.text
    with Snapshots(tmp_path) as snapshots:
        assert snapshots.epoch == first + 1 > 1_000_000


def test_closed_twice_and_used_afterwards(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.close()
    snapshots.close()
    with pytest.raises(SnapshotError, match="closed"):
        snapshots.save(make_state())


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SnapshotError, match="cannot hold snapshots"):
        Snapshots(tmp_path / "file" / "folder")


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep: 0"):
        Snapshots(tmp_path, keep=0)
