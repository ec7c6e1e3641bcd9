"""Hostile clients of the rlx server: what they do to the steps of honest ones.

Sixteen honest connections in EXPLOIT mode take a step each 50 ms. Beside them a process attacks, in
alternation: so many seconds quiet, so many under attack, three times. The servers and the honest
process share one core, the attacker has another for itself:

- `nothing but computing`: the control: what a busy core costs as such;
- `hellos of 100 000 axes`: one after another;
- `hellos of 140 000 versions`: of packages of a simulator, one after another;
- `hellos of 100 000 agents`: with names of 20 characters, as many kinds and games, one after
  another;
- `points of curves`: four training clients send messages of 10 000 without a pause;
- `unfinished hellos`: 40 connections announce 63 MiB each and send 60 of them;
- `steps of 500 000 leaves`: 22 MB each, on four connections, each in a session of its own;
- `no hello`: 256 connections that say nothing, opened again whenever they are closed;
- `long errors`: steps with a leaf whose name has 2 MB, one after another, each in its own session;
- `exploding numbers`: four training clients at 100 steps/s whose observations are 3e38 and whose
  rewards are 1e18;
- `slow openings`: 256 WebSockets whose request never ends, opened again whenever they are closed;
- `wrong origins`: openings from pages of `localhost.example.org`, one after another;
- `wrong frames`: WebSockets that announce 2^63 bytes, or send frames that are not masked;
- `floods of pings`: of four WebSockets, 20 in each read;
- `endless fragments`: 40 WebSockets with messages of fragments that never end;
- `deep JSON`, `keys of JSON`, `numbers of JSON`: hellos of 1 MB that are lists within lists, 10^5
  keys, or numbers of thousands of digits, one after another;
- `steps of JSON`: four sessions that send steps as long as their limit, which are wrong at the end.

`quiet` and `attack` are the medians of the three p99s, in ms. A pause of the server counts in full:
the steps that were due during a late answer count as well, each with what it would have waited.
`holds` says whether `attack` is at most the larger of three times `quiet` and 10 ms. `joins` is the
share of new clients, one each second, that were let in under attack within 5 s.
"""

import base64
import contextlib
import itertools
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.cluster import Servers, start_servers, wait_for_ready
from benchmarks.harms import start_module
from benchmarks.load import SPACES, connect, make_hello, make_step, pack
from benchmarks.report import report
from relaax_like.client import RlxClient
from relaax_like.v1 import metrics_pb2, rlx_pb2
from relaax_like.wire.errors import RelaaxError
from relaax_like.wire.framing import HEADER

CONFIG = Path(__file__).parents[1] / "algorithms" / "a2c" / "a2c.yaml"
CONNECTIONS = 16
MODULE = "benchmarks.hostile_rlx"
PERIOD_SEC = 0.05
ROUNDS = 3
# Of the bound: three times the quiet p99, or so much.
ALWAYS_GOOD_MS = 10.0
_JOIN_SEC = 5.0
# An attacker ends by itself, whatever becomes of its parent.
_MOST_ACTS = 200_000
_MIB = 1 << 20
# Of memory that stays free, however many bytes an attack would like to send.
_SPARE_BYTES = 4 << 30

Address = str
Attack = Callable[[Address], Iterator[int]]


# Attacks. They yield, many times a second, how many messages and connections came from them.


def compute(address: Address) -> Iterator[int]:
    """A millisecond of work, again and again."""
    while True:
        sum(range(50_000))
        yield 1


def send_axes(address: Address) -> Iterator[int]:
    """Says hello with a space of very many axes, and waits for the answer."""
    hello = make_hello(rlx_pb2.EXPLOIT)
    hello.hello.observation_spaces["observation"].shape[:] = [127] * 100_000
    frame = pack(hello)
    while True:
        _ask_and_close(address, frame)
        yield 1


def send_versions(address: Address) -> Iterator[int]:
    """Says hello with the versions of very many packages, and waits for the answer."""
    hello = make_hello(rlx_pb2.EXPLOIT)
    hello.hello.features.append("versions")
    hello.hello.versions.update({f"package-{number}": "1\x1b[2J" for number in range(140_000)})
    frame = pack(hello)
    while True:
        _ask_and_close(address, frame)
        yield 1


