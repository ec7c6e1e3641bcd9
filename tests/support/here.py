"""`relaax` in the process of the test, without the second that a process of its own takes to start.

It loads TensorFlow once for all tests, too. A process of its own is needed where signals come, and
for all else that belongs to a process.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import typer
from typer.testing import CliRunner

from relaax_like.cli.main import app


def run_here(*words: object, app: typer.Typer = app) -> tuple[int, str]:
    """Runs `relaax`, or a server's app, with these words; returns its status and its output."""
    arguments = [str(word) for word in words]
    with _keeping_process():
        sys.argv = ["relaax", *arguments]
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return done.exit_code, done.output


@dataclass(frozen=True)
class Done:
    """How a command has ended; see `support.cluster.Program`."""

    status: int
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


def run_relaax(*words: object) -> Done:
    """The same of `relaax`, as an object."""
    return Done(*run_here(*words))


def refuse_here(*words: object, status: int = 2, app: typer.Typer = app) -> str:
    """The same of a command that must print one line and end with a status; returns the line."""
    found, output = run_here(*words, app=app)
    assert (found, output.count("\n")) == (status, 1), output
    return output.rstrip("\n")


@contextlib.contextmanager
def _keeping_process() -> Iterator[None]:
    """Keeps what a command changes in its process: variables, handlers of signals and log lines."""
    root = logging.getLogger()
    handlers, level, argv, variables = root.handlers[:], root.level, sys.argv, dict(os.environ)
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    root.handlers = []  # a command closes those that are there
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(variables)
        for number, handler in signals.items():
            signal.signal(number, handler)
