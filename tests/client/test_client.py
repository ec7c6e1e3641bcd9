"""The client against a server that checks every message. covers R8-R10, R15, R19, R26, R30"""

import dataclasses
import json
import math
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Role, ScriptedServer

from relaax_like.client import LateAnswerError, OutOfOrderError, Retry, RlxClient
from relaax_like.client.connection import parse_address
from relaax_like.client.scalars import ScalarBuffer
from relaax_like.client.values import SpaceValues
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    ServerUnavailableError,
)
from relaax_like.wire.framing import pack_frame
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

Serve = Callable[..., ScriptedServer]
STATE = Box(dtype="float32", shape=(4,))
MOVE = Discrete(n=2)
QUICK = Retry(min_sleep_sec=0.0, max_sleep_sec=0.01)
ZEROS = np.zeros(4, np.float32)
RAGGED = [[1, 2], [3]]


@pytest.fixture
def answers() -> threading.Event:
    """For `Role.answers`; set."""
    event = threading.Event()
    event.set()
    return event


def make_client(server: ScriptedServer, **options: Any) -> RlxClient:
    lines: list[str] = []
    return RlxClient(server.address, STATE, MOVE, **{"report": lines.append, **options})


def test_three_verbs_reach_the_server_in_the_order_of_the_wire(serve: Serve) -> None:
    server = serve()
    with make_client(server, name="robot") as client:
        assert client.act([0, 0, 0, 1]) in (0, 1)
        assert client.reward_and_act(1, ZEROS) in (0, 1)
        assert client.reward_and_reset(2.5) == 3.5
        client.act(ZEROS)
        final = np.arange(4)
        assert client.reward_and_reset(0.25, final, truncated=True, success=True) == 0.25
    session = server.sessions[0]
    assert session.hello.client_name == "robot"
    assert session.hello.mode == rlx_pb2.TRAIN
    first, second, third, fourth, fifth = session.steps
    assert first.observations is not None
    assert first.observations["observation"].tolist() == [[0, 0, 0, 1]]
    assert (first.rewards, second.rewards) == (None, np.array([1.0]))
    assert third.observations is None
    assert third.terminated == np.array([True])
    assert fourth.rewards is None
    assert (fifth.terminated, fifth.truncated) == (np.array([False]), np.array([True]))
    assert fifth.final_observations is not None
    assert fifth.final_observations["observation"].tolist() == [[0, 1, 2, 3]]
    assert fifth.success == np.array([1])


def test_finish_in_the_middle_of_an_episode_gives_none_and_no_error(serve: Serve) -> None:
    server = serve(Role(finish_after=2))
    with make_client(server) as client:
        assert client.act(ZEROS) is not None
        assert client.reward_and_act(1.0, ZEROS) is None
        assert client.finished == "max_global_step reached"
        assert client.act(ZEROS) is None
        assert client.reward_and_act(1.0, ZEROS) is None
        assert client.reward_and_reset(1.0) is None
        assert client.step(ZEROS[None]).finished == client.finished
    assert server.steps == 2


def test_finish_at_the_end_of_an_episode_gives_none(serve: Serve) -> None:
    with make_client(serve(Role(finish_after=2))) as client:
        client.act(ZEROS)
        assert client.reward_and_reset(1.0) is None


def test_several_clients_are_served_at_once(serve: Serve) -> None:
    server = serve()
    clients = [make_client(server, name=f"c{i}") for i in range(4)]
    for client in clients:
        client.act(ZEROS)
    for i, client in enumerate(clients):
        client.reward_and_act(float(i), ZEROS)
        client.close()
    rewards = {s.hello.client_name: s.steps[1].rewards for s in server.sessions}
    assert rewards == {f"c{i}": np.array([float(i)]) for i in range(4)}


def test_batched_step_carries_every_field(serve: Serve) -> None:
    server = serve()
    with make_client(server, slots=3, exploit=True, token="s3cret") as client:
        states = np.arange(12, dtype=np.float64).reshape(3, 4)
        result = client.step(states)
        assert result.actions is not None
        assert result.actions.shape == (3,)
        assert result.actions.dtype == np.int64
        result.actions[0] = 5  # the caller's to change
        ends = client.step(
            states,
            [1, 2, 3],
            np.array([True, False, False]),
            np.array([False, False, True]),
            states + 1,
            [1, -1, 0],
        )
        assert [(e.slot, e.score, e.length) for e in ends.episodes] == [(0, 1.0, 1), (2, 3.0, 1)]
        assert ends.version == 2
        everyone = np.ones(3, np.bool_)
        assert client.step(None, np.zeros((3, 2)), everyone).actions is None
        assert client.step(states).actions is not None
    hello = server.sessions[0].hello
    assert (hello.mode, hello.token) == (rlx_pb2.EXPLOIT, "s3cret")
    step = server.sessions[0].steps[1]
    assert step.observations is not None
    assert step.observations["observation"].dtype == np.float32
    assert step.success is not None
    assert step.success.tolist() == [1, -1, 0]
    assert server.sessions[0].steps[2].rewards.shape == (3, 2)  # type: ignore[union-attr]


