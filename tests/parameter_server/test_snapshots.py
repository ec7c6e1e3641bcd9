"""Snapshots on a real disk: complete or absent, newest valid one, one server. covers R22, R24"""

import errno
import logging
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.snapshots import (
    assert_same,
    change_manifest,
    list_snapshots,
    list_versions,
    make_layout,
    make_state,
)
from support.threads import Caller, wait_until

from relaax_like.core.manifest import Manifest, Variable, make_manifest
from relaax_like.parameter_server.snapshot_format import State, verify_snapshot
from relaax_like.parameter_server.snapshots import (
    Snapshots,
    read_best,
    read_latest,
    read_newest_manifest,
    read_version,
    select_kept,
)
from relaax_like.wire.errors import ConfigError, SnapshotError


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


SCORES = st.none() | st.sampled_from([math.inf, -math.inf, math.nan]) | st.integers(-3, 3)


@settings(max_examples=25)
@given(
    scores=st.lists(SCORES, min_size=1, max_size=8), keep=st.integers(1, 4), best=st.integers(0, 4)
)
def test_newest_and_best_stay(scores: list[float | None], keep: int, best: int) -> None:
    """However often old ones were deleted, those stay that are among the best of all."""
    with tempfile.TemporaryDirectory() as folder:
        for number, score in enumerate(scores):
            # Opened again each time: what is known of the older ones comes from the disk.
            with Snapshots(folder, keep=keep, keep_best=best) as snapshots:
                snapshots.save(make_state(number, number), score)
        want = set(range(max(0, len(scores) - keep), len(scores)))
        valid = [(s, n) for n, s in enumerate(scores) if s is not None and math.isfinite(s)]
        for _ in range(min(best, len(valid))):
            want.add(max(valid)[1])
            valid.remove(max(valid))
        assert list_versions(Path(folder)) == sorted(want)


def test_best_of_equal_ones_is_the_newer_and_nan_is_no_score(tmp_path: Path) -> None:
    with Snapshots(tmp_path, keep=1, keep_best=2) as snapshots:
        for version, score in enumerate([9.0, 5.0, 9.0, 9.0, None, math.nan, 3.0]):
            snapshots.save(make_state(version, version), score)
    assert list_versions(tmp_path) == [2, 3, 6]


@pytest.mark.parametrize(
    ("scores", "saved", "damaged", "keep", "keep_best", "want"),
    [
        ({"a": None, "b": None, "c": None}, "c", "", 2, 0, "bc"),
        ({"a": 9.0, "b": 1.0, "c": 2.0}, "c", "", 1, 1, "ac"),
        # The best one is damaged: its score does not count.
        ({"a": 9.0, "b": 1.0, "c": 2.0}, "c", "a", 1, 1, "c"),
        ({"a": 9.0, "b": 1.0, "c": 2.0}, "c", "a", 1, 2, "bc"),
        # A run that went back to an older snapshot.
        ({"a": None, "b": None, "c": None}, "a", "", 2, 0, "ac"),
        ({"a": None, "b": None, "c": None}, "a", "c", 2, 0, "ab"),
        # Fewer than are kept.
        ({"a": 1.0}, "a", "", 5, 5, "a"),
    ],
)
def test_kept_are(
    scores: Mapping[str, float | None],
    saved: str,
    damaged: str,
    keep: int,
    keep_best: int,
    want: str,
) -> None:
    assert select_kept(scores, saved, set(damaged), keep, keep_best) == set(want)


def test_best_can_be_read(tmp_path: Path) -> None:
    assert read_best(tmp_path / "none") is None
    with Snapshots(tmp_path, keep=1, keep_best=3) as snapshots:
        snapshots.save(make_state(10, 1))
        assert read_best(tmp_path) is None
        for version, score in [(2, 7.5), (3, -2.0), (4, 7.5), (5, 7.0)]:
            snapshots.save(make_state(10 * version, version), score)
    best = read_best(tmp_path)
    assert_same(best, make_state(40, 4))
    assert best is not None
    assert best.score == 7.5
    newest = read_latest(tmp_path)
    assert newest is not None
    assert newest.score == 7.0


def test_next_best_is_read_where_the_best_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Snapshots(tmp_path) as snapshots:
        second = snapshots.save(make_state(10, 1), 1.0)
        best = snapshots.save(make_state(20, 2), 2.0)
        snapshots.save(make_state(30, 3))
    (best / "values.npy").write_bytes(b"")
    assert_same(read_best(tmp_path), make_state(10, 1))
    assert f"{best}: skipping a damaged snapshot" in caplog.text
    (second / "manifest.json").unlink()
    with pytest.raises(SnapshotError, match="no usable snapshot has a score, 2 damaged"):
        read_best(tmp_path)


