"""RolloutBarrier: agents wait for an iteration, or keep acting if waiting is in vain. covers J8"""

from collections.abc import Sequence

import pytest

from relaax_like.learn.rollout_barrier import RolloutBarrier

COLUMNS = 8  # in an iteration

# An event: seconds to pass; or what happens to an agent: (columns) of a rollout, "left", "learned".
Event = float | tuple[str, int] | tuple[str, str]

# Name -> what happens, columns that are missing afterwards, and whose rollouts are released then.
CASES: dict[str, tuple[Sequence[Event], int, str]] = {
    "nobody": ((), 8, ""),
    "one that cannot fill it alone": ((("a", 4),), 4, "a"),
    "one whose first rollout was half": ((("a", 4), ("a", "released"), ("a", 4)), 0, ""),
    "the other is still to come": (
        (("a", 4), ("b", 4), ("a", "learned"), ("b", "learned"), ("a", 4)),
        4,
        "",
    ),
    "both have come, and a third is missing": ((("a", 3), ("b", 3)), 2, "ab"),
    "who is to come has too few columns": (
        (("a", 6), ("b", 1), ("b", "learned"), ("a", "learned"), ("a", 6)),
        2,
        "a",
    ),
    "who is to come has just enough": (
        (("a", 6), ("b", 2), ("b", "learned"), ("a", "learned"), ("a", 6)),
        2,
        "",
    ),
    "the other left": (
        (("a", 4), ("b", 4), ("a", "learned"), ("b", "learned"), ("a", 4), ("b", "left")),
        4,
        "a",
    ),
    "the other left while it waited": (
        (("a", 4), ("b", 4), ("b", "left"), ("a", "learned"), ("b", "learned"), ("a", 4)),
        4,
        "a",
    ),
    "the other has been silent for a while": (
        (("a", 4), ("b", 4), ("a", "learned"), ("b", "learned"), 1.0, ("a", 4), 0.9),
        4,
        "",
    ),
    "the other fell silent": (
        (("a", 4), ("b", 4), ("a", "learned"), ("b", "learned"), 1.0, ("a", 4), 1.1),
        4,
        "a",
    ),
    "a slow one is given twice as long as its newest rollout took": (
        (("b", 4), ("b", "learned"), 4.0, ("b", 4), ("b", "learned"), ("a", 4), 7.9),
        4,
        "",
    ),
    "but not longer than that": (
        (("b", 4), ("b", "learned"), 4.0, ("b", 4), ("b", "learned"), ("a", 4), 8.1),
        4,
        "a",
    ),
    "and not longer than 10 s": (
        (("b", 4), ("b", "learned"), 9.0, ("b", 4), ("b", "learned"), ("a", 4), 10.1),
        4,
        "a",
    ),
    "who waits is never silent": ((("a", 4), 100.0, ("b", 2)), 2, "ab"),
    "more rollouts than one of an agent": ((("a", 2), ("a", 2), ("a", 2)), 2, "aaa"),
    "one of two rollouts was learned from": (
        (("a", 4), ("a", 4), ("a", "learned"), ("b", 4), ("b", "learned")),
        4,
        "",
    ),
    "one of two learned from, and nobody else": ((("a", 4), ("a", 4), ("a", "learned")), 4, "a"),
    "its slots became more": (
        (("a", 2), ("a", "learned"), ("a", 8), ("a", "learned"), ("b", 1)),
        7,
        "",
    ),
}


class Play:
    """Plays events against a RolloutBarrier, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.holding = RolloutBarrier(clock=lambda: self.now)
        self.tickets: list[tuple[int, str]] = []  # that are held, the oldest first
        self._count = 0

    def happen(self, event: Event) -> None:
        if isinstance(event, float):
            self.now += event
            return
        agent, what = event
        if isinstance(what, int):
            self._count += 1
            self.tickets.append((self._count, agent))
            self.holding.add(agent, self._count, what)
        elif what == "left":
            self.holding.leave(agent)
        else:
            ticket = next(entry for entry in self.tickets if entry[1] == agent)
            self.tickets.remove(ticket)
            self.holding.release([ticket[0]])

    def find_released(self, missing: int) -> str:
        released = self.holding.find_released(missing) if missing else []
        return "".join(sorted(agent for ticket, agent in self.tickets if ticket in released))


@pytest.mark.parametrize("name", CASES)
def test_who_acts_on(name: str) -> None:
    events, missing, want = CASES[name]
    play = Play()
    for event in events:
        play.happen(event)
    assert play.find_released(missing) == want


def test_who_was_released_in_vain_is_to_come_again() -> None:
    play = Play()
    play.happen(("a", 4))
    play.holding.release(play.holding.find_released(4))
    # Its first rollout still waits in the collector; it plays its second.
    assert play.holding.find_released(4) == []
    play.happen(("b", 2))
    assert play.find_released(2) == ""
    play.now += 2.1
    assert play.find_released(2) == "b"


def test_tickets_that_nobody_knows_are_released_without_effect() -> None:
    play = Play()
    play.happen(("a", 4))
    play.holding.release([17, 18])
    assert play.find_released(4) == "a"


def test_agents_that_are_silent_for_long_are_forgotten() -> None:
    play = Play()
    for number in range(1000):
        play.happen((f"agent-{number}", 1))
        play.happen((f"agent-{number}", "learned"))
    play.now += 100.0
    play.holding.find_released(COLUMNS)
    assert not play.holding._agents


def test_where_nobody_is_to_wait_for_others_all_act_on() -> None:
    holding = RolloutBarrier(waits=False)
    holding.add("a", 1, columns=2)
    holding.leave("b")
    assert holding.find_released(1) == [1]
    holding.release([1])
    assert holding.find_released(1) == []
