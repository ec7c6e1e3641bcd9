"""What is read back after a crash, a power cut or damage: what was acknowledged, nothing else."""

import itertools
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.journal import (
    ERRORS,
    FINGERPRINT,
    PAYLOADS,
    cut,
    files,
    firsts,
    flip,
    journals,
    offsets,
    open_journal,
    read,
    write,
    write_drawn,
    write_rotated,
)

from relaax_like.core.journal.check import check_journal
from relaax_like.core.journal.files import HEADER_BYTES, RECORD_BYTES
from relaax_like.core.journal.reader import JournalReader
from relaax_like.wire.errors import JournalError

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
    assert "a record with only 3145727 of its 3145728 bytes" in torn.found


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
from relaax_like.core.journal.journal import Journal

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
    return write_rotated(tmp_path)


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
    assert f"`relaax fsck {tmp_path.parent} --to-last-good`" in str(caught.value)


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
    with pytest.raises(
        JournalError, match="where record 0 should be: a journal that starts with record 1"
    ):
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
        ([*parts[:3], foreign], "3 should be: a record that does not continue the previous one"),
    ):
        path.write_bytes(header + b"".join(tampered))
        with pytest.raises(JournalError, match=f"damaged at offset .* record {found}"):
            read(tmp_path / "a")


def test_segment_of_another_journal_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "a", [b"1", b"2"], segment_bytes=1)
    write(tmp_path / "b", [b"0", b"2"], segment_bytes=1)
    shutil.copy(files(tmp_path / "b")[1], files(tmp_path / "a")[1])
    with pytest.raises(JournalError, match="does not continue the previous one"):
        read(tmp_path / "a")


def test_segment_of_another_number_is_damage(tmp_path: Path) -> None:
    write(tmp_path, [b"1"])
    files(tmp_path)[0].rename(tmp_path / f"journal-{1:020d}.log")
    with pytest.raises(
        JournalError, match="a header for record 0, which contradicts the file name"
    ):
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
        patch.setattr("relaax_like.core.journal.files.FORMAT", 3)
        patch.setattr("relaax_like.core.journal.reader.FORMAT", 3)
        write(tmp_path, [b"1"])
    content = files(tmp_path)[0].read_bytes()
    for attempt in (read, check_journal):
        with pytest.raises(JournalError, match="format 3, but this version reads format 2"):
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
        directory = Path(folder) / "journal"
        write_drawn(directory, journal)
        paths = files(directory)
        path = paths[file % len(paths)]
        flip(path, int(where * (path.stat().st_size - 1)), bit)
        report = check_journal(directory)
        assert report.damage is not None
        assert report.damage.path == path
        reader = JournalReader(directory, FINGERPRINT, 0)
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
        cut(directory)
        assert read(directory) == (payloads, None)
