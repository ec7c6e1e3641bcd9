"""The journal's head: claims only what is on the disk, whenever a crash comes."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from support.journal import ERRORS, PAYLOADS, SlowDisk, files, firsts, open_journal

from relaax_like.core.journal import head as journal_head
from relaax_like.core.journal.head import Claim, JournalHead
from relaax_like.core.journal.reader import DamagedJournalError, JournalReader
from relaax_like.wire.errors import DamagedError, JournalError


@pytest.fixture
def head(tmp_path: Path) -> JournalHead:
    return JournalHead(tmp_path / "journal-head")


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    return SlowDisk(monkeypatch)


def read(directory: Path, head: JournalHead, from_index: int = 0) -> list[bytes]:
    return [bytes(payload) for _, payload in JournalReader(directory, None, from_index, head)]


def test_what_was_written_is_read_back(head: JournalHead) -> None:
    assert head.read() is None
    for claim in (Claim(), Claim(0, 0), Claim(7, 2**63), Claim(7, 12, is_final=True)):
        head.replace(claim)
        assert head.read() == claim
        head.note(Claim(None, 3))
        assert head.read() == Claim(None, 3)
    head.close()
    head.close()
    assert files(head.path.parent) == [head.path]


def test_any_damage_is_noticed(head: JournalHead, monkeypatch: pytest.MonkeyPatch) -> None:
    head.replace(Claim(3, 12))
    content = head.path.read_bytes()
    for offset in range(len(content)):
        head.path.write_bytes(content[:offset])
        with pytest.raises(DamagedError, match=f"expected {len(content)} bytes, found {offset}"):
            head.read()
        flipped = bytearray(content)
        flipped[offset] ^= 1
        head.path.write_bytes(flipped)
        with pytest.raises(DamagedError, match="does not match its CRC"):
            head.read()
    with monkeypatch.context() as patch:
        patch.setattr(journal_head, "_FORMAT", 2)
        head.replace(Claim(3, 12))
    with pytest.raises(JournalError, match="format 2, but this version reads format 1; use the"):
        head.read()


def test_one_that_cannot_be_replaced_stays(head: JournalHead, slow_disk: SlowDisk) -> None:
    head.replace(Claim(3, 12))
    slow_disk.error = ERRORS[0]
    with pytest.raises(OSError, match="No space left"):
        head.replace(Claim(4, 13))
    assert head.read() == Claim(3, 12)
    assert files(head.path.parent) == [head.path]


def test_a_failure_to_note_is_logged_once(
    head: JournalHead, caplog: pytest.LogCaptureFixture
) -> None:
    for end in (1, 2):
        head.note(Claim(0, end))  # there is no file
    assert caplog.text.count("could not be written: [Errno 2]") == 1


def test_it_claims_what_a_sync_has_reached_and_nothing_before(
    tmp_path: Path, head: JournalHead, slow_disk: SlowDisk
) -> None:
    with open_journal(tmp_path / "journal", head=head) as journal:
        assert head.read() == Claim(0, 0)
        journal.append([b"first"])
        assert journal.start_segment() == 1
        journal.append([b"second"])
        assert head.read() == Claim(0, 0)
        slow_disk.entered.clear()
        slow_disk.free.clear()
        thread = threading.Thread(target=journal.sync)
        thread.start()
        assert slow_disk.entered.wait(60)
        meanwhile = head.read()
        slow_disk.free.set()
        thread.join()
        assert meanwhile == Claim(0, 0)
        assert head.read() == Claim(1, 2)
        calls = slow_disk.calls
        journal.append([b"third"])
        journal.sync()
        assert slow_disk.calls == calls + 1  # the segment: the head needs none
        assert head.read() == Claim(1, 3)
        journal.append([b"fourth"])
        slow_disk.error = ERRORS[1]
        with pytest.raises(JournalError, match="cannot be synced"):
            journal.sync()
        assert head.read() == Claim(1, 3)


def test_a_journal_that_was_closed_is_not_missed_by_who_has_all_of_it(
    tmp_path: Path, head: JournalHead
) -> None:
    directory = tmp_path / "journal"
    with open_journal(directory, head=head) as journal:
        journal.append([b"first"])
    assert head.read() == Claim(0, 1, is_final=True)
    shutil.rmtree(directory)
    with pytest.raises(DamagedJournalError, match="before record 0, but there was a segment"):
        read(directory, head)
    assert read(directory, head, 1) == []
    with open_journal(directory, 1, head=head) as journal:  # while it is open, it is missed
        assert head.read() == Claim(1, 1)
        files(directory)[0].unlink()
        with pytest.raises(DamagedJournalError, match="before record 1, but there was a segment"):
            read(directory, head, 1)


def test_an_older_head_claims_less_and_is_no_damage(tmp_path: Path, head: JournalHead) -> None:
    """As a power cut leaves it: it is not synced itself."""
    directory, older = tmp_path / "journal", []
    with open_journal(directory, head=head) as journal:
        for payload in PAYLOADS:
            older.append(head.path.read_bytes())
            journal.append([payload])
            journal.start_segment()
            journal.sync()
    for content in older:
        head.path.write_bytes(content)
        assert read(directory, head) == PAYLOADS


def test_what_it_claims_and_is_missing_is_damage(tmp_path: Path, head: JournalHead) -> None:
    directory = tmp_path / "journal"
    with open_journal(directory, head=head) as journal:
        for payload in PAYLOADS:
            journal.append([payload])
            journal.start_segment()
    paths = files(directory)
    assert len(paths) == 6
    for count, path in reversed(list(enumerate(paths))):
        path.unlink()
        with pytest.raises(DamagedJournalError) as caught:
            read(directory, head)
        damage = caught.value.damage
        assert (damage.index, damage.offset, damage.torn) == (count, None, False)
        assert "there was a segment that begins with record 5" in damage.found
    head.path.unlink()
    assert read(directory, head) == []


def test_a_snapshot_ahead_of_the_journal_is_lawful_wherever_the_new_start_is_killed(
    tmp_path: Path, head: JournalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut took records that the snapshot contains: a new journal starts behind it."""
    directory = tmp_path / "journal"
    with open_journal(directory, head=head) as journal:
        for payload in PAYLOADS:
            journal.append([payload])
            journal.start_segment()
    before, head_before = tmp_path / "before", head.path.read_bytes()
    shutil.copytree(directory, before)
    calls = {"unlink": Path.unlink, "fsync": os.fsync, "rename": os.rename}
    left = [0]

    def dying(name):
        def call(*arguments, **options):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return calls[name](*arguments, **options)

        return call

    monkeypatch.setattr(Path, "unlink", dying("unlink"))
    monkeypatch.setattr(os, "fsync", dying("fsync"))
    monkeypatch.setattr(os, "rename", dying("rename"))
    for kills in range(100):
        left[0] = 10**9
        shutil.rmtree(directory)
        shutil.copytree(before, directory)
        head.path.write_bytes(head_before)
        left[0] = kills
        try:
            open_journal(directory, 100, head=JournalHead(head.path)).close()
            break
        except KeyboardInterrupt:
            left[0] = 10**9
            assert read(directory, head, 100) == []
            with open_journal(directory, 100, head=JournalHead(head.path)) as journal:
                journal.append([b"new"])
            assert read(directory, head, 100) == [b"new"]
            assert firsts(directory)[-1] == "100.log"
    assert kills > 8
