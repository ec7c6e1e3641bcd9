"""Lines of text over a socket: one message per line, so that `nc` is a client."""

from collections.abc import Iterator

from relaax_like.rlx_server.carrier import Carrier, Limit
from relaax_like.rlx_server.codec import Body
from relaax_like.wire.errors import ProtocolError


class Lines(Carrier):
    """See `Carrier`. Empty lines are skipped."""

    is_text = True

    def __init__(self, before: Carrier | None = None) -> None:
        super().__init__(before)
        self._searched = 0  # number of bytes of the unfinished line that have no end of a line

    def split(self, limit: Limit) -> Iterator[Body | None]:
        """See `Carrier`."""
        data = memoryview(self._data)
        while True:
            stop = self._data.find(b"\n", self._start + self._searched, self._end)
            length = (self._end if stop < 0 else stop) - self._start
            if length > limit.nbytes:
                raise ProtocolError(
                    f"a line of {length} bytes or more, but at most {limit.nbytes} are allowed; "
                    f"send one message per line, and shorter ones: {limit.reason}"
                )
            if stop < 0:
                self._searched = length
                return
            line = data[self._start : stop]
            self._start, self._searched = stop + 1, 0
            if bytes(line[:1]).strip() or bytes(line).strip():
                yield line

    def pack(self, body: bytes) -> bytes:
        """See `Carrier`."""
        return body + b"\n"

    def drop(self) -> None:
        """See `Carrier`."""
        super().drop()
        self._searched = 0
