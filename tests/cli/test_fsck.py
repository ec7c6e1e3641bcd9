"""`relaax fsck` on folders that a crash or a bad disk left: what it says is what a start does."""

# covers R2, R22

import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.durable import crash, get_state, make_push, open_server

from relaax_like.cli.fsck import check_folder
from relaax_like.core.journal.head import Claim, JournalHead
from relaax_like.core.journal.reader import DamagedJournalError
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.published_state import PublishedState
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError, JournalError, SnapshotError

State = tuple[Any, ...]


class Run:
    """A run that is killed again and again, and its state after each push."""

    def __init__(self, folder: Path):
        self.folder = folder / "run"
        self.states: list[State] = []
        self._root = folder
        self._sequence = 0
        self._server: ParameterServer | None = None

    @property
    def server(self) -> ParameterServer:
        assert self._server is not None
        return self._server

    def start(self, **options: Any) -> None:
        self._server = open_server(self.folder, **options)
        self.states.append(get_state(self._server))

    def push(self, count: int) -> None:
        for _ in range(count):
            self._sequence += 1
            self.server.push(make_push(self._sequence))
            self.states.append(get_state(self.server))

    def save(self) -> None:
        self.server.save_checkpoint()

    def kill(self) -> None:
        self.folder = crash(self.server, self.folder, self._root)

    def damage_snapshots(self, count: int) -> None:
        for path in sorted(self.folder.glob("cp-*"))[-count:]:
            (path / "values.npy").write_bytes(b"noise")

    def segments(self) -> list[Path]:
        return sorted((self.folder / "journal").glob("journal-*"))

    def check(self, capsys: pytest.CaptureFixture[str], to_last_good: bool = False) -> str:
        """Returns what fsck prints; its status is whether the server starts."""
        status = check_folder(self.folder, to_last_good)
        printed = " ".join(capsys.readouterr().out.split())
        assert (status == 0) == ("the parameter server starts at" in printed)
        return printed

    def assert_starts(self, want: State) -> None:
        """Fails unless the server starts with a state, and loses nothing more when it is killed."""
        self.start()
        assert get_state(self.server) == want
        self._sequence += 100  # no push that was answered before
        self.push(3)
        after = self.states[-1]
        self.kill()
        self.start()
        assert get_state(self.server) == after
        self.server.close()

    def assert_refused(self) -> None:
        """Fails unless the server refuses and recommends the command that helps."""
        with pytest.raises(DamagedJournalError) as caught:
            open_server(self.folder)
        assert f"`relaax fsck {self.folder} --to-last-good`" in str(caught.value)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.start()
    return run


