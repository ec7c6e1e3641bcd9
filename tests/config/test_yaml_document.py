"""YAML 1.2 scalars, lines, and files that cannot be read."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.config.yaml_document import YamlDocument, quote_text, read_yaml, write_yaml
from relaax_like.wire.errors import ConfigError


def _read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1e-2", 0.01),
        ("1E-2", 0.01),
        ("3e-4", 0.0003),
        ("-1.5e-3", -0.0015),
        (".5", 0.5),
        ("5.", 5.0),
        ("1.0", 1.0),
        ("1e8", 100_000_000),
        ("1.5e6", 1_500_000),
        ("1e16", 1e16),
        ("1e400", math.inf),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("17", 17),
        ("-17", -17),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1_000_000", 1_000_000),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("localhost:7000", "localhost:7000"),
        ("1e", "1e"),
        ("e3", "e3"),
        (".", "."),
        ("-", None),
        ("'1e-2'", "1e-2"),
        ('"17"', "17"),
        ("", None),
        ("~", None),
        ("null", None),
        ("[1, 1e1, a]", [1, 10, "a"]),
        ("!!str 17", "17"),
    ],
)
def test_scalar_is_read_as_yaml_1_2_says(tmp_path: Path, text: str, want: Any) -> None:
    if text == "-":
        text, want = "\n- ", [None]
    value = _read(tmp_path, f"key: {text}\n").data["key"]
    assert value == want
    assert type(value) is type(want)


def test_nan_is_read(tmp_path: Path) -> None:
    assert math.isnan(_read(tmp_path, "key: .nan").data["key"])


_SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
_SCALARS |= st.sampled_from(
    ["1e-2", "1e8", "no", "010", "1:30", "0o7", "1_0", "~", "", "2020-01-01"]
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z_]{0,9}", fullmatch=True),
        st.recursive(
            _SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner)
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read_back(tmp_path_factory: Any, data: dict[str, Any]) -> None:
    text = write_yaml(data)
    back = _read(tmp_path_factory.getbasetemp(), text).data
    # Large integral floats are read back as integers, which every float field accepts.
    assert back == data


def test_every_key_knows_its_line(tmp_path: Path) -> None:
    document = _read(tmp_path, "---\na: 1\n# comment\nb:\n  c:\n  - 1\n  - d: 2\n")
    file = str(tmp_path / "file.yaml")
    assert document.place(("a",)) == f"{file}:2"
    assert document.place(("b", "c")) == f"{file}:5"
    assert document.place(("b", "c", 1, "d")) == f"{file}:7"
    assert document.place(("b", "unknown", "deeper")) == f"{file}:4"
    assert document.place(("unknown",)) == file


def test_duplicate_key_is_reported_with_both_lines(tmp_path: Path) -> None:
    document = _read(tmp_path, "a:\n  b: 1\n  c: 2\n  b: 3\n")
    file = tmp_path / "file.yaml"
    assert document.problems == [
        (f"{file}:4", f"a.b: duplicate key, first set at {file}:2; remove one of them")
    ]
    assert document.data == {"a": {"b": 1, "c": 2}}


def test_dashed_keys_are_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # covers R23
    with caplog.at_level(logging.WARNING):
        document = _read(tmp_path, "a:\n  --checkpoint-dir: x\n")
    assert document.data == {"a": {"checkpoint_dir": "x"}}
    assert document.place(("a", "checkpoint_dir")).endswith(":2")
    assert "file.yaml:2: --checkpoint-dir is deprecated; use checkpoint_dir" in caplog.text


def test_dashed_and_plain_form_of_one_key_are_duplicates(tmp_path: Path) -> None:
    document = _read(tmp_path, "a:\n  bind: x\n  --bind: y\n")
    assert [what for _, what in document.problems] == [
        f"a.bind: duplicate key, first set at {tmp_path / 'file.yaml'}:2; remove one of them"
    ]


_UNREADABLE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", ": the file contains no keys"),
    "only a comment": (b"# nothing\n", ": the file contains no keys"),
    "only ---": (b"---\n", ": the file contains no keys"),
    "a list": (b"- a\n- b\n", ":1: expected sections such as algorithm:, got a list"),
    "a text": (b"hello\n", ":1: expected sections such as algorithm:, got 'hello'"),
    "a tab": (b"a:\n\tb: 1\n", ":2: the line is indented with a tab; indent it with spaces"),
    "open bracket": (b"a: [1,\nb: 2\n", ":3: not valid YAML"),
    "open quote": (b"a: 1\nb: 'x\n", ":3: not valid YAML"),
    "wrong indent": (b"a:\n  b: 1\n c: 2\n", ":3: not valid YAML"),
    "two documents": (b"a: 1\n---\nb: 1\n", ":2: not valid YAML"),
    "latin-1": ("a: 1\nb: ä\n".encode("latin-1"), ":2: not UTF-8"),
    "utf-16": ("a: 1\n".encode("utf-16"), ":1: not UTF-8"),
    "NUL": (b"a: \x00\n", r":1: not valid YAML: the character U\+0000 is not allowed; remove it"),
    "escape": (b"a: 1\nb: \x1b[0m\n", r":2: not valid YAML: the character U\+001B is not allowed"),
    "python object": (b"a: !!python/object/apply:os.system [x]\n", ":1: tag '.*' is not supported"),
    "unknown tag": (b"a: 1\nb: !x {}\n", ":2: tag '!x' is not supported"),
    "unknown tag of a scalar": (b"a: 1\nb: !x y\n", ":2: not supported: could not determine"),
    "binary": (b"a: !!binary aGk=\n", ":1: tag '.*' is not supported"),
    "tag that does not fit": (b"a: !!int x\n", ":1: 'x' does not fit its tag '.*:int'; remove"),
    "integer of 5000 digits": (
        b"a: " + b"9" * 5000,
        ":1: not supported: an integer of 5000 digits",
    ),
    "itself": (b"a: &a\n  b: *a\n", ": nested too deep"),
    "nested": (b"a: " + b"[" * 5000, ": nested too deep"),
    "a billion laughs": (
        b"a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 10))
            for i in range(8)
        ),
        ": more than 100000 values",
    ),
    "2 MB": (b"a: " + b"x" * (2 << 20), "larger than 1048576 bytes"),
}


@pytest.mark.parametrize(("raw", "want"), _UNREADABLE.values(), ids=_UNREADABLE.keys())
def test_unreadable_file_is_one_clear_line(tmp_path: Path, raw: bytes, want: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=f"file.yaml{want}|^{path}: {want}") as caught:
        read_yaml(path)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml: no such file"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="is a folder; expected a YAML file"):
        read_yaml(tmp_path)


def test_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_yaml(path).data == {"a": 1}


@pytest.mark.parametrize(
    "text",
    ["[::1]:7000", "a: b # c", "\U0001f600", "caf\u00e9\x85", 'say "x" \\ud83d', "a\nb\t", "", "7"],
)
def test_quoted_text_is_read_as_it_is(text: str) -> None:
    document = YamlDocument(Path("file"))
    document.override(f"section.key={quote_text(text)}")
    assert document.data == {"section": {"key": text}}
    assert not document.problems