def test_dict_spaces_take_and_give_dicts(serve: Serve) -> None:
    server = serve()
    observation = {"camera": Box(dtype="uint8", shape=(2, 2)), "arm/0": MultiBinary(shape=(3,))}
    action = {"grip": MultiDiscrete(n=(2, 3), shape=(2,)), "key": Discrete(n=3, start=5)}
    state = {"camera": np.full((2, 2), 255), "arm/0": [True, False, True]}
    with RlxClient(server.address, observation, action) as client:
        chosen = client.act(state)
        assert set(chosen) == {"grip", "key"}
        assert isinstance(chosen["key"], int)
        assert chosen["grip"].shape == (2,)
        with pytest.raises(InvalidInputError, match=r"expected a dict with \['arm/0', 'camera'\]"):
            client.reward_and_act(1.0, {"camera": state["camera"]})
        with pytest.raises(InvalidInputError, match=r"\['7', 'camera'\], expected a dict"):
            client.reward_and_act(1.0, {"camera": state["camera"], 7: state["arm/0"]})
        client.reward_and_act(1.0, state)
    assert server.sessions[0].steps[1].observations["camera"].dtype == np.uint8  # type: ignore[index]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: c.reward_and_act(1.0, ZEROS), "start the episode with act"),
        (lambda c: c.reward_and_reset(1.0), "start the episode with act"),
        (lambda c: c.step(ZEROS[None], [1.0]), "no action precedes this reward"),
        (lambda c: c.step(ZEROS[None], terminated=np.array([True])), "takes only observations"),
        (lambda c: (c.act(ZEROS), c.act(ZEROS)), "call reward_and_act.*or reward_and_reset"),
        (lambda c: (c.act(ZEROS), c.step(ZEROS[None])), "otherwise call step"),
        (lambda c: (c.close(), c.act(ZEROS)), "closed; call connect"),
    ],
)
def test_a_verb_at_the_wrong_time_says_the_right_order(
    serve: Serve, call: Callable[[RlxClient], Any], match: str
) -> None:
    with make_client(serve()) as client:
        with pytest.raises(OutOfOrderError, match=match) as raised:
            call(client)
    assert isinstance(raised.value, RuntimeError)


def test_a_single_slot_verb_on_many_slots_is_refused(serve: Serve) -> None:
    with make_client(serve(), slots=2) as client, pytest.raises(OutOfOrderError, match="use step"):
        client.act(ZEROS)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda c: c.reward_and_act(1.0, [0, 0, 0]), r"state: shape \[3\], expected \[4\] as"),
        (lambda c: c.reward_and_act(1.0, [0, 0, 0, np.nan]), "NaN or infinity in slot 0"),
        (lambda c: c.reward_and_act(1.0, [0, 0, 0, 1e300]), "NaN or infinity in slot 0"),
        (lambda c: c.reward_and_act(np.nan, ZEROS), "reward: nan, expected a finite number"),
        (
            lambda c: c.reward_and_reset(1.0, truncated=True),
            "state: missing, but .* needs the final observation of the episode",
        ),
        (lambda c: c.step(ZEROS[None], [1.0, 2.0]), r"rewards: shape \[2\], expected \[1\]"),
        (lambda c: c.step(ZEROS[None], [1.0], [1]), "terminated: int64"),
        (
            lambda c: c.step(ZEROS[None], [1.0], [True], [True], ZEROS[None]),
            "slot 0 is also terminated",
        ),
        (lambda c: c.step(ZEROS[None], [1.0], None, [True]), "slot 0 was truncated"),
        (lambda c: c.step(None, [1.0]), "the episode of slot 0 continues"),
        (lambda c: c.step(ZEROS[None], [1.0], [True], success=[2]), "success: 2 in slot 0, exp"),
        (
            lambda c: c.reward_and_act(1.0, RAGGED),
            r"state: lists of different lengths, \[\[1, 2\], \[3\]\]; .* of shape \[4\]",
        ),
        (lambda c: c.reward_and_act(RAGGED, ZEROS), r"reward: lists of .* of shape \[r\]"),
        (lambda c: c.reward_and_act(None, ZEROS), r"reward: expected a number, .* got None"),
        (lambda c: c.reward_and_act([[1.0]], ZEROS), r"reward: .* of shape \[r\], got \[\[1.0\]\]"),
        (lambda c: c.step(RAGGED, [1.0]), r"observations: lists of .* of shape \[1, 4\]"),
        (lambda c: c.step(ZEROS[None], RAGGED), r"rewards: lists of .* of shape \[1, \.\.\.\]"),
        (lambda c: c.step(ZEROS[None], [1.0], RAGGED), r"terminated: lists of .* of shape \[1\]"),
        (lambda c: c.step(None, [1.0], [True], success=RAGGED), "success: lists of different"),
    ],
)
def test_a_bad_value_is_refused_before_it_is_sent(
    serve: Serve, call: Callable[[RlxClient], Any], match: str
) -> None:
    server = serve()
    with make_client(server) as client:
        client.act(ZEROS)
        with pytest.raises(InvalidInputError, match=match) as raised:
            call(client)
        assert isinstance(raised.value, ValueError)
        assert client.reward_and_act(1.0, ZEROS) is not None  # the session continues
    assert server.steps == 2


def test_values_between_the_largest_bounds_are_finite() -> None:
    bound = 1.7e308
    space = Box(dtype="float64", shape=(3,), low=[-bound, -bound, -1], high=[bound, 1, bound])
    sampled = np.asarray(SpaceValues(space, "x").sample(100, np.random.default_rng(1)))
    assert ((space.low <= sampled) & (sampled <= space.high)).all()
    assert (np.sign(sampled[:, 0]) == 1).any()


