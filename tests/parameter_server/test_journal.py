"""The journal on a real disk: what was acknowledged is read back, and nothing else ever is."""

import errno
import itertools
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.parameter_server.journal import Journal
from relaax_like.parameter_server.journal_check import check_journal, cut_to_last_good
from relaax_like.parameter_server.journal_format import HEADER_BYTES, RECORD_BYTES
from relaax_like.parameter_server.journal_reader import Damage, JournalReader
from relaax_like.wire.errors import ConfigError, JournalError

FINGERPRINT = 0xFEEDBEEF
NEVER = 1000.0  # seconds between two syncs: none happens in a test


def open_journal(directory: Path, first_index: int = 0, **settings: Any) -> Journal:
    settings = {"fingerprint": FINGERPRINT, "sync_interval_sec": NEVER, **settings}
    return Journal(directory, first_index, **settings)


def write(
    directory: Path, payloads: Sequence[bytes], first_index: int = 0, **settings: Any
) -> None:
    with open_journal(directory, first_index, **settings) as journal:
        for payload in payloads:
            journal.append([payload])


def read(directory: Path, from_index: int = 0) -> tuple[list[bytes], Damage | None]:
    reader = JournalReader(directory, FINGERPRINT, from_index)
    payloads = []
    for expected, (index, payload) in enumerate(reader, from_index):
        assert index == expected
        payloads.append(bytes(payload))
    assert reader.next_index == from_index + len(payloads)
    return payloads, reader.torn


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file())


def firsts(directory: Path) -> list[str]:
    """Returns the segments' names, their numbers without leading zeros."""
    names = (path.name.removeprefix("journal-").partition(".") for path in files(directory))
    return [f"{int(number)}.{suffix}" for number, _, suffix in names]


def offsets(payloads: Sequence[bytes]) -> list[int]:
    """Where each record begins in the only segment, and the segment's end."""
    ends = [HEADER_BYTES]
    for payload in payloads:
        ends.append(ends[-1] + RECORD_BYTES + len(payload))
    return ends


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


PAYLOADS = [b"first", b"", b"third record", bytes(40), b"fifth"]


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


def test_several_records_at_once_take_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path) as journal:
        journal.append([b"a"])
        calls = []
        writev = os.writev
        monkeypatch.setattr(os, "writev", lambda *arguments: calls.append(1) or writev(*arguments))
        assert journal.append_many([[b"b", b"c"], [], [b"d"]]) == 1
        assert len(calls) == 1
        assert journal.append([b"e"]) == 4
    assert read(tmp_path)[0] == [b"a", b"bc", b"", b"d", b"e"]


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
    with pytest.raises(JournalError, match="begins with record 13, expected record 12"):
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


# What a crash leaves.


@pytest.mark.parametrize("confirmed", [True, False])
def test_cut_at_every_offset_leaves_a_prefix_and_a_writer_goes_on(
    tmp_path: Path, confirmed: bool
) -> None:
    whole = tmp_path / "whole"
    write(whole, PAYLOADS)
    with open_journal(whole, 5) as journal:
        journal.start_segment()
        for payload in PAYLOADS:
            journal.append([payload])
        journal.sync()
    content = files(whole)[1].read_bytes()
    ends = offsets(PAYLOADS)
    assert ends[-1] == len(content)
    for size in range(len(content) + 1):
        directory = tmp_path / str(size)
        shutil.copytree(whole, directory)
        last = files(directory)[1]
        last.write_bytes(content[:size])
        if not confirmed:
            last.rename(f"{last}.new")
        count = sum(end <= size for end in ends[1:])
        payloads, torn = read(directory)
        assert payloads == PAYLOADS + PAYLOADS[:count]
        if size in ends:
            assert torn is None
        else:
            assert torn is not None
            assert torn.torn
            assert torn.path.name.startswith(last.name)
            assert torn.offset == (ends[count] if size > HEADER_BYTES else 0)
            assert torn.index == 5 + count
        write(directory, [b"new"], 5 + count)
        assert read(directory) == ([*PAYLOADS, *PAYLOADS[:count], b"new"], None)
        assert all(path.suffix == ".log" for path in files(directory))


