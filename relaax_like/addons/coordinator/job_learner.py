"""JobLearner: runs the jobs of a resident slave, each in a process of its own.

    WORK/lock             locked while the slave lives
    WORK/job/job.yaml     the settings of the job that runs now
    WORK/job/run/         its run's folder; at the start empty, or the job's newest version

The process is `relaax train`, or `relaax resume` if there is a version. So a job that crashes does
not end the slave, and TensorFlow is loaded only while there is a job. If the slave is killed, a
guardian ends the process.

A job with collectors is `relaax run` without environments, and each of its collectors, on another
slave, is `relaax collect` with one.
"""

import collections
import contextlib
import importlib.metadata
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relaax_like.addons.coordinator.job import (
    MAX_ATTEMPT,
    MAX_COLLECTORS,
    MAX_JOB,
    MAX_REASON,
    MAX_TAIL_BYTES,
    Attempt,
)
from relaax_like.addons.coordinator.slave import Doing, LearnerSlave, find_callbacks
from relaax_like.addons.coordinator.tasks import RefusedAttemptError, TaskFail
from relaax_like.addons.coordinator.versions import pack_version, stage_folder, unpack_version
from relaax_like.config.address import Address, parse_address
from relaax_like.config.algorithm_folder import ENTRY_POINTS
from relaax_like.config.job_keys import name_environment
from relaax_like.config.job_names import is_name
from relaax_like.config.yaml_document import quote_text
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.runs.processes.launcher import LocalLauncher, Running
from relaax_like.runs.processes.process import name_signal
from relaax_like.runs.processes.topology import Node
from relaax_like.shipped import ALGORITHMS, ENVIRONMENTS, get_shipped_folder
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.ports import bind_socket
from relaax_like.wire.security import ClientSecurity

logger = logging.getLogger(__name__)

# -P: a file of the run's folder must not be imported.
RELAAX = (sys.executable, "-P", "-m", "relaax_like.cli.main")
# A process that has not ended this long after SIGTERM is killed.
END_SEC = 20.0
# The end of a job is reported a moment before it is over; then the next one can come.
_OVER_SEC = 10.0
# How long a slave that leaves waits for the coordinator.
_LEAVE_SEC = 20.0
# Attempts to send the run's folder before a slave leaves without.
_LAST_SENDS = 5
_LOOK_SEC = 0.2
_LINES = 100
_LINE_CHARACTERS = 500
_MAX_VERSION_BYTES = 1 << 40  # the coordinator's limit counts
_SNAPSHOT = re.compile(r"cp-(\d{20})-(\d{20})")
_GPU = re.compile(r"nvidia\d+")
_SHOWN = ("step", "episodes", "mean_return")
# The version is a snapshot: a journal beside it would never be read.
_SETS = ("relaax-parameter-server.durability=snapshot",)
# How long a collector that is not wanted any more can play to the end of its episodes.
_EPISODE_SEC = 10.0
# The line of a parameter server.
_PROGRESS = re.compile(r"\bstep ([\d,]+) \| [\d,]+ steps/s \| (?:mean return (-?[\d.]+) )?")
_LOOPBACK = "localhost"
# Keys of the section `security` without which collectors connect to no other machine.
_OF_COLLECTORS = ("token_file", "tls_ca", "tls_cert", "tls_key")


