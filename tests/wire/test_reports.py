"""Reports of a server to the run that started it: whole lines, in order, and nobody ever waits."""

import os

import pytest

from relaax_like.wire.reports import (
    ENVIRONMENT_VARIABLE,
    Event,
    Report,
    Reporter,
    read_report,
    write_report,
)


@pytest.mark.parametrize(
    "name", ["", "cartpole-1", "a b", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n"]
)
def test_a_report_is_read_as_it_was_written(name: str) -> None:
    report = Report(Event.JOINED, name)
    assert read_report(write_report(report)) == report


def test_an_unknown_event_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="dances"):
        read_report(b"dances cartpole-1\n")


def test_a_reporter_takes_its_pipe_over_and_writes_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(writing))
    reporter = Reporter.from_environment()
    assert Reporter.is_started
    assert ENVIRONMENT_VARIABLE not in os.environ
    assert not os.get_inheritable(writing)
    for number in range(20_000):  # more than the pipe holds
        reporter.report(Event.STEPPED, str(number))
    with open(reading, "rb") as lines:
        for number in range(20_000):
            assert read_report(lines.readline()) == Report(Event.STEPPED, str(number))
    # Nobody reads any more: that is not an error.
    reporter.report(Event.LEFT)


def test_without_a_run_nothing_is_reported() -> None:
    reporter = Reporter.from_environment()
    assert not Reporter.is_started
    reporter.report(Event.READY)
