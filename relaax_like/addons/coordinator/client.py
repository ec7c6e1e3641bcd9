"""Clients of the coordinator: `CoordinatorLink` for all calls, `JobsClient` for operators."""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from relaax_like.addons.coordinator.job import (
    FORMAT,
    MAX_CONFIG_BYTES,
    MAX_JOB,
    MAX_MESSAGE_BYTES,
    validate_collectors,
    validate_size,
)
from relaax_like.addons.coordinator.tasks import NameInUseError, RefusedAttemptError
from relaax_like.bridge import errors
from relaax_like.bridge.channel import make_channel
from relaax_like.config.address import parse_address
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.v1 import coordinator_pb2_grpc as pb_grpc
from relaax_like.wire.backoff import draw_pause_sec
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import (
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    ServerUnavailableError,
)
from relaax_like.wire.security import ClientSecurity
from relaax_like.wire.tls import find_tls_mistake

CALL_SEC = 10.0
T = TypeVar("T")


class CoordinatorLink(Closing):
    """A connection to one coordinator. Thread-safe. A context manager.

        with CoordinatorLink("localhost:7004", security) as link:
            reply = link.call(link.stub.List, pb.ListRequest(format=FORMAT))

    Args:
      address: HOST:PORT of the coordinator.
      security: token and certificates; None: no token and no TLS.

    Attributes:
      address: of the coordinator, HOST:PORT.
      stub: gRPC's stub, with the methods for `call` and `stream`.

    Raises:
      ConfigError: `address` is not HOST:PORT, or a file that `security` names cannot be used.
    """

    def __init__(self, address: str, security: ClientSecurity | None = None):
        self._where = parse_address(address)
        self.address = str(self._where)
        self._tls = None if security is None else security.tls
        self._channel = make_channel(self.address, security)
        self.stub = pb_grpc.CoordinatorStub(self._channel)

    def call(self, act: Callable[..., T], request: Any, timeout_sec: float = CALL_SEC) -> T:
        """Calls a method of the coordinator, and returns its reply.

        Args:
          act: method of `stub`.
          request: message, or iterator of messages.
          timeout_sec: longest wait.

        Raises:
          InvalidInputError: the request is not valid or too large, or there is no such job.
          NameInUseError: another process uses the slave's name.
          RefusedAttemptError: the state of the job does not allow the request.
          NotAllowedError: one end does not accept the token or certificate of the other, or only
            one end uses TLS.
          ServerUnavailableError: the coordinator does not answer, or cannot serve the request at
            present, so a retry can succeed; or `close` was called.
          ProtocolError: something else, or another version of the coordinator, listens at the
            address; or the coordinator failed.
        """
        # gRPC would answer RESOURCE_EXHAUSTED, as for too many calls, after which a retry helps.
        if isinstance(request, Message) and request.ByteSize() > MAX_MESSAGE_BYTES:
            raise InvalidInputError(
                f"{request.DESCRIPTOR.name}: a message of {request.ByteSize()} bytes, expected at "
                f"most {MAX_MESSAGE_BYTES}; shorten its longest field"
            )
        with self._translating():
            return act(request, timeout=timeout_sec)

    def stream(self, act: Callable[..., Any], request: Any, timeout_sec: float) -> Iterator[Any]:
        """Makes a call, and yields the messages of its reply.

        Arguments and exceptions are those of `call`; nothing is sent before the first iteration.
        """
        with self._translating():
            yield from act(request, timeout=timeout_sec)

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._channel.close()

    def _translating(self) -> contextlib.AbstractContextManager[None]:
        return errors.translate(self.address, "the coordinator", self._to_exception)

    def _to_exception(self, error: grpc.RpcError, address: str, server: str) -> Exception:
        details = error.details() or ""
        match error.code():
            case grpc.StatusCode.NOT_FOUND:
                return InvalidInputError(details, "")
            case grpc.StatusCode.FAILED_PRECONDITION:
                return RefusedAttemptError(details)
            case grpc.StatusCode.ALREADY_EXISTS:
                return NameInUseError(details)
            case grpc.StatusCode.UNAVAILABLE:
                if mistake := find_tls_mistake(self._where.host, self._where.port, self._tls):
                    return NotAllowedError(f"{server} at {address}: {mistake}")
            case grpc.StatusCode.UNIMPLEMENTED:
                return ProtocolError(
                    f"what listens at {address} is not a coordinator of this version of "
                    "relaax_like; use the address of a running `relaax jobs serve`, and the same "
                    "version of relaax_like at both ends"
                )
        return errors.to_exception(error, address, server)


