"""Manager: starts the processes of an experiment and restarts those that die."""

import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from relaax_like.launch.guardian import Guardian
from relaax_like.launch.process import EXIT_OUTPUT_CLOSED, SignalEvent
from relaax_like.wire.errors import RelaaxError

logger = logging.getLogger(__name__)

# From SIGTERM to SIGKILL.
TERM_SEC = 6.0


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """One process of the experiment.

    Attributes:
      name: for messages and as the prefix of its lines.
      argv: the command.
      essential: its end with status 0 ends the experiment (the parameter server's does).
      env: added to the environment.
    """

    name: str
    argv: Sequence[str]
    essential: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """How a dead process is brought back.

    Attributes:
      first_delay_sec: before the first restart; doubled each time, with jitter.
      max_delay_sec: longest delay.
      max_restarts: restarts in a row after which one more death ends the experiment.
      healthy_sec: a process that ran for so long starts its count anew.
    """

    first_delay_sec: float = 0.5
    max_delay_sec: float = 10.0
    max_restarts: int = 10
    healthy_sec: float = 30.0

    def delay_sec(self, deaths: int) -> float:
        """Returns how long to wait after the n-th death in a row, `deaths >= 1`."""
        delay = min(self.first_delay_sec * 2 ** (deaths - 1), self.max_delay_sec)
        return delay * random.uniform(0.75, 1.25)


class _Supervised:
    """A process and its history. Used from the manager's thread only."""

    def __init__(self, spec: ProcessSpec):
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.relay: threading.Thread | None = None
        self.deaths = 0
        self.started = 0.0
        self.restart_at: float | None = None
        self.done = False


class Manager:
    """Runs processes until an essential one ends well, one cannot be kept alive, or it is stopped.

        manager = Manager([ProcessSpec(name="ps", argv=[...], essential=True), ...])
        status = manager.run()

    Args:
      specs: what to run, in the order of their start.
      policy: how dead ones are brought back.
      write_line: takes each output line with its process's name; the default prints.
      term_sec: what has not ended so long after its SIGTERM is killed.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        policy: RestartPolicy | None = None,
        write_line: Callable[[str, str], None] | None = None,
        term_sec: float = TERM_SEC,
    ):
        self._supervised = [_Supervised(spec) for spec in specs]
        self._policy = policy or RestartPolicy()
        self._term_sec = term_sec
        width = max(len(spec.name) for spec in specs)
        self._write_line = write_line or (lambda name, line: _print_line(name, width, line))
        self._stopping = SignalEvent()
        self._status = 0
        self._guardian: Guardian | None = None  # while it runs

    def pids(self) -> dict[str, int]:
        """Returns the process id of each process that runs."""
        return {
            s.spec.name: s.process.pid
            for s in self._supervised
            if s.process is not None and s.process.poll() is None
        }

    def stop(self) -> None:
        """Asks `run` to end; safe in signal handlers and from other threads."""
        self._stopping.set()

    def kill(self) -> None:
        """Kills all processes at once, for a second Ctrl-C; safe in signal handlers."""
        self._stopping.set()
        for supervised in self._supervised:
            if supervised.process is not None:
                _kill_group(supervised.process)

    def run(self) -> int:
        """Runs until the end and returns an exit status: 0 when all went well or it was stopped.

        Nothing that it started is left then, the processes' own children included. When this
        process is killed, its `Guardian` sees to that.

        The status is 128 + SIGPIPE where nobody read the processes' lines any more.

        Raises:
          RelaaxError: a command cannot be started.
        """
        with Guardian(self._term_sec) as self._guardian:
            try:
                for supervised in self._supervised:
                    self._start(supervised)
                while not self._stopping.wait(0.1):
                    self._check()
            finally:
                self._terminate()
        return self._status

    def _start(self, supervised: _Supervised) -> None:
        spec = supervised.spec
        try:
            supervised.process = subprocess.Popen(
                spec.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env},
                # A Ctrl-C in the terminal reaches the manager alone, which then ends all in order.
                start_new_session=True,
            )
        except OSError as error:
            raise RelaaxError(f"{spec.name}: cannot start {spec.argv[0]}: {error}") from error
        assert self._guardian is not None, "run is under way"
        self._guardian.add(supervised.process.pid)
        supervised.started = time.monotonic()
        supervised.restart_at = None
        # A daemon: output that something far away still holds open must not keep us from ending.
        supervised.relay = threading.Thread(
            target=self._relay, args=(supervised.process, spec.name), daemon=True
        )
        supervised.relay.start()

    def _relay(self, process: subprocess.Popen[bytes], name: str) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    self._write_line(name, line.decode(errors="replace").rstrip("\n"))
                except BrokenPipeError:
                    self._status = EXIT_OUTPUT_CLOSED
                    self._stopping.set()
                    break
            for _ in lines:  # A full pipe would keep the process from ending.
                pass

    def _check(self) -> None:
        now = time.monotonic()
        for supervised in self._supervised:
            if supervised.restart_at is not None and now >= supervised.restart_at:
                self._start(supervised)
            process = supervised.process
            if process is not None and process.poll() is not None and not supervised.done:
                supervised.process = None
                _kill_group(process)
                assert self._guardian is not None, "run is under way"
                self._guardian.remove(process.pid)
                self._note_end(supervised, process.returncode)
        if all(s.done for s in self._supervised):
            self._stopping.set()

    def _note_end(self, supervised: _Supervised, status: int) -> None:
        spec = supervised.spec
        if status == 0:
            supervised.done = True
            if spec.essential:
                self._stopping.set()
            return
        healthy = time.monotonic() - supervised.started > self._policy.healthy_sec
        supervised.deaths = 1 if healthy else supervised.deaths + 1
        if status == 2 or supervised.deaths > self._policy.max_restarts:
            reason = "a mistake in its settings" if status == 2 else "too many deaths in a row"
            logger.error("%s ended with status %d: %s; ending all", spec.name, status, reason)
            self._status = status if status > 0 else 1
            self._stopping.set()
            return
        if spec.essential:
            self._revive()
        delay = self._policy.delay_sec(supervised.deaths)
        supervised.restart_at = time.monotonic() + delay
        cause = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        logger.warning(
            "%s died (%s); restart %d of %d in %.1f s",
            spec.name,
            cause,
            supervised.deaths,
            self._policy.max_restarts,
            delay,
        )

    def _revive(self) -> None:
        """Starts again what had ended well: with an essential process back, there is work again."""
        for other in self._supervised:
            if other.done and not other.spec.essential:
                other.done = False
                other.restart_at = time.monotonic() + self._policy.max_delay_sec / 2

    def _terminate(self) -> None:
        alive = [s.process for s in self._supervised if s.process is not None]
        for process in reversed(alive):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + self._term_sec
        for process in alive:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                logger.warning("pid %d did not end in %g s; killed", process.pid, self._term_sec)
            _kill_group(process)
            process.wait()
            assert self._guardian is not None, "run is under way"
            self._guardian.remove(process.pid)
        for supervised in self._supervised:
            if supervised.relay is not None:
                supervised.relay.join(1.0)  # the last lines


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and whatever it started: each is the leader of a group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _print_line(name: str, width: int, line: str) -> None:
    sys.stdout.write(f"{name:{width}} | {line}\n")
    sys.stdout.flush()