def test_integers_must_keep_their_value() -> None:
    values = SpaceValues(Box(dtype="uint8", shape=()), "observation")
    assert values.to_leaves([7, 255], 2, "x")["observation"].dtype == np.uint8
    with pytest.raises(InvalidInputError, match="x: 256, expected numbers that uint8 can repr"):
        values.to_leaves([7, 256], 2, "x")
    with pytest.raises(InvalidInputError, match=r"x: 0\.5, expected numbers that uint8"):
        values.to_leaves([0.5, 1.0], 2, "x")


@pytest.mark.parametrize(
    ("space", "fits", "wrong"),
    [
        (Box(dtype="int8", shape=()), [-128, 127], np.array([0, 300])),
        (Box(dtype="int32", shape=()), [0, 1 << 30], np.array([0, 1 << 40])),
        (Box(dtype="uint16", shape=()), [0, 65_535], np.array([0, 65_536], np.uint32)),
        (Box(dtype="bool", shape=()), [0, 1], np.array([0, 2], np.uint8)),
        (Discrete(n=9, dtype="int8"), [0, 8], np.array([0, 256])),
        (MultiBinary(shape=()), [0, 1], np.array([0, 257])),
    ],
)
def test_integers_do_not_wrap(space: Space, fits: list[int], wrong: np.ndarray) -> None:
    values = SpaceValues(space, "observation")
    assert values.to_leaves(fits, 2, "x")["observation"].tolist() == fits
    with pytest.raises(InvalidInputError, match=f"x: {wrong[1]}, expected numbers that"):
        values.to_leaves(wrong, 2, "x")


def test_several_integers_start_where_the_space_says() -> None:
    space = MultiDiscrete(n=(3, 200), shape=(2,), dtype="int16", starts=(5, -100))
    values = SpaceValues({"a": space}, "observation")
    leaves = values.to_leaves({"a": [[5, -100], [7, 99]]}, 2, "x")
    assert leaves["a"].tolist() == [[0, 0], [2, 199]]
    assert leaves["a"].dtype == np.int16
    own = values.from_leaves(leaves)
    assert own["a"].tolist() == [[5, -100], [7, 99]]  # type: ignore[call-overload]
    drawn = values.sample(50, np.random.default_rng(0))["a"]  # type: ignore[call-overload]
    assert set(drawn[:, 0]) == {5, 6, 7}
    # The second one wraps around if it is computed in int16.
    for row, match in (([4, 0], r"4 is outside 5\.\.7"), ([5, -32768], "outside -100..99")):
        with pytest.raises(InvalidInputError, match=rf"x\[a\]: .*{match}"):
            values.to_leaves({"a": [row]}, 1, "x")


@pytest.mark.parametrize("numbers", [np.array([0.1, 1 / 3]), np.array([7, (1 << 24) + 1])])
def test_floats_can_be_rounded(numbers: np.ndarray) -> None:
    values = SpaceValues(Box(dtype="float32", shape=()), "observation")
    leaf = values.to_leaves(numbers, 2, "x")["observation"]
    np.testing.assert_array_equal(leaf, numbers.astype(np.float32))


def test_bfloat16_is_rounded_too() -> None:
    values = SpaceValues(Box(dtype="bfloat16", shape=()), "observation")
    leaf = values.to_leaves([0.1, 1 / 3], 2, "x")["observation"]
    np.testing.assert_allclose(leaf.astype(np.float64), [0.1, 1 / 3], rtol=1e-2)


@pytest.mark.parametrize(
    ("space", "final", "wrong"),
    [
        (STATE, np.array([[np.nan] * 4, [1.0] * 4]), "NaN or infinity in slot 0"),
        (Discrete(n=3, start=5), np.array([9, 6]), "9 is outside"),
        (Discrete(n=3, start=5), np.array([0.5, 6.0]), r"x: 0\.5, expected numbers"),
    ],
)
def test_values_of_slots_that_do_not_matter_can_be_anything(
    space: Space, final: np.ndarray, wrong: str
) -> None:
    values = SpaceValues(space, "observation")
    nobody, second = np.array([False, False]), np.array([False, True])
    for chosen in (nobody, second):
        leaf = values.to_leaves(final, 2, "x", chosen)["observation"]
        np.testing.assert_array_equal(leaf[1], final[1])
    for chosen in (None, ~second):
        with pytest.raises(InvalidInputError, match=wrong):
            values.to_leaves(final, 2, "x", chosen)


def test_final_observations_matter_where_an_episode_ended(serve: Serve) -> None:
    final = np.array([[np.nan] * 4, [1.0] * 4])
    with make_client(serve(), slots=2) as client:
        client.step(np.zeros((2, 4)))
        ends = np.array([False, True])
        result = client.step(np.zeros((2, 4)), [1.0, 1.0], None, ends, final)
        assert [end.slot for end in result.episodes] == [1]
        with pytest.raises(InvalidInputError, match="NaN or infinity in slot 0"):
            client.step(np.zeros((2, 4)), [1.0, 1.0], None, ~ends, final)


