"""The client in JavaScript, in Node: against real rlx servers, and odd ones. covers R18, R19, X13

`RELAAX_REQUIRE_NODE=1` turns a missing Node from a skip into a failure.
"""

import math
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.batch import serve_a2c, serve_batch
from support.certificates import ENVIRONMENT, Authority, write_private, write_tokens
from support.cluster import Cluster, Program
from support.masked import CONFIG
from support.node import FOLDER, Echo, Left, LineServer, Node, ready, serve
from support.rlx import RecordingAgent
from support.wire import serve as serve_recorded

from relaax_like.wire.security import Tokens

MAIN = FOLDER / "main"
SMALL = {"observation": {"box": [2]}, "action": {"discrete": 3}}
ACTION = b'{"action":1,"version":3}\n'
ENDED = b'{"episodes":[{"slot":0,"score":2.5,"length":3}],"version":3}\n'
FINISHED = b'{"finished":"enough","version":3}\n'
UNAVAILABLE = b'{"error":{"code":"UNAVAILABLE","message":"closing","cure":"retry"}}\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("node"))


# The simulator.

STEPS = """
return given.cases.map(({ state, actions }) => {
  const states = [state];
  for (const action of actions) states.push(cartpole.move(states.at(-1), action));
  return states.slice(1).map((one) => ({ state: one, fallen: cartpole.hasFallen(one) }));
});
"""


def test_each_step_is_that_of_gymnasium(node: Node) -> None:
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    rng = np.random.default_rng(0)
    # From the middle to just beyond the limits, so that many a step ends the episode.
    states = rng.uniform(-1, 1, (300, 4)) * [2.45, 3, 0.22, 3]
    actions = rng.integers(2, size=(300, 8))
    cases = [
        {"state": s.tolist(), "actions": a.tolist()} for s, a in zip(states, actions, strict=True)
    ]
    ends = {True: 0, False: 0}
    for state, chosen, steps in zip(states, actions, node.run(STEPS, cases=cases), strict=True):
        env.reset()
        env.state = state
        for action, step in zip(chosen, steps, strict=True):
            _, reward, terminated, _, _ = env.step(int(action))
            np.testing.assert_allclose(step["state"], env.state, rtol=1e-13, atol=1e-15)
            assert (step["fallen"], reward) == (terminated, 1)
            ends[terminated] += 1
            if terminated:
                break
    assert min(ends.values()) > 100


def test_first_states_are_drawn_as_gymnasium_draws_them(node: Node) -> None:
    body = "return [7, 7, 8].map((seed) => new cartpole.CartPoles(5000, seed).reset().observation);"
    drawn, same, other = np.array(node.run(body))
    assert (drawn == same).all()
    assert (drawn != other).any()
    assert np.abs(drawn).max() <= 0.05
    # A uniform distribution of that width: mean 0, deviation 0.1 / sqrt(12).
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.003)
    np.testing.assert_allclose(drawn.std(axis=0), 0.1 / math.sqrt(12), rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.eye(4), atol=0.06)


BALANCE = """
const poles = new cartpole.CartPoles(2, 1);
const balance = ([x, xDot, theta, thetaDot]) =>
  Number(0.1 * x + 0.2 * xDot + 3 * theta + thetaDot > 0);
let message = poles.reset();
for (let step = 1; step < 500; step++) message = poles.step(poles.states.map(balance));
const before = poles.states;
return [message, before, poles.step(before.map(balance))];
"""


def test_500_steps_are_a_truncation_with_the_final_observation(node: Node) -> None:
    message, before, last = node.run(BALANCE)
    assert "terminated" not in message
    assert (last["terminated"], last["truncated"]) == ([False, False], [True, True])
    for (x, x_dot, *_), final in zip(before, last["finalObservation"], strict=True):
        assert final[0] == pytest.approx(x + 0.02 * x_dot)
    assert np.abs(last["observation"]).max() <= 0.05


# The client and real servers, over both carriers.


