"""Guardian: ends the processes that its owner started if the owner itself was killed.

Owners are a Manager, a Ray actor that runs a command for it, and a slave that runs jobs. After
`kill -9` an owner cannot end its children, and asking the kernel to signal them (PR_SET_PDEATHSIG)
only reaches direct children, ends them with the *thread* that forked, and only works on Linux. So a
separate process reads a pipe from the owner, which closes however the owner ends. It is started by
path, because it only needs Python's standard library.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

_POLL_SEC = 0.05


class Guardian:
    """The owner's side of a guardian process: reports the processes to end. A context manager.

        with Guardian(term_sec=6.0) as guardian:
            guardian.add(process.pid)
            ...
            guardian.remove(process.pid)

    Leaving the context ends the guardian, and all processes that were added and not removed. Each
    of these must be the leader of its own process group. Used by one thread at a time.

    Args:
      term_sec: a process that has not ended this long after its SIGTERM is killed.

    Raises:
      OSError: the guardian process cannot be started.
    """

    def __init__(self, term_sec: float):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(term_sec)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # it must not receive signals to the owner's group
        )

    def add(self, pid: int) -> None:
        """Adds a process, by its id."""
        self._write(pid)

    def remove(self, pid: int) -> None:
        """Removes a process that has ended, because another process can then receive its id."""
        self._write(-pid)

    def __enter__(self) -> "Guardian":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _write(self, number: int) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guardian was killed: the run continues
            self._process.stdin.write(f"{number}\n".encode())


def main() -> None:
    """Runs the guardian; its argument is the time between SIGTERM and SIGKILL, in seconds."""
    pids: dict[int, None] = {}
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            pids[number] = None
        else:
            pids.pop(-number, None)
    end_groups(pids, float(sys.argv[1]))


def end_groups(pids: Iterable[int], term_sec: float) -> None:
    """Terminates the leaders of groups, and then kills the rest of the groups.

    Args:
      pids: process ids of the leaders.
      term_sec: a leader that has not ended this long after its SIGTERM is killed.
    """
    left = set(pids)
    for pid in left:
        _send(pid, signal.SIGTERM)
    deadline = time.monotonic() + term_sec
    while left and time.monotonic() < deadline:
        for pid in [pid for pid in left if not _send(pid, 0)]:
            _send(-pid, signal.SIGKILL)
            left.discard(pid)
        time.sleep(_POLL_SEC)
    for pid in left:
        _send(-pid, signal.SIGKILL)


def _send(pid: int, number: int) -> bool:
    """Sends a signal to a process, or to a group (-pid); returns False if that fails."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
