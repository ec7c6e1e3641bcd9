"""Manager: starts the processes of a topology and restarts those that die."""

import contextlib
import logging
import os
import queue
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from relaax_like.runs.processes.launcher import Launcher, LocalLauncher, Running
from relaax_like.runs.processes.process import (
    EXIT_ERROR,
    EXIT_OUTPUT_CLOSED,
    EXIT_USAGE,
    SignalEvent,
    name_signal,
)
from relaax_like.runs.processes.topology import Node, Topology
from relaax_like.wire import reports
from relaax_like.wire.reports import Event, Report

logger = logging.getLogger(__name__)
# Logger of the lines of all processes, in addition to standard output; for a log file.
output = logging.getLogger(f"{__name__}.output")
output.propagate = False

# Seconds from the first SIGTERM to SIGKILL.
TERM_SEC = 6.0
# Environments, servers, the learner and the essential process end one after another; each has a
# quarter of it.
_STAGES = 4
_POLL_SEC = 0.05
_END_POLL_SEC = 0.02
# A killed process ends at once, unless the kernel or its machine hangs.
_KILLED_SEC = 10.0
# A dead process's last line: how long to wait for it, and how much of it is repeated.
_LAST_LINES_SEC = 0.3
_MAX_LAST_LINE = 200
# Maximum lines of a traceback; a longer one is split.
_MAX_HELD = 1000
_MISTAKE = "a configuration or usage error"
_TRACEBACK = "Traceback (most recent call last):"


class _Supervised:
    """A process and its history. Only the manager's thread changes it, except for `last_line`."""

    def __init__(self, node: Node):
        self.node = node
        self.process: Running | None = None
        self.starts = 0
        self.deaths = 0
        self.started = 0.0
        self.restart_at: float | None = None
        self.worked = False  # since its start
        self.ready = not node.reports
        self.last_line = ""  # of its output
        self.others: Counter[str] = Counter()  # its clients that are not this run's environments
        self.done = False
        self.given_up = False

    @property
    def is_environment(self) -> bool:
        return self.node.is_environment

    @property
    def plays(self) -> bool:
        """Whether this is an environment that has not permanently ended."""
        return self.is_environment and not self.done and not self.given_up


