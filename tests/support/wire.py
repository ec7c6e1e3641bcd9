"""The recorded conversations of `tests/fixtures/wire`, and the servers that they are replayed with.

A conversation with an rlx server is a text file. `#` begins a comment; `server: NAME` says which of
`serve` it was with; then each line is a frame, with its length, in hexadecimal:

    > 00000002 1200        the client sent it
    < 00000002 1200        the server sent it
    > end                  the client closed its half of the connection
    < end                  the server closed its half
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import Variable
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.agents import make_agent_host
from relaax_like.launch.algorithm_code import make_model
from relaax_like.launch.frozen_agents import make_frozen_host
from relaax_like.launch.rlx_server import make_rlx_server
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.wire.framing import HEADER
from relaax_like.wire.security import ServerSecurity, Tokens
from support.bridge import make_backend
from support.bridge import serve as serve_bridge
from support.rlx import ServerThread

FOLDER = Path(__file__).parents[1] / "fixtures" / "wire"
TUTORIAL = FOLDER / "tutorial.json"
CLIENT, SERVER = ">", "<"
END = b""
TOKEN = "token-of-an-environment"
# Of the weights that all batch-native agents act with.
_VERSION = 7


@dataclass(frozen=True)
class Conversation:
    """What one connection carried.

    Attributes:
      server: as `serve` names it.
      lines: who sent (CLIENT or SERVER), and a frame with its length, or END.
      about: what it shows.
    """

    server: str
    lines: Sequence[tuple[str, bytes]]
    about: str = ""

    def write(self, path: Path) -> None:
        """Writes the file."""
        lines = [f"# {self.about}", f"server: {self.server}"]
        lines += [f"{who} {_to_text(frame)}" for who, frame in self.lines]
        path.write_text("\n".join(lines) + "\n")


def read_conversation(path: Path) -> Conversation:
    """Reads a file."""
    comment, server, *lines = path.read_text().splitlines()
    frames = [(line[0], _from_text(line[2:])) for line in lines]
    return Conversation(server.removeprefix("server: "), frames, comment.removeprefix("# "))


def _to_text(frame: bytes) -> str:
    if frame == END:
        return "end"
    return f"{frame[: HEADER.size].hex()} {frame[HEADER.size :].hex()}".rstrip()


def _from_text(text: str) -> bytes:
    return END if text == "end" else bytes.fromhex(text)


def read_weights() -> dict[str, dict[str, Any]]:
    """Returns the stored weights, server -> variable -> nested lists."""
    return json.loads((FOLDER / "weights.json").read_text())


@contextlib.contextmanager
def serve(name: str, folder: Path, exploit: bool = False) -> Iterator[int]:
    """Serves agents that act with the stored weights; gives the port.

    Args:
      name: `discrete` and `continuous` are a2c, `plain` is an algorithm with an agent of its own,
        `tokens` is `discrete` for those who have TOKEN.
      folder: an empty one.
      exploit: answer clients of both modes with the best actions.
    """
    algorithm = "discrete" if name == "tokens" else name
    experiment = load_experiment(FOLDER / f"{algorithm}.yaml")
    stored = {
        variable: np.array(value, np.float32)
        for variable, value in read_weights()[algorithm].items()
    }
    security = ServerSecurity()
    if name == "tokens":
        (folder / "tokens").write_text(f"environment {TOKEN}\n")
        (folder / "tokens").chmod(0o600)
        security = ServerSecurity(tokens=Tokens(folder / "tokens"))
    with contextlib.ExitStack() as stack:
        if name == "plain":
            variables = [Variable(variable, value) for variable, value in stored.items()]
            server = stack.enter_context(make_backend(variables))
            host = make_agent_host(experiment, lambda client: InProcessClient(server, client))
        else:
            values = [stored[v.name] for v in get_variables(make_model(experiment))]
            fixed = FrozenPolicy(values, _VERSION)
            host = make_frozen_host(experiment, _refuse_to_learn, fixed, make_client_id("rlx"))
        stack.callback(host.close)
        rlx = make_rlx_server(experiment.rlx_server, host, NullMetrics(), security, exploit=exploit)
        yield stack.enter_context(ServerThread(rlx, "127.0.0.1", 0)).port


def _refuse_to_learn(client_id: str) -> Any:
    raise AssertionError(f"{client_id} asks for a parameter server")


@contextlib.contextmanager
def serve_tutorial(folder: Path) -> Iterator[grpc.Channel]:
    """Serves the tutorial's four calls; gives a channel. Plain SGD with rate 1, two variables."""
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(TensorBoardRecorder(folder))
        backend = stack.enter_context(make_backend(metrics=recorder))
        address = stack.enter_context(serve_bridge(backend))
        yield stack.enter_context(grpc.insecure_channel(address))


def call(channel: grpc.Channel, method: str, requests: Sequence[bytes]) -> tuple[list[bytes], str]:
    """Makes one of the four calls with these messages; returns the answers and the status code."""
    # To the server all kinds of calls look alike.
    answers = channel.stream_stream(f"/ParameterServer/{method}")(iter(requests), timeout=20)
    came = []
    try:
        came.extend(answers)
    except grpc.RpcError as error:
        return came, error.code().name
    return came, grpc.StatusCode.OK.name
