"""Counting what was accepted, and telling which experience it came with."""

import pytest

from relaax_like.core.records import Episode, Origin, Received
from relaax_like.learn import tally as module
from relaax_like.learn.tally import Tally


def test_steps_and_episodes_are_taken_once() -> None:
    tally = Tally()
    tally.add(3, [Episode(1.0, 2)])
    tally.add(4)
    counts = tally.take()
    assert (counts.env_steps, counts.episodes) == (7, (Episode(1.0, 2),))
    counts = tally.take()
    assert (counts.env_steps, counts.episodes, counts.received) == (0, (), {})


def test_the_oldest_rollout_that_waits_bounds_what_was_learned_from() -> None:
    tally = Tally()
    for sequence in range(1, 6):
        tally.add(1, (), Origin("one", 1, sequence), sequence if sequence != 3 else None)
    assert tally.take([1, 2]).received == {"one": Received(1, counted=5, learned=3)}
    assert tally.take([5]).received == {"one": Received(1, counted=5, learned=3)}
    assert tally.take([4]).received == {"one": Received(1, counted=5, learned=5)}


def test_experience_that_was_lost_can_come_again_and_stays_counted() -> None:
    tally = Tally()
    tally.load({"one": Received(1, counted=7, learned=3)})
    assert tally.take().received == {"one": Received(1, counted=7, learned=3)}
    tally.add(0, (), Origin("one", 1, 5), ticket=1)  # 4 was acknowledged, and so is not sent again
    assert tally.take().received == {"one": Received(1, counted=7, learned=4)}
    assert tally.take([1]).received == {"one": Received(1, counted=7, learned=5)}
    tally.add(2, (), Origin("one", 1, 8))
    assert tally.take().received == {"one": Received(1, counted=8, learned=8)}


def test_a_new_incarnation_begins_again() -> None:
    tally = Tally()
    tally.add(1, (), Origin("one", 1, 9), ticket=1)
    tally.add(1, (), Origin("one", 2, 1), ticket=2)
    assert tally.take([2]).received == {"one": Received(2, counted=1, learned=1)}


def test_the_clients_that_were_silent_the_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_CLIENTS", 2)
    tally = Tally()
    for sequence, name in enumerate(["one", "two", "one", "three"], 1):
        tally.add(1, (), Origin(name, 1, sequence))
    received = tally.take().received
    assert list(received) == ["one", "three"]
    assert received["one"] == Received(1, counted=3, learned=3)