def send_agents(address: Address) -> Iterator[int]:
    """Says hello with the names, kinds and games of very many agents, and waits for the answer."""
    hello = make_hello(rlx_pb2.EXPLOIT)
    hello.hello.features.append("agents")
    hello.hello.agents.extend(f"{number:020}" for number in range(100_000))
    hello.hello.kinds.extend(["observation"] * 100_000)
    hello.hello.games.extend(range(100_000))
    frame = pack(hello)
    while True:
        _ask_and_close(address, frame)
        yield 1


def send_points(address: Address) -> Iterator[int]:
    """Sends points on four connections as fast as they are read."""
    scalars = [metrics_pb2.Scalar(name="hostile", y=1.0)] * 10_000
    request = metrics_pb2.StoreScalarsRequest(scalars=scalars)
    frame = pack(rlx_pb2.ClientMessage(scalars=request))
    yield from _send_forever(address, 4, lambda: pack(_name(make_hello())), frame)


def hold_hellos(address: Address) -> Iterator[int]:
    """Sends most of a long hello on each of 40 connections, and holds them."""
    free = psutil.virtual_memory().available - _SPARE_BYTES
    # What is sent lies in the server, or in the kernel on its way.
    count = max(1, min(40, free // (2 * 60 * _MIB)))
    opening = HEADER.pack(63 * _MIB)
    yield from _send_forever(address, count, lambda: opening, bytes(_MIB), at_most=60)


def send_leaves(address: Address) -> Iterator[int]:
    """Sends steps of very many leaves on four connections, each in a session of its own."""
    step = make_step(np.zeros(4, np.float32), first=True)
    array = step.step.observations["observation"].SerializeToString()
    entries = []
    for number in range(500_000):
        entry = b"\x0a\x06%06d\x12%c" % (number, len(array)) + array
        entries.append(b"\x0a%c" % len(entry) + entry)
    leaves = b"".join(entries)
    message = b"\x12" + _to_varint(len(leaves)) + leaves  # ClientMessage.step
    frame = HEADER.pack(len(message)) + message

    def make_opening() -> bytes:
        return pack(_name(make_hello(rlx_pb2.EXPLOIT)))

    yield from _send_forever(address, 4, make_opening, frame, at_most=1)


def say_nothing(address: Address) -> Iterator[int]:
    """Keeps 256 connections open without a word."""
    yield from _send_forever(address, 256, lambda: b"", b"")


def cause_long_errors(address: Address) -> Iterator[int]:
    """Sends a step with a leaf of a long name in one session after another."""
    step = rlx_pb2.Step()
    step.observations["\x01" * 2_000_000].dtype = "float32"
    frame = pack(rlx_pb2.ClientMessage(step=step))
    while True:
        _ask_and_close(address, pack(_name(make_hello(rlx_pb2.EXPLOIT))), frame)
        yield 1


def explode(address: Address) -> Iterator[int]:
    """Trains with numbers that no network bears, on four connections at 100 steps/s each."""
    first = pack(make_step(np.full(4, 3e38, np.float32), first=True))
    message = make_step(np.full(4, 3e38, np.float32))
    message.step.rewards.data = np.float32(1e18).tobytes()
    step = pack(message)
    sessions: list[socket.socket] = []
    while True:
        due = time.monotonic() + 0.01
        while len(sessions) < 4:
            with contextlib.suppress(OSError):
                sessions.append(connect(address))
                sessions[-1].settimeout(_JOIN_SEC)
                sessions[-1].sendall(pack(_name(make_hello())))
                sessions[-1].recv(65536)
                sessions[-1].sendall(first)
        for session in list(sessions):
            try:
                if not session.recv(1 << 20):
                    raise ConnectionError
                session.sendall(step)
            except OSError:  # closed, or no answer in time
                session.close()
                sessions.remove(session)
        time.sleep(max(0.0, due - time.monotonic()))
        yield 1


def _open_web(origin: str = "http://localhost") -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nOrigin: {origin}\r\n\r\n"
    ).encode()


def open_slowly(address: Address) -> Iterator[int]:
    """Keeps 256 openings of WebSockets unfinished."""
    yield from _send_forever(address, 256, lambda: _open_web()[:-2], b"")


def send_origins(address: Address) -> Iterator[int]:
    """Opens WebSockets for pages that cannot connect."""
    while True:
        _ask_and_close(address, _open_web("http://localhost.example.org"))
        yield 1


def send_wrong_frames(address: Address) -> Iterator[int]:
    """Opens WebSockets, and sends one wrong frame on each."""
    wrong = (b"\x82\xff" + (1 << 63).to_bytes(8, "big") + bytes(4), b"\x81\x05hello")
    for frame in itertools.cycle(wrong):
        _ask_and_close(address, _open_web(), frame)
        yield 1


def send_web_pings(address: Address) -> Iterator[int]:
    """Sends pings of the longest kind on four WebSockets."""
    frame = b"\x89\xfd" + bytes(4 + 125)
    yield from _send_forever(address, 4, _open_web, frame * 15)


def send_fragments(address: Address) -> Iterator[int]:
    """Sends fragments of one endless message on each of 40 WebSockets."""
    fragment = b"\x00\xff" + (1 << 20).to_bytes(8, "big") + bytes(4 + (1 << 20))

    def make_opening() -> bytes:
        return _open_web() + b"\x01\x80" + bytes(4)

    yield from _send_forever(address, 40, make_opening, fragment, at_most=60)


def _send_json(address: Address, text: bytes) -> Iterator[int]:
    while True:
        _ask_and_close(address, b'{"hello": ' + text + b"}\n")
        yield 1


def send_depth(address: Address) -> Iterator[int]:
    """Says hello with lists within lists."""
    yield from _send_json(address, b'{"observation": {"box": ' + b"[" * 1_000_000 + b"}}")


def send_keys(address: Address) -> Iterator[int]:
    """Says hello with very many keys."""
    keys = b", ".join(b'"%05x": {}' % number for number in range(80_000))
    yield from _send_json(address, b'{"name": "w", "action": {}, "observation": {' + keys + b"}}")


def send_digits(address: Address) -> Iterator[int]:
    """Says hello with very long numbers."""
    numbers = b", ".join([b"9" * 4000] * 120 + [b"9" * 399] * 1_200)
    space = b'{"box": [' + numbers + b"]}"
    yield from _send_json(address, b'{"name": "w", "action": {}, "observation": ' + space + b"}")


def send_json_steps(address: Address) -> Iterator[int]:
    """Sends long steps, whose last key comes twice, each in a session of its own."""
    step = b'{"act": {"observation": [0, 0, 0, 0' + b" " * 16_000 + b'], "observation": [1]}}\n'

    def make_opening() -> bytes:
        name = uuid.uuid4().hex.encode()
        spaces = b'"observation": {"box": [4]}, "action": {"discrete": 2}'
        return b'{"hello": {"name": "' + name + b'", "mode": "exploit", ' + spaces + b"}}\n"

    yield from _send_forever(address, 4, make_opening, step, at_most=1)


ATTACKS: dict[str, Attack] = {
    "nothing but computing": compute,
    "hellos of 100 000 axes": send_axes,
    "hellos of 140 000 versions": send_versions,
    "hellos of 100 000 agents": send_agents,
    "points of curves": send_points,
    "unfinished hellos": hold_hellos,
    "steps of 500 000 leaves": send_leaves,
    "no hello": say_nothing,
    "long errors": cause_long_errors,
    "exploding numbers": explode,
    "slow openings": open_slowly,
    "wrong origins": send_origins,
    "wrong frames": send_wrong_frames,
    "floods of pings": send_web_pings,
    "endless fragments": send_fragments,
    "deep JSON": send_depth,
    "keys of JSON": send_keys,
    "numbers of JSON": send_digits,
    "steps of JSON": send_json_steps,
}


def _name(hello: rlx_pb2.ClientMessage) -> rlx_pb2.ClientMessage:
    """Gives a hello a name that no failed session had."""
    hello.hello.client_name = uuid.uuid4().hex
    return hello


def _to_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _ask_and_close(address: Address, *frames: bytes) -> None:
    """Sends frames, each when the one before was answered, and reads until the server closes."""
    with contextlib.suppress(OSError), contextlib.closing(connect(address)) as one:
        one.settimeout(30.0)
        for frame in frames:
            one.sendall(frame)
            if not one.recv(1 << 20):
                return
        while one.recv(1 << 20):
            pass


def _send_forever(
    address: Address,
    count: int,
    make_opening: Callable[[], bytes],
    data: bytes,
    at_most: int | None = None,
) -> Iterator[int]:
    """Keeps so many connections open, each with an opening and then data, as fast as it is read.

    Args:
      address: of the server.
      count: connections.
      make_opening: returns what is sent first.
      data: what is sent again and again.
      at_most: so many times on a connection; None: without end.
    """
    selector = selectors.DefaultSelector()
    open_now: set[socket.socket] = set()

    def begin() -> None:
        with contextlib.suppress(OSError):
            one = connect(address)
            one.setblocking(False)
            # What is still to be sent, and how many times after it.
            state = {"rest": memoryview(make_opening()), "times": at_most}
            open_now.add(one)
            selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE, state)

    def end(one: socket.socket) -> None:
        selector.unregister(one)
        open_now.discard(one)
        one.close()

    resting_until = 0.0
    while True:
        done = 0
        # At most 400 a second: ports for outgoing connections are few.
        if len(open_now) < count and time.monotonic() >= resting_until:
            resting_until = time.monotonic() + 0.0025
            done += 1
            begin()
        for key, events in selector.select(0.0025):
            one, state = key.fileobj, key.data
            assert isinstance(one, socket.socket)
            try:
                if events & selectors.EVENT_READ and not one.recv(1 << 16):
                    end(one)
                    continue
                if not state["rest"] and data and state["times"] != 0:
                    done += 1
                    state["rest"] = memoryview(data)
                    state["times"] = None if state["times"] is None else state["times"] - 1
                if state["rest"]:
                    state["rest"] = state["rest"][one.send(state["rest"]) :]
                else:  # all is said
                    selector.modify(one, selectors.EVENT_READ, state)
            except BlockingIOError:
                continue
            except OSError:
                end(one)
        yield done