class JobsClient(Closing):
    """Submits, lists and cancels jobs, for operators. A context manager.

        with JobsClient("localhost:7004") as jobs:
            number = jobs.submit("walk", make_job_config("walk.yaml"))
            jobs.list()
            jobs.cancel(number)

    Args:
      address: HOST:PORT of the coordinator.
      security: token of role operator, and certificates; None: no token and no TLS.
      patience_sec: how long calls are retried after a `ServerUnavailableError`.

    All methods that call the coordinator raise the errors of `CoordinatorLink.call`.

    Raises:
      ConfigError: `address` is not HOST:PORT, or a file that `security` names cannot be used.
    """

    def __init__(
        self, address: str, security: ClientSecurity | None = None, patience_sec: float = 5.0
    ):
        self._link = CoordinatorLink(address, security)
        self._patience_sec = patience_sec

    def submit(self, name: str, config: Mapping[str, Any], collectors: int = 0) -> int:
        """Submits a job once, even if a reply is lost; returns its id.

        Args:
          name: name of the job, for display.
          config: settings as `config.job_keys.make_job_config` returns them.
          collectors: number of other slaves that play for it, at most 255; 0: it plays itself.

        Raises:
          InvalidInputError: the name, the settings or `collectors` are not valid, or too long.
          ServerUnavailableError: there are too many jobs, or the coordinator cannot write its
            queue; or it does not answer, and then the job might have been submitted.
        """
        cure = "shorten its lists and mappings, such as environment.args"
        text = validate_size(json.dumps(config), MAX_CONFIG_BYTES, "config", cure)
        request = pb.SubmitRequest(
            format=FORMAT,
            key=secrets.token_hex(16),
            name=name,
            config=text,
            collectors=validate_collectors(collectors, 0),
        )
        return int(self._retry(self._link.stub.Submit, request).job)

    def list(self, job: int = 0) -> tuple[list[pb.JobInfo], list[pb.SlaveInfo]]:
        """Returns the jobs of the coordinator, in the order of their ids, and its slaves.

        Args:
          job: id of the only job to return, with its settings and the end of its output; 0: all
            jobs, without these.

        Raises:
          InvalidInputError: there is no job with this id.
          ServerUnavailableError: the coordinator does not answer.
        """
        _validate_id(job)
        jobs: list[pb.JobInfo] = []
        while True:
            after = jobs[-1].job if jobs else 0
            reply = self._retry(
                self._link.stub.List, pb.ListRequest(format=FORMAT, job=job, after=after)
            )
            jobs += reply.jobs
            if not reply.more:
                return jobs, list(reply.slaves)

    def set_collectors(self, job: int, collectors: int) -> None:
        """Changes the number of collectors of a job that waits or runs.

        Those that are removed play to the end of their episodes, for at most 10 s.

        Raises:
          InvalidInputError: there is no job with this id, or `collectors` is not 1 to 255.
          RefusedAttemptError: the job has ended, or was submitted without collectors.
          ServerUnavailableError: the coordinator does not answer, or cannot write its queue.
        """
        _validate_id(job)
        number = validate_collectors(collectors)
        request = pb.SetCollectorsRequest(format=FORMAT, job=job, collectors=number)
        self._retry(self._link.stub.SetCollectors, request)

    def cancel(self, job: int) -> None:
        """Cancels a job; for a cancelled job, nothing happens.

        Raises:
          InvalidInputError: there is no job with this id.
          RefusedAttemptError: the job is already done, or has failed.
          ServerUnavailableError: the coordinator does not answer, or cannot write its queue.
        """
        _validate_id(job)
        self._retry(self._link.stub.Cancel, pb.CancelRequest(format=FORMAT, job=job))

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._link.close()

    def _retry(self, act: Callable[..., T], request: Any) -> T:
        deadline = time.monotonic() + self._patience_sec
        attempt = 0
        while True:
            try:
                return self._link.call(act, request)
            except ServerUnavailableError:
                pause = draw_pause_sec(attempt, 0.1, 1.0)
                if time.monotonic() + pause > deadline:
                    raise
                time.sleep(pause)
                attempt += 1


def _validate_id(job: int) -> None:
    if not 0 <= job <= MAX_JOB:  # a message could not hold it
        raise InvalidInputError(f"there is no job {job!s:.40}; `relaax jobs list` shows all", "job")
