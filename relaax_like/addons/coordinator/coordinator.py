"""The coordinator: assigns jobs to slaves, enforces time limits, and accepts results."""

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaax_like.addons.coordinator.job import (
    MAX_PAYLOAD_BYTES,
    MAX_REASON,
    MAX_TAIL_BYTES,
    Attempt,
    Job,
    JobState,
    validate_collectors,
    validate_key,
    validate_name,
    validate_size,
)
from relaax_like.addons.coordinator.job_queue import JobQueue, QueueFullError
from relaax_like.addons.coordinator.tasks import (
    CLOSE,
    COLLECTOR_CLOSE,
    COLLECTOR_START,
    START,
    TASK_TIMEOUT_SEC,
    NameInUseError,
    RefusedAttemptError,
    TaskFail,
)
from relaax_like.addons.coordinator.versions import VersionStore
from relaax_like.config.address import parse_address
from relaax_like.config.job_keys import name_environment
from relaax_like.parameter_server.folder import lock_folder
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError, InvalidInputError, ServerUnavailableError

logger = logging.getLogger(__name__)

MAX_SLAVES = 256
SILENCE_SEC = 30.0
STALL_SEC = 600.0
MAX_VERSION_BYTES = 1 << 30
# Longest wait of a poll: slaves are heard of at least this often.
POLL_SEC = 10.0
_WATCH_SEC = 0.25
_LOG_SEC = 10.0
_TASKS_PER_REPLY = 16
_REPLY_BYTES = 3 << 20  # of its tasks; a client receives messages of up to 4 MiB
_MAX_OPEN_TASKS = 64  # of programs, by `send_task`
_MAX_PROGRESS_BYTES = 4096
_MAX_SHOWN = 8  # names in an error
_MAX_HOST = 255
_ADDRESSES = ("address", "parameter_server")  # fields of a poll
# Collectors of a job that fail one after another, without progress in between, before its attempt
# does; and the longest wait before the next one starts, and that after one has ended by itself, as
# they do when the training is over.
_MIN_COLLECTOR_FAILURES = 5  # or two of each, if that is more
_MAX_COLLECTOR_PAUSE_SEC = 10.0
_AFTER_END_SEC = 5.0
_NONE = (0, 0.0, "")  # no failure
_SHRINK = "send less, such as the names of data that both ends can read"


class NoSuchJobError(InvalidInputError):
    """There is no such job."""


@dataclass
class _OpenTask:
    """A task that has not been answered yet."""

    message: pb.Task
    result: Future[dict[str, Any]]
    deadline: float
    attempt: Attempt | None = None


@dataclass
class _Slave:
    """A slave that takes part at present.

    Attributes:
      changed: set when there is a task for the slave.
      is_connected: a poll waits, or one has just been answered.
      attempt: the attempt that the slave runs or is to run; None: it is free.
      is_confirmed: whether the slave has confirmed that it runs `attempt`.
      closing: the attempt of a collector whose end was requested.
      said: the newest poll: what the slave says of itself.
      addresses: field of `PollRequest` -> where collectors of `attempt` connect; empty: unknown, or
        it needs none.
    """

    name: str
    incarnation: int
    last_seen: float
    said: pb.PollRequest
    algorithms: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()
    runs_jobs: bool = False
    sequence: int = 0
    tasks: dict[int, _OpenTask] = field(default_factory=dict)
    changed: threading.Event = field(default_factory=threading.Event)
    is_connected: bool = True
    attempt: Attempt | None = None
    is_confirmed: bool = False
    closing: Attempt | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    progress: str = ""
    progress_at: float = 0.0

    @property
    def is_free(self) -> bool:
        """Whether it can be assigned a job or a collector."""
        return self.runs_jobs and self.is_connected and self.attempt is None

    def has(self, job: Job) -> bool:
        """Whether it has the job's algorithm and environment."""
        return job.algorithm in self.algorithms and job.environment in self.environments

    def reaches(self, learner: "_Slave") -> bool:
        """Whether a collector on this slave can connect to a learner on another one."""
        if learner.said.host:
            return self.said.has_security
        return bool(self.said.machine) and self.said.machine == learner.said.machine


