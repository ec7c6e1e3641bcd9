"""Slots of several policies against sessions that have only the slots of one. covers PE20"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.core.prediction import Prediction, Request
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.hosting import AgentHost
from relaax_like.rlx_server.policy_host import PolicyHost
from relaax_like.rlx_server.slots import Decision, Slots, SlotSpec
from relaax_like.rlx_server.transition import ReceivedStep, check_step
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, Spaces, make_masks

OBSERVATIONS: dict[str, Any] = {
    "observation": Box(dtype="float32", shape=(2,)),
    "goal": Box(dtype="float64", shape=(2, 2)),
}
ACTIONS: dict[str, Any] = {
    "action": Discrete(n=3),
    "arm": MultiDiscrete(shape=(2,), n=(2, 3)),
    "force": Box(dtype="float32", shape=(2,)),
}


class Inner(BatchSlots):
    """Writes down what it gets, and answers at random; asks several times in a step."""

    plays_on = False

    def __init__(self, spec: SlotSpec):
        Slots.__init__(self, spec.slots)
        self.spec = spec
        self.unsupported = {}
        self.seen: list[ReceivedStep] = []
        self.asked: list[Request] = []
        self.decided: Decision | None = None
        self.left = 0  # requests until it decides
        self.random = np.random.default_rng(spec.slots)
        self.ended = ""

    @property
    def finished(self) -> str:
        return "" if self.spec.exploit else self.ended

    def observe(self, transition: ReceivedStep) -> None:
        self.seen.append(transition)
        self.left = int(self.random.integers(1, 3)) if transition.observations else 0

    def request(self) -> Request | None:
        if not self.left:
            return None
        self.asked.append(
            Request(self.seen[-1].observations or {}, {}, algorithm=f"one{self.left}")
        )
        return self.asked[-1]

    def decide(self, prediction: Prediction | None) -> Decision | None:
        if prediction is None:
            self.decided = Decision(None, "", 0)
            return self.decided
        assert prediction.version == id(self)  # the answer to its own request
        self.left -= 1
        if self.left:
            return None
        version = int(self.random.integers(1, 1 << 40))
        self.decided = Decision(self.draw(), "", version)
        return self.decided

    def draw(self) -> dict[str, np.ndarray]:
        return draw_rows(self.spec.action_spaces, self.spec.slots, self.random)

    def close(self) -> None:
        self.spec = self.spec._replace(client_id="closed")


class InnerHost(AgentHost):
    """Makes them, and answers each by its identity."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Inner] = []

    def make_slot_agents(self, spec: SlotSpec) -> Slots:
        self.made.append(Inner(spec))
        return self.made[-1]

    def predict(self, requests: Any) -> list[Prediction]:
        (inner,) = self.made
        for request in requests:
            assert request == inner.asked[-1]._replace(inputs=request.inputs)
            assert request.inputs is inner.asked[-1].inputs
        return [Prediction({}, {}, np.zeros(0), id(inner)) for _ in requests]


