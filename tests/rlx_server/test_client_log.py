"""Lines that clients cause are short and few, and what was left out is counted."""

import logging

from relaax_like.rlx_server.client_log import ClientLog, LogBudget, shorten


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_address_has_so_many_lines_per_second_and_the_others_are_counted() -> None:
    clock = Clock()
    budget = LogBudget(3, clock)
    assert [budget.take("a") for _ in range(5)] == [True, True, True, False, False]
    assert budget.take("b")
    assert budget.take_suppressed() == {}
    clock.now = 1.0
    assert budget.take_suppressed() == {"a": 2}
    assert budget.take_suppressed() == {}
    assert budget.take("a")


def test_lines_are_cut_and_traces_follow(caplog) -> None:
    log = ClientLog(logging.getLogger("a client"), LogBudget(2, Clock()), "a")
    log.write(logging.WARNING, "%s: %s", "name", "x" * 5000)
    log.write(logging.ERROR, "failed", trace="Traceback")
    log.write(logging.ERROR, "one too many")
    assert [len(caplog.messages[0]), *caplog.messages[1:]] == [1000, "failed\nTraceback"]
    assert caplog.messages[0].endswith("...")


def test_what_has_a_budget_of_its_own_does_not_use_up_the_address_budget(caplog) -> None:
    caplog.set_level(logging.INFO)
    log = ClientLog(logging.getLogger("a client"), LogBudget(2, Clock()), "a")
    for episode in range(5):
        log.write(logging.INFO, "score of %d", episode, budget="name")
    log.write(logging.WARNING, "failed")
    assert caplog.messages == ["score of 0", "score of 1", "failed"]


def test_a_short_text_stays_as_it_is() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("abcd", 3) == "..."