class Manager:
    """Runs the processes of a topology, and restarts those that die.

    The run ends when the parameter server or all processes have exited with 0, when a process that
    is not an environment keeps dying or exits with a usage error, when no environment is left and
    no other client has been connected for some time, when the output is no longer read, or when
    `stop` or `kill` is called. An environment that keeps dying, or exits with a usage error, is
    abandoned; the other processes continue.

        ps = Node(name="ps", role="parameter server", argv=[...])
        manager = Manager(Topology(nodes=[ps, ...]))
        status = manager.run()

    Args:
      topology: what to run.
      write_line: called with the process's name and each output line, in a thread per process; by
        default, prints it.
      term_sec: a process that has not ended this long after the first SIGTERM is killed, also if it
        was sent its own SIGTERM later.
      launcher: starts the processes; None: as children of this process, which `Guardian` ends
        if this process is killed.
    """

    def __init__(
        self,
        topology: Topology,
        write_line: Callable[[str, str], None] | None = None,
        term_sec: float = TERM_SEC,
        launcher: Launcher | None = None,
    ):
        self._supervised = [_Supervised(node) for node in topology.nodes]
        self._hears = any(node.reports for node in topology.nodes)
        self._policy = topology.restart
        self._term_sec = term_sec
        width = max(len(node.name) for node in topology.nodes)
        self._write_line = write_line or (lambda name, line: _print_line(name, width, line))
        self._stopping = SignalEvent()
        self._status = 0
        self._launcher = launcher
        self._reports: queue.SimpleQueue[tuple[_Supervised, int, Report]] = queue.SimpleQueue()
        self._alone_since: float | None = None
        self._ends_episodes = False
        self._tracebacks: set[str] = set()

    def pids(self) -> dict[str, int]:
        """Returns the process id of each running process."""
        return {
            s.node.name: s.process.pid
            for s in self._supervised
            if s.process is not None and s.process.poll() is None
        }

    def stop(self) -> None:
        """Requests `run` to end; safe in signal handlers and from other threads."""
        self._stopping.set()

    def end_episodes(self) -> None:
        """Sends SIGHUP to the environments: ours end with their next episodes, others at once.

        None of them is started again. Without a launcher only; safe in signal handlers.
        """
        self._ends_episodes = True
        for supervised in self._supervised:
            process = supervised.process
            if supervised.is_environment and process is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGHUP)

    def kill(self) -> None:
        """Kills all processes immediately, for a second Ctrl-C; safe in signal handlers."""
        self._stopping.set()
        for supervised in self._supervised:
            if supervised.process is not None:
                supervised.process.kill()

    def run(self) -> int:
        """Runs until the end and returns an exit status: 0 if all went well or the run was stopped.

        The status is 128 + SIGPIPE if the processes' output was no longer read; that of a process,
        other than an environment, that could not be kept running (1 if it is 0, or a signal killed
        the process); or 1 if no client was left. When the method returns, all processes that it
        started, and their process groups, have been killed or have ended.

        Raises:
          RelaaxError: a command, or the guardian process, cannot be started.
        """
        if self._launcher is not None:
            self._run(self._launcher)
        else:
            with LocalLauncher(self._term_sec) as launcher:
                self._run(launcher)
        return self._status

    def _run(self, launcher: Launcher) -> None:
        try:
            for supervised in self._supervised:
                if supervised.is_environment:
                    supervised.restart_at = 0.0  # as soon as the servers are ready
                else:
                    self._start(launcher, supervised)
            while not self._stopping.wait(_POLL_SEC):
                self._check(launcher)
        finally:
            self._terminate()

    def _start(self, launcher: Launcher, supervised: _Supervised) -> None:
        supervised.starts += 1
        supervised.started = time.monotonic()
        supervised.restart_at = None
        supervised.worked = False
        supervised.last_line = ""
        start = supervised.starts

        def take_report(line: bytes) -> None:
            with contextlib.suppress(ValueError):  # an event of another version
                self._reports.put((supervised, start, reports.read_report(line)))

        supervised.process = launcher.start(
            supervised.node, lambda lines: self._relay(lines, supervised), take_report
        )

    def _relay(self, lines: Iterable[bytes], supervised: _Supervised) -> None:
        """Receives the output of one process, in its own thread."""
        texts: Iterator[str] = (line.decode(errors="replace").rstrip("\n") for line in lines)
        if supervised.is_environment:
            texts = shorten_tracebacks(texts, self._tracebacks)
        for text in texts:
            if text.strip():
                supervised.last_line = text.strip()
            try:
                self._write_line(supervised.node.name, text)
            except BrokenPipeError:
                self._status = EXIT_OUTPUT_CLOSED
                self._stopping.set()
                break
            except (OSError, ValueError):
                # A full disk, or a character that the encoding lacks: only this line is lost.
                continue
        for _ in lines:  # A full pipe would prevent the process from exiting.
            pass

    def _take_reports(self) -> None:
        while not self._reports.empty():
            server, start, report = self._reports.get()
            if server.process is None or server.starts != start:
                continue  # it has ended, so its reports are obsolete
            if report.event is Event.READY:
                server.ready = True
            elif report.event is Event.LEFT:
                server.others -= Counter([report.client])
            elif report.event is Event.WORKED:
                server.worked = True
            else:
                self._note_client(server, report)

    def _note_client(self, server: _Supervised, report: Report) -> None:
        own = [s for s in self._supervised if s.node.client_name == report.client]
        if report.event is Event.STEPPED:
            for supervised in (server, *own):
                supervised.worked = True
                if supervised.restart_at is not None:  # it has just died: the report came late
                    supervised.deaths = 1
        elif not own:
            server.others[report.client] += 1

    def _check(self, launcher: Launcher) -> None:
        self._take_reports()
        now = time.monotonic()
        ready = all(s.ready for s in self._supervised)
        for supervised in self._supervised:
            may_start = (ready and not self._ends_episodes) or not supervised.is_environment
            if may_start and supervised.restart_at is not None and now >= supervised.restart_at:
                self._start(launcher, supervised)
            process = supervised.process
            status = None if process is None else process.poll()
            if process is not None and status is not None and not supervised.done:
                supervised.process = None
                process.finish(_LAST_LINES_SEC)
                if process.is_recalled:
                    self._restart_recalled(supervised)
                elif supervised.is_environment:
                    self._note_environment_end(supervised, status)
                else:
                    self._note_end(supervised, status)
            elif self._ends_episodes and process is None and supervised.is_environment:
                supervised.done = True
        if all(s.done for s in self._supervised):
            self._stopping.set()
        self._check_alone(now)

    def _check_alone(self, now: float) -> None:
        """Ends the run after `alone_sec` without an environment of its own or another client.

        An environment counts unless it has exited with 0 or been abandoned. Without environments
        in the topology it has no effect.
        """
        environments = [s for s in self._supervised if s.is_environment]
        is_alone = environments and not any(s.plays or s.others for s in self._supervised)
        if not is_alone:
            self._alone_since = None
            return
        if not self._policy.alone_sec:
            if any(s.given_up for s in environments):
                self._status = EXIT_ERROR
            self._stopping.set()
            return
        seconds = self._policy.alone_sec
        if self._alone_since is None:
            self._alone_since = now
            # Otherwise training has finished.
            if any(s.given_up or not s.worked for s in environments):
                logger.warning(
                    "no environment of this run is left; stopping in %g s unless a client connects",
                    seconds,
                )
        elif now - self._alone_since >= seconds and not self._stopping.is_set():
            logger.error("no client connected for %g s; stopping all processes", seconds)
            self._status = EXIT_ERROR
            self._stopping.set()

    def _note_environment_end(self, supervised: _Supervised, status: int) -> None:
        name, deaths = supervised.node.name, self._policy.environment_deaths
        if not self._hears:  # the servers run elsewhere
            lasted = time.monotonic() - supervised.started
            supervised.worked = lasted > self._policy.healthy_sec
        if status == 0 or self._ends_episodes:
            supervised.done = True
            if not (supervised.worked or self._ends_episodes) and self._hears:
                logger.warning("%s ended with status 0 before its first step", name)
            return
        supervised.deaths = 1 if supervised.worked else supervised.deaths + 1
        reason = None
        if status == EXIT_USAGE:
            reason = _MISTAKE
        elif supervised.deaths >= deaths:
            reason = f"it died {deaths} times without a step in between"
        if reason is None:
            self._restart_soon(supervised, status, deaths - 1)
            return
        supervised.given_up = True
        rest = "; the others continue" if any(s.plays for s in self._supervised) else ""
        logger.error(
            "giving up on %s (%s): %s%s%s",
            name,
            describe_status(status),
            reason,
            rest,
            _quote(supervised),
        )

    def _note_end(self, supervised: _Supervised, status: int) -> None:
        node = supervised.node
        # A learner ends by itself only after the training, when the essential process has ended.
        if status == 0 and node.role != "learner":
            supervised.done = True
            essential = [s for s in self._supervised if s.node.is_essential and s.node.ends_run]
            if node.is_essential and all(one.done for one in essential):
                self._stopping.set()
            return
        if node.reports:
            supervised.ready = False
        supervised.others.clear()
        lasted = time.monotonic() - supervised.started > self._policy.healthy_sec
        healthy = supervised.worked or lasted
        supervised.deaths = 1 if healthy else supervised.deaths + 1
        if status == EXIT_USAGE or supervised.deaths > self._policy.max_restarts:
            reason = _MISTAKE if status == EXIT_USAGE else "it died too often in a row"
            logger.error(
                "%s ended (%s): %s; stopping all processes%s",
                node.name,
                describe_status(status),
                reason,
                _quote(supervised),
            )
            self._status = status if status > 0 else 1
            self._stopping.set()
            return
        if node.is_essential:
            self._revive()
        self._restart_soon(supervised, status, self._policy.max_restarts)

    def _restart_recalled(self, supervised: _Supervised) -> None:
        supervised.restart_at = time.monotonic()
        supervised.ready = not supervised.node.reports
        supervised.others.clear()

    def _restart_soon(self, supervised: _Supervised, status: int, restarts: int) -> None:
        delay = self._policy.delay_sec(supervised.deaths)
        supervised.restart_at = time.monotonic() + delay
        logger.warning(
            "%s died (%s); restart %d of %d in %.1f s%s",
            supervised.node.name,
            describe_status(status),
            supervised.deaths,
            restarts,
            delay,
            _quote(supervised),
        )

    def _revive(self) -> None:
        """Plans a restart of processes that exited with 0: the essential process is restarted."""
        for other in self._supervised:
            if other.done and not other.node.is_essential:
                other.done = False
                other.restart_at = time.monotonic() + self._policy.max_delay_sec / 2

    def _terminate(self) -> None:
        alive = [(s.node.name, s.process) for s in self._supervised if s.process is not None]
        deadline = time.monotonic() + self._term_sec
        for stage in range(_STAGES):
            self._terminate_stage(stage, self._term_sec / _STAGES)
        for name, process in alive:
            if not process.wait(max(deadline - time.monotonic(), 0.1)):
                logger.warning(
                    "%s: pid %d did not exit within %g s; killed it",
                    name,
                    process.pid,
                    self._term_sec,
                )
            process.kill()
            process.wait(_KILLED_SEC)
        for _, process in alive:
            process.finish(1.0)

    def _terminate_stage(self, stage: int, timeout_sec: float) -> None:
        """Terminates the processes of one stage, and waits up to `timeout_sec` for their exit.

        Environments end first, then what serves them, the learner, and the essential process last:
        each still reports its last steps to those that end after it. After the last stage the
        caller waits.
        """
        ending = [
            s.process
            for s in self._supervised
            if s.process is not None and s.process.poll() is None and _find_stage(s) == stage
        ]
        for process in reversed(ending):
            process.terminate()
        deadline = time.monotonic() + timeout_sec
        while stage < _STAGES - 1 and time.monotonic() < deadline:
            if all(process.poll() is not None for process in ending):
                return
            time.sleep(_END_POLL_SEC)


