"""The journal's writer on a real disk: what it writes, syncs and refuses, and when a disk fails."""

import errno
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.cluster import wait_until
from support.journal import (
    ERRORS,
    PAYLOADS,
    SlowDisk,
    files,
    firsts,
    open_journal,
    read,
    write,
    write_rotated,
)
from support.threads import Caller

from relaax_like.core.journal.files import HEADER_BYTES, RECORD_BYTES
from relaax_like.wire.errors import ConfigError, JournalError

# What was written is read back.


def test_records_of_pieces_are_read_back_in_one_piece(tmp_path: Path) -> None:
    gradient = np.arange(6, dtype=np.float32).reshape(2, 3)
    with open_journal(tmp_path / "new" / "journal") as journal:
        assert journal.append([b"head", gradient.data, bytearray(b"tail")]) == 0
        assert journal.append([]) == 1
        assert journal.append([b"", np.zeros((0, 3)).data, b"x"]) == 2
        assert journal.next_index == 3
    payloads, torn = read(tmp_path / "new" / "journal")
    assert payloads == [b"head" + gradient.tobytes() + b"tail", b"", b"x"]
    assert torn is None
    assert os.stat(tmp_path / "new" / "journal").st_mode & 0o777 == 0o700


def test_no_folder_and_no_records_are_no_error(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ([], None)
    open_journal(tmp_path / "empty", 7).close()
    assert read(tmp_path / "empty", 7) == ([], None)
    assert read(tmp_path / "empty", 9) == ([], None)


def test_more_buffers_than_one_writev_takes(tmp_path: Path) -> None:
    pieces = [bytes([i % 256]) for i in range(3000)]
    with open_journal(tmp_path) as journal:
        journal.append(pieces)
    assert read(tmp_path)[0] == [b"".join(pieces)]


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_little(descriptor: int, buffers: Sequence[memoryview]) -> int:
        return os.write(descriptor, b"".join(buffers)[:7])

    monkeypatch.setattr(os, "writev", write_little)
    write(tmp_path, PAYLOADS)
    assert read(tmp_path) == (PAYLOADS, None)


def test_next_writer_goes_on_and_the_reader_begins_where_it_is_told(tmp_path: Path) -> None:
    for start in range(0, 20, 4):
        write(tmp_path, [b"%d" % i for i in range(start, start + 4)], start, segment_bytes=150)
    want = [b"%d" % i for i in range(20)]
    for from_index in range(21):
        assert read(tmp_path, from_index) == (want[from_index:], None)
    assert read(tmp_path, 100) == ([], None)  # a snapshot outlived the records
    assert len(files(tmp_path)) > 4


def test_full_segment_is_followed_by_a_new_one_and_a_large_record_is_alone(tmp_path: Path) -> None:
    size = HEADER_BYTES + 2 * (RECORD_BYTES + 10)
    with open_journal(tmp_path, segment_bytes=size) as journal:
        for _ in range(5):
            journal.append([bytes(10)])
        journal.append([bytes(10 * size)])
        journal.append([bytes(10)])
        journal.append([bytes(10 * size)])
        journal.append([bytes(10)])
        journal.sync()
        assert firsts(tmp_path) == ["0.log", "2.log", "4.log", "6.log", "8.log"]
        assert journal.total_bytes == sum(path.stat().st_size for path in files(tmp_path))
    assert [len(p) for p in read(tmp_path)[0]] == [10] * 5 + [10 * size, 10, 10 * size, 10]


def test_segment_smaller_than_its_header_takes_one_record(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=1)
    assert len(files(tmp_path)) == len(PAYLOADS)
    assert read(tmp_path) == (PAYLOADS, None)


def test_segments_behind_a_snapshot_go_and_no_others(tmp_path: Path) -> None:
    with open_journal(tmp_path, 10) as journal:
        journal.append([b"10"])
        journal.append([b"11"])
        assert journal.start_segment() == 12
        assert journal.start_segment() == 12  # still empty
        journal.append([b"12"])
        assert journal.start_segment() == 13
        sizes = [path.stat().st_size for path in files(tmp_path)]
        assert len(sizes) == 3
        assert journal.drop_before(11) == 0
        assert journal.drop_before(12) == sizes[0]
        assert journal.drop_before(12) == 0
        assert read(tmp_path, 12) == ([b"12"], None)
        assert journal.drop_before(99) == sizes[1]  # the one being written stays
        assert journal.total_bytes == sizes[2]
        journal.append([b"13"])
    assert firsts(tmp_path) == ["13.log"]
    assert read(tmp_path, 13) == ([b"13"], None)
    with pytest.raises(
        JournalError, match="where record 12 should be: a journal that starts with record 13"
    ):
        read(tmp_path, 12)


def test_appends_of_many_threads_beside_syncs_and_drops(tmp_path: Path) -> None:
    acknowledged: dict[int, bytes] = {}
    with open_journal(tmp_path, segment_bytes=2000, sync_interval_sec=0.001) as journal:

        def append(thread: int) -> None:
            for i in range(200):
                payload = b"%d of %d" % (i, thread)
                acknowledged[journal.append([payload])] = payload

        threads = [threading.Thread(target=append, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        kept = 0
        while any(thread.is_alive() for thread in threads):
            kept = journal.start_segment()
            journal.sync()
            journal.drop_before(kept)
        for thread in threads:
            thread.join()
    assert sorted(acknowledged) == list(range(800))
    assert read(tmp_path, kept)[0] == [acknowledged[i] for i in range(kept, 800)]


# Disks that are full or fail.


def fail_writev(kept_bytes: int, error: BaseException) -> Callable[..., int]:
    """Returns a `writev` that writes some bytes at its first call and fails at the second."""
    calls: list[int] = []

    def writev(descriptor: int, buffers: Sequence[memoryview]) -> int:
        calls.append(1)
        if len(calls) > 1 or not kept_bytes:
            raise error
        return os.write(descriptor, b"".join(buffers)[:kept_bytes])

    return writev


@pytest.mark.parametrize("kept_bytes", [0, 1, RECORD_BYTES, RECORD_BYTES + 3])
@pytest.mark.parametrize("error", [*ERRORS, KeyboardInterrupt()])
def test_failed_append_leaves_nothing_and_the_next_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int, error: BaseException
) -> None:
    with open_journal(tmp_path) as journal:
        journal.append([b"before"])
        size = journal.total_bytes
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", fail_writev(kept_bytes, error))
            wanted = JournalError if isinstance(error, OSError) else KeyboardInterrupt
            with pytest.raises(wanted):
                journal.append([b"lost"])
        assert files(tmp_path)[0].stat().st_size == size == journal.total_bytes
        assert (journal.next_index, journal.failed) == (1, "")
        assert journal.append([b"after"]) == 1
    assert read(tmp_path) == ([b"before", b"after"], None)


def test_write_that_never_gets_on_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "writev", lambda descriptor, buffers: 0)
            with pytest.raises(JournalError, match="nothing was written"):
                journal.append([b"lost"])
        journal.append([b"after"])
    assert read(tmp_path) == ([b"after"], None)


def test_half_record_that_cannot_be_taken_back_is_the_end_until_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ftruncate(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    journal = open_journal(tmp_path)
    journal.append([b"before"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", fail_writev(30, ERRORS[0]))
        patch.setattr(os, "ftruncate", ftruncate)
        with pytest.raises(JournalError, match="cannot be removed"):
            journal.append([b"lost"])
    for attempt in (lambda: journal.append([b"more"]), journal.start_segment, journal.sync):
        with pytest.raises(JournalError, match="nothing more is accepted"):
            attempt()
    assert "cannot be removed" in journal.failed
    journal.close()
    payloads, torn = read(tmp_path)
    assert payloads == [b"before"]
    assert torn is not None
    write(tmp_path, [b"after"], 1)
    assert read(tmp_path) == ([b"before", b"after"], None)


def test_segment_that_cannot_be_made_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path, segment_bytes=1) as journal:
        journal.append([b"before"])
        for attempt in (lambda: journal.append([b"lost"]), journal.start_segment):
            with monkeypatch.context() as patch:
                patch.setattr(os, "writev", fail_writev(5, ERRORS[0]))
                with pytest.raises(
                    JournalError, match=r"cannot create a new segment.*No space left"
                ):
                    attempt()
            assert firsts(tmp_path) == ["0.log"]
        (tmp_path / f"journal-{1:020d}.log.new").write_bytes(bytes(99))  # could not be removed
        assert journal.append([b"after"]) == 1
    assert read(tmp_path) == ([b"before", b"after"], None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"no file system may be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_costs_records_only_as_long_as_it_is_full(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(100_000))
    written = []
    with open_journal(small_disk / "journal", segment_bytes=50_000) as journal:

        def fill() -> None:
            while True:
                payload = bytes([len(written)]) * 10_000
                journal.append([payload])
                written.append(payload)

        with pytest.raises(JournalError, match="No space left"):
            fill()
        with pytest.raises(JournalError, match="No space left"):
            journal.append([bytes(100_000)])
        assert 5 < len(written) < 26
        ballast.unlink()
        journal.append([b"there is room again"])
        written.append(b"there is room again")
    assert read(small_disk / "journal") == (written, None)


def test_file_size_limit_in_the_middle_of_a_record_leaves_no_half(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.append([b"before"])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        try:
            with pytest.raises(JournalError, match="Errno 27"):
                journal.append([bytes(3000), bytes(3000)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert files(tmp_path)[0].stat().st_size == journal.total_bytes < 200
        journal.append([b"after"])
    assert read(tmp_path) == ([b"before", b"after"], None)


# Syncs.


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    return write_rotated(tmp_path)


def test_append_and_rotation_do_not_wait_for_a_slow_sync(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    with open_journal(tmp_path, sync_interval_sec=0.001, segment_bytes=200) as journal:
        slow_disk.entered.clear()
        slow_disk.free.clear()
        journal.append([b"0"])
        assert slow_disk.entered.wait(60)
        for i in range(1, 30):
            journal.append([b"%d" % i])
        journal.start_segment()
        assert journal.unsynced_records == 30
        assert journal.unsynced_bytes >= 30 * RECORD_BYTES
        assert len(files(tmp_path)) > 3
        slow_disk.free.set()
        wait_until(lambda: journal.unsynced_bytes == 0, "the sync")
        assert journal.unsynced_records == 0
        assert all(path.suffix == ".log" for path in files(tmp_path))
    assert read(tmp_path)[0] == [b"%d" % i for i in range(30)]


def test_nothing_is_synced_while_nothing_is_written(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path, sync_interval_sec=0.001) as journal:
        journal.append([b"0"])
        wait_until(lambda: journal.unsynced_records == 0, "the sync")
        calls = slow_disk.calls
        assert sum(thread.name == "journal sync" for thread in threading.enumerate()) == 1
        with monkeypatch.context() as patch:
            wakes: list[int] = []
            patch.setattr(journal, "sync", lambda: wakes.append(1))
            time.sleep(0.05)
            assert wakes == []
        journal.sync()
        assert slow_disk.calls == calls
    assert slow_disk.calls == calls


def test_without_an_interval_the_caller_syncs_and_many_records_take_one(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    with open_journal(tmp_path, sync_interval_sec=None) as journal:
        assert "journal sync" not in [thread.name for thread in threading.enumerate()]
        for count in (1, 2, 10):
            calls = slow_disk.calls
            for _ in range(count):
                journal.append([b"x"])
            assert (slow_disk.calls, journal.unsynced_records) == (calls, count)
            journal.sync()
            assert slow_disk.calls == calls + 1
            assert (journal.unsynced_records, journal.unsynced_bytes) == (0, 0)
        descriptors = len(os.listdir("/proc/self/fd"))
        journal.start_segment()
        journal.append([b"z"])
        journal.sync()  # both files and the folder
        assert slow_disk.calls == calls + 4
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert firsts(tmp_path) == ["0.log", "13.log"]


def test_failed_sync_is_the_end(tmp_path: Path, slow_disk: SlowDisk) -> None:
    journal = open_journal(tmp_path, sync_interval_sec=None)
    journal.append([b"0"])
    slow_disk.error = OSError(errno.EIO, "I/O error")
    with pytest.raises(JournalError, match=r"cannot be synced.*I/O error"):
        journal.sync()
    slow_disk.error = None  # a second fsync would lie
    size = files(tmp_path)[0].stat().st_size
    for attempt in (lambda: journal.append([b"2"]), journal.sync, journal.start_segment):
        with pytest.raises(JournalError, match="cannot be synced"):
            attempt()
    assert files(tmp_path)[0].stat().st_size == size
    journal.close()


def test_failed_sync_in_the_background_is_the_end_as_well(
    tmp_path: Path, slow_disk: SlowDisk, caplog: pytest.LogCaptureFixture
) -> None:
    journal = open_journal(tmp_path, sync_interval_sec=0.001)
    slow_disk.error = OSError(errno.EIO, "I/O error")
    journal.append([b"0"])
    wait_until(lambda: bool(journal.failed), "the failed sync")
    slow_disk.error = None
    with pytest.raises(JournalError, match="Restart the server"):
        journal.append([b"1"])
    assert journal.unsynced_records == 1
    journal.close()
    assert "cannot be synced" in caplog.text


def test_close_syncs_ends_the_thread_and_may_be_called_twice(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    journal = open_journal(tmp_path)
    journal.append([b"0"])
    calls = slow_disk.calls
    descriptors = len(os.listdir("/proc/self/fd"))
    journal.close()
    journal.close()
    assert slow_disk.calls == calls + 1
    assert journal.unsynced_bytes == 0
    assert "journal sync" not in [thread.name for thread in threading.enumerate()]
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2  # segment and folder
    for attempt in (lambda: journal.append([b"1"]), journal.start_segment):
        with pytest.raises(JournalError, match="closed"):
            attempt()


def test_close_that_comes_just_before_a_sync_ends_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_journal(tmp_path, sync_interval_sec=0.001)
    dirty = journal._dirty
    set_dirty, clear_dirty = dirty.set, dirty.clear
    closing: list[Caller] = []
    setters: list[threading.Thread] = []

    def set_noted() -> None:
        set_dirty()
        setters.append(threading.current_thread())

    def clear_late() -> None:
        """The thread has seen that it continues; then `close` comes, then the thread clears."""
        closing.append(Caller(journal.close))
        wait_until(lambda: closing[0] in setters, "close")
        clear_dirty()

    monkeypatch.setattr(dirty, "set", set_noted)
    monkeypatch.setattr(dirty, "clear", clear_late)
    journal.append([b"0"])
    wait_until(lambda: bool(closing), "the sync thread")
    closing[0].get()
    assert read(tmp_path)[0] == [b"0"]


def test_failed_last_sync_is_told_and_all_the_rest_is_done(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    journal = open_journal(tmp_path)
    journal.append([b"0"])
    descriptors = len(os.listdir("/proc/self/fd"))
    slow_disk.error = OSError(errno.EIO, "I/O error")
    with pytest.raises(JournalError, match="cannot be synced"):
        journal.close()
    journal.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2  # segment and folder
    assert "journal sync" not in [thread.name for thread in threading.enumerate()]


def test_segment_is_confirmed_only_after_all_before_it_were_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        fsync(descriptor)

    def note_rename(source: Path, target: Path) -> None:
        events.append(f"confirm {Path(target).name}")
        rename(source, target)

    with open_journal(tmp_path / "j", segment_bytes=1) as journal:
        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "rename", note_rename)
        for _ in range(3):
            journal.append([b"x"])
        assert events == []
        journal.sync()
        monkeypatch.undo()
    names = [f"journal-{i:020d}.log" for i in range(3)]
    assert events == [
        f"sync {names[0]}",
        f"sync {names[1]}.new",
        f"sync {names[2]}.new",
        f"confirm {names[1]}",
        f"confirm {names[2]}",
        "sync j",
    ]


def test_start_syncs_what_a_killed_writer_left(rotated: Path, slow_disk: SlowDisk) -> None:
    journal = open_journal(rotated, 10)
    assert slow_disk.calls == 3  # the confirmed one, the new one, the folder
    assert journal.unsynced_bytes == 0
    journal.close()


# Which record is the next.


def test_writer_that_would_overwrite_records_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS)
    for first in range(5):
        with pytest.raises(JournalError, match=f"up to 4, but only those before {first} were"):
            open_journal(tmp_path, first)
    assert read(tmp_path) == (PAYLOADS, None)


def test_snapshot_that_is_newer_than_all_records_begins_anew(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=1)
    write(tmp_path, [b"100"], 100)
    assert firsts(tmp_path) == ["100.log"]
    assert read(tmp_path, 100) == ([b"100"], None)


def test_snapshot_that_is_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, 100)
    with pytest.raises(
        JournalError, match="where record 7 should be: a journal that starts with record 100"
    ):
        open_journal(tmp_path, 7)
    assert read(tmp_path, 100) == (PAYLOADS, None)


def test_numbers_that_make_no_sense_and_places_that_cannot_be_written(tmp_path: Path) -> None:
    for name in ("segment_bytes", "sync_interval_sec"):
        with pytest.raises(ConfigError, match=f"{name}: 0, expected more than 0"):
            open_journal(tmp_path, **{name: 0})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="cannot hold a journal"):
        open_journal(tmp_path / "file" / "journal")
