"""Starts a process of ours that talks over a socket pair."""

import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO


def start_child(
    argv: Sequence[str], environment: Mapping[str, str] | None, name: str
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a program with one end of a socket pair, whose number is added to its arguments.

    It is to end when that is closed. What it prints is printed by this process.

    Args:
      argv: the program.
      environment: its variables; None: those of this process.
      name: of the process, for the thread that copies its output.

    Returns:
      The process, and our end of the pair.

    Raises:
      OSError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        try:
            process = subprocess.Popen(
                [*argv, str(number)],
                stdin=subprocess.DEVNULL,
                # Not ours: a runner waits until nobody holds the output of what it started.
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[number],
                env=environment,
            )
        except OSError:
            ours.close()
            raise
    assert process.stdout is not None
    threading.Thread(
        target=_copy_lines, args=(process.stdout,), name=f"{name} output", daemon=True
    ).start()
    return process, ours


def _copy_lines(output: IO[bytes]) -> None:
    """Prints what the process prints, until it ends."""
    with output:
        for line in output:
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()
