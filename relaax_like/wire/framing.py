"""Frames: 4 bytes of length, big-endian, then the message.

They are used by the rlx protocol, and by the pairs of sockets of `bridge.pair`.
"""

import struct

from relaax_like.wire.errors import ProtocolError

HEADER = struct.Struct(">I")
PROTOCOL_VERSION = 1
DEFAULT_PORT = 7001
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def pack_frame(body: bytes) -> bytes:
    """Returns the frame of a serialised message: its length, then the message."""
    return HEADER.pack(len(body)) + body


def unpack_length(header: bytes | memoryview, max_message_bytes: int = MAX_MESSAGE_BYTES) -> int:
    """Returns the length of a frame's message, in bytes.

    Args:
      header: the frame's first 4 bytes.
      max_message_bytes: longest message that is accepted.

    Raises:
      ProtocolError: the message would be longer than `max_message_bytes`. No memory has been
        allocated for it.
    """
    (length,) = HEADER.unpack(header)
    if length > max_message_bytes:
        raise ProtocolError(describe_too_long(length, max_message_bytes))
    return length


def describe_too_long(length: int, max_message_bytes: int) -> str:
    """Describes a frame that is longer than allowed, for errors."""
    return (
        f"a message of {length} bytes was announced, but at most {max_message_bytes} are "
        "allowed; check that both ends speak the rlx protocol (4-byte big-endian length, then "
        "protobuf)"
    )
