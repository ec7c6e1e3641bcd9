"""Clients whose agents have several policies, over a real socket. covers PE20"""

import json
import socket

import numpy as np
import pytest
from support.batch import make_config, make_processor, serve_a2c, serve_batch, serve_host
from support.crowd.slots import COLOURS, Crowd
from support.duel.slots import Duels
from support.rlx import RawClient, array, make_hello, make_step

from relaax_like.client import Interactor, RlxClient
from relaax_like.client.interactor import get_agents
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.policy_host import PolicyHost
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.spaces import Box, Discrete, space_to_message

CATS = make_config(layers=(8,), rollout_steps=4, state_size=2, num_actions=2)
MICE = make_config(layers=(8,), rollout_steps=4, state_size=3, num_actions=3)
PATTERNS = {"cats": ["cat_*", "tom"], "mice": ["mouse", "m*", "cat_9x", "*_9"]}


class Run:
    """Two policies on two parameter servers in this process, and what they have learned from."""

    def __init__(self, frozen=(), budgets=None):
        budgets = budgets or {"cats": None, "mice": None}
        self.servers = {
            name: serve_a2c(config, stop=StopCondition(budgets[name]))
            for name, config in (("cats", CATS), ("mice", MICE))
        }
        self.rollouts = {"cats": [], "mice": []}
        hosts = {
            "cats": BatchHost(CATS, lambda: {ONLY_NAME: self._make("cats", CATS)}),
            "mice": BatchHost(MICE, lambda: {ONLY_NAME: self._make("mice", MICE)}),
        }
        self.host = PolicyHost(hosts, PATTERNS, frozen)

    def _make(self, name, config):
        processor = make_processor(config, self.servers[name], xla=False)
        submit = processor.submit

        def note(rollout, *rest):
            self.rollouts[name].append(rollout)
            submit(rollout, *rest)

        processor.submit = note
        return processor


@pytest.fixture(scope="module")
def port():
    """Of a server for what does not count."""
    run = Run()
    with serve_host(run.host) as port:
        yield port


def play(port, games=2, steps=8, exploit=False):
    duels = Duels(games)
    spaces = duels.observation_space, duels.action_space
    address = f"127.0.0.1:{port}"
    more = {"slots": duels.slots, "exploit": exploit, **get_agents(duels)}
    with RlxClient(address, *spaces, **more) as client:
        Interactor(duels, client, max_steps=steps * duels.slots).run()
        return client


def test_each_policy_learns_from_its_own_agents():
    run = Run()
    with serve_host(run.host) as port:
        play(port)
        run.host.close()
    cats, mice = run.servers["cats"].status(), run.servers["mice"].status()
    assert (cats.global_t, cats.episodes) == (2 * 2 * 8, 2 * 2 * 2)
    assert (mice.global_t, mice.episodes) == (2 * 8, 2 * 2)
    assert cats.version > 0
    assert mice.version > 0
    for name, width, choices in (("cats", 2, 2), ("mice", 3, 3)):
        for rollout in run.rollouts[name]:
            seen, actions = rollout.inputs["observation"], rollout.actions["action"]
            assert seen.shape[-1] == width
            # Observations are the number of the step in its game: rows are in their order.
            steps = np.broadcast_to(np.arange(4)[:, None], seen.shape[:2])
            np.testing.assert_array_equal(seen[..., 0], steps)
            wanted = actions == 0 if name == "cats" else actions
            np.testing.assert_array_equal(rollout.rewards[..., 0], wanted)
            assert actions.max() < choices


def test_frozen_and_exploiting_agents_learn_nothing():
    run = Run(frozen=["mice"])
    with serve_host(run.host) as port:
        play(port, exploit=True)
        assert not run.rollouts["cats"]
        play(port, steps=24)
        run.host.close()
    assert not run.rollouts["mice"]
    assert run.servers["mice"].version == 0
    assert run.servers["cats"].version > 0