def test_a_copy_of_the_snapshots_alone_is_checked(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(3)
    run.save()
    run.kill()
    copy = run.folder.with_name("copy")
    for path in run.folder.glob("cp-*"):
        shutil.copytree(path, copy / "checkpoints" / path.name)
    run.folder = copy
    printed = run.check(capsys)
    assert "newest snapshot: version 3, step 6" in printed
    assert "the parameter server starts at version 3, step 6" in printed


def test_a_complete_run_starts_where_fsck_says(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(3)
    run.save()
    run.push(2)
    run.kill()
    printed = run.check(capsys)
    assert "newest snapshot: version 3, step 6" in printed
    assert "the parameter server starts at version 4, step 15" in printed
    assert run.check(capsys, to_last_good=True) == printed
    run.assert_starts(run.states[-1])


def test_a_publication_with_more_steps_than_the_snapshot_of_its_version_is_newer(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(3)
    run.save()
    run.kill()
    snapshot = read_latest(run.folder)
    assert snapshot is not None
    PublishedState(run.folder).write(replace(snapshot, global_t=10))
    printed = run.check(capsys)
    assert "newest snapshot: version 3, step 6" in printed
    assert "the parameter server starts at version 3, step 10" in printed
    with open_server(run.folder) as server:
        assert (server.version, server.global_t) == (3, 10)


def test_a_gap_after_the_journal_was_given_up(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.push(3)
    run.save()
    run.push(1)
    run.server.close(save=False)
    run.start(max_bytes_per_sec=1.0)
    run.push(3)  # of none of them there is a record
    assert run.server.status().durability == "snapshot"
    run.save()
    run.kill()
    run.start()
    run.push(2)
    run.kill()
    run.damage_snapshots(1)

    run.assert_refused()
    printed = run.check(capsys)
    assert "newer snapshots that are damaged: cp-00000000000000000028" in printed
    assert "a record that continues version 6, step 28; the data before it ends at" in printed
    gives_up = "version 3, step 10, which discards versions 4 to 8 (step 45)"
    assert f"with --to-last-good it starts at {gives_up}" in printed
    printed = run.check(capsys, to_last_good=True)
    assert (
        "discarded: versions 4 to 8 (step 45); the parameter server starts at version 3" in printed
    )
    assert "moved to" in printed
    assert len(list(run.folder.glob("journal/cut-*/cp-*"))) == 1
    run.check(capsys)
    run.assert_starts(run.states[4])


def test_a_gap_that_no_snapshot_needs_is_no_damage(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(2)
    run.server.close(save=False)
    run.start(max_bytes_per_sec=1.0)
    run.push(2)
    run.save()
    run.kill()
    run.start()
    run.push(2)
    run.kill()
    assert "the parameter server starts at version 5" in run.check(capsys)
    run.assert_starts(run.states[-1])


def test_the_two_newest_snapshots_are_damaged(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        run.push(2)
        run.save()
    run.push(1)
    run.kill()
    run.damage_snapshots(2)

    run.assert_refused()
    printed = run.check(capsys)
    assert "where record 2 should be: a journal that starts with record 4" in printed
    assert "starts at version 2, step 3, which discards versions 3 to 6 (step 28)" in printed
    printed = run.check(capsys, to_last_good=True)
    assert "discarded: versions 3 to 6 (step 28)" in printed
    run.check(capsys)
    run.assert_starts(run.states[2])


@pytest.mark.parametrize("gone", ["the last segment", "all segments", "the folder", "the head"])
def test_a_missing_end_of_the_journal(
    run: Run, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    run.push(2)
    run.save()
    at = get_state(run.server)
    run.push(6)
    end = get_state(run.server)
    run.kill()
    assert len(run.segments()) == 2
    if gone == "the folder":
        shutil.rmtree(run.folder / "journal")
    elif gone == "the head":
        (run.folder / "journal-head").unlink()
    else:
        for path in run.segments()[1:] if gone == "the last segment" else run.segments():
            path.unlink()

    run.assert_refused()
    printed = run.check(capsys)
    if gone == "the head":
        assert "starts at version 7, step 36, which discards all versions after 7" in printed
    else:
        assert "before record 2, but there was a segment that begins with record 2" in printed
        lost = "all versions after 2, and at least 6 missing pushes"
        assert f"starts at version 2, step 3, which discards {lost}" in printed
    assert "discarded: all versions after" in run.check(capsys, to_last_good=True)
    run.check(capsys)
    run.assert_starts(end if gone == "the head" else at)


def test_a_segment_that_is_missing_right_after_the_first_start(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(3)
    run.kill()
    run.segments()[0].unlink()
    run.assert_refused()
    assert "at least 3 missing pushes" in run.check(capsys, to_last_good=True)
    run.assert_starts(run.states[0])


def test_an_end_that_was_synced_is_not_taken_for_torn(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(5)
    run.kill()
    path = run.segments()[0]
    os.truncate(path, path.stat().st_size - 3)
    run.assert_refused()
    assert "but record 4 had been written and synced" in run.check(capsys)
    printed = run.check(capsys, to_last_good=True)
    assert "discarded: all versions after 3, and at least 1 missing push" in printed
    run.assert_starts(run.states[4])


def test_a_torn_end_is_no_damage(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.push(5)
    run.kill()
    JournalHead(run.folder / "journal-head").replace(Claim(0, 4))  # as no sync had come to it
    path = run.segments()[0]
    os.truncate(path, path.stat().st_size - 3)
    printed = run.check(capsys)
    assert "torn at offset" in printed
    assert "the parameter server starts at version 3, step 10" in printed
    run.assert_starts(run.states[4])


def test_damage_is_named_and_set_aside_when_asked(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(9)
    run.kill()
    (path,) = run.segments()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    run.assert_refused()
    printed = run.check(capsys)
    index = int(printed.split("where record ")[1].split()[0])
    assert 0 < index < 8
    assert "a record that does not match its CRC" in printed
    version = run.states[index][0]
    assert f"discards versions {version + 1} to 8 (step 45)" in printed
    run.check(capsys, to_last_good=True)
    assert "damaged" not in run.check(capsys)
    run.assert_starts(run.states[index])


def test_damage_that_the_newest_snapshot_makes_up_for_is_left_alone(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.push(3)
    run.save()
    run.push(3)
    run.kill()
    old = run.segments()[0]
    content = bytearray(old.read_bytes())
    content[100] ^= 1
    old.write_bytes(content)
    assert "it is older than the newest snapshot, and not needed" in run.check(capsys, True)
    assert old.read_bytes() == content
    run.assert_starts(run.states[-1])


@pytest.mark.parametrize("content", [b"", b"noise" * 10, bytes(36)])
def test_a_damaged_head(run: Run, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    run.push(3)
    run.kill()
    (run.folder / "journal-head").write_bytes(content)
    run.assert_refused()
    assert "journal-head, is damaged" in run.check(capsys)
    run.check(capsys, to_last_good=True)
    run.assert_starts(run.states[-1])


def test_a_cut_that_was_killed_is_done_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each rename."""
    for _ in range(3):
        run.push(2)
        run.save()
    run.push(1)
    run.kill()
    run.damage_snapshots(2)
    rename, left = Path.rename, [0]  # renames until the kill

    def rename_or_die(path: Path, target: Path) -> Path:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_or_die)
    kills = 0
    while True:
        left[0] = kills
        try:
            assert check_folder(run.folder, True) == 0
            break
        except KeyboardInterrupt:
            kills += 1
            run.assert_refused()
    assert kills > 1
    run.assert_starts(run.states[2])


def test_a_journal_without_snapshots_is_an_error(run: Run) -> None:
    run.push(2)
    run.kill()
    for path in run.folder.glob("cp-*"):
        shutil.rmtree(path)
    for to_last_good in (False, True):
        with pytest.raises(JournalError, match="there is a journal, but no snapshot before it"):
            check_folder(run.folder, to_last_good)
    with pytest.raises(JournalError, match="there is a journal, but no snapshot before it"):
        open_server(run.folder)


def test_an_older_format_is_refused_by_name(run: Run) -> None:
    run.push(2)
    run.kill()
    (path,) = run.segments()
    content = path.read_bytes()
    head = content[:8] + (1).to_bytes(4, "little") + content[12:28]
    path.write_bytes(head + zlib.crc32(head).to_bytes(4, "little") + content[32:])
    message = (
        "format 1, but this version reads format 2; use the version of relaax_like that wrote it"
    )
    with pytest.raises(JournalError, match=message):
        check_folder(run.folder, True)
    with pytest.raises(JournalError, match=message):
        open_server(run.folder)


def test_a_running_server_s_folder_is_left_alone(run: Run) -> None:
    with pytest.raises(
        SnapshotError, match="in use by a parameter server, relaax train or relaax fsck"
    ):
        check_folder(run.folder, False)
    run.server.close()


def test_a_lock_file_that_cannot_be_opened_is_an_error(run: Run) -> None:
    run.kill()
    lock = run.folder / "lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    with pytest.raises(SnapshotError, match=rf"{lock}: cannot be locked: Is a directory; it must"):
        check_folder(run.folder, False)


def test_all_snapshots_damaged_is_an_error(run: Run) -> None:
    run.push(1)
    run.kill()
    run.damage_snapshots(9)
    with pytest.raises(SnapshotError, match="no usable snapshot, 1 damaged"):
        check_folder(run.folder, False)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run's folder"):
        check_folder(tmp_path, False)
    for name in ("nowhere", "x" * 300):
        with pytest.raises(ConfigError, match=f"{name}: no such folder, or no access .*; pass run"):
            check_folder(tmp_path / name, False)


def test_a_run_s_folder_and_its_checkpoints_are_both_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    lock_folder(checkpoints).close()
    np.save(checkpoints / "unrelated.npy", np.zeros(3))
    for folder in (tmp_path / "run", checkpoints):
        assert check_folder(folder, False) == 0
        assert "newest snapshot: none" in capsys.readouterr().out
