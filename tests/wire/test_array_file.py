"""Files of named arrays: read back as they were, and what is damaged is said to be."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from relaax_like.wire.array_file import finding_damage, read_arrays, read_kind, write_arrays
from relaax_like.wire.errors import DamagedError

KIND = "notes 2"
ARRAYS = {
    "b/W": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "a": np.array(7, np.int64),
    "text": np.array("seed: 0"),
    "empty": np.zeros((0, 4)),
}


@pytest.mark.parametrize("sync", [False, True])
def test_arrays_come_back_in_their_order_and_numpy_reads_them(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "new" / "arrays.npz"
    for _ in range(2):  # the second one replaces the first
        write_arrays(path, ARRAYS, KIND, sync=sync)
    found = read_arrays(path, KIND)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert read_kind(path) == KIND
    assert [file.name for file in path.parent.iterdir()] == ["arrays.npz"]
    with np.load(path, allow_pickle=False) as archive:
        assert archive["a"] == 7


def test_a_file_that_numpy_wrote_has_no_kind(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", x=np.ones(2))
    assert read_kind(tmp_path / "plain.npz") == ""
    assert read_arrays(tmp_path / "plain.npz", KIND)["x"].tolist() == [1.0, 1.0]


def test_what_cannot_be_written_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    write_arrays(path, ARRAYS, KIND)
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(path, {"x": np.array([object()])}, KIND)
    assert list(read_arrays(path, KIND)) == list(ARRAYS)
    assert [file.name for file in tmp_path.iterdir()] == ["arrays.npz"]


def test_damage_of_every_kind_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    write_arrays(path, ARRAYS, KIND)
    content = path.read_bytes()
    for damaged, want in (
        (content[:-30], "BadZipFile"),
        (content[:200] + bytes([content[200] ^ 1]) + content[201:], "BadZipFile: Bad CRC-32"),
        (b"text", "BadZipFile: File is not a zip file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match=want):
            read_arrays(path, KIND)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"no array")
    with pytest.raises(DamagedError, match="x: not a plain array"):
        read_arrays(path, KIND)
    with pytest.raises(DamagedError, match="IsADirectoryError"):
        read_arrays(tmp_path, KIND)


def test_a_damaged_lzma_entry_and_a_header_that_does_not_end_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", bytes(1000))
    content = bytearray(path.read_bytes())
    content[content.index(b"x.npy") + 9] = 0xFF  # properties of the compression
    path.write_bytes(content)
    with pytest.raises(DamagedError, match="LZMAError"):
        read_arrays(path, KIND)
    header = b"{'descr': ("
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header)
    with pytest.raises(DamagedError, match="x: not a plain array"):
        read_arrays(path, KIND)


def test_a_missing_file_is_not_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "arrays.npz", KIND)
    with pytest.raises(DamagedError, match="KeyError: 'x'"), finding_damage():
        dict[str, int]()["x"]


@pytest.mark.parametrize("other", ["notes 1", "notes 3", "checkpoint 2"])
def test_another_kind_or_version_is_refused_by_name(tmp_path: Path, other: str) -> None:
    write_arrays(tmp_path / "x.npz", ARRAYS, other)
    with pytest.raises(DamagedError, match=f"its format is '{other}', expected 'notes 2': it is"):
        read_arrays(tmp_path / "x.npz", KIND)