TAILS = [bytes(1), bytes(24), bytes(5000), b"\xff" * 5000, b"\x8dRec" * 1000, os.urandom(3000)]


@pytest.mark.parametrize("tail", TAILS)
def test_zeros_or_garbage_at_the_end_are_torn(tmp_path: Path, tail: bytes) -> None:
    write(tmp_path, PAYLOADS)
    with open(files(tmp_path)[0], "ab") as file:
        file.write(tail)
    payloads, torn = read(tmp_path)
    assert payloads == PAYLOADS
    assert torn is not None
    assert torn.offset == offsets(PAYLOADS)[-1]
    write(tmp_path, [b"new"], 5)
    assert read(tmp_path) == ([*PAYLOADS, b"new"], None)


def test_only_segment_without_a_header_is_torn_and_made_anew(tmp_path: Path) -> None:
    write(tmp_path, [], 3)
    files(tmp_path)[0].write_bytes(b"\x89rlx")
    payloads, torn = read(tmp_path, 3)
    assert payloads == []
    assert torn is not None
    write(tmp_path, [b"new"], 3)
    assert read(tmp_path, 3) == ([b"new"], None)


def test_large_record_that_was_cut_in_the_middle_is_torn(tmp_path: Path) -> None:
    write(tmp_path, [b"a", os.urandom(3 << 20)])
    path = files(tmp_path)[0]
    os.truncate(path, path.stat().st_size - 1)
    payloads, torn = read(tmp_path)
    assert payloads == [b"a"]
    assert torn is not None
    assert "a record of 3145728 bytes, of which the file has 3145727" in torn.found


def test_declared_length_is_never_allocated(tmp_path: Path) -> None:
    write(tmp_path, [b"a"])
    with open(files(tmp_path)[0], "ab") as file:
        file.write(struct.pack("<4sQQII", b"\x8dRec", 1 << 62, 1, 0, 0))
    payloads, torn = read(tmp_path)
    assert payloads == [b"a"]
    assert torn is not None


KILLED = """
import random, sys
from pathlib import Path
from relaax_like.parameter_server.journal import Journal

directory, first, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
generator = random.Random(seed)
journal = Journal(
    directory, first, fingerprint=7, segment_bytes=200_000, sync_interval_sec=0.01
)
while True:
    index = journal.append([b"%d:" % journal.next_index, bytes(generator.randrange(60_000))])
    sys.stdout.write(f"{index}\\n")
    sys.stdout.flush()
"""


def test_killed_writers_records_are_all_read_back(tmp_path: Path) -> None:
    generator = random.Random(1)
    first = 0
    for seed in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(first), str(seed)],
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"%d\n" % first
            time.sleep(generator.uniform(0, 0.1))
            process.send_signal(signal.SIGKILL)
            acknowledged = first
            for line in process.stdout.read().splitlines(keepends=True):
                if line.endswith(b"\n"):
                    acknowledged = int(line)
        reader = JournalReader(tmp_path, 7, 0)
        for index, payload in reader:
            assert bytes(payload).split(b":")[0] == b"%d" % index
        assert reader.next_index > acknowledged
        first = reader.next_index


# What a power cut leaves of a new segment.


@pytest.fixture
def rotated(tmp_path: Path) -> Path:
    """Two segments as they lie on the disk before the first sync after a rotation."""
    with open_journal(tmp_path / "writer") as journal:
        for payload in PAYLOADS:
            journal.append([payload])
        journal.start_segment()
        for payload in PAYLOADS:
            journal.append([payload])
        shutil.copytree(tmp_path / "writer", tmp_path / "journal")
    assert firsts(tmp_path / "journal") == ["0.log", "5.log.new"]
    return tmp_path / "journal"


def test_killed_before_the_new_segment_was_confirmed_loses_nothing(rotated: Path) -> None:
    assert read(rotated) == (PAYLOADS * 2, None)
    write(rotated, [b"new"], 10)
    assert firsts(rotated) == ["0.log", "5.log"]
    assert read(rotated) == ([*PAYLOADS, *PAYLOADS, b"new"], None)


