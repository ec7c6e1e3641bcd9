"""LocalLauncher: what it does if a process cannot be started."""

import errno
import os
import sys
from typing import Any

import pytest

from relaax_like.runs.processes.launcher import LocalLauncher
from relaax_like.runs.processes.topology import Node
from relaax_like.wire.errors import RelaaxError


def _refuse() -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def start(launcher: LocalLauncher, argv: list[str], role: Any) -> None:
    node = Node(name="one", argv=argv, role=role)
    launcher.start(node, lambda lines: None, lambda line: None)


# The first one reports, and so needs a pipe of its own.
@pytest.mark.parametrize("role", ["parameter server", "environment"])
def test_too_many_open_files_are_one_error(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalLauncher(1.0) as launcher:
        monkeypatch.setattr(os, "pipe", _refuse)
        with pytest.raises(
            RelaaxError, match=r"^one: cannot start .*: Too many open files; end other programs"
        ):
            start(launcher, [sys.executable, "-c", ""], role)
        monkeypatch.undo()


def test_a_guardian_that_cannot_be_started_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pipe", _refuse)
    with pytest.raises(RelaaxError, match=r"^guardian: cannot start .*: Too many open files; end"):
        LocalLauncher(1.0).__enter__()


def test_a_failed_start_leaves_no_file_open() -> None:
    with LocalLauncher(1.0) as launcher:
        before = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(RelaaxError, match="No such file or directory; check that it exists"):
            start(launcher, ["/no/such/program"], "parameter server")
        assert sorted(os.listdir("/proc/self/fd")) == before
