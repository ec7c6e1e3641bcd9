"""The client in C: built by real compilers, and its bytes. covers R18, R19, R26, PE20

test_languages plays it against real servers.

`RELAAX_REQUIRE_CC=1` turns a missing compiler from a skip into a failure.
"""

import contextlib
import ctypes
import math
import os
import random
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from scripted_server import Role, ScriptedServer
from support.certificates import Authority
from support.cluster import ROOT
from support.masked import check_choices, serve_masked
from support.wire import CLIENT, END, read_conversation
from support.wire import FOLDER as RECORDED

from relaax_like.rlx_server.step_reader import StepReader
from relaax_like.rlx_server.transition import read_step
from relaax_like.v1 import ndarray_pb2, rlx_pb2
from relaax_like.wire.framing import pack_frame
from relaax_like.wire.ndarray import message_to_ndarray, ndarray_to_message
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

FOLDER = ROOT / "environments" / "c"
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")
CPP_FLAGS = ("-std=c++17", "-O0", "-Wshadow", *FLAGS[2:])
SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
Serve = Callable[..., ScriptedServer]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None or shutil.which("c++") is None:
        message = "no compilers of C and C++ (apt-get install g++ libc6-dev)"
        if os.environ.get("RELAAX_REQUIRE_CC"):
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="module")
def sanitize(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags that end a program at what C leaves undefined; none where the compiler has none."""
    source = tmp_path_factory.mktemp("sanitize") / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    argv = [compiler, *SANITIZE, "-o", source.with_suffix(""), source]
    done = subprocess.run(argv, capture_output=True, timeout=60)
    return SANITIZE if done.returncode == 0 else ()


def copy_folder(target: Path) -> Path:
    """Copies the environment without what was built; returns its program."""
    folder = target / "c"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return folder / "main"


@pytest.fixture(scope="module")
def program(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of a copy, built in both languages."""
    main = copy_folder(tmp_path_factory.mktemp("program"))
    for language in ([], ["--cpp"]):
        argv = [main, *language, "--help"]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, timeout=200)
    return main


@pytest.fixture(scope="module")
def checked_program(
    compiler: str, sanitize: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same, ended by whatever C leaves undefined."""
    main = copy_folder(tmp_path_factory.mktemp("checked"))
    env = {**os.environ, "CC": " ".join((compiler, *sanitize))}
    subprocess.run([main, "--help"], check=True, stdout=subprocess.DEVNULL, env=env, timeout=200)
    return main


def build(folder: Path, text: str, compiler: str, flags: Sequence[str], *sources: str) -> Path:
    """Compiles a program of the test's own with sources of the environment."""
    source = folder / "test_program.c"
    source.write_text(text)
    target = source.with_suffix("")
    argv = [compiler, *FLAGS, *flags, f"-I{FOLDER}", "-o", target, source]
    subprocess.run([*argv, *(FOLDER / name for name in sources), "-lm"], check=True, timeout=200)
    return target


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs; kills what is left of them."""
    processes: list[subprocess.Popen[str]] = []

    def run(program: Path, *args: object, **env: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [program, *map(str, args)], text=True, env={**os.environ, **env}, **pipes
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def build_cpp(folder: Path, text: str, compiler: str, flags: Sequence[str] = ()) -> Path:
    """Compiles a program in C++ with the library."""
    source, library = folder / "test_program.cpp", folder / "rlx_more.o"
    source.write_text(text)
    target = source.with_suffix("")
    argv = [compiler, *FLAGS, *flags, "-c", "-o", library, FOLDER / "rlx_more.c"]
    subprocess.run(argv, check=True, timeout=200)
    argv = ["c++", *CPP_FLAGS, *flags, f"-I{FOLDER}", "-o", target, source, library, "-lm"]
    subprocess.run(argv, check=True, timeout=200)
    return target


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def balance(observations: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Keeps the pole up for as long as one likes."""
    x, x_dot, theta, theta_dot = observations["observation"][0]
    return {"action": np.array([int(0.1 * x + 0.2 * x_dot + 3 * theta + theta_dot > 0)])}


# The simulator.


class Pole(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("x", "x_dot", "theta", "theta_dot")]


@pytest.fixture(scope="module")
def physics(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = tmp_path_factory.mktemp("physics") / "physics.so"
    source = FOLDER / "cartpole_physics.c"
    argv = [compiler, *FLAGS, "-fPIC", "-shared", "-o", library, source, "-lm"]
    subprocess.run(argv, check=True, timeout=200)
    loaded = ctypes.CDLL(str(library))
    loaded.cartpole_step.restype = ctypes.c_bool
    return loaded


def observe(physics: Any, pole: Pole) -> list[float]:
    observation = (ctypes.c_float * 4)()
    physics.cartpole_observe(ctypes.byref(pole), observation)
    return list(observation)


def test_each_step_is_that_of_gymnasium(physics: Any) -> None:
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    ends = {True: 0, False: 0}
    for _ in range(300):
        env.reset()
        # From the middle to just beyond the limits, so that many a step ends the episode.
        state = rng.uniform(-1, 1, 4) * [2.45, 3, 0.22, 3]
        env.state = state
        pole = Pole(*state)
        for _ in range(20):
            action = int(rng.integers(2))
            observation, reward, terminated, _, _ = env.step(action)
            assert physics.cartpole_step(ctypes.byref(pole), action) == terminated
            got = [pole.x, pole.x_dot, pole.theta, pole.theta_dot]
            np.testing.assert_allclose(got, env.state, rtol=1e-13, atol=1e-15)
            np.testing.assert_allclose(observe(physics, pole), observation, rtol=1e-6)
            assert reward == 1
            ends[terminated] += 1
            if terminated:
                break
    assert min(ends.values()) > 100


def test_first_states_are_drawn_as_gymnasium_draws_them(physics: Any) -> None:
    seed = ctypes.c_uint64(7)
    pole = Pole()
    states = []
    for _ in range(5000):
        physics.cartpole_reset(ctypes.byref(pole), ctypes.byref(seed))
        states.append([pole.x, pole.x_dot, pole.theta, pole.theta_dot])
    drawn = np.array(states)
    assert np.abs(drawn).max() < 0.05
    # A uniform distribution of that width: mean 0, deviation 0.1 / sqrt(12).
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.003)
    np.testing.assert_allclose(drawn.std(axis=0), 0.1 / math.sqrt(12), rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(4), atol=0.06)


# The program against a server that checks all that it gets.


def test_it_plays_until_training_has_finished(serve: Serve, start: Start, program: Path) -> None:
    server = serve(Role(finish_after=300))
    args = ("--rlx-server", server.address, "--name", "pole", "--seed", 3)
    code, out, err = finish(start(program, *args))
    assert (code, err) == (0, "")
    assert re.fullmatch(r"cartpole: max_global_step reached; \d+ episodes, \d+ steps\n", out)
    session = server.sessions[0]
    assert (session.hello.client_name, session.hello.mode) == ("pole", rlx_pb2.TRAIN)
    assert session.observation_spaces == {"observation": Box(dtype="float32", shape=(4,))}
    assert session.action_spaces["action"].n == 2  # type: ignore[attr-defined]
    assert all(step.rewards in (None, [1.0]) for step in session.steps)
    assert all(step.truncated in (None, [False]) for step in session.steps)
    ends = [i for i, step in enumerate(session.steps) if step.observations is None]
    assert len(ends) > 3
    assert all(session.steps[i].terminated == [True] for i in ends)
    # The verb `act` follows: observations alone, of a new episode.
    for step in (session.steps[i + 1] for i in ends[:-1]):
        assert step.rewards is None
        assert step.observations is not None
        assert (np.abs(step.observations["observation"]) <= 0.05).all()


def test_500_steps_are_a_truncation_with_the_final_observation(
    serve: Serve, start: Start, program: Path
) -> None:
    server = serve(Role(policy=balance))
    args = ("--rlx-server", server.address, "--seed", 1, "--episodes", 2, "--exploit")
    code, out, _ = finish(start(program, *args))
    assert (code, out) == (0, "cartpole: done; 2 episodes, 1000 steps\n")
    session = server.sessions[0]
    assert session.hello.mode == rlx_pb2.EXPLOIT
    assert len(session.steps) == 2 * 501
    last = session.steps[500]
    assert (last.terminated, last.truncated, last.observations) == ([False], [True], None)
    assert last.final_observations is not None
    # One step of 0.02 s after the observation before it.
    before = session.steps[499].observations
    assert before is not None
    (x, x_dot, *_), final = before["observation"][0], last.final_observations["observation"][0]
    assert final[0] == pytest.approx(x + 0.02 * x_dot, abs=1e-6)


def test_the_seed_decides_the_first_states(serve: Serve, start: Start, program: Path) -> None:
    server = serve(Role(policy=lambda observations: {"action": np.zeros(1, np.int64)}))
    for seed in (3, 3, 4):
        args = ("--rlx-server", server.address, "--seed", seed, "--episodes", 3)
        assert finish(start(program, *args))[0] == 0
    one, same, other = (
        [step.observations["observation"].tolist() for step in session.steps if step.observations]
        for session in server.sessions
    )
    assert one == same != other


def test_a_server_that_drops_in_an_episode_is_found_again(
    serve: Serve, start: Start, program: Path
) -> None:
    server = serve(Role(drop_at={0: 10}, finish_after=60))
    args = ("--rlx-server", server.address, "--retry-sleep", 0, 0.1)
    code, out, err = finish(start(program, *args))
    assert (code, err) == (0, "")
    lost, again, _ = out.splitlines()
    assert re.fullmatch(rf"lost the rlx server {server.address}: .*; retrying in 0\.[01] s", lost)
    assert again == f"reconnected to {server.address}"
    assert [len(session.steps) for session in server.sessions] == [10, 50]


@pytest.mark.parametrize("code", [rlx_pb2.OVERLOADED, rlx_pb2.UNAVAILABLE])
def test_a_server_that_asks_to_come_back_is_asked_again(
    serve: Serve, start: Start, program: Path, code: int
) -> None:
    server = serve(Role(refuse=(code, "256 clients are too many"), refusals=2))
    args = ("--rlx-server", server.address, "--episodes", 1, "--retry-sleep", 0, 0.05)
    status, out, err = finish(start(program, *args))
    assert (status, err) == (0, "")
    assert out.count("256 clients are too many; retrying in 0.") == 2


def test_a_client_started_before_its_server_waits_for_it(
    serve: Serve, start: Start, program: Path
) -> None:
    closed = serve()
    closed.close()
    process = start(program, "--rlx-server", closed.address, "--episodes", 1)
    assert process.stdout is not None
    assert "is the server running?; retrying in 0." in process.stdout.readline()
    serve(port=closed.port)
    assert finish(process)[0] == 0


@pytest.mark.parametrize(
    ("code", "want"),
    [
        (rlx_pb2.SPACE_MISMATCH, 2),
        (rlx_pb2.VERSION_MISMATCH, 2),
        (rlx_pb2.UNAUTHENTICATED, 2),
        (rlx_pb2.INVALID_FIELD, 1),
        (rlx_pb2.AGENT_FAILED, 1),
        (77, 1),  # of a server that is newer
    ],
)
def test_a_refused_hello_is_one_line(
    serve: Serve, start: Start, program: Path, code: int, want: int
) -> None:
    server = serve(Role(refuse=(code, "needs 8\nnumbers \x1b[31m")))
    got = finish(start(program, "--rlx-server", server.address))
    assert got == (want, "", "cartpole: needs 8 numbers  [31m\n")


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--rlx-server", "nowhere:x"], "expected HOST:PORT"),
        (["--rlx-server", "nowhere:70000"], "expected HOST:PORT"),
        (["--rlx-server", ":1"], "expected HOST:PORT"),
        (["--rlx-server", "x" * 300], "expected HOST:PORT"),
        (["--rlx-server"], "expected a value"),
        (["--seed", "1.5"], "--seed: '1.5', expected an integer"),
        (["--seed", "9" * 30], "99', expected an integer that fits into a C long"),
        (["--episodes", "-2"], "--episodes: '-2', expected an integer, -1 or more"),
        (["--retry-sleep", "5", "1"], "--retry-sleep: 5 1, expected 0 <= MIN <= MAX <= 1e6"),
        (["--retry-sleep", "nan", "1"], "--retry-sleep: nan 1, expected 0 <= MIN <= MAX <= 1e6"),
        (["--retry-sleep", "5"], "expected two values"),
        (["--name", ""], "--name: expected 1 to 100 bytes without control"),
        (["--name", "x" * 101], "--name: expected 1 to 100 bytes without control"),
        (["--name", "a\nb"], "--name: expected 1 to 100 bytes without control"),
        (["--env", "CartPole-v1"], "--env: unknown; --help"),
        (["--num-envs", "0"], "--num-envs: expected 1 to 1024"),
        (["--token-file", "/no/file"], "--token-file: '/no/file', No such file"),
    ],
)
def test_a_mistake_is_one_clear_line_and_code_2(
    start: Start, program: Path, args: list[str], match: str
) -> None:
    code, out, err = finish(start(program, *args))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert match in err


