"""Other spellings of a message mean the same."""

import numpy as np
import pytest

from relaax_like.client_checks import respelling
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.spaces import pack_arrays


def make_answer() -> rlx_pb2.ServerMessage:
    message = rlx_pb2.ServerMessage()
    arrays = {"gear": np.arange(3), "steer": np.zeros((3, 2), np.float32), "x": np.ones(3, bool)}
    pack_arrays(arrays, message.actions.actions)
    message.actions.version = 1 << 40
    message.actions.episodes.add(slot=1, score=-0.5, length=300)
    message.actions.episodes.add(slot=2, score=1.0, length=7)
    message.actions.timings.total_us = 5
    return message


@pytest.mark.parametrize("name", ["reverse_fields", "reverse_maps", "add_unknown"])
def test_a_message_keeps_its_meaning(name: str) -> None:
    message = make_answer()
    body = message.SerializeToString(deterministic=True)
    spelled = respelling.respell(body, getattr(respelling, name))
    assert spelled != body
    read = rlx_pb2.ServerMessage.FromString(spelled)
    if name == "add_unknown":
        assert len(spelled) > len(body) + 6 * 30  # in each message but the entries
        read.DiscardUnknownFields()
    assert read == message
    assert [one.slot for one in read.actions.episodes] == [1, 2]


def test_entries_of_maps_are_reversed() -> None:
    message = make_answer()
    body = message.SerializeToString(deterministic=True)
    spelled = respelling.respell(body, respelling.reverse_maps)
    assert body.index(b"gear") < body.index(b"steer")
    assert spelled.index(b"steer") < spelled.index(b"gear")


def test_json_keeps_its_meaning() -> None:
    body = b'{"action":{"up":[1,0],"speed":[0.1,1e-07]},"version":18446744073709551615}'
    spelled = respelling.respell(body, respelling.reverse_fields)
    assert spelled == b'{"version":18446744073709551615,"action":{"speed":[0.1,1e-07],"up":[1,0]}}'
    spelled = respelling.respell(body, respelling.add_unknown)
    assert spelled == body[:-1] + b',"later":[7,null]}'
