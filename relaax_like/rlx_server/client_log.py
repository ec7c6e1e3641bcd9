"""Log lines that clients cause: bounded in length, and in number per address and second."""

import logging
import threading
import time
from collections.abc import Callable

MAX_LINE_LENGTH = 1000
# Maximum length of a stack trace of an agent's code.
MAX_TRACE_LENGTH = 8000
LINES_PER_SECOND = 10


def shorten(text: str, length: int = MAX_LINE_LENGTH) -> str:
    """Returns a text of at most `length` characters; "..." replaces the end of a longer text."""
    return text if len(text) <= length else text[: length - 3] + "..."


class LogBudget:
    """Limits the log lines of each address per second, and counts those left out. Thread-safe.

    Args:
      lines_per_second: for each address.
      clock: returns monotonic seconds.
    """

    def __init__(
        self,
        lines_per_second: int = LINES_PER_SECOND,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._lines_per_second = lines_per_second
        self._clock = clock
        self._lock = threading.Lock()
        # Address -> start of its second, lines in it; guarded by _lock.
        self._seconds: dict[str, tuple[float, int]] = {}

    def take(self, address: str) -> bool:
        """Returns whether another line can be written now, and counts it.

        Args:
          address: of the client, or "ADDRESS NAME" for a separate budget of its lines.
        """
        now = self._clock()
        with self._lock:
            start, lines = self._seconds.setdefault(address, (now, 0))
            self._seconds[address] = start, lines + 1
        return lines < self._lines_per_second

    def take_suppressed(self) -> dict[str, int]:
        """Closes the one-second windows that have elapsed.

        Returns:
          What was passed to `take` -> number of lines left out: an address, or "ADDRESS NAME" for a
          separate budget; see `ClientLog.write`.
        """
        now = self._clock()
        suppressed = {}
        with self._lock:
            for address, (start, lines) in list(self._seconds.items()):
                if now - start < 1.0:
                    continue
                del self._seconds[address]
                if lines > self._lines_per_second:
                    suppressed[address] = lines - self._lines_per_second
        return suppressed


class ClientLog:
    """Writes lines about one client, as its address's budget allows.

    Args:
      logger: receives the lines.
      budget: of all addresses; None: there is no limit.
      address: of the client.
    """

    def __init__(self, logger: logging.Logger, budget: LogBudget | None = None, address: str = ""):
        self._logger = logger
        self._budget = budget
        self._address = address

    def write(
        self, level: int, message: str, *arguments: object, trace: str = "", budget: str = ""
    ) -> None:
        """Writes one line, or nothing if the level is off or the budget is used up.

        Args:
          level: a level of `logging`.
          message: with the placeholders of `logging`.
          arguments: for the placeholders.
          trace: a stack trace that follows the line.
          budget: the line counts only against the address's separate budget of this name; "": only
            against its common one.
        """
        if not self._logger.isEnabledFor(level):
            return
        key = f"{self._address} {budget}" if budget else self._address
        if self._budget is not None and not self._budget.take(key):
            return
        line = shorten(message % arguments)
        self._logger.log(level, "%s", f"{line}\n{trace}" if trace else line)
