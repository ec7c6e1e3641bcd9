"""Whatever a client sends: a clear error for it, and nothing for the others."""

import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rlx import RawClient, array, make_hello, make_next, make_start, make_step

from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import pack_frame

BOX = rlx_pb2.Space(kind=rlx_pb2.BOX, dtype="float32", shape=[2])


@pytest.fixture
def bystander(port):
    """A client in the middle of an episode, which must not notice anything."""
    with RawClient(port) as other:
        other.greet(client_name="bystander")
        other.ask(make_start())
        yield other
        assert other.ask(make_next()).WhichOneof("body") == "actions"


HELLOS = {
    "old protocol version": (make_hello(protocol_version=0), "VERSION_MISMATCH", "version 0"),
    "new protocol version": (make_hello(protocol_version=2), "VERSION_MISMATCH", "only 1"),
    "no name": (make_hello(client_name=""), "INVALID_FIELD", "client_name"),
    "control characters": (make_hello(client_name="a\nb"), "INVALID_FIELD", "client_name"),
    "no slots": (make_hello(slots=0), "INVALID_FIELD", "slots"),
    "too many slots": (make_hello(slots=5), "INVALID_FIELD", "1 to 4"),
    "no mode": (make_hello(mode=0), "INVALID_FIELD", "mode"),
    "no observation": (make_hello(observation_spaces={}), "INVALID_FIELD", "observation_spaces"),
    "bad leaf name": (make_hello(observation_spaces={"a b": BOX}), "INVALID_FIELD", "leaf name"),
    "unknown kind": (
        make_hello(observation_spaces={"x": rlx_pb2.Space(dtype="float32")}),
        "INVALID_FIELD",
        "kind",
    ),
    "unknown dtype": (
        make_hello(action_spaces={"x": rlx_pb2.Space(kind=rlx_pb2.BOX, dtype="V8")}),
        "INVALID_FIELD",
        "V8",
    ),
    "negative axis": (
        make_hello(
            action_spaces={"x": rlx_pb2.Space(kind=rlx_pb2.BOX, dtype="float32", shape=[-1])}
        ),
        "INVALID_FIELD",
        "negative",
    ),
    "discrete without n": (
        make_hello(action_spaces={"x": rlx_pb2.Space(kind=rlx_pb2.DISCRETE, dtype="int64")}),
        "INVALID_FIELD",
        "n",
    ),
    "step before hello": (make_start(), "OUT_OF_ORDER", "before hello"),
    "empty message": (rlx_pb2.ClientMessage(), "MALFORMED", "empty message"),
}


@pytest.mark.parametrize(("message", "code", "words"), HELLOS.values(), ids=HELLOS.keys())
def test_a_wrong_hello_is_told_what_is_wrong(client, bystander, message, code, words):
    answer = client.ask(message)
    assert rlx_pb2.ErrorCode.Name(answer.error.code) == code
    assert words in answer.error.message
    assert client.is_closed_by_server()


def observe(*values, dtype="float32"):
    return {"observation": array(list(values), dtype)}


NAN = float("nan")
STEPS = {
    "wrong shape": (make_next(observations=observe([1, 2, 3])), "observations[observation]"),
    "no slot axis": (make_next(observations=observe(1, 2)), "observations[observation]"),
    "wrong dtype": (
        make_next(observations=observe([1, 2], dtype="float64")),
        "observations[observation]",
    ),
    "NaN observation": (make_next(observations=observe([1, NAN])), "observations[observation]"),
    "unknown leaf": (make_next(observations={"other": array([[1, 2]])}), "observations"),
    "size does not match": (
        make_next(
            observations={
                "observation": ndarray_pb2.NdArray(dtype="float32", shape=[1, 2], data=b"123")
            }
        ),
        "observations[observation]",
    ),
    "negative axis": (
        make_next(
            observations={
                "observation": ndarray_pb2.NdArray(
                    dtype="float32", shape=[-1, -2], data=b"12345678"
                )
            }
        ),
        "observations[observation]",
    ),
    "NaN reward": (make_next(rewards=array([NAN])), "rewards"),
    "infinite reward": (make_next(rewards=array([float("inf")])), "rewards"),
    "too many rewards": (make_next(rewards=array([1, 2])), "rewards"),
    "terminated is no bool": (make_next(terminated=array([0])), "terminated"),
    "truncated for two slots": (make_next(truncated=array([0, 0], "bool")), "truncated"),
    "truncated without the final observation": (
        make_next(truncated=array([1], "bool")),
        "final_observations",
    ),
    "NaN in the final observation": (
        make_next(truncated=array([1], "bool"), final_observations=observe([NAN, 1])),
        "final_observations[observation]",
    ),
    "another leaf in the final observations": (
        make_next(
            truncated=array([1], "bool"),
            final_observations={**observe([0, 1]), "other": array([0])},
        ),
        "final_observations",
    ),
    "success is 2": (make_next(success=array([2], "int8")), "success"),
    "success is -128": (make_next(success=array([-128], "int8")), "success"),
    "goes on without an observation": (
        make_step(rewards=array([1]), terminated=array([0], "bool"), truncated=array([0], "bool")),
        "observations",
    ),
}


