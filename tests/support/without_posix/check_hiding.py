"""Tests that run beside those of the client, and fail if something is not hidden."""

import importlib
import os
import signal
import socket
import sys

import pytest

from relaax_like.wire import failpoints


def test_modules_are_hidden() -> None:
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import fcntl  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import grp  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import posix  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import pty  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import pwd  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import resource  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import termios  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="on Windows"):
        import tty  # noqa: F401
    for module in ["fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"]:
        importlib.import_module(module)  # for others, it exists


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (os, ["fork", "getuid", "register_at_fork", "O_NOFOLLOW"]),
        (signal, ["SIGKILL", "SIGUSR1", "SIGHUP", "SIGPIPE", "alarm"]),
        (socket, ["AF_UNIX", "SO_REUSEPORT"]),
        (failpoints.signal, ["SIGKILL"]),
        (failpoints.os, ["fork"]),
    ],
    ids=["os", "signal", "socket", "the product's signal", "the product's os"],
)
def test_names_are_hidden(module: object, names: list[str]) -> None:
    assert not [name for name in names if hasattr(module, name)]


def test_names_are_hidden_from_imports() -> None:
    with pytest.raises(ImportError, match="AF_UNIX"):
        from socket import AF_UNIX  # noqa: F401


def test_proc_is_hidden() -> None:
    with pytest.raises(FileNotFoundError):
        open("/proc/self/status").close()


def test_the_platform_is_another() -> None:
    assert (os.name, sys.platform) == ("nt", "win32")