def test_end_of_the_old_segment_may_be_lost_while_the_new_one_is_not_confirmed(
    rotated: Path,
) -> None:
    content = files(rotated)[0].read_bytes()
    ends = offsets(PAYLOADS)
    for size in range(HEADER_BYTES, len(content)):
        directory = rotated.with_name(str(size))
        shutil.copytree(rotated, directory)
        files(directory)[0].write_bytes(content[:size])
        count = sum(end <= size for end in ends[1:])
        payloads, torn = read(directory)
        assert payloads == PAYLOADS[:count]
        assert torn is not None
        if size % 10 == 0:
            write(directory, [b"new"], count)
            assert read(directory) == ([*PAYLOADS[:count], b"new"], None)


def test_same_loss_before_a_confirmed_segment_is_damage(rotated: Path) -> None:
    old, new = files(rotated)
    new.rename(new.with_suffix(""))
    content = old.read_bytes()
    for size in range(len(content)):
        old.write_bytes(content[:size])
        with pytest.raises(JournalError, match="damaged at offset"):
            read(rotated)


@pytest.mark.parametrize("header", [bytes(HEADER_BYTES), b"\xff" * HEADER_BYTES, b""])
def test_header_that_did_not_reach_the_disk_is_torn(rotated: Path, header: bytes) -> None:
    files(rotated)[1].write_bytes(header + bytes(100 if header else 0))
    payloads, torn = read(rotated)
    assert payloads == PAYLOADS
    assert torn is not None
    assert (torn.path.name, torn.offset, torn.index) == (f"journal-{5:020d}.log.new", 0, 5)
    write(rotated, [b"new"], 5)
    assert read(rotated) == ([*PAYLOADS, b"new"], None)


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


# Damage.


def test_flipped_bit_is_damage_except_in_the_last_record(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS)
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    last = offsets(PAYLOADS)[-2]
    for offset in range(len(whole)):
        path.write_bytes(whole)
        flip(path, offset, offset % 8)
        # The chain of a whole record is nothing that a crash changes.
        if offset < last or last + RECORD_BYTES - 4 <= offset < last + RECORD_BYTES:
            with pytest.raises(JournalError):
                read(tmp_path)
            with pytest.raises(JournalError):
                open_journal(tmp_path, 5)
        else:
            payloads, torn = read(tmp_path)
            assert payloads == PAYLOADS[:-1]
            assert torn is not None
            assert torn.offset == last


def test_flipped_bit_in_an_earlier_segment_is_always_damage(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=120)
    path = files(tmp_path)[0]
    whole = path.read_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole)
        flip(path, offset)
        with pytest.raises(JournalError):
            read(tmp_path)


def test_damaged_header_of_a_confirmed_segment_without_records_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [])
    flip(files(tmp_path)[0], 20)
    with pytest.raises(JournalError, match="a header that does not match its CRC"):
        read(tmp_path)


def test_message_names_file_offset_and_cure(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS)
    path = files(tmp_path)[0]
    offset = offsets(PAYLOADS)[2]
    flip(path, offset + RECORD_BYTES)
    with pytest.raises(JournalError) as caught:
        read(tmp_path)
    assert f"{path}: damaged at offset {offset}, where record 2 should be" in str(caught.value)
    assert "a record that does not match its CRC" in str(caught.value)
    assert "`relaax fsck --to-last-good`" in str(caught.value)


def test_record_behind_a_wide_hole_is_found(tmp_path: Path) -> None:
    payloads = [b"a", os.urandom(1 << 20), bytes(2 << 20), b"z"]
    write(tmp_path, payloads)
    path = files(tmp_path)[0]
    ends = offsets(payloads)
    with open(path, "r+b") as file:  # nothing is left of the second and third
        file.seek(ends[1])
        file.write(bytes(ends[3] - ends[1]))
    with pytest.raises(JournalError, match=f"damaged at offset {ends[1]}"):
        read(tmp_path)


