"""CollectStream: the client's end of a stream of experience."""

import itertools
import queue
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from relaax_like.bridge import chunks, frames, messages
from relaax_like.bridge.errors import to_exception
from relaax_like.core.buffers import BufferPool
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import Experience, Reply, StreamProgress
from relaax_like.v1 import experience_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import ServerUnavailableError


@dataclass(frozen=True)
class Advance:
    """What the server says: how far it has come, and its newest version, step and values."""

    progress: StreamProgress
    reply: Reply


class CollectStream:
    """One client's stream of experience, open from the constructor to `close`.

        stream = link.collect_stream("rlx-1")
        stream.open(incarnation, have_version=0, have_epoch=0)
        stream.send(experience)        # from one thread
        for advance in stream: ...     # in another; raises when the stream breaks

    Args:
      channel: to the server.
      address: of the server.
      manifest: of the run.
      client_id: unique in the run.
    """

    def __init__(self, channel: grpc.Channel, address: str, manifest: Manifest, client_id: str):
        self.manifest = manifest
        self._address = address
        self._client_id = client_id
        self._pool = BufferPool(manifest.total_bytes)
        self._open_call = channel.stream_stream(
            "/relaax.v1.Experience/Collect",
            request_serializer=frames.to_bytes,
            response_deserializer=frames.to_experience_reply,
        )
        # What gRPC's sending thread has still to take; None ends it.
        self._outbox: queue.SimpleQueue[frames.ExperienceRequest | None] = queue.SimpleQueue()
        self._call: Any = None
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
          incarnation: of the client.
          have_version: of the client's values.
          have_epoch: of the client's values; 0: it has none.
          names: of the variables that are needed, all others arrive as NaN; None: all.

        Raises:
          InvalidInputError: a name that is not in the manifest.
          ServerUnavailableError: the channel has been closed.
        """
        self._ranges = () if names is None else self.manifest.find_ranges(names)
        header = experience_pb2.ExperienceHeader(
            client_id=self._client_id,
            incarnation=incarnation,
            have_version=have_version,
            have_epoch=have_epoch,
            ranges=messages.ranges_to_messages(self._ranges),
        )
        self._outbox.put(experience_pb2.ExperienceRequest(header=header))
        try:
            self._call = self._open_call(iter(self._outbox.get, None))
        except ValueError as error:  # what gRPC says of its own closed channels
            raise ServerUnavailableError(
                f"the link to {self._address} was closed: {error}"
            ) from None

    def send(self, experience: Experience) -> None:
        """Sends experience without waiting; the rollout's bytes must not change any more."""
        rollout = experience.rollout
        parts = iter(()) if rollout is None else chunks.split(rollout)
        small = rollout is not None and chunks.fits_one(rollout.nbytes)
        header = experience_pb2.ExperienceHeader(
            client_id=experience.client_id,
            incarnation=experience.incarnation,
            sequence=experience.sequence,
            agent=experience.agent,
            columns=experience.columns,
            rollout_bytes=0 if rollout is None else rollout.nbytes,
            first_chunk=bytes(next(parts)) if small else b"",
            episodes=[
                pb.Episode(episode_return=e.episode_return, length=e.length)
                for e in experience.episodes
            ],
            leaves=experience.is_leaving,
            env_steps=experience.env_steps,
            sampling_sec=experience.sampling_sec,
        )
        self._outbox.put(experience_pb2.ExperienceRequest(header=header))
        for part in parts:
            self._outbox.put(part)

    def __iter__(self) -> Iterator[Advance]:
        """Yields what the server says, about once a second at least.

        Raises:
          ServerUnavailableError: the stream broke.
          LeasedError: the run does not learn in its parameter server.
          InvalidInputError: what was sent last is malformed.
        """
        try:
            for message in self._call:
                yield self._read(message)
        except grpc.RpcError as error:
            raise to_exception(error, self._address) from error
        raise ServerUnavailableError(f"the parameter server at {self._address} ended the stream")

    def finish(self, timeout_sec: float) -> None:
        """Sends no more, and waits until the server has read all; then closes."""
        self._outbox.put(None)
        end = time.monotonic() + timeout_sec
        while self._call is not None and self._call.is_active() and time.monotonic() < end:
            time.sleep(0.01)
        self.close()

    def close(self) -> None:
        """Ends the stream; may be called twice, from any thread."""
        self._outbox.put(None)
        if self._call is not None:
            self._call.cancel()

    def _read(self, message: frames.ExperienceReply) -> Advance:
        if not isinstance(message, experience_pb2.ExperienceReply):
            raise ServerUnavailableError("the parameter server sent values without a header")
        progress = message.progress
        first = pb.PushPullReply(header=progress.header)
        reply = messages.messages_to_reply(
            itertools.chain([first], self._call), self.manifest, self._pool, ranges=self._ranges
        )
        return Advance(StreamProgress(progress.received_through, progress.released_through), reply)


def make_rollout_bytes(serialized: bytes) -> np.ndarray:
    """Returns a serialised rollout as `Experience.rollout` has it."""
    return np.frombuffer(serialized, np.uint8)
