"""Masks of legal actions from the client to the policy, over a real socket. covers PE20"""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support.batch import serve_a2c, serve_batch
from support.masked import ACTIONS, CONFIG, SIZES, SLOTS, draw_masks, is_legal
from support.rlx import RawClient, array, make_hello, make_next, make_step

from relaax_like.client import RlxClient
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.errors import ProtocolError
from relaax_like.wire.ndarray import message_to_ndarray
from relaax_like.wire.spaces import Box, make_masks, space_to_message

SEEN = {"observation": Box(dtype="float32", shape=(4,))}
MASKS = make_masks(ACTIONS)
NONE, LEGAL = (
    {name: array(np.full((1, sum(n)), flag), "bool") for name, n in SIZES.items()}
    for flag in (False, True)
)


@pytest.fixture(scope="module")
def port():
    with serve_a2c(CONFIG) as server, serve_batch(server, CONFIG) as port:
        yield port


@pytest.mark.parametrize("exploit", [False, True], ids=["drawn", "greedy"])
def test_our_client_gets_legal_actions_only(port, exploit):
    random = np.random.default_rng(0)
    spaces = {**SEEN, **MASKS}
    address = f"127.0.0.1:{port}"
    with RlxClient(address, spaces, ACTIONS, slots=SLOTS, exploit=exploit) as client:
        assert "masks" in client.features
        answer, masks = None, None
        for number in range(300):
            if answer is not None:
                assert is_legal(answer.actions, masks)
            before, masks = masks, draw_masks(random)
            values = {"observation": random.normal(size=(SLOTS, 4)).astype(np.float32)}
            values |= {f"mask:{name}": mask for name, mask in masks.items()}
            if answer is None:
                answer = client.step(values)
                continue
            truncated = np.array([number % 7 == 0, False, False])
            finals = dict(values)
            if truncated.any():  # rows of slots that continue are ignored
                finals |= {f"mask:{name}": mask & False for name, mask in before.items()}
                for name in before:
                    finals[f"mask:{name}"][0] = True
            ones, zeros = np.ones(SLOTS), np.zeros(SLOTS, np.bool_)
            answer = client.step(values, ones, zeros, truncated, finals)


def greet(client: RawClient, features: tuple[str, ...] = ("masks",)) -> list[str]:
    hello = make_hello(
        features=features,
        observation_spaces={k: space_to_message(v) for k, v in SEEN.items()},
        action_spaces={k: space_to_message(v) for k, v in ACTIONS.items()},
    )
    return list(client.ask(hello).ready.features)


def observe() -> dict:
    return {"observations": {"observation": array(np.ones((1, 4)))}}


