"""Copies of snapshots elsewhere: on an S3 server, in a folder, in memory. covers R24"""

import dataclasses
import itertools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import pytest
from support.cluster import accepts, find_free_port
from support.lines import Line
from support.snapshots import (
    assert_same,
    change_manifest,
    list_snapshots,
    list_versions,
    make_layout,
    make_state,
)
from support.threads import wait_until

from relaax_like.parameter_server import mirror as mirror_module
from relaax_like.parameter_server import mirror_remote
from relaax_like.parameter_server.mirror import SnapshotMirror, fetch_newest, find_newest_step
from relaax_like.parameter_server.snapshots import Snapshots, read_best, read_latest
from relaax_like.wire.errors import ConfigError, SnapshotError

SECRET = "a-secret-access-key"
# 600 kB of values, 800 kB of slots.
BIG = make_layout(50_000)
_COUNT = itertools.count()


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    port = find_free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(lambda: accepts(port), "an S3 server")
            yield port
        finally:
            server.kill()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "_FIRST_PAUSE_SEC", 0.1)
    monkeypatch.setattr(mirror_module, "_LONGEST_PAUSE_SEC", 0.2)


@pytest.fixture
def line(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The line that all S3 clients of the test use."""
    with Line(s3_port) as line:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{line.port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        yield line


@pytest.fixture
def s3_url(line: Line) -> str:
    return f"s3://bucket-{next(_COUNT)}/runs/a-run"


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_url"))
    if request.param == "memory":
        return f"memory://run-{next(_COUNT)}"
    return f"file://{tmp_path}/elsewhere/a-run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


class Store:
    """The other end, looked at directly."""

    def __init__(self, url: str):
        self._fs, self._root = fsspec.core.url_to_fs(url, skip_instance_cache=True)

    def find(self) -> list[str]:
        self._fs.invalidate_cache()
        return [path.removeprefix(self._root).lstrip("/") for path in self._fs.find(self._root)]

    def versions(self) -> list[int]:
        """Versions of the whole snapshots there."""
        folders = [path.split("/")[0] for path in self.find() if path.endswith("/manifest.json")]
        return sorted(int(name.rpartition("-")[2]) for name in folders)

    def read(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{path}"))

    def count_parts(self, path: str) -> int:
        """Parts that an S3 object was uploaded in; they are counted in its tag."""
        return int(self._fs.info(f"{self._root}/{path}")["ETag"].strip('"').rpartition("-")[2])

    def write(self, path: str, content: bytes) -> None:
        self._fs.makedirs(f"{self._root}/{path}".rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(f"{self._root}/{path}", content)

    def remove(self, path: str) -> None:
        self._fs.rm_file(f"{self._root}/{path}")


def save(snapshots: Snapshots, version: int, score: float | None = None, big: bool = False) -> Path:
    layout = BIG if big else make_layout()
    return snapshots.save(make_state(version, version, layout), score)


def wait_newest(mirror: SnapshotMirror, version: int) -> None:
    wait_until(lambda: mirror.newest_global_t == version, f"a copy of {version}")


def wait_error(mirror: SnapshotMirror) -> str:
    wait_until(lambda: mirror.error != "", "a failure")
    return mirror.error


def copy(url: str, folder: Path, *versions: int, **options: Any) -> None:
    """Saves snapshots, each copied before the next one."""
    with Snapshots(folder, keep=1) as snapshots:
        mirror = SnapshotMirror(url, **options)
        for version in versions:
            mirror.offer(save(snapshots, version))
            wait_newest(mirror, version)
        mirror.close(60)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "mirror" in record.name]


def test_copied_and_fetched_is_what_was_saved(url: str, folder: Path, tmp_path: Path) -> None:
    copy(url, folder, 1, 2)
    fetched = fetch_newest(url, tmp_path / "new" / "machine")
    assert fetched == tmp_path / "new" / "machine" / f"cp-{2:020d}-{2:020d}"
    assert sorted(p.name for p in fetched.iterdir()) == [
        "manifest.json",
        "slots-0.npy",
        "slots-1.npy",
        "values.npy",
    ]
    with Snapshots(fetched.parent) as snapshots:
        assert_same(snapshots.restore_latest(make_layout()), make_state(2, 2))
        assert list_versions(fetched.parent) == [2]


def test_gradients_that_are_held_back_go_along(folder: Path, tmp_path: Path) -> None:
    held = {("actor",): (np.arange(6, dtype=np.float32), 3), (): (np.ones(9, np.float32), 1)}
    state = dataclasses.replace(make_state(), pending=held)
    url = f"file://{tmp_path}/elsewhere"
    with Snapshots(folder) as snapshots:
        mirror = SnapshotMirror(url)
        mirror.offer(snapshots.save(state))
        mirror.close(60)
        assert (mirror.newest_global_t, mirror.error) == (10, "")
    assert fetch_newest(url, tmp_path / "new") is not None
    with Snapshots(tmp_path / "new") as snapshots:
        assert_same(snapshots.restore_latest(make_layout()), state)


def test_same_newest_and_best_stay_at_the_other_end(url: str, folder: Path, tmp_path: Path) -> None:
    with Snapshots(folder, keep=1) as snapshots:
        for version, score in [(1, 1.0), (2, 9.0), (3, None), (4, 5.0), (5, 4.0), (6, None)]:
            # Opened again: what is known of the older ones comes from there.
            mirror = SnapshotMirror(url, keep=2, keep_best=2)
            mirror.offer(save(snapshots, version, score))
            mirror.close(60)
            assert mirror.newest_global_t == version
    store = Store(url)
    assert store.versions() == [2, 4, 5, 6]
    assert len(store.find()) == 4 * 4


def test_long_files_go_to_s3_in_parts(
    s3_url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mirror_remote._S3_PARTS, "chunksize", 5 << 20)  # the least of S3
    state = make_state(1, 1, make_layout(1_000_000))
    with Snapshots(folder) as snapshots:
        mirror = SnapshotMirror(s3_url)
        mirror.offer(snapshots.save(state))
        mirror.close(60)
    store = Store(s3_url)
    (values,) = (path for path in store.find() if path.endswith("values.npy"))
    assert store.count_parts(values) == 3  # of 12 MB
    fetch_newest(s3_url, tmp_path / "new")
    assert_same(read_latest(tmp_path / "new"), state)


def test_offered_again_is_not_written_again(tmp_path: Path, folder: Path) -> None:
    url = f"file://{tmp_path}/elsewhere"
    copy(url, folder, 1)
    (values,) = (tmp_path / "elsewhere").glob("*/values.npy")
    before = values.stat()
    mirror = SnapshotMirror(url)
    mirror.offer(folder / list_snapshots(folder)[0])
    mirror.close(60)
    assert mirror.newest_global_t == 1
    assert values.stat().st_mtime_ns == before.st_mtime_ns


def test_other_snapshot_of_the_same_name_is_replaced(
    url: str, folder: Path, tmp_path: Path
) -> None:
    copy(url, folder, 1)
    with Snapshots(tmp_path / "other") as snapshots:
        mirror = SnapshotMirror(url)
        mirror.offer(snapshots.save(make_state(1, 1), score=5.0))
        mirror.close(60)
    fetch_newest(url, tmp_path / "new")
    best = read_best(tmp_path / "new")
    assert best is not None
    assert best.score == 5.0


def test_half_is_not_fetched_and_is_removed_with_the_next_copy(
    url: str, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy(url, folder, 1)
    store = Store(url)
    half = f"cp-{9:020d}-{9:020d}"
    store.write(f"{half}/values.npy", b"half of it")
    fetch_newest(url, tmp_path / "new")
    assert list_versions(tmp_path / "new") == [1]
    assert f"skipping incomplete snapshot {half}" in caplog.text
    copy(url, folder, 2)
    assert store.versions() == [1, 2]
    assert not [path for path in store.find() if half in path]


def test_the_newest_step_is_that_of_the_newest_complete_copy(url: str, folder: Path) -> None:
    copy(url, folder, 1, 2)
    store = Store(url)
    store.write(f"cp-{8:020d}-{8:020d}/values.npy", b"half of it")
    store.write(f"cp-{9:020d}-{9:020d}/manifest.json", b"damaged")
    assert find_newest_step(url) == 2


def test_without_a_copy_there_is_no_newest_step(url: str) -> None:
    assert find_newest_step(url) is None


def test_the_newest_step_at_an_unavailable_place_is_an_error(line: Line, s3_url: str) -> None:
    line.refuse()
    with pytest.raises(SnapshotError, match=r"mirror s3://.*: cannot be read: "):
        find_newest_step(s3_url, file_timeout_sec=5.0)


@pytest.mark.parametrize("file", ["manifest.json", "values.npy", "slots-0.npy"])
@pytest.mark.parametrize("damage", ["bit", "end", "missing"])
def test_damaged_copy_is_skipped_and_named(
    tmp_path: Path, folder: Path, file: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"memory://run-{next(_COUNT)}"
    copy(url, folder, 1, 2)
    store = Store(url)
    for version in (2, 1):
        path = f"cp-{version:020d}-{version:020d}/{file}"
        content = bytearray(store.read(path))
        content[len(content) // 2] ^= 4
        if damage == "missing":
            store.remove(path)
        else:
            store.write(path, bytes(content[: None if damage == "bit" else -1]))
        target = tmp_path / f"new-{version}"
        if version == 2:
            fetch_newest(url, target)
            assert_same(read_latest(target), make_state(1, 1))
            assert list_versions(target) == [1]
        elif file == "manifest.json" and damage == "missing":  # nothing was ever whole there
            assert fetch_newest(url, target) is None
        else:
            with pytest.raises(SnapshotError, match="no usable snapshot, 2 damaged"):
                fetch_newest(url, target)
            assert not list(target.glob("*"))
        assert path.split("/")[0] in caplog.text


def test_manifest_cannot_name_files_elsewhere(tmp_path: Path, folder: Path) -> None:
    url = f"file://{tmp_path}/elsewhere"
    copy(url, folder, 1)
    store = Store(url)
    name = f"cp-{1:020d}-{1:020d}"
    store.write("secret.npy", store.read(f"{name}/slots-1.npy"))
    content = change_manifest(
        store.read(f"{name}/manifest.json"),
        lambda body: body["files"].update({"../secret.npy": body["files"].pop("slots-1.npy")}),
    )
    store.write(f"{name}/manifest.json", content)
    with pytest.raises(SnapshotError, match="no usable snapshot, 1 damaged"):
        fetch_newest(url, tmp_path / "new")
    assert not list((tmp_path / "new").rglob("*"))


def test_nothing_is_fetched_over_what_is_there(tmp_path: Path, folder: Path) -> None:
    url = f"memory://run-{next(_COUNT)}"
    copy(url, tmp_path / "other", 5)
    with Snapshots(folder) as snapshots:
        path = save(snapshots, 1)
    assert fetch_newest(url, folder) is None
    assert list_versions(folder) == [1]
    (path / "values.npy").unlink()  # damaged ones are somebody's, too
    assert fetch_newest(url, folder) is None


def test_empty_mirror_has_nothing_to_fetch(url: str, tmp_path: Path) -> None:
    assert fetch_newest(url, tmp_path / "new") is None


def test_mirror_that_cannot_be_asked_is_no_fresh_start(
    s3_url: str, line: Line, folder: Path
) -> None:
    line.refuse()
    with pytest.raises(
        SnapshotError, match=rf"{s3_url}: no snapshot .* make the mirror available again"
    ):
        fetch_newest(s3_url, folder, file_timeout_sec=5.0)


def test_refusing_mirror_is_told_once_and_gets_the_newest_when_it_is_back(
    s3_url: str, line: Line, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    line.refuse()
    with Snapshots(folder, keep=1) as snapshots:
        mirror = SnapshotMirror(s3_url, file_timeout_sec=5.0)
        for version in (1, 2, 3):
            mirror.offer(save(snapshots, version))
            wait_error(mirror)
        assert mirror.newest_global_t is None
        line.mend()
        wait_newest(mirror, 3)
        wait_until(lambda: mirror.error == "", "no more failure")
        mirror.close(60)
    # One of the others might have been the one being tried when the line was mended.
    assert Store(s3_url).versions() in ([3], [1, 3], [2, 3])
    told = messages(caplog)
    assert len(told) == 2
    assert "could not be copied" in told[0]
    assert f"mirror {s3_url} is available again: it has cp-" in told[1]
    assert SECRET not in caplog.text


def test_one_line_for_many_failures(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("no folder")
    with Snapshots(folder) as snapshots:
        path = save(snapshots, 1)
        mirror = SnapshotMirror(f"file://{elsewhere}")
        mirror.offer(path)
        assert "Not a directory" in wait_error(mirror)
        elsewhere.unlink()
        (elsewhere / path.name / "values.npy").mkdir(parents=True)
        wait_until(lambda: "values.npy" in mirror.error, "another failure")
        (elsewhere / path.name / "values.npy").rmdir()
        wait_until(lambda: mirror.error == "", "no more failure")
        mirror.close(60)
    assert ["could not be copied" in text for text in messages(caplog)] == [True, False]


def test_hanging_mirror_holds_nobody_up_and_newer_ones_replace_the_one_that_waits(
    s3_url: str, line: Line, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Snapshots(folder, keep=1) as snapshots:
        mirror = SnapshotMirror(s3_url, keep=9, file_timeout_sec=1.5)
        mirror.offer(save(snapshots, 1))
        wait_newest(mirror, 1)
        # The first one might have been slow, and so a failure that was made good.
        wait_until(lambda: mirror.error == "", "a copy without a failure")
        line.hang()
        for version in range(2, 8):  # nobody would come here if one of these waited
            mirror.offer(save(snapshots, version))
        assert "Timeout" in wait_error(mirror)
        line.mend()
        wait_newest(mirror, 7)
        mirror.close(60)
    # One more might have been on its way; 7 is the last one that waited.
    found = set(Store(s3_url).versions())
    assert {1, 7} <= found
    assert len(found) <= 3
    # A copy that is complete, but for the removal of old ones, counts as a failure, too.
    assert ["could not be" in text for text in messages(caplog)][-2:] == [True, False]


@pytest.mark.parametrize("sent_bytes", [0, 5_000, 900_000, 1_404_000, 1_410_000])
def test_line_that_breaks_in_the_middle_leaves_the_one_before(
    s3_url: str, line: Line, folder: Path, tmp_path: Path, sent_bytes: int
) -> None:
    with Snapshots(folder, keep=1) as snapshots:
        mirror = SnapshotMirror(s3_url, keep=1, file_timeout_sec=5.0)
        mirror.offer(save(snapshots, 1, big=True))
        wait_newest(mirror, 1)
        line.break_after(sent_bytes)
        mirror.offer(save(snapshots, 2, big=True))
        wait_until(lambda: line.is_broken, "a broken line")
        mirror.close(0)  # the server ends as well
        mirror.close(60)
    line.mend()
    newest = max(Store(s3_url).versions())
    assert newest == 1 or sent_bytes > 1_404_000  # there the manifest can be through already
    fetch_newest(s3_url, tmp_path / "new")
    assert_same(read_latest(tmp_path / "new"), make_state(newest, newest, BIG))

    with Snapshots(folder, keep=1) as snapshots:
        mirror = SnapshotMirror(s3_url, keep=1)
        mirror.offer(save(snapshots, 3, big=True))
        mirror.close(60)
    assert len(Store(s3_url).find()) == 4  # no half is left
    fetch_newest(s3_url, tmp_path / "newer")
    assert_same(read_latest(tmp_path / "newer"), make_state(3, 3, BIG))


def test_deleting_an_old_copy_that_breaks_in_the_middle_is_made_up_for(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/elsewhere"
    from fsspec.implementations.local import LocalFileSystem

    remove, failures = LocalFileSystem.rm, [OSError("no answer")]

    def fail_once(self: LocalFileSystem, *args: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        remove(self, *args, **options)

    monkeypatch.setattr(LocalFileSystem, "rm", fail_once)
    copy(url, folder, 1, 2, 3, keep=2)
    assert not failures
    assert list_versions(tmp_path / "elsewhere") == [2, 3]


def test_copies_that_can_never_be_deleted_do_not_delay_the_end(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    def refuse(self: LocalFileSystem, *args: Any, **options: Any) -> None:
        raise PermissionError("no right to delete")

    monkeypatch.setattr(LocalFileSystem, "rm", refuse)
    began = time.monotonic()
    copy(f"file://{tmp_path}/elsewhere", folder, 1, 2, 3, keep=1)
    assert time.monotonic() - began < 30
    text = "\n".join(messages(caplog))
    assert "was copied, but old copies could not be removed: PermissionError: no right" in text
    assert "could not be copied" not in text


def test_snapshot_deleted_while_it_waits_is_copied_nevertheless(
    s3_url: str, line: Line, folder: Path
) -> None:
    line.hang()
    with Snapshots(folder, keep=1) as snapshots:
        mirror = SnapshotMirror(s3_url)
        path = save(snapshots, 1, big=True)
        mirror.offer(path)
        save(snapshots, 2)
        assert not path.exists()
        line.mend()
        wait_newest(mirror, 1)
        mirror.close(60)


def test_file_system_without_deadlines_that_hangs_is_waited_for(
    tmp_path: Path, folder: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    with Snapshots(folder) as snapshots:
        path = save(snapshots, 1)
        pipe = tmp_path / "elsewhere" / path.name / "manifest.json"
        pipe.parent.mkdir()
        os.mkfifo(pipe)  # reading from it hangs
        mirror = SnapshotMirror(f"file://{tmp_path}/elsewhere", file_timeout_sec=0.1)
        mirror.offer(path)
        assert "no answer in 0.1 s" in wait_error(mirror)
        wait_until(lambda: "still hangs" in mirror.error, "the same call")
        with open(pipe, "wb") as file:
            pipe.unlink()
            file.write(b"{}")
        wait_newest(mirror, 1)
        mirror.close(60)
        assert mirror.error == ""


HANG = """
import os, sys
from pathlib import Path
from relaax_like.parameter_server.mirror import SnapshotMirror
folder = Path(sys.argv[1])
(path,) = folder.glob("cp-*")
pipe = folder / "elsewhere" / path.name / "manifest.json"
pipe.parent.mkdir(parents=True)
os.mkfifo(pipe)
mirror = SnapshotMirror(f"file://{folder}/elsewhere")
mirror.offer(path)
mirror.close(0.5)
mirror.close(0.5)
print("closed")
"""


def test_process_ends_although_the_mirror_hangs(folder: Path) -> None:
    with Snapshots(folder) as snapshots:
        path = save(snapshots, 1)
    done = subprocess.run(
        [sys.executable, "-c", HANG, str(folder)], capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "closed\n", done.stderr
    assert done.stderr.count(f"{path.name} could not be copied within 0.5 s at the end") == 1


def test_last_one_is_copied_at_the_end(s3_url: str, line: Line, folder: Path) -> None:
    line.refuse()
    with Snapshots(folder) as snapshots:
        mirror = SnapshotMirror(s3_url)
        mirror.offer(save(snapshots, 1))
        wait_error(mirror)
        mirror.offer(save(snapshots, 2))
        line.mend()
        mirror.close(60)
        assert mirror.newest_global_t == 2
        mirror.offer(save(snapshots, 3))  # ignored
        mirror.close(60)
    assert Store(s3_url).versions() in ([2], [1, 2])  # 1 might have been the one being tried


def test_offer_of_what_is_not_there_is_told_and_harms_nobody(tmp_path: Path) -> None:
    mirror = SnapshotMirror(f"file://{tmp_path}/elsewhere")
    mirror.offer(tmp_path / "cp-none")
    assert "cp-none/manifest.json" in wait_error(mirror)
    mirror.close(60)


class TellingFileSystem(fsspec.AbstractFileSystem):
    """One whose errors tell all that it knows."""

    protocol = "telling"

    def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
        raise PermissionError(f"{path} {unquote(path)}")


def test_password_is_never_shown(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    fsspec.register_implementation("telling", TellingFileSystem, clobber=True)
    with Snapshots(folder) as snapshots:
        mirror = SnapshotMirror(f"telling://user:half%2F{SECRET}@host/runs")
        path = save(snapshots, 1)
        mirror.offer(path)
        error = wait_error(mirror)
        mirror.close(0)
    assert f"PermissionError: user:***@host/runs/{path.name}" in error
    assert f"mirror telling://user@host/runs: {path.name} could not be copied" in caplog.text
    assert SECRET not in caplog.text + error


def test_a_password_is_hidden_where_the_protocol_was_forgotten() -> None:
    with pytest.raises(ConfigError, match="mirror_url: 'user@host/runs', expected a URL such as"):
        mirror_remote.Remote(f"user:{SECRET}@host/runs", 1.0)


@pytest.mark.parametrize("password", [f"{SECRET}#1", f"[{SECRET}"])
def test_a_password_with_any_character_is_hidden(password: str) -> None:
    fsspec.register_implementation("telling", TellingFileSystem, clobber=True)
    remote = mirror_remote.Remote(f"telling://user:{password}@host/runs", 1.0)
    assert remote.shown_url == "telling://user@host/runs"
    assert remote.describe(PermissionError(f"for {password}")) == "PermissionError: for ***"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("bucket/prefix", "'bucket/prefix', expected a URL such as s3://bucket/prefix"),
        ("s3://", "'s3://', expected a URL"),
        ("S3://bucket/a", "'S3://bucket/a', expected .* with the protocol in lower case"),
        (f"nosuch://user:{SECRET}@host/a", "nosuch://user@host/a: unknown protocol nosuch://"),
        ("gs://bucket/a", r"gs://bucket/a needs a package .* pip install 'relaax_like\[mirror\]'"),
        (f"s3://bucket/a?token={SECRET}", r"s3://bucket/a: the URL must not contain \?"),
        (f"sftp://user:half/{SECRET}@host/a", "mirror_url: the password seems to contain a /"),
    ],
)
def test_url_that_cannot_be_used_is_refused_at_once(url: str, message: str, folder: Path) -> None:
    for use in (lambda: SnapshotMirror(url), lambda: fetch_newest(url, folder)):
        with pytest.raises(ConfigError, match=message) as caught:
            use()
        assert SECRET not in str(caught.value)


def test_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"s3://bucket/a needs .*'relaax_like\[mirror\]'"):
        SnapshotMirror("s3://bucket/a")


def test_keeping_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="keep: 0"):
        SnapshotMirror("memory://a", keep=0)
