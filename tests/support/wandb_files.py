"""Reads what wandb has written for a run that is sent later."""

import json
import struct
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

# The file is a log of LevelDB behind seven bytes of wandb's own. doc/log_format.md of LevelDB.
_MAGIC = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(folder: Path) -> list[Any]:
    """Returns the records of the one run under a folder."""
    (path,) = folder.glob("offline-run-*/run-*.wandb")
    data = path.read_bytes()
    assert data.startswith(_MAGIC)
    records, parts, place = [], b"", len(_MAGIC)
    while place < len(data):
        if _BLOCK_BYTES - place % _BLOCK_BYTES < _HEADER.size:
            place += _BLOCK_BYTES - place % _BLOCK_BYTES
            continue
        _, length, kind = _HEADER.unpack_from(data, place)
        place += _HEADER.size
        part = data[place : place + length]
        parts = part if kind in (_FULL, _FIRST) else parts + part
        place += length
        if kind in (_FULL, _LAST):
            records.append(wandb_internal_pb2.Record.FromString(parts))
    return records


def read_history(records: list[Any]) -> list[dict[str, Any]]:
    """Returns the rows that were logged: NAME, or NAME.KEY of what is nested -> value."""
    return [
        {
            item.key or ".".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
