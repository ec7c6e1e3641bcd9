"""PublishedState: the newest publication of the run's learner, in two alternating files.

    folder/published-0.state, folder/published-1.state

A publication overwrites the older of the two files: a process that is killed in the middle of it
leaves the other file intact. What was written survives `kill -9`; nothing is synced, because after
a power cut the run resumes from the newest snapshot.

A file consists of (little-endian): 8 bytes `RLXPUB03`; CRC-32 of these bytes and of everything
after the length; length of the header; the header, JSON; values; the slots of each group.
"""

import json
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from relaax_like.parameter_server.snapshot_format import (
    State,
    pack_optimizers,
    unpack_optimizers,
)
from relaax_like.wire.errors import SnapshotError

_LOG = logging.getLogger(__name__)
_NAME, _VERSION = b"RLXPUB", b"03"
_PREFIX = struct.Struct("<8sII")
NAMES = ("published-0.state", "published-1.state")


class PublishedState:
    """Writes the state after each publication and each count of the learner; reads the newest one.

    Used by one thread at a time.

        published = PublishedState(directory)
        state = published.read(like=store.export_state())   # None: no usable state
        published.write(store.export_state())

    Attributes:
      failed: the newest state could not be written.

    Args:
      directory: the folder of the run's checkpoints.
      max_bytes_per_sec: states above this rate are not written: a crash loses everything after the
        newest state that was written.
      clock: returns monotonic seconds.
    """

    def __init__(
        self,
        directory: Path,
        max_bytes_per_sec: float = 20e6,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._directory = directory
        self._max_bytes_per_sec = max_bytes_per_sec
        self._clock = clock
        self._files: dict[int, int] = {}  # turn -> descriptor
        self._turn = 0
        self._not_before = -float("inf")
        self.failed = False

    @property
    def is_due(self) -> bool:
        """Whether a state would be written now; see `max_bytes_per_sec`."""
        return self._clock() >= self._not_before

    def write(self, state: State) -> bool:
        """Writes a state; returns False if it was skipped, or could not be written.

        The first failure in a row is logged.
        """
        if not self.is_due:
            return False
        now = self._clock()
        arrays = [state.values, *(slots for slots in state.slots.values() if slots.size)]
        pieces = [memoryview(_pack_header(state)), *(array.data.cast("B") for array in arrays)]
        crc = zlib.crc32(_NAME + _VERSION)
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        prefix = _PREFIX.pack(_NAME + _VERSION, crc, len(pieces[0]))
        length = len(prefix) + sum(piece.nbytes for piece in pieces)
        try:
            file = self._open(self._turn)
            written = os.pwritev(file, [prefix, *pieces], 0)
            while written < length:  # the system writes at most 2 GiB at a time
                whole = b"".join([prefix, *pieces])
                written += os.pwrite(file, whole[written:], written)
            os.ftruncate(file, length)
        except OSError as error:
            if not self.failed:
                _LOG.error(
                    "%s: a publication could not be written: %s. Training continues; a crash "
                    "loses everything since the newest publication or snapshot that was written",
                    self._directory / NAMES[self._turn],
                    error,
                )
            self.failed = True
            return False
        self.failed = False
        self._turn = 1 - self._turn
        self._not_before = now + length / self._max_bytes_per_sec
        return True

    def read(self, like: State) -> State | None:
        """Returns the newest complete state with this run's layout; None: there is none.

        Args:
          like: a state of the run, for the layout of values and slots.

        Raises:
          SnapshotError: a file has a format that this version does not know.
        """
        found: list[tuple[int, int, int, State]] = []
        for turn, name in enumerate(NAMES):
            path = self._directory / name
            try:
                state = _unpack(path, path.read_bytes(), like)
            except FileNotFoundError:
                continue
            except (
                OSError,
                ValueError,
                LookupError,
                TypeError,
                AttributeError,
                struct.error,
            ) as error:
                _LOG.warning("%s is not used: %s", path, error)
                continue
            found.append((state.version, state.global_t, turn, state))
        if not found:
            return None
        *_, turn, state = max(found, key=lambda entry: entry[:3])
        self._turn = 1 - turn
        return state

    def close(self) -> None:
        """Closes the files. Idempotent."""
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _open(self, turn: int) -> int:
        if turn not in self._files:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._files[turn] = os.open(self._directory / NAMES[turn], flags, 0o644)
        return self._files[turn]


def _pack_header(state: State) -> bytes:
    header = {
        "fingerprint": state.manifest.fingerprint,
        "version": state.version,
        "global_t": state.global_t,
        "steps": dict(state.steps),
        "slots": {group: list(slots.shape) for group, slots in state.slots.items()},
        "slot_names": {group: list(names) for group, names in state.slot_names.items()},
        "optimizers": pack_optimizers(state.optimizers),
        "statistics": state.statistics,
    }
    return json.dumps(header, allow_nan=False).encode()


def _unpack(path: Path, data: bytes, like: State) -> State:
    """Reads a state.

    Raises:
      SnapshotError: the format is not known.
      ValueError: the data is not a valid state of this run; also struct.error, LookupError,
        TypeError and AttributeError.
    """
    magic, crc, header_length = _PREFIX.unpack_from(data)
    body = memoryview(data)[_PREFIX.size :]
    name, version = magic[: len(_NAME)], magic[len(_NAME) :]
    if name != _NAME or not version.isdigit() or zlib.crc32(body, zlib.crc32(magic)) != crc:
        raise ValueError("it is incomplete or damaged")
    if version != _VERSION:
        raise SnapshotError(
            f"{path}: format {int(version)}, but this version reads format "
            f"{int(_VERSION)}; use the version of relaax_like that wrote it, or remove "
            f"{' and '.join(NAMES)} to resume from the newest snapshot"
        )
    header = json.loads(bytes(body[:header_length]))
    if header["fingerprint"] != like.manifest.fingerprint:
        raise ValueError("it belongs to a different model")
    names = {group: tuple(names) for group, names in header["slot_names"].items()}
    if names != {group: tuple(own) for group, own in like.slot_names.items()}:
        raise ValueError("it belongs to different optimizers")
    rest = np.frombuffer(body[header_length:], np.uint8)
    expected = like.values.nbytes + sum(own.nbytes for own in like.slots.values())
    if len(rest) != expected:
        raise ValueError(f"{len(rest)} bytes of values and slots, expected {expected}")
    values, rest = np.split(rest, [len(like.values)])
    slots = {}
    for group, own in like.slots.items():
        part, rest = np.split(rest, [own.nbytes])
        slots[group] = part.view(np.float32).reshape(own.shape) if own.size else own
    return replace(
        like,
        version=int(header["version"]),
        global_t=int(header["global_t"]),
        values=values,
        slots=slots,
        steps={group: int(header["steps"][group]) for group in like.steps},
        optimizers=unpack_optimizers(header["optimizers"]),
        statistics=header["statistics"],
    )
