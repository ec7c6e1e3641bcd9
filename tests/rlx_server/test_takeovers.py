"""Slots that are absent, and actions that something else than the policy decides, over the wire."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support.batch import make_config, serve_a2c
from support.recordings import balance
from support.rlx import (
    RawClient,
    ServerThread,
    array,
    make_hello,
    make_next,
    make_start,
    make_step,
    serve_rlx,
)
from support.served import Served

from relaax_like.client import OutOfOrderError, RlxClient
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.v1 import rlx_pb2
from relaax_like.wire.spaces import Box, Discrete

STEPS = 4
CONFIG = make_config(layers=(8,), rollout_steps=STEPS, state_size=2, num_actions=3)
STATE, MOVE = Box(dtype="float32", shape=(2,)), Discrete(n=3)
BOTH = ["executed", "present"]


@pytest.fixture
def backend() -> Iterator[ParameterServer]:
    with serve_a2c(CONFIG) as server:
        yield server


@pytest.fixture
def served(backend: ParameterServer) -> Served:
    return Served(backend, CONFIG)


@pytest.fixture
def port(served: Served) -> Iterator[int]:
    with ServerThread(served.rlx, "127.0.0.1", 0) as running:
        yield running.port
    served.close()


def take(actions: Any, slots: int = 1) -> dict[str, Any]:
    return {"executed": {"action": array(np.full(slots, actions), "int64")}}


# What is refused.


def test_agents_that_can_use_neither_say_so_by_name(backend: ParameterServer) -> None:
    with serve_rlx(backend) as port, RawClient(port) as client:
        answer = client.ask(make_hello(features=BOTH))
        assert list(answer.ready.features) == []
        client.ask(make_start())
        error = client.ask(make_next(**take(0))).error
        assert (error.code, error.field) == (rlx_pb2.OUT_OF_ORDER, "executed")
        assert "agent.py" in error.message
    with serve_rlx(backend) as port, RlxClient(f"127.0.0.1:{port}", STATE, MOVE) as ours:
        ours.act([0.0, 0.0])
        with pytest.raises(OutOfOrderError, match="executed"):
            ours.reward_and_act(1.0, [0.0, 0.0], executed=1)
        ours.reward_and_act(1.0, [0.0, 0.0])  # nothing was sent


def test_with_a_history_of_observations_slots_cannot_be_absent() -> None:
    config = make_config(layers=(8,), state_size=2, num_actions=3, observation_history=2)
    with serve_a2c(config) as server:
        served = Served(server, config)
        with ServerThread(served.rlx, "127.0.0.1", 0) as running, RawClient(running.port) as client:
            assert list(client.ask(make_hello(features=BOTH)).ready.features) == ["executed"]
            error = client.ask(
                make_step(observations=make_start().step.observations, present=array([0], "bool"))
            ).error
        served.close()
    assert (error.code, error.field) == (rlx_pb2.OUT_OF_ORDER, "present")
    assert "observation_history is 2" in error.message


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        (take(3), "executed[action]", rlx_pb2.INVALID_FIELD),
        (take([0, 1], 2), "executed[action]", rlx_pb2.INVALID_FIELD),
        ({"overridden": array([1], "bool")}, "overridden", rlx_pb2.INVALID_FIELD),
        ({**take(1), "overridden": array([1, 0], "bool")}, "overridden", rlx_pb2.INVALID_FIELD),
        ({"present": array([1.0])}, "present", rlx_pb2.INVALID_FIELD),
    ],
    ids=["out of range", "two slots", "alone", "two flags", "no flag"],
)
def test_what_cannot_be_is_refused(port: int, fields: Any, field: str, code: int) -> None:
    with RawClient(port) as client:
        client.greet(features=BOTH)
        client.ask(make_start())
        client.ask(make_next())
        error = client.ask(make_next(**fields)).error
    assert (error.code, error.field) == (code, field)


def test_nothing_was_carried_out_before_the_first_action(port: int) -> None:
    with RawClient(port) as client:
        client.greet(features=BOTH)
        error = client.ask(make_step(observations=make_start().step.observations, **take(0))).error
    assert (error.code, error.field) == (rlx_pb2.OUT_OF_ORDER, "executed")


# What arrives.


def test_rollouts_have_holes_where_the_policy_did_not_decide(served: Served, port: int) -> None:
    """Ordinary steps are read by their layout, the first of each kind is parsed."""
    with RlxClient(f"127.0.0.1:{port}", STATE, MOVE, slots=3) as client:
        assert {"executed", "present"} <= client.features
        actions: Any = client.step(np.zeros((3, 2))).actions
        present: list[Any] = [[True, True, False], [True, True, False], None, None]
        for step in range(2 * STEPS):
            other = (actions + 1) % 3
            executed = np.where([step % 2 == 0, False, False], other, actions)
            here = present[step % STEPS]
            result = client.step(
                np.full((3, 2), step),
                np.full(3, 10.0 ** (step % STEPS)),
                terminated=np.array([False, step == 6, False]),
                present=None if here is None else np.array(here),
                executed=executed,
            )
            actions = result.actions
        assert [(end.slot, end.length) for end in result.episodes] == []
    first, second = served.rollouts
    assert first.valid is not None
    assert second.valid is not None
    # Steps 0 and 2 of slot 0 were overridden; slot 2 was absent from steps 1 and 2.
    assert first.valid.tolist() == [
        [False, True, True],
        [True, True, False],
        [False, True, False],
        [True, True, True],
    ]
    assert second.valid[:, 0].tolist() == [False, True, False, True]
    assert first.next_alive[1, 0] == -1.0
    # The rewards of the steps from which it was absent are those of its step before.
    assert first.rewards[0, 2, 0] == 1.0 + 10.0 + 100.0
    assert first.next_inputs["observation"][0, 2].tolist() == [2.0, 2.0]


def test_steps_from_which_a_slot_was_absent_are_not_its_own(port: int) -> None:
    with RlxClient(f"127.0.0.1:{port}", STATE, MOVE, slots=2) as client:
        zeros = np.zeros((2, 2))
        client.step(zeros)
        for here in ([True, False], [True, False], [True, True]):
            client.step(zeros, np.ones(2), present=np.array(here))
        result = client.step(zeros, np.ones(2), terminated=np.array([True, True]))
        assert [(end.length, end.score) for end in result.episodes] == [(4, 4.0), (2, 4.0)]


def test_an_episode_from_which_a_slot_was_absent_is_not_counted(
    backend: ParameterServer, port: int
) -> None:
    with RlxClient(f"127.0.0.1:{port}", STATE, MOVE, slots=2) as client:
        zeros, ones = np.zeros((2, 2)), np.ones(2)
        client.step(zeros, present=np.array([True, False]))
        result = client.step(zeros, ones, terminated=np.array([True, True]))
        assert [(end.length, end.score) for end in result.episodes] == [(1, 1.0), (0, 1.0)]
        for _ in range(2 * STEPS):  # the learner is still there
            client.step(zeros, ones)
        assert backend.status().episodes == 1


def test_what_equals_the_given_action_can_still_be_somebody_elses(
    served: Served, port: int
) -> None:
    with RlxClient(f"127.0.0.1:{port}", STATE, MOVE) as client:
        action = client.act([0.0, 0.0])
        for _ in range(STEPS):
            action = client.reward_and_act(1.0, [0.0, 0.0], executed=action)
    (rollout,) = served.rollouts or [None]
    assert rollout is None  # nothing to learn from: it was only counted


# What is learned.


def run_with_safety_controller(tells: bool) -> float:
    """Returns how often the policy decides rightly in the end; chance is a half.

    The right action earns 1. But in a quarter of the steps where the policy chooses it, a safety
    controller takes the other one, which costs 4: the policy is not to blame.
    """
    config = make_config(
        layers=(16,), rollout_steps=8, learning_rate=5e-3, gamma=0.0, state_size=2, num_actions=2
    )
    random, slots, hits = np.random.default_rng(0), 16, []
    with serve_a2c(config) as server:
        served = Served(server, config)
        with (
            ServerThread(served.rlx, "127.0.0.1", 0) as running,
            RlxClient(f"127.0.0.1:{running.port}", STATE, Discrete(n=2), slots=slots) as client,
        ):
            asked = random.integers(2, size=slots)
            actions: Any = client.step(np.eye(2, dtype=np.float32)[asked]).actions
            for _ in range(600):
                right = actions == asked
                hits.append(right.mean())
                taken_over = right & (random.uniform(size=slots) < 0.25)
                rewards = np.where(taken_over, -4.0, right.astype(float))
                executed = np.where(taken_over, 1 - actions, actions)
                asked = random.integers(2, size=slots)
                actions = client.step(
                    np.eye(2, dtype=np.float32)[asked],
                    rewards,
                    executed=executed if tells else None,
                ).actions
        served.close()
    return float(np.mean(hits[-200:]))


def test_a_policy_is_not_blamed_for_what_a_safety_controller_does() -> None:
    """A fifth of the steps are overridden; seed 0, 600 steps of 16 slots, the last 200 count."""
    assert run_with_safety_controller(tells=True) >= 0.95
    assert run_with_safety_controller(tells=False) <= 0.5


def clone_controller(tells: bool) -> float:
    """Returns the mean of five greedy episodes of CartPole, after half of 8 000 steps were shown.

    A controller that keeps the pole up decides, without being asked, in half of the steps.
    """
    config = make_config(
        layers=(32,), algorithm="bc", learn_from="overridden", learning_rate=1e-2, num_steps=128
    )
    random, slots = np.random.default_rng(0), 8
    cartpole = Box(dtype="float32", shape=(4,))
    environments = [gym.make("CartPole-v1") for _ in range(slots)]
    with serve_a2c(config, "bc") as server:
        served = Served(server, config, "bc")
        with ServerThread(served.rlx, "127.0.0.1", 0) as running:
            address = f"127.0.0.1:{running.port}"
            with RlxClient(address, cartpole, Discrete(n=2), slots=slots) as client:
                seen = np.stack([e.reset(seed=i)[0] for i, e in enumerate(environments)])
                actions: Any = client.step(seen).actions
                for _ in range(1000):
                    overridden = random.uniform(size=slots) < 0.5
                    taken = np.where(overridden, balance(seen), actions)
                    results = [e.step(a) for e, a in zip(environments, taken, strict=True)]
                    ended = np.array([result[2] or result[3] for result in results])
                    seen = np.stack(
                        [
                            e.reset()[0] if is_over else result[0]
                            for e, result, is_over in zip(environments, results, ended, strict=True)
                        ]
                    )
                    actions = client.step(
                        seen,
                        np.ones(slots),
                        terminated=ended,
                        **({"executed": taken, "overridden": overridden} if tells else {}),
                    ).actions
            with RlxClient(address, cartpole, Discrete(n=2), exploit=True) as client:
                scores = [play(client, environments[0], seed) for seed in range(5)]
        served.close()
    return float(np.mean(scores))


def play(client: RlxClient, environment: Any, seed: int) -> float:
    action, score = client.act(environment.reset(seed=seed)[0]), 0.0
    while True:
        seen, reward, terminated, truncated, _ = environment.step(action)
        score += reward
        if terminated or truncated:
            client.reward_and_reset(reward, seen, truncated=truncated and not terminated)
            return score
        action = client.reward_and_act(reward, seen)


def test_a_policy_learns_from_a_controller_that_takes_over() -> None:
    """Behaviour cloning of what was carried out; seed 0, 8 000 steps, five greedy episodes."""
    assert clone_controller(tells=True) >= 400
    assert clone_controller(tells=False) <= 100