@pytest.mark.parametrize(("cats", "mice"), [(32, 96), (128, 24)])
def test_the_session_ends_once_all_policies_have_finished(cats, mice):
    run = Run(budgets={"cats": cats, "mice": mice})
    with serve_host(run.host) as port:
        client = play(port, steps=10_000)
        assert client.finished
        run.host.close()
    statuses = {name: server.status() for name, server in run.servers.items()}
    assert all(status.finished for status in statuses.values())
    # The one that ended first plays on, and learns nothing more.
    assert cats <= statuses["cats"].global_t <= cats + 2 * 2 * 4
    assert mice <= statuses["mice"].global_t <= mice + 2 * 4


def test_agents_that_join_and_leave_a_game_are_counted_once_by_their_policy():
    config = make_config(layers=(4,), rollout_steps=5, state_size=2, num_actions=3)
    servers = {name: serve_a2c(config, window=1000) for name in COLOURS}

    def make_host(server):
        return BatchHost(config, lambda: {ONLY_NAME: make_processor(config, server, xla=False)})

    host = PolicyHost(
        {name: make_host(server) for name, server in servers.items()},
        {name: [f"{name}_*"] for name in COLOURS},
    )
    crowd = Crowd()
    spaces = crowd.observation_space, crowd.action_space
    more = {"slots": crowd.slots, **get_agents(crowd)}
    with (
        serve_host(host, max_slots=crowd.slots) as port,
        RlxClient(f"127.0.0.1:{port}", *spaces, **more) as client,
    ):
        Interactor(crowd, client, max_episodes=6).run()  # ends in the middle of rollouts
    for name, server in servers.items():
        status = server.status()
        players = server._statistics.to_dict()["players"].values()
        returns = sum(np.sum(slot["returns"]) for slots in players for slot in slots)
        played = crowd.count(name)
        assert played.all()
        assert [status.global_t, status.episodes, returns] == played.tolist()


CAT, MOUSE = Box(dtype="float32", shape=(2,)), Box(dtype="float32", shape=(3,))
TWO, THREE = Discrete(n=2), Discrete(n=3)


def hello(
    agents, kinds=("cat", "mouse"), features=("agents",), seen=None, done=None, drop=(), **more
):
    """Returns a hello of a cat and a mouse; `seen`, `done` and `drop` change their leaves."""
    spaces = {"cat": CAT, "mouse": MOUSE} | (seen or {})
    actions = {"cat": TWO, "mouse": THREE} | (done or {})
    for leaf in drop:
        spaces.pop(leaf)
        actions.pop(leaf, None)
    more.setdefault("slots", len(agents) or 2)
    return make_hello(
        features=features,
        agents=agents,
        kinds=kinds,
        observation_spaces={k: space_to_message(v) for k, v in spaces.items()},
        action_spaces={k: space_to_message(v) for k, v in actions.items()},
        **more,
    )


