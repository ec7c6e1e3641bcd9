"""Guardian: ends what a Manager has started when the Manager itself was killed.

`kill -9` leaves nobody who could end the children, and asking the kernel to signal them
(PR_SET_PDEATHSIG) reaches children only, ends them with the *thread* that forked, and is Linux's
alone. So a process beside the Manager reads a pipe from it, which closes however the Manager ends.
It is started by path, without the installed libraries, as Python's own are all that it needs.
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
    """The Manager's end: reports which processes exist. A context manager.

        with Guardian(term_sec=6.0) as guardian:
            guardian.add(process.pid)
            ...
            guardian.remove(process.pid)

    Leaving the context ends it, and all processes that still exist. For processes that lead their
    own process group. Used by one thread.

    Args:
      term_sec: a process that has not ended this long after its SIGTERM is killed.
    """

    def __init__(self, term_sec: float):
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(term_sec)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals to the Manager's group are not for it
        )

    def add(self, pid: int) -> None:
        """Takes over a process."""
        self._write(pid)

    def remove(self, pid: int) -> None:
        """Forgets a process that has ended, before another one gets its number."""
        self._write(-pid)

    def __enter__(self) -> "Guardian":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _write(self, number: int) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it: the run continues
            self._process.stdin.write(f"{number}\n".encode())


def main() -> None:
    """Takes the time between SIGTERM and SIGKILL, in seconds; reads numbers until the end."""
    pids: dict[int, None] = {}
    for line in sys.stdin:
        number = int(line)
        if number > 0:
            pids[number] = None
        else:
            pids.pop(-number, None)
    end_groups(pids, float(sys.argv[1]))


def end_groups(pids: Iterable[int], term_sec: float) -> None:
    """Terminates the leaders of groups, and kills what is left of the groups."""
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
    """Sends a signal to a process, or to a group (-pid); False: there is no such."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
