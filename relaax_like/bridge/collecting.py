"""CollectStream: the client's end of a stream of experience."""

import itertools
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

from relaax_like.bridge import chunks, frames, messages
from relaax_like.core.buffers import BufferPool
from relaax_like.core.episode_reports import write_reports
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import Experience, Reply, StreamProgress
from relaax_like.v1 import experience_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import ServerUnavailableError

# Of `relaax.v1.Experience`.
FORMAT = 1


@dataclass(frozen=True)
class ReleaseNotice:
    """What the learner has done with a client's experience, and its newest values.

    Attributes:
      progress: what the learner has received, and which agents it has released.
      reply: the newest version and `global_t`, and values if they are newer than the client's.
    """

    progress: StreamProgress
    reply: Reply


class Call(Iterator[frames.ExperienceReply], Protocol):
    """An open call of `relaax.v1.Experience.Collect`: its replies, as they arrive."""

    def put(self, part: frames.ExperienceRequest | None) -> None:
        """Sends a message; None ends the sending direction."""

    def is_active(self) -> bool:
        """Returns whether the call has not ended yet."""

    def cancel(self) -> None:
        """Ends the call. Idempotent and thread-safe."""


class CollectStream:
    """One client's stream of experience.

        stream = link.collect_stream("rlx-1")
        stream.open(incarnation, have_version=0, have_epoch=0)
        stream.send(experience)        # from one thread
        for notice in stream: ...      # in another; raises when the stream breaks

    Args:
      call: the call that carries the messages; cancelled when the stream is closed.
      manifest: of the values.
      client_id: unique in the run; for a child of this process, the name of the Algorithm.
      algorithm: name of the Algorithm that the experience is for; "": the only one, or that of
        `client_id`.

    Attributes:
      manifest: as the argument.
    """

    def __init__(self, call: Call, manifest: Manifest, client_id: str, algorithm: str = ""):
        self.manifest = manifest
        self._call = call
        self._client_id = client_id
        self._algorithm = algorithm
        self._pool = BufferPool(manifest.total_bytes)
        self._ranges: messages.Ranges = ()

    def open(
        self,
        incarnation: int,
        have_version: int,
        have_epoch: int,
        names: Collection[str] | None = None,
    ) -> None:
        """Opens the stream, and requests values newer than those of the client.

        Args:
          incarnation: grows each time the client starts.
          have_version: version of the client's values.
          have_epoch: epoch of the client's values; 0: the client has none.
          names: names of the needed variables; all others arrive as bytes 0xFF, which are NaN in
            floating-point variables. None or empty: all are needed.

        Raises:
          InvalidInputError: a name is not in the manifest.
        """
        self._ranges = () if names is None else self.manifest.find_ranges(names)
        header = experience_pb2.ExperienceHeader(
            format=FORMAT,
            client_id=self._client_id,
            algorithm=self._algorithm,
            incarnation=incarnation,
            have_version=have_version,
            have_epoch=have_epoch,
            ranges=messages.ranges_to_messages(self._ranges),
        )
        self._call.put(experience_pb2.ExperienceRequest(header=header))

    def send(self, experience: Experience) -> None:
        """Sends experience; the rollout's bytes must not change afterwards.

        Over a pair of sockets, it waits while the other end does not read.
        """
        rollout = experience.rollout
        request = experience_pb2.ExperienceRequest()
        header = request.header  # filled in place: faster than a copy
        header.client_id = experience.client_id
        header.incarnation = experience.incarnation
        header.sequence = experience.sequence
        header.agent = experience.agent
        header.columns = experience.columns
        write_reports(header, experience.episodes)
        header.leaves = experience.is_leaving
        header.env_steps = experience.env_steps
        header.sampling_sec = experience.sampling_sec
        header.urgent = experience.is_urgent
        header.rollout_bytes = 0 if rollout is None else rollout.nbytes
        header.first_chunk, parts = chunks.split_first(rollout)
        self._call.put(request)
        for part in parts:
            self._call.put(part)

    def __iter__(self) -> Iterator[ReleaseNotice]:
        """Yields the learner's notices.

        Raises:
          ServerUnavailableError: the connection broke, or the learner ended the stream.
          LeasedError: the run does not learn in its parameter server, or has no such Algorithm.
          InvalidInputError: experience was refused, see `ExperienceSink.add`; or a message that was
            sent, or a received one, is malformed.
          NotAllowedError: an agent's token is required.
          ProtocolError: something else listens at the address, or the server has failed.
          ConfigError: the learner is a child of this process, and the settings have ended it.
        """
        for message in self._call:
            yield self._read(message)
        raise ServerUnavailableError("the learner ended the stream; open a new one")

    def finish(self, timeout_sec: float) -> None:
        """Ends the sending direction, waits until the other end has ended the call, and closes.

        Args:
          timeout_sec: longest wait; what was not read by then is lost.
        """
        self._call.put(None)
        end = time.monotonic() + timeout_sec
        while self._call.is_active() and time.monotonic() < end:
            time.sleep(0.01)
        self.close()

    def close(self) -> None:
        """Ends the stream. Idempotent and thread-safe."""
        self._call.cancel()

    def _read(self, message: frames.ExperienceReply) -> ReleaseNotice:
        if not isinstance(message, experience_pb2.ExperienceReply):
            raise ServerUnavailableError(
                "the learner sent a chunk of values, expected a header first; run the same version "
                "of relaax_like on both ends"
            )
        progress = message.progress
        first = pb.PushPullReply(header=progress.header)
        reply = messages.messages_to_reply(
            itertools.chain([first], self._call),  # type: ignore[arg-type]  # chunks alone
            self.manifest,
            self._pool,
            ranges=self._ranges,
        )
        return ReleaseNotice(
            StreamProgress(progress.received_through, progress.released_through), reply
        )
