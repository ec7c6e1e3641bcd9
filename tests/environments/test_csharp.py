"""The client library in C#, by itself: spaces, slots, features, and what a hostile server sends."""

# covers PE8, PE20, R19

import contextlib
import json
import random
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.bridge import make_backend
from support.certificates import Authority
from support.cluster import ROOT
from support.masked import check_choices, serve_masked
from support.rlx import serve_rlx
from test_languages import Game, require_tools, serve

FOLDER = ROOT / "environments" / "csharp"
DRIVER = r"""
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Threading;

static class Driver {
    static readonly float[] Seen = { 0.1f, -2 };

    static void Main(string[] arguments) {
        // Numbers have a decimal comma there.
        Thread.CurrentThread.CurrentCulture = new CultureInfo("de-DE");
        if (arguments[0] == "json") Json();
        else if (arguments[0] == "spaces") Spaces(arguments[1]);
        else if (arguments[0] == "masks") Masks(arguments[1], arguments.Length > 2);
        else Verbs(arguments.Skip(1).ToArray());
    }

    static void Json() {
        for (string line; (line = Console.ReadLine()) != null; ) {
            try {
                Console.WriteLine(RlxJson.Write(RlxJson.Read(line)));
            } catch (FormatException error) {
                Console.WriteLine("refused " + error.Message);
            }
        }
    }

    static string Call(RlxClient client, string verb) {
        RlxAnswer answer = null;
        switch (verb) {
            case "connect": client.Connect(); break;
            case "retry": client.ConnectWithRetry(Console.WriteLine); break;
            case "agents": client.Agents = new[] { "white" }; client.Games = new[] { 7 }; break;
            case "max_wait": client.MaxWaitMs = 20; break;
            case "act": answer = client.Act(Seen); break;
            case "short": answer = client.Act(new float[1]); break;
            case "nan": answer = client.Act(new[] { 0, float.NaN }); break;
            case "reward": answer = client.RewardAndAct(0.1, Seen); break;
            case "reset": answer = client.RewardAndReset(-1e300); break;
            case "truncate": answer = client.RewardAndReset(1, true, Seen, true); break;
            case "ping": client.Ping(); break;
            case "mask": answer = client.Step(new RlxStep {
                Observation = Seen, Mask = new[] { true, false, true } }); break;
            case "short_mask": answer = client.Step(new RlxStep {
                Observation = Seen, Mask = new[] { true, false } }); break;
            case "final_mask": answer = client.Step(new RlxStep { Reward = new[] { 1.0 },
                Observation = Seen, FinalMask = new[] { true, true, false } }); break;
            case "present": answer = client.Step(new RlxStep {
                Observation = Seen, Present = new[] { true } }); break;
            case "executed": answer = client.Step(new RlxStep {
                Reward = new[] { 1.0 }, Observation = Seen, Executed = new long[] { 2 },
                Overridden = new[] { true } }); break;
        }
        if (answer == null) return "ok";
        return string.Format(CultureInfo.InvariantCulture, "action {0} episodes {1} finished {2}",
            answer.Actions == null ? "none" : "" + answer.GetAction(),
            string.Join(" ", answer.Episodes.Select(
                one => one.Slot + ":" + one.Length + ":" + RlxJson.Write(one.Score))),
            answer.Finished ?? "no");
    }

    static void Verbs(string[] arguments) {
        var client = new RlxClient(arguments[0], "driver", RlxSpace.Box(2), RlxSpace.Discrete(3)) {
            AnswerSeconds = double.Parse(arguments[1], CultureInfo.InvariantCulture),
            MinSleepSeconds = 0, MaxSleepSeconds = 0.01,
            TlsCa = arguments.Length > 2 ? arguments[2] : null };
        foreach (string verb in Console.In.ReadToEnd().Split()) {
            try {
                Console.WriteLine(Call(client, verb));
            } catch (RlxException error) {
                Console.WriteLine(error.Code + " [" + error.Field + "] " + error.Message);
            }
        }
    }

    static void Spaces(string address) {
        var low = new[] { double.NegativeInfinity, -1.5 };
        var observation = new Dictionary<string, RlxSpace> {
            { "camera", RlxSpace.Box(new[] { 2, 3 }, "uint8") },
            { "speed", RlxSpace.Box(new int[0], "float64", null, new[] { 1e300 }) },
            { "arm/joints", RlxSpace.Box(new[] { 2 }, "float32", low) },
            { "count", RlxSpace.Box(new int[0], "int64") },
            { "dial", RlxSpace.Discrete(5, -2) },
            { "dials", RlxSpace.MultiDiscrete(new[] { 3, 2, 4, 2 }, new[] { 2, 2 }) },
            { "lamps", RlxSpace.MultiBinary(3) } };
        var action = new Dictionary<string, RlxSpace> {
            { "push", RlxSpace.Box(2) }, { "exact", RlxSpace.Box(new[] { 1 }, "float64") },
            { "far", RlxSpace.Box(new int[0], "int64") }, { "turn", RlxSpace.Discrete(3, 10) },
            { "keys", RlxSpace.MultiBinary(2) },
            { "dials", RlxSpace.MultiDiscrete(new[] { 2, 3 }) } };
        var seen = new Dictionary<string, Array> {
            { "camera", new byte[] { 0, 1, 2, 3, 4, 255, 6, 7, 8, 9, 10, 11 } },
            { "speed", new[] { 0.1, -1e-300 } }, { "arm/joints", new[] { 0.1f, 1, -0.5f, 3e7f } },
            { "count", new[] { 9007199254740993, -1 } }, { "dial", new[] { -2, 2 } },
            { "dials", new long[] { 2, 1, 3, 1, 0, 0, 0, 0 } },
            { "lamps", new sbyte[] { 1, 0, 1, 0, 0, 1 } } };
        using (var client = new RlxClient(address, "spaces", observation, action, 2) {
                   Exploit = true }) {
            client.Connect();
            Print(client.Step(new RlxStep { Observation = seen }));
            Print(client.Step(new RlxStep { Reward = new[] { 0.1, 2 }, Observation = seen,
                Terminated = new[] { false, true }, Success = new bool?[] { null, true } }));
            Print(client.Step(new RlxStep { Reward = new[] { 0.25, 4 }, Observation = seen,
                Truncated = new[] { true, false }, FinalObservation = seen }));
            seen["dial"] = new[] { 0.5, 1 };
            try {
                client.Step(new RlxStep { Reward = new double[2], Observation = seen });
            } catch (RlxException error) {
                Console.WriteLine(error.Code + " " + error.Message);
            }
        }
    }

    static bool[] Draw(Random random, int slots, params int[] sizes) {
        var mask = new List<bool>();
        foreach (int n in Enumerable.Repeat(sizes, slots).SelectMany(each => each)) {
            int one = random.Next(n);
            mask.AddRange(Enumerable.Range(0, n).Select(i => i == one || random.Next(5) < 2));
        }
        return mask.ToArray();
    }

    static void Masks(string address, bool isWrong) {
        var random = new Random(1);
        var action = new Dictionary<string, RlxSpace> {
            { "move", RlxSpace.Discrete(4, 2) },
            { "arms", RlxSpace.MultiDiscrete(new[] { 3, 2 }) } };
        var sight = new Dictionary<string, RlxSpace> { { "observation", RlxSpace.Box(4) } };
        var client = new RlxClient(address, "masks", sight, action, 3);
        var seen = new Dictionary<string, Array> { { "observation", new float[12] } };
        client.Wanted.Add("masks");
        try {
            client.Connect();
            for (int i = 0; i <= 100; i++) {
                bool[] moves = Draw(random, 3, 4), arms = Draw(random, 3, 3, 2);
                // The rows of slots that have not ended mean nothing.
                var last = Draw(random, 1, 4).Concat(new bool[8]).ToArray();
                bool ends = i % 7 == 6;
                var answer = client.Step(new RlxStep {
                    Reward = i > 0 ? new double[3] : null, Observation = seen,
                    Truncated = i > 0 ? new[] { ends, false, false } : null,
                    FinalObservation = ends ? seen : null,
                    Mask = new Dictionary<string, Array> { { "move", moves }, { "arms", arms } },
                    FinalMask = !ends ? null : new Dictionary<string, Array> {
                        { "move", isWrong ? new bool[12] : last }, { "arms", arms } } });
                for (int j = 0; j < 3; j++) {
                    var flags = moves.Skip(4 * j).Take(4).Concat(arms.Skip(5 * j).Take(5));
                    var chosen = (long[])answer.Actions["arms"];
                    Console.WriteLine("{0} {1} {2} {3}",
                        string.Concat(flags.Select(flag => flag ? 1 : 0)),
                        ((long[])answer.Actions["move"])[j], chosen[2 * j], chosen[2 * j + 1]);
                }
            }
        } catch (RlxException error) {
            Console.WriteLine(error.Code + " [" + error.Field + "] " + error.Message);
        }
    }

    static void Print(RlxAnswer answer) {
        foreach (var episode in answer.Episodes)
            Console.WriteLine("episode " + episode.Slot + " " + RlxJson.Write(episode.Score));
        Console.WriteLine(RlxJson.Write(answer.Actions));
    }
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_tools("csharp")
    folder = tmp_path_factory.mktemp("csharp")
    source, program = folder / "Driver.cs", folder / "driver.exe"
    source.write_text(DRIVER)
    argv = ["mcs", "-langversion:7.2", "-warnaserror", f"-out:{program}", source, FOLDER / "Rlx.cs"]
    subprocess.run(argv, check=True, timeout=60)
    return program


def run(driver: Path, *arguments: object, text: str = "") -> list[str]:
    argv = ["mono", driver, *map(str, arguments)]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


# JSON.

REFUSED = [
    "", "[1,]", "{\"a\":1,}", "[1 2]", "nul", "NaN", "Infinity", "-", "01", "1.", ".5", "+1",
    "1e999",
    '{"a":1,"a":2}', '"\\x"', '"\\u12"', '"a', '{"a" 1}', "{1:2}", "[1]]", "\u0661", '"\t"',
    "[" * 65 + "]" * 65, "[" * 100_000, '{"a":' * 100_000, "9" * 400, "1e" + "9" * 400,
]  # fmt: skip


def test_json_that_is_not_valid_is_refused(driver: Path) -> None:
    lines = run(driver, "json", text="".join(f"{text}\n" for text in REFUSED))
    assert len(lines) == len(REFUSED)
    assert [line for line in lines if not line.startswith("refused ")] == []


def draw_json(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 5 else 7)
    if kind == 7:
        return [draw_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        names = [f'k{i}\u20ac"' for i in range(rng.randrange(4))]
        return {name: draw_json(rng, depth + 1) for name in names}
    (double,) = struct.unpack("<d", rng.randbytes(8))
    return (
        rng.randrange(-(2**63), 2**63), rng.randrange(-99, 99), rng.random() - 0.5,
        double if np.isfinite(double) else 0.1, True, False,
        "".join(rng.choices("ab\"\\/\n\t\x01\u00e4\U0001f600 ", k=5)),
    )[kind]  # fmt: skip


@pytest.mark.parametrize("compact", [True, False])
def test_json_is_written_as_it_was_read(driver: Path, compact: bool) -> None:
    rng = random.Random(3)
    drawn = [draw_json(rng) for _ in range(500)]
    texts = [
        json.dumps(one, ensure_ascii=compact, separators=(",", ":") if compact else (" , ", " : "))
        for one in drawn
    ]
    lines = run(driver, "json", text="".join(f"{text}\n" for text in texts))
    assert [json.loads(line) for line in lines] == drawn


# With a server.


class ManyActions:
    """Writes down what it sees, and answers with numbers that are hard to carry."""

    calls: list[tuple[Any, ...]]

    def __init__(self, config: Any, parameter_server: Any):
        self.exploit = False

    def act(self, state: Any) -> Any:
        self.calls.append(("act", state))
        return {
            "push": np.array([0.1, -3e7], np.float32),
            "exact": np.array([0.1]),
            "far": np.array(-9007199254740993),
            "turn": 12,
            "keys": np.array([1, 0], np.int8),
            "dials": np.array([1, 2]),
        }

    def reward_and_act(self, reward: float, state: Any) -> Any:
        self.calls.append(("reward_and_act", reward))
        return self.act(state)

    def reward_and_reset(
        self, reward: float, state: Any = None, truncated: bool = False, success: Any = None
    ) -> float:
        self.calls.append(("reward_and_reset", reward, state, truncated, success))
        return reward

    def close(self) -> None:
        pass


def test_all_kinds_of_spaces_and_slots_are_carried_exactly(driver: Path) -> None:
    agent = type("Agent", (ManyActions,), {"calls": []})
    with make_backend() as backend, serve_rlx(backend, agent) as port:
        lines = run(driver, "spaces", f"127.0.0.1:{port}")
    calls = agent.calls
    first = [state for verb, state, *_ in calls[:2] if verb == "act"]
    wanted = [
        {
            "camera": [[0, 1, 2], [3, 4, 255]], "speed": 0.1,
            "arm/joints": [np.float32(0.1), 1], "count": 9007199254740993, "dial": -2,
            "dials": [[2, 1], [3, 1]], "lamps": [1, 0, 1],
        },
        {
            "camera": [[6, 7, 8], [9, 10, 11]], "speed": -1e-300,
            "arm/joints": [-0.5, np.float32(3e7)], "count": -1, "dial": 2,
            "dials": [[0, 0], [0, 0]], "lamps": [0, 0, 1],
        },
    ]  # fmt: skip
    assert len(first) == 2
    for state, want in zip(first, wanted, strict=True):
        assert {name: np.asarray(leaf).tolist() for name, leaf in state.items()} == want
    ends = [call for call in calls if call[0] == "reward_and_reset"]
    assert [(reward, truncated, success) for _, reward, _, truncated, success in ends] == [
        (2.0, False, True), (0.25, True, None)
    ]  # fmt: skip
    assert ends[1][2]["count"] == 9007199254740993
    *_, fault = lines
    assert fault == "CALL observation.dial: expected int64 [2], slots x shape"
    episodes = [line for line in lines if line.startswith("episode")]
    assert episodes == ["episode 1 2", "episode 0 0.34999999999999998"]
    (answer,) = {line for line in lines if line.startswith("{")}
    assert json.loads(answer) == {
        "push": [0.100000001, -3e7] * 2, "exact": [0.1] * 2, "far": [-9007199254740993] * 2,
        "turn": [12] * 2, "keys": [1, 0] * 2, "dials": [1, 2] * 2,
    }  # fmt: skip


@pytest.fixture(scope="module")
def masked_port() -> Iterator[int]:
    with serve_masked() as port:
        yield port


def test_only_legal_actions_come(driver: Path, masked_port: int) -> None:
    lines = run(driver, "masks", f"127.0.0.1:{masked_port}")
    assert len(lines) == 3 * 101
    check_choices(lines)


def test_final_masks_are_read(driver: Path, masked_port: int) -> None:
    line = run(driver, "masks", f"127.0.0.1:{masked_port}", "wrong")[-1]
    assert line.startswith("INVALID_FIELD [final_mask.move] ")


def test_a_run_without_masks_is_not_played(driver: Path) -> None:
    with serve_masked(has_masks=False) as port:
        (line,) = run(driver, "masks", f"127.0.0.1:{port}")
    assert line.startswith("CALL [mask] mask: ready.features of this server does not list masks")


# Mono does not know elliptic curves in certificates.
@pytest.mark.parametrize("trusted", [True, False])
def test_tls_with_an_authority_of_its_own(driver: Path, trusted: bool, tmp_path: Path) -> None:
    authorities = [Authority(tmp_path / name, rsa=True) for name in "ab"]
    authority, ca = authorities[0], authorities[0 if trusted else 1].ca
    with make_backend() as backend:
        with serve_rlx(backend, tls=authority.server_tls()) as port:
            lines = run(driver, "verbs", f"localhost:{port}", 10, ca, text="connect act")
    if trusted:
        assert lines == ["ok", "action 0 episodes  finished no"]
    else:
        assert lines[0].startswith("TLS []")


# With answers of the test's own.

READY = {"session": "s", "features": [], "max_message_bytes": 1000, "protocol_version": 1}


def ready(*features: str, **more: Any) -> bytes:
    return write({"ready": {**READY, "features": list(features), **more}})


def write(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


ACTION = write({"action": [1], "version": 7})
EPISODE = write({"episodes": [{"slot": 0, "score": 0.5, "length": 3}]})


class LineServer:
    """Answers each line with given bytes, one after the other, over as many connections as come.

    Attributes:
      received: the messages that came.
    """

    def __init__(self, answers: Sequence[bytes | None], piece: int = 1 << 20):
        self.received: list[Any] = []
        self.connections = 0
        self._answers = iter(answers)
        self._piece = piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> "LineServer":
        return self

    def __exit__(self, *unused: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(30)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with (
                contextlib.suppress(ConnectionError),
                connection,
                connection.makefile("rb") as stream,
            ):
                for line in stream:
                    self.received.append(json.loads(line))
                    if "ping" in self.received[-1]:
                        continue
                    answer = next(self._answers, b"")
                    if answer is None:  # closes
                        break
                    for i in range(0, len(answer), self._piece):
                        connection.sendall(answer[i : i + self._piece])


Talk = Callable[..., tuple[list[str], LineServer]]


@pytest.fixture
def talk(driver: Path) -> Iterator[Talk]:
    """Calls verbs; returns a line for each, and the server."""
    with contextlib.ExitStack() as stack:

        def call(
            verbs: str, *answers: bytes | None, piece: int = 1 << 20, seconds: float = 20
        ) -> tuple[list[str], LineServer]:
            server = stack.enter_context(LineServer(answers, piece))
            return run(driver, "verbs", server.address, seconds, text=verbs), server

        yield call


def test_the_verbs_send_what_the_page_says(talk: Talk) -> None:
    lines, server = talk(
        "connect act reward truncate act reset", ready(), ACTION, ACTION, EPISODE, ACTION, EPISODE
    )
    assert [line.split(" finished")[0] for line in lines] == [
        "ok", "action 1 episodes ", "action 1 episodes ", "action none episodes 0:3:0.5",
        "action 1 episodes ", "action none episodes 0:3:0.5",
    ]  # fmt: skip
    hello, *steps = server.received
    assert hello == {
        "hello": {
            "name": "driver", "slots": 1, "mode": "train", "action":
            {"discrete": 3, "start": 0, "dtype": "int64"},
            "observation": {"box": [2], "dtype": "float32"}, "features": [
                "executed", "hello_ping", "ping", "present", "slot_versions", "step_id"],
        }
    }  # fmt: skip
    seen = [[0.100000001, -2]]
    assert steps == [
        {"act": {"observation": seen}},
        {"reward_and_act": {"reward": [0.1], "observation": seen}},
        {"reward_and_reset": {"reward": [1], "truncated": [True], "final_observation": seen,
                              "success": [True]}},
        {"act": {"observation": seen}},
        {"reward_and_reset": {"reward": [-1e300], "truncated": [False], "success": [None]}},
    ]  # fmt: skip


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_answers_are_read_however_they_are_split_and_merged(talk: Talk, piece: int) -> None:
    ping = b'{"ping": {}}\n'
    lines, server = talk(
        "connect act ping reward",
        ping * 3 + ready("ping"), ping + b"\r\n".join([ACTION[:-1], b""]) + ping, ping * 9 + ACTION,
        piece=piece,
    )  # fmt: skip
    assert [line.split(" ep")[0] for line in lines] == ["ok", "action 1", "ok", "action 1"]
    assert {"ping": {}} in server.received


HOSTILE = {
    "deep": b'{"action": ' + b"[" * 1_000_000 + b"\n",
    "deep and whole": b'{"action": ' + b"[" * 100 + b"]" * 100 + b"}\n",
    "huge number": b'{"action": [1e999], "version": 1}\n',
    "large number": b'{"action": [99999999999999999999], "version": 1}\n',
    "text for a version": b'{"action": [1], "version": "7"}\n',
    "fraction": b'{"action": [0.5], "version": 1}\n',
    "text": b'{"action": ["1"], "version": 1}\n',
    "bool": b'{"action": [true], "version": 1}\n',
    "null": b'{"action": [null], "version": 1}\n',
    "missing slot": b'{"action": 1, "version": 1}\n',
    "two": b'{"action": [1, 1], "version": 1}\n',
    "ragged": b'{"action": [[1]], "version": 1}\n',
    "no action": b'{"version": 1}\n',
    "keys twice": b'{"action": [1], "action": [2], "version": 1}\n',
    "a list": b"[1]\n",
    "not JSON": b"HTTP/1.1 400 Bad Request\r\n",
    "not UTF-8": b'{"action": [1], "version": 1, "x": "\xff"}\n',
    "no end": b"x" * (3 << 20),
    "an error that is text": b'{"error": "x"}\n',
    "episodes": b'{"episodes": 1, "action": [1], "version": 1}\n',
    "another step": write({"action": [1], "version": 1, "step_id": 5}),
    "form": b'{"action": {"integers": ["x"]}, "version": 1}\n',
}


def test_a_hostile_answer_is_an_error_and_the_end_of_the_session(talk: Talk) -> None:
    answers = [one for answer in HOSTILE.values() for one in (ready("step_id"), answer)]
    lines, server = talk("connect act act " * len(HOSTILE) + "connect", *answers, ready())
    got = dict(zip(HOSTILE, zip(*[iter(lines)] * 3, strict=False), strict=True))
    for case, (connected, refused, closed) in got.items():
        assert connected == "ok", case
        assert refused.startswith("ANSWER ["), (case, refused)
        assert closed.startswith("UNAVAILABLE ["), case  # no connection
    assert len(server.received) == 2 * len(HOSTILE) + 1


def test_no_answer_in_time_is_a_loss_even_if_some_bytes_come(talk: Talk) -> None:
    lines, _ = talk("connect act act", ready(), b'{"act', seconds=0.3)
    assert re.fullmatch(r"UNAVAILABLE \[\] 127\S+: no answer .*", lines[1])
    assert "connect, and begin with Act" in lines[2]


def test_an_error_has_code_field_and_cure(talk: Talk) -> None:
    error = {"code": "INVALID_FIELD", "field": "reward", "message": "reward: NaN", "cure": "mend"}
    lines, _ = talk("connect act", ready(), write({"error": error}))
    assert lines[1] == "INVALID_FIELD [reward] reward: NaN; mend"


def test_it_connects_again_until_that_cannot_help(talk: Talk) -> None:
    errors = [
        write({"error": {"code": code, "message": "no"}}) for code in ("OVERLOADED", "UNAVAILABLE")
    ]
    refused = write({"error": {"code": "UNAUTHENTICATED", "message": "wrong"}})
    lines, server = talk("retry", *errors, None, refused)
    assert server.connections == 4
    assert [line.split(";")[0] for line in lines[:2]] == ["no", "no"]
    assert lines[3] == "UNAUTHENTICATED [] wrong"
    lines, server = talk("retry act act connect", ready(), write({"finished": "enough"}))
    assert lines[1] == "action none episodes  finished enough"
    assert lines[2].startswith("UNAVAILABLE [")
    assert lines[3] == "CALL [Connect] Connect: finished: enough"
    assert server.connections == 1


def test_wrong_arguments_are_refused_before_anything_is_sent(talk: Talk) -> None:
    lines, server = talk("connect short nan act", ready(), ACTION)
    assert lines[1] == "CALL [observation] observation: expected float32 [1, 2], slots x shape"
    assert lines[2] == lines[1]
    assert lines[3].startswith("action 1")
    assert len(server.received) == 2
    lines, server = talk("connect short_mask act", ready("masks"), ACTION)
    assert lines[1] == "CALL [mask] mask: expected bool [1, 3], slots x shape"
    assert len(server.received) == 2


@pytest.mark.parametrize("verb", ["mask", "final_mask", "present", "executed"])
def test_what_needs_a_feature_is_sent_only_with_it(talk: Talk, verb: str) -> None:
    feature = {"mask": "masks", "final_mask": "masks"}.get(verb, verb)
    begin = "connect" if verb in ("mask", "present") else "connect act"
    answers = [ACTION] * begin.count("act")
    lines, server = talk(f"{begin} {verb}", ready(), *answers, ACTION)
    assert lines[-1].startswith(
        f"CALL [{verb}] {verb}: ready.features of this server does not list"
    )
    assert not [one for one in server.received if verb in json.dumps(one) and "hello" not in one]
    lines, server = talk(f"{begin} {verb}", ready(feature), *answers, ACTION)
    assert lines[-1].startswith("action 1")
    (step,) = server.received[-1].values()
    assert verb in step
    assert step.get("mask") in (None, [[True, False, True]])


def test_agents_and_games_are_sent_only_to_servers_that_know_them(talk: Talk) -> None:
    lines, server = talk("agents connect", ready())
    assert lines[1].startswith("CALL [agents]")
    lines, server = talk("agents connect", ready("agents"), ready("agents"))
    assert lines[1] == "ok"
    first, second = [one["hello"] for one in server.received]
    assert "agents" not in first
    assert (second["agents"], second["games"]) == (["white"], [7])


def test_a_limit_of_time_is_asked_for(talk: Talk) -> None:
    _, server = talk("max_wait connect", ready("max_wait"))
    hello = server.received[0]["hello"]
    assert hello["max_wait_ms"] == 20
    assert hello["features"] == sorted([*hello["features"]])
    assert "max_wait" in hello["features"]


# The examples of the README.

OWN = """
using System;
using System.Collections.Generic;
using System.Reflection;
using System.Threading;
using System.Threading.Tasks;

