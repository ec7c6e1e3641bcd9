"""A learner's checkpoint files: what is read back, and what is refused. covers D19"""

import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.threads import Caller

from relaax_like.learn.checkpoint import (
    Checkpoint,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
)
from relaax_like.wire.errors import InvalidInputError, SnapshotError
from relaax_like.wire.ndarray import DTYPES

POLICY = {
    "dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "count": np.array(7, np.int64),
    "empty": np.zeros((0, 4)),
    "../größe of \n": np.array([True]),
}


def make_checkpoint(policy: dict[str, Any] | None = None) -> Checkpoint:
    return Checkpoint(policy=POLICY if policy is None else policy, last_iter=12, last_step=2**40)


def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, "iteration_12")
    assert path == tmp_path / "ckpt" / "iteration_12.npz"
    save_checkpoint(path, make_checkpoint())
    got = load_checkpoint(path)
    assert (got.last_iter, got.last_step) == (12, 2**40)
    assert list(got.policy) == list(POLICY)
    for name, array in POLICY.items():
        np.testing.assert_array_equal(got.policy[name], array, strict=True)
    assert os.listdir(path.parent) == ["iteration_12.npz"]
    with np.load(path, allow_pickle=False) as plain:
        np.testing.assert_array_equal(plain["dense/kernel"], POLICY["dense/kernel"])


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back(tmp_path: Path, name: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(DTYPES[name])
    save_checkpoint(tmp_path / "a.npz", make_checkpoint({"x": array, "scalar": array[0, 1]}))
    got = load_checkpoint(tmp_path / "a.npz").policy
    np.testing.assert_array_equal(got["x"], array, strict=True)
    assert (got["scalar"].shape, got["scalar"].dtype) == ((), array.dtype)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "/a", "a\0b"])
def test_a_name_that_would_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match="expected a file name, such as best: printable"):
        checkpoint_path(tmp_path, name)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (np.array([object()]), "dtype object, expected one of bool,"),
        (np.array(["a"]), "dtype <U1, expected one of"),
        ([1.0, 2.0], "expected a NumPy array, got list"),
    ],
)
def test_a_state_that_is_not_plain_arrays_is_refused_and_nothing_written(
    tmp_path: Path, value: Any, want: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"policy state: bad: {re.escape(want)}"):
        save_checkpoint(tmp_path / "a.npz", make_checkpoint({**POLICY, "bad": value}))
    assert os.listdir(tmp_path) == []


def test_the_metadata_s_name_is_taken(tmp_path: Path) -> None:
    name = "relaax_learner_checkpoint"
    with pytest.raises(InvalidInputError, match="this name is reserved"):
        save_checkpoint(tmp_path / "a.npz", make_checkpoint({name: np.zeros(1)}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"none\.npz: no such checkpoint"):
        load_checkpoint(tmp_path / "none.npz")


def write_text(path: Path) -> None:
    path.write_text("no archive")


def write_other_npz(path: Path) -> None:
    np.savez(path, x=np.zeros(3))


def write_directory(path: Path) -> None:
    path.mkdir()


def write_objects(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|O", "fortran_order": False, "shape": (1,)}
        )
        file.write(b"cos\nsystem\n(S'false'\ntR.")


def write_newer_format(path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    path.write_bytes(path.read_bytes().replace(b"checkpoint 1", b"checkpoint 2"))


def write_negative_count(path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    rewrite_metadata(path, b'"last_iter": 12', b'"last_iter": -1')


def write_missing_entry(path: Path) -> None:
    save_checkpoint(path, make_checkpoint())
    copy_archive(path, lambda name, data: None if name == "count.npy" else data)


def rewrite_metadata(path: Path, old: bytes, new: bytes) -> None:
    def rewrite(name: str, data: bytes) -> bytes:
        return data.replace(old, new) if name == "relaax_learner_checkpoint.npy" else data

    copy_archive(path, rewrite)


def copy_archive(path: Path, change: Any) -> None:
    """Writes an archive again, with its checksums and, with entries changed or (None) left out."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            if data is not None:
                archive.writestr(name, data)


@pytest.mark.parametrize(
    ("write", "want"),
    [
        (
            write_text,
            "damaged, or not a learner's checkpoint (BadZipFile: File is not a zip file)",
        ),
        (write_other_npz, "not a learner's checkpoint, but another .npz file"),
        (write_directory, "unreadable, damaged, or not a learner's checkpoint"),
        (
            write_objects,
            "unreadable, damaged, or not a learner's checkpoint (x: not a plain array (Object",
        ),
        (write_newer_format, "its format is 'checkpoint 2', expected 'checkpoint 1'"),
        (write_negative_count, "last_iter and last_step are [-1,"),
        (write_missing_entry, "missing or unknown entries: count"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name(
    tmp_path: Path, write: Any, want: str
) -> None:
    path = tmp_path / "iteration_3.npz"
    write(path)
    with pytest.raises(SnapshotError, match=re.escape(f"{path}: ") + ".*" + re.escape(want)):
        load_checkpoint(path)


@given(st.data())
def test_a_changed_byte_or_a_short_file_never_gives_other_arrays(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    save_checkpoint(path, make_checkpoint())
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:at]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        got = load_checkpoint(path)
    except SnapshotError:
        return
    # Some bytes of an archive mean nothing, such as its times.
    assert (got.last_iter, got.last_step) == (12, 2**40)
    for name, array in POLICY.items():
        np.testing.assert_array_equal(got.policy[name], array, strict=True)


def test_a_full_disk_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    save_checkpoint(path, make_checkpoint())
    before = path.read_bytes()
    code = (
        "import resource, signal, sys, pathlib, numpy as np\n"
        "from relaax_like.learn.checkpoint import Checkpoint, save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "state = {'x': np.zeros(10_000)}\n"
        "save_checkpoint(pathlib.Path(sys.argv[1]), Checkpoint(policy=state, last_iter=1, "
        "last_step=1))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (
        f"SnapshotError: {path}: the checkpoint could not be written (File too large)"
        in done.stderr
    )
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["best.npz"]


def test_a_reader_meets_whole_files_while_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "best.npz"
    ended = threading.Event()
    states = [make_checkpoint({"x": np.full(200_000, n, np.float32)}) for n in range(2)]
    save_checkpoint(path, states[0])

    def read() -> int:
        reads = 0
        while not ended.is_set():
            assert len(np.unique(load_checkpoint(path).policy["x"])) == 1
            reads += 1
        return reads

    reader = Caller(read)
    for n in range(60):
        save_checkpoint(path, states[n % 2])
    ended.set()
    assert reader.get() > 0


def test_a_file_where_the_folder_should_be_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "ckpt").write_text("in the way")
    path = checkpoint_path(tmp_path, "best")
    with pytest.raises(
        SnapshotError, match=re.escape(f"{path}: the checkpoint could not be written")
    ):
        save_checkpoint(path, make_checkpoint())