def draw_rows(spaces: Spaces, slots: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns a valid array of each leaf."""
    return {name: space.sample(slots, random) for name, space in spaces.items()}


class Client(NamedTuple):
    """A client, and which slots and leaves each policy has of it.

    Attributes:
      spec: of all slots.
      rows: policy -> its slots.
      leaves: policy -> name in its own spaces -> name of the client, of observations and actions.
      sends: the optional fields that its steps have.
    """

    spec: SlotSpec
    rows: Mapping[str, list[int]]
    leaves: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]
    sends: frozenset[str]


@st.composite
def draw_clients(draw: st.DrawFn) -> Client:
    owners = draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=7))
    names = draw(st.permutations(range(len(owners))))
    agents = [f"{owner}_{name % 3}" for owner, name in zip(owners, names, strict=True)]
    policies = sorted(set(owners))
    if draw(st.booleans()):  # all have the same leaves
        own = draw_spaces(draw)
        spaces, kinds = own, []
        leaves = {p: tuple({name: name for name in part} for part in own) for p in policies}
    else:
        spaces, kinds, leaves = ({}, {}), [f"kind.{owner}" for owner in owners], {}
        for policy in policies:
            named: list[dict[str, str]] = []
            for part, joined, plain in zip(
                draw_spaces(draw), spaces, ("observation", "action"), strict=True
            ):
                kind = f"kind.{policy}"
                is_short = plain in part and draw(st.booleans())
                named.append({n: f"{kind}/{n}" for n in part})
                if is_short:
                    named[-1][plain] = kind
                joined |= {named[-1][n]: space for n, space in part.items()}
            leaves[policy] = tuple(named)
    spec = SlotSpec(*spaces, len(owners), "client", agents=agents, kinds=kinds)
    rows = {p: [row for row, owner in enumerate(owners) if owner == p] for p in policies}
    fields = ("present", "success", "executed", "overridden", "masks", "final")
    return Client(spec, rows, leaves, draw(st.frozensets(st.sampled_from(fields))))


def draw_spaces(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    parts = [
        draw(st.lists(st.sampled_from(sorted(known)), min_size=1, unique=True))
        for known in (OBSERVATIONS, ACTIONS)
    ]
    return {n: OBSERVATIONS[n] for n in parts[0]}, {n: ACTIONS[n] for n in parts[1]}


def draw_step(client: Client, running: bool, random: np.random.Generator) -> dict[str, Any]:
    """Returns the fields of a valid step."""
    spec, sends, slots = client.spec, client.sends, client.spec.slots
    step: dict[str, Any] = {"step_id": int(random.integers(1, 99))}

    def flip(share: float) -> np.ndarray:
        return random.random(slots) < share

    ended = np.zeros(slots, np.bool_)
    if running:
        kind = random.choice(3)  # none ends, some, all
        ended = flip((0, 0.4, 1)[kind])
        truncated = ended & flip(0.5)
        # Both flags are sent at times: then the state decides.
        terminated = ended & ~truncated | (truncated & flip(0.2))
        step |= {"terminated": terminated, "truncated": truncated}
        step["rewards"] = random.normal(size=(slots, int(random.integers(1, 3))))
        if "success" in sends:
            step["success"] = random.integers(-1, 2, slots, np.int8)
        if "executed" in sends:
            step["executed"] = draw_rows(spec.action_spaces, slots, random)
            if "overridden" in sends:
                step["overridden"] = flip(0.5)
        if "final" in sends or truncated.any():
            step["final_observations"] = draw_rows(spec.observation_spaces, slots, random)
            if "masks" in sends:
                step["final_masks"] = draw_masks(spec.action_spaces, slots, random)
    if not (running and ended.all() and random.random() < 0.5):
        step["observations"] = draw_rows(spec.observation_spaces, slots, random)
        if "present" in sends:
            step["present"] = flip((0.5, 1)[random.choice(2)])
        if "masks" in sends:
            step["masks"] = draw_masks(spec.action_spaces, slots, random)
    return step


def draw_masks(spaces: Spaces, slots: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    masks = {}
    for name, space in spaces.items():
        if not isinstance(space, Box):
            legal = random.random((slots, sum(space.sizes))) < 0.5
            legal[:, np.cumsum(space.sizes) - 1] = True
            masks[name] = legal
    return masks


def select(step: Mapping[str, Any], client: Client, policy: str) -> dict[str, Any]:
    """Returns what a client would have sent that has only the slots of a policy."""
    rows = client.rows[policy]
    observations, actions = client.leaves[policy]
    names = {"observations": observations, "final_observations": observations}
    names |= dict.fromkeys(("executed", "masks", "final_masks"), actions)
    chosen: dict[str, Any] = {}
    for field, value in step.items():
        if field in names:
            chosen[field] = {
                n: value[leaf][rows] for n, leaf in names[field].items() if leaf in value
            }
        else:
            chosen[field] = value if field == "step_id" else value[rows]
    return chosen


def read(step: Mapping[str, Any], spec: SlotSpec, client: Client, running: bool) -> ReceivedStep:
    masks = make_masks(spec.action_spaces) if "masks" in client.sends else {}
    return check_step(step, spec.observation_spaces, spec.action_spaces, spec.slots, running, masks)


def assert_equal(got: Any, expected: Any, where: str) -> None:
    if isinstance(expected, Mapping):
        assert got.keys() == expected.keys(), where
        for name in expected:
            assert_equal(got[name], expected[name], f"{where}[{name}]")
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, where
        np.testing.assert_array_equal(got, expected, where)
    else:
        assert got == expected, where


@settings(max_examples=60, deadline=None)
@given(draw_clients(), st.integers(0, 1 << 30), st.sets(st.sampled_from("xyz")))
def test_each_policy_gets_what_a_session_of_its_own_would_give(client, seed, frozen) -> None:
    random = np.random.default_rng(seed)
    masks = make_masks(client.spec.action_spaces) if "masks" in client.sends else {}
    spec = client.spec._replace(observation_spaces={**client.spec.observation_spaces, **masks})
    hosts = {policy: InnerHost() for policy in client.rows}
    host = PolicyHost(hosts, {policy: [f"{policy}_*"] for policy in hosts}, frozen)
    slots = host.make_slot_agents(spec)
    inner = {policy: own.made[0] for policy, own in hosts.items()}
    alone = {policy: Inner(one.spec) for policy, one in inner.items()}
    owners = {row: policy for policy, rows in client.rows.items() for row in rows}
    assert [owners[row] for row in range(spec.slots)] == list(slots.policies)
    running = False
    for _ in range(6):
        sent = draw_step(client, running, random)
        slots.observe(slots.count(read(sent, client.spec, client, running)))
        for policy, one in inner.items():
            own_spec = one.spec._replace(
                observation_spaces={
                    name: space
                    for name, space in one.spec.observation_spaces.items()
                    if not name.startswith("mask:")
                }
            )
            expected = read(select(sent, client, policy), own_spec, client, running)
            expected = alone[policy].count(expected)
            got = one.seen[-1]
            for field in ReceivedStep._fields:
                assert_equal(getattr(got, field), getattr(expected, field), field)
        decision = None
        while decision is None:
            request = slots.request()
            decision = slots.decide(None if request is None else host.predict([request])[0])
        check_decision(decision, client, inner)
        running = decision.actions is not None


def check_decision(decision: Decision, client: Client, inner: Mapping[str, Inner]) -> None:
    """Fails unless the decision is that of each policy, in its rows."""
    assert decision.versions is not None
    for policy, one in inner.items():
        rows, (_, actions) = client.rows[policy], client.leaves[policy]
        assert one.decided is not None
        assert (decision.versions[rows] == one.decided.version).all()
        assert (decision.actions is None) == (one.decided.actions is None)
        for name, array in (one.decided.actions or {}).items():
            assert decision.actions is not None
            assert_equal(decision.actions[actions[name]][rows], array, name)
    if decision.actions is not None:
        for leaf, space in client.spec.action_spaces.items():
            space.validate(decision.actions[leaf], client.spec.slots, leaf, None)
