"""A real TCP server that plays a role and checks all that it receives against the protocol."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message
from relaax_like.wire.spaces import Box, Space, Spaces, messages_to_spaces, unpack_arrays


@dataclass
class Role:
    """What the server does; steps are counted from 1 within a connection."""

    # Closes without an answer at this step of the connection number (from 0) that is the key.
    drop_at: dict[int, int] = field(default_factory=dict)
    # Sends this error instead of Ready, to as many connections.
    refuse: tuple[int, str] | None = None
    refusals: int = 1 << 30
    # Answers this step with the error.
    error_at: int | None = None
    error: tuple[int, str, str] = (rlx_pb2.AGENT_FAILED, "the agent failed", "")
    # Says that training has finished once so many steps came over all connections.
    finish_after: int | None = None
    # Never answers from this step on.
    hang_at: int | None = None
    # Replaces the answer to this step by raw bytes.
    garbage_at: int | None = None
    garbage: bytes = b""
    # Answers steps only while this is set.
    answers: threading.Event | None = None
    # Sends these bytes when the first step arrives, and closes without reading it.
    close_unread: bytes | None = None
    max_message_bytes: int = 1 << 26
    # Of the sessions of clients with a time limit.
    features: tuple[str, ...] = ("executed", "max_wait", "step_id", "timings")
    # Of all sessions.
    more_features: tuple[str, ...] = ()
    # observations -> actions, leaf name -> [k, ...]; default: random within the spaces.
    policy: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None


@dataclass
class ReceivedStep:
    """One `Step`, unpacked."""

    observations: dict[str, np.ndarray] | None
    rewards: np.ndarray | None = None
    terminated: np.ndarray | None = None
    truncated: np.ndarray | None = None
    success: np.ndarray | None = None
    final_observations: dict[str, np.ndarray] | None = None
    executed: dict[str, np.ndarray] | None = None
    present: np.ndarray | None = None
    masks: dict[str, np.ndarray] = field(default_factory=dict)
    actions: dict[str, np.ndarray] | None = None


@dataclass
class Session:
    """All that one connection sent."""

    hello: rlx_pb2.Hello
    observation_spaces: Spaces
    action_spaces: Spaces
    steps: list[ReceivedStep] = field(default_factory=list)


class Violation(Exception):
    """The client broke the protocol."""

    def __init__(self, what: str, code: int = rlx_pb2.INVALID_FIELD):
        super().__init__(what)
        self.code = code


def require(ok: Any, what: str) -> None:
    if not ok:
        raise Violation(what)


class ScriptedServer:
    """Serves on loopback until closed; `violations` must be empty at the end."""

    def __init__(self, role: Role | None = None, port: int = 0) -> None:
        self.role = role or Role()
        self.sessions: list[Session] = []
        self.scalars: list[tuple[str, float, float | None]] = []
        self.violations: list[str] = []
        self.steps = 0
        self.refused = 0
        self._changed = threading.Condition()
        self._rng = np.random.default_rng(0)
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Stops listening and closes all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def wait_for(
        self, condition: Callable[["ScriptedServer"], Any], timeout_sec: float = 60
    ) -> Any:
        """Waits until the condition holds, which is checked after each message."""
        with self._changed:
            ok = self._changed.wait_for(lambda: condition(self), timeout_sec)
        assert ok, f"waited {timeout_sec} s in vain; violations: {self.violations}"
        return ok

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                for answer in self._converse(connection):
                    connection.sendall(answer)
            except Violation as violation:
                self.violations.append(str(violation))
                with contextlib.suppress(OSError):
                    connection.sendall(_error(violation.code, str(violation)))
            except OSError:
                pass
            finally:
                self._open.discard(connection)
                with self._changed:
                    self._changed.notify_all()

    def _converse(self, connection: socket.socket) -> Iterator[bytes]:
        messages = _messages(connection)
        first = next(messages, None)
        if first is None:
            return
        session = _validate_hello(first)
        role = self.role
        if role.refuse and self.refused < role.refusals:
            self.refused += 1
            yield _error(*role.refuse)
            return
        with self._changed:
            number = len(self.sessions)
            self.sessions.append(session)
            self._changed.notify_all()
        yield _frame(
            ready=rlx_pb2.Ready(
                protocol_version=1,
                session=f"s{number}",
                max_message_bytes=role.max_message_bytes,
                features=(role.features if session.hello.max_wait_ms else ()) + role.more_features,
            )
        )
        if role.close_unread is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            connection.recv(1, socket.MSG_PEEK)
            yield role.close_unread
            return
        scores = np.zeros(session.hello.slots)
        lengths = np.zeros(session.hello.slots, int)
        for message in messages:
            kind = message.WhichOneof("body")
            if kind == "scalars":
                self._store(message.scalars)
                continue
            require(kind == "step", f"{kind} after the hello")
            step = _validate_step(session, message.step)
            with self._changed:
                session.steps.append(step)
                self.steps += 1
                self._changed.notify_all()
            count = len(session.steps)
            if role.answers is not None:
                role.answers.wait(60)
            if role.drop_at.get(number) == count:
                return
            if role.error_at == count:
                yield _error(*role.error)
                return
            if role.garbage_at == count:
                yield role.garbage
                continue
            if role.hang_at is not None and count >= role.hang_at:
                continue
            actions = self._answer(session, step, scores, lengths)
            actions.step_id = message.step.step_id
            if role.finish_after is not None and self.steps >= role.finish_after:
                actions.finished = "max_global_step reached"
                actions.actions.clear()
                yield _frame(actions=actions)
                return
            yield _frame(actions=actions)

    def _store(self, request: Any) -> None:
        require(1 <= len(request.scalars) <= 10_000, f"{len(request.scalars)} scalars")
        for scalar in request.scalars:
            require(1 <= len(scalar.name) <= 200, f"scalar name {scalar.name!r}")
            require(np.isfinite(scalar.y), f"scalar {scalar.name} is {scalar.y}")
        with self._changed:
            for s in request.scalars:
                self.scalars.append((s.name, s.y, s.x if s.HasField("x") else None))
            self._changed.notify_all()

    def _answer(
        self, session: Session, step: ReceivedStep, scores: np.ndarray, lengths: np.ndarray
    ) -> rlx_pb2.Actions:
        message = rlx_pb2.Actions(version=len(session.steps))
        if step.rewards is not None:
            assert step.terminated is not None
            assert step.truncated is not None
            scores += step.rewards.reshape(len(scores), -1).sum(axis=1)
            lengths += 1
            for slot in np.flatnonzero(step.terminated | step.truncated).tolist():
                message.episodes.add(slot=slot, score=scores[slot], length=int(lengths[slot]))
                scores[slot], lengths[slot] = 0, 0
        if step.observations is not None:
            step.actions = self._choose(session, step.observations)
            for name, array in step.actions.items():
                message.actions[name].CopyFrom(ndarray_to_message(array, ndarray_pb2.NdArray))
        return message

    def _choose(
        self, session: Session, observations: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if self.role.policy is not None:
            return self.role.policy(observations)
        slots = session.hello.slots
        return {
            name: _random_action(space, slots, self._rng)
            for name, space in session.action_spaces.items()
        }


def _random_action(space: Space, slots: int, rng: np.random.Generator) -> np.ndarray:
    shape = (slots, *space.shape)
    if isinstance(space, Box):
        # On purpose outside of the bounds now and then: clients must clip.
        return (3 * rng.standard_normal(shape)).astype(space.dtype)
    if hasattr(space, "n"):
        high = np.asarray(space.n).reshape(space.shape)
        return (rng.integers(high, size=shape) + getattr(space, "start", 0)).astype(space.dtype)
    return rng.integers(2, size=shape).astype(space.dtype)


def _messages(connection: socket.socket) -> Iterator[rlx_pb2.ClientMessage]:
    while True:
        header = _read(connection, 4)
        if header is None:
            return
        (length,) = struct.unpack(">I", header)
        require(length <= 1 << 26, f"message of {length} bytes")
        body = _read(connection, length)
        if body is None:
            return
        message = rlx_pb2.ClientMessage.FromString(body)
        require(message.WhichOneof("body"), "a message without a body")
        yield message


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            chunk = connection.recv(size - len(data))
        except OSError:
            return None
        if not chunk:
            return None
        data += chunk
    return data


def _frame(**body: Any) -> bytes:
    data = rlx_pb2.ServerMessage(**body).SerializeToString()
    return struct.pack(">I", len(data)) + data


def _error(code: int, message: str, at: str = "") -> bytes:
    return _frame(error=rlx_pb2.Error(code=code, message=message, field=at))  # type: ignore[arg-type]


def _validate_hello(message: rlx_pb2.ClientMessage) -> Session:
    require(message.WhichOneof("body") == "hello", "the first message is no hello")
    hello = message.hello
    require(hello.protocol_version == 1, f"protocol version {hello.protocol_version}")
    require(1 <= len(hello.client_name) <= 100, f"client name {hello.client_name!r}")
    require(hello.client_name.isprintable(), f"client name {hello.client_name!r}")
    require(hello.slots >= 1, "no slots")
    require(hello.mode in (rlx_pb2.TRAIN, rlx_pb2.EXPLOIT), f"mode {hello.mode}")
    try:
        return Session(
            hello,
            messages_to_spaces(hello.observation_spaces, "observation_spaces"),
            messages_to_spaces(hello.action_spaces, "action_spaces"),
        )
    except InvalidInputError as error:
        raise Violation(str(error)) from None


def _validate_step(session: Session, message: rlx_pb2.Step) -> ReceivedStep:
    due = bool(session.steps) and session.steps[-1].observations is not None
    slots = session.hello.slots
    try:
        step = ReceivedStep(
            observations=unpack_arrays(
                message.observations, session.observation_spaces, slots, "observations"
            )
            if message.observations
            else None
        )
        if message.executed:
            step.executed = unpack_arrays(
                message.executed, session.action_spaces, slots, "executed"
            )
        outcome = ("rewards", "terminated", "truncated")
        step.masks = {name: message_to_ndarray(mask, name) for name, mask in message.masks.items()}
        for name in (*outcome, "success", "present"):
            if message.HasField(name):  # type: ignore[arg-type]
                setattr(step, name, message_to_ndarray(getattr(message, name), name))
        if message.final_observations:
            spaces, finals = session.observation_spaces, message.final_observations
            require(finals.keys() == spaces.keys(), f"final observations {sorted(finals)}")
            flags = [flag for flag in (step.terminated, step.truncated) if flag is not None]
            step.final_observations = {
                name: space.validate(
                    message_to_ndarray(finals[name], name),
                    slots,
                    f"final_observations[{name}]",
                    np.logical_or.reduce(flags) if flags else None,
                )
                for name, space in spaces.items()
            }
    except InvalidInputError as error:
        raise Violation(str(error)) from None
    for name in outcome:
        require(
            (getattr(step, name) is not None) == due,
            f"{name} {'missing' if due else 'at the first step'}",
        )
    if due:
        _validate_outcome(step, slots)
    else:
        require(step.observations is not None, "first step without observations")
        require(step.final_observations is None, "first step with final observations")
    return step


def _validate_outcome(step: ReceivedStep, slots: int) -> None:
    rewards, terminated, truncated = step.rewards, step.terminated, step.truncated
    assert rewards is not None
    assert terminated is not None
    assert truncated is not None
    require(rewards.dtype.name in ("float32", "float64"), f"rewards of {rewards.dtype}")
    require(rewards.shape[0] == slots and rewards.ndim <= 2, f"rewards of {rewards.shape}")
    require(np.isfinite(rewards).all(), "rewards not finite")
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        require(flags.dtype == np.bool_ and flags.shape == (slots,), f"{name} {flags!r}")
    require(not (terminated & truncated).any(), "is also terminated")
    require(
        step.final_observations is not None or not truncated.any(),
        "truncated without final observations",
    )
    require(
        step.observations is not None or (terminated | truncated).all(),
        "no observations, but slots go on",
    )
    if step.success is not None:
        require(step.success.dtype == np.int8, f"success of {step.success.dtype}")
        require(step.success.shape == (slots,), f"success of {step.success.shape}")
        require(np.isin(step.success, (-1, 0, 1)).all(), f"success {step.success}")


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """Starts scripted servers; at the end no client must have broken the protocol."""
    servers: list[ScriptedServer] = []

    def start(role: Role | None = None, port: int = 0) -> ScriptedServer:
        servers.append(ScriptedServer(role, port))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
    assert [violation for server in servers for violation in server.violations] == []
