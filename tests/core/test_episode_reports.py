"""What agents report of their episodes: messages and states keep it; wrong numbers are refused."""

import json

import pytest

from relaax_like.core.episode_reports import (
    pack_reports,
    read_reports,
    to_unlearned,
    unpack_reports,
    validate_reports,
    write_reports,
)
from relaax_like.core.records import Episode, EpisodeReport, Playing
from relaax_like.v1 import experience_pb2, parameter_server_pb2, publisher_pb2
from relaax_like.wire.errors import InvalidInputError

REPORTS: list[EpisodeReport] = [
    Playing("rlx-1/agent-1", 4, 100, 20),
    Episode(-1.5, 7, 3, "rlx-1/agent-1"),
    Episode(2.0, 1),
    Playing("rlx-1/agent-2", 0, 0),
]


@pytest.mark.parametrize(
    "header",
    [
        parameter_server_pb2.PushHeader,
        experience_pb2.ExperienceHeader,
        publisher_pb2.PublishHeader,
    ],
)
def test_messages_and_states_keep_reports(header: type) -> None:
    message = header()
    write_reports(message, REPORTS)
    # Who has left comes last, after the episodes of its slots.
    assert read_reports(header.FromString(message.SerializeToString())) == tuple(REPORTS)
    assert unpack_reports(json.loads(json.dumps(pack_reports(REPORTS)))) == REPORTS
    with pytest.raises(InvalidInputError) as raised:
        read_reports(message, limit=3)
    assert raised.value.field == "episodes"


@pytest.mark.parametrize(
    "wrong",
    [
        Episode(float("nan"), 1),
        Episode(float("inf"), 1),
        Episode(1.0, 0),
        Episode(1.0, (1 << 40) + 1),
        Episode(1.0, 1, -1),
        Episode(1.0, 1, 65_536),
        Episode(1.0, 1, 0, "x" * 301),
        Playing("a", -1, 0),
        Playing("a", 65_537, 0),
        Playing("a", 1, -1),
        Playing("a", 1, (1 << 40) + 1),
        Playing("a", 1, 0, -1),
        Playing("x" * 301, 1, 0),
    ],
)
def test_wrong_reports_are_refused_by_their_place(wrong: EpisodeReport) -> None:
    validate_reports(REPORTS)
    with pytest.raises(InvalidInputError, match=r"^episodes\[4\]") as raised:
        validate_reports([*REPORTS, wrong])
    assert raised.value.field == "episodes"


def test_of_a_rollout_that_is_not_learned_from_only_steps_are_reported() -> None:
    assert to_unlearned(REPORTS[:3]) == [Playing("rlx-1/agent-1", 4, 100, 100)]
