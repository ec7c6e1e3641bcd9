"""Slave: a resident process that connects to a coordinator and does the tasks that it receives.

The slave opens no port. It polls: each poll is its heartbeat, reports what it runs, and returns
tasks. Lost messages are repeated: each poll reports the current state, and results are sent until
they are acknowledged.
"""

import abc
import json
import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from relaax_like.addons.coordinator.client import CoordinatorLink
from relaax_like.addons.coordinator.job import (
    FORMAT,
    MAX_ATTEMPT,
    MAX_JOB,
    MAX_PAYLOAD_BYTES,
    Attempt,
    validate_name,
    validate_size,
)
from relaax_like.addons.coordinator.tasks import (
    CLOSE,
    COLLECTOR_CLOSE,
    COLLECTOR_START,
    GET_DATA,
    LEARN,
    RESOURCE,
    START,
    NameInUseError,
    RefusedAttemptError,
    TaskFail,
)
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import (
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.security import ClientSecurity

logger = logging.getLogger(__name__)

_POLL_SEC = 10.0
_CALL_SEC = 10.0
_LONGEST_PAUSE_SEC = 5.0
# A restarted slave takes its name over once the coordinator has noticed the end of the old one.
_NAME_SEC = 60.0
_MAX_TASKS = 64

_IDS = ("job", "attempt", "collector")
_STARTS, _CLOSES = (START, COLLECTOR_START), (CLOSE, COLLECTOR_CLOSE)
Callbacks = Mapping[str, Callable[..., Any]]
# Task -> the callback that does it, by DI-engine's names.
CALLBACKS = {
    RESOURCE: "deal_with_resource",
    START: "deal_with_learner_start",
    GET_DATA: "deal_with_get_data",
    LEARN: "deal_with_learner_learn",
    CLOSE: "deal_with_learner_close",
    COLLECTOR_START: "deal_with_collector_start",
    COLLECTOR_CLOSE: "deal_with_collector_close",
}


class Doing(NamedTuple):
    """What a slave does now.

    Attributes:
      attempt: that it runs, or whose collector it is; None: none.
      progress: of the attempt, as JSON; "": unknown.
      addresses: field of `PollRequest` -> HOST:PORT where its collectors connect; empty: unknown,
        or it needs none.
    """

    attempt: Attempt | None = None
    progress: str = ""
    addresses: Mapping[str, Any] = MappingProxyType({})


class Slave(Closing, abc.ABC):
    """A session with a coordinator. A subclass defines `_process_task`. A context manager.

        slave = MySlave("localhost:7004", "slave-1")
        slave.start()
        slave.ended.wait()     # set after an error that a retry does not cure, and by close()
        slave.close()

    Tasks are done in order, in one thread. Tasks that wait for a learner (`learner_get_data_task`
    and `learner_learn_task`) are done in another thread, so that a learner that waits can be
    closed.

    Args:
      address: HOST:PORT of the coordinator.
      name: of the slave, unique at the coordinator.
      security: token of role learner, and certificates; None: no token and no TLS.
      algorithms: names of the algorithms that the slave has.
      environments: names of the environments that the slave has.
      runs_jobs: whether the coordinator can assign jobs of the queue to the slave.
      get_doing: returns what the slave does now.
      claims: fields of `PollRequest` that say what else the slave can do.

    Attributes:
      name: as the argument.
      ended: set once the session has ended.
      error: the error that ended the session, such as a refusal of the coordinator; None: there
        was none.
      link: the connection to the coordinator.
      incarnation: random number of this session.

    Raises:
      InvalidInputError: the name is not valid.
      ConfigError: `address` is not HOST:PORT, or a file that `security` names cannot be used.
    """

    def __init__(
        self,
        address: str,
        name: str,
        security: ClientSecurity | None = None,
        algorithms: Sequence[str] = (),
        environments: Sequence[str] = (),
        runs_jobs: bool = False,
        get_doing: Callable[[], Doing] = Doing,
        claims: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.name = validate_name(name, "name")
        self.ended = threading.Event()
        self.error: RelaaxError | None = None
        self.link = CoordinatorLink(address, security)
        self.incarnation = random.getrandbits(64) | 1
        self._algorithms = list(algorithms)
        self._environments = list(environments)
        self._runs_jobs = runs_jobs
        self._get_doing = get_doing
        self._claims = claims
        # Received, and not yet confirmed: a poll must not say that nothing runs.
        self._starting: Attempt | None = None
        self._coordinator = 0  # whose tasks are numbered up to:
        self._last_task = 0
        self._sequence = 0
        self._is_reachable = True
        self._lanes: dict[bool, queue.Queue[tuple[int, pb.Task] | None]] = {
            waits: queue.Queue(_MAX_TASKS) for waits in (False, True)
        }
        self._threads = [
            threading.Thread(target=self._poll_loop, name="coordinator poll", daemon=True),
            *(
                threading.Thread(target=self._work, args=(lane,), name="tasks", daemon=True)
                for lane in self._lanes.values()
            ),
        ]

    @abc.abstractmethod
    def _process_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """Does a task; returns the result, of JSON types and at most 512 KiB as JSON.

        Args:
          task: the payload, and the task's name with the key `name`.

        Raises:
          TaskFail: the task cannot be done.
        """

    def start(self) -> None:
        """Starts the session; call this once. The coordinator need not be running yet."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Leaves the coordinator, if it answers, and ends the session. Idempotent."""
        if not self.ended.is_set():
            self.ended.set()
            try:
                self.link.call(self.link.stub.Leave, pb.LeaveRequest(**self._sign()), 2.0)
            except RelaaxError as error:
                logger.debug("%s", error)
        for lane in self._lanes.values():
            try:
                lane.put_nowait(None)
            except queue.Full:
                continue
        self.link.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def stop_taking_jobs(self) -> None:
        """Reports, with the next poll, that the slave takes no more jobs."""
        self._runs_jobs = False

    def report_end(self, attempt: Attempt, outcome: int, reason: str, tail: str) -> bool:
        """Reports the end of an attempt, and retries until the report is acknowledged.

        Args:
          attempt: the attempt that has ended.
          outcome: number of a `relaax.v1.Ended.Outcome`.
          reason: why the attempt ended; at most `job.MAX_REASON` bytes.
          tail: end of the attempt's output; at most `job.MAX_TAIL_BYTES`.

        Returns:
          Whether the end was recorded; False: the attempt is no longer the job's newest one, the
          coordinator refused the report, or the session has ended.

        Raises:
          ValueError: `outcome` is not such a number.
        """
        name = pb.Ended.Outcome.Name(outcome)
        ended = pb.Ended(attempt=attempt.to_message(), outcome=name, reason=reason, tail=tail)
        return self._report(pb.ReportRequest(ended=ended))

    def send_version(
        self, attempt: Attempt, step: int, make_parts: Callable[[Any], Iterator[Any]]
    ) -> int:
        """Sends a version, without retries; returns its number.

        Args:
          attempt: the attempt that made the version.
          step: environment steps of the version.
          make_parts: yields the messages; receives the header, which comes first.

        Raises:
          RefusedAttemptError: the attempt is not the newest one of a running job, or belongs to
            another slave.
          InvalidInputError: the version is too large, has too many files or a path that is too
            long, or a file was changed meanwhile.
          ServerUnavailableError: the coordinator does not answer, or cannot write the version.
          NotAllowedError, ProtocolError: see `CoordinatorLink.call`.
          OSError: a file cannot be read.
        """
        failures: list[OSError | InvalidInputError] = []

        def make() -> Iterator[Any]:
            # gRPC's thread reads on for a moment when the call has ended, and would print a trace.
            try:
                yield from make_parts(header)
            except (OSError, InvalidInputError) as error:
                failures.append(error)

        header = pb.VersionHeader(**self._sign(), attempt=attempt.to_message(), step=step)
        try:
            reply = self.link.call(self.link.stub.SendVersion, make(), 600.0)
        except InvalidInputError:
            if failures:  # so the version was incomplete
                raise failures[0] from None
            raise
        return int(reply.version)

    def get_version(self, attempt: Attempt) -> Iterator[Any]:
        """Yields the messages of the version that an attempt continues from.

        Raises:
          RefusedAttemptError: the attempt is not the newest one of a running job, belongs to
            another slave, or has no version.
          ServerUnavailableError: the coordinator does not answer, or cannot read the version.
          InvalidInputError, NotAllowedError, ProtocolError: see `CoordinatorLink.call`.
        """
        request = pb.GetVersionRequest(**self._sign(), attempt=attempt.to_message())
        return self.link.stream(self.link.stub.GetVersion, request, 600.0)

    # Threads.

    def _poll_loop(self) -> None:
        failures = 0
        began = time.monotonic()
        while not self.ended.is_set():
            try:
                self._poll()
                failures = 0
                began = time.monotonic()
                continue
            except NameInUseError as error:
                if time.monotonic() - began > _NAME_SEC:
                    self._give_up(error)
                    return
            except (NotAllowedError, InvalidInputError, ProtocolError) as error:
                self._give_up(error)
                return
            except ServerUnavailableError as error:
                if self._is_reachable and not self.ended.is_set():
                    logger.warning("the slave is not connected, retrying: %s", error)
                self._is_reachable = False
            except Exception as error:  # such as for a task that another version has made
                logger.exception("the session with the coordinator failed")
                self._give_up(
                    ProtocolError(
                        f"the session with the coordinator at {self.link.address} failed "
                        f"({type(error).__name__}: {error!s:.200}); see the stack trace in the "
                        "log, and use the same version of relaax_like at both ends"
                    )
                )
                return
            self.ended.wait(draw_pause_sec(failures, 0.2, _LONGEST_PAUSE_SEC))
            failures += 1

    def _poll(self) -> None:
        self._sequence += 1
        doing = self._get_doing()
        running = doing.attempt or self._starting
        request = pb.PollRequest(
            **self._sign(),
            sequence=self._sequence,
            algorithms=self._algorithms,
            environments=self._environments,
            progress=doing.progress,
            **doing.addresses,
            **self._claims,
            coordinator=self._coordinator,
            last_task=self._last_task,
            # The first answer comes at once, so that it is known whether there is a coordinator.
            wait_ms=int(1000 * _POLL_SEC) if self._coordinator and self._is_reachable else 0,
            runs_jobs=self._runs_jobs,
            running=None if running is None else running.to_message(),
        )
        reply = self.link.call(self.link.stub.Poll, request, _POLL_SEC + _CALL_SEC)
        if not self._is_reachable or not self._coordinator:
            logger.info("%s is connected to the coordinator at %s", self.name, self.link.address)
        self._is_reachable = True
        if reply.coordinator != self._coordinator:
            self._coordinator, self._last_task = reply.coordinator, 0
        for task in reply.tasks:
            if task.id > self._last_task:
                self._last_task = task.id
                self._queue_task(task)

    def _queue_task(self, task: pb.Task) -> None:
        """Queues a received task for the thread that does it."""
        lane = self._lanes[task.name in (GET_DATA, LEARN)]
        if task.name in _STARTS:
            self._starting = _find_attempt(task)
        try:
            lane.put_nowait((self._coordinator, task))
        except queue.Full:  # the coordinator notices that there is no result
            logger.error("%d tasks wait, the maximum; %s is dropped", _MAX_TASKS, task.name)
            if task.name in _STARTS:
                self._starting = None

    def _give_up(self, error: RelaaxError) -> None:
        self.error = error
        self.ended.set()

    def _work(self, lane: "queue.Queue[tuple[int, pb.Task] | None]") -> None:
        while (item := lane.get()) is not None:
            coordinator, task = item
            result = pb.TaskResult(task=task.id, coordinator=coordinator)
            result.ok, result.payload = self._do(task)
            self._report(pb.ReportRequest(results=[result]))
            if task.name in _STARTS:
                self._starting = None

    def _do(self, task: pb.Task) -> tuple[bool, str]:
        """Does a task; returns whether it was done, and the result as JSON."""
        is_done, failure = False, ""
        result: Mapping[str, Any]
        try:
            payload = json.loads(task.payload)
            result = self._process_task({**payload, "name": task.name})
            is_done = True
        except TaskFail as error:
            result, failure = error.result, f"{error!s:.1000}; "
        except Exception as error:
            logger.exception("the task %s failed", task.name)
            reason = f"{type(error).__name__}: {error}"
            result, failure = {"message": reason}, f"{reason:.1000}; "
        try:
            return is_done, _pack_result(result, f"result of the task {task.name:.80}")
        except InvalidInputError as error:
            message = f"{failure}{error}"
            logger.error("%s", message)
            return False, json.dumps({"message": message})

    def _sign(self) -> dict[str, Any]:
        """Returns the fields that all messages to the coordinator have."""
        return {"format": FORMAT, "slave": self.name, "incarnation": self.incarnation}

    def _report(self, request: pb.ReportRequest) -> bool:
        request.MergeFrom(pb.ReportRequest(**self._sign()))
        failures = 0
        while True:
            try:
                reply = self.link.call(self.link.stub.Report, request, _CALL_SEC)
                return bool(reply.accepted)
            except (
                RefusedAttemptError,
                InvalidInputError,
                NotAllowedError,
                ProtocolError,
            ) as error:
                logger.error("%s", error)
                return False
            except ServerUnavailableError as error:
                if not failures and not self.ended.is_set():
                    logger.warning("a report was not acknowledged, retrying: %s", error)
                if self.ended.wait(draw_pause_sec(failures, 0.2, _LONGEST_PAUSE_SEC)):
                    return False
                failures += 1


def _pack_result(result: Mapping[str, Any], field: str) -> str:
    """Returns the result of a task as JSON.

    Args:
      result: what the task's callback, or a `TaskFail`, has as the result.
      field: name of the result, for the error.

    Raises:
      InvalidInputError: JSON cannot represent the result, or it is too large.
    """
    try:
        text = json.dumps(result)
    except Exception as error:  # also one that a mapping of the callback raises
        raise InvalidInputError(
            f"{field}: cannot be sent as JSON ({type(error).__name__}: {error!s:.200}); use only "
            "JSON types, such as float(x) for a NumPy number x"
        ) from None
    cure = "send less, such as the name of a file that both ends can read"
    return validate_size(text, MAX_PAYLOAD_BYTES, field, cure)


def _find_attempt(task: pb.Task) -> Attempt | None:
    """Returns the attempt that a task starts; None: the task does not start a job of the queue."""
    payload = json.loads(task.payload)
    job, attempt, collector = (payload.get(key, 0) for key in _IDS)
    # A program of the coordinator can send any JSON as `job`, also a number that no job has.
    if not all(type(number) is int for number in (job, attempt, collector)):  # not bool
        return None
    if not (0 < job <= MAX_JOB and 0 < attempt <= MAX_ATTEMPT and 0 <= collector <= MAX_ATTEMPT):
        return None
    return Attempt(job, attempt, collector)


class LearnerSlave(Slave):
    """A slave that answers the tasks of learners and collectors with callbacks.

    The names are DI-engine's.

    | task | callback | result |
    |---|---|---|
    | `resource` | `deal_with_resource()` | the returned mapping, such as the number of GPUs |
    | `learner_start_task` | `deal_with_learner_start(task_info)` | `message`, and what it returns |
    | `learner_get_data_task` | `deal_with_get_data()` | the demand, task_id and buffer_id |
    | `learner_learn_task` | `deal_with_learner_learn(data)` | `info`, task_id and buffer_id |
    | `learner_close_task` | `deal_with_learner_close()` | `message` |
    | `collector_start_task` | `deal_with_collector_start(task_info)` | the same |
    | `collector_close_task` | `deal_with_collector_close(task)` | `message` |

    Any other task, and one without a callback, fails with `TaskFail`; a callback raises `TaskFail`
    to refuse a task. A close task that names another job, attempt or collector than the newest
    start task calls no callback.

    Args:
      address: HOST:PORT of the coordinator.
      name: of the slave, unique at the coordinator.
      callback_fn: name of a callback, as in the table -> callback.
      options: the other arguments of `Slave`, by name.

    Raises:
      InvalidInputError: the name is not valid.
      ConfigError: `address` is not HOST:PORT, or a file that `security` names cannot be used.
    """

    def __init__(self, address: str, name: str, callback_fn: Callbacks, **options: Any):
        super().__init__(address, name, **options)
        self._callback_fn = callback_fn
        self._task_info: Mapping[str, Any] = {}

    def _process_task(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        name, own = task["name"], self._task_info
        if name not in CALLBACKS:
            raise TaskFail.because(
                f"unknown task {name!r:.80}, expected one of {', '.join(CALLBACKS)}"
            )
        role = name.partition("_")[0]
        # Of an attempt that has ended meanwhile: what runs now is another one.
        if name in _CLOSES and any(
            task.get(key, own[key]) != own[key] for key in _IDS if key in own
        ):
            return {"message": f"{role} task has closed"}
        callback = self._callback_fn.get(CALLBACKS[name])
        if callback is None:
            raise TaskFail.because(
                f"slave {self.name} cannot do this task, because its callback_fn has no callback "
                f"{CALLBACKS[name]}; send the task to another slave"
            )
        if name in _STARTS:
            self._task_info = {key: value for key, value in task.items() if key != "name"}
            return {"message": f"{role} task has started", **(callback(self._task_info) or {})}
        named = {key: own.get(key) for key in ("task_id", "buffer_id")}
        if name == LEARN:
            return {**named, "info": callback(task.get("data"))}
        result = callback(task) if name == COLLECTOR_CLOSE else callback()
        if name in _CLOSES:
            return {"message": f"{role} task has closed"}
        return {**named, **result} if name == GET_DATA else dict(result)


def find_callbacks(owner: Any) -> Callbacks:
    """Returns the callbacks that an object has as methods."""
    return {name: getattr(owner, name) for name in CALLBACKS.values() if hasattr(owner, name)}
