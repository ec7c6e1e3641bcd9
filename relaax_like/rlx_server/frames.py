"""Frames over a socket: 4 bytes of length, then the message."""

import re
from collections.abc import Iterator

from relaax_like.rlx_server.carrier import Carrier, Limit
from relaax_like.rlx_server.codec import Body
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.framing import HEADER, describe_too_long, pack_frame

_PING = pack_frame(rlx_pb2.ClientMessage(ping=rlx_pb2.Ping()).SerializeToString())
_PINGS = re.compile(b"(?:" + re.escape(_PING) + b")+")


class Frames(Carrier):
    """See `Carrier`."""

    is_text = False

    def split(self, limit: Limit) -> Iterator[Body | None]:
        """See `Carrier`."""
        data = memoryview(self._data)
        while self._end - self._start >= HEADER.size:
            body = self._start + HEADER.size
            (length,) = HEADER.unpack_from(data, self._start)
            if length > limit.nbytes:
                error = describe_too_long(length, limit.nbytes)
                raise ProtocolError(f"{error}, and send shorter messages: {limit.reason}")
            if self.skips_pings and (found := _PINGS.match(data, self._start, self._end)):
                # They need no turn, however many a client sends ahead.
                self._start = found.end()
                yield None
                continue
            if self._end - body < length:
                return
            self._start = body + length
            yield data[body : body + length]

    def pack(self, body: bytes) -> bytes:
        """See `Carrier`."""
        return pack_frame(body)

    def _get_announced(self) -> int:
        if self._end - self._start < HEADER.size:
            return 0
        (length,) = HEADER.unpack_from(self._data, self._start)
        return HEADER.size + int(length)
