"""What fsck needs: the report of a journal, and the cut to the last good record."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.journal import (
    ERRORS,
    PAYLOADS,
    SlowDisk,
    cut,
    files,
    firsts,
    flip,
    offsets,
    read,
    write,
)

from relaax_like.core.journal.check import check_journal
from relaax_like.wire.errors import JournalError


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


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
    assert cut(tmp_path) is None


def test_report_of_two_models_in_one_journal(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS)
    write(tmp_path / "other", PAYLOADS, 5, fingerprint=0xABC)
    shutil.copy(files(tmp_path / "other")[0], tmp_path)
    damage = check_journal(tmp_path).damage
    assert damage is not None
    assert damage.found == "fingerprint 0xabc, but 0xfeedbeef in the segment before"


def test_a_segment_that_cannot_be_examined_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that this user can list but not search."""
    write(tmp_path, PAYLOADS)

    def fail(path: Path, **options: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", fail)
        with pytest.raises(JournalError, match=r"cannot be examined: .*Permission denied"):
            check_journal(tmp_path)


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
        done = cut(tmp_path)
        assert done is not None
        assert done.aside is not None
        assert done.bytes == len(contents[1]) - offset + len(contents[2])
        tail, behind = files(done.aside)
        assert done.aside.name == f"cut-{7:020d}-{attempt}"
        if behind.name != paths[2].name:
            tail, behind = behind, tail
        assert tail.name == f"{paths[1].name}.from-{offset}"
        assert tail.read_bytes() == contents[1][offset:]
        assert behind.read_bytes() == contents[2]
        assert read(tmp_path) == (PAYLOADS + PAYLOADS[:2], None)
        assert cut(tmp_path) is None
        if attempt == 1:
            paths[1].write_bytes(contents[1])
            paths[2].write_bytes(contents[2])
    write(tmp_path, [b"new"], 7)
    assert read(tmp_path) == ([*PAYLOADS, *PAYLOADS[:2], b"new"], None)


def test_cut_at_a_missing_segment_and_at_a_header_moves_whole_files(tmp_path: Path) -> None:
    write(tmp_path, PAYLOADS, segment_bytes=1)
    files(tmp_path)[3].unlink()
    done = cut(tmp_path)
    assert done is not None
    assert done.aside is not None
    assert [p.name for p in files(done.aside)] == [f"journal-{4:020d}.log"]
    assert read(tmp_path) == (PAYLOADS[:3], None)
    flip(files(tmp_path)[1], 3)
    done = cut(tmp_path)
    assert done is not None
    assert done.aside is not None
    assert len(files(done.aside)) == 2
    assert read(tmp_path) == (PAYLOADS[:1], None)


def test_cut_that_fails_leaves_the_journal_to_be_cut_again(
    tmp_path: Path, slow_disk: SlowDisk
) -> None:
    write(tmp_path, PAYLOADS)
    flip(files(tmp_path)[0], offsets(PAYLOADS)[2])
    content = files(tmp_path)[0].read_bytes()
    slow_disk.error = ERRORS[0]
    with pytest.raises(JournalError, match=r"could not truncate the journal.*No space left"):
        cut(tmp_path)
    assert files(tmp_path)[0].read_bytes() == content
    slow_disk.error = None
    calls = slow_disk.calls
    assert cut(tmp_path) is not None
    assert slow_disk.calls == calls + 6  # copy, file, the head, and three folders
    assert read(tmp_path) == (PAYLOADS[:2], None)
