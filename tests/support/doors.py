"""The rlx protocol through each of its doors: frames, WebSocket and lines; protobuf and JSON.

Messages are protobuf objects here, whatever carries them.
"""

import contextlib
import json
import socket
import ssl
from typing import Any

import numpy as np
from websockets.sync.client import connect

from relaax_like.v1 import metrics_pb2, ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import HEADER, pack_frame
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, Space, message_to_space

PLURALS = {"observation": "observations", "action": "actions"}


def space_to_json(message: rlx_pb2.Space) -> dict[str, Any]:
    """Spells a leaf as docs/json.md does."""
    space: Space = message_to_space(message, "space")
    if isinstance(space, Box):
        written: dict[str, Any] = {"box": list(space.shape)}
        for name, bound in (("low", space.low), ("high", space.high)):
            if bound is not None:
                written[name] = _replace_infinity(bound.astype(float).tolist())
    elif isinstance(space, Discrete):
        written = {"discrete": space.n, "start": space.start}
    elif isinstance(space, MultiDiscrete):
        written = {"multi_discrete": list(space.n), "shape": list(space.shape)}
    else:
        written = {"multi_binary": list(space.shape)}
    return {**written, "dtype": space.dtype}


def _replace_infinity(bound: Any) -> Any:
    if isinstance(bound, list):
        return [_replace_infinity(one) for one in bound]
    return bound if np.isfinite(bound) else None


def _arrays_to_json(arrays: Any, plain: str) -> Any:
    written = {name: message_to_ndarray(array, name).tolist() for name, array in arrays.items()}
    return written[plain] if list(written) == [plain] else written


def message_to_json(message: rlx_pb2.ClientMessage) -> bytes:
    """Spells a message of a client, always with the slot axis."""
    kind = message.WhichOneof("body")
    if kind == "hello":
        return json.dumps({"hello": _hello_to_json(message.hello)}).encode()
    if kind == "scalars":
        points = [{"name": one.name, "y": one.y} for one in message.scalars.scalars]
        return json.dumps({"scalars": points}).encode()
    if kind == "ping":
        return b'{"ping": {}}'
    step = message.step
    written: dict[str, Any] = {}
    for name, field, plain in (
        ("observation", step.observations, "observation"),
        ("final_observation", step.final_observations, "observation"),
        ("executed", step.executed, "action"),
    ):
        if field:
            written[name] = _arrays_to_json(field, plain)
    for name in ("rewards", "terminated", "truncated", "success", "present", "overridden"):
        if step.HasField(name):
            written[name.rstrip("s") if name == "rewards" else name] = message_to_ndarray(
                getattr(step, name), name
            ).tolist()
    if "success" in written:
        written["success"] = [{1: True, 0: False, -1: None}[one] for one in written["success"]]
    if step.step_id:
        written["step_id"] = step.step_id
    verb = "act"
    if "reward" in written:
        verb = "reward_and_act" if "observation" in written else "reward_and_reset"
    return json.dumps({verb: written}).encode()


def _hello_to_json(hello: rlx_pb2.Hello) -> dict[str, Any]:
    written: dict[str, Any] = {"name": hello.client_name, "slots": hello.slots}
    written["protocol_version"] = hello.protocol_version
    for name, leaves in (
        ("observation", hello.observation_spaces),
        ("action", hello.action_spaces),
    ):
        spaces = {leaf: space_to_json(space) for leaf, space in leaves.items()}
        written[name] = spaces[name] if list(spaces) == [name] else spaces
    written["mode"] = rlx_pb2.Mode.Name(hello.mode).lower()
    if hello.token:
        written["token"] = hello.token
    written["features"] = list(hello.features)
    if hello.max_wait_ms:
        written["max_wait_ms"] = hello.max_wait_ms
    if hello.versions:
        written["versions"] = dict(hello.versions)
    return written


def json_to_message(text: bytes | str, actions: dict[str, str]) -> rlx_pb2.ServerMessage:
    """Reads an answer.

    Args:
      text: the answer.
      actions: action leaf -> dtype.
    """
    answer = json.loads(text)
    message = rlx_pb2.ServerMessage()
    if "ready" in answer:
        ready = answer["ready"]
        message.ready.CopyFrom(rlx_pb2.Ready(**ready))
        return message
    if "error" in answer:
        error = answer["error"]
        message.error.code = rlx_pb2.ErrorCode.Value(error["code"])
        message.error.message = "; ".join(filter(None, (error["message"], error.get("cure"))))
        message.error.field = error.get("field", "")
        return message
    if "ping" in answer:
        message.ping.SetInParent()
        return message
    written = message.actions
    written.SetInParent()
    if "action" in answer:
        leaves = answer["action"] if len(actions) > 1 else {"action": answer["action"]}
        for name, dtype in actions.items():
            array = np.array(leaves[name], dtype)
            written.actions[name].CopyFrom(ndarray_to_message(array, ndarray_pb2.NdArray))
    for episode in answer.get("episodes", ()):
        written.episodes.add(**episode)
    written.finished = answer.get("finished", "")
    written.version = answer.get("version", 0)
    written.step_id = answer.get("step_id", 0)
    return message


class Door:
    """One connection of a client that checks nothing.

    Args:
      port: of the server.
      kind: one of `DOORS`.
      actions: action leaf -> dtype.
      tls: None: no TLS.
    """

    def __init__(
        self,
        port: int,
        kind: str,
        actions: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ):
        self.is_json = kind in ("lines", "text")
        self._actions = actions or {"action": "int64"}
        self._opened = contextlib.ExitStack()
        self._web = None
        if kind in ("text", "binary"):
            address = f"ws{'' if tls is None else 's'}://localhost:{port}"
            opening = connect(address, compression=None, max_size=None, ssl=tls)
            self._web = self._opened.enter_context(opening)
            return
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._stream = self.socket.makefile("rb")
        self._opened.callback(self.socket.close)
        self._opened.callback(self._stream.close)

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._opened.close()

    def send(self, message: rlx_pb2.ClientMessage) -> None:
        body = message_to_json(message) if self.is_json else message.SerializeToString()
        if self._web is not None:
            self._web.send(body, text=self.is_json)
        else:
            self.socket.sendall(body + b"\n" if self.is_json else pack_frame(body))

    def receive(self) -> rlx_pb2.ServerMessage:
        """Raises EOFError or `websockets.ConnectionClosed` at the end."""
        if self._web is not None:
            body: bytes | str = self._web.recv(timeout=20)
        elif self.is_json:
            body = self._stream.readline()
        else:
            header = self._stream.read(HEADER.size)
            body = self._stream.read(*HEADER.unpack(header)) if header else b""
        if not body:
            raise EOFError
        if self.is_json:
            return json_to_message(body, self._actions)
        assert isinstance(body, bytes)
        return rlx_pb2.ServerMessage.FromString(body)

    def ask(self, message: rlx_pb2.ClientMessage) -> rlx_pb2.ServerMessage:
        self.send(message)
        return self.receive()


DOORS = ("frames", "binary", "text", "lines")


def make_points(*points: tuple[str, float]) -> rlx_pb2.ClientMessage:
    """Makes a message with points of curves."""
    scalars = [metrics_pb2.Scalar(name=name, y=y) for name, y in points]
    return rlx_pb2.ClientMessage(scalars=metrics_pb2.StoreScalarsRequest(scalars=scalars))