@pytest.mark.parametrize("before", range(-1, 6))
def test_record_behind_is_found_where_its_mark_lies_across_two_reads(
    tmp_path: Path, before: int
) -> None:
    write(tmp_path, [bytes((1 << 20) - RECORD_BYTES - before), b"z"])
    flip(files(tmp_path)[0], 100)
    with pytest.raises(JournalError, match=f"damaged at offset {HEADER_BYTES}"):
        read(tmp_path)


def test_missing_segment_is_damage(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=1)
    files(tmp_path)[2].unlink()
    with pytest.raises(JournalError, match="record 2 should be: a segment that begins with rec"):
        read(tmp_path)
    assert read(tmp_path, 3) == (PAYLOADS[3:], None)
    files(tmp_path)[0].unlink()
    with pytest.raises(JournalError, match="begins with record 1, expected record 0"):
        read(tmp_path)


def test_missing_repeated_and_exchanged_records_are_damage(tmp_path: Path) -> None:
    write(tmp_path / "a", [b"same", b"1111", b"2222", b"last"])
    write(tmp_path / "b", [b"else", b"1111", b"2222", b"last"])
    path = files(tmp_path / "a")[0]
    whole = path.read_bytes()
    ends = offsets([b"same", b"1111", b"2222", b"last"])
    parts = [whole[start:end] for start, end in itertools.pairwise(ends)]
    header = whole[:HEADER_BYTES]
    foreign = files(tmp_path / "b")[0].read_bytes()[ends[3] : ends[4]]
    for tampered, found in (
        ([parts[0], parts[2], parts[3]], "1 should be: record 2"),
        ([parts[0], parts[1], parts[1], parts[2], parts[3]], "2 should be: record 1"),
        ([parts[0], parts[2], parts[1], parts[3]], "1 should be: record 2"),
        ([parts[1], parts[2], parts[3]], "0 should be: record 1"),
        # Also at the end: no crash writes a whole record twice.
        ([*parts, parts[3]], "4 should be: record 3"),
        ([*parts[:3], foreign], "3 should be: a record that does not continue the one before"),
    ):
        path.write_bytes(header + b"".join(tampered))
        with pytest.raises(JournalError, match=f"damaged at offset .* record {found}"):
            read(tmp_path / "a")


def test_segment_of_another_journal_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "a", [b"1", b"2"], segment_bytes=1)
    write(tmp_path / "b", [b"0", b"2"], segment_bytes=1)
    shutil.copy(files(tmp_path / "b")[1], files(tmp_path / "a")[1])
    with pytest.raises(JournalError, match="does not continue the one before"):
        read(tmp_path / "a")


def test_segment_of_another_number_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [b"1"])
    files(tmp_path)[0].rename(tmp_path / f"journal-{1:020d}.log")
    with pytest.raises(JournalError, match="begins with record 0, which the name contradicts"):
        read(tmp_path, 1)


def test_journal_of_another_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [b"1"], fingerprint=0xABC)
    for attempt in (read, lambda directory: open_journal(directory, 1)):
        with pytest.raises(JournalError, match="fingerprint 0xabc, expected 0xfeedbeef; use the"):
            attempt(tmp_path)
    assert len(files(tmp_path)) == 1


def test_unknown_format_is_refused_and_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("relaax_like.parameter_server.journal_format.FORMAT", 2)
        patch.setattr("relaax_like.parameter_server.journal_reader.FORMAT", 2)
        write(tmp_path, [b"1"])
    content = files(tmp_path)[0].read_bytes()
    for attempt in (read, check_journal, cut_to_last_good):
        with pytest.raises(JournalError, match="format 2, this version reads format 1"):
            attempt(tmp_path)
    assert files(tmp_path)[0].read_bytes() == content


def test_disk_that_fails_while_it_is_read_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [b"1"], segment_bytes=1)
    (tmp_path / f"journal-{1:020d}.log").mkdir()  # reading it fails
    with pytest.raises(JournalError, match="cannot be read"):
        read(tmp_path)


