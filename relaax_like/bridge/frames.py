"""Converts messages with chunks to bytes, and back, without protobuf.

A chunk is the message's field 2. In this way it is copied once instead of twice when it is sent,
and not at all when it is received; all other messages are converted by protobuf.
"""

from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from relaax_like.v1 import experience_pb2
from relaax_like.v1 import parameter_server_pb2 as pb
from relaax_like.wire.errors import InvalidInputError

# Descriptions of the services whose messages are converted here.
PARAMETER_SERVER = pb.DESCRIPTOR.services_by_name["ParameterServer"]
EXPERIENCE = experience_pb2.DESCRIPTOR.services_by_name["Experience"]

# A header, or the bytes of a chunk.
Request: TypeAlias = pb.PushPullRequest | memoryview
Reply: TypeAlias = pb.PushPullReply | memoryview
ExperienceRequest: TypeAlias = experience_pb2.ExperienceRequest | memoryview
ExperienceReply: TypeAlias = experience_pb2.ExperienceReply | memoryview

_Part = TypeVar("_Part", bound=Message)

# Field 2, length-delimited: `chunk`, in all of these messages.
_CHUNK_KEY = 0x12
_MAX_LENGTH_BYTES = 5
# Field 1, length-delimited: `header`, in all of these messages.
_HEADER_KEY = 0x0A
# Wire types of protobuf; those of a fixed length, and their bytes.
_VARINT, _LENGTH_DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_MAX_SHIFT = 63
# Longest header without statistics: a first chunk has 512 KiB, MAX_EPISODES episodes 20 kB.
MAX_HEADER_BYTES = 3 * 1024 * 1024
# Most fields of a header: 65 536 ranges of values, MAX_EPISODES episodes and some more.
MAX_FIELDS = 70_000


def to_bytes(part: Message | memoryview) -> bytes:
    """Returns a message's bytes; those of a chunk are the bytes of `PushPullRequest(chunk=...)`."""
    if isinstance(part, memoryview):
        return b"".join((_pack_key(part.nbytes), part))
    return part.SerializeToString()


def _pack_key(length: int) -> bytes:
    key = bytearray([_CHUNK_KEY])
    while length > 0x7F:
        key.append(length & 0x7F | 0x80)
        length >>= 7
    key.append(length)
    return bytes(key)


def _find_chunk(data: bytes) -> memoryview | None:
    """Returns the chunk of a message that only consists of one, else None."""
    if len(data) < 2 or data[0] != _CHUNK_KEY:
        return None
    length = shift = 0
    for index, byte in enumerate(data[1 : 1 + _MAX_LENGTH_BYTES], 2):
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return memoryview(data)[index:] if length == len(data) - index else None
        shift += 7
    return None


def get_header(part: Any, what: str) -> Any:
    """Returns the header of a message.

    Args:
      part: the message; None: there is none.
      what: what is received, for the error.

    Raises:
      InvalidInputError: the message does not have a header, or there is no message.
    """
    if part is None or isinstance(part, memoryview) or not part.HasField("header"):
        raise InvalidInputError(
            f"{what}: received no message, or one without a header, such as a chunk or an "
            "unreadable one; expected the header as the first message, and as many bytes after it "
            "as it says",
            "header",
        )
    return part.header


def to_push_pull_request(data: bytes, max_header_bytes: int = MAX_HEADER_BYTES) -> Request:
    """Reads one message, or a chunk as a memoryview; an invalid message is read as an empty one.

    No method accepts an empty message. An exception here would make gRPC's server end the call
    twice, and wait forever when it stops.

    Args:
      data: the received bytes.
      max_header_bytes: a longer message that is not a chunk counts as invalid. Our clients send no
        such message, and parsing can turn two bytes into an episode of fifty bytes.
    """
    return to_part(data, pb.PushPullRequest, max_header_bytes)


def to_part(
    data: bytes,
    kind: type[_Part],
    max_header_bytes: int = MAX_HEADER_BYTES,
    max_fields: int = MAX_FIELDS,
) -> _Part | memoryview:
    """Reads one message of a kind in the same way as `to_push_pull_request`.

    Args:
      data: the received bytes.
      kind: class of the message.
      max_header_bytes: see `to_push_pull_request`.
      max_fields: a header with more fields counts as invalid, too: no other thread runs while a
        message is parsed, and millions of fields of two bytes take a tenth of a second.
    """
    chunk = _find_chunk(data)
    if chunk is not None:
        return chunk
    if len(data) > max_header_bytes:
        return kind()
    if len(data) > 2 * max_fields and not _has_few_fields(data, max_fields):
        return kind()
    try:
        return kind.FromString(data)
    except DecodeError:
        return kind()


def _has_few_fields(data: bytes, most: int) -> bool:
    """Returns whether a message is a header, field 1, with at most `most` fields."""
    try:
        length, place = _read_number(data, 1)
        if data[0] != _HEADER_KEY or place + length != len(data):
            return False
        for _ in range(most):
            if place == len(data):
                return True
            key, place = _read_number(data, place)
            if key & 7 == _LENGTH_DELIMITED:
                length, place = _read_number(data, place)
                place += length
            elif key & 7 == _VARINT:
                _, place = _read_number(data, place)
            else:
                place += _FIXED_BYTES[key & 7]
    except LookupError:  # it is not a valid message
        return False
    return place == len(data)


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    """Reads a varint; returns its value, and the position of the next byte.

    Raises:
      LookupError: the data ends within the number, or the number has more than ten bytes.
    """
    number = shift = 0
    while (byte := data[place]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if shift > _MAX_SHIFT:
            raise LookupError("a number of more than ten bytes")
    return number | byte << shift, place + 1


def to_push_pull_reply(data: bytes) -> Reply:
    """Reads one message, or a chunk as a memoryview.

    Raises:
      DecodeError: the bytes are not a valid message.
    """
    chunk = _find_chunk(data)
    return pb.PushPullReply.FromString(data) if chunk is None else chunk


def to_experience_request(data: bytes) -> ExperienceRequest:
    """Reads one message in the same way as `to_push_pull_request`."""
    return to_part(data, experience_pb2.ExperienceRequest)


def to_experience_reply(data: bytes) -> ExperienceReply:
    """Reads one message, or a chunk as a memoryview.

    Raises:
      DecodeError: the bytes are not a valid message.
    """
    chunk = _find_chunk(data)
    return experience_pb2.ExperienceReply.FromString(data) if chunk is None else chunk
