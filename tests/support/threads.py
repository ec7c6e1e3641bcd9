"""Calls in threads of their own, and conditions that they lead to."""

import threading
import time
from collections.abc import Callable
from typing import Any

WAIT_SEC = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds; fails the test after a while."""
    end = time.monotonic() + WAIT_SEC
    while not condition():
        assert time.monotonic() < end, f"waited for: {what}"
        time.sleep(0.002)


class Caller(threading.Thread):
    """Calls something in a thread and keeps what came of it."""

    def __init__(self, call: Callable[[], Any]):
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Makes the call."""
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def get(self) -> Any:
        """Returns what the call returned, or raises what it raised."""
        self.join(WAIT_SEC)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result
