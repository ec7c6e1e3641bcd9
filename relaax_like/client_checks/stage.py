"""One scenario's listener, and the program of the client that it starts."""

import contextlib
import select
import socket
import threading
import time
from collections import deque

from relaax_like.client_checks import checks
from relaax_like.client_checks.checks import CHECKS, Check, Fault, Setting
from relaax_like.client_checks.peer import Peer
from relaax_like.client_checks.talk import Talk
from relaax_like.config.address import Address
from relaax_like.runs.processes.launcher import LocalLauncher, Running
from relaax_like.runs.processes.topology import Node
from relaax_like.wire.errors import ConfigError

_SLICE_SEC, _START_SEC, _STOP_SEC, _END_SEC = 0.05, 30.0, 2.0, 1.0
_LINE_CHARACTERS = 300
_LOCK = threading.Lock()  # of what was found


class Stage:
    """Where one scenario is played: a listener, and the client's program. A context manager.

    Attributes:
      setting: as the argument.

    Args:
      setting: of the whole check.
      title: of the scenario, for the user.
      found: id -> check with its result; all scenarios add to it.
    """

    def __init__(self, setting: Setting, title: str, found: dict[str, Check]):
        self.setting = setting
        self._found = found
        self._title = title
        self._launcher = LocalLauncher(_STOP_SEC)
        self._running: Running | None = None
        self._lines: deque[bytes] = deque(maxlen=1)
        self._talk: Talk | None = None
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> "Stage":
        bind = self.setting.bind
        family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
        try:
            self._listener = socket.create_server((bind.host, bind.port), family=family)
        except OSError as error:
            raise ConfigError(f"--bind {bind}: {error.strerror}; use another address") from None
        self._closing.callback(self._listener.close)
        self._closing.enter_context(self._launcher)
        self._closing.callback(self.stop)
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def note(self, id: str, is_right: bool, seen: str = "") -> None:
        """Notes that the client passes or fails a check; a failed one remains failed."""
        outcome, seen = (checks.PASSED, "") if is_right else (checks.FAILED, seen)
        with _LOCK:
            if id not in self._found or self._found[id].outcome != checks.FAILED:
                self._found[id] = CHECKS[id]._replace(outcome=outcome, seen=seen)

    def skip(self, id: str, why: str) -> None:
        """Notes why a check does not apply, unless it has been passed or failed."""
        self._found.setdefault(id, CHECKS[id]._replace(seen=why))

    def fail(self, fault: Fault) -> None:
        """Notes a fault, how the program ended, and the last line that it printed."""
        if fault.id == checks.OUT_OF_TIME:
            return
        status = self.wait_for_exit(_END_SEC)
        ended = "" if status is None else f"; the program ended with status {status}"
        line = b"".join(self._lines).decode(errors="replace").strip()[:_LINE_CHARACTERS]
        self.note(fault.id, False, f"{fault}{ended}{f'; it printed: {line}' if line else ''}")

    def begin(self, has_features: bool = False) -> Talk:
        """Starts the program, or asks the user for it, and waits for it; see `accept`."""
        self.stop()
        bind, program = self.setting.bind, self.setting.program
        address = str(Address(bind.host, self._listener.getsockname()[1]).to_connect())
        if program:
            argv = [*program, "--rlx-server", address, "--name", checks.CLIENT_NAME]
            node = Node(name="the client", argv=argv, role="environment")
            self._running = self._launcher.start(node, self._lines.extend, lambda report: None)
        else:
            text = f"waiting for the client at {address}; start it, unless it reconnects by itself"
            self.setting.say(f"{self._title}: {text}")
        return self.accept(has_features)

    def stop(self) -> None:
        """Ends the conversation and the program."""
        if self._talk is not None:
            self._talk.peer.close()
        running, self._running = self._running, None
        if running is not None:
            running.terminate()
            running.wait(_STOP_SEC)
            running.finish(_STOP_SEC)

    def accept(self, has_features: bool = False) -> Talk:
        """Waits for the client's next connection.

        Args:
          has_features: whether the server supports all features, or none.

        Raises:
          Fault: there is none in time, or the program has ended.
        """
        if not self.wait_for_connection(_START_SEC if self.setting.program else float("inf")):
            raise Fault("hello.in_time", "the client has not connected")
        if self._talk is not None:
            self._talk.peer.close()
        peer = Peer(self._listener.accept()[0], self.check_time)
        self._talk = Talk(peer, self.note, has_features, self.setting)
        return self._talk

    def wait_for_connection(self, seconds: float) -> bool:
        """Returns whether the client connects in time; False as soon as its program has ended."""
        end = time.monotonic() + seconds
        while True:
            has_ended = self._running is not None and self._running.poll() is not None
            if select.select([self._listener], [], [], _SLICE_SEC)[0]:
                return True
            self.check_time()
            if has_ended or time.monotonic() > end:
                return False

    def wait_for_exit(self, seconds: float) -> int | None:
        """Returns the program's exit status; None: it runs, or is not known."""
        if self._running is not None:
            self._running.wait(min(seconds, max(self.setting.deadline - time.monotonic(), 0.0)))
        return None if self._running is None else self._running.poll()

    def check_time(self) -> None:
        """Raises a Fault if the time for the whole check is over."""
        if time.monotonic() > self.setting.deadline:
            raise Fault(checks.OUT_OF_TIME, "the time limit of the whole check was reached")
