"""Records and messages: fields of the same name are converted, and None is what is not set."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from relaax_like.core.message_fields import to_message, to_record
from relaax_like.core.records import GroupRequest, TableStatus
from relaax_like.v1 import group_pb2, publisher_pb2


class Named(NamedTuple):
    term: int
    overdue_updates: float | None = None


@dataclass(frozen=True)
class Own:
    """A record with a field that the message lacks, and without most of the message's."""

    tag: str
    clip: dict[str, float] = field(default_factory=dict)
    apart: int = 7


def test_a_record_comes_back_equal():
    request = GroupRequest(
        kind="step", iteration=3, tag="a", units=2, groups=("x", "y"), clip={"x": 0.5}
    )
    message = to_message(group_pb2.GroupRequest, request, kind=3)
    assert message.groups == ["x", "y"]
    assert message.clip == {"x": 0.5}
    got = to_record(GroupRequest, message, kind="step", sums=request.sums, gradient=None)
    assert got == request


def test_arrays_fill_repeated_fields():
    request = GroupRequest(kind="sum", sums=np.array([1.0, 2.5]))
    assert to_message(group_pb2.GroupRequest, request, kind=2).sums == [1.0, 2.5]


def test_what_is_none_is_not_set_and_what_is_not_set_is_none():
    message = to_message(publisher_pb2.RenewRequest, TableStatus(0.0, None), term=3)
    assert message.HasField("overdue_updates")
    assert not message.HasField("given_up_step")
    assert not message.HasField("prior_steps")
    assert to_record(TableStatus, message) == TableStatus(0.0, None)
    assert to_record(Named, message) == Named(3, 0.0)


def test_others_replace_fields_and_none_of_them_leaves_one_out():
    own = Own("mine", {"x": 1.0})
    message = to_message(group_pb2.GroupRequest, own, tag="other", clip=None, units=4)
    assert message == group_pb2.GroupRequest(tag="other", units=4)
    assert to_record(Own, message, tag="again") == Own("again", {}, 7)