def test_lists_of_different_lengths_name_their_leaf() -> None:
    values = SpaceValues({"a": STATE, "b": MOVE}, "observation")
    with pytest.raises(InvalidInputError, match=r"x\[a\]: lists of .* of shape \[4\]") as raised:
        values.row_to_leaves({"a": RAGGED, "b": 0}, "x")
    assert raised.value.field == "x[a]"
    with pytest.raises(InvalidInputError, match=r"x\[a\]: lists of .* of shape \[2, 4\]"):
        values.to_leaves({"a": RAGGED, "b": [0, 1]}, 2, "x")
    with pytest.raises(InvalidInputError, match=r"x\[a\]: lists of different lengths"):
        values.count_slots({"a": RAGGED, "b": 0}, "x")


@pytest.mark.parametrize("space", [{}, None, {"a": 3}, {1: STATE}, [STATE]])
def test_a_space_that_is_none_is_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match="expected a leaf of relaax_like"):
        RlxClient("127.0.0.1:1", space, MOVE)


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0},
        {"slots": 2**32},
        {"name": "a\nb"},
        {"name": "x" * 101},
        {"timeout_sec": 0},
        {"timeout_sec": math.inf},
        {"connect_timeout_sec": 1e10},
        {"max_wait_ms": 5, "answer_timeout_sec": math.inf},
    ],
)
def test_a_bad_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        RlxClient("127.0.0.1:1", STATE, MOVE, **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"slots": 1.0}, "slots: 1.0, a value of type float, expected an integer"),
        ({"slots": True}, "slots: True, a value of type bool, expected an integer"),
        ({"max_wait_ms": 1.5}, "max_wait_ms: 1.5, .* expected an integer"),
        ({"max_wait_ms": "20"}, "max_wait_ms: '20', .* expected an integer"),
        ({"max_wait_ms": True}, "max_wait_ms: True, .* expected an integer"),
        ({"max_wait_ms": 5, "answer_timeout_sec": "1"}, "answer_timeout_sec: '1', .* a number"),
        ({"timeout_sec": "a"}, r"timeout_sec \(--timeout\): 'a', .* expected a number"),
        ({"connect_timeout_sec": None}, "connect_timeout_sec: None, .* expected a number"),
        ({"name": 5}, "name: 5, .* expected a text"),
        ({"name": 0}, "name: 0, .* expected a text"),
        ({"exploit": "no"}, "exploit: 'no', .* expected True or False"),
        ({"security": "x"}, "security: 'x', .* expected an instance of ClientSecurity"),
        ({"retry": 3}, "retry: 3, .* expected an instance of Retry"),
        ({"report": 3}, "report: 3, .* expected a function"),
        ({"address": None}, "address: None, .* expected a text"),
        ({"address": b"127.0.0.1:1"}, "address: b'127.0.0.1:1', .* expected a text"),
    ],
)
def test_an_option_of_a_wrong_type_is_refused(options: dict[str, Any], expected: str) -> None:
    arguments = {
        "address": "127.0.0.1:1",
        "observation_space": STATE,
        "action_space": MOVE,
        **options,
    }
    with pytest.raises(ConfigError, match=expected):
        RlxClient(**arguments)


@pytest.mark.parametrize("token", [12345, b"12345", None])
def test_a_token_of_a_wrong_type_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(ConfigError, match=r"token: a value of type .* expected a text") as raised:
        RlxClient("127.0.0.1:1", STATE, MOVE, token=token)
    assert "12345" not in str(raised.value)


def test_numbers_of_numpy_are_options(serve: Serve) -> None:
    options: dict[str, Any] = {
        "slots": np.int64(2),
        "timeout_sec": np.float32(5),
        "connect_timeout_sec": np.int32(5),
        "exploit": np.bool_(True),
    }
    server = serve()
    with make_client(server, **options):
        assert server.sessions[0].hello.slots == 2
        assert server.sessions[0].hello.mode == rlx_pb2.EXPLOIT


@pytest.mark.parametrize("success", ["yes", "1", 0.5, 2, [True]])
def test_a_success_that_is_none_is_refused_and_nothing_is_sent(serve: Serve, success: Any) -> None:
    server = serve()
    with make_client(server) as client:
        client.act(ZEROS)
        with pytest.raises(InvalidInputError, match=r"success: .*expected") as raised:
            client.reward_and_reset(1.0, success=success)
        assert raised.value.field == "success"
        assert client.reward_and_reset(1.0, success=np.bool_(True)) == 1.0


@pytest.mark.parametrize(
    ("point", "field"),
    [((5, 1.0), "name"), (("lives", "b"), "y"), (("lives", None), "y"), (("lives", 1, "c"), "x")],
)
def test_a_point_of_wrong_types_is_refused(point: Any, field: str) -> None:
    with pytest.raises(InvalidInputError, match="expected a") as raised:
        ScalarBuffer().append(*point)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("address", "want"),
    [
        ("localhost:7002", ("localhost", 7002)),
        ("[::1]:80", ("::1", 80)),
        ("a.b:65535", ("a.b", 65535)),
    ],
)
def test_parse_address(address: str, want: tuple[str, int]) -> None:
    assert parse_address(address) == want


@pytest.mark.parametrize(
    "address",
    [
        *("", ":7001", "host:", "host:0", "host:65536", "host:x", "host:" + "9" * 5000),
        *("[::1:7001", "[host:7001"),
    ],
)
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        parse_address(address)