class Coordinator(Closing):
    """Keeps jobs and slaves, and assigns jobs to slaves. Thread-safe. A context manager.

        with Coordinator(folder) as coordinator:
            server, port = create_coordinator_server(address, coordinator)
            server.start()
            ...

    Args:
      folder: folder of the queue and the runs; belongs to this process.
      max_jobs: maximum number of jobs that have not ended.
      max_version_bytes: maximum size of a run's folder that a slave can send.
      silence_sec: a slave that sends nothing for this time is lost; its job is queued again, or
        fails if the job has lost too many slaves (see `job.MAX_LOSSES`).
      stall_sec: an attempt without progress for this time has failed.
      clock: returns monotonic seconds.

    Attributes:
      incarnation: random number of this start; tasks are only valid within it.

    Raises:
      ConfigError: the folder cannot be created, is not the folder of a coordinator, is of another
        version of relaax_like, or its file of jobs is damaged.
      JournalError: the queue's file cannot be read or written.
      SnapshotError: another process uses the folder, or its lock file cannot be locked.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_jobs: int = 10_000,
        max_version_bytes: int = MAX_VERSION_BYTES,
        silence_sec: float = SILENCE_SEC,
        stall_sec: float = STALL_SEC,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.incarnation = random.getrandbits(64) | 1
        self._silence_sec = silence_sec
        self._stall_sec = stall_sec
        self._clock = clock
        self._lock = threading.RLock()
        self._slaves: dict[str, _Slave] = {}
        self._next_task = 1
        # Job -> number of collectors that have failed without progress in between, when the next
        # one can start, and why the newest one failed.
        self._failures: dict[int, tuple[int, float, str]] = {}
        self._next_line = 0.0  # when the next line about a full disk is due
        try:
            (folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot be the coordinator's folder: {error}; choose another folder"
            ) from None
        self._folder_lock = lock_folder(folder, "another coordinator")
        try:
            self._queue = JobQueue(folder, max_jobs)
        except BaseException:
            self._folder_lock.close()
            raise
        self._versions = VersionStore(folder, max_version_bytes)
        self._versions.clean_up(self._queue)
        # Slaves of an earlier life return within this time, or are lost.
        self._started = clock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="time limits", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Ends waiting polls, cancels open tasks, and closes the queue. Idempotent.

        Running jobs continue on their slaves.
        """
        self._closing.set()
        self._watcher.join()
        with self._lock:
            for slave in self._slaves.values():
                slave.changed.set()
                for task in slave.tasks.values():
                    task.result.cancel()
            self._queue.close()
            self._folder_lock.close()

    # Operators.

    def submit(self, key: str, name: str, config: Mapping[str, Any], collectors: int = 0) -> int:
        """Adds a job and returns its id; a repeated key returns the id of the same job.

        Args:
          key: random text that the client chose for this job; 16 to 64 letters and digits.
          name: name of the job, for display.
          config: valid settings, see `config.job_keys.validate_job_config`.
          collectors: see `Job`.

        Raises:
          QueueFullError: there are too many jobs.
          InvalidInputError: key or name is not valid, or collectors are out of range or have
            workers beside them.
          ServerUnavailableError: the queue cannot be written.
        """
        validate_key(key)
        validate_name(name, "name")
        if collectors:
            validate_collectors(collectors)
            if workers := (config.get("learner") or {}).get("workers"):
                raise InvalidInputError(
                    f"learner.workers: {workers}, but this job has collectors, which play instead; "
                    "remove the one or the other"
                )
        algorithm, environment = config["algorithm"]["name"], name_environment(config)
        with self._lock:
            before = len(self._queue)
            job = self._queue.submit(
                key, name, json.dumps(config), algorithm, environment, collectors
            )
            if len(self._queue) > before:
                logger.info("job %d: %s was submitted", job.id, name)
            self._assign()
        return job.id

    def list_jobs(self, job_id: int = 0, after: int = 0, most: int = 200) -> pb.ListReply:
        """Returns jobs and all slaves.

        Args:
          job_id: id of the only job to return, with its settings and the end of its output; 0:
            several jobs, without these.
          after: return only jobs with larger ids.
          most: maximum number of jobs.

        Raises:
          NoSuchJobError: there is no job with this id.
        """
        with self._lock:
            if job_id:
                jobs = [self._find_job(job_id)]
                more = False
            else:
                jobs = self._queue.list_after(after, most + 1)
                more = len(jobs) > most
            reply = pb.ListReply(more=more)
            reply.jobs.extend(self._describe(job, bool(job_id)) for job in jobs[:most])
            now = self._clock()
            for slave in self._slaves.values():
                info = reply.slaves.add(name=slave.name, silent_sec=now - slave.last_seen)
                if slave.attempt is not None:
                    info.running.CopyFrom(slave.attempt.to_message())
        return reply

    def set_collectors(self, job_id: int, collectors: int) -> None:
        """Adds collectors to a job, or removes some, which end their episodes first.

        Raises:
          NoSuchJobError: there is no job with this id.
          RefusedAttemptError: the job has ended, or plays in its own process.
          InvalidInputError: `collectors` is out of range.
          ServerUnavailableError: the queue cannot be written.
        """
        validate_collectors(collectors)
        with self._lock:
            job = self._find_job(job_id)
            if job.state.has_ended or not job.collectors:
                what = f"is {job.state}" if job.state.has_ended else "plays in its own process"
                raise RefusedAttemptError(
                    f"job {job_id} {what}; only a job that waits or runs, and was submitted with "
                    "--collectors, can have others"
                )
            self._queue.set_collectors(job, collectors)
            logger.info("job %d: %d collectors", job.id, collectors)
            self._assign()

    def cancel(self, job_id: int) -> None:
        """Cancels a job; a slave that runs it receives a task to end it.

        Raises:
          NoSuchJobError: there is no job with this id.
          RefusedAttemptError: the job is already done, or has failed; for a cancelled job, nothing
            happens.
          ServerUnavailableError: the queue cannot be written.
        """
        with self._lock:
            job = self._find_job(job_id)
            if job.state is JobState.CANCELLED:  # the first reply was lost
                return
            if job.state.has_ended:
                raise RefusedAttemptError(
                    f"job {job_id} has already ended: {job.state}; only a job that is queued or "
                    "running can be cancelled"
                )
            attempt = job.attempt if job.state is JobState.RUNNING else None
            self._queue.cancel(job)
            logger.info("job %d: cancelled", job.id)
            slave = self._slaves.get(job.slave)
            if attempt is not None and slave is not None and slave.attempt == attempt:
                self._close(slave, attempt)

    # Slaves.

    def poll(
        self, request: pb.PollRequest, on_end: Callable[[Callable[[], None]], bool]
    ) -> pb.PollReply:
        """Records that a slave is alive and what it runs; waits for tasks, and returns them.

        Waits at most `wait_ms`, and never longer than `POLL_SEC` or a third of `silence_sec`.

        Args:
          request: of the right format; everything else is checked here.
          on_end: registers a callback for the end of the call; returns False if the call has
            already ended.

        Raises:
          NameInUseError: another process uses the slave's name.
          QueueFullError: there are too many slaves.
          InvalidInputError: a field is not valid.
          ServerUnavailableError: the slave was restarted or no longer runs its attempt, but the
            queue cannot be written.
        """
        _validate_poll(request)
        wait_sec = min(request.wait_ms / 1000, POLL_SEC, self._silence_sec / 3)
        deadline = self._clock() + wait_sec
        with self._lock:
            slave = self._welcome(request)
            if request.sequence <= slave.sequence:
                return pb.PollReply(coordinator=self.incarnation)
            slave.sequence = request.sequence
            self._reconcile(slave, request)
            self._assign()
            slave.is_connected = True

        answered = threading.Event()

        def note_end() -> None:
            """Notes the end of the call: the reply was sent, or the connection ended before."""
            with self._lock:
                if not answered.is_set() and slave.sequence == request.sequence:
                    slave.is_connected = False
            slave.changed.set()

        if not on_end(note_end):
            note_end()
        tasks = self._wait_for_tasks(slave, request, deadline)
        answered.set()
        return pb.PollReply(coordinator=self.incarnation, tasks=_select_tasks(tasks))

    def _wait_for_tasks(
        self, slave: _Slave, request: pb.PollRequest, deadline: float
    ) -> list[pb.Task]:
        """Waits until there are tasks, the poll is over or another one has begun."""
        seen = request.last_task if request.coordinator == self.incarnation else 0
        while True:
            with self._lock:
                slave.changed.clear()
                tasks = [task.message for number, task in slave.tasks.items() if number > seen]
                ended = not slave.is_connected or slave.sequence != request.sequence
            left = deadline - self._clock()
            if tasks or ended or left <= 0 or self._closing.is_set():
                return tasks
            slave.changed.wait(left)

    def report(self, request: pb.ReportRequest) -> bool:
        """Records results of tasks, and the end of an attempt.

        Returns:
          Whether an end was recorded; False: the request has none, or that of an attempt that is
          not the newest one of a running job on this slave.

        Raises:
          InvalidInputError: a field is not valid.
          ServerUnavailableError: the queue cannot be written; the slave reports again.
        """
        with self._lock:
            slave = self._find_slave(request.slave, request.incarnation)
            for result in request.results:
                if slave is not None and result.coordinator == self.incarnation:
                    self._record_result(slave, result)
            if not request.HasField("ended"):
                return False
            accepted = self._end(request.slave, request.ended)
            if slave is not None:
                slave.last_seen = self._clock()
                is_learner = not request.ended.attempt.collector
                if accepted and is_learner and request.ended.outcome == pb.Ended.STOPPED:
                    slave.runs_jobs = False  # it leaves, unless its next poll says otherwise
                if slave.attempt == Attempt.of(request.ended.attempt):
                    self._free(slave)
            self._assign()
            return accepted

    def leave(self, name: str, incarnation: int) -> None:
        """Forgets a slave that ends; its job is queued again, or fails; see `JobQueue.end`.

        Raises:
          ServerUnavailableError: the queue cannot be written; the slave is not forgotten.
        """
        with self._lock:
            slave = self._find_slave(name, incarnation)
            if slave is not None:
                self._drop(slave, "its slave left")
                self._assign()

    def receive_version(self, header: pb.VersionHeader, parts: Iterator[pb.VersionPart]) -> int:
        """Stores a version of an attempt; returns its number once it is recorded.

        Args:
          header: of the version.
          parts: all messages, the header first.

        Raises:
          RefusedAttemptError: the attempt is not the newest one of a running job, or belongs to
            another slave.
          InvalidInputError: the version is incomplete, damaged or too large, or a message is not
            valid.
          ServerUnavailableError: the version or the queue cannot be written; the slave can send the
            version again.
          Exception: an error of `parts`, such as the end of the call.
        """
        attempt = Attempt.of(header.attempt)
        with self._lock:
            self._require_newest(attempt, header.slave)
        received = self._versions.receive(attempt, parts)
        with self._lock:
            try:
                job = self._require_newest(attempt, header.slave)
            except RefusedAttemptError:
                self._versions.discard(received)
                raise
            self._versions.install(job, received)
            number = self._queue.add_version(attempt, header.step)
            self._versions.keep_newest(job)
            self._note_progress(header.slave)
        logger.info("%s: version %d, step %d", attempt, number, header.step)
        return number

    def find_version(self, request: pb.GetVersionRequest) -> Path:
        """Returns the folder of the version from which an attempt continues.

        Raises:
          RefusedAttemptError: the attempt is not the newest one of a running job, belongs to
            another slave, or has no version.
        """
        with self._lock:
            job = self._require_newest(Attempt.of(request.attempt), request.slave)
            folder = self._versions.find_folder(job)
        if folder is None:
            raise RefusedAttemptError(
                f"job {job.id} has no version yet; train it from the beginning"
            )
        return folder

    def send_task(
        self, slave_name: str, task: str, payload: Mapping[str, Any]
    ) -> Future[dict[str, Any]]:
        """Sends a task to a slave; returns a future with the result of the slave's callback.

        The future fails with `TaskFail` if the slave refuses the task, answers with a result that
        is not valid, does not answer in the task's time (`tasks.TASK_TIMEOUT_SEC`), or is lost.
        `close` cancels it; after `close`, it is cancelled at once.

        Args:
          slave_name: of the slave.
          task: name of the task, see `tasks`.
          payload: arguments of the task, of JSON types.

        Raises:
          InvalidInputError: there is no such slave, it has too many open tasks, or the payload is
            too large.
          TypeError: the payload contains a value that JSON cannot represent.
        """
        with self._lock:
            slave = self._slaves.get(slave_name)
            if slave is None:
                known = "no slave is connected"
                if self._slaves:
                    more = ", ..." if len(self._slaves) > _MAX_SHOWN else ""
                    known = f"connected: {', '.join([*self._slaves][:_MAX_SHOWN])}{more}"
                raise InvalidInputError(
                    f"slave {slave_name!r:.120} is not known ({known}); start it, or correct its "
                    "name"
                )
            if len(slave.tasks) >= _MAX_OPEN_TASKS:
                raise InvalidInputError(
                    f"slave {slave.name} has {len(slave.tasks)} unanswered tasks, the maximum; "
                    "wait for an answer before you send another one"
                )
            result = self._send(slave, task, payload).result
            if self._closing.is_set():  # nobody answers it any more, or notices its time limit
                result.cancel()
            return result

    # With the lock held: slaves.

    def _welcome(self, request: pb.PollRequest) -> _Slave:
        slave = self._slaves.get(request.slave)
        if slave is not None and slave.incarnation != request.incarnation:
            if slave.is_connected:
                raise NameInUseError(
                    f"slave: the name {slave.name!r} is used by another process; stop that one, or "
                    "choose another name (`relaax jobs work --name`, or `cfg.name` of a comm "
                    "learner)"
                )
            self._drop(slave, "its slave was restarted")
            slave = None
        if slave is None:
            if len(self._slaves) >= MAX_SLAVES:
                raise QueueFullError(
                    f"{MAX_SLAVES} slaves are connected, the maximum of a coordinator; stop one, "
                    "or use another coordinator"
                )
            slave = _Slave(request.slave, request.incarnation, self._clock(), request)
            self._slaves[slave.name] = slave
            logger.info("slave %s joined", slave.name)
        slave.last_seen = self._clock()
        slave.algorithms = frozenset(request.algorithms)
        slave.environments = frozenset(request.environments)
        slave.runs_jobs = request.runs_jobs
        slave.said = request
        return slave

    def _reconcile(self, slave: _Slave, request: pb.PollRequest) -> None:
        """Compares the attempt that a slave runs with the attempt that it was assigned."""
        running = Attempt.of(request.running) if request.HasField("running") else None
        if running is None:
            if slave.attempt is not None and slave.is_confirmed:
                self._lose(slave.attempt, f"slave {slave.name} no longer runs it")
                self._free(slave)
            return
        if slave.attempt is None:
            # It ran this before it lost the connection, or before the coordinator was restarted.
            slave.attempt, slave.is_confirmed = running, True
            slave.progress_at = self._clock()
        if slave.attempt != running or not self._is_of(running, slave.name):
            names = (CLOSE, COLLECTOR_CLOSE)
            is_asked = any(task.message.name in names for task in slave.tasks.values())
            if not is_asked and slave.closing != running:
                self._close(slave, running)
            return  # what else it says can be of the attempt before
        if request.address:
            slave.addresses = _read_addresses(request)
        if request.progress and request.progress != slave.progress:
            slave.progress = request.progress
            slave.progress_at = self._clock()
            self._failures.pop(running.job, None)

    def _is_of(self, attempt: Attempt, slave_name: str) -> bool:
        job = self._queue.get(attempt.job)
        if job is None or not self._queue.is_newest(attempt.of_learner):
            return False
        if attempt.collector:  # `_assign_collectors` closes a second one
            return attempt.collector <= job.collectors
        return job.slave == slave_name

    def _find_slave(self, name: str, incarnation: int) -> _Slave | None:
        slave = self._slaves.get(name)
        return slave if slave is not None and slave.incarnation == incarnation else None

    def _free(self, slave: _Slave) -> None:
        slave.attempt, slave.is_confirmed, slave.progress = None, False, ""
        slave.closing, slave.addresses = None, {}

    def _drop(self, slave: _Slave, reason: str) -> None:
        logger.info("slave %s: %s", slave.name, reason)
        if slave.attempt is not None and self._is_of(slave.attempt, slave.name):
            self._lose(slave.attempt, reason)
        self._free(slave)
        for task in slave.tasks.values():
            if task.result.set_running_or_notify_cancel():
                error = TaskFail.because(
                    f"the task {task.message.name} of slave {slave.name} was not answered: "
                    f"{reason}; try again once the slave is connected"
                )
                task.result.set_exception(error)
        slave.tasks.clear()
        slave.is_connected = False
        slave.changed.set()
        del self._slaves[slave.name]

    def _note_progress(self, slave_name: str) -> None:
        slave = self._slaves.get(slave_name)
        if slave is not None:
            slave.last_seen = slave.progress_at = self._clock()

    # With the lock held: jobs.

    def _find_job(self, job_id: int) -> Job:
        job = self._queue.get(job_id)
        if job is None:
            raise NoSuchJobError(f"there is no job {job_id}; `relaax jobs list` shows all")
        return job

    def _assign(self) -> None:
        """Assigns collectors and queued jobs to free slaves that have algorithm and environment.

        A job with collectors does not start without a slave for one of them, and takes none away
        from a running one that has no collector.
        """
        lonely = self._assign_collectors()
        free = [slave for slave in self._slaves.values() if slave.is_free]
        if len(free) <= lonely:
            return
        for job in self._queue.list_queued():
            able = next(
                (slave for slave in free if self._can_start(job, slave, free, lonely)), None
            )
            if able is None:
                continue
            free.remove(able)
            try:
                self._start(job, able)
            except ServerUnavailableError as error:
                self._log_unwritable(error)
                return
            lonely += bool(job.collectors)
            if len(free) <= lonely:
                return

    def _can_start(self, job: Job, slave: _Slave, free: Sequence[_Slave], lonely: int) -> bool:
        if not slave.has(job):
            return False
        if not job.collectors:
            return True
        return len(free) > lonely + 1 and any(
            one is not slave and one.has(job) and one.reaches(slave) for one in free
        )

    def _start(self, job: Job, slave: _Slave) -> None:
        attempt = self._queue.begin(job, slave.name)
        more = {"has_version": bool(job.version), "collectors": job.collectors}
        self._give(slave, attempt, START, job, more)
        logger.info("%s: %s starts on slave %s", attempt, job.name, slave.name)

    def _give(
        self, slave: _Slave, attempt: Attempt, task: str, job: Job, more: Mapping[str, Any]
    ) -> None:
        """Assigns an attempt to a slave, and sends the task to start it."""
        slave.attempt, slave.is_confirmed = attempt, False
        slave.progress, slave.progress_at = "", self._clock()
        config = json.loads(job.config)
        payload = {"job": attempt.job, "attempt": attempt.number, "config": config, **more}
        self._send(slave, task, payload).attempt = attempt

    # With the lock held: collectors.

    def _assign_collectors(self) -> int:
        """Starts and closes collectors; returns how many jobs run without any."""
        learners, playing = [], set()
        for slave in self._slaves.values():
            attempt = slave.attempt
            if attempt is None:
                continue
            if not attempt.collector:
                learners.append((attempt, slave))
            elif self._is_of(attempt, slave.name) and attempt not in playing:
                playing.add(attempt)
            elif slave.closing != attempt:
                self._close(slave, attempt)
        lonely = 0
        for attempt, learner in learners:
            job = self._queue.get(attempt.job)
            if job is None or not job.collectors or not self._is_of(attempt, learner.name):
                continue
            every = [Attempt(job.id, job.attempts, n) for n in range(1, job.collectors + 1)]
            missing = [one for one in every if one not in playing]
            started = self._collect(job, learner, missing)
            if len(missing) - started == job.collectors:
                lonely += 1
                if not self._failures.get(job.id, _NONE)[0]:  # it waits, which is not its fault
                    learner.progress_at = self._clock()
        return lonely

    def _collect(self, job: Job, learner: _Slave, missing: Sequence[Attempt]) -> int:
        """Starts collectors of a running job on free slaves; returns how many."""
        if not learner.addresses or self._clock() < self._failures.get(job.id, _NONE)[1]:
            return 0
        able = [
            one
            for one in self._slaves.values()
            if one.is_free and one.has(job) and one.reaches(learner)
        ]
        for attempt, slave in zip(missing, able, strict=False):
            more = {"collector": attempt.collector, **learner.addresses}
            self._give(slave, attempt, COLLECTOR_START, job, more)
            logger.info("%s: starts on slave %s", attempt, slave.name)
        return min(len(missing), len(able))

    def _close(self, slave: _Slave, attempt: Attempt) -> None:
        """Requests the end of an attempt, or of a collector, on a slave."""
        payload: dict[str, Any] = {"job": attempt.job, "attempt": attempt.number}
        if attempt.collector:
            slave.closing = attempt
            payload["collector"] = attempt.collector
            # Otherwise the job wants fewer collectors: this one can end its episodes.
            payload["at_once"] = not self._queue.is_newest(attempt.of_learner)
        self._send(slave, COLLECTOR_CLOSE if attempt.collector else CLOSE, payload)

    def _note_collector_failure(self, attempt: Attempt, reason: str) -> None:
        """Notes that a collector has failed; so many in a row fail the job's attempt."""
        count = self._failures.get(attempt.job, _NONE)[0] + 1
        pause = min(0.5 * 2 ** (count - 1), _MAX_COLLECTOR_PAUSE_SEC)
        self._failures[attempt.job] = count, self._clock() + pause, reason
        logger.warning("%s: %s", attempt, reason)
        job = self._find_job(attempt.job)
        if count >= max(_MIN_COLLECTOR_FAILURES, 2 * job.collectors):
            reason = f"{count} of its collectors failed in a row: {reason}"[:MAX_REASON]
            logger.warning("%s: %s", attempt.of_learner, reason)
            self._queue.end(attempt.of_learner, JobState.FAILED, reason, "")
            del self._failures[attempt.job]
            if (learner := self._slaves.get(job.slave)) is not None:
                self._close(learner, attempt.of_learner)

    def _lose(self, attempt: Attempt, reason: str) -> None:
        """Ends an attempt whose slave is lost; see `JobQueue.end`. Ignores older attempts."""
        if attempt.collector:
            logger.warning("%s: %s", attempt, reason)
        elif self._queue.is_newest(attempt):
            self._queue.end(attempt, JobState.QUEUED, reason, "")
            logger.warning(
                "%s: %s; the job is %s", attempt, reason, self._find_job(attempt.job).state
            )

    def _require_newest(self, attempt: Attempt, slave_name: str) -> Job:
        job = self._queue.get(attempt.job)
        if job is None or not self._is_of(attempt, slave_name):
            raise RefusedAttemptError(
                f"{attempt}: not the newest attempt of a running job on slave "
                f"{slave_name[:100]!r}, so its requests are refused; the slave must end the attempt"
            )
        return job

    def _end(self, slave_name: str, ended: pb.Ended) -> bool:
        attempt = Attempt.of(ended.attempt)
        states = {
            pb.Ended.DONE: JobState.DONE,
            pb.Ended.FAILED: JobState.FAILED,
            pb.Ended.STOPPED: JobState.QUEUED,
        }
        if ended.outcome not in states:
            known = ", ".join(f"{number} ({pb.Ended.Outcome.Name(number)})" for number in states)
            raise InvalidInputError(
                f"ended.outcome: {ended.outcome} is unknown, expected one of {known}; update the "
                "slave or the coordinator"
            )
        reason = validate_size(ended.reason, MAX_REASON, "ended.reason")
        tail = validate_size(ended.tail, MAX_TAIL_BYTES, "ended.tail")
        if not self._is_of(attempt, slave_name):
            if not attempt.collector:  # it was asked to end
                logger.info("%s: the result of slave %s is refused", attempt, slave_name)
            return False
        if attempt.collector:
            if ended.outcome == pb.Ended.FAILED:
                end = f"; its last line: {tail.splitlines()[-1]}" if tail.strip() else ""
                self._note_collector_failure(attempt, f"{reason}{end}")
            elif ended.outcome == pb.Ended.DONE:
                self._failures[attempt.job] = 0, self._clock() + _AFTER_END_SEC, ""
            return True
        self._queue.end(attempt, states[ended.outcome], reason, tail)
        job = self._queue.get(attempt.job)
        assert job is not None
        logger.info("%s: %s: %s", attempt, job.state, job.reason)
        return True

    def _describe(self, job: Job, in_full: bool) -> pb.JobInfo:
        folder = self._versions.find_folder(job)
        info = pb.JobInfo(
            job=job.id,
            name=job.name,
            state=job.state.upper(),
            attempts=job.attempts,
            slave=job.slave,
            version=job.version,
            step=job.step,
            folder="" if folder is None else str(folder),
            reason=job.reason or self._explain(job),
            collectors=job.collectors,
            collecting=sum(
                one.attempt is not None
                and one.attempt.collector > 0
                and one.attempt.of_learner == job.attempt
                for one in self._slaves.values()
            ),
        )
        slave = self._slaves.get(job.slave)
        if job.state is JobState.RUNNING and slave is not None and slave.attempt == job.attempt:
            info.progress = slave.progress
        if in_full:
            info.tail, info.config = job.tail, job.config
        return info

    def _explain(self, job: Job) -> str:
        if job.state is not JobState.QUEUED:
            count, _, reason = self._failures.get(job.id, _NONE)
            return f"a collector failed: {reason}"[:MAX_REASON] if count else ""
        runners = [slave for slave in self._slaves.values() if slave.runs_jobs]
        if not runners:
            return "no slave that runs jobs is connected"
        for what, name in (("algorithms", job.algorithm), ("environments", job.environment)):
            if not any(name in getattr(slave, what) for slave in runners):
                return f"no connected slave has {name!r} among its {what}"
        if job.collectors:
            return (
                f"no two slaves with {job.algorithm!r} and {job.environment!r} are free, for its "
                "learner and a collector that reaches it"
            )
        return f"no slave with {job.algorithm!r} and {job.environment!r} is free"

    # With the lock held: tasks.

    def _send(self, slave: _Slave, name: str, payload: Mapping[str, Any]) -> _OpenTask:
        field_name = f"payload of the task {name:.80}"
        text = validate_size(json.dumps(payload), MAX_PAYLOAD_BYTES, field_name, _SHRINK)
        message = pb.Task(id=self._next_task, name=name, payload=text)
        self._next_task += 1
        deadline = self._clock() + _get_timeout_sec(name)
        task = slave.tasks[message.id] = _OpenTask(message, Future(), deadline)
        slave.changed.set()
        return task

    def _record_result(self, slave: _Slave, result: pb.TaskResult) -> None:
        task = slave.tasks.get(result.task)
        if task is None:
            return
        try:
            payload = _read_object(result.payload, "results.payload")
        except InvalidInputError as error:
            message = (
                f"slave {slave.name} answered the task {task.message.name} with a result that is "
                f"not valid: {error}"
            )
            self._finish_task(slave, task, False, {"message": message})
            raise
        self._finish_task(slave, task, result.ok, payload)

    def _finish_task(
        self, slave: _Slave, task: _OpenTask, is_done: bool, payload: dict[str, Any]
    ) -> None:
        if not is_done and not payload.get("message"):
            name = task.message.name
            message = f"slave {slave.name} failed the task {name}; see the log of the slave"
            payload = {**payload, "message": message}
        if task.attempt is not None and slave.attempt == task.attempt:
            if is_done:
                slave.is_confirmed = True
                if payload.get("address"):
                    said: dict[str, Any] = {
                        key: str(payload[key]) for key in _ADDRESSES if key in payload
                    }
                    found = pb.PollRequest(host=slave.said.host, **said)
                    _validate_addresses(found)
                    slave.addresses = _read_addresses(found)
                    self._assign()
            else:
                self._fail_start(slave, task.attempt, payload)
        # Not before: if the queue cannot be written, the slave reports the result again.
        del slave.tasks[task.message.id]
        if not task.result.set_running_or_notify_cancel():
            return
        if is_done:
            task.result.set_result(payload)
        else:
            task.result.set_exception(TaskFail(payload, str(payload["message"])))

    def _fail_start(self, slave: _Slave, attempt: Attempt, payload: Mapping[str, Any]) -> None:
        if attempt.collector:
            if not payload.get("busy") and self._is_of(attempt, slave.name):
                self._note_collector_failure(attempt, str(payload["message"])[:MAX_REASON])
        elif self._is_of(attempt, slave.name):
            reason = f"slave {slave.name} could not start it: {payload['message']}"[:MAX_REASON]
            state = JobState.QUEUED if payload.get("busy") else JobState.FAILED
            self._queue.end(attempt, state, reason, "")
            logger.warning("%s: %s", attempt, reason)
        if payload.get("busy"):
            slave.runs_jobs = False  # until its next poll says otherwise
        self._free(slave)
        self._assign()

    def _log_unwritable(self, error: ServerUnavailableError) -> None:
        """Logs that the queue cannot be written; at most one line in ten seconds."""
        if self._clock() >= self._next_line:
            self._next_line = self._clock() + _LOG_SEC
            logger.error("%s; retrying", error)

    # Time limits.

    def _watch(self) -> None:
        while not self._closing.wait(_WATCH_SEC):
            with self._lock:
                try:
                    self._check_limits()
                except ServerUnavailableError as error:
                    self._log_unwritable(error)

    def _check_limits(self) -> None:
        now = self._clock()
        for slave in list(self._slaves.values()):
            if now - slave.last_seen > self._silence_sec:
                self._drop(slave, f"its slave was silent for {self._silence_sec:g} s")
                continue
            self._check_tasks(slave, now)
            attempt = slave.attempt
            if (
                attempt is not None
                and not attempt.collector
                and slave.is_confirmed
                and now - slave.progress_at > self._stall_sec
                and self._is_of(attempt, slave.name)
            ):
                reason = f"no progress for {self._stall_sec:g} s on slave {slave.name}"
                self._queue.end(attempt, JobState.FAILED, reason, "")
                logger.warning("%s: %s", attempt, reason)
                self._close(slave, attempt)
        if now - self._started > self._silence_sec:
            self._queue_lost_jobs()
        self._assign()

    def _check_tasks(self, slave: _Slave, now: float) -> None:
        for number, task in list(slave.tasks.items()):
            if now <= task.deadline:
                continue
            name = task.message.name
            limit = f"{_get_timeout_sec(name):g} s"
            reason = f"slave {slave.name} did not answer the task {name} within {limit}"
            if task.attempt is not None and slave.attempt == task.attempt:
                self._lose(task.attempt, reason)
                if not slave.is_confirmed:
                    self._free(slave)
            elif name == COLLECTOR_CLOSE:
                slave.closing = None  # to be asked again
            # Not before: if the queue cannot be written, the next look finds the task again.
            del slave.tasks[number]
            if task.result.set_running_or_notify_cancel():
                error = TaskFail.because(f"{reason}; see the log of the slave")
                task.result.set_exception(error)

    def _queue_lost_jobs(self) -> None:
        """Queues jobs again whose slaves did not return after a restart of the coordinator."""
        for job in list(self._queue):
            if job.state is not JobState.RUNNING:
                continue
            slave = self._slaves.get(job.slave)
            if slave is None or slave.attempt != job.attempt:
                self._lose(job.attempt, f"slave {job.slave} did not return")


