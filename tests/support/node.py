"""Node for tests: found, or the test is skipped; and scripts that use the client in JavaScript."""

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.bridge import make_backend
from support.cluster import ROOT, find_tool
from support.rlx import RecordingAgent, serve_rlx

FOLDER = ROOT / "environments" / "javascript"
# Prints what `body` returns, or the RlxError that it throws, as JSON.
_SCRIPT = """
"use strict";
const { connect, RlxError } = require(process.argv[2] + "/rlx.js");
const cartpole = require(process.argv[2] + "/cartpole.js");
const given = JSON.parse(process.argv[3]);
const write = (key, value) => (typeof value === "bigint" ? `${value}n` : value);
const describe = (error) => ({
  name: error.name, code: error.code, field: error.field, message: error.message,
  cure: error.cure, mayRetry: error.mayRetry,
});
const attempt = (promise) => promise.then(() => null, describe);
const end = (value) => process.stdout.write(JSON.stringify(value, write), () => process.exit());
(async () => { %s })().then((value) => end(value === undefined ? null : value), (error) => {
  if (!(error instanceof RlxError)) throw error;
  end(describe(error));
});
"""


class Node:
    """Runs scripts.

    Attributes:
      path: of the program.
      flags: with which it has a WebSocket; None: this version has no WebSocket.
    """

    def __init__(self, folder: Path):
        self.path = find_tool("node", "nodejs", "RELAAX_REQUIRE_NODE")
        self._folder = folder
        self.flags: list[str] | None = None
        for flags in ([], ["--experimental-websocket"]):
            argv = [self.path, *flags, "-e", "new WebSocket('ws://127.0.0.1:1').onerror = () => {}"]
            if subprocess.run(argv, capture_output=True, timeout=60).returncode == 0:
                self.flags = flags
                break

    def run(self, body: str, timeout_sec: float = 60, **given: Any) -> Any:
        """Returns what the body of an async function returns, or its RlxError as a dict.

        Args:
          body: has `connect`, `RlxError`, `cartpole`, `attempt` (the error of a promise, or null).
          timeout_sec: longest wait.
          given: is the object `given` in the body.
        """
        script = self._folder / "script.js"
        script.write_text(_SCRIPT % body)
        argv = [self.path, *(self.flags or ()), script, FOLDER, json.dumps(given)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_sec)
        assert (done.returncode, done.stderr.replace("(node", "").count("Error")) == (0, 0), done
        return json.loads(done.stdout)


class LineServer:
    """Answers lines with given bytes: a server that says what no server of ours does.

    Args:
      connections: for each connection the answers to its lines; None: never answers; afterwards it
        closes the connection.
    """

    def __init__(self, *connections: Sequence[bytes | None]):
        self.received: list[list[dict[str, Any]]] = []
        self._connections = connections
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "LineServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        for answers in self._connections:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            self.received.append([])
            arguments = (connection, answers, self.received[-1])
            thread = threading.Thread(target=self._serve, args=arguments, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(
        self, connection: socket.socket, answers: Sequence[bytes | None], lines: list[dict]
    ) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each piece by itself
        # A client that has seen enough closes.
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            for answer in answers:
                if not (line := stream.readline()):
                    break
                lines.append(json.loads(line))
                if answer is None:
                    self._ended.wait(60)
                    break
                for start in range(0, len(answer), 7):  # in small pieces
                    connection.sendall(answer[start : start + 7])


def ready(*features: str) -> bytes:
    """Returns the answer to a hello."""
    text = {"ready": {"session": "s", "features": features, "max_message_bytes": 20000}}
    return json.dumps(text).encode() + b"\n"


class Echo:
    """Chooses what it has observed."""

    def __init__(self, config: Any, parameter_server: Any):
        self.exploit = False

    def act(self, state):
        return state

    def reward_and_act(self, reward, state):
        return state

    def reward_and_reset(self, reward, state=None, truncated=False, success=None):
        return reward


class Left(Echo):
    """Always chooses action 0."""

    def act(self, state):
        return 0

    def reward_and_act(self, reward, state):
        return 0


@contextlib.contextmanager
def serve(agent: type = RecordingAgent, **options: Any) -> Iterator[str]:
    """Serves agents of a class on a free port; gives the address. See `serve_rlx`."""
    with make_backend() as backend, serve_rlx(backend, agent, **options) as port:
        yield f"127.0.0.1:{port}"