@pytest.mark.parametrize(
    ("masks", "field"),
    [
        ({"move": np.ones((1, 3))}, "masks[move]"),
        ({"move": np.zeros((1, 4))}, "masks[move]"),
        ({"arms": np.array([[1, 1, 1, 0, 0]])}, "masks[arms]"),
        ({"legs": np.ones((1, 4))}, "masks"),
        ({"observation": np.ones((1, 4))}, "masks"),
        ({"move": np.ones((2, 4))}, "masks[move]"),
        ({"move": np.ones(4)}, "masks[move]"),
        ({"move": np.ones((1, 4), np.uint8)}, "masks[move]"),
        ({"move": np.full((1, 4), np.nan, np.float32)}, "masks[move]"),
    ],
    ids=[
        *("too short", "nothing is legal", "nothing of the second component", "no such action"),
        *("an observation", "too many slots", "no slots", "bytes", "NaN"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_wrong_masks_are_refused_by_name(port, masks, field, is_first):
    with RawClient(port) as client:
        greet(client)
        fields = {"masks": to_messages(masks), **observe()}
        if is_first:
            answer = client.ask(make_step(**fields))
        else:
            client.ask(make_step(masks=LEGAL, **observe()))
            for _ in range(3):  # then the layout is known
                client.ask(make_next(masks=LEGAL, **observe()))
            answer = client.ask(make_next(**fields))
        assert (answer.error.code, answer.error.field) == (rlx_pb2.INVALID_FIELD, field)
    assert_alive(port)


def to_messages(masks: dict[str, np.ndarray]) -> dict:
    """Returns masks as they are sent: of float64 or int64 as bool, others as they are."""
    kinds = {"f8": "bool", "i8": "bool", "u1": "uint8", "f4": "float32"}
    return {name: array(one, kinds[one.dtype.str[1:]]) for name, one in masks.items()}


def assert_alive(port: int) -> None:
    """Another client is served."""
    with RawClient(port) as client:
        assert greet(client) == ["masks"]
        answer = client.ask(make_step(masks=LEGAL, **observe()))
        assert answer.WhichOneof("body") == "actions"


END = {"terminated": array([True], "bool")}
CUT = {"truncated": array([True], "bool")}
FINAL = {"final_observations": observe()["observations"]}


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({**END, "final_masks": LEGAL}, rlx_pb2.OUT_OF_ORDER, "final_masks"),
        ({**CUT, "final_masks": LEGAL}, rlx_pb2.INVALID_FIELD, "final_observations"),
        (
            {**CUT, **FINAL, "final_masks": {"move": NONE["move"]}},
            rlx_pb2.INVALID_FIELD,
            "final_masks[move]",
        ),
        (
            {**END, **FINAL, "final_masks": to_messages({"arms": np.ones((1, 4))})},
            rlx_pb2.INVALID_FIELD,
            "final_masks[arms]",
        ),
        (
            {**END, **FINAL, "final_masks": to_messages({"legs": np.ones((1, 4))})},
            rlx_pb2.INVALID_FIELD,
            "final_masks",
        ),
        ({**END, "observations": {}}, rlx_pb2.OUT_OF_ORDER, "masks"),
    ],
    ids=["alone", "alone at a limit", "none", "too short", "no such action", "masks alone"],
)
def test_wrong_masks_at_an_end_are_refused_by_name(port, fields, code, field):
    with RawClient(port) as client:
        greet(client)
        client.ask(make_step(masks=LEGAL, **observe()))
        answer = client.ask(make_next(masks=LEGAL, **{**observe(), **fields}))
        assert (answer.error.code, answer.error.field) == (code, field)
    assert_alive(port)


@pytest.mark.parametrize("field", ["masks", "final_masks"])
def test_masks_that_the_hello_did_not_announce_are_refused_by_name(port, field):
    with RawClient(port) as client:
        assert greet(client, ()) == []
        client.ask(make_step(**observe()))
        answer = client.ask(make_next(**{field: LEGAL}, **observe(), **END, **FINAL))
        assert (answer.error.code, answer.error.field) == (rlx_pb2.OUT_OF_ORDER, field)
    assert_alive(port)


def test_a_leaf_without_a_mask_and_a_client_without_masks_can_do_everything(port):
    for features in (("masks",), ()):
        with RawClient(port) as client:
            assert greet(client, features) == list(features)
            chosen = set()
            answer = client.ask(make_step(**observe()))
            for _ in range(200):
                chosen.add(int(message_to_ndarray(answer.actions.actions["move"])[0]))
                answer = client.ask(make_next(**observe()))
            assert chosen == {2, 3, 4, 5}


def test_what_nothing_follows_from_needs_no_legal_choice(port):
    """Final observations of terminated slots, and those of slots that are absent."""
    none, legal = NONE, LEGAL
    with RawClient(port) as client:
        greet(client, ("masks", "present"))
        answer = client.ask(make_step(masks=legal, **observe()))
        ends = {"terminated": array([True], "bool"), "final_masks": none}
        ends["final_observations"] = observe()["observations"]
        for fields in (ends, {}, {}):
            answer = client.ask(make_next(masks=legal, **{**observe(), **fields}))
            assert answer.WhichOneof("body") == "actions", answer
    with RawClient(port) as client:
        features = greet(client, ("masks", "present"))
        if "present" in features:
            absent = {"present": array([False], "bool")}
            client.ask(make_step(masks=legal, **observe()))
            for _ in range(4):  # parsed, and by layout
                answer = client.ask(make_next(masks=none, **absent, **observe()))
                assert answer.WhichOneof("body") == "actions", answer


def test_observations_cannot_have_the_names_of_masks(port):
    with RawClient(port) as client:
        spaces = {"mask:move": space_to_message(Box(dtype="float32", shape=(4,)))}
        answer = client.ask(make_hello(observation_spaces=spaces))
        assert answer.error.field == "observation_spaces"


@contextlib.contextmanager
def ask_in_json(port: int, features: list[str]) -> Iterator[Callable[[dict], dict]]:
    """Begins a session of one slot; yields what sends a message and returns the answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        lines = connection.makefile("rw")

        def ask(message: dict) -> dict:
            lines.write(json.dumps(message) + "\n")
            lines.flush()
            return json.loads(lines.readline())

        action = {"move": {"discrete": 4, "start": 2}, "arms": {"multi_discrete": [3, 2]}}
        hello = {"name": "j", "observation": {"box": [4]}, "action": action, "features": features}
        assert ask({"hello": hello})["ready"]["features"] == features
        yield ask


SEEN_IN_JSON = {"observation": [1, 2, 3, 4]}


def test_masks_in_json(port):
    with ask_in_json(port, ["masks"]) as ask:
        mask = {"move": [False, True, False, False], "arms": [False, False, True, True, False]}
        step = {**SEEN_IN_JSON, "mask": mask}
        answer = ask({"act": step})
        for _ in range(20):
            assert answer["action"] == {"move": 3, "arms": [2, 0]}
            answer = ask({"reward_and_act": {"reward": 1, **step}})


FINAL_IN_JSON = {"truncated": True, "final_observation": [1, 2, 3, 4]}
ONES_IN_JSON = {"move": [True] * 4, "arms": [True] * 5}
NONE_IN_JSON = {**ONES_IN_JSON, "move": [False] * 4}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mask": NONE_IN_JSON}, "mask.move"),
        ({"mask": {**ONES_IN_JSON, "move": [True] * 3}}, "mask.move"),
        ({"mask": {**ONES_IN_JSON, "move": [1, 1, 1, 1]}}, "mask.move[0]"),
        ({"mask": {**ONES_IN_JSON, "legs": [True]}}, "mask.legs"),
        ({"mask": [True] * 4}, "mask"),
        ({**FINAL_IN_JSON, "final_mask": NONE_IN_JSON}, "final_mask.move"),
        ({"terminated": True, "final_mask": ONES_IN_JSON}, "final_mask"),
    ],
    ids=["none", "short", "numbers", "no such action", "a list", "none at an end", "final alone"],
)
def test_wrong_masks_in_json_are_refused_by_name(port, fields, field):
    with ask_in_json(port, ["masks"]) as ask:
        ask({"act": SEEN_IN_JSON})
        answer = ask({"reward_and_act": {"reward": 1, **SEEN_IN_JSON, **fields}})
        assert answer["error"]["field"] == field
    assert_alive(port)


def test_a_mask_in_json_that_the_hello_did_not_announce_is_refused(port):
    with ask_in_json(port, []) as ask:
        answer = ask({"act": {**SEEN_IN_JSON, "mask": ONES_IN_JSON}})
        assert (answer["error"]["code"], answer["error"]["field"]) == ("OUT_OF_ORDER", "mask")


def test_a_run_without_masks_says_why_and_our_client_refuses_to_play(backend_without):
    address = f"127.0.0.1:{backend_without}"
    with pytest.raises(ProtocolError, match=r"masks: .*begun without masks"):
        RlxClient(address, {**SEEN, **MASKS}, ACTIONS)
    with RawClient(backend_without) as client:
        assert greet(client) == []
        answer = client.ask(make_step(masks={"move": array(np.ones((1, 4)), "bool")}, **observe()))
        assert (answer.error.code, answer.error.field) == (rlx_pb2.OUT_OF_ORDER, "masks")
        assert "algorithm.masks" in answer.error.message


@pytest.fixture
def backend_without():
    config = CONFIG.model_copy(update={"masks": {}})
    with serve_a2c(config) as server, serve_batch(server, config) as port:
        yield port