class JobLearner(Closing):
    """Runs one job at a time; a `LearnerSlave` calls it. A context manager.

        with JobLearner(folder) as learner:
            learner.connect("localhost:7004", "slave-1", security)
            learner.slave.ended.wait()

    Attributes:
      environments: names of the environments that jobs can have; see `name_environment`.

    Args:
      folder: where the runs are trained, one after another; belongs to this process.
      program: command that trains; takes the arguments of `relaax`.
      modules: of `name_module`, for modules that jobs can have in `environment.env`.
      host: where servers of jobs with collectors listen, for other machines; "": on loopback.
      security: keys of the section `security` of an experiment, for these servers and for
        collectors that connect to other machines.
      own_policy: whether collectors act here, and send rollouts or gradients; otherwise they ask
        the job's rlx server at each step.

    Raises:
      ConfigError: the folder cannot be used, or `host` is not an address of this machine.
      SnapshotError: another slave uses the folder, or its lock file cannot be locked.
      RelaaxError: the guardian process cannot be started.
    """

    def __init__(
        self,
        folder: Path,
        program: Sequence[str] = RELAAX,
        modules: Sequence[str] = (),
        host: str = "",
        security: Mapping[str, Any] = MappingProxyType({}),
        own_policy: bool = False,
    ):
        if host:
            _find_addresses(host, 1)
        self._host = host
        self._own_policy = own_policy
        self._security = security
        self._folder = folder
        self._program = program
        self.environments = [*_list_names(ENVIRONMENTS, "slots.py"), *modules]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._folder_lock = lock_folder(folder, "another slave")
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot be the slave's folder: {error.strerror or error}; choose "
                "another folder (--work)"
            ) from None
        try:
            self._launcher = LocalLauncher(END_SEC).__enter__()
        except RelaaxError:
            self._folder_lock.close()
            raise
        self._lock = threading.Lock()
        self._running: _RunningJob | None = None
        self._is_closing = False
        self._slave: LearnerSlave | None = None

    @property
    def slave(self) -> LearnerSlave:
        """The session with the coordinator; available after `connect`."""
        assert self._slave is not None, "call connect() first"
        return self._slave

    def connect(
        self, address: str, name: str, security: ClientSecurity | None = None
    ) -> LearnerSlave:
        """Starts a session with a coordinator, and returns it.

        Args:
          address: HOST:PORT of the coordinator.
          name: of the slave, unique at the coordinator.
          security: token of role learner, and certificates; None: no token and no TLS.

        Raises:
          InvalidInputError: the name is not valid.
          ConfigError: `address` is not HOST:PORT, or a file that `security` names cannot be used.
        """
        self._slave = LearnerSlave(
            address,
            name,
            find_callbacks(self),
            security=security,
            algorithms=sorted({*_list_names(ALGORITHMS, "config.py"), *_list_installed()}),
            environments=self.environments,
            runs_jobs=True,
            get_doing=self.get_doing,
            claims={
                "host": self._host,
                "machine": _name_machine(),
                "has_security": self._security.keys() >= {*_OF_COLLECTORS},
            },
        )
        self._slave.start()
        return self._slave

    def close(self) -> None:
        """Ends the job, if one runs, and the session; takes about a minute at most.

        The job's process saves, its version is sent, and the job is queued again.
        """
        if self._slave is not None:
            self._slave.stop_taking_jobs()
        with self._lock:
            self._is_closing = True
            running = self._running
        if running is not None:
            running.stop(is_wanted=True)
            running.is_over.wait(END_SEC + _LEAVE_SEC)
        if self._slave is not None:
            self._slave.close()
        self._launcher.__exit__()
        self._folder_lock.close()

    def get_doing(self) -> Doing:
        """Returns the attempt that runs now, if there is one, its progress and its addresses."""
        running = self._running
        if running is None:
            return Doing()
        return Doing(running.attempt, running.progress, running.addresses)

    # Callbacks.

    def deal_with_resource(self) -> dict[str, int]:
        """Returns how many NVIDIA GPUs (`gpu`) and CPUs (`cpu`) this machine has."""
        gpus = sum(bool(_GPU.fullmatch(path.name)) for path in Path("/dev").glob("nvidia*"))
        return {"gpu": gpus, "cpu": os.cpu_count() or 1}

    def deal_with_learner_start(self, task_info: Mapping[str, Any]) -> Mapping[str, str]:
        """Starts a job; returns `address`, of its rlx server, and `parameter_server`.

        They are where collectors connect; without collectors, the result is empty.

        Args:
          task_info: has `job`, `attempt`, `config`, `has_version` and `collectors`.

        Raises:
          TaskFail: `task_info` is not valid; another job still runs after 10 s; or `close` was
            called.
        """
        arguments, addresses = self._make_arguments(task_info)
        self._start(task_info, arguments, addresses)
        return addresses

    def deal_with_collector_start(self, task_info: Mapping[str, Any]) -> None:
        """Starts a collector, which plays in the environments of a job that another slave learns.

        Args:
          task_info: has `job`, `attempt`, `collector`, `config`, and what
            `deal_with_learner_start` has returned.

        Raises:
          TaskFail: see `deal_with_learner_start`; or the address is on another machine, and this
            slave has no token or certificates.
        """
        key, flags = "address", []
        sets = [*_SETS, "environment.clients=1"]
        if self._own_policy:
            key, flags = "parameter_server", ["--own-policy"]
            own = Address(self._host or _LOOPBACK, 0)
            sets.append(f"relaax-rlx-server.bind={quote_text(str(own))}")
        address = str(task_info.get(key))
        try:
            is_here = parse_address(address).is_loopback
        except ConfigError as error:
            raise TaskFail.because(f"{key}: {error}") from None
        if not is_here:
            if not self._security.keys() >= {*_OF_COLLECTORS}:
                raise TaskFail.because(
                    f"{key}: {address} is on another machine, but this slave has no token and no "
                    "certificates; start it with --token-file, --tls-ca, --tls-cert and --tls-key"
                )
            sets += self._make_security()
        self._start(task_info, ["collect", "job.yaml", address, *flags, *_to_flags(sets)])

    def _make_arguments(self, task_info: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Returns the arguments of `relaax` for a learner, and where its collectors connect."""
        has_version = bool(task_info.get("has_version"))
        start = ["resume", "run"] if has_version else []
        sets = [*_SETS] if has_version else [*_SETS, "run_dir=run"]
        if not task_info.get("collectors"):
            start = start or ["train", "job.yaml"]
            return [*start, "--log", "json", *_to_flags(sets)], {}
        host = self._host or _LOOPBACK
        rlx, server = _find_addresses(host, 2)
        sets += [
            "environment.clients=0",
            f"relaax-rlx-server.bind={quote_text(rlx)}",
            f"relaax-parameter-server.bind={quote_text(server)}",
            f"relaax-rlx-server.parameter_server={quote_text(server)}",
            f"learner.bind={quote_text(str(Address(host, 0)))}",
        ]
        if self._host:
            sets += self._make_security()
        arguments = [*(start or ["run", "job.yaml"]), *_to_flags(sets)]
        return arguments, {"address": rlx, "parameter_server": server}

    def _make_security(self) -> list[str]:
        return [f"security.{key}={quote_text(str(value))}" for key, value in self._security.items()]

    def _start(
        self,
        task_info: Mapping[str, Any],
        arguments: Sequence[str],
        addresses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        attempt = _read_attempt(task_info)
        if (needed := name_environment(task_info["config"])) not in self.environments:
            raise TaskFail.because(
                f"environment: this slave has no {needed!r:.120} among its environments"
            )
        before = self._running
        if before is not None and not before.is_over.wait(_OVER_SEC):
            raise TaskFail.because(f"the slave still runs {before.attempt}", busy=True)
        with self._lock:
            if self._is_closing:  # its process would not be ended
                raise TaskFail.because("the slave is shutting down", busy=True)
            self._running = _RunningJob(
                self.slave,
                self._launcher,
                [*self._program, *arguments],
                self._folder / "job",
                attempt,
                task_info,
                addresses,
            )
            logger.info("%s: relaax %s", attempt, " ".join(arguments[:2]))
            threading.Thread(
                target=self._run, args=(self._running,), name="job", daemon=True
            ).start()

    def deal_with_learner_close(self) -> None:
        """Requests the end of the job's process; its result is no longer wanted."""
        running = self._running
        if running is not None:
            running.stop(is_wanted=False)

    def deal_with_collector_close(self, task: Mapping[str, Any]) -> None:
        """Requests the end of the collector, which can end its episodes unless `at_once`."""
        running = self._running
        if running is not None:
            running.stop(is_wanted=False, at_once=bool(task.get("at_once")))

    def _run(self, running: "_RunningJob") -> None:
        try:
            running.run()
        finally:
            with self._lock:
                self._running = None
            running.is_over.set()


class _RunningJob:
    """One attempt, or collector: a process, its output, and the versions that it has written.

    Attributes:
      attempt: the attempt.
      addresses: where its collectors connect, by field of `PollRequest`; empty: it needs none.
      progress: newest progress as JSON; "": none yet.
      is_over: set when the attempt has ended and was reported.
    """

    def __init__(
        self,
        slave: LearnerSlave,
        launcher: LocalLauncher,
        command: Sequence[str],
        folder: Path,
        attempt: Attempt,
        task_info: Mapping[str, Any],
        addresses: Mapping[str, str],
    ):
        self.attempt = attempt
        self.addresses = addresses
        self.progress = ""
        self.is_over = threading.Event()
        self._slave = slave
        self._launcher = launcher
        self._command = command
        self._folder = folder
        self._run_dir = folder / "run"
        self._config = task_info["config"]
        self._has_version = bool(task_info.get("has_version"))
        self._stopping = threading.Event()
        self._is_wanted, self._at_once = True, False
        self._step = 0
        self._sent = ""  # name of the newest snapshot that the coordinator has
        self._tail: collections.deque[str] = collections.deque(maxlen=_LINES)
        self._failures = 0

    def stop(self, is_wanted: bool, at_once: bool = False) -> None:
        """Requests the end; with `is_wanted`, the newest version is still sent. Thread-safe.

        Unless `at_once`, a collector first ends its episodes.
        """
        self._is_wanted = self._is_wanted and is_wanted
        self._at_once = at_once
        self._stopping.set()

    def run(self) -> None:
        """Runs the attempt from its first to its last message."""
        try:
            outcome, reason = self._train()
        except RefusedAttemptError as error:
            outcome, reason = pb.Ended.STOPPED, str(error)
        except (RelaaxError, OSError) as error:
            outcome, reason = pb.Ended.FAILED, str(error)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        reason = reason.encode(errors="replace")[:MAX_REASON].decode(errors="ignore")
        if self._slave.report_end(self.attempt, outcome, reason, self._get_tail()):
            logger.info("%s: %s", self.attempt, reason)
        else:
            unrecorded = "" if self.attempt.collector else "; its result was not recorded"
            logger.info("%s: ended%s", self.attempt, unrecorded)

    def _train(self) -> tuple[int, str]:
        self._prepare()
        if self._stopping.is_set():
            return pb.Ended.STOPPED, "its slave left before it began"
        process = self._start()
        try:
            while process.poll() is None and not self._stopping.wait(_LOOK_SEC):
                self._send_new_snapshot()
            if process.poll() is None and self.attempt.collector and not self._at_once:
                os.kill(process.pid, signal.SIGHUP)
                process.wait(_EPISODE_SEC)
            if process.poll() is None:
                process.terminate()
                process.wait(END_SEC)
        finally:
            process.kill()  # also what it might have started
            while (status := process.poll()) is None:
                process.wait(END_SEC)
            process.finish(5.0)
        if self._is_wanted and (self._run_dir / "config.yaml").exists():
            self._send_final_version()
        if self.attempt.collector and self._stopping.is_set():
            return pb.Ended.STOPPED, "its end was requested"
        if status == 0:
            return pb.Ended.DONE, self._read_result()
        if self._stopping.is_set():
            return pb.Ended.STOPPED, "its slave left"
        if status < 0:
            return pb.Ended.FAILED, f"its process was killed by {name_signal(-status)}"
        return pb.Ended.FAILED, f"its process ended with status {status}"

    def _prepare(self) -> None:
        """Makes the job's folder, with the version that it continues from.

        Raises:
          RefusedAttemptError: the attempt is no longer the newest one.
          InvalidInputError: the version that the coordinator sent is not valid.
          RelaaxError: another error of `CoordinatorLink.call`; ServerUnavailableError is retried.
          OSError: a file cannot be written.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        (self._folder / "job.yaml").write_text(json.dumps(self._config), "utf-8")
        if not self._has_version:
            return
        while not self._stopping.is_set():
            shutil.rmtree(self._run_dir, ignore_errors=True)
            self._run_dir.mkdir()
            try:
                parts = self._slave.get_version(self.attempt)
                unpack_version(parts, self._run_dir, _MAX_VERSION_BYTES)
                self._sent = _find_newest(self._run_dir)
                self._failures = 0
                return
            except ServerUnavailableError as error:
                if not self._failures:
                    logger.warning(
                        "%s: its version could not be fetched, retrying: %s", self.attempt, error
                    )
                self._pause()

    def _start(self) -> Running:
        node = Node(
            name=str(self.attempt),
            argv=self._command,
            role="environment",
            folder=self._folder,
        )
        return self._launcher.start(node, self._read_output, lambda report: None)

    def _read_output(self, stream: Iterable[bytes]) -> None:
        """Reads the progress, which is lines of JSON or of the parameter server, and the log."""
        for line in _read_lines(stream):
            if match := _PROGRESS.search(line):
                self._step = int(match[1].replace(",", ""))
                numbers = self._step, None, float(match[2]) if match[2] else None
                self.progress = json.dumps(dict(zip(_SHOWN, numbers, strict=True)))
            try:
                numbers = json.loads(line)
                self._step = int(numbers["step"])
                self.progress = json.dumps({key: numbers.get(key) for key in _SHOWN})
            except (ValueError, TypeError, KeyError):
                self._tail.append(line)

    def _get_tail(self) -> str:
        return "\n".join(self._tail).encode()[-MAX_TAIL_BYTES:].decode(errors="ignore")

    def _read_result(self) -> str:
        """Returns what ended the training, according to its log; else "finished"."""
        parts = (line.partition("finished: ") for line in reversed(self._tail))
        return next((end for _, found, end in parts if found), "finished")

    # Versions.

    def _send_new_snapshot(self) -> None:
        newest = _find_newest(self._run_dir)
        if not newest or newest == self._sent:
            return
        try:
            self._send()
        except RefusedAttemptError as error:
            logger.warning("%s", error)
            self.stop(is_wanted=False)
        except InvalidInputError as error:
            self._tail.append(f"the version was refused: {error}")
            logger.error("%s: %s; training continues, without this version", self.attempt, error)
            self._sent = newest
        except (ServerUnavailableError, OSError) as error:
            logger.warning("%s: no version was sent: %s", self.attempt, error)
            self._pause()
        else:
            self._failures = 0

    def _send_final_version(self) -> None:
        """Sends the run's folder, and retries.

        Gives up if the session has ended, if the result is not wanted any more, or, while the slave
        is leaving, after some failures.

        Raises:
          InvalidInputError: the folder is too large, has too many files or a path that is too long,
            or a file was changed meanwhile.
          RefusedAttemptError: the attempt is no longer the newest one.
          RelaaxError: another error of `CoordinatorLink.call`; ServerUnavailableError is retried.
        """
        while not self._slave.ended.is_set():
            try:
                self._send()
                return
            except (ServerUnavailableError, OSError) as error:
                self._failures += 1
                is_last = self._stopping.is_set() and self._failures >= _LAST_SENDS
                if is_last or not self._is_wanted:
                    logger.error("%s: the run was not sent: %s", self.attempt, error)
                    return
                logger.warning("%s: the run could not be sent, retrying: %s", self.attempt, error)
                self._slave.ended.wait(draw_pause_sec(self._failures, 0.2, 5.0))

    def _send(self) -> None:
        staging = self._folder / "staging"
        try:
            stage_folder(self._run_dir, staging)
            newest = _find_newest(staging)  # the run has perhaps gone on meanwhile
            match = _SNAPSHOT.fullmatch(newest)
            step = int(match[1]) if match else self._step
            self._slave.send_version(
                self.attempt, step, lambda header: pack_version(staging, header)
            )
            self._sent = newest
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _pause(self) -> None:
        self._stopping.wait(draw_pause_sec(self._failures, 0.2, 5.0))
        self._failures += 1


def _find_newest(run: Path) -> str:
    """Returns the name of the newest snapshot with a version above 0; "": there is none."""
    try:
        names = os.listdir(run / "checkpoints")
    except OSError:
        return ""
    found = [match for name in names if (match := _SNAPSHOT.fullmatch(name))]
    newest = max(found, key=lambda match: match[0], default=None)
    return newest[0] if newest is not None and int(newest[2]) else ""


def _read_attempt(task_info: Mapping[str, Any]) -> Attempt:
    """Returns the attempt of a start task, which a program of the coordinator can have made.

    Raises:
      TaskFail: a number is not one that a message can hold, or the settings are missing.
    """
    limits = [("job", MAX_JOB), ("attempt", MAX_ATTEMPT)]
    if "collector" in task_info:
        limits.append(("collector", MAX_COLLECTORS))
    for key, most in limits:
        number = task_info.get(key)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= most:
            raise TaskFail.because(f"{key}: {number!r:.80}, expected an integer from 1 to {most}")
    if not isinstance(task_info.get("config"), Mapping):
        raise TaskFail.because(
            f"config: {task_info.get('config')!r:.80}, expected the settings of a job, as "
            "make_job_config returns them"
        )
    return Attempt(task_info["job"], task_info["attempt"], task_info.get("collector", 0))


def _find_addresses(host: str, number: int) -> list[str]:
    """Returns so many addresses of this machine with free ports.

    Raises:
      ConfigError: the host is not one of this machine.
    """
    try:
        with contextlib.ExitStack() as probes:  # open until all are found: they differ
            found = [probes.enter_context(bind_socket(host, 0)) for _ in range(number)]
            return [str(Address(host, probe.getsockname()[1])) for probe in found]
    except OSError as error:
        raise ConfigError(
            f"--advertise: {host}: no port of it can be used: {error.strerror or error}; set the "
            "name or an address of this machine"
        ) from None


def _name_machine() -> str:
    """Returns a text that is the same for processes that share a loopback interface, else ""."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:  # not Linux
        return socket.gethostname()


def _to_flags(sets: Sequence[str]) -> list[str]:
    return [part for text in sets for part in ("--set", text)]


def _read_lines(stream: Any) -> Iterator[str]:
    """Yields the beginning of each line; an endless line does not fill the memory."""
    while line := stream.readline(1 << 16):
        yield line.decode(errors="replace").rstrip("\n")[: 4 * _LINE_CHARACTERS]


def _list_names(kind: str, must_have: str) -> list[str]:
    """Returns the names of the shipped algorithms or environments with the file `must_have`."""
    found = get_shipped_folder(kind).glob(f"*/{must_have}")
    return sorted(path.parent.name for path in found)


def _list_installed() -> list[str]:
    """Returns the names of algorithms that installed distributions provide, and jobs can have."""
    names = [point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS)]
    return [name for name in names if is_name(name)]