@pytest.mark.parametrize("address", ["localhost", "localhost:", "::1", "[::1]", "10.0.0.1"])
def test_an_address_without_a_port_is_named_so(address: str) -> None:
    with pytest.raises(ConfigError, match=r"port missing, or .*; expected HOST:PORT") as raised:
        RlxClient(address, STATE, MOVE)
    assert repr(address) in str(raised.value)


@pytest.mark.parametrize("address", ["rlx://localhost:7001", "localhost:7001/", "/tmp/socket"])
def test_a_url_or_a_path_is_named_so(address: str) -> None:
    with pytest.raises(ConfigError, match="a URL or a path; expected HOST:PORT"):
        parse_address(address)


def test_a_connection_that_is_closed_meanwhile_does_not_end_a_ping(serve: Serve) -> None:
    class Dropping(frozenset[str]):
        def __contains__(self, name: object) -> bool:
            client.close()  # in another thread
            return True

    client = make_client(serve())
    client.features = Dropping()
    client.ping()


# Errors of the server and losses.


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_refused_connection_says_so() -> None:
    with pytest.raises(ServerUnavailableError, match=r"cannot connect .* is the server running"):
        RlxClient(f"127.0.0.1:{free_port()}", STATE, MOVE)


def test_a_refused_hello_is_not_worth_a_retry(serve: Serve) -> None:
    server = serve(Role(refuse=(rlx_pb2.SPACE_MISMATCH, "no such luck")))
    with pytest.raises(ProtocolError, match="no such luck") as raised:
        make_client(server, retry=QUICK)
    assert raised.value.code == "SPACE_MISMATCH"
    assert server.refused == 1


def test_a_refused_token_is_not_worth_a_retry(serve: Serve) -> None:
    server = serve(Role(refuse=(rlx_pb2.UNAUTHENTICATED, "no such luck")))
    with pytest.raises(NotAllowedError, match="no such luck"):
        make_client(server, retry=QUICK)
    assert server.refused == 1


@pytest.mark.parametrize("code", [rlx_pb2.OVERLOADED, rlx_pb2.UNAVAILABLE])
def test_an_overloaded_server_is_tried_again(serve: Serve, code: int) -> None:
    server = serve(Role(refuse=(code, "come back later"), refusals=2))
    with pytest.raises(ServerUnavailableError, match="come back later"):
        make_client(server)
    lines: list[str] = []
    with make_client(server, retry=QUICK, report=lines.append) as client:
        assert client.act(ZEROS) is not None
    assert server.refused == 2
    assert lines == [f"waiting for the rlx server at {server.address}"]


def test_after_the_quiet_time_each_attempt_is_reported(serve: Serve) -> None:
    server = serve(Role(refuse=(rlx_pb2.OVERLOADED, "come back later"), refusals=2))
    lines: list[str] = []
    retry = dataclasses.replace(QUICK, quiet_sec=0)
    make_client(server, retry=retry, report=lines.append).close()
    assert len(lines) == 2
    assert all("come back later; retrying in 0.0 s" in line for line in lines)


def test_an_error_in_the_session_names_code_and_field(serve: Serve) -> None:
    error = (rlx_pb2.INVALID_FIELD, "wrong reward", "rewards")
    with make_client(serve(Role(error_at=2, error=error))) as client:
        client.act(ZEROS)
        with pytest.raises(ProtocolError, match="wrong reward") as raised:
            client.reward_and_act(1.0, ZEROS)
        assert (raised.value.code, raised.value.field) == ("INVALID_FIELD", "rewards")
        for verb in (lambda: client.act(ZEROS), lambda: client.reward_and_act(1.0, ZEROS)):
            with pytest.raises(ServerUnavailableError, match=r"reconnect\(\) and start new"):
                verb()


def make_error(code: int) -> bytes:
    message = rlx_pb2.ServerMessage(error={"code": code, "message": "come back later"})
    return pack_frame(message.SerializeToString())


LATE_ANSWER = pack_frame(rlx_pb2.ServerMessage(actions={"version": 1}).SerializeToString())


@pytest.mark.parametrize(
    ("sent", "match"),
    [
        (make_error(rlx_pb2.UNAVAILABLE), "^come back later$"),
        (make_error(rlx_pb2.OVERLOADED), "^come back later$"),
        (LATE_ANSWER + make_error(rlx_pb2.UNAVAILABLE), "^come back later$"),
        (LATE_ANSWER, "lost the rlx server"),
        (b"", "lost the rlx server"),
    ],
    ids=["unavailable", "overloaded", "answer and unavailable", "answer", "nothing"],
)
def test_what_a_server_sent_before_it_closed_is_raised_by_the_next_message(
    serve: Serve, sent: bytes, match: str
) -> None:
    size = 32 << 20  # more than sockets buffer: the server closes while the client is sending
    server = serve(Role(close_unread=sent))
    with RlxClient(server.address, Box(dtype="uint8", shape=(size,)), MOVE) as client:
        with pytest.raises(ServerUnavailableError, match=match):
            client.act(np.zeros(size, np.uint8))


# Late answers.


def make_limited(server: ScriptedServer) -> RlxClient:
    return make_client(server, max_wait_ms=1000, answer_timeout_sec=1.0)


