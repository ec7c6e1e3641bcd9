"""Initial values: files and the command that makes them. covers R2"""

import json
import os
import pickle
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.core.manifest import COUNTER, STATISTIC, TARGET, Variable
from relaax_like.parameter_server.initial_values import (
    compute_initial_values,
    load_variables,
    save_variables,
)
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.ndarray import DTYPES


def make_variables() -> list[Variable]:
    return [
        Variable("critic/w", np.arange(6, dtype=np.float32).reshape(2, 3).T, "critic"),
        Variable("actor/w", np.full((1, 1), 1.5, np.float32), "actor"),
        Variable("actor/w.npy", np.zeros((0, 3), np.float32), "actor"),
        Variable("file", np.array(2.0, np.float32), "actor"),
        Variable("mean", np.full(2, 0.1), kind=STATISTIC),
        Variable("count", np.array(3, np.int64), kind=COUNTER),
        Variable("old/w", np.ones(2, np.float32), kind=TARGET),
    ]


def assert_same(got: list[Variable], want: list[Variable]) -> None:
    assert [(v.name, v.group, v.kind) for v in got] == [(v.name, v.group, v.kind) for v in want]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one.value, other.value)
        assert one.value.dtype == other.value.dtype
        assert one.value.shape == other.value.shape


def test_loaded_is_what_was_saved(tmp_path: Path) -> None:
    save_variables(tmp_path / "v.npz", make_variables())
    assert_same(load_variables(tmp_path / "v.npz"), make_variables())


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_dtype_comes_back(tmp_path: Path, dtype: str) -> None:
    variables = [
        Variable("w", np.ones(1, np.float32)),
        Variable("s", np.array([0, 1, 1]).astype(DTYPES[dtype]), kind=STATISTIC),
    ]
    save_variables(tmp_path / "v.npz", variables)
    assert_same(load_variables(tmp_path / "v.npz"), variables)


def test_numpy_reads_the_arrays_of_our_file(tmp_path: Path) -> None:
    save_variables(tmp_path / "v.npz", make_variables()[:2])
    with np.load(tmp_path / "v.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["actor/w"], [[1.5]])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_plain_file_is_trainable_in_group_default(tmp_path: Path, save) -> None:  # type: ignore[no-untyped-def]
    arrays = {"w1": np.ones((2, 2), np.float32), "w2": np.zeros(3, np.float32)}
    save(tmp_path / "v.npz", **arrays)
    want = [Variable(name, value) for name, value in arrays.items()]
    assert_same(load_variables(tmp_path / "v.npz"), want)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64"])
def test_plain_file_of_another_dtype_is_refused_with_the_cure(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "v.npz", good=np.ones(1, np.float32), weights=np.ones(2, dtype))
    with pytest.raises(InvalidInputError, match=rf"weights is {dtype}.*astype\(numpy.float32\)"):
        load_variables(tmp_path / "v.npz")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os._exit, (3,))  # type: ignore[return-value]


