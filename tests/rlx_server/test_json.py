"""JSON lines: what is refused, by which field, and what is read exactly. covers PE8, PE9"""

import base64
import json
import socket

import numpy as np
import pytest
from support.rlx import RecordingAgent, serve_rlx

from relaax_like.core.metrics import NullMetrics
from relaax_like.rlx_server.json_codec import JsonCodec
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

HELLO = {"name": "w", "observation": {"box": [2]}, "action": {"discrete": 3}}


class Lines:
    """A client that writes lines and reads lines."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._stream = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()
        self.socket.close()

    def send(self, text):
        text = json.dumps(text) if isinstance(text, dict) else text
        data = text if isinstance(text, bytes) else text.encode()
        self.socket.sendall(data + b"\n")

    def receive(self):
        line = self._stream.readline()
        return json.loads(line) if line else None

    def ask(self, text):
        self.send(text)
        return self.receive()


@pytest.fixture
def lines(port):
    with Lines(port) as lines:
        yield lines


@pytest.fixture
def greeted(lines):
    assert "ready" in lines.ask({"hello": HELLO})
    return lines


def act(observation):
    return {"act": {"observation": observation}}


def refuse(answer):
    error = answer["error"]
    assert error["message"]
    return error["code"], error.get("field", "")


STEPS = [
    ('{"act": {"observation": [0, "1"]}}', "observation[1]"),
    ('{"act": {"observation": [0, true]}}', "observation[1]"),
    ('{"act": {"observation": [0, null]}}', "observation[1]"),
    ('{"act": {"observation": [0, [1]]}}', "observation[1]"),
    ('{"act": {"observation": [0]}}', "observation"),
    ('{"act": {"observation": [0, 1, 2]}}', "observation"),
    ('{"act": {"observation": 1}}', "observation"),
    ('{"act": {"observation": {"observation": [0, 1]}}}', "observation.observation"),
    ('{"act": {"observation": [0, 1e400]}}', "observation[1]"),
    ('{"act": {"observation": [0, 1e39]}}', "observation"),  # beyond float32
    ('{"act": {"observation": [0, 1], "observation": [0, 1]}}', "observation"),
    ('{"act": {"observation": [0, 1], "obs\\u0065rvation": [0, 1]}}', "observation"),
    ('{"act": {"observation": [0, 1], "reward": 1}}', "reward"),
    ('{"act": {}}', "observation"),
    ('{"act": {"obs": [0, 1]}}', "obs"),
    ('{"acts": {"observation": [0, 1]}}', "acts"),
    ('{"act": {"observation": {"base64": "AAAA"}}}', "observation"),
    ('{"act": {"observation": {"base64": "AA!A"}}}', "observation"),
    ('{"act": {"observation": {"base64": "AAAAAAAAAAA=", "integers": []}}}', "observation"),
    ('{"act": {"observation": {}}}', "observation"),
    ('{"act": {"observation": {"integers": ["0", "1"]}}}', "observation"),
]


@pytest.mark.parametrize(("text", "field"), STEPS, ids=[text for text, _ in STEPS])
def test_a_wrong_step_is_refused_by_its_field(greeted, text, field):
    assert refuse(greeted.ask(text)) == ("INVALID_FIELD", field)
    assert greeted.receive() is None


MALFORMED = [
    '{"act": {"observation": [0, NaN]}}',
    '{"act": {"observation": [0, Infinity]}}',
    '{"act": {"observation": [0, 01]}}',
    '{"act": {"observation": [0, 1]}',
    '{"act": {"observation": [0, 1]}} {}',
    '{"act": {"observation": [0, 1]}, "ping": {}}',
    "{}",
    "hello",
    b'{"act": {"observation": [0, "\xff"]}}',
]


@pytest.mark.parametrize("text", MALFORMED, ids=str)
def test_what_is_not_one_message_is_malformed(greeted, text):
    code, _ = refuse(greeted.ask(text))
    assert code in ("MALFORMED", "INVALID_FIELD")
    assert greeted.receive() is None


HELLOS = [
    ({"observation": {"box": 2}}, "observation"),
    ({"observation": {"boxx": [2]}}, "observation"),
    ({"observation": {"box": [2], "low": "a"}}, "observation"),
    ({"observation": {"box": [2], "low": [1, 2, 3]}}, "observation"),
    ({"observation": {"box": [2], "colour": 1}}, "observation"),
    ({"observation": {"box": [2], "dtype": "complex64"}}, "observation"),
    ({"observation": {"a b": {"box": [2]}}}, "observation"),
    ({"action": {"discrete": "3"}}, "action"),
    ({"action": {"discrete": 3.5}}, "action"),
    ({"action": {"discrete": True}}, "action"),
    ({"action": {"discrete": 0}}, "action"),
    ({"action": {"multi_discrete": 3}}, "action"),
    ({"action": {"left": {"discrete": 2}, "right": {"what": 3}}}, "action.right"),
    ({"name": ""}, "name"),
    ({"slots": 0}, "slots"),
    ({"slots": -1}, "slots"),
    ({"slots": 1 << 40}, "slots"),
    ({"mode": "learn"}, "mode"),
    ({"features": "ping"}, "features"),
    ({"colour": "red"}, "colour"),
]


@pytest.mark.parametrize(("fields", "field"), HELLOS, ids=[str(fields) for fields, _ in HELLOS])
def test_a_wrong_hello_is_refused_by_its_field(lines, fields, field):
    code, named = refuse(lines.ask({"hello": HELLO | fields}))
    assert code == "INVALID_FIELD"
    assert named.split("[")[0] == field


def test_keys_that_come_twice_in_a_hello_are_refused(lines):
    text = json.dumps({"hello": HELLO}).replace('"name": "w"', '"name": "w", "name": "v"')
    assert refuse(lines.ask(text)) == ("INVALID_FIELD", "name")


def test_deep_nesting_and_long_text_are_refused(port):
    hello = json.dumps({"hello": HELLO})
    deep = hello.replace("[2]", "[" * 50_000 + "]" * 50_000)
    for text in (deep, '{"hello": ' + "[" * 50_000, hello[:-1] + " " * (1 << 20) + "}"):
        with Lines(port) as lines:
            code, _ = refuse(lines.ask(text))
            assert code in ("MALFORMED", "INVALID_FIELD")


def test_a_step_is_bounded_before_it_is_parsed(lines):
    ready = lines.ask({"hello": HELLO})["ready"]
    assert ready["max_message_bytes"] < 1 << 15
    lines.send('{"act": {"observation": [0, ' + " " * ready["max_message_bytes"] + "1]}}")
    assert refuse(lines.receive())[0] == "MALFORMED"


def test_messages_split_and_merged_empty_lines_and_carriage_returns(port):
    text = json.dumps({"hello": HELLO}) + "\r\n\n  \n" + json.dumps(act([0.5, 1])) + "\r\n"
    with Lines(port) as lines:
        for index in range(len(text)):
            lines.socket.sendall(text[index : index + 1].encode())
        assert "ready" in lines.receive()
        assert lines.receive()["action"] == 0


def test_what_agents_see_is_what_was_sent(greeted):
    greeted.ask(act([0.1, -2]))
    data = base64.b64encode(np.array([0.25, 3], "<f4").tobytes()).decode()
    greeted.ask({"reward_and_act": {"reward": 0.1, "observation": {"base64": data}}})
    end = {"reward": 1, "truncated": True, "final_observation": [7, 8], "success": True}
    answer = greeted.ask({"reward_and_reset": end})
    assert answer == {"episodes": [{"slot": 0, "score": 1.1, "length": 2}]}
    (agent,) = RecordingAgent.instances
    first = np.float32(0.1).item()
    assert agent.calls == [
        ("act", [first, -2.0]),
        ("reward_and_act", 0.1, [0.25, 3.0]),
        ("reward_and_reset", 1.0, [7.0, 8.0], True, True),
    ]


def read(codec, hello, *steps):
    """Gives a codec a hello, then steps; returns their transitions."""
    from relaax_like.rlx_server.greeting import Greeting

    received = codec.read(json.dumps({"hello": hello}).encode(), False, lambda token: None)
    codec.greet(Greeting(received.content, 64))
    return [
        codec.read(json.dumps(step).encode(), index > 0, None).content
        for index, step in enumerate(steps)
    ]


NUMBERS = {
    "integers": {"box": [2], "dtype": "int64"},
    "large": {"box": [], "dtype": "uint64"},
    "image": {"box": [1, 2], "dtype": "uint8"},
    "choice": {"discrete": 3, "start": 5},
    "several": {"multi_discrete": [3, 2]},
    "flags": {"multi_binary": [3]},
    "logical": {"box": [2], "dtype": "bool"},
    "half": {"box": [1], "dtype": "float16"},
}


def test_all_spaces_are_read_exactly():
    codec = JsonCodec()
    observation = {
        "integers": {"integers": ["9007199254740993", "-9223372036854775808"]},
        "large": {"integers": "18446744073709551615"},
        "image": [[0, 255]],
        "choice": 7,
        "several": [2, 1],
        "flags": [1, 0, 1],
        "logical": [True, False],
        "half": [0.5],
    }
    (step,) = read(codec, HELLO | {"observation": NUMBERS}, act(observation))
    came = {name: array.tolist() for name, array in step.observations.items()}
    assert came == {
        "integers": [[9007199254740993, -9223372036854775808]],
        "large": [18446744073709551615],
        "image": [[[0, 255]]],
        "choice": [7],
        "several": [[2, 1]],
        "flags": [[1, 0, 1]],
        "logical": [[True, False]],
        "half": [[0.5]],
    }


@pytest.mark.parametrize(
    ("space", "value"),
    [
        ({"box": [1], "dtype": "uint8"}, [256]),
        ({"box": [1], "dtype": "uint8"}, [-1]),
        ({"box": [1], "dtype": "int32"}, [1.5]),
        ({"box": [1], "dtype": "int64"}, [9007199254740993]),
        ({"box": [1], "dtype": "int64"}, {"integers": ["9223372036854775808"]}),
        ({"box": [1], "dtype": "int64"}, {"integers": ["1_0"]}),
        ({"box": [1], "dtype": "int64"}, {"integers": ["1", "2"]}),
        ({"box": [1], "dtype": "bool"}, [1]),
        ({"discrete": 3}, 3),
        ({"discrete": 3}, 1.0),
        ({"multi_binary": [1]}, [2]),
        ({"multi_binary": [1]}, [True]),
        ({"multi_discrete": [3]}, [3]),
    ],
    ids=str,
)
def test_numbers_that_a_space_does_not_have_are_refused(port, space, value):
    with Lines(port) as lines:
        lines.ask({"hello": HELLO | {"observation": space}})
        code, field = refuse(lines.ask(act(value)))
        assert (code, field.split("[")[0]) == ("INVALID_FIELD", "observation")


def test_large_integers_are_written_exactly():
    codec = JsonCodec()
    read(codec, HELLO | {"action": {"discrete": 3, "start": 1 << 60}})
    text = codec.write_actions({"action": np.array([1 << 60], np.int64)}, 1, 0, {})
    assert json.loads(text) == {"action": {"integers": str(1 << 60)}, "version": 1}
    codec = JsonCodec()
    read(codec, HELLO | {"slots": 2, "action": {"box": [1]}})
    numbers = np.array([[0.1], [1e-45]], np.float32)
    came = json.loads(codec.write_actions({"action": numbers}, 1, 3, {"queue_us": 2}))
    assert np.array_equal(np.array(came["action"], np.float32), numbers)
    assert (came["step_id"], came["timings"]) == (3, {"queue_us": 2})


def test_spaces_arrive_as_they_were_declared():
    from relaax_like.rlx_server.greeting import Greeting

    codec = JsonCodec()
    spaces = {
        "a": {"box": [2], "low": [-1, None], "high": 4, "mirror": [-0.1, 1]},
        "b": {"discrete": 4, "start": -2, "dtype": "int8"},
        "c": {"multi_discrete": [2, 3, 4, 5], "shape": [2, 2], "starts": [1, 1, 1, 1]},
        "d": {"multi_binary": [3]},
    }
    text = json.dumps({"hello": HELLO | {"observation": spaces, "features": ["timings", "ping"]}})
    greeting = Greeting(codec.read(text.encode(), False, lambda token: None).content, 4)
    assert greeting.observation_spaces == {
        "a": Box(dtype="float32", shape=(2,), low=np.float32([-1, -np.inf]), high=4),
        "b": Discrete(n=4, start=-2, dtype="int8"),
        "c": MultiDiscrete(n=(2, 3, 4, 5), shape=(2, 2), starts=(1, 1, 1, 1)),
        "d": MultiBinary(shape=(3,)),
    }
    assert greeting.observation_spaces["a"].mirror == (-0.1, 1)
    assert greeting.features == {"ping", "timings"}


def test_points_and_pings_have_no_answer(backend):
    seen = []

    class Points(NullMetrics):
        def scalar(self, name, y, x=None):
            seen.append((name, y, x))

    metrics = Points()
    with serve_rlx(backend, metrics=metrics) as port, Lines(port) as lines:
        ready = lines.ask({"hello": HELLO | {"features": ["ping"]}})["ready"]
        assert ready["features"] == ["ping"]
        lines.send({"scalars": [{"name": "a: b", "y": 0.5}, {"name": "c", "y": 1, "x": 7}]})
        for _ in range(300):
            lines.send('{"ping":{}}')
            lines.send('{ "ping": { } }')
        assert "action" in lines.ask(act([0, 1]))
        assert ("a: b", 0.5, None) in seen
        assert ("c", 1.0, 7.0) in seen


def test_verbs_out_of_order_are_refused_in_words_of_json(port):
    reward = {"reward": 1, "observation": [0, 1]}
    for before, verb, content in (
        ([], "reward_and_act", reward),
        ([], "reward_and_reset", {"reward": 1}),
        ([act([0, 1])], "act", {"observation": [0, 1]}),
    ):
        with Lines(port) as lines:
            lines.ask({"hello": HELLO})
            for message in before:
                lines.ask(message)
            assert refuse(lines.ask({verb: content})) == ("OUT_OF_ORDER", verb)


def test_errors_of_arrays_name_the_keys_of_json(greeted):
    greeted.ask(act([0, 1]))
    error = greeted.ask({"reward_and_act": {"reward": 1e20, "observation": [0, 1]}})["error"]
    assert (error["code"], error["field"]) == ("INVALID_FIELD", "reward")
    assert "rewards: " not in error["message"]


@pytest.mark.parametrize("text", ["hello", "[1]", " \n{", "nc?"])
def test_other_text_is_answered_with_text(port, text):
    with Lines(port) as lines:
        assert refuse(lines.ask(text))[0] in ("MALFORMED", "INVALID_FIELD")


def test_blanks_before_the_hello_are_skipped(port):
    with Lines(port) as lines:
        assert "ready" in lines.ask("\n  \r\n " + json.dumps({"hello": HELLO}))


@pytest.mark.parametrize("length", [b"\x45\0\0\0", b"\x20\0\0\0", b"\x7f\xff\xff\xff"])
def test_a_length_that_looks_like_text_at_first_is_one_of_a_frame(client, length):
    client.socket.sendall(length + b"abc")
    assert client.receive().error.code == rlx_pb2.MALFORMED


@pytest.mark.parametrize(
    "space",
    [{f"{number}": {} for number in range(20_000)}, {"box": [int("9" * 500)]}],
    ids=["keys", "digits"],
)
def test_a_hello_that_is_dear_to_read_is_refused_before_that(lines, space):
    assert refuse(lines.ask({"hello": HELLO | {"observation": space}})) == ("MALFORMED", "")
