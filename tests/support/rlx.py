"""An rlx server with agents of the test's choice, and raw protocol messages."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.core.metrics import NullMetrics
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.hosting import PlainHost
from relaax_like.rlx_server.server import RlxServer, new_event_loop
from relaax_like.rlx_server.session import Session
from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame
from relaax_like.wire.ndarray import ndarray_to_message
from relaax_like.wire.spaces import Box, Discrete, space_to_message
from relaax_like.wire.tls import ServerTls

OBSERVATION_SPACE = Box(dtype="float32", shape=(2,))
ACTION_SPACE = Discrete(n=3)
ResultT = TypeVar("ResultT")


class ServerThread:
    """Runs an `RlxServer` in a thread with a loop of its own. A context manager.

    with ServerThread(server, "127.0.0.1", 0) as running:
        connect_to(running.port)
    """

    def __init__(self, server: RlxServer, host: str, port: int):
        self._server = server
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rlx-server")
        self._thread.start()
        try:
            self.port = self._call(server.start(host, port))
        except BaseException:
            self._stop_loop()
            raise

    def stop(self) -> None:
        """Stops the server and the thread; can be called twice."""
        if self._thread.is_alive():
            self._call(self._server.stop())
            self._stop_loop()

    def __enter__(self) -> "ServerThread":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _call(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class RecordingAgent:
    """Chooses action `step % 3`, and writes down each call it gets."""

    instances: ClassVar[list["RecordingAgent"]] = []

    def __init__(self, config: Any, parameter_server: Any):
        self.parameter_server = parameter_server
        self.exploit = False
        self.calls: list[tuple[Any, ...]] = []
        self.closed = False
        RecordingAgent.instances.append(self)

    def act(self, state):
        self.calls.append(("act", state.tolist()))
        return (len(self.calls) - 1) % 3

    def reward_and_act(self, reward, state):
        self.calls.append(("reward_and_act", reward, state.tolist()))
        return (len(self.calls) - 1) % 3

    def reward_and_reset(self, reward, state=None, truncated=False, success=None):
        final = None if state is None else state.tolist()
        self.calls.append(("reward_and_reset", reward, final, truncated, success))
        return reward

    def close(self):
        self.closed = True


@contextlib.contextmanager
def serve_rlx(
    backend: ParameterServer,
    agent_class: Callable[..., Any] = RecordingAgent,
    config: AlgorithmConfig | None = None,
    make_client: Callable[[str], Any] | None = None,
    metrics: Any = None,
    max_clients: int = 8,
    min_free_memory_mb: float = 0,
    max_message_bytes: int = 1 << 20,
    hello_timeout_sec: float = 10.0,
    idle_timeout_sec: float = 60.0,
    tls: ServerTls | None = None,
    admission: Admission | None = None,
    prepare: Callable[[RlxServer], None] = lambda server: None,
    port: int = 0,
    **session: Any,
) -> Iterator[int]:
    """Serves agents of a class on a port; gives the port.

    Args:
      admission: instead of one of `max_clients` and `min_free_memory_mb`.
      prepare: gets the server before it starts.
      port: 0: a free one.
      session: options of `Session`.
    """
    RecordingAgent.instances = []
    make_client = make_client or (lambda client_id: InProcessClient(backend, client_id))
    host = PlainHost(config or AlgorithmConfig(), agent_class, make_client)

    def make_session(name: str) -> Session:
        options = {"max_slots": 4, "max_message_bytes": max_message_bytes, **session}
        return Session(name, host.make_agents, metrics or NullMetrics(), **options)

    server = RlxServer(
        make_session,
        admission or Admission(max_clients, min_free_memory_mb),
        max_message_bytes=max_message_bytes,
        hello_timeout_sec=hello_timeout_sec,
        idle_timeout_sec=idle_timeout_sec,
        tls=tls,
    )
    prepare(server)
    with ServerThread(server, "127.0.0.1", port) as running:
        yield running.port


def array(values: Any, dtype: str = "float32") -> ndarray_pb2.NdArray:
    """Makes the message of an array."""
    return ndarray_to_message(np.asarray(values, dtype), ndarray_pb2.NdArray)


def make_hello(**fields: Any) -> rlx_pb2.ClientMessage:
    """Makes a right hello, but for the fields that are given."""
    right: dict[str, Any] = {
        "protocol_version": 1,
        "client_name": "raw",
        "slots": 1,
        "observation_spaces": {"observation": space_to_message(OBSERVATION_SPACE)},
        "action_spaces": {"action": space_to_message(ACTION_SPACE)},
        "mode": rlx_pb2.TRAIN,
    }
    return rlx_pb2.ClientMessage(hello=rlx_pb2.Hello(**{**right, **fields}))


def make_step(**fields: Any) -> rlx_pb2.ClientMessage:
    """Makes a step message."""
    return rlx_pb2.ClientMessage(step=rlx_pb2.Step(**fields))


def make_start(slots: int = 1) -> rlx_pb2.ClientMessage:
    """Makes the first step of a session."""
    return make_step(observations={"observation": array(np.zeros((slots, 2)))})


def make_next(slots: int = 1, **fields: Any) -> rlx_pb2.ClientMessage:
    """Makes a right later step in which nothing ends, but for the fields that are given."""
    right = {
        "observations": {"observation": array(np.ones((slots, 2)))},
        "rewards": array(np.ones(slots)),
        "terminated": array(np.zeros(slots), "bool"),
        "truncated": array(np.zeros(slots), "bool"),
    }
    return make_step(**{k: v for k, v in {**right, **fields}.items() if v is not None})


class RawClient:
    """A socket that speaks frames, and checks nothing."""

    def __init__(self, port: int, source: str = "127.0.0.1"):
        self.socket = socket.create_connection(
            ("127.0.0.1", port), timeout=20, source_address=(source, 0)
        )

    def send(self, message: rlx_pb2.ClientMessage) -> None:
        """Sends a message in its frame."""
        self.socket.sendall(pack_frame(message.SerializeToString()))

    def receive(self) -> rlx_pb2.ServerMessage:
        """Reads one message; EOFError when the server has closed."""
        (length,) = HEADER.unpack(self._read(HEADER.size))
        return rlx_pb2.ServerMessage.FromString(self._read(length))

    def ask(self, message: rlx_pb2.ClientMessage) -> rlx_pb2.ServerMessage:
        """Sends a message and reads the answer."""
        self.send(message)
        return self.receive()

    def greet(self, **fields: Any) -> None:
        """Says a right hello and checks that it is answered with ready."""
        answer = self.ask(make_hello(**fields))
        assert answer.WhichOneof("body") == "ready", answer

    def is_closed_by_server(self) -> bool:
        """Waits for the server's end of the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            if not part:
                raise EOFError
            data += part
        return data