def play_until_act_is_late(client: RlxClient, answers: threading.Event) -> None:
    """Gets no answer to the end of an episode, and to the begin of the next one, in time."""
    client.act(ZEROS)
    answers.clear()
    with pytest.raises(LateAnswerError, match="begin the next episode"):
        client.reward_and_reset(1.0)
    with pytest.raises(LateAnswerError, match="pass it as executed"):
        client.act(ZEROS)
    answers.set()


def test_an_episode_has_its_own_score_after_late_answers(
    serve: Serve, answers: threading.Event
) -> None:
    with make_limited(serve(Role(answers=answers))) as client:
        play_until_act_is_late(client, answers)
        assert client.reward_and_reset(2.0, executed=1) == 2.0
        assert client.late_answers == 2
        client.act(ZEROS)
        assert client.reward_and_reset(3.0) == 3.0


def test_the_score_of_a_late_episode_is_not_taken_for_a_missing_one(
    serve: Serve, answers: threading.Event
) -> None:
    answer = rlx_pb2.ServerMessage(actions={"version": 1, "step_id": 4})
    role = Role(answers=answers, garbage_at=4, garbage=pack_frame(answer.SerializeToString()))
    with make_limited(serve(role)) as client:
        play_until_act_is_late(client, answers)
        with pytest.raises(ProtocolError, match="no score for the episode that"):
            client.reward_and_reset(2.0, executed=1)


def test_after_a_late_answer_executed_is_due_until_a_step_is_sent(
    serve: Serve, answers: threading.Event
) -> None:
    server = serve(Role(answers=answers))
    with make_limited(server) as client:
        answers.clear()
        with pytest.raises(LateAnswerError, match="pass it as executed"):
            client.act(ZEROS)
        answers.set()
        for refused in (
            lambda: client.reward_and_act(1.0, [0, 0, 0], executed=1),
            lambda: client.step(None, [1.0], executed=[1]),
            lambda: client.step([[0, 0, 0]], [1.0], executed=[1]),
        ):
            with pytest.raises(InvalidInputError):
                refused()
            with pytest.raises(OutOfOrderError, match="executed: missing"):
                client.reward_and_act(1.0, ZEROS)
            for too_early in (lambda: client.act(ZEROS), lambda: client.step(ZEROS[None])):
                with pytest.raises(OutOfOrderError, match="with executed, because the last step"):
                    too_early()
        client.reward_and_act(1.0, ZEROS, executed=1)
        client.reward_and_act(1.0, ZEROS)
    _, second, third = server.sessions[0].steps
    assert second.executed == {"action": np.array([1])}
    assert third.executed is None


def test_after_a_late_answer_without_executed_the_cure_is_to_reconnect(
    serve: Serve, answers: threading.Event
) -> None:
    role = Role(answers=answers, features=("max_wait", "step_id", "timings"))
    with make_limited(serve(role)) as client:
        answers.clear()
        with pytest.raises(LateAnswerError, match=r"call reconnect\(\) and begin new episodes"):
            client.act(ZEROS)
        answers.set()
        with pytest.raises(OutOfOrderError, match=r"in time, so call reconnect\(\) first"):
            client.act(ZEROS)
        with pytest.raises(OutOfOrderError, match=r"executed: missing.*; call reconnect\(\) and"):
            client.reward_and_act(1.0, ZEROS)
        with pytest.raises(OutOfOrderError, match="do not pass it"):
            client.reward_and_act(1.0, ZEROS, executed=1)
        client.connect()
        client.act(ZEROS)
        assert client.reward_and_reset(2.0) == 2.0


def test_server_that_never_answers_times_out(serve: Serve) -> None:
    with make_client(serve(Role(hang_at=2)), timeout_sec=2.0) as client:
        client.act(ZEROS)
        with pytest.raises(ServerUnavailableError, match="no reply within 2 s"):
            client.reward_and_act(1.0, ZEROS)


@pytest.mark.parametrize(
    ("garbage", "match"),
    [
        (b"\xff\xff\xff\xff", ": a message of 4294967295 bytes was announced"),
        (struct.pack(">I", 3) + b"\xff\xff\xff", "not an rlx protocol message"),
        (struct.pack(">I", 0), "without a known body"),
        (
            struct.pack(">I", 4)
            + rlx_pb2.ServerMessage(ready={"session": ""}).SerializeToString()
            + b"\x0a\x00",
            "received 'ready' in reply to a step, expected 'actions'",
        ),
        (
            (lambda body: struct.pack(">I", len(body)) + body)(
                rlx_pb2.ServerMessage(actions={"version": 1}).SerializeToString()
            ),
            "actions: got leaves",
        ),
    ],
)
def test_garbage_from_a_server_is_a_protocol_error(
    serve: Serve, garbage: bytes, match: str
) -> None:
    with make_client(serve(Role(garbage_at=1, garbage=garbage))) as client:
        with pytest.raises(ProtocolError, match=match):
            client.act(ZEROS)
        with pytest.raises(ServerUnavailableError):
            client.act(ZEROS)


def test_dropped_in_an_episode_then_reconnected_begins_a_fresh_one(serve: Serve) -> None:
    server = serve(Role(drop_at={0: 2}))
    lines: list[str] = []
    with make_client(server, retry=QUICK, report=lines.append) as client:
        client.act(ZEROS)
        with pytest.raises(ServerUnavailableError, match="lost the rlx server") as raised:
            client.reward_and_act(1.0, ZEROS)
        assert client.reconnect(raised.value)
        assert client.act(ZEROS) is not None
        assert client.reward_and_reset(1.0) == 1.0
    assert [len(session.steps) for session in server.sessions] == [2, 2]
    assert ["retrying in" in line for line in lines] == [True, False]