def attack(name: str, address: Address, core: int) -> None:
    """Attacks for as long as standard input says; prints how much it did a second."""
    os.sched_setaffinity(0, {core})
    acts = ATTACKS[name](address)
    print("ready", flush=True)
    seconds = float(sys.stdin.readline())
    began = time.monotonic()
    count = 0
    while time.monotonic() < began + seconds and count < _MOST_ACTS:
        count += next(acts)
    print(f"{count / (time.monotonic() - began):.3f}", flush=True)
    os._exit(0)  # connections that are still open end with the process


# Honest clients.


def play(address: Address, core: int) -> None:
    """Plays honest clients until standard input ends; prints when steps were due, and their waits.

    A client that is cut off joins again; until then its steps wait.
    """
    os.sched_setaffinity(0, {core})
    steps: list[tuple[float, float]] = []
    ended, joined = threading.Event(), threading.Barrier(CONNECTIONS + 1)

    def play_one(number: int) -> None:
        due = 0.0
        while not ended.is_set():
            try:
                with RlxClient(address, *SPACES, exploit=True, name=f"honest-{number}") as client:
                    client.act(np.zeros(4, np.float32))
                    if not due:
                        joined.wait()
                        due = time.monotonic() + number * PERIOD_SEC / CONNECTIONS
                    while not ended.wait(max(0.0, due - time.monotonic())):
                        client.reward_and_act(1.0, np.zeros(4, np.float32))
                        steps.append((due, time.monotonic() - due))
                        due += PERIOD_SEC
            except RelaaxError:
                ended.wait(0.2)

    threads = [
        threading.Thread(target=play_one, args=(n,), daemon=True) for n in range(CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    joined.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    ended.set()
    until = time.monotonic() + _JOIN_SEC
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    print(json.dumps(list(steps)), flush=True)
    os._exit(0)  # a client that is not answered waits for a minute


def count_joins(address: Address, ended: threading.Event) -> list[bool]:
    """Connects once a second; returns whether a hello was answered with Ready in time."""
    joins = []
    hello = pack(make_hello(rlx_pb2.EXPLOIT))
    while not ended.is_set():
        began = time.monotonic()
        joins.append(False)
        with contextlib.suppress(OSError), contextlib.closing(connect(address)) as one:
            one.settimeout(_JOIN_SEC)
            one.sendall(hello)
            answer = one.recv(65536)
            if time.monotonic() - began < _JOIN_SEC and len(answer) > HEADER.size:
                message = rlx_pb2.ServerMessage.FromString(answer[HEADER.size :])
                joins[-1] = message.HasField("ready")
        ended.wait(max(0.0, began + 1.0 - time.monotonic()))
    return joins


# Measuring.


def measure(name: str, seconds: float, cores: Sequence[int]) -> dict[str, Any]:
    """Returns the row of an attack.

    Args:
      name: a key of `ATTACKS`.
      seconds: quiet, and again under attack, three times.
      cores: of the servers and the honest clients; of the attacker.
    """
    ours, theirs = cores
    os.sched_setaffinity(0, {ours})  # inherited by what is started
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.NamedTemporaryFile("wb"))
        servers = stack.enter_context(start_servers(CONFIG, log=log))
        honest = stack.enter_context(start_module(MODULE, "play", servers.address, ours))
        os.sched_setaffinity(0, {theirs})
        wait_for_ready(honest)
        windows, joins, acts, most_bytes = [], [], [], 0
        for _ in range(ROUNDS):
            _wait_until_quiet(servers.address)
            quiet = time.monotonic()
            time.sleep(seconds)
            with start_module(MODULE, "attack", name, servers.address, theirs) as attacker:
                wait_for_ready(attacker)
                began = time.monotonic()
                done, joined, resident = _attack(attacker, servers, seconds)
            windows.append((quiet, began))
            acts.append(done)
            joins += joined
            most_bytes = max(most_bytes, resident)
            log.truncate(0)  # frees the disk; what follows is written behind the hole
        steps = json.loads(honest.communicate("\n", timeout=60)[0])
        logged = os.stat(log.name).st_size
    quiets = [_compute_p99(steps, quiet, seconds) for quiet, _ in windows]
    attacks = [_compute_p99(steps, began, seconds) for _, began in windows]
    quiet, attacked = statistics.median(quiets), statistics.median(attacks)
    return {
        "attack": name,
        "did/s": statistics.median(acts),
        "quiet p99 ms": quiet,
        "attack p99 ms": attacked,
        "holds": "yes" if attacked <= max(3 * quiet, ALWAYS_GOOD_MS) else "NO",
        "joins %": 100 * sum(joins) / len(joins),
        "MB resident": most_bytes / 1e6,
        "MB log": logged / 1e6,
    }


def _attack(
    attacker: "subprocess.Popen[str]", servers: Servers, seconds: float
) -> tuple[float, list[bool], int]:
    """Returns acts per second, which clients could join, and the most bytes of memory."""
    ended = threading.Event()
    joins: list[bool] = []
    joining = threading.Thread(target=lambda: joins.extend(count_joins(servers.address, ended)))
    assert attacker.stdin is not None
    attacker.stdin.write(f"{seconds}\n")
    attacker.stdin.flush()
    joining.start()
    process, most_bytes = psutil.Process(servers.rlx_server), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        most_bytes = max(most_bytes, process.memory_info().rss)
        time.sleep(0.2)
    ended.set()
    joining.join()
    attacker.wait(60)  # the current act can take long
    assert attacker.stdout is not None
    return float(attacker.stdout.read()), joins, most_bytes


def _wait_until_quiet(address: Address) -> None:
    """Waits until the server answers hellos at once again, for a minute at most."""
    hello = pack(make_hello(rlx_pb2.EXPLOIT))
    end = time.monotonic() + 60.0
    quick = 0
    while quick < 10 and time.monotonic() < end:
        began = time.monotonic()
        with contextlib.suppress(OSError), contextlib.closing(connect(address)) as one:
            one.sendall(hello)
            one.recv(65536)
        quick = quick + 1 if time.monotonic() - began < 0.1 else 0
        time.sleep(0.1)


def _compute_p99(steps: Sequence[tuple[float, float]], began: float, seconds: float) -> float:
    """Returns the p99, in ms, of the steps that were due in a window."""
    waits = [wait for due, wait in steps if began <= due < began + seconds]
    # Steps that were never answered are missing in the list.
    missing = max(0, round(seconds / PERIOD_SEC) * CONNECTIONS - len(waits))
    return 1e3 * float(np.percentile(waits + [seconds] * missing, 99))


def main(seconds: float, attacks: Sequence[str] = ()) -> None:
    """Measures the attacks, by default all."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:2]
    if len(cores) < 2:
        raise SystemExit("hostile: one core; it takes two, one for the attacker alone")
    try:
        rows = [measure(name, seconds, cores) for name in attacks or ATTACKS]
    finally:
        os.sched_setaffinity(0, before)
    report(f"hostile clients of the rlx server, {CONNECTIONS} honest connections", rows)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    if role == "play":
        play(arguments[0], int(arguments[1]))
    else:
        attack(arguments[0], arguments[1], int(arguments[2]))