def test_pickled_objects_are_refused_and_not_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", w=np.array([Bomb()], object))
    with pytest.raises(InvalidInputError, match="w: not a plain array"):
        load_variables(tmp_path / "v.npz")


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"hello" * 100, pickle.dumps([1, 2]), b"PK\x05\x06" + bytes(18)]
)
def test_what_is_no_npz_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.npz").write_bytes(content)
    with pytest.raises(InvalidInputError, match=r"v\.npz: "):
        load_variables(tmp_path / "v.npz")


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no such file"):
        load_variables(tmp_path / "v.npz")
    with pytest.raises(InvalidInputError, match=r"not a file of initial values"):
        load_variables(tmp_path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_file_is_refused_or_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.npz"
    save_variables(path, make_variables())
    whole = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    try:
        got = load_variables(path)
    except InvalidInputError:
        return
    assert_same(got, make_variables())  # the bit meant nothing, as in a date


def test_our_file_with_a_hidden_list_of_variables_is_no_plain_file(tmp_path: Path) -> None:
    save_variables(tmp_path / "v.npz", make_variables())
    with (
        zipfile.ZipFile(tmp_path / "v.npz") as whole,
        zipfile.ZipFile(tmp_path / "part.npz", "w") as part,
    ):
        part.writestr("critic/w.npy", whole.read("critic/w.npy"))
        part.comment = whole.comment
    with pytest.raises(InvalidInputError, match="list of variables is missing"):
        load_variables(tmp_path / "part.npz")


@pytest.mark.parametrize(
    "metadata", ["{", "3", "[1]", '[{"name": "x"}]', '[{"name": "w", "group": "g"}]', "[]"]
)
def test_wrong_metadata_is_refused(tmp_path: Path, metadata: str) -> None:
    text = np.frombuffer(metadata.encode(), np.uint8)
    np.savez(tmp_path / "v.npz", w=np.ones(1, np.float32), relaax_variables=text)
    with pytest.raises(InvalidInputError, match=r"v\.npz: "):
        load_variables(tmp_path / "v.npz")


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    entry = {"name": "w", "dtype": "float32", "group": "g", "kind": "magic"}
    text = np.frombuffer(json.dumps([entry]).encode(), np.uint8)
    np.savez(tmp_path / "v.npz", w=np.ones(1, np.float32), relaax_variables=text)
    with pytest.raises(InvalidInputError, match="w: kind 'magic'"):
        load_variables(tmp_path / "v.npz")


def test_encrypted_entry_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", w=np.ones(1, np.float32))
    whole = bytearray((tmp_path / "v.npz").read_bytes())
    whole[6] |= 1  # the flag in the local header, and in the directory
    whole[whole.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "v.npz").write_bytes(whole)
    assert zipfile.is_zipfile(tmp_path / "v.npz")
    with pytest.raises(InvalidInputError, match=r"not a file of initial values"):
        load_variables(tmp_path / "v.npz")


@pytest.mark.parametrize(
    "variables",
    [
        [],
        [Variable("w", np.ones(1))],
        [Variable("a b", np.ones(1, np.float32))],
        [Variable("relaax_variables", np.ones(1, np.float32))],
    ],
)
def test_variables_that_no_run_could_use_are_not_saved(
    tmp_path: Path, variables: list[Variable]
) -> None:
    with pytest.raises(InvalidInputError):
        save_variables(tmp_path / "v.npz", variables)


WRITE = """
import sys, numpy as np
print("noise on stdout")
print("noise on stderr", file=sys.stderr)
np.savez(sys.argv[-1], w=np.full(int(sys.argv[1]), 2.0, np.float32))
"""


def test_save_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_variables(tmp_path / "v.npz", make_variables())

    def write_array(*args: object, **options: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "write_array", write_array)
        with pytest.raises(
            ConfigError, match=r"v.npz: the initial values cannot be written: No space"
        ):
            save_variables(tmp_path / "v.npz", make_variables()[:1])
    assert_same(load_variables(tmp_path / "v.npz"), make_variables())
    assert [path.name for path in tmp_path.iterdir()] == ["v.npz"]
    save_variables(tmp_path / "v.npz", make_variables()[:1])
    assert_same(load_variables(tmp_path / "v.npz"), make_variables()[:1])


def test_command_makes_the_values(tmp_path: Path) -> None:
    got = compute_initial_values([sys.executable, "-c", WRITE, "4"], timeout_sec=60)
    assert_same(got, [Variable("w", np.full(4, 2.0, np.float32))])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise RuntimeError('no such layer')", r"(?s)status 1.*no such layer"),
        ("import sys; sys.exit('wrong config')", r"(?s)status 1.*wrong config"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("", "did not write the file"),
    ],
)
def test_failing_command_is_told_with_its_last_words(code: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compute_initial_values([sys.executable, "-c", code], timeout_sec=60)


def test_only_the_last_lines_of_a_long_complaint_are_told() -> None:
    code = "import sys\nfor i in range(50_000): print('line', i, file=sys.stderr)\nsys.exit(1)"
    with pytest.raises(ConfigError) as caught:
        compute_initial_values([sys.executable, "-c", code], timeout_sec=60)
    assert "line 49999" in str(caught.value)
    assert "line 49900" not in str(caught.value)


def test_command_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="cannot start /no/such/program"):
        compute_initial_values(["/no/such/program"], timeout_sec=60)


def test_no_place_for_temporary_files_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: str) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", fail)
    with pytest.raises(ConfigError, match=r"No usable temporary directory .*set .* TMPDIR"):
        compute_initial_values(["true"], timeout_sec=60)


def test_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    # The pipe ends when the last process that holds it open for writing, the grandchild, has ended.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    argv = ["/bin/sh", "-c", f"(echo up; exec sleep 110) > {pipe} & wait"]
    with pytest.raises(ConfigError, match="did not finish within 2 s"):
        compute_initial_values(argv, timeout_sec=2)
    os.set_blocking(reader, True)
    with open(reader, "rb") as file:
        assert file.read() == b"up\n"


def test_command_that_writes_rubbish_is_told() -> None:
    code = "import sys; open(sys.argv[-1], 'w').write('rubbish')"
    with pytest.raises(InvalidInputError, match=r"not a file of initial values"):
        compute_initial_values([sys.executable, "-c", code], timeout_sec=60)
