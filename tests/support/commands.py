"""`relaax` in the process that tests: what it prints, and its exit status.

A process of its own costs a second, and three more if it loads TensorFlow. It is needed where
signals come, and for all else that belongs to a process.
"""

import logging
import signal
from dataclasses import dataclass

from typer.testing import CliRunner

from relaax_like.cli.main import app


@dataclass(frozen=True)
class Done:
    """How a command has ended; see `support.cluster.Program`."""

    status: int
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()


def run_relaax(*arguments: object) -> Done:
    """Runs a command in the working directory to its end."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    numbers = (signal.SIGINT, signal.SIGTERM)
    handled = [signal.getsignal(number) for number in numbers]
    root.handlers = []  # a command closes those that are there
    try:
        done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for number, handler in zip(numbers, handled, strict=True):
            signal.signal(number, handler)
    return Done(done.exit_code, done.output)
