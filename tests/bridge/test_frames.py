"""Chunks as bytes: what we write and read is what protobuf would."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from relaax_like.bridge import frames
from relaax_like.core.records import MAX_EPISODES
from relaax_like.v1 import experience_pb2, group_pb2
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


MANY = group_pb2.GroupRequest(
    kind="GROUP_KIND_STEP",
    tag="step",
    sums=[1.0] * 10_000,
    groups=[f"group {number}" for number in range(1_000)],
    clip={f"group {number}": 1.0 for number in range(1_000)},
    gradient=bytes(512 * 1024),
    fingerprint=1,
)


def read_part(data, max_fields):
    return frames.to_part(data, group_pb2.GroupPart, 1 << 24, max_fields)


def test_a_long_header_with_many_fields_is_read_if_so_many_are_allowed():
    part = group_pb2.GroupPart(header=MANY)
    fields = 2_000 + 5
    assert read_part(part.SerializeToString(), fields) == part
    assert read_part(part.SerializeToString(), fields - 1) == group_pb2.GroupPart()


@pytest.mark.parametrize("field", [b"\x52\x00", b"\x5a\x00", b"\x28\x01", b"\xf8\x01\x01"])
def test_very_many_fields_are_not_parsed(field):
    data = group_pb2.GroupPart(header=MANY).SerializeToString() + b"\x0a\xff\xff\x03"
    assert read_part(data + field * (0xFFFF // len(field)), 3_000) == group_pb2.GroupPart()
    header = field * (1_000_000 // len(field))
    whole, length = b"\x0a", len(header)
    while length > 0x7F:
        whole += bytes([length & 0x7F | 0x80])
        length >>= 7
    assert read_part(whole + bytes([length]) + header, 3_000) == group_pb2.GroupPart()


def test_all_ranges_and_episodes_that_are_allowed_are_read_and_a_million_episodes_are_not():
    ranges = [pb.ByteRange(offset=8 * number, length=4) for number in range(65_536)]
    episodes = [pb.Episode(episode_return=1.0, length=9)] * MAX_EPISODES
    header = experience_pb2.ExperienceHeader(ranges=ranges, episodes=episodes, client_id="one")
    part = experience_pb2.ExperienceRequest(header=header)
    assert frames.to_experience_request(part.SerializeToString()) == part
    header.episodes.extend([pb.Episode()] * 1_000_000)
    many = experience_pb2.ExperienceRequest(header=header).SerializeToString()
    assert frames.to_experience_request(many) == experience_pb2.ExperienceRequest()


@given(st.binary(min_size=5, max_size=60))
@example(b"\x0a\x03\x28\xff\xff")
@example(b"\x0a\x03\x53\x54\x07")
def test_any_bytes_are_read_as_protobuf_reads_them_or_are_refused(data):
    try:
        want = group_pb2.GroupPart.FromString(data)
    except DecodeError:
        want = group_pb2.GroupPart()
    got = read_part(data, 2)
    assert isinstance(got, memoryview) or got in (want, group_pb2.GroupPart())
