"""Files that are read again when they have changed."""

import os
import time
from pathlib import Path

import pytest

from relaax_like.wire import watched_files
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.watched_files import WatchedFiles


def test_a_file_that_could_not_be_read_for_a_while_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_SEC", 0.0)
    path, too_many = tmp_path / "tokens", False

    def read() -> str:
        if too_many:
            raise ConfigError("tokens: cannot be read: Too many open files")
        return path.read_text()

    path.write_text("old")
    watched = WatchedFiles([path], read)
    assert watched.get() == "old"
    path.write_text("new")
    os.utime(path, ns=(0, time.time_ns() + 10**9))  # however coarse the clock of the disk is
    too_many = True
    assert [watched.get() for _ in range(3)] == ["old"] * 3
    assert caplog.text.count("Too many open files") == 1
    too_many = False
    assert watched.get() == "new"
