"""The `relaax.v1.Experience` service: receives rollouts, and sends progress and values."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

import grpc

from relaax_like.bridge import chunks, errors, frames, messages
from relaax_like.bridge.collecting import FORMAT
from relaax_like.bridge.receive_budget import ReceiveBudget
from relaax_like.core.episode_reports import read_reports
from relaax_like.core.message_fields import to_record
from relaax_like.core.records import Experience, Reply, StreamProgress
from relaax_like.core.roles import ExperienceSink, ParameterServerBackend
from relaax_like.v1 import experience_pb2
from relaax_like.wire.errors import InvalidInputError, LeasedError

# Maximum seconds between two messages of a stream.
_HEARTBEAT_SEC = 1.0
# The same once the training has finished: the server ends as soon as its streams do.
_FINISHED_SEC = 0.05
# Name in streams if there is only one Algorithm.
_UNNAMED = ""
_MAX_CLIENT_ID = 200
_RECEIVING_BYTES = 256 * 1024 * 1024


class ExperienceServicer:
    """Serves streams of experience. Thread-safe, like the sink and the backend.

    Args:
      backend: provides the values.
      sink: receives experience; with several Algorithms, name -> sink; None: this run does not
        learn in this process.
    """

    service = frames.EXPERIENCE
    readers: ClassVar = {"Collect": frames.to_experience_request}

    def __init__(
        self,
        backend: ParameterServerBackend,
        sink: ExperienceSink | Mapping[str, ExperienceSink] | None,
    ):
        self._backend = backend
        self._sinks = sink if sink is None or isinstance(sink, Mapping) else {_UNNAMED: sink}
        self._receiving = ReceiveBudget(_RECEIVING_BYTES)

    def Collect(
        self, request_iterator: Iterator[frames.ExperienceRequest], context: grpc.ServicerContext
    ) -> Iterator[frames.ExperienceReply]:
        """Receives experience in a separate thread; reports its progress, and sends new values."""
        try:
            sinks = self._get_sinks()
            first = frames.get_header(next(request_iterator, None), "experience")
            _validate_first(first)
            epoch = self._backend.pull(first.client_id).epoch
            sink = _find_sink(sinks, first.algorithm)
            ranges = messages.messages_to_ranges(first.ranges, self._backend.manifest)
            stream = _Stream(sink, self._receiving, first, request_iterator, context)
            have = first.have_version if first.have_epoch == epoch else None
            yield from self._tell(sink, first, have, ranges, stream, context)
        except InvalidInputError:
            self._backend.count_refused("malformed")
            raise

    def _tell(
        self,
        sink: ExperienceSink,
        first: experience_pb2.ExperienceHeader,
        have: int | None,
        ranges: messages.Ranges,
        stream: "_Stream",
        context: grpc.ServicerContext,
    ) -> Iterator[frames.ExperienceReply]:
        """Yields progress and values, until the stream ends.

        Raises:
          ServerUnavailableError: the server is closing, or has no values yet.
          Exception: what has ended the stream: a malformed message, an error of
            `ExperienceSink.add`, or a `SlowError`.
        """
        name, incarnation = first.client_id, first.incarnation
        seen = StreamProgress(-1, -1)
        while context.is_active():
            # Before reading the progress: the client is notified of everything that it need not
            # send again before it is notified of the end.
            ended = stream.ended
            # In this order: agents that are released act with values that are at least as new.
            progress = sink.wait(name, incarnation, seen, -1, 0.0)
            own_version = sink.version if first.algorithm else None
            reply = self._backend.pull(name, have)
            if first.algorithm:
                # The run's version while the learner is being loaded.
                version = reply.version if own_version is None else own_version
                reply = _replace_version(reply, version, have)
            yield from progress_to_messages(progress, reply, ranges)
            # The first reply must not include what the client sends again: it shows the client
            # what that is.
            stream.start()
            have, seen = reply.version, progress
            if ended:
                if stream.error is not None:
                    raise stream.error
                return
            if reply.finished:  # only the end of the stream, or of the sink, remains
                stream.wait_ended(_FINISHED_SEC)
            else:
                sink.wait(name, incarnation, seen, have, _HEARTBEAT_SEC, lambda: stream.ended)

    def _get_sinks(self) -> Mapping[str, ExperienceSink]:
        if self._sinks is None:
            raise LeasedError(
                "this run does not learn in its parameter server, so experience is refused; start "
                "the agents with the parameter server's learner.placement (agent or standalone)"
            )
        return self._sinks


def _validate_first(first: experience_pb2.ExperienceHeader) -> None:
    # Clients that were written before there were numbers say 0.
    errors.validate_format(first.format or FORMAT, FORMAT, "client", "server")
    # A learner publishes which experience of which client it has received: a name that the
    # parameter server refuses would end it.
    errors.validate_text("client_id", first.client_id, _MAX_CLIENT_ID)


def _find_sink(sinks: Mapping[str, ExperienceSink], name: str) -> ExperienceSink:
    """Returns the sink of an Algorithm's experience.

    Raises:
      LeasedError: there is no such Algorithm; the error lists the Algorithms.
    """
    if name in sinks:
        return sinks[name]
    came = f"for the Algorithm {name[:60]!r}" if name else "without a name"
    has = "one, without a name" if _UNNAMED in sinks else f"the Algorithms {', '.join(sinks)}"
    raise LeasedError(
        f"experience: {came}, but this run has {has}; use the same algorithm folder on both sides"
    )


def _replace_version(reply: Reply, version: int, have: int | None) -> Reply:
    """Returns a reply for one of several Algorithms, without values if only others published.

    Args:
      reply: with the version of the run.
      version: of the Algorithm's newest values, at most that of the run.
      have: version of the values that the client has; None: it has none.
    """
    values = None if have is not None and version <= have else reply.values
    return replace(reply, version=version, values=values)


class _Stream:
    """Reads one client's stream in its own thread.

    Attributes:
      error: the error that ended the stream; None: no error so far.
    """

    def __init__(
        self,
        sink: ExperienceSink,
        receiving: ReceiveBudget,
        first: experience_pb2.ExperienceHeader,
        requests: Iterator[frames.ExperienceRequest],
        context: grpc.ServicerContext,
    ):
        self.error: Exception | None = None
        self._sink = sink
        self._receiving = receiving
        self._first = first
        self._requests = requests
        self._context = context
        self._started = False
        self._ended = threading.Event()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        return self._ended.is_set()

    def wait_ended(self, timeout_sec: float) -> None:
        """Waits until the stream has ended, or `timeout_sec` have passed."""
        self._ended.wait(timeout_sec)

    def start(self) -> None:
        """Starts to read. Idempotent."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._read_all, name="experience", daemon=True).start()

    def _read_all(self) -> None:
        try:
            header: experience_pb2.ExperienceHeader | None = self._first
            while header is not None:
                if header.sequence:
                    self._sink.add(self._read(header))
                message = next(self._requests, None)
                header = None if message is None else self._continue(message)
        except Exception as error:  # including gRPC's if the client has left
            if self._context.is_active():
                self.error = error
        finally:
            self._ended.set()
            self._sink.wake()

    def _continue(self, message: frames.ExperienceRequest) -> experience_pb2.ExperienceHeader:
        header: experience_pb2.ExperienceHeader = frames.get_header(message, "experience")
        if (header.client_id, header.incarnation) != (
            self._first.client_id,
            self._first.incarnation,
        ):
            raise InvalidInputError(
                f"experience: client {header.client_id[:60]!r}, incarnation {header.incarnation}; "
                f"expected {self._first.client_id[:60]!r}, incarnation {self._first.incarnation}, "
                "as in the stream's first message; open a new stream",
                "client_id",
            )
        return header

    def _read(self, header: experience_pb2.ExperienceHeader) -> Experience:
        limit = self._sink.max_rollout_bytes
        if header.rollout_bytes > limit:
            raise InvalidInputError(
                f"rollout: {header.rollout_bytes} bytes announced, but at most {limit} are "
                "allowed; send rollouts with fewer steps or slots",
                "rollout_bytes",
            )
        if header.rollout_bytes <= len(header.first_chunk):  # a small rollout
            return read_experience(header, self._requests)
        with self._receiving.admit(header.rollout_bytes, self._context) as reception:
            return read_experience(header, reception.note(self._requests))


