"""Fields are found without parsing, and bad bytes end the walk with an error."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.v1 import rlx_pb2
from relaax_like.wire.fields import BYTES, VARINT, has_more_fields, walk_fields, weigh


def test_each_field_is_found_with_its_place() -> None:
    body = rlx_pb2.Ready(protocol_version=300, session="ab").SerializeToString()
    fields = list(walk_fields(body, 0, len(body)))
    assert [(number, kind) for number, kind, _, _ in fields] == [(1, VARINT), (2, BYTES)]
    assert body[fields[1][2] : fields[1][3]] == b"ab"


@pytest.mark.parametrize("body", [b"\x0a\x05ab", b"\x0b", b"\x80", b"\x08" + b"\xff" * 20, b"\x0d"])
def test_bytes_that_are_not_fields_are_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"field|varint"):
        list(walk_fields(body, 0, len(body)))
    with pytest.raises(ValueError, match=r"field|varint"):
        has_more_fields(body, 0, len(body), 5)


@given(leaves=st.integers(0, 30), limit=st.integers(0, 30))
def test_more_fields_than_the_limit_are_noticed(leaves: int, limit: int) -> None:
    step = rlx_pb2.Step()
    for leaf in range(leaves):
        step.observations[str(leaf)].dtype = "x"
    body = step.SerializeToString()
    assert has_more_fields(memoryview(body), 0, len(body), limit) == (leaves > limit)


@given(body=st.binary(max_size=60))
def test_the_walk_ends_on_any_bytes(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert has_more_fields(body, 0, len(body), 60) is False


def weigh_step(step: rlx_pb2.Step, limit: int = 1 << 40) -> int:
    body = step.SerializeToString()
    return weigh(body, rlx_pb2.Step.DESCRIPTOR, 0, len(body), limit)


def test_the_data_of_arrays_weighs_nothing_and_all_else_does() -> None:
    step = rlx_pb2.Step()
    step.observations["x"].data = b"0" * 10
    weight = weigh_step(step)
    step.observations["x"].data = b"0" * 100_000
    assert weigh_step(step) == weight
    step.observations["x"].shape.extend([1] * 1000)
    assert weigh_step(step) > weight + 1000
    step.observations["x"].dtype = "n" * 1000
    assert weigh_step(step) > weight + 2000


def test_weighing_stops_at_the_limit() -> None:
    step = rlx_pb2.Step()
    for leaf in range(1000):
        step.observations[str(leaf)].dtype = "x"
    assert 5000 < weigh_step(step, 5000) < 10_000
