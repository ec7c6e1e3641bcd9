"""A process's reports to the command that started it: one line per event, through a pipe.

`relaax run` needs to know which environments have made a step, and whether other clients are
connected. Environments can be written in any language and only communicate with their rlx server,
so the server reports its clients' events. The workers of `relaax train` also report to it.
"""

import contextlib
import enum
import os
import queue
import threading
from dataclasses import dataclass

# Number of the pipe's file descriptor.
ENVIRONMENT_VARIABLE = "RELAAX_REPORTS"
# In the process of a job: names of the environments that its slave allows, separated by commas.
ENVIRONMENTS_VARIABLE = "RELAAX_ENVIRONMENTS"


class Event(enum.StrEnum):
    """The kind of an event."""

    READY = "ready"  # the server serves, and everything that it needs is available
    WORKED = "worked"  # it has done something useful: steps were counted, or a rollout is complete
    JOINED = "joined"  # a client has sent its hello
    STEPPED = "stepped"  # a client has made its first step
    LEFT = "left"  # a client has left


@dataclass(frozen=True)
class Report:
    """One event.

    Attributes:
      event: what happened.
      client: the name in the client's hello, or "".
    """

    event: Event
    client: str = ""


class Reporter:
    """Reports to `relaax run` or `relaax train`; without a pipe it does nothing.

    Never blocks; thread-safe.

        reporter = Reporter.from_environment()
        reporter.report(Event.JOINED, "cartpole-1")

    Args:
      descriptor: of the pipe; None: no reports.

    Attributes:
      is_started: whether `relaax run` or `relaax train` has started this process, and the others.
    """

    is_started = False

    def __init__(self, descriptor: int | None = None):
        self._descriptor = descriptor
        self._queue: queue.SimpleQueue[Report] = queue.SimpleQueue()
        if descriptor is not None:
            os.set_inheritable(descriptor, False)
            threading.Thread(target=self._write_all, args=(descriptor,), daemon=True).start()

    @classmethod
    def from_environment(cls) -> "Reporter":
        """Returns a reporter that takes over the process's pipe; child processes do not inherit it.

        Without the environment variable RELAAX_REPORTS, the reporter has no pipe.
        """
        number = os.environ.pop(ENVIRONMENT_VARIABLE, None)
        cls.is_started = number is not None
        return cls(None if number is None else int(number))

    @property
    def is_heard(self) -> bool:
        """Whether `relaax run` or `relaax train` has started this process, with a pipe."""
        return self._descriptor is not None

    def report(self, event: Event, client: str = "") -> None:
        """Reports an event; `client` is the name in the client's hello, or ""."""
        if self._descriptor is not None:
            self._queue.put(Report(event, client))

    def _write_all(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):  # the pipe is no longer read
            while True:
                os.write(descriptor, write_report(self._queue.get()))


def write_report(report: Report) -> bytes:
    """Returns the line of a report."""
    return f"{report.event} {report.client}\n".encode()


def read_report(line: bytes) -> Report:
    """Parses the line of a report.

    Raises:
      ValueError: it is not a report.
    """
    event, _, client = line.decode().rstrip("\n").partition(" ")
    return Report(Event(event), client)