@pytest.mark.parametrize(
    ("number", "want"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
@pytest.mark.parametrize("hang", [False, True], ids=["stepping", "waiting for an answer"])
def test_a_signal_ends_it(
    serve: Serve, start: Start, program: Path, number: int, want: int, hang: bool
) -> None:
    server = serve(Role(hang_at=5 if hang else None))
    process = start(program, "--rlx-server", server.address)
    server.wait_for(lambda s: s.steps >= 5)
    process.send_signal(number)
    assert finish(process) == (want, "", "")


def test_ctrl_c_while_it_waits_for_a_server_ends_it(
    serve: Serve, start: Start, program: Path
) -> None:
    server = serve(Role(drop_at={0: 1}))
    process = start(program, "--rlx-server", server.address, "--retry-sleep", 1000, 1000)
    assert process.stdout is not None
    assert "retrying in 1000.0 s" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130


# What was recorded when the protocol had its first version.


class RecordedServer:
    """Answers as a recorded server did, whatever the client says.

    Attributes:
      address: where it listens.
      received: the frames that came, without END.
      recorded: those that came when it was recorded.
    """

    def __init__(self, name: str):
        lines = read_conversation(RECORDED / f"{name}.txt").lines
        self.recorded = [frame for who, frame in lines if who == CLIENT and frame != END]
        self.received: list[bytes] = []
        self._lines = lines
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._listener.close()

    def _serve(self) -> None:
        connection = self._listener.accept()[0]
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            for who, frame in self._lines:
                if who != CLIENT and frame != END:
                    connection.sendall(frame)
                elif who == CLIENT and frame != END:
                    header = stream.read(4)
                    self.received.append(header + stream.read(*struct.unpack(">I", header)))


def check_said(server: RecordedServer) -> None:
    """The frames are the recorded ones; the hello can ask for features."""
    hello, *steps = server.received
    assert [step.hex() for step in steps] == [step.hex() for step in server.recorded[1:]]
    message = rlx_pb2.ClientMessage.FromString(hello[4:])
    message.hello.ClearField("features")
    assert pack_frame(message.SerializeToString()) == server.recorded[0]


@pytest.mark.parametrize("language", [(), ("--cpp",)], ids=["c", "cpp"])
def test_the_program_says_what_was_recorded(
    start: Start, program: Path, language: tuple[str, ...]
) -> None:
    server = RecordedServer("c-cartpole")
    flags = "--exploit --seed 1 --episodes 2 --name c-cartpole --rlx-server"
    code, out, err = finish(start(program, *language, *flags.split(), server.address))
    server.wait()
    assert (code, err) == (0, "")
    assert out.endswith("done; 2 episodes, 22 steps\n")
    check_said(server)


@pytest.mark.parametrize("name", ["c-verbs", "c-wrong-shape"])
def test_the_library_says_what_was_recorded(
    start: Start, compiler: str, sanitize: tuple[str, ...], tmp_path: Path, name: str
) -> None:
    text = (RECORDED / "verbs.c").read_text()
    target = build(tmp_path, text, compiler, sanitize, "rlx.c")
    server = RecordedServer(name)
    more = ["wrong"] if name == "c-wrong-shape" else []
    code, _, err = finish(start(target, server.address, *more))
    server.wait()
    assert (code, err) == (len(more), "")
    check_said(server)


# What a hostile server sends, or a program that is not a server.


class RawServer:
    """Answers the messages of one connection with given bytes, one after the other.

    Attributes:
      address: where it listens.
      received: the messages that came.
    """

    def __init__(
        self,
        answers: Sequence[bytes],
        then_close: bool = False,
        pause_sec: float = 0,
        one_message: bool = False,
        byte_sec: float = 0,
    ):
        """Starts it.

        Args:
          answers: to the hello, to the first step and so on.
          then_close: closes the connection after them.
          pause_sec: before each answer but the first.
          one_message: all but the first answer the same message.
          byte_sec: between two bytes of all answers but the first; 0: pieces of 7 bytes.
        """
        self._byte_sec = byte_sec
        self._pause_sec = pause_sec
        self._one_message = one_message
        self.received: list[bytes] = []
        self._answers = answers
        self._then_close = then_close
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> "RawServer":
        return self

    def __exit__(self, *unused: object) -> None:
        self._ended.set()
        self._listener.close()
        self._thread.join(30)

    def _serve(self) -> None:
        connection = self._listener.accept()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client that has seen enough goes.
        with (
            contextlib.suppress(ConnectionError),
            connection,
            connection.makefile("rb") as stream,
        ):
            for number, answer in enumerate(self._answers):
                if number < 2 or not self._one_message:
                    (length,) = struct.unpack(">I", stream.read(4))
                    self.received.append(stream.read(length))
                if number and self._pause_sec:
                    time.sleep(self._pause_sec)
                size = 1 if number and self._byte_sec else 7
                for i in range(0, len(answer), size):  # in small pieces
                    connection.sendall(answer[i : i + size])
                    if size == 1:
                        time.sleep(self._byte_sec)
            if not self._then_close:
                self._ended.wait(60)


def frame(**body: Any) -> bytes:
    return pack_frame(rlx_pb2.ServerMessage(**body).SerializeToString())


def make_actions(array: Any = 1, dtype: str = "int64", name: str = "action", **more: Any) -> Any:
    message = ndarray_to_message(np.array([array], dtype), ndarray_pb2.NdArray)
    return rlx_pb2.Actions(actions={name: message}, **more)


READY = frame(ready=rlx_pb2.Ready(protocol_version=1, session="s"))
ACTION = frame(actions=make_actions())
EPISODE = frame(actions=rlx_pb2.Actions(episodes=[rlx_pb2.EpisodeEnd(score=2.5, length=3)]))
FINISHED = frame(actions=rlx_pb2.Actions(finished="enough"))
GARBAGE = {
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "longer than any answer"),
    "TLS alert": (b"\x15\x03\x01\x00\x02\x02\x46", "longer than any answer"),
    "4 GiB": (b"\xff\xff\xff\xff", "longer than any answer"),
    "one byte too long": (struct.pack(">I", (64 << 10) + 400), "longer than any answer"),
    "empty": (pack_frame(b""), "without a known body"),
    "unknown body": (pack_frame(b"\x7a\x01x"), "without a known body"),
    "field 0": (pack_frame(b"\x02\x01x"), "not a message"),
    "a group": (pack_frame(b"\x13\x14"), "not a message"),
    "endless varint": (pack_frame(b"\x12" + b"\xff" * 20), "not a message"),
    "half a varint": (pack_frame(b"\x12\x80"), "not a message"),
    "field beyond the end": (pack_frame(b"\x12\x05ab"), "not a message"),
    "field of 2^64-1 bytes": (pack_frame(b"\x12" + b"\xff" * 9 + b"\x01"), "not a message"),
    "half a number": (pack_frame(b"\x09abc"), "not a message"),
    "half inside": (pack_frame(b"\x12\x03\x0a\x05a"), "an invalid message|at the wrong time"),
    "half an error": (pack_frame(b"\x1a\x02\x12\x05"), "an invalid message"),
    "endless shape": (
        pack_frame(b"\x12\x10\x0a\x0e\x0a\x06action\x12\x04\x12\x02\xff\xff"),
        "an invalid message|at the wrong time",
    ),
}
OUTSIDE, OTHER = "an action outside of its space", "actions of another dtype or shape"
WRONG_ACTIONS = {
    "no action": (frame(actions=rlx_pb2.Actions(version=1)), "no action"),
    "too large": (frame(actions=make_actions(2)), OUTSIDE),
    "negative": (frame(actions=make_actions(-1)), OUTSIDE),
    "float": (frame(actions=make_actions(1, "float64")), OTHER),
    "int32": (frame(actions=make_actions(1, "int32")), OTHER),
    "two": (frame(actions=make_actions([1, 1])), OTHER),
    "two axes": (frame(actions=make_actions([1])), OTHER),
    "another leaf": (frame(actions=make_actions(name="arm")), "not in the action space"),
    "short data": (pack_frame(ACTION[4:].replace(b"\x1a\x08", b"\x1a\x07", 1)), "invalid"),
    "ready": (READY, "a message at the wrong time"),
}


@pytest.mark.parametrize("case", GARBAGE)
@pytest.mark.parametrize("before", [(), (READY,)], ids=["after the hello", "after a step"])
def test_garbage_is_one_line_and_no_crash(
    start: Start, checked_program: Path, before: tuple[bytes, ...], case: str
) -> None:
    garbage, match = GARBAGE[case]
    with RawServer([*before, garbage]) as server:
        code, out, err = finish(start(checked_program, "--rlx-server", server.address))
    assert (code, out, len(err.splitlines())) == (1, "", 1), err
    assert err.startswith(f"cartpole: {server.address} sent ")
    assert re.search(match, err)
    assert "that it is an rlx server" in err


@pytest.mark.parametrize("case", WRONG_ACTIONS)
def test_an_action_that_is_none_is_one_line(start: Start, checked_program: Path, case: str) -> None:
    answer, match = WRONG_ACTIONS[case]
    with RawServer([READY, answer]) as server:
        code, _, err = finish(start(checked_program, "--rlx-server", server.address))
    assert (code, len(err.splitlines())) == (1, 1), err
    assert match in err


@pytest.mark.parametrize("cut", [1, 4, 5, len(ACTION) - 1])
def test_half_a_frame_and_the_end_is_a_loss(start: Start, checked_program: Path, cut: int) -> None:
    with RawServer([READY, ACTION[:cut]], then_close=True) as server:
        process = start(
            checked_program, "--rlx-server", server.address, "--retry-sleep", 1000, 1000
        )
        assert process.stdout is not None
        line = process.stdout.readline()
    assert line == (
        f"lost the rlx server {server.address}: the server closed the connection; "
        "retrying in 1000.0 s\n"
    )


# Their size.

COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


def count_code_lines(*names: str) -> int:
    """Counts lines that have more than comments; none is longer than 100 columns."""
    count = 0
    for name in names:
        text = (FOLDER / name).read_text()
        assert max(map(len, text.splitlines())) <= 100, name
        code = COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else "", text)
        count += sum(1 for line in code.splitlines() if line.strip())
    return count


