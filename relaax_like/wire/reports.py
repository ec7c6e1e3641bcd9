"""What a server reports to the `relaax run` that started it: one line per event, through a pipe.

`relaax run` needs to know which environments have made a step and whether anybody else is
connected. Environments can be written in any language and know only their rlx server, so the
server reports what its clients do.
"""

import contextlib
import enum
import os
import queue
import threading
from dataclasses import dataclass

# Number of the pipe's file descriptor.
ENVIRONMENT_VARIABLE = "RELAAX_REPORTS"


class Event(enum.StrEnum):
    """What happened."""

    READY = "ready"  # the server serves, and whatever it needs is there
    WORKED = "worked"  # it has done something useful: steps were learned from
    JOINED = "joined"  # a client said hello
    STEPPED = "stepped"  # a client made its first step
    LEFT = "left"  # a client has gone


@dataclass(frozen=True)
class Report:
    """One event.

    Attributes:
      event: what happened.
      client: the name that the client gave in its hello, or "".
    """

    event: Event
    client: str = ""


class Reporter:
    """Reports to `relaax run`; without one it does nothing. Never blocks; thread-safe.

    reporter = Reporter.from_environment()
    reporter.report(Event.JOINED, "cartpole-1")

    Args:
      descriptor: of the pipe; None: there is nobody to report to.
    """

    def __init__(self, descriptor: int | None = None):
        self._descriptor = descriptor
        self._queue: queue.SimpleQueue[Report] = queue.SimpleQueue()
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
            threading.Thread(target=self._write_all, args=(descriptor,), daemon=True).start()

    @classmethod
    def from_environment(cls) -> "Reporter":
        """Takes the pipe over; the processes that this one starts do not get it."""
        number = os.environ.pop(ENVIRONMENT_VARIABLE, None)
        return cls(None if number is None else int(number))

    @property
    def is_heard(self) -> bool:
        """Whether `relaax run` has started this process."""
        return self._descriptor is not None

    def report(self, event: Event, client: str = "") -> None:
        """Reports an event."""
        if self._descriptor is not None:
            self._queue.put(Report(event, client))

    def _write_all(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more
            while True:
                os.write(descriptor, write_report(self._queue.get()))


def write_report(report: Report) -> bytes:
    """Returns the line of a report."""
    return f"{report.event} {report.client}\n".encode()


def read_report(line: bytes) -> Report:
    """Reads a line.

    Raises:
      ValueError: not a report.
    """
    event, _, client = line.decode().rstrip("\n").partition(" ")
    return Report(Event(event), client)
