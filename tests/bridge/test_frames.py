"""Chunks as bytes: what we write and read is what protobuf would."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from relaax_like.bridge import frames
from relaax_like.v1 import parameter_server_pb2 as pb


@given(st.binary(max_size=300))
@example(b"")
@example(bytes(127))
@example(bytes(128))
@example(bytes(1 << 21))
def test_a_chunk_has_the_bytes_that_protobuf_writes(chunk):
    data = frames.to_bytes(memoryview(chunk))
    assert data == pb.PushPullRequest(chunk=chunk).SerializeToString()
    for parse in (frames.to_push_pull_request, frames.to_push_pull_reply):
        part = parse(data)
        assert isinstance(part, memoryview)
        assert part == chunk


@pytest.mark.parametrize(
    "message",
    [
        pb.PushPullRequest(),
        pb.PushPullRequest(header=pb.PushHeader(client_id="a", first_chunk=b"xyz")),
    ],
)
def test_other_messages_are_protobuf_s(message):
    data = frames.to_bytes(message)
    assert data == message.SerializeToString()
    assert frames.to_push_pull_request(data) == message


def test_a_chunk_in_another_encoding_is_read_too():
    twice = 2 * pb.PushPullRequest(chunk=b"ab").SerializeToString()  # the last one counts
    assert frames.to_push_pull_request(twice) == pb.PushPullRequest(chunk=b"ab")
    unknown = pb.PushPullRequest(chunk=b"ab").SerializeToString() + b"\x78\x01"  # field 15
    assert frames.to_push_pull_request(unknown).chunk == b"ab"


@given(st.binary(max_size=40))
@example(b"\x12")
@example(b"\x12\x80\x80\x80\x80\x80\x80")
@example(b"\x12\xff\xff\xff\xff\xff")
@example(b"\x12\x05abcd")
def test_any_bytes_are_read_as_protobuf_reads_them(data):
    try:
        want = pb.PushPullRequest.FromString(data)
    except DecodeError:
        want = pb.PushPullRequest()
    got = frames.to_push_pull_request(data)
    assert (pb.PushPullRequest(chunk=bytes(got)) if isinstance(got, memoryview) else got) == want