def test_the_libraries_are_small() -> None:
    assert count_code_lines("rlx_wire.h", "rlx_wire.c") <= 180
    assert count_code_lines("rlx.h", "rlx.c") <= 400
    assert count_code_lines("rlx_more.h", "rlx_more.c") <= 450
    assert count_code_lines("rlx.hpp") <= 450


# The library by itself.

VERBS = r"""
#include "rlx_more.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    float observation[3] = {0.25f, -2.0f, 1e9f};
    char verb[20];
    int64_t action = -1, choices = 5;
    double score = -1;
    bool mask[5] = {true, false, true, true, true};
    rlx_leaf seen = {.name = "observation", .kind = RLX_BOX, .dtype = "float32", .axes = 1,
                     .shape = {3}, .data = observation};
    rlx_leaf done = {.name = "action", .kind = RLX_DISCRETE, .dtype = "int64", .n = &choices,
                     .data = &action};
    const bool *const masks[] = {mask};
    const char *agents[] = {"white"};
    uint32_t games[] = {300};
    rlx_pair versions[] = {{"my-sim", "1.2"}, {"physics", "3"}};
    rlx_more more;
    rlx_client *client = &more.client;
    rlx_more_init(&more, argv[1], "verbs", &seen, 1, &done, 1);
    client->score = -1;
    if (argc == 3)
        client->timeout_sec = atof(argv[2]);
    if (argc == 4) {
        more.max_wait_ms = atoi(argv[2]);
        more.answer_timeout_sec = atof(argv[3]);
    }
    while (scanf("%19s", verb) == 1) {
        int status = 0;
        if (!strcmp(verb, "connect")) status = (int)rlx_more_connect(&more);
        if (!strcmp(verb, "token")) client->token = "secret";
        if (!strcmp(verb, "finals")) client->sends_finals = true;
        if (!strcmp(verb, "versions")) more.versions = versions, more.num_versions = 2;
        if (!strcmp(verb, "agents")) more.agents = agents, more.games = games;
        if (!strcmp(verb, "masks")) more.masks = more.final_masks = masks;
        if (!strcmp(verb, "each")) more.wants_versions_by_slot = true;
        if (!strcmp(verb, "executed")) action = 2, status = (int)rlx_executed(&more);
        if (!strcmp(verb, "nothing")) action = 5, status = (int)rlx_executed(&more);
        if (!strcmp(verb, "skip")) status = (int)rlx_reward_and_skip(&more, 7);
        if (!strcmp(verb, "late")) status = (int)more.late_answers;
        if (!strcmp(verb, "total")) status = (int)more.total_us;
        if (!strcmp(verb, "version")) status = (int)more.version;
        if (!strcmp(verb, "by_slot")) status = (int)more.versions_by_slot[0];
        if (!strcmp(verb, "length")) status = (int)more.episodes[0].length;
        if (!strcmp(verb, "ping")) status = (int)rlx_ping(&more);
        if (!strcmp(verb, "points")) {
            status = (int)rlx_send_point(&more, "speed", 1.5, 0.0 / 0.0);
            status += (int)rlx_send_point(&more, "height", -2, 7);
        }
        if (!strcmp(verb, "act")) status = (int)rlx_act(client);
        if (!strcmp(verb, "reward")) status = (int)rlx_reward_and_act(client, -0.5);
        if (!strcmp(verb, "reset")) status = (int)rlx_reward_and_reset(client, 3, -1);
        if (!strcmp(verb, "success")) status = (int)rlx_reward_and_reset(client, 3, 1);
        if (!strcmp(verb, "failure")) status = (int)rlx_reward_and_reset(client, 3, 0);
        if (!strcmp(verb, "truncate")) status = (int)rlx_reward_and_truncate(client, 4, -1);
        if (!strcmp(verb, "close")) rlx_more_close(&more);
        score = client->score;
        printf("%d|%d|%g|%d|%s|%s\n", status, (int)action, score, (int)client->code,
               client->field, status ? client->text : "");
        fflush(stdout);
    }
    rlx_more_close(&more);
    return 0;
}
"""
OK, FINISHED_STATUS, UNAVAILABLE, REFUSED, INVALID, LATE = range(6)