def test_reconnect_waits_for_a_server_that_starts_later(serve: Serve) -> None:
    server = serve()
    waiting = threading.Event()
    with make_client(server, retry=QUICK, report=lambda line: waiting.set()) as client:
        client.act(ZEROS)
        server.close()
        with pytest.raises(ServerUnavailableError):
            client.reward_and_act(1.0, ZEROS)
        back = threading.Thread(target=client.reconnect)
        back.start()
        assert waiting.wait(30)
        later = serve(port=server.port)
        back.join(60)
        assert client.act(ZEROS) is not None
    assert len(later.sessions) == 1


def test_reconnect_gives_up_at_stop_and_after_its_attempts() -> None:
    port = free_port()
    retry = Retry(min_sleep_sec=0, max_sleep_sec=0, max_attempts=3, quiet_sec=0)
    lines: list[str] = []
    with pytest.raises(ServerUnavailableError, match="cannot connect"):
        RlxClient(f"127.0.0.1:{port}", STATE, MOVE, retry=retry, report=lines.append)
    assert len(lines) == 2


def test_stop_ends_a_reconnect_in_its_sleep(serve: Serve) -> None:
    server = serve()
    with make_client(server, retry=Retry(min_sleep_sec=1000, max_sleep_sec=1000)) as client:
        stop = threading.Event()
        stop.set()
        assert client.reconnect(stop=stop) is False


def test_sleeps_are_drawn_between_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    lines: list[str] = []
    with pytest.raises(ServerUnavailableError):
        RlxClient(
            f"127.0.0.1:{free_port()}",
            STATE,
            MOVE,
            retry=Retry(max_attempts=200),
            report=lines.append,
        )
    # A server that is just starting is found soon.
    assert 0.125 <= slept[0] <= 0.25
    assert 0.25 <= slept[1] <= 0.5
    later = slept[6:]
    assert len(set(later)) > 100
    assert min(later) >= 1
    assert max(later) <= 10
    assert max(later) - min(later) > 5


@pytest.mark.parametrize("bounds", [(-1, 1), (2, 1), (math.nan, 1), (0, math.inf)])
def test_impossible_sleeps_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="min_sleep_sec <= max_sleep_sec"):
        Retry(min_sleep_sec=bounds[0], max_sleep_sec=bounds[1])


@pytest.mark.parametrize(
    "attributes",
    [{"min_sleep_sec": "1"}, {"max_sleep_sec": None}, {"quiet_sec": "a"}, {"max_attempts": 1.5}],
)
def test_sleeps_and_attempts_of_a_wrong_type_are_refused(attributes: dict[str, Any]) -> None:
    [name] = attributes
    with pytest.raises(ConfigError, match=f"retry: {name}: .* expected a"):
        Retry(**attributes)


@pytest.mark.parametrize("attempts", [0, -1])
def test_an_impossible_number_of_attempts_is_refused(attempts: int) -> None:
    with pytest.raises(ConfigError, match=f"max_attempts is {attempts}, expected 1 or more"):
        Retry(max_attempts=attempts)


def test_attempts_continue_however_long_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def connect(client: RlxClient) -> None:
        nonlocal attempts
        attempts += 1
        raise ServerUnavailableError("away")

    monkeypatch.setattr(RlxClient, "connect", connect)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(ServerUnavailableError, match="away"):
        RlxClient("a:1", STATE, MOVE, retry=Retry(max_attempts=1100), report=lambda line: None)
    assert attempts == 1100


def test_message_longer_than_the_server_reads_is_refused_here(serve: Serve) -> None:
    server = serve(Role(max_message_bytes=1000))
    with RlxClient(server.address, Box(dtype="uint8", shape=(2000,)), MOVE) as client:
        with pytest.raises(InvalidInputError, match="accepts at most 1000; use fewer slots"):
            client.act(np.zeros(2000, np.uint8))


def test_close_twice_and_warning_when_dropped_open(serve: Serve) -> None:
    server = serve()
    client = make_client(server)
    client.close()
    client.close()
    dropped = make_client(server)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del dropped


# Metrics.


def test_latency_and_scalars_arrive(serve: Serve) -> None:
    server = serve()
    with make_client(server) as client:
        client.act(ZEROS)
        client.scalar("lives", 3)
        client.scalar("lives", 2, x=10)
        client.reward_and_act(1.0, ZEROS)
    server.wait_for(lambda s: len(s.scalars) == 3)
    assert server.scalars[:2] == [("lives", 3.0, None), ("lives", 2.0, 10.0)]
    name, mean, _ = server.scalars[2]
    assert name == "client latency"
    assert 0 < mean < 60


def test_latency_is_one_mean_per_interval() -> None:
    now = [0.0]
    buffer = ScalarBuffer(interval_sec=1.0, clock=lambda: now[0])
    buffer.measure(0.25)
    buffer.measure(0.75)
    assert len(buffer) == 0
    now[0] = 1.0
    buffer.measure(0.5)
    buffer.end_interval()
    assert [[(p.name, p.y) for p in one.scalars] for one in buffer.take()] == [
        [("client latency", 0.5)]
    ]