def _get_timeout_sec(task: str) -> float:
    return TASK_TIMEOUT_SEC.get(task, min(TASK_TIMEOUT_SEC.values()))


def _select_tasks(tasks: Sequence[pb.Task]) -> list[pb.Task]:
    """Returns the first tasks that one reply can have; the others are in the next one."""
    selected, size = [], 0
    for task in tasks[:_TASKS_PER_REPLY]:
        size += task.ByteSize()
        if size > _REPLY_BYTES:
            break
        selected.append(task)
    return selected


def _validate_poll(request: pb.PollRequest) -> None:
    """Checks the fields of a poll, before it has any effect.

    Raises:
      InvalidInputError: a field is not valid.
    """
    _validate_names(request.algorithms, "algorithms")
    _validate_names(request.environments, "environments")
    validate_size(request.progress, _MAX_PROGRESS_BYTES, "progress")
    for field_name in ("host", "machine"):
        validate_size(getattr(request, field_name), _MAX_HOST, field_name)
    _validate_addresses(request)


def _read_addresses(request: pb.PollRequest) -> dict[str, str]:
    return {key: text for key in _ADDRESSES if (text := getattr(request, key))}


def _validate_addresses(request: pb.PollRequest) -> None:
    """Checks where collectors connect, who show their token there: on their machine, or the host's.

    Raises:
      ConfigError, InvalidInputError: one is not such an address.
    """
    host = request.host
    for key, text in _read_addresses(request).items():
        address = parse_address(validate_size(text, _MAX_HOST, key))
        if address.host != host and not (address.is_loopback and not host):
            raise InvalidInputError(
                f"{key}: {text:.80}, expected one of {host or 'a loopback interface'}; update the "
                "slave"
            )


def _validate_names(names: Sequence[str], field_name: str) -> None:
    if len(names) > 1000:
        raise InvalidInputError(f"{field_name}: {len(names)} names, expected at most 1000")
    for name in names:
        validate_name(name, field_name)


def _read_object(text: str, field_name: str) -> dict[str, Any]:
    validate_size(text, MAX_PAYLOAD_BYTES, field_name, _SHRINK)
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInputError(
            f"{field_name}: {text[:80]!r}, expected a JSON object; correct or update the slave"
        )
    return value