@pytest.fixture(scope="module")
def verbs(
    compiler: str, sanitize: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[list[str]]]:
    """Calls verbs one after the other; returns status, action, score, code, field, text of each."""
    target = build(tmp_path_factory.mktemp("verbs"), VERBS, compiler, sanitize, "rlx_more.c")

    def call(address: str, names: str, *limits: str) -> list[list[str]]:
        done = subprocess.run(
            [target, address, *limits], input=names, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        return [line.split("|") for line in done.stdout.splitlines()]

    return call


def test_the_verbs_send_what_the_protocol_says(verbs: Any) -> None:
    answers = [READY, ACTION, ACTION, EPISODE, ACTION, EPISODE, ACTION, FINISHED]
    with RawServer(answers) as server:
        called = verbs(server.address, "connect act reward reset act truncate act reset act")
        hello, *steps = [rlx_pb2.ClientMessage.FromString(body) for body in server.received]
    assert [(int(status), action, score) for status, action, score, *_ in called] == [
        (OK, "-1", "-1"), (OK, "1", "-1"), (OK, "1", "-1"), (OK, "1", "2.5"), (OK, "1", "2.5"),
        (OK, "1", "2.5"), (OK, "1", "2.5"), (FINISHED_STATUS, "1", "2.5"),
        (FINISHED_STATUS, "1", "2.5"),
    ]  # fmt: skip
    assert called[-1][-1] == "enough"

    def array(values: Any, dtype: str) -> ndarray_pb2.NdArray:
        return ndarray_to_message(np.array(values, dtype), ndarray_pb2.NdArray)

    observation = {"observation": array([[0.25, -2.0, 1e9]], "float32")}

    def outcome(reward: float, terminated: bool, truncated: bool) -> dict[str, Any]:
        flags = {"terminated": terminated, "truncated": truncated}
        return {
            "rewards": array([reward], "float64"),
            **{name: array([flag], "bool") for name, flag in flags.items()},
        }

    first = rlx_pb2.Step(observations=observation)
    assert [message.step for message in steps] == [
        first,
        rlx_pb2.Step(observations=observation, **outcome(-0.5, False, False)),
        rlx_pb2.Step(**outcome(3, True, False)),
        first,
        rlx_pb2.Step(final_observations=observation, **outcome(4, False, True)),
        first,
        rlx_pb2.Step(**outcome(3, True, False)),
    ]
    assert hello.hello.client_name == "verbs"
    assert hello.hello.action_spaces["action"].n == [5]


def test_the_server_reads_its_ordinary_steps_by_their_layout(verbs: Any) -> None:
    with RawServer([READY, *[ACTION] * 4]) as server:
        verbs(server.address, "connect act reward reward reward")
        ordinary = server.received[2:]
    assert are_ordinary(ordinary)


def are_ordinary(bodies: Sequence[bytes]) -> bool:
    """Whether the server reads steps by the layout of the first one."""
    spaces, moves = {"observation": Box(dtype="float32", shape=(3,))}, {"action": Discrete(n=5)}
    reader = StepReader(spaces, moves, 1, {})
    step = rlx_pb2.ClientMessage.FromString(bodies[0]).step
    reader.remember(bodies[0], read_step(step, spaces, moves, 1, True))
    return all(reader.read(body) is not None for body in bodies)


ALWAYS = ["executed", "hello_ping", "ping", "present"]
EVERYTHING = ["executed", "max_wait", "present", "step_id", "timings"]


def make_limited(features: Sequence[str] = EVERYTHING, answers: int = 0) -> list[bytes]:
    """Returns Ready, and answers to steps 1, 2, ..."""
    ready = rlx_pb2.Ready(protocol_version=1, session="s", features=features)
    timings = rlx_pb2.Timings(queue_us=5, prediction_us=0, total_us=11)
    return [
        frame(ready=ready),
        *(
            frame(actions=make_actions(step_id=number, timings=timings))
            for number in range(1, answers + 1)
        ),
    ]


def test_what_was_carried_out_and_absences_are_told(verbs: Any) -> None:
    with RawServer([*make_limited(["executed", "present"]), *[ACTION] * 6]) as server:
        called = verbs(
            server.address, "connect act executed reward executed reward nothing reward skip reward"
        )
        hello, *steps = [rlx_pb2.ClientMessage.FromString(body) for body in server.received]
        assert are_ordinary(server.received[2:4])
    assert [int(status) for status, *_ in called] == [OK] * 6 + [INVALID] + [OK] * 3
    assert called[6][-1] == "rlx_executed: 5 is not in the space 'action'"
    assert list(hello.hello.features) == ALWAYS
    assert not hello.hello.max_wait_ms
    _, first, second, third, skip, last = [message.step for message in steps]
    for step in (first, second):
        (array,) = step.executed.values()
        assert message_to_ndarray(array).tolist() == [2]
        assert message_to_ndarray(step.overridden).tolist() == [True]
    for step in (third, last):
        assert not step.executed
        assert not step.HasField("present")
    assert message_to_ndarray(skip.present).tolist() == [False]
    assert set(skip.observations) == {"observation"}
    assert message_to_ndarray(skip.rewards).tolist() == [7]


def test_agents_that_cannot_use_it_are_told_of_neither(verbs: Any) -> None:
    with RawServer([READY, ACTION, ACTION]) as server:
        called = verbs(server.address, "connect executed act executed skip reward")
    assert [int(status) for status, *_ in called] == [OK, INVALID, OK, INVALID, INVALID, OK]
    assert "no action that it could replace" in called[1][-1]
    for _, *_, text in called[3:5]:
        assert "cannot use it" in text


def test_a_late_answer_is_dropped_and_the_session_continues(verbs: Any) -> None:
    ready, first, second, third, fourth = make_limited(answers=4)
    with RawServer([ready, first, second[:9], second[9:] + third, fourth]) as server:
        called = verbs(
            server.address,
            "connect act reward reward executed reward late total reward",
            "20",
            "0.2",
        )
        hello, *steps = [rlx_pb2.ClientMessage.FromString(body) for body in server.received]
    statuses = [int(status) for status, *_ in called]
    assert statuses == [OK, OK, LATE, INVALID, OK, OK, 1, 11, OK]
    assert "no answer to step 2 within 0.2 s" in called[2][-1]
    assert "report what was carried out" in called[3][-1]
    assert hello.hello.max_wait_ms == 20
    assert list(hello.hello.features) == sorted([*EVERYTHING, "hello_ping", "ping"])
    assert [message.step.step_id for message in steps] == [1, 2, 3, 4]


def test_token_success_versions_and_final_observation_are_sent(verbs: Any) -> None:
    answers = [READY, *[ACTION, EPISODE] * 3, ACTION]
    with RawServer(answers) as server:
        called = verbs(
            server.address,
            "token finals versions connect act success act failure act truncate act length",
        )
        hello, *steps = [rlx_pb2.ClientMessage.FromString(body) for body in server.received]
    assert {int(status) for status, *_ in called[:-1]} == {OK}
    assert hello.hello.token == "secret"
    assert dict(hello.hello.versions) == {"my-sim": "1.2", "physics": "3"}
    assert list(hello.hello.features) == [*ALWAYS, "versions"]
    ends = [message.step for message in steps[1::2]]
    assert [end.success.data for end in ends] == [b"\x01", b"\x00", b""]
    assert [message_to_ndarray(end.terminated).tolist() for end in ends] == [[1], [1], [0]]
    for end in ends:
        assert message_to_ndarray(end.final_observations["observation"]).shape == (1, 3)


def test_pings_are_no_answer_and_are_sent_if_the_server_knows_them(verbs: Any) -> None:
    ping = frame(ping=rlx_pb2.Ping())
    ready = frame(ready=rlx_pb2.Ready(protocol_version=1, session="s", features=["ping"]))
    with RawServer([ping * 2 + ready, ping + ACTION + ping, b"", EPISODE]) as server:
        called = verbs(server.address, "ping connect act ping reset")
        bodies = [rlx_pb2.ClientMessage.FromString(body) for body in server.received]
    assert [int(status) for status, *_ in called] == [OK] * 5
    assert [body.WhichOneof("body") for body in bodies] == ["hello", "step", "ping", "step"]
    with RawServer([READY, ACTION, EPISODE]) as server:
        called = verbs(server.address, "connect act ping reset")
    assert [int(status) for status, *_ in called] == [OK] * 4


def test_a_server_that_pings_is_waited_for(verbs: Any) -> None:
    pings = [frame(ping=rlx_pb2.Ping())] * 4
    with RawServer([READY, *pings, ACTION], pause_sec=0.2, one_message=True) as server:
        called = verbs(server.address, "connect act", "0.4")
    assert [int(status) for status, *_ in called] == [OK, OK]


def test_a_flood_of_pings_does_not_make_a_limited_wait_longer(verbs: Any) -> None:
    pings = frame(ping=rlx_pb2.Ping()) * 100_000

    def flood(listener: socket.socket) -> None:
        with contextlib.suppress(ConnectionError), listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(make_limited()[0])
            while True:
                connection.sendall(pings)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=flood, args=(listener,), daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        called = verbs(address, "connect act", "20", "0.3")
        thread.join(30)
    assert [int(status) for status, *_ in called] == [OK, LATE]


def test_points_of_curves_are_sent(verbs: Any) -> None:
    with RawServer([READY, b"", b"", ACTION]) as server:
        called = verbs(server.address, "connect points act")
        bodies = [rlx_pb2.ClientMessage.FromString(body) for body in server.received[1:3]]
    assert [int(status) for status, *_ in called] == [OK] * 3
    speed, height = [point for body in bodies for point in body.scalars.scalars]
    assert (speed.name, speed.y, speed.HasField("x")) == ("speed", 1.5, False)
    assert (height.name, height.y, height.x) == ("height", -2, 7)


# Features that some servers, or runs, do not have.


def split(body: bytes) -> dict[int, list[Any]]:
    """Reads a message without knowing its fields: number -> values."""
    fields: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(body):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7, 0)
        value: Any = varint() if key & 7 == 0 else b""
        if key & 7 == 2:
            size = varint()
        if key & 7:
            value = body[at : at + size]
            at += size
        fields.setdefault(key >> 3, []).append(value)
    return fields


@pytest.mark.parametrize("setting", ["agents", "masks", "each"])
def test_what_the_server_does_not_support_is_refused_with_the_setting(
    verbs: Any, setting: str
) -> None:
    with RawServer([READY]) as server:
        _, (status, *_, text), acted = verbs(server.address, f"{setting} connect act")
    assert (int(status), int(acted[0])) == (INVALID, UNAVAILABLE)
    assert "does not support it; use another, or leave it unset" in text


def test_what_servers_support_is_sent_and_read(verbs: Any) -> None:
    features = ["agents", "masks", "slot_versions"]
    ready = frame(ready=rlx_pb2.Ready(protocol_version=1, session="s", features=features))
    packed = b"\x3a\x08" + struct.pack("<Q", 41)
    plain = b"\x39" + struct.pack("<Q", 42)
    actions = ACTION[4:]
    assert actions[:1] == b"\x12"
    first, second = (
        pack_frame(b"\x12" + bytes([len(actions) - 2 + len(more)]) + actions[2:] + more)
        for more in (packed, plain)
    )
    with RawServer([ready, first, second, EPISODE]) as server:
        called = verbs(
            server.address, "agents masks each connect act by_slot reward by_slot truncate"
        )
        hello, *steps = [split(body) for body in server.received]
    assert [int(status) for status, *_ in called] == [0, 0, 0, OK, OK, 41, OK, 42, OK]
    fields = split(hello[1][0])
    assert fields[8] == [name.encode() for name in sorted(ALWAYS + features)]
    assert (fields[11], fields[12]) == ([b"white"], [b"\xac\x02"])
    tells = [split(step[2][0]) for step in steps]
    assert [11 in step for step in tells] == [True, True, False]
    assert [12 in step for step in tells] == [False, False, True]
    (entry,) = tells[0][11]
    array = ndarray_pb2.NdArray.FromString(split(entry)[2][0])
    assert split(entry)[1] == [b"action"]
    assert message_to_ndarray(array).tolist() == [[True, False, True, True, True]]
    assert tells[2][12] == tells[0][11]


# Spaces of all kinds.

