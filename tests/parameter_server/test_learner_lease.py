"""LearnerLease: one holder, with a term that no later start grants again."""

import json
import math
import time
from pathlib import Path

import pytest
from support.threads import wait_until

from relaax_like.parameter_server.learner_lease import LEASE_SEC, NAME, LearnerLease
from relaax_like.wire.errors import LeasedError, ServerUnavailableError, SnapshotError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_second_learner_waits_until_the_first_renews_no_more(tmp_path: Path) -> None:
    clock = Clock()
    lease = LearnerLease(tmp_path, clock=clock)
    first = lease.grant("one", "localhost:1")
    assert lease.grant("one", "localhost:1") == first  # its answer was lost
    clock.now += LEASE_SEC - 1
    with pytest.raises(ServerUnavailableError, match=r"one at localhost:1, holds .* in 1\.0 s"):
        lease.grant("two", "localhost:2")
    lease.renew(first)
    clock.now += LEASE_SEC - 1
    with pytest.raises(ServerUnavailableError):
        lease.grant("two", "localhost:2")
    lease.require(first)
    clock.now += 1
    lease.require(first)  # nobody else has it
    assert lease.grant("two", "localhost:2") == first + 1
    ended = f"term {first} of the lease has ended: two at localhost:2"
    for call in (lease.require, lease.renew):
        with pytest.raises(LeasedError, match=ended):
            call(first)
    assert (lease.term, lease.holder, lease.address) == (first + 1, "two", "localhost:2")


def test_a_term_outlives_the_server_and_its_holder_has_the_whole_time_again(tmp_path: Path) -> None:
    clock = Clock()
    lease = LearnerLease(tmp_path, clock=clock)
    first = lease.grant("one", "localhost:1")
    clock.now += LEASE_SEC - 1
    again = LearnerLease(tmp_path, clock=clock)
    assert (again.term, again.address) == (first, "localhost:1")
    clock.now += LEASE_SEC - 1
    with pytest.raises(ServerUnavailableError):
        again.grant("two", "localhost:2")
    again.renew(first)
    clock.now += LEASE_SEC
    assert again.grant("two", "localhost:2") == first + 1
    assert LearnerLease(tmp_path, clock=clock).term == first + 1


def test_a_learner_whose_lease_is_lost_with_the_folder_is_to_restart(tmp_path: Path) -> None:
    with pytest.raises(LeasedError, match=r"term 3 .*: no learner holds the lease; restart"):
        LearnerLease(tmp_path).renew(3)


def test_without_a_holder_no_term_is_accepted(tmp_path: Path) -> None:
    lease = LearnerLease(tmp_path)
    for call in (lease.require, lease.renew):
        with pytest.raises(LeasedError, match=r"term 0 .*: no learner holds the lease"):
            call(0)


def test_a_learner_of_a_lost_lease_is_refused_once_another_one_has_it(tmp_path: Path) -> None:
    old = LearnerLease(tmp_path).grant("one", "localhost:1")
    (tmp_path / NAME).unlink()
    lease = LearnerLease(tmp_path)
    wait_until(lambda: time.time_ns() // 1_000_000 > old, "the next millisecond, and term")
    new = lease.grant("two", "localhost:2")
    with pytest.raises(LeasedError, match=f"two at localhost:2 learns with term {new}"):
        lease.renew(old)


def test_a_term_that_could_not_be_written_is_not_granted(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    lease = LearnerLease(folder)  # which is not there
    with pytest.raises(ServerUnavailableError, match="could not be written"):
        lease.grant("one", "localhost:1")
    assert lease.term == 0
    folder.mkdir()
    assert lease.grant("one", "localhost:1") == lease.term > 0


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("{", "cannot be read"),
        (json.dumps({"format": 1, "term": 3}), "cannot be read"),
        (json.dumps({"format": 1, "term": math.inf}), "cannot be read"),
        (json.dumps({"format": 9, "term": 3, "holder": "x", "address": "y"}), "format 9, but"),
        (json.dumps({"format": 9, "learners": []}), "format 9, but"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, text: str, want: str
) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(SnapshotError, match=want) as error:
        LearnerLease(tmp_path)
    assert str(tmp_path / NAME) in str(error.value)
