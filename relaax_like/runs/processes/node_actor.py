"""NodeActor: the Ray actor that runs the command of one node on its machine."""

import contextlib
import errno
import json
import os
import queue
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from relaax_like.config.address import Address
from relaax_like.runs.processes.launcher import LocalLauncher, Running
from relaax_like.runs.processes.topology import Node, Role
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.ports import bind_socket

# Kinds of events.
LINE, REPORT, END = "line", "report", "end"
# Below the range from which Linux draws the ports of outgoing connections, and above Ray's own.
_PORTS = range(20_000, 32_000)
_TRIES = 200
# Lines that wait for the driver; then the process waits in its own write.
_EVENTS = 10_000
_LAST_LINES_SEC = 0.3
_POLL_SEC = 0.02


class NodeActor:
    """Runs the command of a node as a child process: one process after the other.

    It never restarts a process by itself: the `Manager` of the driver decides about restarts.
    However the actor ends, its guardian then ends the child. Methods take and return text and
    numbers only. `read` can run at the same time as other methods.

    Args:
      term_sec: see `LocalLauncher`.

    Raises:
      RelaaxError: the guardian process cannot be started.
    """

    def __init__(self, term_sec: float):
        self._launcher = LocalLauncher(term_sec).__enter__()
        self._events: queue.Queue[tuple[str, str]] = queue.Queue(_EVENTS)
        self._running: Running | None = None
        self._is_finished = False  # its descendants, too
        self._address = ""
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    def find_address(self) -> str:
        """Returns HOST:PORT for the node's server, on this machine; later calls return the same.

        Raises:
          RelaaxError: no port is free, or Ray reports an address that this machine does not have.
        """
        if not self._address:
            import ray

            self._address = str(find_free_address(ray.util.get_node_ip_address()))
        return self._address

    def start(self, command: str) -> int | str:
        """Starts the command.

        Args:
          command: a JSON object with `name`, `role`, `argv`, `env`, `folder`, the working
            directory, which is used if this machine has it, and `config` and `text`, the path and
            contents of the YAML file. If this machine has another file at that path, or none, the
            command gets a copy. If the first element of `argv` is empty, it is this machine's
            Python.

        Returns:
          The process id, or why it cannot be started.
        """
        parts = json.loads(command)
        role: Role = parts["role"]
        try:
            if os.path.isdir(parts["folder"]):
                os.chdir(parts["folder"])
            config = self._provide(Path(parts["config"]), parts["text"])
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            return (
                f"{parts['name']}: cannot prepare the start on {socket.gethostname()}: {what}; "
                "correct the permissions, or free disk space"
            )
        argv = [config if part == parts["config"] else part for part in parts["argv"]]
        node = Node(
            name=parts["name"],
            role=role,
            argv=[argv[0] or sys.executable, *argv[1:]],
            env=parts["env"],
        )
        events: queue.Queue[tuple[str, str]] = queue.Queue(_EVENTS)
        self._events = events

        def read_output(lines: Iterable[bytes]) -> None:
            for line in lines:
                events.put((LINE, line.decode(errors="replace").rstrip("\n")))

        def take_report(line: bytes) -> None:
            events.put((REPORT, line.decode(errors="replace")))

        try:
            self._running = self._launcher.start(node, read_output, take_report)
        except RelaaxError as error:
            return str(error)
        self._is_finished = False
        return self._running.pid

    def read(self, timeout_sec: float) -> str:
        """Returns the events since the last call, as a JSON list of pairs [kind, text].

        Kinds are `line`, a line of the output; `report`, see `wire.reports`; and, last of all,
        `end`, with the exit status, which is -N after signal N. Call it after `start`.

        Args:
          timeout_sec: how long to wait for a first event, after which the list is empty.
        """
        deadline = time.monotonic() + timeout_sec
        running, events = self._running, self._events
        assert running is not None, "started"
        while events.empty() and running.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_SEC)
        status = running.poll()
        found = _drain(events)
        if status is not None and not found:
            if not self._is_finished:
                self._is_finished = True
                running.finish(_LAST_LINES_SEC)
                self._remove_copy()
            found = _drain(events) or [(END, str(status))]
        return json.dumps(found)

    def terminate(self) -> None:
        """Sends SIGTERM to the process."""
        if self._running is not None and not self._is_finished:
            self._running.terminate()

    def kill(self) -> None:
        """Kills the process and the rest of its process group."""
        if self._running is not None and not self._is_finished:
            self._running.kill()

    def _provide(self, config: Path, text: str) -> str:
        """Returns the path of the YAML file if it has this text, else of a copy with the text."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if config.read_text(encoding="utf-8") == text:
                return str(config)
        self._remove_copy()
        self._copy = tempfile.TemporaryDirectory(prefix="relaax-")
        copy = Path(self._copy.name) / config.name
        copy.write_text(text, encoding="utf-8")
        return str(copy)

    def _remove_copy(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None


def find_free_address(host: str) -> Address:
    """Returns an address of this machine whose port is free now.

    Raises:
      RelaaxError: no free port was found, or this machine does not have the address.
    """
    reason: str | None = ""
    for _ in range(_TRIES):
        port = random.choice(_PORTS)
        try:
            bind_socket(host, port).close()
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise RelaaxError(
                    f"{host} is not an address of this machine, although Ray reports it; restart "
                    "Ray there with `ray start --node-ip-address` and one of its addresses"
                ) from error
            reason = error.strerror
            continue
        return Address(host, port)
    raise RelaaxError(
        f"{host}: none of {_TRIES} random ports from {_PORTS[0]} to {_PORTS[-1]} can be bound "
        f"(last error: {reason}); end the programs that use them, or remove the cause of the error"
    )


def _drain(events: "queue.Queue[tuple[str, str]]") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    while not events.empty() and len(found) < _EVENTS:
        found.append(events.get())
    return found