KINDS = r"""
#include "rlx_more.h"
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 3 };
static float joints[SLOTS][2] = {{1, 2}, {3, 4}, {5, 6}}, last[SLOTS][2] = {{9, 9}, {8, 8}};
static uint8_t image[SLOTS][2][3], last_image[SLOTS][2][3];
static int64_t gear[SLOTS] = {-3, -2, -1}, last_gear[SLOTS] = {-3, -3, -3};
static int32_t dials[SLOTS][2], last_dials[SLOTS][2];
static int8_t lamps[SLOTS][2][2];
static double height[SLOTS];
static const float low[2] = {-1, -0.5f}, high[2] = {1, 0.25f};
static float force[SLOTS][2];
static int32_t choice[SLOTS];
static int64_t knobs[SLOTS][3];
static bool switches[SLOTS][2];

static void print(int slots)
{
    for (int i = 0; i < slots; i++)
        printf("%.9g %.9g %d %d %d %d %d %d ", (double)force[i][0], (double)force[i][1],
               (int)choice[i], (int)knobs[i][0], (int)knobs[i][1], (int)knobs[i][2], switches[i][0],
               switches[i][1]);
    puts("");
}

int main(int argc, char **argv)
{
    static const int64_t gears[] = {5}, dial[] = {2, 7}, choices[] = {4}, knob[] = {2, 3, 4};
    int slots = atoi(argv[2]), steps = atoi(argv[3]);
    rlx_leaf seen[] = {
        {.name = "arm/joints", .kind = RLX_BOX, .dtype = "float32", .axes = 1, .shape = {2},
         .low = low, .data = joints},
        {.name = "image", .kind = RLX_BOX, .dtype = "uint8", .axes = 2, .shape = {2, 3},
         .data = image},
        {.name = "gear", .kind = RLX_DISCRETE, .dtype = "int64", .n = gears, .start = -3,
         .data = gear},
        {.name = "dials", .kind = RLX_MULTI_DISCRETE, .dtype = "int32", .axes = 1, .shape = {2},
         .n = dial, .data = dials},
        {.name = "lamps", .kind = RLX_MULTI_BINARY, .dtype = "int8", .axes = 2, .shape = {2, 2},
         .data = lamps},
        {.name = "height", .kind = RLX_BOX, .dtype = "float64", .data = height},
    };
    rlx_leaf done[] = {
        {.name = "force", .kind = RLX_BOX, .dtype = "float32", .axes = 1, .shape = {2},
         .low = low, .high = high, .data = force},
        {.name = "choice", .kind = RLX_DISCRETE, .dtype = "int32", .n = choices, .start = 10,
         .data = choice},
        {.name = "knobs", .kind = RLX_MULTI_DISCRETE, .dtype = "int64", .axes = 1, .shape = {3},
         .n = knob, .data = knobs},
        {.name = "switches", .kind = RLX_MULTI_BINARY, .dtype = "bool", .axes = 1, .shape = {2},
         .data = switches},
    };
    (void)argc;
    rlx_more more;
    rlx_client *client = &more.client;
    rlx_more_init(&more, argv[1], "kinds", seen, 6, done, 4);
    client->slots = slots;
    rlx_status status = rlx_more_connect(&more);
    if (!status) status = rlx_act(client);
    for (int i = 0; !status && i < steps; i++) {
        print(slots);
        static const double rewards[] = {1, 2, 3};
        static const bool all[] = {true, true, true}, none[] = {false, false, false};
        static const bool some[] = {true, false, false}, other[] = {false, true, false};
        static const int8_t success[] = {1, 0, -1};
        const void *const finals[] = {last, last_image, last_gear, last_dials, lamps, height};
        bool mixed = i % 3 == 1, ends = i % 3 == 2;
        rlx_step step = {.rewards = rewards, .terminated = ends ? all : mixed ? some : none,
                         .truncated = mixed && slots > 1 ? other : none, .observes = !ends,
                         .success = mixed || ends ? success : NULL,
                         .sends_finals = mixed, .finals = finals};
        status = rlx_exchange(client, &step);
        if (!status && (mixed || ends))
            for (int j = 0; j < client->num_episodes; j++)
                printf("episode %d %g %d\n", (int)more.episodes[j].slot, more.episodes[j].score,
                       (int)more.episodes[j].length);
        if (!status && ends) status = rlx_act(client);
    }
    if (status) puts(client->text);
    rlx_more_close(&more);
    return (int)status;
}
"""


KINDS_CPP = r"""
#include "rlx.hpp"
#include <array>
#include <iostream>

int main(int, char** argv) try {
    int slots = std::stoi(argv[2]), steps = std::stoi(argv[3]);
    rlx::Options options;
    options.slots = slots;
    using Bounds = std::vector<float>;
    std::vector<rlx::Leaf> seen = {
        rlx::box<float>("arm/joints", {2}, Bounds{-1, -0.5f}),
        rlx::box<std::uint8_t>("image", {2, 3}), rlx::discrete("gear", 5, -3),
        rlx::multi_discrete<std::int32_t>("dials", {2, 7}),
        rlx::multi_binary("lamps", {2, 2}), rlx::box<double>("height", {})};
    std::vector<rlx::Leaf> done = {
        rlx::box<float>("force", {2}, Bounds{-1, -0.5f}, Bounds{1, 0.25f}),
        rlx::discrete<std::int32_t>("choice", 4, 10), rlx::multi_discrete("knobs", {2, 3, 4}),
        rlx::multi_binary<bool>("switches", {2})};
    rlx::Client client(argv[1], "kinds", seen, done, options);
    client.connect_once();
    for (int i = 0; i < slots; i++) {
        float first = 1.f + 2.f * float(i);
        client.set("arm/joints", std::array<float, 2>{first, first + 1}, i);
        client.set("gear", std::array<std::int64_t, 1>{i - 3}, i);
        client.set_final("gear", std::array<std::int64_t, 1>{-3}, i);
        client.set("lamps", std::vector<std::int8_t>{0, 1, 0, 1}, i);
    }
    bool learns = client.act();
    for (int i = 0; learns && i < steps; i++) {
        for (int j = 0; j < slots; j++) {
            std::cout.precision(9);
            for (float force : client.actions<float>("force", j)) std::cout << force << " ";
            std::cout << client.action<std::int32_t>("choice", j) << " ";
            for (auto knob : client.actions<std::int64_t>("knobs", j)) std::cout << knob << " ";
            for (bool on : client.actions<bool>("switches", j)) std::cout << on << " ";
        }
        std::cout << std::endl;
        bool mixed = i % 3 == 1, ends = i % 3 == 2;
        std::size_t k = static_cast<std::size_t>(slots);
        rlx::Outcome outcome{{1, 2, 3}, std::vector<bool>(k, ends), std::vector<bool>(k), {}, !ends,
                             mixed};
        outcome.rewards.resize(k);
        if (mixed) outcome.terminated[0] = true;
        if (mixed && slots > 1) outcome.truncated[1] = true;
        if (mixed || ends) outcome.success.assign(k, 1);
        learns = client.exchange(outcome);
        if (mixed || ends)
            for (const rlx_episode& episode : client.episodes())
                std::cout << "episode " << episode.slot << " " << episode.score << " "
                          << episode.length << std::endl;
        if (ends) learns = client.act();
    }
    for (const char* wrong : {"arm", "gear"}) try {
        client.set(wrong, std::vector<float>(2));
    } catch (const rlx::Invalid& error) {
        std::cerr << error.what() << "; ";
    }
    try {
        client.set("gear", std::vector<std::int64_t>(2));
    } catch (const rlx::Invalid& error) {
        std::cerr << error.what();
    }
    return 0;
} catch (const rlx::Error& error) {
    std::cout << error.what() << std::endl;
    return 1;
}
"""
MISTAKES = (
    "leaf 'arm': not found; name one of the space; gear: float32, expected int64; "
    "gear: 2 values, expected 1"
)


@pytest.fixture(scope="module", params=["c", "cpp"])
def kinds(
    request: pytest.FixtureRequest,
    compiler: str,
    sanitize: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, str]:
    """The program in a language, and the mistakes that it reports."""
    folder = tmp_path_factory.mktemp("kinds")
    if request.param == "cpp":
        return build_cpp(folder, KINDS_CPP, compiler, sanitize), MISTAKES
    return build(folder, KINDS, compiler, sanitize, "rlx_more.c"), ""


@pytest.mark.parametrize("slots", [1, 3])
def test_all_kinds_of_spaces_are_exchanged(
    serve: Serve, start: Start, kinds: tuple[Path, str], slots: int
) -> None:
    server = serve()
    program, mistakes = kinds
    code, out, err = finish(start(program, server.address, slots, 9))
    assert (code, err) == (0, mistakes), out
    session = server.sessions[0]
    assert session.hello.slots == slots
    assert session.observation_spaces == {
        "arm/joints": Box(dtype="float32", shape=(2,), low=np.float32([-1, -0.5])),
        "image": Box(dtype="uint8", shape=(2, 3)),
        "gear": Discrete(n=5, start=-3),
        "dials": MultiDiscrete(dtype="int32", shape=(2,), n=np.array([2, 7])),
        "lamps": MultiBinary(dtype="int8", shape=(2, 2)),
        "height": Box(dtype="float64", shape=()),
    }
    force = session.action_spaces["force"]
    assert isinstance(force, Box)
    printed = [line for line in out.splitlines() if not line.startswith("episode")]
    given = [step.actions for step in session.steps if step.actions is not None]
    assert len(given) == len(printed) + 1  # the last ones are not printed
    clipped = 0
    for line, actions in zip(printed, given, strict=False):
        moved = np.clip(actions["force"], force.low, force.high)
        clipped += (moved != actions["force"]).any()
        rows = np.concatenate(
            [moved, actions["choice"][:, None], actions["knobs"], actions["switches"]], axis=1
        )
        got = np.array(line.split(), float).reshape(slots, -1)
        np.testing.assert_allclose(got, rows, rtol=1e-7)
    assert clipped > 3
    first = session.steps[0].observations
    assert first is not None
    assert first["arm/joints"].tolist() == [[1, 2], [3, 4], [5, 6]][:slots]
    ended = [line for line in out.splitlines() if line.startswith("episode")]
    assert ended[0] == "episode 0 2 2"
    assert len(ended) == 3 * (min(slots, 2) + slots)


# Masks of legal actions.