public class MonoBehaviour { public bool enabled = true; }

public static class Debug { public static void Log(string text) { Console.WriteLine(text); } }

%(unity)s

static class Own {
    static int steps;
    static float[] MyReset() { steps = 0; return new float[4]; }
    static bool MyStep(int action, out float[] observation, out double reward) {
        observation = new float[] { action, 0, 0, 0 };
        reward = 0.5;
        return ++steps == 3;
    }

    static void Main(string[] arguments) {
        if (arguments[0] == "unity") Unity();
        else Plain();
    }

    static void Unity() {
        var learner = new Learner();
        Action<string> call = name => typeof(Learner)
            .GetMethod(name, BindingFlags.NonPublic | BindingFlags.Instance).Invoke(learner, null);
        for (call("Start"); learner.enabled; Thread.Sleep(1)) call("FixedUpdate");
        call("OnDestroy");
    }

    static void Plain() {
%(plain)s
    }

    static void Leaves() {
%(leaves)s
    }

    static bool[] MyRules() { return new bool[5]; }
    static void Masks(float[] observation, double reward) {
%(masks)s
    }
}
"""
UNITY_OWN = """
    int steps;
    float[] MyReset() { steps = 0; return new float[4]; }
    void MyAct(int action) { steps++; }
    float[] MyObserve(out double reward, out bool ended) {
        reward = 0.5;
        ended = steps == 3;
        return new float[4];
    }
"""


@pytest.mark.parametrize("example", ["plain", "unity"])
def test_the_examples_of_the_readme_play(driver: Path, example: str, tmp_path: Path) -> None:
    game = Game(lambda episode, observation: 1, 9)
    blocks = re.findall(r"```csharp\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    parts = dict(zip(("plain", "leaves", "masks", "unity"), blocks, strict=True))
    parts["unity"] = parts["unity"].replace(
        "    bool hasActed;\n", f"    bool hasActed;{UNITY_OWN}"
    )
    with serve(game) as port:
        (tmp_path / "Own.cs").write_text((OWN % parts).replace(":7001", f":{port}"))
        program = tmp_path / "own.exe"
        argv = [
            "mcs",
            "-langversion:7.2",
            f"-out:{program}",
            tmp_path / "Own.cs",
            FOLDER / "Rlx.cs",
        ]
        subprocess.run(argv, check=True, timeout=60)
        (line,) = run(program, example)
    assert line == "the agent's budget is used up"
    assert [episode.rewards for episode in game.episodes] == [[0.5] * 3] * 3 + [[]]