def test_the_best_of_damaged_snapshots_is_an_error_without_another_version(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        (snapshots.save(make_state(10, 1), 1.0) / "values.npy").unlink()
    with pytest.raises(SnapshotError, match="no usable snapshot, 1 damaged or unreadable"):
        read_best(tmp_path)


def test_a_damaged_lock_file_does_not_hide_that_the_folder_is_in_use(tmp_path: Path) -> None:
    with Snapshots(tmp_path):
        (tmp_path / "lock").write_bytes(b"\xff\xfe")
        with pytest.raises(SnapshotError, match=r"in use by .* \(pid unknown\); stop it"):
            Snapshots(tmp_path)


def test_the_score_of_a_damaged_snapshot_is_not_the_best_one(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        snapshots.save(make_state(10, 1), 1.0)
        best = snapshots.save(make_state(20, 2), 2.0)
        (best / "values.npy").write_bytes(b"")
        assert_same(snapshots.restore_latest(make_layout()), make_state(10, 1))
        assert snapshots.best_score == 1.0


def test_best_and_newest_are_found_while_they_are_replaced(tmp_path: Path) -> None:
    with Snapshots(tmp_path, keep=1) as snapshots:
        snapshots.save(make_state(1, 1), 1.0)
        running = True

        def read() -> int:
            count = 0
            while running:
                best, newest = read_best(tmp_path), read_latest(tmp_path)
                assert best is not None
                assert newest is not None
                assert best.score == best.version
                count += 1
            return count

        reader = Caller(read)
        for version in range(2, 60):
            snapshots.save(make_state(version, version), float(version))
        running = False
        assert reader.get()


def test_a_folder_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    for read in (read_latest, read_best, lambda folder: read_version(folder, 1)):
        with pytest.raises(SnapshotError, match=r"snapshots cannot be read: .*Permission denied"):
            read(tmp_path)


def test_snapshot_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state(10, 1)) / "manifest.json"
        path.write_bytes(change_manifest(path.read_bytes(), lambda body: body.update(format=1)))
    with Snapshots(tmp_path) as snapshots:
        message = (
            f"{path.parent.name}: a snapshot of format 1, but this version reads format 2; use"
        )
        with pytest.raises(SnapshotError, match=message):
            snapshots.restore_latest(make_layout())
    assert path.exists()


def test_an_older_snapshot_of_another_format_does_not_make_a_save_fail(tmp_path: Path) -> None:
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state(10, 1), 5.0) / "manifest.json"
        snapshots.save(make_state(20, 2), 1.0)
        path.write_bytes(change_manifest(path.read_bytes(), lambda body: body.update(format=1)))
    with Snapshots(tmp_path) as snapshots:
        assert_same(snapshots.restore_latest(make_layout()), make_state(20, 2))
        assert snapshots.best_score == 1.0
        saved = snapshots.save(make_state(30, 3), 2.0)
        assert saved.exists()
        assert snapshots.best_score == 2.0


