"""PublishedState: two files that alternate; whatever becomes of one, no wrong state is read back.

covers R24
"""

import errno
import logging
import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.parameter_server.published_state import NAMES, PublishedState
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import SnapshotError


def make_like(size: int = 3, optimizer: str = "adam") -> State:
    """Makes a state of a layout: what a store begins with."""
    manifest = make_manifest(
        [Variable("w", np.zeros((2, size), np.float32)), Variable("b", np.zeros(size, np.float32))]
    )
    flat = np.zeros(manifest.total_bytes, np.uint8)
    return Store(manifest, flat, {"default": OptimizerConfig(name=optimizer)}).export_state()


LIKE = make_like()


def make_state(version: int, like: State = LIKE) -> State:
    """Makes a state in which everything follows from its version."""
    random = np.random.default_rng(version)
    values = random.standard_normal(len(like.values) // 4).astype(np.float32)
    return replace(
        like,
        version=version,
        global_t=100 * version,
        values=values.view(np.uint8),
        slots={g: random.random(s.shape, np.float32) for g, s in like.slots.items()},
        steps=dict.fromkeys(like.steps, 7 * version),
        statistics={"published": version, "returns": [0.5 * version], "refused": {}},
    )


def assert_is(state: State | None, version: int) -> None:
    want = make_state(version)
    assert state is not None
    assert (state.version, state.global_t, state.steps) == (version, want.global_t, want.steps)
    assert state.statistics == want.statistics
    np.testing.assert_array_equal(state.values, want.values)
    assert set(state.slots) == set(want.slots)
    for group, slots in want.slots.items():
        np.testing.assert_array_equal(state.slots[group], slots)


class Folder:
    """A folder of published states; no bound on how often they are written."""

    def __init__(self, path: Path):
        self.path = path
        self.published = PublishedState(path, max_bytes_per_sec=float("inf"))

    def read(self, like: State = LIKE) -> State | None:
        """Reads as the next process does."""
        return PublishedState(self.path).read(like)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.published.close()
    folder.published.close()


def test_without_files_there_is_nothing(folder: Folder) -> None:
    assert folder.read() is None
    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_the_newest_of_all_that_were_written_comes_back(folder: Folder, count: int) -> None:
    for version in range(1, count + 1):
        assert folder.published.write(make_state(version))
        assert_is(folder.read(), version)
    assert {path.name for path in folder.path.iterdir()} == set(NAMES[: min(count, 2)])


def test_the_next_process_overwrites_the_older_file(folder: Folder) -> None:
    for version in (1, 2, 3):
        folder.published.write(make_state(version))
    other = PublishedState(folder.path)
    assert_is(other.read(LIKE), 3)
    newest = folder.path / NAMES[0]
    kept = newest.read_bytes()
    other.write(make_state(4))
    assert newest.read_bytes() == kept
    assert_is(folder.read(), 4)
    other.close()


floats = st.floats(width=32, allow_nan=False)


@given(
    version=st.integers(0, 2**63),
    global_t=st.integers(0, 2**62),
    steps=st.integers(0, 2**40),
    numbers=st.lists(floats, min_size=27, max_size=27),
    returns=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
    refused=st.dictionaries(st.text(max_size=10), st.integers(0, 2**40), max_size=3),
)
def test_a_round_trip_gives_back_every_bit(
    tmp_path_factory: pytest.TempPathFactory,
    version: int,
    global_t: int,
    steps: int,
    numbers: list[float],
    returns: list[float],
    refused: dict[str, int],
) -> None:
    flat = np.array(numbers, np.float32)
    state = replace(
        LIKE,
        version=version,
        global_t=global_t,
        values=flat[:9].view(np.uint8),
        slots={"default": flat[9:].reshape(2, 9)},
        steps={"default": steps},
        statistics={"returns": returns, "refused": refused},
    )
    path = tmp_path_factory.mktemp("published")
    published = PublishedState(path)
    assert published.write(state)
    published.close()
    came = PublishedState(path).read(LIKE)
    assert came is not None
    assert (came.version, came.global_t, came.steps) == (version, global_t, {"default": steps})
    assert came.statistics == state.statistics
    assert came.values.tobytes() == state.values.tobytes()
    assert came.slots["default"].tobytes() == state.slots["default"].tobytes()


# Damage: of the newest of two files, the older one is read; of the only one, nothing.


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the versions 1 and 2."""
    folder = Folder(tmp_path_factory.mktemp("written"))
    for version in (1, 2):
        folder.published.write(make_state(version))
    folder.published.close()
    return {name: (folder.path / name).read_bytes() for name in NAMES}


def read_damaged(tmp_path: Path, written: dict[str, bytes], damaged: bytes) -> None:
    """Fails unless the damaged newest file is seen for what it is."""
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / NAMES[1]).write_bytes(damaged)
    assert PublishedState(tmp_path).read(LIKE) is None
    (tmp_path / NAMES[0]).write_bytes(written[NAMES[0]])
    published = PublishedState(tmp_path)
    assert_is(published.read(LIKE), 1)
    # The damaged one is written to next, and not the one that is whole.
    published.write(make_state(3))
    published.close()
    assert (tmp_path / NAMES[0]).read_bytes() == written[NAMES[0]]
    assert_is(PublishedState(tmp_path).read(LIKE), 3)


@given(data=st.data())
def test_a_truncated_file_is_not_used(
    tmp_path_factory: pytest.TempPathFactory, written: dict[str, bytes], data: st.DataObject
) -> None:
    newest = written[NAMES[1]]
    length = data.draw(st.integers(0, len(newest) - 1))
    read_damaged(tmp_path_factory.mktemp("cut"), written, newest[:length])


@given(data=st.data())
def test_a_flipped_bit_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, written: dict[str, bytes], data: st.DataObject
) -> None:
    newest = bytearray(written[NAMES[1]])
    newest[data.draw(st.integers(0, len(newest) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    read_damaged(tmp_path_factory.mktemp("flipped"), written, bytes(newest))


def test_every_byte_of_the_first_fields_counts(tmp_path: Path, written: dict[str, bytes]) -> None:
    newest = written[NAMES[1]]
    for index in range(24):  # magic, CRC, length of the header, and its beginning
        damaged = bytearray(newest)
        damaged[index] ^= 0xFF
        read_damaged(tmp_path, written, bytes(damaged))


@pytest.mark.parametrize(
    "data",
    [b"", b"RLXPUB01", bytes(10_000), b"RLXPUB03" + bytes(100), os.urandom(5000)],
    ids=["nothing", "magic alone", "zeros", "another version", "noise"],
)
def test_what_is_none_of_ours_is_not_used(
    tmp_path: Path, written: dict[str, bytes], data: bytes
) -> None:
    read_damaged(tmp_path, written, data)


def test_a_write_that_was_cut_off_leaves_the_other_file(
    tmp_path: Path, written: dict[str, bytes]
) -> None:
    """A longer state over a shorter one, killed somewhere: the front is new, the rest old."""
    folder = Folder(tmp_path)
    folder.published.write(make_state(1))
    state = make_state(3)
    folder.published.write(replace(state, statistics={**state.statistics, "more": "x" * 500}))
    folder.published.close()
    longer = (tmp_path / NAMES[1]).read_bytes()
    for cut in range(10, len(longer), 37):  # from the middle of the CRC on
        read_damaged(tmp_path, written, longer[:cut] + written[NAMES[1]][cut:])


@pytest.mark.parametrize(
    ("like", "reason"),
    [
        (make_like(size=4), "different model"),
        (make_like(optimizer="sgd"), "different optimizers"),
    ],
    ids=["layout", "optimizer"],
)
def test_a_state_of_another_run_is_not_used(
    folder: Folder, like: State, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder.published.write(make_state(5))
    assert folder.read(like) is None
    assert reason in caplog.text
    assert str(folder.path / NAMES[0]) in caplog.text
    assert_is(folder.read(), 5)


def test_a_file_that_cannot_be_read_is_named_and_skipped(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.published.write(make_state(1))
    (folder.path / NAMES[1]).mkdir()
    assert_is(folder.read(), 1)
    assert f"{folder.path / NAMES[1]} is not used" in caplog.text


def test_another_version_of_the_format_is_refused(folder: Folder) -> None:
    folder.published.write(make_state(1))
    path = folder.path / NAMES[0]
    content = path.read_bytes()
    assert content[:8] == b"RLXPUB03"
    other, length, body = b"RLXPUB04", content[12:16], content[16:]
    crc = zlib.crc32(body, zlib.crc32(other)).to_bytes(4, "little")
    path.write_bytes(other + crc + length + body)
    with pytest.raises(
        SnapshotError, match=f"{path}: format 4, but this version reads format 3; use"
    ):
        folder.read()


# Disks that are full.


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A disk on which so many bytes of each write find room, while "room" is in the dict."""
    room: dict[str, int] = {}
    real_pwritev, real_pwrite = os.pwritev, os.pwrite

    def pwritev(file: int, buffers: list[bytes], offset: int) -> int:
        if "room" not in room:
            return real_pwritev(file, buffers, offset)
        return real_pwrite(file, b"".join(buffers)[: room["room"]], offset)

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if "room" in room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_pwrite(file, data, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "pwrite", pwrite)
    return room


@pytest.mark.parametrize("room", [1, 20, 100, 200])
def test_a_full_disk_costs_the_newest_publishes_and_one_line(
    folder: Folder, room: int, full_disk: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for version in (1, 2):
        assert folder.published.write(make_state(version))
    full_disk["room"] = room
    for version in (3, 4, 5):
        assert not folder.published.write(make_state(version))
        assert_is(folder.read(), 2)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(said) == 1
    assert "No space left" in said[0]
    assert str(folder.path / NAMES[0]) in said[0]
    assert "Training continues" in said[0]
    full_disk.clear()
    assert folder.published.write(make_state(6))
    assert_is(folder.read(), 6)


def test_a_write_that_the_system_takes_in_pieces_is_whole(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda f, b, o: real(f, b"".join(b)[:50], o))
    monkeypatch.setattr(os, "pwrite", lambda f, data, o: real(f, data[:50], o))
    assert folder.published.write(make_state(1))
    assert_is(folder.read(), 1)


def test_a_folder_that_cannot_be_written_leaks_no_descriptors(folder: Folder) -> None:
    (folder.path / NAMES[1]).mkdir()
    assert folder.published.write(make_state(1))
    before = len(os.listdir("/proc/self/fd"))
    for version in range(2, 30):
        assert not folder.published.write(make_state(version))
    assert len(os.listdir("/proc/self/fd")) == before
    assert_is(folder.read(), 1)


def test_more_than_the_disk_is_to_take_is_left_out(tmp_path: Path) -> None:
    now = [0.0]
    published = PublishedState(tmp_path, max_bytes_per_sec=1000.0, clock=lambda: now[0])
    assert published.write(make_state(1))
    length = (tmp_path / NAMES[0]).stat().st_size
    now[0] = 0.999 * length / 1000.0
    assert not published.write(make_state(2))
    assert_is(PublishedState(tmp_path).read(LIKE), 1)
    now[0] = 1.001 * length / 1000.0
    assert published.write(make_state(3))
    assert_is(PublishedState(tmp_path).read(LIKE), 3)
    published.close()