def test_disk_that_fails_while_the_end_is_searched_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pread(descriptor: int, size: int, offset: int) -> bytes:
        raise ERRORS[1]

    write(tmp_path, PAYLOADS)
    os.truncate(files(tmp_path)[0], offsets(PAYLOADS)[-1] - 1)
    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(JournalError, match="damaged"):
        read(tmp_path)


# Any journal, any damage.


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[bytes], set[int]]:
    """Draws payloads, and the records before which a segment begins."""
    sizes = draw(st.lists(st.integers(0, 40) | st.integers(0, 5000), min_size=1, max_size=12))
    seed = draw(st.integers(0, 1 << 30))
    generator = random.Random(seed)
    payloads = [generator.randbytes(size) for size in sizes]
    starts = (
        st.sets(st.integers(1, len(sizes) - 1), max_size=3) if len(sizes) > 1 else st.just(set())
    )
    return payloads, draw(starts)


def write_drawn(directory: Path, journal: tuple[list[bytes], set[int]]) -> None:
    payloads, starts = journal
    with open_journal(directory) as writer:
        for index, payload in enumerate(payloads):
            if index in starts:
                writer.start_segment()
            half = len(payload) // 2
            writer.append([payload[:half], payload[half:]])


@settings(deadline=None, max_examples=100)
@given(journal=journals(), where=st.floats(0, 1))
def test_any_cut_yields_a_prefix(journal: tuple[list[bytes], set[int]], where: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_drawn(Path(folder), journal)
        assert read(Path(folder)) == (journal[0], None)
        last = files(Path(folder))[-1]
        size = int(where * last.stat().st_size)
        os.truncate(last, size)
        payloads, torn = read(Path(folder))
        before = max(journal[1], default=0)
        ends = offsets(journal[0][before:])
        assert payloads == journal[0][: before + sum(end <= size for end in ends[1:])]
        assert (torn is None) == (size in ends)
        write(Path(folder), [b"new"], len(payloads))
        assert read(Path(folder)) == ([*payloads, b"new"], None)


@settings(deadline=None, max_examples=150)
@given(journal=journals(), file=st.integers(0, 3), where=st.floats(0, 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(
    journal: tuple[list[bytes], set[int]], file: int, where: float, bit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_drawn(Path(folder), journal)
        paths = files(Path(folder))
        path = paths[file % len(paths)]
        flip(path, int(where * (path.stat().st_size - 1)), bit)
        report = check_journal(Path(folder))
        assert report.damage is not None
        assert report.damage.path == path
        reader = JournalReader(Path(folder), FINGERPRINT, 0)
        payloads = []
        try:
            for _, payload in reader:
                payloads.append(bytes(payload))
        except JournalError:
            assert not report.damage.torn
        else:
            assert report.damage.torn
            assert reader.torn == report.damage
            assert path == paths[-1]
            assert payloads == journal[0][:-1]  # nothing but the last record can be torn
        assert payloads == journal[0][: report.damage.index]
        cut_to_last_good(Path(folder))
        assert read(Path(folder)) == (payloads, None)


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


ERRORS = [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "I/O error")]


@pytest.mark.parametrize("kept_bytes", [0, 1, RECORD_BYTES, RECORD_BYTES + 4])
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
                journal.append_many([[b"lost"], [b"as well"]])
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
        with pytest.raises(JournalError, match="cannot be taken back"):
            journal.append([b"lost"])
    for attempt in (lambda: journal.append([b"more"]), journal.start_segment, journal.sync):
        with pytest.raises(JournalError, match="nothing is accepted any more"):
            attempt()
    assert "cannot be taken back" in journal.failed
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
                with pytest.raises(JournalError, match=r"no new segment.*No space left"):
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


class SlowDisk:
    """An `os.fsync` that can be held up, can fail, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.calls = 0
        self.entered = threading.Event()
        self.free = threading.Event()
        self.free.set()
        self.error: OSError | None = None
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor: int) -> None:
        self.calls += 1
        self.entered.set()
        assert self.free.wait(60)
        if self.error:
            raise self.error
        self._fsync(descriptor)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


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
        wait_until(lambda: journal.unsynced_bytes == 0)
        assert journal.unsynced_records == 0
        assert all(path.suffix == ".log" for path in files(tmp_path))
    assert read(tmp_path)[0] == [b"%d" % i for i in range(30)]


def test_nothing_is_synced_while_nothing_is_written(
    tmp_path: Path, slow_disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_journal(tmp_path, sync_interval_sec=0.001) as journal:
        journal.append([b"0"])
        wait_until(lambda: journal.unsynced_records == 0)
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


def test_strict_append_is_synced_when_it_returns_and_many_take_one_sync(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    with open_journal(tmp_path, strict=True) as journal:
        assert "journal sync" not in [thread.name for thread in threading.enumerate()]
        for _ in range(3):
            calls = slow_disk.calls
            journal.append([b"x"])
            assert slow_disk.calls == calls + 1
            assert (journal.unsynced_records, journal.unsynced_bytes) == (0, 0)
        calls = slow_disk.calls
        journal.append_many([[b"y"]] * 10)
        assert slow_disk.calls == calls + 1
        descriptors = len(os.listdir("/proc/self/fd"))
        journal.start_segment()
        journal.append([b"z"])  # both files and the folder
        assert slow_disk.calls == calls + 4
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert firsts(tmp_path) == ["0.log", "13.log"]


def test_failed_sync_is_the_end_in_strict_mode(tmp_path: Path, slow_disk: SlowDisk) -> None:
    journal = open_journal(tmp_path, strict=True)
    journal.append([b"0"])
    slow_disk.error = OSError(errno.EIO, "I/O error")
    with pytest.raises(JournalError, match=r"cannot be synced.*I/O error"):
        journal.append([b"1"])
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
    wait_until(lambda: bool(journal.failed))
    slow_disk.error = None
    with pytest.raises(JournalError, match="Restart the parameter server"):
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
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1
    for attempt in (lambda: journal.append([b"1"]), journal.start_segment):
        with pytest.raises(JournalError, match="closed"):
            attempt()


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
    assert len(os.listdir("/proc/self/fd")) == descriptors - 1
    assert "journal sync" not in [thread.name for thread in threading.enumerate()]


def test_start_syncs_what_a_killed_writer_left(rotated: Path, slow_disk: SlowDisk) -> None:
    journal = open_journal(rotated, 10)
    assert slow_disk.calls == 3  # the confirmed one, the new one, the folder
    assert journal.unsynced_bytes == 0
    journal.close()


# Which record is the next.


def test_writer_that_would_overwrite_records_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS)
    for first in range(5):
        with pytest.raises(JournalError, match=f"up to 4, but the next one is to be {first}"):
            open_journal(tmp_path, first)
    assert read(tmp_path) == (PAYLOADS, None)


def test_snapshot_that_is_newer_than_all_records_begins_anew(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=1)
    write(tmp_path, [b"100"], 100)
    assert firsts(tmp_path) == ["100.log"]
    assert read(tmp_path, 100) == ([b"100"], None)


def test_snapshot_that_is_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, 100)
    with pytest.raises(JournalError, match="begins with record 100, expected record 7"):
        open_journal(tmp_path, 7)
    assert read(tmp_path, 100) == (PAYLOADS, None)


def test_numbers_that_make_no_sense_and_places_that_cannot_be_written(tmp_path: Path) -> None:
    for name in ("segment_bytes", "sync_interval_sec"):
        with pytest.raises(ConfigError, match=f"{name}: 0, expected more than 0"):
            open_journal(tmp_path, **{name: 0})
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError, match="cannot hold a journal"):
        open_journal(tmp_path / "file" / "journal")


# What fsck needs.


def test_report_of_a_whole_journal(tmp_path: Path) -> None:
    assert check_journal(tmp_path / "none").segments == ()
    write(tmp_path, PAYLOADS, 7, segment_bytes=100)
    report = check_journal(tmp_path)
    assert report.damage is None
    assert [s.path for s in report.segments] == files(tmp_path)
    assert [(s.first_index, s.records, s.state) for s in report.segments] == [
        (7, 3, "whole"),
        (10, 1, "whole"),
        (11, 1, "whole"),
    ]
    assert [s.bytes for s in report.segments] == [p.stat().st_size for p in files(tmp_path)]
    assert cut_to_last_good(tmp_path) is None


def test_report_of_two_models_in_one_journal(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS)
    write(tmp_path / "other", PAYLOADS, 5, fingerprint=0xABC)
    shutil.copy(files(tmp_path / "other")[0], tmp_path)
    damage = check_journal(tmp_path).damage
    assert damage is not None
    assert damage.found == "fingerprint 0xabc, 0xfeedbeef before it"


def test_report_names_the_first_damage_and_reads_what_lies_behind(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS * 3, segment_bytes=220)
    paths = files(tmp_path)
    assert firsts(tmp_path) == ["0.log", "5.log", "10.log"]
    flip(paths[1], offsets(PAYLOADS)[2])
    os.truncate(paths[2], paths[2].stat().st_size - 1)
    report = check_journal(tmp_path)
    assert [(s.records, s.state) for s in report.segments] == [
        (5, "whole"),
        (2, "damaged"),
        (4, "torn"),
    ]
    assert report.damage is not None
    assert (report.damage.path, report.damage.offset) == (paths[1], offsets(PAYLOADS)[2])
    assert (report.damage.index, report.damage.torn) == (7, False)


def test_cut_keeps_what_is_good_and_moves_the_rest_aside(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS * 3, segment_bytes=220)
    paths = files(tmp_path)
    offset = offsets(PAYLOADS)[2]
    flip(paths[1], offset)
    contents = [path.read_bytes() for path in paths]
    for attempt in (1, 2):  # the second time after the same damage
        cut = cut_to_last_good(tmp_path)
        assert cut is not None
        assert cut.damage.index == 7
        assert cut.bytes == len(contents[1]) - offset + len(contents[2])
        tail, behind = files(cut.aside)
        assert cut.aside.name == f"cut-{7:020d}-{attempt}"
        if behind.name != paths[2].name:
            tail, behind = behind, tail
        assert tail.name == f"{paths[1].name}.from-{offset}"
        assert tail.read_bytes() == contents[1][offset:]
        assert behind.read_bytes() == contents[2]
        assert read(tmp_path) == (PAYLOADS + PAYLOADS[:2], None)
        assert cut_to_last_good(tmp_path) is None
        if attempt == 1:
            paths[1].write_bytes(contents[1])
            paths[2].write_bytes(contents[2])
    write(tmp_path, [b"new"], 7)
    assert read(tmp_path) == ([*PAYLOADS, *PAYLOADS[:2], b"new"], None)


def test_cut_at_a_missing_segment_and_at_a_header_moves_whole_files(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=1)
    files(tmp_path)[3].unlink()
    cut = cut_to_last_good(tmp_path)
    assert cut is not None
    assert (cut.damage.index, [p.name for p in files(cut.aside)]) == (3, [f"journal-{4:020d}.log"])
    assert read(tmp_path) == (PAYLOADS[:3], None)
    flip(files(tmp_path)[1], 3)
    cut = cut_to_last_good(tmp_path)
    assert cut is not None
    assert (cut.damage.index, len(files(cut.aside))) == (1, 2)
    assert read(tmp_path) == (PAYLOADS[:1], None)


def test_cut_that_fails_leaves_the_journal_to_be_cut_again(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    write(tmp_path, PAYLOADS)
    flip(files(tmp_path)[0], offsets(PAYLOADS)[2])
    content = files(tmp_path)[0].read_bytes()
    slow_disk.error = ERRORS[0]
    with pytest.raises(JournalError, match=r"was not cut.*No space left"):
        cut_to_last_good(tmp_path)
    assert files(tmp_path)[0].read_bytes() == content
    slow_disk.error = None
    calls = slow_disk.calls
    assert cut_to_last_good(tmp_path) is not None
    assert slow_disk.calls == calls + 4  # copy, file, and both folders
    assert read(tmp_path) == (PAYLOADS[:2], None)
