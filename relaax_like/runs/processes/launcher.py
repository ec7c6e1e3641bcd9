"""Launcher: starts the processes of a topology, on this machine or on others."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from relaax_like.runs.processes.guardian import Guardian
from relaax_like.runs.processes.topology import Node
from relaax_like.wire import reports
from relaax_like.wire.errors import RelaaxError

# Receives the output of a process, line by line, in a thread of its own, until its end.
ReadOutput = Callable[[Iterable[bytes]], None]
# Receives one line of `wire.reports`, in any thread.
TakeReport = Callable[[bytes], None]

# Errors of a start whose cause is the command; others are those of the system, such as EMFILE.
_OF_COMMAND = {
    errno.EACCES,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOEXEC,
    errno.ENOTDIR,
    errno.EPERM,
}


class Running(Protocol):
    """A process that a launcher has started; used by one thread, except for `kill`."""

    @property
    def pid(self) -> int:
        """The process id, on the machine where the process runs; 0: not known yet."""

    @property
    def is_recalled(self) -> bool:
        """Whether the launcher ended the process in order to restart it with other addresses."""

    def poll(self) -> int | None:
        """Returns the process's exit status, -N after signal N; None: it has not ended."""

    def terminate(self) -> None:
        """Sends SIGTERM."""

    def kill(self) -> None:
        """Kills the process and the rest of its process group."""

    def wait(self, timeout_sec: float) -> bool:
        """Waits for the process's end, up to `timeout_sec`; returns whether it has ended."""

    def finish(self, timeout_sec: float) -> None:
        """Kills the rest of an ended process's group, and waits for the process's last lines.

        Args:
          timeout_sec: longest wait for the lines.
        """


class Launcher(Protocol):
    """Starts processes for a `Manager`, which decides when, and how often."""

    def start(self, node: Node, read_output: ReadOutput, take_report: TakeReport) -> Running:
        """Starts the command of a node.

        Args:
          node: the process to start.
          read_output: receives the output of the process, including standard error.
          take_report: receives the reports of the process, if `node.reports`.

        Raises:
          RelaaxError: the command cannot be started.
        """


class LocalLauncher:
    """Starts child processes. A context manager.

    If this process is killed, its `Guardian` ends the children.

        with LocalLauncher(term_sec=6.0) as launcher:
            running = launcher.start(node, read_output, take_report)

    Args:
      term_sec: see `Guardian`.

    Raises:
      RelaaxError: on entering: the guardian process cannot be started.
    """

    def __init__(self, term_sec: float):
        self._term_sec = term_sec
        self._guardian: Guardian | None = None

    def __enter__(self) -> "LocalLauncher":
        try:
            self._guardian = Guardian(self._term_sec)
        except OSError as error:
            raise RelaaxError(_describe_failure("guardian", sys.executable, error)) from error
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._guardian is not None, "entered"
        self._guardian.__exit__()

    def start(
        self,
        node: Node,
        read_output: ReadOutput,
        take_report: TakeReport,
        descriptors: Sequence[int] = (),
    ) -> Running:
        """See `Launcher`; the process also inherits file descriptors."""
        assert self._guardian is not None, "entered"
        try:
            # Both ends are opened before the process starts, so that nothing fails after it.
            with _open_pipe(node.reports) as (reading, writing):
                process = subprocess.Popen(
                    node.argv,
                    cwd=node.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **node.env, **_name_pipe(writing)},
                    pass_fds=(*writing, *descriptors),
                    # A Ctrl-C in the terminal only reaches the manager, which then ends all in
                    # order.
                    start_new_session=True,
                )
        except OSError as error:
            raise RelaaxError(_describe_failure(node.name, node.argv[0], error)) from error
        for descriptor in reading:
            threading.Thread(
                target=_read_reports, args=(descriptor, take_report), daemon=True
            ).start()
        self._guardian.add(process.pid)
        return _ChildProcess(process, self._guardian, read_output)


class _ChildProcess:
    """A child process."""

    is_recalled = False

    def __init__(
        self, process: subprocess.Popen[bytes], guardian: Guardian, read_output: ReadOutput
    ):
        self._process = process
        self._guardian = guardian
        # A daemon: a distant descendant that keeps the output open must not prevent our exit.
        self._relay = threading.Thread(target=_relay, args=(process, read_output), daemon=True)
        self._relay.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # each is the leader of its own group
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_sec: float) -> bool:
        try:
            self._process.wait(timeout_sec)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self, timeout_sec: float) -> None:
        self.kill()
        self._guardian.remove(self._process.pid)
        self._relay.join(timeout_sec)


def _relay(process: subprocess.Popen[bytes], read_output: ReadOutput) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        read_output(lines)


def _read_reports(descriptor: int, take_report: TakeReport) -> None:
    with open(descriptor, "rb") as lines:
        for line in lines:
            take_report(line)


@contextlib.contextmanager
def _open_pipe(is_wanted: bool) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Opens a pipe for a process that is started in the block, and closes the end for writing.

    After an exception in the block, the end for reading is closed, too.

    Yields:
      The two ends of the pipe, `[reading]` and `[writing]`; two empty sequences unless
      `is_wanted`.

    Raises:
      OSError: too many files are open.
    """
    ends = os.pipe() if is_wanted else ()
    reading, writing = ends[:1], ends[1:]
    try:
        yield reading, writing
    except BaseException:
        for descriptor in reading:
            os.close(descriptor)
        raise
    finally:
        for descriptor in writing:
            os.close(descriptor)


def _describe_failure(name: str, command: str, error: OSError) -> str:
    """Returns why the command of a process could not be started, and the cure."""
    cure = "end other programs, or raise the limits of this machine (`ulimit -a` shows them)"
    if error.errno in _OF_COMMAND:
        cure = (
            "check that it exists, is executable and, if it is a script, begins with #! and an "
            "interpreter that exists"
        )
    return f"{name}: cannot start {command}: {error.strerror or error}; {cure}"


def _name_pipe(writing: Sequence[int]) -> dict[str, str]:
    return {reports.ENVIRONMENT_VARIABLE: str(writing[0])} if writing else {}
