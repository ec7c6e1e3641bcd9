"""States of the tests: made, compared, and found on the disk."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.core.manifest import STATISTIC, Manifest, Variable, make_manifest
from relaax_like.parameter_server.snapshot_format import State


def make_layout(hidden: int = 3) -> Manifest:
    """Returns a layout of two groups and a statistic."""
    return make_manifest(
        [
            Variable("w1", np.zeros((2, hidden), np.float32), "actor"),
            Variable("w2", np.zeros(hidden, np.float32), "critic/é"),
            Variable("mean", np.zeros(2, np.float64), kind=STATISTIC),
        ]
    )


def make_state(global_t: int = 10, version: int = 2, manifest: Manifest | None = None) -> State:
    """Returns a state whose numbers follow from its version."""
    manifest = manifest or make_layout()
    random = np.random.default_rng(version)
    groups = manifest.groups()
    sizes = {group: part.stop - part.start for group, part in groups.items()}
    return State(
        manifest=manifest,
        version=version,
        global_t=global_t,
        values=random.integers(0, 256, manifest.total_bytes, np.uint8),
        slots={
            "actor": random.normal(size=(2, sizes["actor"])).astype(np.float32),
            "critic/é": np.zeros((0, sizes["critic/é"]), np.float32),
        },
        slot_names={"actor": ("first_moment", "second_moment"), "critic/é": ()},
        steps={"actor": version, "critic/é": version + 1},
        statistics={"returns": [1.5, 2.0], "episodes": 2},
    )


def assert_same(got: State | None, want: State) -> None:
    """Compares all but the score, bit by bit."""
    assert got is not None
    assert got.manifest == want.manifest
    assert (got.version, got.global_t) == (want.version, want.global_t)
    assert got.values.tobytes() == want.values.tobytes()
    assert got.slots.keys() == want.slots.keys()
    for group, slots in want.slots.items():
        assert got.slots[group].tobytes() == slots.tobytes()
        assert got.slots[group].shape == slots.shape
        assert got.slots[group].dtype == np.float32
    assert (got.slot_names, got.steps) == (want.slot_names, want.steps)
    assert got.statistics == want.statistics
    assert got.pending.keys() == want.pending.keys()
    for groups, (total, count) in want.pending.items():
        assert got.pending[groups][0].tobytes() == total.tobytes()
        assert got.pending[groups][1] == count


def list_snapshots(directory: Path) -> list[str]:
    """Returns the names of a folder's snapshots, oldest first."""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("cp-"))


def list_versions(directory: Path) -> list[int]:
    """Returns the versions of a folder's snapshots, oldest first."""
    return [int(name.rpartition("-")[2]) for name in list_snapshots(directory)]


def change_manifest(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Returns a snapshot's manifest with another body and the checksum that fits."""
    body = json.loads(content)["body"]
    change(body)
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({"crc32": zlib.crc32(canonical), "body": body}).encode()
