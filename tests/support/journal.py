"""Journals of the tests: written, read back, damaged, and on a disk that is slow or fails."""

import errno
import os
import random
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from relaax_like.core.journal.check import JournalCut, check_journal, cut_journal
from relaax_like.core.journal.files import HEADER_BYTES, RECORD_BYTES
from relaax_like.core.journal.journal import Journal
from relaax_like.core.journal.reader import Damage, JournalReader

FINGERPRINT = 0xFEEDBEEF
NEVER = 1000.0  # seconds between two syncs: none happens in a test
PAYLOADS = [b"first", b"", b"third record", bytes(40), b"fifth"]
ERRORS = [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "I/O error")]


def open_journal(directory: Path, first_index: int = 0, **settings: Any) -> Journal:
    """Opens a journal for writing; by default it syncs only on request, and at its end."""
    settings = {"fingerprint": FINGERPRINT, "sync_interval_sec": NEVER, **settings}
    return Journal(directory, first_index, **settings)


def write(
    directory: Path, payloads: Sequence[bytes], first_index: int = 0, **settings: Any
) -> None:
    """Writes one record of each payload and closes the journal."""
    with open_journal(directory, first_index, **settings) as journal:
        for payload in payloads:
            journal.append([payload])


def read(directory: Path, from_index: int = 0) -> tuple[list[bytes], Damage | None]:
    """Reads all payloads, and what is torn at the end."""
    reader = JournalReader(directory, FINGERPRINT, from_index)
    payloads = []
    for expected, (index, payload) in enumerate(reader, from_index):
        assert index == expected
        payloads.append(bytes(payload))
    assert reader.next_index == from_index + len(payloads)
    return payloads, reader.torn


def cut(directory: Path) -> JournalCut | None:
    """Cuts a journal at its first damage; None: there is none."""
    damage = check_journal(directory).damage
    return None if damage is None else cut_journal(directory, damage)


def files(directory: Path) -> list[Path]:
    """Returns a folder's files, sorted by name."""
    return sorted(path for path in directory.iterdir() if path.is_file())


def firsts(directory: Path) -> list[str]:
    """Returns the segments' names, their numbers without leading zeros."""
    names = (path.name.removeprefix("journal-").partition(".") for path in files(directory))
    return [f"{int(number)}.{suffix}" for number, _, suffix in names]


def offsets(payloads: Sequence[bytes]) -> list[int]:
    """Returns where each record begins in the only segment, and the segment's end."""
    ends = [HEADER_BYTES]
    for payload in payloads:
        ends.append(ends[-1] + RECORD_BYTES + len(payload))
    return ends


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flips one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def write_rotated(folder: Path) -> Path:
    """Writes two segments as they lie on the disk before the first sync after a rotation."""
    with open_journal(folder / "writer") as journal:
        for payload in PAYLOADS:
            journal.append([payload])
        journal.start_segment()
        for payload in PAYLOADS:
            journal.append([payload])
        shutil.copytree(folder / "writer", folder / "journal")
    assert firsts(folder / "journal") == ["0.log", "5.log.new"]
    return folder / "journal"


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
    """Writes what `journals` drew, each record in two pieces."""
    payloads, starts = journal
    with open_journal(directory) as writer:
        for index, payload in enumerate(payloads):
            if index in starts:
                writer.start_segment()
            half = len(payload) // 2
            writer.append([payload[:half], payload[half:]])


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
        """Waits until it is free, then fails or syncs for real."""
        self.calls += 1
        self.entered.set()
        assert self.free.wait(60)
        if self.error:
            raise self.error
        self._fsync(descriptor)