def test_a_folder_that_cannot_be_read_costs_neither_the_best_score_nor_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> list[str]:
        raise OSError(24, "Too many open files", str(path))

    with Snapshots(tmp_path) as snapshots:
        snapshots.save(make_state(10, 1), 5.0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", refuse)
            saved = snapshots.save(make_state(20, 2), 7.0)
            assert snapshots.best_score == 7.0
        assert "could not delete old snapshots" in caplog.text
        assert_same(read_version(tmp_path, 2), make_state(20, 2))
    assert saved.exists()


@pytest.mark.parametrize("shape", [["ab", 2**50], [[0, 0], 2**50], [2, -3], [2.0], [True]])
def test_shape_that_is_none_is_noticed_before_anything_is_computed(
    shape: list[Any], tmp_path: Path
) -> None:
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state(), None) / "manifest.json"
    content = path.read_bytes()
    path.write_bytes(change_manifest(content, lambda body: body["segments"][0].update(shape=shape)))
    damaged: set[str] = set()
    with pytest.raises(SnapshotError):
        read_latest(tmp_path, damaged)
    assert damaged == {path.parent.name}
    assert read_newest_manifest(tmp_path) is None


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
        assert "skipping a damaged snapshot" in caplog.text
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
        with pytest.raises(SnapshotError, match="no usable snapshot, 2 damaged"):
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
        ([("w1", 3, "a"), ("w2", 3, "a"), ("w3", 1, "a")], "w3 is missing from the snapshot"),
        ([("w1", 3, "a"), ("w2", 3, "b")], "w2 .*in group a, here .*in group b"),
        ([("w2", 3, "a"), ("w1", 3, "a")], "a different order"),
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


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="memory cannot be bypassed here")
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["bit", "end"])
def test_snapshot_that_the_disk_does_not_give_back_is_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, damage: str
) -> None:
    """A disk that loses something between the sync and the first reading from it."""
    advise = os.posix_fadvise

    def lose(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.name == file:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= damage == "bit"
            path.write_bytes(content[: None if damage == "bit" else -1])
        advise(descriptor, offset, length, advice)

    with Snapshots(tmp_path, keep=1) as snapshots:
        old = snapshots.save(make_state(10, 1))
        monkeypatch.setattr(os, "posix_fadvise", lose)
        with pytest.raises(
            SnapshotError, match="discarded, because the disk did not return what was"
        ):
            snapshots.save(make_state(20, 2))
        with pytest.raises(SnapshotError, match=old.name):  # in the place of a whole one
            snapshots.save(make_state(10, 1))
        assert sorted(p.name for p in tmp_path.iterdir()) == [old.name, "epoch", "lock"]
        assert_same(snapshots.restore_latest(make_layout()), make_state(10, 1))
        monkeypatch.undo()
        snapshots.save(make_state(20, 2))
        assert list_versions(tmp_path) == [2]


def test_verifying_needs_no_copy_of_the_state_in_memory(tmp_path: Path) -> None:
    state = make_state(manifest=make_layout(1_000_000))
    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(state)
    assert (path / "values.npy").stat().st_size > 10_000_000
    tracemalloc.start()
    try:
        verify_snapshot(path)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


SAVE_ON_A_FULL_DISK = """
import resource, sys
import numpy as np
from relaax_like.core.manifest import Variable, make_manifest
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
    assert "could not be written: [Errno 27]" in done.stdout, done.stderr
    assert sorted(path.name[:3] for path in tmp_path.iterdir()) == ["cp-", "epo", "loc"]


SAVE_UNTIL_KILLED = """
import sys
import numpy as np
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import Snapshots

manifest = make_manifest([Variable("w", np.zeros(500_000, np.float32), "g")])
with Snapshots(sys.argv[1], keep=2, keep_best=1) as snapshots:
    state = snapshots.restore_latest(manifest)
    version = 0 if state is None else state.version
    while True:
        version += 1
        snapshots.save(State(
            manifest=manifest,
            version=version,
            global_t=version,
            values=np.full(manifest.total_bytes, version % 256, np.uint8),
            slots={"g": np.full((1, 500_000), version, np.float32)},
            slot_names={"g": ("momentum",)},
            steps={"g": version},
        ), score=-version)
        print(version, flush=True)
"""


def test_killed_while_saving_leaves_the_newest_whole_one(tmp_path: Path) -> None:
    random_delay = random.Random(0)
    saved = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", SAVE_UNTIL_KILLED, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                saved = int(process.stdout.readline())
                time.sleep(random_delay.uniform(0.0, 0.1))
                wait_until(lambda: any(tmp_path.glob(".tmp-cp-*")), "a snapshot being written")
                time.sleep(random_delay.uniform(0.0, 0.01))
            finally:
                process.kill()
            printed = [saved, *map(int, process.stdout.read().split())]
        state = read_latest(tmp_path)
        assert state is not None
        # The one after the last printed one might have been complete already.
        assert state.version - printed[-1] in (0, 1)
        assert (state.values == state.version % 256).all()
        assert (state.slots["g"] == state.version).all()
    assert state.version > 5
    with Snapshots(tmp_path):
        assert not list(tmp_path.glob(".*"))
        assert 1 in list_versions(tmp_path)  # the best one


def test_statistics_that_are_no_json_are_a_snapshot_error(tmp_path: Path) -> None:
    state = State(**{**vars(make_state()), "statistics": {"mean": float("nan")}})
    with (
        Snapshots(tmp_path) as snapshots,
        pytest.raises(SnapshotError, match=r"not finite .* untouched\. Check the rewards"),
    ):
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


def test_a_replacement_that_fails_between_the_two_renames_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def fail_once(source: Path, target: Path) -> None:
        if target == path and source.name.startswith(".tmp-"):
            raise OSError(errno.EIO, "the disk failed")
        rename(source, target)

    with Snapshots(tmp_path) as snapshots:
        path = snapshots.save(make_state())
        monkeypatch.setattr(os, "rename", fail_once)
        with pytest.raises(SnapshotError, match="the disk failed; older snapshots are untouched"):
            snapshots.save(make_state())
        assert_same(snapshots.restore_latest(make_layout()), make_state())


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
        assert snapshots.epoch > 1


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
    assert epochs == [epochs[0] + i for i in range(3)]
    assert epochs[0] > 1_000_000  # the time: another folder in its place begins later


def test_a_folder_that_takes_the_place_of_another_at_once_has_a_later_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(5):
        with Snapshots(tmp_path / "run") as snapshots:
            epochs.append(snapshots.epoch)
        shutil.rmtree(tmp_path / "run")
        wait_until(lambda: time.time_ns() > (epochs[-1] + 1) * 1_000_000, "a millisecond")
    assert epochs == sorted(set(epochs))


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


def test_keeping_fewer_than_none_of_the_best_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_best: -1"):
        Snapshots(tmp_path, keep_best=-1)


def test_a_version_is_read_by_its_number_or_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"no snapshot of version 2; .* contains no snapshots$"):
        read_version(tmp_path, 2)
    with Snapshots(tmp_path) as snapshots:
        for version in (3, 10):
            snapshots.save(make_state(10 * version, version))
        assert_same(read_version(tmp_path, 3), make_state(30, 3))
        with pytest.raises(
            SnapshotError, match=r"no snapshot of version 2; the versions are 3, 10"
        ):
            read_version(tmp_path, 2)
        (snapshots.path_of(make_state(30, 3)) / "values.npy").write_bytes(b"")
        with pytest.raises(SnapshotError, match=r"the snapshot is damaged .*use another version"):
            read_version(tmp_path, 3)
