"""Copies of versions in RUN/ckpt, written while a parameter server serves."""

# covers F27

import itertools
from pathlib import Path

import numpy as np
import pytest
from support.durable import make_push, open_server
from support.threads import wait_until

from relaax_like.learn.checkpoint import load_checkpoint
from relaax_like.runs.folders.version_copies import VersionCopies


def list_versions(folder: Path) -> list[int]:
    names = [path.stem for path in (folder / "ckpt").glob("version_*.npz")]
    return sorted(int(name.removeprefix("version_")) for name in names)


def test_each_has_the_values_and_optimizers_of_its_version(tmp_path: Path) -> None:
    sequences = itertools.count(1)
    with (
        open_server(tmp_path / "run") as server,
        VersionCopies(server, tmp_path, every=3) as copies,
    ):

        def push() -> None:
            server.push(make_push(next(sequences)))

        while server.version < 2:
            push()
        assert list_versions(tmp_path) == []
        push()
        while server.version < 3:
            push()
        wait_until(lambda: bool(list_versions(tmp_path)), "a copy")
        (version,) = list_versions(tmp_path)
        copy = load_checkpoint(tmp_path / "ckpt" / f"version_{version}.npz")
        state = server.export_state()
        assert (copy.last_iter, copy.last_step) == (version, server.global_t)
        for segment, value in zip(
            state.manifest.segments, state.manifest.unpack(state.values), strict=True
        ):
            np.testing.assert_array_equal(copy.policy[f"value/{segment.name}"], value)
        np.testing.assert_array_equal(copy.policy["slots/default"], state.slots["default"])
        while server.version < 6:
            push()
        copies.close()  # what is due is written at the end
        copies.close()
        assert len(list_versions(tmp_path)) == 2


def test_a_copy_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ckpt").write_text("a file in the way")
    sequences = itertools.count(1)
    with open_server(tmp_path / "run") as server, VersionCopies(server, tmp_path, every=1):
        while "training continues" not in caplog.text:
            server.push(make_push(next(sequences)))
        assert server.push(make_push(next(sequences))).outcome in ("applied", "nothing")