def test_it_is_a_module_of_both_kinds_in_node(node: Node, tmp_path: Path) -> None:
    """`require` is what the other tests use."""
    script = tmp_path / "script.mjs"
    script.write_text(
        f"import rlx, {{ connect, RlxError }} from '{FOLDER}/rlx.js';"
        "console.log(rlx.connect === connect, new RlxError('LOST', 'x').mayRetry);"
    )
    done = subprocess.run([node.path, script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("true true\n", "")


@pytest.fixture(params=["lines", "web socket"])
def scheme(node: Node, request: pytest.FixtureRequest) -> str:
    if request.param == "lines":
        return ""
    if node.flags is None:
        pytest.skip("this version of Node has no WebSocket; the page's tests use that of Chromium")
    return "ws://"


VERBS = """
const client = await connect({ ...given.options, name: "verbs" });
const answers = [
  await client.act([0.25, -2]),
  await client.rewardAndAct(-0.5, new Float32Array([1, 2])),
  await client.rewardAndReset(3, { success: true, finalObservation: [5, 6] }),
  await client.act([1, 1]),
  await client.rewardAndReset(4, { truncated: true, finalObservation: [7, 8] }),
];
client.close();
return [answers, client.features, client.session];
"""


def test_the_verbs_reach_the_agent(node: Node, scheme: str) -> None:
    with serve() as address:
        answers, features, session = node.run(VERBS, options={**SMALL, "address": scheme + address})
        (agent,) = RecordingAgent.instances
    assert answers == [0, 1, 2.5, 0, 4]
    assert "ping" in features
    assert session.startswith("session-")
    assert agent.calls == [
        ("act", [0.25, -2]),
        ("reward_and_act", -0.5, [1, 2]),
        ("reward_and_reset", 3, [5, 6], False, True),
        ("act", [1, 1]),
        ("reward_and_reset", 4, [7, 8], True, None),
    ]


SLOTS = """
const client = await connect({ ...given.options, slots: 3 });
const actions = [];
actions.push(await client.step({ observation: [[1, 1], [2, 2], [3, 3]] }));
actions.push(await client.step({
  reward: [1, 2, 3], observation: [[4, 4], [5, 5], [6, 6]],
  terminated: [false, true, false], truncated: [true, false, false],
  finalObservation: [[7, 7], [8, 8], [9, 9]], success: [null, true, null],
}));
const ended = client.episodes;
actions.push(await client.step({ reward: [1, 1, 1], truncated: [false, false, false] }));
return [actions, ended, client.episodes];
"""


def test_slots_end_at_different_times(node: Node, scheme: str) -> None:
    with serve() as address:
        address = scheme + address
        actions, ended, last = node.run(SLOTS, options={**SMALL, "address": address})
        calls = [agent.calls for agent in RecordingAgent.instances]
    assert [len(one) if one else one for one in actions] == [3, 3, None]
    assert ended == [
        {"slot": 0, "score": 1, "length": 1},
        {"slot": 1, "score": 2, "length": 1},
    ]
    assert [(one["slot"], one["score"]) for one in last] == [(0, 1), (1, 1), (2, 4)]
    assert calls[0][1:3] == [("reward_and_reset", 1, [7, 7], True, None), ("act", [4, 4])]
    assert calls[1][1] == ("reward_and_reset", 2, [8, 8], False, True)
    assert calls[2][1] == ("reward_and_act", 3, [6, 6])


# Space, value in JavaScript, what is received as JSON.
SPACES = [
    ({"box": [2]}, "[0.5, -1e-3]", [0.5, pytest.approx(-1e-3)]),
    ({"box": []}, "0.25", 0.25),
    ({"box": [2, 1], "dtype": "float64"}, "[[0.1], [-1e7]]", [[0.1], [-1e7]]),
    ({"box": [2]}, "new Float64Array([0.5, 2])", [0.5, 2]),
    ({"box": [2], "low": [None, 0], "high": 1}, "[0.5, 0]", [0.5, 0]),
    ({"box": [2, 2], "dtype": "uint8"}, "new Uint8Array([0, 1, 254, 255])", [[0, 1], [254, 255]]),
    ({"box": [2], "dtype": "uint8"}, "new Uint8ClampedArray([300, -1])", [255, 0]),
    ({"box": [2], "dtype": "bool"}, "[1, false]", [True, False]),
    ({"box": [2], "dtype": "float16"}, "[0.5, 2]", [0.5, 2]),
    ({"box": [2], "dtype": "int64"}, "[9007199254740993n, -1n]", ["9007199254740993n", "-1n"]),
    (
        {"box": [2], "dtype": "uint64"},
        "new BigUint64Array([2n ** 64n - 1n, 1n])",
        ["18446744073709551615n", "1n"],
    ),
    ({"discrete": 3}, "2", 2),
    ({"discrete": 3, "start": -1}, "-1", -1),
    ({"multi_discrete": [3, 2]}, "[2, 1]", [2, 1]),
    ({"multi_discrete": [3, 2]}, "new BigInt64Array([2n, 1n])", [2, 1]),
    ({"multi_binary": [3]}, "[true, 0, 1]", [1, 0, 1]),
    (
        {"camera": {"box": [1, 2], "dtype": "uint8"}, "arm/joints": {"box": [1]}},
        "{ 'arm/joints': [0.5], camera: new Uint8Array([7, 9]) }",
        {"camera": [[7, 9]], "arm/joints": [0.5]},
    ),
]


@pytest.mark.parametrize(("space", "value", "want"), SPACES, ids=[str(s)[:60] for s, *_ in SPACES])
def test_values_of_each_space_are_sent_and_received(
    node: Node, space: dict[str, Any], value: str, want: Any
) -> None:
    """The agent chooses what it observes, and both spaces are the same."""
    body = """
    const spaces = { observation: given.space, action: given.space };
    const options = { ...spaces, address: given.address, mode: "exploit" };
    const client = await connect(options);
    const value = VALUE;
    const one = await client.act(value);
    client.close();
    const two = await connect({ ...options, slots: 2 });
    const named = value.camera;
    const both = await two.act(
      named ? { camera: [named, named], "arm/joints": [[0.5], [0.5]] } : [value, value]);
    return [one, both];
    """
    with serve(Echo) as address:
        body = body.replace("VALUE", value)
        one, both = node.run(body, address=address, space=space)
    assert one == want
    assert both == (
        {key: [row, row] for key, row in want.items()} if isinstance(want, dict) else [want, want]
    )


FEATURES = """
const client = await connect({
  ...given.options, maxWaitMs: 5000, versions: { engine: "4.6" },
  features: ["step_id", "timings", "executed"],
});
const first = await client.act([0, 0, 0, 0], { stepId: 1 });
const executed = 1 - first;
await client.rewardAndAct(1, [0, 1, 0, 0], { stepId: 2, executed, overridden: true });
client.scalars([{ name: "fuel", y: 0.5 }]);
client.ping();
await client.rewardAndAct(1, [0, 1, 0, 0], { stepId: 3 });
return [client.features, client.version, Object.keys(client.timings)];
"""


def test_features_that_are_on_are_used(node: Node, scheme: str, tmp_path: Path) -> None:
    spaces = {"observation": {"box": [4]}, "action": {"discrete": 2}}
    with serve_recorded("discrete", tmp_path) as port:
        options = {**spaces, "address": f"{scheme}127.0.0.1:{port}"}
        features, version, timings = node.run(FEATURES, options=options)
    assert {"executed", "max_wait", "ping", "step_id", "timings", "versions"} <= set(features)
    assert version == 7
    assert "total_us" in timings


MASKED = """
const options = {
  observation: { box: [4] }, address: given.address, features: ["masks"],
  action: { move: { discrete: 4, start: 2 }, arms: { multi_discrete: [3, 2] } },
};
const client = await connect(options);
const mask = { move: new Uint8Array([0, 1, 0, 0]), arms: [0, false, 1, true, 0] };
const step = (more) => client.rewardAndAct(1, [0, 0, 0, 0], { mask, ...more });
const first = await attempt(client.act([0, 0, 0, 0], { mask }));
return first || [await step(), await step({ mask: { ...mask, move: [NaN, 1, 1, 1] } })];
"""


def test_masks_can_be_numbers_and_bytes(node: Node) -> None:
    """covers PE20"""
    with serve_a2c(CONFIG) as server, serve_batch(server, CONFIG) as port:
        error = node.run(MASKED, address=f"127.0.0.1:{port}")
        assert (error["code"], error["field"]) == ("INVALID_FIELD", "mask.move")
        action, _ = node.run(MASKED.replace("NaN", "0"), address=f"127.0.0.1:{port}")
    assert action == {"move": 3, "arms": [2, 0]}


def test_a_run_without_masks_is_not_played_without_them(node: Node) -> None:
    """covers PE20"""
    config = CONFIG.model_copy(update={"masks": {}})
    with serve_a2c(config) as server, serve_batch(server, config) as port:
        error = node.run(MASKED, address=f"127.0.0.1:{port}")
    assert (error["code"], error["field"]) == ("INVALID_FIELD", "mask")
    assert error["cure"].startswith("begin a run with masks")


def test_a_token_and_tls(node: Node, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = Tokens(write_tokens(tmp_path / "tokens"))
    body = """
    const fs = require("node:fs");
    const options = { ...given.options, tls: { ca: fs.readFileSync(given.ca) } };
    const client = await connect({ ...options, token: given.token });
    return [
      await client.act([1, 2]),
      await attempt(connect({ ...options, token: "wrong-token-of-nobody", retry: true })),
      await attempt(connect({ ...options, tls: true, retry: true })),
      await attempt(connect(given.options)),
    ];
    """
    with serve(tls=authority.server_tls(), tokens=tokens) as address:
        address = address.replace("127.0.0.1", "localhost")
        action, token, unknown, plain = node.run(
            body, options={**SMALL, "address": address}, ca=str(authority.ca), token=ENVIRONMENT
        )
    assert action == 0
    assert (token["code"], token["mayRetry"]) == ("UNAUTHENTICATED", False)
    assert (unknown["code"], unknown["mayRetry"]) == ("TLS", False)
    assert plain["code"] in ("LOST", "MALFORMED", "UNAUTHENTICATED")


# What is refused, and what the server refuses.

REFUSED = {
    "NaN": ("client.act([NaN, 1])", "observation", "NaN, expected finite numbers"),
    "null": ("client.act([null, 1])", "observation", "null, expected finite"),
    "text": ("client.act(['1', 1])", "observation", "1, expected finite"),
    "infinite reward": ("client.rewardAndAct(1 / 0, [1, 1])", "reward", "Infinity, expected"),
    "NaN in bytes": ("client.act(new Float32Array(2).fill(NaN))", "observation", "NaN or inf"),
    "typed": ("client.act(new Uint8Array(2))", "observation", "Uint8Array, expected Float32Array"),
    "names": ("client.act({ camera: [1, 1] })", "observation", "expected finite numbers"),
    "unknown key": ("client.act([1, 1], { done: true })", "done", "unknown key of a step"),
    "off": ("client.act([1, 1], { mask: [true, true, false] })", "mask", "feature masks is off"),
    "final": ("client.act([1, 1], { finalMask: [] })", "finalMask", "feature masks is off"),
    "not requested": ("client.act([1, 1], { stepId: 1 })", "stepId", 'list "step_id" in the opt'),
    "too long": ("client.act(new Array(1e6).fill(1))", "step", "characters, expected at most"),
    "agents": ("connect({ ...given.options, agents: ['a', 'b'] })", "agents", "2, expected 1"),
    "games": ("connect({ ...given.options, games: [0] })", "agents", "0, expected 1"),
    "option": ("connect({ ...given.options, obs: {} })", "obs", "unknown option"),
    "no space": ("connect({ action: {} })", "observation", "no space"),
    "pause": ("connect({ ...given.options, pauseSec: [NaN, 1] })", "timeoutSec", "NaN s; use 0"),
    "address": ("connect({ ...given.options, address: '::1:7001' })", "address", "HOST:PORT"),
    "port": ("connect({ ...given.options, address: 'a:70000' })", "address", "HOST:PORT"),
}


def test_mistakes_are_refused_by_name_and_the_session_continues(node: Node) -> None:
    calls = ", ".join(f"await attempt({call})" for call, *_ in REFUSED.values())
    body = f"""
    const client = await connect(given.options);
    return [[{calls}], await client.act([1, 1])];
    """
    with serve() as address:
        errors, action = node.run(body, options={**SMALL, "address": address})
    for name, error in zip(REFUSED, errors, strict=True):
        _, field, text = REFUSED[name]
        assert error is not None, name
        assert (error["code"], error["field"]) == ("INVALID_FIELD", field), (name, error)
        assert text in error["message"], (name, error)
        assert error["mayRetry"] is False
    assert action == 0


def test_an_error_of_the_server_has_code_field_and_cure(node: Node, scheme: str) -> None:
    body = """
    const client = await connect(given.options);
    const error = await attempt(client.act([1]));
    return [error, await attempt(client.act([1, 1]))];
    """
    with serve() as address:
        error, again = node.run(body, options={**SMALL, "address": scheme + address})
    assert (error["name"], error["code"], error["mayRetry"]) == ("RlxError", "INVALID_FIELD", False)
    assert error["field"].startswith("observation")
    assert error["cure"]
    assert error["cure"] in error["message"]
    assert again["message"] == error["message"]


def test_a_second_call_before_the_answer_is_refused(node: Node) -> None:
    body = """
    const client = await connect(given.options);
    const first = client.act([1, 1]);
    return [await attempt(client.act([1, 1])), await first];
    """
    with serve() as address:
        error, action = node.run(body, options={**SMALL, "address": address})
    assert (error["code"], action) == ("OUT_OF_ORDER", 0)


def test_fields_of_the_future_are_sent_to_a_server_that_lists_them(node: Node) -> None:
    body = """
    const client = await connect({ ...given.options, agents: ["a"], games: [0], features: ["masks",
      "slot_versions"] });
    await client.act([1, 1], { mask: [true, false, true] });
    return client.slotVersions;
    """
    answer = b'{"action":1,"version":3,"versions":[3],"unknown":{}}\n'
    with LineServer([ready("agents", "masks", "slot_versions"), answer]) as server:
        assert node.run(body, options={**SMALL, "address": server.address}) == [3]
        ((hello, step),) = server.received
    assert (hello["hello"]["agents"], hello["hello"]["games"]) == (["a"], [0])
    assert {"agents", "masks", "slot_versions"} <= set(hello["hello"]["features"])
    assert step == {"act": {"observation": [1, 1], "mask": [True, False, True]}}


# Waiting, and servers that are lost.

EACH_ERROR = """
const lost = [];
const onLost = (error, sec) => lost.push([error.code, sec]);
const options = { ...given.options, timeoutSec: 0.3, pauseSec: [0.01, 0.05], onLost };
const client = await connect(options);
let action = null;
try {
  await client.act([1, 1]);
} catch (error) {
  await client.reconnect(error);
  action = await client.act([2, 2]);
}
return { lost, action };
"""
LOST = {
    "closed": ([ready()], ["LOST"]),
    "half a line": ([ready(), ACTION[:9]], ["LOST"]),
    "silent": ([ready(), None], ["TIMEOUT"]),
    "closing": ([ready(), UNAVAILABLE], ["UNAVAILABLE"]),
    "full": ([ready(), UNAVAILABLE.replace(b"UNAVAILABLE", b"OVERLOADED")], ["OVERLOADED"]),
}


@pytest.mark.parametrize("case", LOST)
def test_a_lost_server_is_found_again_after_a_random_pause(node: Node, case: str) -> None:
    answers, codes = LOST[case]
    with LineServer(answers, [], [ready(), ACTION]) as server:
        got = node.run(EACH_ERROR, options={**SMALL, "address": server.address})
    assert got["action"] == 1
    assert [code for code, _ in got["lost"]] == [*codes, "LOST"]
    assert all(0.01 <= sec <= 0.05 for _, sec in got["lost"])
    assert server.received[2][1] == {"act": {"observation": [2, 2]}}


@pytest.mark.parametrize("code", ["UNAUTHENTICATED", "SPACE_MISMATCH", "AGENT_FAILED"])
def test_what_no_retry_can_help_is_final(node: Node, code: str) -> None:
    error = UNAVAILABLE.replace(b"UNAVAILABLE", code.encode())
    with LineServer([error], [ready()]) as server:
        options = {**SMALL, "address": server.address, "retry": True, "pauseSec": [0, 0]}
        assert node.run("await connect(given.options)", options=options)["code"] == code
        assert len(server.received) == 1


def test_finished_is_the_end(node: Node) -> None:
    why = "é" * 5000  # arrives in pieces that end within a character
    finished = FINISHED.replace(b"enough", why.encode())
    body = """
    const client = await connect(given.options);
    await client.act([1, 1]);
    const end = await client.rewardAndAct(1, [1, 1]);
    const later = [await client.act([1, 1]), await client.rewardAndReset(1)];
    const error = await attempt(client.reconnect(new RlxError("LOST", "lost")));
    return [end, client.finished, later, error.code];
    """
    with LineServer([ready(), ACTION, finished], [ready()]) as server:
        got = node.run(body, options={**SMALL, "address": server.address})
        assert got == [None, why, [None, None], "LOST"]
        assert len(server.received) == 1


def test_a_ping_restarts_the_time_of_a_wait(node: Node) -> None:
    body = """
    const [wait, clear] = [setTimeout, clearTimeout];
    const counts = { started: 0, cleared: 0 };
    globalThis.setTimeout = (...args) => (counts.started++, wait(...args));
    globalThis.clearTimeout = (...args) => (counts.cleared++, clear(...args));
    const client = await connect(given.options); // two waits: for the connection, for ready
    return [await client.act([1, 1]), counts];
    """
    pings = b'{"ping":{}}\n' * 3
    with LineServer([pings + ready("ping"), pings + ACTION]) as server:
        action, counts = node.run(body, options={**SMALL, "address": server.address})
    assert action == 1
    assert counts == {"started": 3 + 6, "cleared": 3 + 6}


def test_closing_ends_what_waits(node: Node) -> None:
    body = """
    const wait = new Promise((resolve) => { given.options.onLost = () => setTimeout(resolve); });
    const client = await connect({ ...given.options, pauseSec: [1000, 1000] });
    const pause = attempt(client.reconnect(new RlxError("LOST", "lost")));
    await wait;
    client.close();
    const never = await attempt(client.reconnect(new RlxError("LOST", "lost")));
    return [(await pause).code, (await attempt(client.act([1, 1]))).code, never.code];
    """
    with LineServer([ready(), None]) as server:
        got = node.run(body, options={**SMALL, "address": server.address})
    assert got == ["CLOSED", "CLOSED", "LOST"]


def test_a_signal_ends_a_connect_that_waits_for_a_server(node: Node) -> None:
    body = """
    const controller = new AbortController();
    const onLost = () => controller.abort();
    const options = { ...given.options, signal: controller.signal, onLost };
    return (await attempt(connect({ ...options, retry: true, pauseSec: [1000, 1000] }))).code;
    """
    assert node.run(body, options={**SMALL, "address": "127.0.0.1:1"}) == "CLOSED"


GARBAGE = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a frame": b"\x00\x00\x00\x02\x12\x00\n",
    "a list": b"[1]\n",
    "null": b"null\n",
    "half": b'{"ready":\n',
    "an action": ACTION,
    "another ready": b'{"ready":{}}\n',
}


@pytest.mark.parametrize("case", GARBAGE)
def test_what_is_not_an_rlx_server_is_one_clear_error(node: Node, case: str) -> None:
    with LineServer([GARBAGE[case]]) as server:
        error = node.run(
            "await connect(given.options)", options={**SMALL, "address": server.address}
        )
    assert (error["code"], error["mayRetry"]) == ("MALFORMED", False)
    assert server.address in error["message"]


# The program.


@pytest.fixture
def cluster(node: Node, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as cluster:
        yield cluster


def start_program(cluster: Cluster, *flags: object, **env: str) -> Program:
    address = f"localhost:{cluster.rlx_port}"
    return cluster.start("js", [MAIN, "--rlx-server", address, "--name", "js", *flags], **env)


def test_a_lost_server_is_found_again(cluster: Cluster) -> None:
    client = start_program(cluster, "--retry-sleep", 0, 0.1, "--num-envs", 2)
    with serve(Left, port=cluster.rlx_port):
        client.wait_for(r"slot 1: score \d+ in \d+ steps")
    client.wait_for("lost the rlx server: .*; retrying in")
    before = len(client.lines)
    with serve(Left, port=cluster.rlx_port):
        client.wait_for("reconnected to localhost")
        client.wait_for(r"slot 0: score \d+ in \d+ steps", after=before)


def test_episodes_end_it_and_max_episode_steps_cut_them_off(cluster: Cluster) -> None:
    flags = ("--episodes", 3, "--max-episode-steps", 5, "--seed", 1, "--no-versions")
    with serve(Left, port=cluster.rlx_port):
        client = start_program(cluster, *flags)
        assert client.wait() == 0
        assert client.lines[:3] == ["slot 0: score 5 in 5 steps"] * 3
        quiet = start_program(cluster, *flags, RELAAX_QUIET="1")  # as `relaax run` has it
        assert quiet.wait() == 0
        assert "slot 0: score" not in quiet.output


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--env", "CartPole-v1"], "--env: unknown; --help lists the flags"),
        (["--action-repeat", "2"], "--action-repeat: unknown"),
        (["--num-envs", "0"], "--num-envs: '0', expected an integer of 1 or more"),
        (["--num-envs", "1.5"], "--num-envs: '1.5', expected an integer of 1 or more"),
        (["--seed"], "--seed: expected a value after it"),
        (["--retry-sleep", "5", "1"], "--retry-sleep: 5 1, expected MIN <= MAX"),
        (["--retry-sleep", "x", "1"], "--retry-sleep: 'x', expected a number of 0 or more"),
        (["--rlx-server", "localhost"], "address: localhost; use HOST:PORT"),
        (["--tls-cert", str(FOLDER / "rlx.js")], "--tls-cert, --tls-key: one is missing"),
        (["--tls-ca", "/no/such/file"], "--tls-ca: ENOENT"),
        (["--token-file", str(FOLDER / "rlx.js")], "run chmod 600"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_2(node: Node, flags: list[str], match: str) -> None:
    done = subprocess.run([MAIN, *flags], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
    assert match in done.stderr


def test_without_node_one_line_names_the_cure() -> None:
    env = {**os.environ, "NODE": "no-such-node"}
    done = subprocess.run([MAIN], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "install Node 18 or newer" in done.stderr


@pytest.mark.parametrize(("number", "want"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_while_it_waits(
    cluster: Cluster, number: signal.Signals, want: int
) -> None:
    client = start_program(cluster, "--retry-sleep", 1000, 1000)
    client.wait_for("retrying in 1000.0 s")
    assert client.stop(number) == want


def test_the_token_comes_from_a_file_or_the_environment(node: Node, tmp_path: Path) -> None:
    tokens = Tokens(write_tokens(tmp_path / "tokens"))
    file = write_private(tmp_path / "token", f"# of the client\n{ENVIRONMENT}\n")
    with serve(Left, tokens=tokens) as address:
        argv = [MAIN, "--rlx-server", address, "--episodes", "1"]
        for more, env, status in (
            (["--token-file", file], {}, 0),
            ([], {"RELAAX_TOKEN": ENVIRONMENT}, 0),
            ([], {}, 2),
        ):
            clean = {k: v for k, v in os.environ.items() if k != "RELAAX_TOKEN"}
            done = subprocess.run(
                [*argv, *more], capture_output=True, text=True, timeout=60, env={**clean, **env}
            )
            assert done.returncode == status, done


def test_the_example_of_the_readme_plays(node: Node) -> None:
    (example,) = re.findall(r"```js\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    answers = [ready(), ACTION, ACTION, ENDED, ACTION, ACTION, FINISHED]
    with LineServer(answers) as server:
        body = (
            """
            let steps = 0;
            const myReset = () => { steps = 0; return [0, 0]; };
            const myStep = (action) => (
              { observation: [action, 1], reward: 0.5, ended: ++steps === 2 });
            """
            + re.sub(r"const \{ connect \} = .*\n", "", example).replace(
                "localhost:7001", server.address
            )
            + "return client.finished;"
        )
        assert node.run(body) == "enough"
        (lines,) = server.received
    verbs = ["act", "reward_and_act", "reward_and_reset"]
    assert [next(iter(line)) for line in lines] == ["hello", *verbs, *verbs]
    assert lines[3] == {"reward_and_reset": {"reward": 0.5}}