def test_scalars_are_due_by_time_and_by_number() -> None:
    now = [0.0]
    buffer = ScalarBuffer(interval_sec=1.0, clock=lambda: now[0])
    assert not buffer.due
    buffer.append("a", 1)
    assert not buffer.due
    now[0] = 1.0
    assert buffer.due
    assert [len(request.scalars) for request in buffer.take()] == [1]
    for i in range(1000):
        assert not buffer.due
        buffer.append("a", i)
    assert buffer.due
    for i in range(10_500):
        buffer.append("a", i)
    assert len(buffer) == 10_000
    assert buffer.dropped == 1500
    assert [len(request.scalars) for request in buffer.take()] == [1000] * 10


def test_scalars_go_out_with_a_thousand_points_without_any_step(serve: Serve) -> None:
    server = serve()
    with make_client(server) as client:
        for i in range(1000):
            client.scalar("fast", i)
        server.wait_for(lambda s: len(s.scalars) == 1000)


def test_scalars_go_out_in_messages_that_the_server_reads(serve: Serve) -> None:
    server = serve(Role(max_message_bytes=1000))
    with make_client(server) as client:
        for i in range(1000):
            client.scalar("fast", i)
        server.wait_for(lambda s: len(s.scalars) == 1000)


@pytest.mark.parametrize(
    ("y", "x", "field"),
    [
        (float("nan"), None, "y"),
        (float("inf"), 1, "y"),
        (10**400, None, "y"),
        (0.0, -(10**400), "x"),
    ],
)
def test_a_scalar_that_is_no_finite_number_is_refused(
    y: float, x: float | None, field: str
) -> None:
    buffer = ScalarBuffer()
    text = rf"scalar 'a': {field} is .*, expected a finite number"
    with pytest.raises(InvalidInputError, match=text) as caught:
        buffer.append("a", y, x)
    assert caught.value.field == field
    assert len(buffer) == 0


def test_a_scalar_that_is_too_long_for_a_message_is_dropped() -> None:
    buffer = ScalarBuffer()
    for name in ("a", "b", "n" * 200, "c"):
        buffer.append(name, 1.5)
    requests = list(buffer.take(50))
    assert [[point.name for point in request.scalars] for request in requests] == [
        ["a", "b"],
        ["c"],
    ]
    assert max(request.ByteSize() for request in requests) <= 50
    assert buffer.dropped == 1


@pytest.mark.parametrize(
    ("name", "y", "x"),
    [("", 1, None), ("n" * 201, 1, None), ("a", np.nan, None), ("a", 1, np.inf)],
)
def test_a_bad_scalar_is_refused(name: str, y: float, x: float | None) -> None:
    with pytest.raises(InvalidInputError, match="expected"):
        ScalarBuffer().append(name, y, x)


# Round trips of every kind of space.

FLOATS = ("float16", "float32", "float64")
INTEGERS = [name for name in DTYPES if "int" in name]
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    dtype, shape = draw(st.sampled_from([*FLOATS, *INTEGERS])), draw(shapes)
    if dtype in INTEGERS or draw(st.booleans()):
        return Box(dtype=dtype, shape=shape)
    low, high = np.full(shape, -2, dtype), np.full(shape, 3, dtype)
    return Box(
        dtype=dtype,
        shape=shape,
        low=low if draw(st.booleans()) else None,
        high=high if draw(st.booleans()) else None,
    )


spaces: st.SearchStrategy[Space] = st.one_of(
    boxes(),
    st.builds(Discrete, n=st.integers(1, 9), start=st.integers(-5, 5)),
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(
        lambda n: MultiDiscrete(n=tuple(n), shape=(len(n),))
    ),
    st.builds(MultiBinary, shape=shapes),
)
user_spaces = st.one_of(spaces, st.dictionaries(st.sampled_from("abc"), spaces, min_size=1))


@given(space=user_spaces, slots=st.integers(1, 4), seed=st.integers(0, 99))
def test_sampled_values_fit_their_space_and_come_back(space: Any, slots: int, seed: int) -> None:
    values = SpaceValues(space, "observation")
    sampled = values.sample(slots, np.random.default_rng(seed))
    leaves = values.to_leaves(sampled, slots, "x")
    for name, leaf in leaves.items():
        box = values.spaces[name]
        if isinstance(box, Box):
            assert box.low is None or (leaf >= box.low).all()
            assert box.high is None or (leaf <= box.high).all()
    back = values.from_leaves(leaves)
    np.testing.assert_equal(back, sampled)
    row = values.row_to_leaves(values.first_row(back), "x")
    np.testing.assert_equal(row, {name: leaf[:1] for name, leaf in leaves.items()})


def test_the_client_imports_nothing_heavy() -> None:
    code = (
        "import json, sys, relaax_like.client;"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"grpc", "tensorflow", "gymnasium", "pygame", "yaml", "pydantic", "numba", "typer"}
    assert heavy & set(json.loads(ran.stdout)) == set()
    code = (
        "import sys, relaax_like.client; print([n for n in sys.modules if n[:11] == 'relaax_like'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    allowed = ("relaax_like", "relaax_like.wire", "relaax_like.v1", "relaax_like.client")
    for name in json.loads(ran.stdout.replace("'", '"')):
        assert ".".join(name.split(".")[:2]) in allowed