def _find_stage(supervised: _Supervised) -> int:
    if supervised.is_environment:
        return 0
    if supervised.node.is_essential:
        return 3
    return 2 if supervised.node.role == "learner" else 1


def shorten_tracebacks(lines: Iterator[str], known: set[str]) -> Iterator[str]:
    """Shortens each Python traceback that is already known to its last line.

    Args:
      lines: output of a process.
      known: tracebacks without their last lines; new ones are added.
    """
    held: list[str] = []
    for line in lines:
        if held and (line[:1].isspace() or not line) and len(held) < _MAX_HELD:
            held.append(line)
        elif held:
            yield from _shorten(held, line, known)
            held = []
        elif line == _TRACEBACK:
            held.append(line)
        else:
            yield line
    yield from held  # the process was killed while printing


def _shorten(held: list[str], last: str, known: set[str]) -> Iterator[str]:
    text = "\n".join(held)
    if text in known:
        yield f"{last} (same traceback as above)"
        return
    known.add(text)
    yield from (*held, last)


def describe_status(status: int) -> str:
    """Returns an exit status as text, such as "killed by SIGKILL"."""
    return f"killed by {name_signal(-status)}" if status < 0 else f"status {status}"


def _quote(supervised: _Supervised) -> str:
    """Returns a process's last line, for the end of a message; "" if it printed nothing.

    It is repeated there, because lines of other processes can follow it in the terminal.
    """
    last = supervised.last_line[:_MAX_LAST_LINE]
    return f"; its last line: {last}" if last else ""


def _print_line(name: str, width: int, line: str) -> None:
    text = f"{name:{width}} | {line}"
    output.info("%s", text)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{text.encode(encoding, 'replace').decode(encoding)}\n")
    sys.stdout.flush()