def progress_to_messages(
    progress: StreamProgress, reply: Reply, ranges: messages.Ranges
) -> Iterator[frames.ExperienceReply]:
    """Yields progress with a reply's header, then chunks; see `messages.reply_to_messages`."""
    parts = messages.reply_to_messages(reply, ranges=ranges)
    header = next(parts).header  # type: ignore[union-attr]
    yield experience_pb2.ExperienceReply(
        progress=experience_pb2.ExperienceProgress(
            received_through=progress.received,
            released_through=progress.released,
            header=header,
        )
    )
    yield from parts  # type: ignore[misc]  # chunks alone


def read_experience(
    header: experience_pb2.ExperienceHeader, more: Iterator[frames.ExperienceRequest]
) -> Experience:
    """Reads the chunks that a header announces, and nothing more; allocates the announced length.

    Args:
      header: of the experience.
      more: the messages after the header.

    Raises:
      InvalidInputError: the chunks do not have the announced length.
    """
    rollout = None
    if header.rollout_bytes:
        rollout = chunks.read_vector(more, header.rollout_bytes, "rollout", header.first_chunk)
    return to_record(
        Experience,
        header,
        rollout=rollout,
        episodes=read_reports(header),
        is_leaving=header.leaves,
        is_urgent=header.urgent,
    )