@pytest.mark.parametrize(("message", "field"), STEPS.values(), ids=STEPS.keys())
def test_a_wrong_step_is_told_the_field(client, bystander, message, field):
    client.greet()
    client.ask(make_start())
    answer = client.ask(message)
    assert rlx_pb2.ErrorCode.Name(answer.error.code) == "INVALID_FIELD"
    assert answer.error.field == field
    assert client.is_closed_by_server()


def test_a_final_observation_is_refused_by_its_slot(client):
    client.greet(slots=2)
    client.ask(make_start(2))
    final = {"observation": array([[NAN, 0], [0, 1]])}  # slot 0 continues
    ends = array([0, 1], "bool")
    answer = client.ask(make_next(2, truncated=ends, final_observations=final))
    assert answer.WhichOneof("body") == "actions"
    final = {"observation": array([[0, 0], [NAN, 1]])}
    answer = client.ask(make_next(2, truncated=ends, final_observations=final))
    assert "NaN or infinity in slot 1" in answer.error.message


OUT_OF_ORDER = {
    "rewards before actions": ([make_next()], "before any action"),
    "an empty first step": ([make_step()], "observations"),
    "no rewards after actions": ([make_start(), make_start()], "needs rewards"),
    "rewards without flags": (
        [make_start(), make_next(terminated=None)],
        "rewards, truncated",
    ),
    "a second hello": ([make_hello()], "second hello"),
}


@pytest.mark.parametrize(("messages", "words"), OUT_OF_ORDER.values(), ids=OUT_OF_ORDER.keys())
def test_a_message_at_the_wrong_time_is_out_of_order(client, bystander, messages, words):
    client.greet()
    for message in messages:
        answer = client.ask(message)
    assert rlx_pb2.ErrorCode.Name(answer.error.code) == "OUT_OF_ORDER"
    assert words in answer.error.message


def test_a_giant_length_is_refused_before_anything_is_read(client, bystander):
    client.greet()
    client.socket.sendall(struct.pack(">I", 0xFFFFFFFF) + b"x")
    answer = client.receive()
    assert answer.error.code == rlx_pb2.MALFORMED
    assert "4294967295 bytes" in answer.error.message


def test_http_on_the_port_is_answered_with_a_fixed_page(client, bystander):
    client.socket.sendall(b"GET /<b>x</b> HTTP/1.1\r\nHost: <i>y</i>\r\n\r\n")
    page = client.socket.makefile("rb").read()
    assert page.startswith(b"HTTP/1.1 426 ")
    assert b"WebSocket" in page
    assert b"<" not in page


def test_a_truncated_frame_ends_the_session_quietly(client, bystander):
    client.greet()
    client.socket.sendall(struct.pack(">I", 100) + b"only a part")
    client.socket.shutdown(1)
    assert client.is_closed_by_server()


@pytest.fixture
def no_delay(monkeypatch):
    """An address that fails often is greeted late, which is looked at elsewhere."""
    monkeypatch.setattr("relaax_like.rlx_server.server._GREETING_DELAY_SEC", 0.0)


@pytest.mark.usefixtures("no_delay")
@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.binary(max_size=200), greeted=st.booleans())
def test_random_bytes_end_in_an_error_message_or_a_right_answer(port, body, greeted):
    with RawClient(port) as client:
        if greeted:
            client.greet()
        client.socket.sendall(pack_frame(body))
        client.socket.shutdown(1)
        try:
            answer = client.receive()
        except EOFError:
            return  # scalars have no answer
        assert answer.WhichOneof("body") in ("error", "ready", "actions")


def test_spaces_that_the_algorithm_cannot_use_are_a_space_mismatch(backend):
    from support.rlx import serve_rlx

    from relaax_like.config.algorithm import AlgorithmConfig
    from relaax_like.config.spaces import validate_discrete, validate_vector

    class Config(AlgorithmConfig):
        def validate_spaces(self, observation_spaces, action_spaces):
            validate_vector(observation_spaces, 4)
            validate_discrete(action_spaces, 3)

    with serve_rlx(backend, config=Config()) as port, RawClient(port) as client:
        answer = client.ask(make_hello())
    assert answer.error.code == rlx_pb2.SPACE_MISMATCH
    assert "state_size" in answer.error.message
    assert answer.error.field == "observation_spaces"