@pytest.mark.parametrize(
    ("message", "code", "field"),
    [
        (hello(["cat_0", "mouse"], features=()), "INVALID_FIELD", "agents"),
        (hello([]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", "dog"]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", "cat_9"]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", ""]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", "m\n"]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", "mouse"], games=[1]), "INVALID_FIELD", "games"),
        (hello(["cat_0", "mouse"], kinds=["cat"]), "INVALID_FIELD", "kinds"),
        (hello(["cat_0", "mouse"], kinds=["cat", "a/b"]), "INVALID_FIELD", "kinds"),
        (hello(["cat_0", "mouse"], kinds=["cat", "dog"]), "INVALID_FIELD", "observation_spaces"),
        (hello(["cat_0", "tom"]), "SPACE_MISMATCH", "kinds"),
        (hello(["mouse", "tom"]), "SPACE_MISMATCH", "observation_spaces"),
        (hello(["mouse"] * 100_000), "INVALID_FIELD", "agents"),
        (hello(["mouse"] * 100_000, slots=2), "INVALID_FIELD", "agents"),
        (hello(["mouse"] * 100_000, slots=2, features=()), "INVALID_FIELD", "agents"),
        (hello(["mouse"] * 1_000, slots=2), "INVALID_FIELD", "agents"),
        (hello(["mouse"] * 9), "INVALID_FIELD", "slots"),
        (hello(["m" * 1_000_000, "mouse"]), "INVALID_FIELD", ""),
        (hello(["m" * 101, "mouse"]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", "m\u202e"]), "INVALID_FIELD", "agents"),
        (hello(["cat_0", "mouse"], games=range(1_000)), "INVALID_FIELD", "games"),
        (hello(["cat_0", "mouse"], games=range(100_000)), "INVALID_FIELD", "games"),
        (hello(["cat_0", "mouse"], kinds=["cat"] * 1_000), "INVALID_FIELD", "kinds"),
        (hello(["cat_0", "mouse"], kinds=["cat", "x" * 61]), "INVALID_FIELD", "kinds"),
        (hello(["cat_0", "mouse"], kinds=["cat", ""]), "INVALID_FIELD", "kinds"),
        (hello(["cat_0", "mouse"], seen={"cat/": CAT}), "INVALID_FIELD", "observation_spaces"),
        (hello(["cat_0", "mouse"], drop=["mouse"]), "INVALID_FIELD", "observation_spaces"),
        (
            hello(["cat_0", "mouse"], seen={"mouse/observation": MOUSE}),
            "INVALID_FIELD",
            "observation_spaces",
        ),
        (
            hello(["cat_0", "mouse"], seen={"mouse/x": MOUSE}, drop=["mouse"]),
            "INVALID_FIELD",
            "action_spaces",
        ),
        (hello(["cat_0", "mouse"], done={"cat/action": TWO}), "INVALID_FIELD", "action_spaces"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_agents_are_refused_by_name(port, message, code, field):
    with RawClient(port) as client:
        answer = client.ask(message)
    assert (rlx_pb2.ErrorCode.Name(answer.error.code), answer.error.field) == (code, field)


def test_kinds_need_policies():
    with serve_a2c(CATS) as server, serve_batch(server, CATS) as port, RawClient(port) as client:
        answer = client.ask(hello(["cat_0", "mouse"]))
        assert answer.error.field == "kinds"


def test_the_answers_say_policies_and_versions(port):
    with RawClient(port) as client:
        ready = client.ask(hello(["mouse", "cat_0"], kinds=["mouse", "cat"])).ready
        assert list(ready.features) == ["agents"]
        assert list(ready.policies) == ["mice", "cats"]
    with RawClient(port) as client:
        features = ("agents", "slot_versions")
        message = hello(["mouse", "cat_0"], kinds=["mouse", "cat"], features=features)
        assert list(client.ask(message).ready.features) == list(features)
        rows = {"cat": array(np.ones((2, 2))), "mouse": array(np.ones((2, 3)))}
        actions = client.ask(make_step(observations=rows)).actions
        assert list(actions.versions) == [0, 0]


def test_a_json_client_names_agents(port):
    words = {
        "name": "json",
        "slots": 2,
        "features": ["agents", "slot_versions"],
        "agents": ["cat_0", "mouse"],
        "kinds": ["cat", "mouse"],
        "observation": {"cat": {"box": [2]}, "mouse": {"box": [3]}},
        "action": {"cat": {"discrete": 2}, "mouse": {"discrete": 3}},
    }
    rows = {"cat": [[0, 0], [0, 0]], "mouse": [[0, 0, 0], [0, 0, 0]]}
    with socket.create_connection(("127.0.0.1", port)) as line:
        file = line.makefile("rw")
        for sent in ({"hello": words}, {"act": {"observation": rows}}):
            file.write(json.dumps(sent) + "\n")
            file.flush()
            answer = json.loads(file.readline())
            if "ready" in answer:
                assert answer["ready"]["policies"] == ["cats", "mice"]
        assert answer["versions"] == [0, 0]
        assert sorted(answer["action"]) == ["cat", "mouse"]
