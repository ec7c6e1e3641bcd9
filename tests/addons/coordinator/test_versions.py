"""Versions: complete or absent, and never outside of their folder."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relaax_like.addons.coordinator.job import Attempt, Job
from relaax_like.addons.coordinator.versions import (
    CHUNK_BYTES,
    VersionStore,
    pack_version,
    stage_folder,
    unpack_version,
    validate_path,
)
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import InvalidInputError

FILES = {
    "config.yaml": b"seed: 0",
    "empty": b"",
    "checkpoints/cp-1/values.npy": bytes(range(256)) * (CHUNK_BYTES // 100),
    "metrics/events.out.tfevents.1.host.2.0": b"points",
}


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_folder_arrives_as_it_was_without_what_belongs_to_the_process(tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "target"
    write(run, FILES)
    own = {"checkpoints/lock": b"1", "checkpoints/journal/journal-0.log": b"2", ".tmp-1/x": b"3"}
    write(run, own)
    (run / "link").symlink_to("/etc/passwd")
    stage_folder(run, tmp_path / "staging")
    with open(run / "metrics/events.out.tfevents.1.host.2.0", "ab") as file:
        parts = pack_version(tmp_path / "staging")
        header = next(parts)
        file.write(b"more")  # appended meanwhile
        file.flush()
        target.mkdir()
        unpack_version(iter([header, *parts]), target, 10**9)
    assert read(target) == FILES


def make_parts(
    path: str = "file", content: bytes = b"content", **changes: Any
) -> list[pb.VersionPart]:
    header = {"files": 1, "bytes": len(content)} | changes.get("header", {})
    file = {"path": path, "bytes": len(content), "crc": zlib.crc32(content)}
    return [
        pb.VersionPart(header=pb.VersionHeader(**header)),
        pb.VersionPart(file=pb.VersionFile(**(file | changes.get("file", {})))),
        pb.VersionPart(chunk=content),
    ]


CASES: dict[str, Callable[[], list[pb.VersionPart]]] = {
    "announced": lambda: make_parts(header={"bytes": 3}),
    "at most 1,000": lambda: make_parts(header={"bytes": 1001}),
    "expected at most 10000": lambda: make_parts(header={"files": 10001}),
    "does not match its CRC": lambda: make_parts(file={"crc": 1}),
    "with a file, got one with a header": lambda: make_parts()[:1] * 2,
    "with a header, got one with a chunk": lambda: make_parts()[2:],
    "ended, but a chunk": lambda: make_parts()[:2],
    "ended, but a file": lambda: make_parts()[:1],
    "a chunk of 0 bytes": lambda: [*make_parts()[:2], pb.VersionPart(chunk=b"")],
    "a chunk of 8 bytes": lambda: [*make_parts()[:2], pb.VersionPart(chunk=b"12345678")],
    "header.bytes: 9, but .* add up to 7": lambda: make_parts(header={"bytes": 9}),
    "with a chunk follows the last file": lambda: [*make_parts(), pb.VersionPart(chunk=b"1")],
    "with a file, got one with nothing": lambda: [make_parts()[0], pb.VersionPart()],
}


@pytest.mark.parametrize("problem", CASES)
def test_a_wrong_version_leaves_nothing(tmp_path: Path, problem: str) -> None:
    store = VersionStore(tmp_path, 1000)
    with pytest.raises(InvalidInputError, match=problem):
        store.receive(Attempt(1, 1), iter(CASES[problem]()))
    assert read(tmp_path) == {}
    assert not list((tmp_path / "runs" / "job-1").iterdir())


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/x",
        "a/../../x",
        "a//b",
        "",
        ".",
        "..",
        ".hidden",
        "a\\b\n",
        "a\0b",
        "/".join("abcdefghi"),
        "x" * 2000,
        "ä",
    ],
)
def test_a_path_that_leads_anywhere_else_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInputError, match="path"):
        validate_path(path)
    if "\0" not in path:
        target = tmp_path / "target"
        target.mkdir()
        with pytest.raises(InvalidInputError, match="path"):
            unpack_version(iter(make_parts(path)), target, 1000)
        assert read(tmp_path) == {}


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "a/b/c"), ("a/b/c", "a/b")])
def test_the_path_of_an_earlier_file_is_refused(tmp_path: Path, first: str, second: str) -> None:
    parts = make_parts(first, header={"files": 2, "bytes": 14})
    with pytest.raises(InvalidInputError, match=f"path: '{second}' is the path of an earlier"):
        VersionStore(tmp_path, 1000).receive(Attempt(1, 1), iter([*parts, *make_parts(second)[1:]]))
    assert read(tmp_path) == {}


def test_the_newest_version_replaces_older_ones_and_leftovers_are_removed(
    tmp_path: Path,
) -> None:
    store = VersionStore(tmp_path, 1000)
    job = Job(1, "", "", "", "", "")

    def receive(content: bytes) -> Iterator[None]:
        received = store.receive(Attempt(1, 1), iter(make_parts(content=content)))
        store.install(job, received)
        yield

    for number in range(1, 4):
        list(receive(b"content %d" % number))
        job.version = number
        store.keep_newest(job)
    folder = tmp_path / "runs" / "job-1"
    assert read(folder / "latest") == {"file": b"content 3"}
    assert {path.name for path in folder.iterdir()} == {"latest", "v000003"}

    list(receive(b"crashed before it was recorded"))
    (folder / ".tmp-4-x").mkdir()
    store.clean_up([job])
    assert {path.name for path in folder.iterdir()} == {"latest", "v000003"}
    list(receive(b"content 4"))
    job.version = 4
    assert store.find_folder(job) == folder / "v000004"
    assert read(folder / "v000004") == {"file": b"content 4"}


def test_without_a_recorded_version_leftovers_are_removed_and_nothing_is_linked(
    tmp_path: Path,
) -> None:
    store = VersionStore(tmp_path, 1000)
    job = Job(1, "", "", "", "", "")
    store.install(job, store.receive(Attempt(1, 1), iter(make_parts(content=b"crashed"))))
    assert (tmp_path / "runs" / "job-1" / "v000001").is_dir()
    store.clean_up([job])
    assert list((tmp_path / "runs" / "job-1").iterdir()) == []
