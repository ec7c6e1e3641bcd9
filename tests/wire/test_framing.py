"""Frames: the length before each message."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.framing import HEADER, MAX_MESSAGE_BYTES, pack_frame, unpack_length


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_frame_round_trip(body: bytes) -> None:
    frame = pack_frame(body)
    assert unpack_length(frame[: HEADER.size]) == len(body)
    assert frame[HEADER.size :] == body


def test_length_is_big_endian() -> None:
    assert pack_frame(b"x" * 258)[:4] == b"\x00\x00\x01\x02"


def test_longest_message_is_accepted_and_one_more_byte_is_not() -> None:
    assert unpack_length(HEADER.pack(100), max_message_bytes=100) == 100
    with pytest.raises(ProtocolError, match="101 bytes was announced, but at most 100"):
        unpack_length(HEADER.pack(101), max_message_bytes=100)


@pytest.mark.parametrize("garbage", [b"GET ", b"\xff\xff\xff\xff", b"\x16\x03\x01\x02"])
def test_first_bytes_of_another_protocol_are_refused(garbage: bytes) -> None:
    with pytest.raises(ProtocolError, match="rlx protocol") as caught:
        unpack_length(garbage)
    assert caught.value.code == "MALFORMED"
    assert HEADER.unpack(garbage)[0] > MAX_MESSAGE_BYTES