MASKS = r"""
#include "rlx_more.h"
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 3 };
static const int64_t n_moves[] = {4}, n_arms[] = {3, 2};
static float state[SLOTS][4];
static int64_t move[SLOTS], arms[SLOTS][2];
static bool legal_moves[SLOTS][4], legal_arms[SLOTS][5], last_moves[SLOTS][4], last_arms[SLOTS][5];

static void draw(bool *part, int n)
{
    for (int i = 0; i < n; i++) part[i] = rand() % 5 < 2;
    part[rand() % n] = true;
}

static void draw_arms(bool *mask) { draw(mask, 3), draw(mask + 3, 2); }

int main(int argc, char **argv)
{
    static const double rewards[SLOTS];
    static const bool none[SLOTS], one[SLOTS] = {true};
    rlx_leaf seen = {.name = "observation", .kind = RLX_BOX, .dtype = "float32", .axes = 1,
                     .shape = {4}, .data = state};
    rlx_leaf done[] = {
        {.name = "move", .kind = RLX_DISCRETE, .dtype = "int64", .n = n_moves, .start = 2,
         .data = move},
        {.name = "arms", .kind = RLX_MULTI_DISCRETE, .dtype = "int64", .axes = 1, .shape = {2},
         .n = n_arms, .data = arms},
    };
    const bool *const masks[] = {legal_moves[0], legal_arms[0]};
    const bool *const finals[] = {last_moves[0], last_arms[0]};
    rlx_more more;
    rlx_more_init(&more, argv[1], "masks", &seen, 1, done, 2);
    more.client.slots = SLOTS;
    more.masks = masks;
    more.final_masks = finals;
    rlx_status status = rlx_more_connect(&more);
    for (int i = 0; !status && i <= 100; i++) {
        rlx_step step = {.rewards = rewards, .terminated = none, .truncated = i % 7 ? none : one,
                         .observes = true, .sends_finals = i % 7 == 0};
        for (int j = 0; j < SLOTS; j++) draw(legal_moves[j], 4), draw_arms(legal_arms[j]);
        if (argc == 2) draw(last_moves[0], 4); /* the rows of other slots mean nothing */
        draw_arms(last_arms[0]);
        status = i ? rlx_exchange(&more.client, &step) : rlx_act(&more.client);
        for (int j = 0; !status && j < SLOTS; j++) {
            for (int k = 0; k < 4; k++) printf("%d", legal_moves[j][k]);
            for (int k = 0; k < 5; k++) printf("%d", legal_arms[j][k]);
            printf(" %d %d %d\n", (int)move[j], (int)arms[j][0], (int)arms[j][1]);
        }
    }
    if (status) printf("%d|%s|%s\n", (int)status, more.client.field, more.client.text);
    rlx_more_close(&more);
    return (int)status;
}
"""
MASKS_CPP = r"""
#include "rlx.hpp"
#include <cstdlib>
#include <iostream>

using Mask = std::vector<bool>;

Mask draw(std::initializer_list<int> sizes) {
    Mask mask;
    for (int n : sizes) {
        std::size_t begin = mask.size();
        for (int i = 0; i < n; i++) mask.push_back(std::rand() % 5 < 2);
        mask[begin + std::size_t(std::rand() % n)] = true;
    }
    return mask;
}

int main(int argc, char** argv) try {
    rlx::Options options;
    options.slots = 3;
    options.masks = true;
    rlx::Client client(argv[1], "masks", {rlx::box<float>("observation", {4})},
                       {rlx::discrete("move", 4, 2), rlx::multi_discrete("arms", {3, 2})}, options);
    client.connect_once();
    for (int i = 0; i <= 100; i++) {
        rlx::Outcome outcome{{0, 0, 0}, Mask(3), {i % 7 == 0, false, false}, {}, true, i % 7 == 0};
        Mask moves[3], arms[3];
        for (int j = 0; j < 3; j++) {
            client.set_mask("move", moves[j] = draw({4}), j);
            client.set_mask("arms", arms[j] = draw({3, 2}), j);
        }
        client.set_final_mask("move", argc == 2 ? draw({4}) : Mask(4), 0);
        client.set_final_mask("arms", Mask(5), 1); /* means nothing, as that slot has not ended */
        if (!(i ? client.exchange(outcome) : client.act())) return 1;
        for (int j = 0; j < 3; j++) {
            for (bool flag : moves[j]) std::cout << flag;
            for (bool flag : arms[j]) std::cout << flag;
            std::cout << " " << client.action<std::int64_t>("move", j);
            for (auto arm : client.actions<std::int64_t>("arms", j)) std::cout << " " << arm;
            std::cout << "\n";
        }
    }
    return 0;
} catch (const rlx::Refused& error) {
    std::cout << RLX_REFUSED << "|" << error.field << "|" << error.what() << std::endl;
    return RLX_REFUSED;
} catch (const rlx::Invalid& error) {
    std::cout << RLX_INVALID << "|" << error.field << "|" << error.what() << std::endl;
    return RLX_INVALID;
}
"""


@pytest.fixture(scope="module", params=["c", "cpp"])
def masks(
    request: pytest.FixtureRequest,
    compiler: str,
    sanitize: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A program that draws masks, in a language; with an argument, wrong final ones."""
    folder = tmp_path_factory.mktemp("masks")
    if request.param == "cpp":
        return build_cpp(folder, MASKS_CPP, compiler, sanitize)
    return build(folder, MASKS, compiler, sanitize, "rlx_more.c")


@pytest.fixture(scope="module")
def masked_port() -> Iterator[int]:
    with serve_masked() as port:
        yield port


def test_only_legal_actions_come(start: Start, masks: Path, masked_port: int) -> None:
    code, out, err = finish(start(masks, f"127.0.0.1:{masked_port}"))
    assert (code, err) == (0, ""), out
    lines = out.splitlines()
    assert len(lines) == 3 * 101
    check_choices(lines)


def test_final_masks_are_read(start: Start, masks: Path, masked_port: int) -> None:
    code, out, _ = finish(start(masks, f"127.0.0.1:{masked_port}", "wrong"))
    assert (code, out.splitlines()[-1].split("|")[1]) == (REFUSED, "final_masks[move]")


def test_a_run_without_masks_is_not_played(start: Start, masks: Path) -> None:
    with serve_masked(has_masks=False) as port:
        code, out, _ = finish(start(masks, f"127.0.0.1:{port}"))
    assert (code, len(out.splitlines())) == (INVALID, 1)
    assert out.split("|")[2].startswith("masks: ")


def test_a_server_without_limits_of_time_is_refused(verbs: Any) -> None:
    with RawServer([READY]) as server:
        ((status, *_, text),) = verbs(server.address, "connect", "20", "0")
    assert int(status) == INVALID
    assert "does not support it" in text


@pytest.mark.parametrize("limits", [("-1", "0"), ("60001", "0"), ("0", "0.1"), ("5", "-1")])
def test_limits_that_cannot_be_are_refused(verbs: Any, limits: tuple[str, str]) -> None:
    ((status, *_, text),) = verbs("localhost:1", "connect", *limits)
    assert int(status) == INVALID
    assert "expected 0" in text


def test_the_answer_to_a_step_that_was_not_sent_is_refused(verbs: Any) -> None:
    ready, _, second = make_limited(answers=2)
    with RawServer([ready, second]) as server:
        called = verbs(server.address, "connect act", "20", "0")
    assert int(called[1][0]) == REFUSED
    assert "an answer to a step that was not sent" in called[1][-1]


def test_a_verb_at_the_wrong_time_sends_nothing(verbs: Any) -> None:
    with RawServer([READY, ACTION, EPISODE]) as server:
        called = verbs(server.address, "act connect reward act act reset reset close close act")
    assert [int(status) for status, *_ in called] == [
        UNAVAILABLE, OK, INVALID, OK, INVALID, OK, INVALID, OK, OK, UNAVAILABLE
    ]  # fmt: skip
    texts = [text for *_, text in called]
    assert "connect, and begin a new episode" in texts[0]
    assert "begin with rlx_act" in texts[2]
    assert "reward is due" in texts[4]


def test_no_answer_in_time_is_a_loss(verbs: Any) -> None:
    with RawServer([READY]) as server:
        called = verbs(server.address, "connect act act", "0.3")
    assert [int(status) for status, *_ in called] == [OK, UNAVAILABLE, UNAVAILABLE]
    assert called[1][-1] == f"lost the rlx server {server.address}: no answer within 0.3 s"


LIMITS = r"""
#define _GNU_SOURCE
#include "rlx.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

static void ignore(int number) { (void)number; }

/* Connects, and asks for an action, while signals come. */
int main(int argc, char **argv)
{
    float seen = 0;
    int64_t done, choices = 2;
    rlx_leaf observation = {.name = "observation", .kind = RLX_BOX, .dtype = "float32",
                            .data = &seen};
    rlx_leaf action = {.name = "action", .kind = RLX_DISCRETE, .dtype = "int64", .n = &choices,
                       .data = &done};
    rlx_client client;
    struct sigaction handler = {.sa_handler = ignore};
    struct itimerval often = {{0, 50000}, {0, 50000}};
    if (argc != 2 || sigaction(SIGALRM, &handler, NULL) || setitimer(ITIMER_REAL, &often, NULL))
        return 1;
    rlx_init(&client, argv[1], "limits", &observation, 1, &action, 1);
    client.timeout_sec = client.connect_timeout_sec = 0.4;
    rlx_status status = rlx_connect(&client);
    if (!status) status = rlx_act(&client);
    puts(client.text);
    rlx_close(&client);
    return (int)status;
}
"""


@pytest.fixture(scope="module")
def limits(
    compiler: str, sanitize: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return build(tmp_path_factory.mktemp("limits"), LIMITS, compiler, sanitize, "rlx.c")


def test_signals_do_not_make_a_wait_longer(start: Start, limits: Path) -> None:
    with RawServer([READY]) as server:
        code, out, _ = finish(start(limits, server.address))
    assert (code, out) == (
        UNAVAILABLE, f"lost the rlx server {server.address}: no answer within 0.4 s\n"
    )  # fmt: skip


def test_connecting_has_a_limit_of_time(start: Start, limits: Path) -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # its queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        code, out, _ = finish(start(limits, address))
    assert code == UNAVAILABLE
    assert "timed out" in out


def test_an_answer_that_arrives_byte_by_byte_forever_is_a_loss(start: Start, limits: Path) -> None:
    long = struct.pack(">I", 60_000) + bytes(60_000)
    with RawServer([READY, long], byte_sec=0.01) as server:
        code, out, _ = finish(start(limits, server.address))
    assert code == UNAVAILABLE
    assert "no answer within 0.4 s" in out


def test_an_error_that_came_with_an_answer_is_read_after_it(verbs: Any) -> None:
    error = frame(error=rlx_pb2.Error(code=9, message="going down", field="x"))
    with RawServer([READY, ACTION + error]) as server:
        called = verbs(server.address, "connect act reward")
    assert called[1][:2] == ["0", "1"]
    assert called[2] == [str(UNAVAILABLE), "1", "-1", "9", "x", "going down"]


def test_an_error_names_code_and_field(verbs: Any) -> None:
    error = frame(error=rlx_pb2.Error(code=4, message="NaN " * 1000, field="observations[x]"))
    with RawServer([READY, error]) as server:
        called = verbs(server.address, "connect act")
    status, _, _, code, field, text = called[1]
    assert (status, code, field) == (str(REFUSED), "4", "observations[x]")
    assert text == ("NaN " * 1000)[:1023]


def test_messages_longer_than_the_server_reads_are_refused_at_once(verbs: Any) -> None:
    small = frame(ready=rlx_pb2.Ready(protocol_version=1, max_message_bytes=20))
    with RawServer([small]) as server:
        connected, (status, *_, text) = verbs(server.address, "connect act")
    assert (int(connected[0]), int(status)) == (OK, INVALID)
    assert (
        "reads at most 20; use smaller arrays, or raise its relaax-rlx-server.max_message_bytes"
        in text
    )


WIRE = r"""
#include "rlx_wire.c"
#include <stdio.h>

int main(int argc, char **argv)
{
    rlx_wire wire = {.socket = -1, .move = move_plain, .input = malloc(100), .input_size = 100};
    writer count = {0};
    bytes in, text;
    char got[100];
    if (argc != 3 || !wire.input || open_wire(&wire, argv[1], argv[2], 10))
        return 1;
    put_text(&count, 1, "there");
    writer to = begin_frame(&wire, count.size);
    put_text(&to, 1, "there");
    if (send_frame(&wire, &to) || receive_frame(&wire, &in))
        return 2;
    if (read_field(&in, &text) != KEY(2, BYTES))
        return 3;
    copy_text(got, sizeof got, text);
    puts(got);
    free(wire.input);
    free(wire.output);
    close_socket(&wire);
    return 0;
}
"""


def test_frames_and_protobuf_need_no_other_file(
    start: Start, compiler: str, sanitize: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("rlx_wire.h", "rlx_wire.c"):
        shutil.copy(FOLDER / name, tmp_path)
    source, target = tmp_path / "alone.c", tmp_path / "alone"
    source.write_text(WIRE)
    argv = [compiler, *FLAGS, *sanitize, "-Wno-unused-function", "-o", target, source, "-lm"]
    subprocess.run(argv, check=True, timeout=200)
    with RawServer([b"\0\0\0\4\x12\2ok"]) as server:
        got = finish(start(target, *server.address.split(":")))
    assert got == (0, "ok\n", "")
    assert server.received == [b"\n\5there"]


READ = r"""
#include "rlx.c"

static uint8_t *message;
static size_t message_size, message_read;

/* Has sent all, and receives the message. */
static long pretend(rlx_wire *wire, bool sends, uint8_t *at, size_t size)
{
    (void)wire;
    if (sends)
        return (long)size;
    size_t part = message_size - message_read < size ? message_size - message_read : size;
    memcpy(at, message + message_read, part);
    message_read += part;
    return (long)part;
}

/* Gives the client just the memory that the message needs: a byte beyond it is noticed. */
static void rewind_message(rlx_client *client)
{
    free(client->wire.input);
    client->wire.input = malloc(message_size);
    client->wire.input_size = message_size;
    client->wire.input_bytes = message_read = 0;
    client->wire.socket = 100000;
    client->score = client->num_episodes = client->finished = client->reward_due = 0;
    client->text[0] = 0;
}

int main(void)
{
    float observation = 0;
    int64_t action = 0;
    rlx_leaf seen = {.name = "observation", .kind = RLX_BOX, .dtype = "float32",
                     .data = &observation};
    rlx_leaf done = {.name = "action", .kind = RLX_BOX, .dtype = "int64", .data = &action};
    rlx_client client;
    rlx_init(&client, "nowhere", "read", &seen, 1, &done, 1);
    if (prepare(&client))
        return 1;
    client.wire.move = pretend;
    uint8_t header[4];
    while (fread(header, 1, 4, stdin) == 4) {
        message_size = 4 + ((size_t)header[0] << 24 | (size_t)header[1] << 16
                            | (size_t)header[2] << 8 | header[3]);
        message = malloc(message_size);
        memcpy(message, header, 4);
        if (fread(message + 4, 1, message_size - 4, stdin) != message_size - 4)
            return 1;
        rewind_message(&client);
        bytes ready;
        rlx_status status = greet(&client, put_hello, (const char *[]){NULL}, &ready);
        int kind = status ? 3 : 1;
        if (strstr(client.text, "at the wrong time")) {
            action = 0;
            rewind_message(&client);
            client.max_message_bytes = 1 << 20;
            status = rlx_act(&client);
            kind = 2;
        }
        bool acts = kind == 2 && !status, none = strstr(client.text, "no action") != NULL;
        if (strstr(client.text, "nowhere sent") && !(kind == 2 && none))
            puts("no message");
        else
            printf("%d|%d|%lld|%d|%.17g|%.63s|%llu|%llu\n", kind, acts,
                   acts ? (long long)action : 0, client.num_episodes, client.score,
                   kind == 3 || client.finished ? client.text : "",
                   kind == 3 ? (unsigned long long)client.code : 0,
                   kind == 1 ? (unsigned long long)client.max_message_bytes : 0);
        free(message);
    }
    rlx_close(&client);
    return 0;
}
"""


@pytest.fixture(scope="module")
def read(
    compiler: str, sanitize: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Sequence[bytes]], list[str]]:
    """Lets the program read messages, each from memory of exactly its size; returns its lines."""
    flags = (*sanitize, "-Wno-unused-function")
    target = build(tmp_path_factory.mktemp("read"), READ, compiler, flags)

    def call(bodies: Sequence[bytes]) -> list[str]:
        frames = b"".join(map(pack_frame, bodies))
        done = subprocess.run([target], input=frames, capture_output=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, b"")
        lines = done.stdout.decode().splitlines()
        assert len(lines) == len(bodies)
        return lines

    return call


def draw_text(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("abc [.;", k=rng.randrange(size)))


def draw_message(rng: random.Random) -> rlx_pb2.ServerMessage:
    kind = rng.choice(("ready", "actions", "error"))
    if kind == "ready":
        ready = rlx_pb2.Ready(protocol_version=1, session=draw_text(rng, 200))
        ready.max_message_bytes = rng.choice((0, 1, 1 << 26, (1 << 64) - 1))
        return rlx_pb2.ServerMessage(ready=ready)
    if kind == "error":
        code: Any = rng.choice((0, 1, 9, 10, 2**31 - 1))
        error = rlx_pb2.Error(code=code, message=draw_text(rng, 300), field=draw_text(rng, 9))
        return rlx_pb2.ServerMessage(error=error)
    actions = rlx_pb2.Actions(version=rng.getrandbits(64), finished=draw_text(rng, 40))
    if rng.random() < 0.7:
        actions = make_actions(rng.randrange(-(2**63), 2**63), version=actions.version)
    for _ in range(rng.randrange(3)):
        actions.episodes.add(slot=rng.getrandbits(32), score=rng.gauss(0, 1e9), length=7)
    return rlx_pb2.ServerMessage(actions=actions)


def describe(message: rlx_pb2.ServerMessage) -> str:
    """Tells what the program in C should have read, in its words."""
    kind = ("ready", "actions", "error").index(message.WhichOneof("body") or "") + 1
    actions, error = message.actions, message.error
    # `get`, as reading an entry that is not there would make it.
    data = getattr(actions.actions.get("action"), "data", b"")
    action = int.from_bytes(data, "little", signed=True)
    score = actions.episodes[-1].score if actions.episodes else 0
    refused = error.message or "the rlx server nowhere refused a message; see its log"
    text = (refused if kind == 3 else actions.finished)[:63]
    most = message.ready.max_message_bytes or (64 << 20) * (kind == 1)
    return "|".join(
        str(part)
        for part in (
            kind, int(bool(data)), action, len(actions.episodes),
            f"{score:.17g}", text, error.code, most,
        )
    )  # fmt: skip


# A newer server's: varint, 8 bytes, bytes and 4 bytes under numbers that mean nothing yet.
UNKNOWN = (b"\xf8\x07\x85\x01", b"\xf9\x07abcdefgh", b"\xfa\x07\x03xyz", b"\xfd\x07abcd")


def test_it_reads_what_protobuf_reads_and_skips_what_it_does_not_know(read: Any) -> None:
    rng = random.Random(1)
    messages = [draw_message(rng) for _ in range(500)]
    bodies = [
        rng.choice((b"", *UNKNOWN)) + message.SerializeToString() + rng.choice((b"", *UNKNOWN))
        for message in messages
    ]
    # An axis that is not packed, a value before its key, and a body that takes another's place.
    array = b"\x1a\x08" + bytes([2, *[0] * 7]) + b"\x10\x01" + b"\x0a\x05int64"
    entry = b"\x12" + bytes([len(array)]) + array + b"\x0a\x06action"
    actions = b"\x0a" + bytes([len(entry)]) + entry
    bodies.append(b"\x0a\x02\x18\x07" + b"\x12" + bytes([len(actions)]) + actions)
    parsed = rlx_pb2.ServerMessage.FromString(bodies[-1])
    assert list(parsed.actions.actions["action"].shape) == [1]
    lines = read(bodies)
    assert lines[:-1] == [describe(message) for message in messages]
    assert lines[-1].startswith("2|1|2|0|")


def test_no_bytes_make_it_read_beyond_them(read: Any) -> None:
    rng = random.Random(2)
    bodies = []
    for _ in range(20_000):
        body = bytearray(draw_message(rng).SerializeToString())
        for _ in range(rng.randrange(1, 3)):
            at = rng.randrange(len(body) + 1)
            kind = rng.choice(("change", "change", "change", "cut", "remove", "insert"))
            if kind == "change":
                body[at : at + 1] = rng.choice(
                    (b"\x00", b"\x7f", b"\x80", b"\xff", rng.randbytes(1))
                )
            elif kind == "cut":
                del body[at:]
            elif kind == "remove":
                del body[at : at + rng.randrange(1, 9)]
            else:
                body[at:at] = rng.randbytes(rng.randrange(1, 9))
        bodies.append(bytes(body))
    lines = read(bodies)
    assert 0.1 < lines.count("no message") / len(lines) < 0.9  # neither is rare


OWN = """
#include <stdbool.h>
#include <stdint.h>

static int steps;
void my_reset(float *first) { first[0] = first[1] = 0; steps = 0; }
bool my_step(int64_t chosen, float *next, double *got)
{
    next[0] = (float)chosen;
    *got = 0.5;
    return ++steps == 3;
}
"""


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_the_example_of_the_readme_plays(
    serve: Serve, start: Start, compiler: str, tmp_path: Path, language: str
) -> None:
    server = serve(Role(finish_after=9))
    fences = re.findall(rf"```{language}\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    program = fences[0].replace("localhost:7001", server.address)
    if language == "c":
        target = build(
            tmp_path, program + OWN, compiler, ("-Wno-missing-prototypes",), "rlx_more.c"
        )
    else:
        target = build_cpp(tmp_path, program + OWN, compiler)
    assert finish(start(target)) == (0, "max_global_step reached\n", "")
    steps = server.sessions[0].steps
    rewards = [None if step.rewards is None else float(step.rewards[0]) for step in steps]
    assert rewards == [None, 0.5, 0.5, 0.5, None, 0.5, 0.5, 0.5, None]


# The program `main`, which compiles.


@pytest.fixture
def fresh(compiler: str, tmp_path: Path) -> Path:
    return copy_folder(tmp_path)


def test_without_a_compiler_one_line_names_the_cure(fresh: Path, start: Start) -> None:
    code, out, err = finish(start(fresh, "--help", CC="no-such-compiler"))
    assert (code, out) == (2, "")
    assert err == (
        "cartpole: no C compiler 'no-such-compiler'; install one "
        "(apt-get install gcc libc6-dev), or name another with CC\n"
    )


def test_a_source_that_cannot_be_compiled_leaves_nothing_behind(fresh: Path, start: Start) -> None:
    (fresh.parent / "cartpole.c").write_text("int main(void) { return wrong; }\n")
    code, _, err = finish(start(fresh, "--help"))
    assert code == 2
    assert "cartpole.c:1" in err
    assert "failed to compile the program (see above)" in err.splitlines()[-1]
    assert list((fresh.parent / "build").iterdir()) == []


def test_it_is_compiled_once_and_again_when_a_source_is_newer(fresh: Path, start: Start) -> None:
    assert finish(start(fresh, "--help"))[0] == 0
    (built,) = (fresh.parent / "build").iterdir()
    first = built.stat().st_mtime_ns
    assert finish(start(fresh, "--help", CC="no-such-compiler"))[0] == 0
    assert built.stat().st_mtime_ns == first
    source = fresh.parent / "cartpole.c"
    source.write_text(source.read_text().replace("CartPole-v1 in C as", "Changed, as"))
    os.utime(source, ns=(first + 1, first + 1))
    code, out, _ = finish(start(fresh, "--help"))
    assert code == 0
    assert "Changed, as a client" in out


def test_several_that_start_at_once_all_run(fresh: Path, start: Start) -> None:
    processes = [start(fresh, "--help") for _ in range(4)]
    results = [finish(process) for process in processes]
    assert [(code, err) for code, _, err in results] == [(0, "")] * 4
    assert len(list((fresh.parent / "build").iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_built_in_the_cache(
    fresh: Path, start: Start, tmp_path: Path
) -> None:
    (fresh.parent / "build").write_text("in the way, also for root")
    cache = tmp_path / "cache"
    assert finish(start(fresh, "--help", XDG_CACHE_HOME=str(cache)))[0] == 0
    (built,) = (cache / "relaax_like").iterdir()
    assert built.name.startswith("cartpole-c-")
    assert finish(start(fresh, "--help", XDG_CACHE_HOME=str(cache), CC="no-such-compiler"))[0] == 0
    code, _, err = finish(start(fresh, "--help", XDG_CACHE_HOME="/dev/null"))
    assert (code, err.splitlines()[-1]) == (
        2,
        f"cartpole: neither {fresh.parent}/build nor /dev/null/relaax_like can be written; "
        "set XDG_CACHE_HOME to a writable folder",
    )


# The program in C++.


def test_in_cpp_a_server_that_drops_is_found_again(
    serve: Serve, start: Start, program: Path
) -> None:
    server = serve(Role(drop_at={0: 10}, finish_after=60))
    args = ("--cpp", "--rlx-server", server.address, "--retry-sleep", 0, 0.1)
    code, out, err = finish(start(program, *args))
    assert (code, err) == (0, "")
    lost, again, last = out.splitlines()
    assert re.fullmatch(rf"lost the rlx server {server.address}: .*; retrying in 0\.[01] s", lost)
    assert again == f"reconnected to {server.address}"
    assert re.fullmatch(r"cartpole: max_global_step reached; \d+ episodes, \d+ steps", last)


def test_in_cpp_500_steps_are_a_truncation(serve: Serve, start: Start, program: Path) -> None:
    server = serve(Role(policy=balance))
    args = ("--cpp", "--rlx-server", server.address, "--seed", 1, "--episodes", 1, "--exploit")
    assert finish(start(program, *args))[1] == "cartpole: done; 1 episodes, 500 steps\n"
    last = server.sessions[0].steps[-1]
    assert (last.truncated, last.observations) == ([True], None)
    assert last.final_observations is not None


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--rlx-server", "nowhere:x"], "expected HOST:PORT"),
        (["--seed", "x"], "--seed: 'x', expected a number"),
        (["--env", "CartPole-v1"], "--env: unknown; --help"),
        (["--name"], "--name: expected a value after it"),
        (["--token-file", "/no/file"], "--token-file: '/no/file', expected a file with a token"),
    ],
)
def test_in_cpp_a_mistake_is_one_clear_line_and_code_2(
    start: Start, program: Path, args: list[str], match: str
) -> None:
    code, out, err = finish(start(program, "--cpp", *args))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert match in err


@pytest.mark.parametrize("case", WRONG_ACTIONS)
def test_in_cpp_an_action_that_is_none_is_one_line(start: Start, program: Path, case: str) -> None:
    answer, match = WRONG_ACTIONS[case]
    with RawServer([READY, answer]) as server:
        code, _, err = finish(start(program, "--cpp", "--rlx-server", server.address))
    assert (code, len(err.splitlines())) == (1, 1), err
    assert match in err


# With TLS and tokens.


@pytest.fixture(params=[(), ("--cpp",)], ids=["c", "cpp"])
def secured(request: pytest.FixtureRequest, program: Path) -> tuple[Path, tuple[str, ...]]:
    if not Path("/usr/include/openssl/ssl.h").exists():
        message = "no headers of OpenSSL (apt-get install libssl-dev)"
        if os.environ.get("RELAAX_REQUIRE_CC"):
            pytest.fail(message)
        pytest.skip(message)
    return program, request.param


@contextlib.contextmanager
def serve_tls(authority: Authority, client_cert: bool = False) -> Iterator[str]:
    """Hands TLS connections on to a scripted server; gives the address."""
    inner = ScriptedServer(Role(finish_after=30))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.cert, authority.key)
    if client_cert:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                try:
                    raw, _ = listener.accept()
                except OSError:
                    return
                outer = context.wrap_socket(raw, server_side=True)
                through = socket.create_connection(("127.0.0.1", inner.port))
                threading.Thread(target=copy, args=(outer, through), daemon=True).start()
                threading.Thread(target=copy, args=(through, outer), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"localhost:{listener.getsockname()[1]}"
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    inner.close()
    assert inner.violations == []


def test_it_plays_over_tls(secured: Any, start: Start, tmp_path: Path) -> None:
    program, language = secured
    authority = Authority(tmp_path / "tls")
    flags = ("--tls-cert", authority.client_cert, "--tls-key", authority.client_key)
    with serve_tls(authority, client_cert=True) as address:
        args = (*language, "--rlx-server", address, "--tls-ca", authority.ca, *flags)
        code, out, err = finish(start(program, *args))
    assert (code, err) == (0, "")
    assert out.startswith("cartpole: max_global_step reached; ")


def test_a_server_that_is_not_trusted_is_refused(
    secured: Any, start: Start, tmp_path: Path
) -> None:
    program, language = secured
    authority, other = Authority(tmp_path / "tls"), Authority(tmp_path / "other")
    wrong_name = Authority(tmp_path / "name")
    wrong_name.issue("elsewhere.example.org")
    for server, ca, match in (
        (authority, other.ca, "self-signed certificate|unable to get local issuer"),
        (wrong_name, wrong_name.ca, "hostname mismatch"),
    ):
        with serve_tls(server) as address:
            args = (*language, "--rlx-server", address, "--tls-ca", ca)
            code, out, err = finish(start(program, *args))
        assert (code, out) == (1, "")
        assert re.search(match, err)
        assert "check tls_ca" in err


def test_tls_with_a_server_without_it_and_the_reverse(
    secured: Any, start: Start, tmp_path: Path
) -> None:
    program, language = secured
    authority = Authority(tmp_path / "tls")
    server = ScriptedServer()
    args = (*language, "--rlx-server", server.address, "--tls-ca", authority.ca)
    code, out, err = finish(start(program, *args))
    server.close()
    assert (code, out) == (1, "")
    assert "whether the server uses TLS" in err
    with serve_tls(authority) as address:
        process = start(program, *language, "--rlx-server", address, "--retry-sleep", 1000, 1000)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "closed the connection" in line or "reset" in line


def test_files_of_tls_that_cannot_be_used_are_named(secured: Any, start: Start) -> None:
    program, language = secured
    with RawServer([]) as server:
        args = (*language, "--rlx-server", server.address, "--tls-ca", "/no/ca.pem")
        code, out, err = finish(start(program, *args))
    assert (code, out) == (2, "")
    assert "tls_ca: '/no/ca.pem'" in err
    assert "No such file" in err


def test_without_openssl_tls_is_refused_with_the_cure(
    start: Start, compiler: str, tmp_path: Path
) -> None:
    text = """
#include "rlx_more.h"
#include <stdio.h>

int main(int argc, char **argv)
{
    rlx_more more;
    (void)argc;
    rlx_more_init(&more, argv[1], "plain", NULL, 0, NULL, 0);
    more.tls_ca = "ca.pem";
    int status = (int)rlx_more_connect(&more);
    puts(more.client.text);
    return status;
}
"""
    target = build(tmp_path, text, compiler, (), "rlx_more.c")
    with RawServer([]) as server:
        code, out, _ = finish(start(target, server.address))
    assert code == INVALID
    assert "compile rlx_more.c with -DRLX_TLS, and link it with -lssl -lcrypto" in out


def test_a_token_is_sent(serve: Serve, start: Start, program: Path, tmp_path: Path) -> None:
    for language in ((), ("--cpp",)):
        server = serve(Role(finish_after=3))
        file = tmp_path / "token"
        file.write_text("# of a test\n\nsecret-of-a-test\n")
        args = (*language, "--rlx-server", server.address, "--token-file", file)
        assert finish(start(program, *args))[0] == 0
        assert server.sessions[0].hello.token == "secret-of-a-test"
