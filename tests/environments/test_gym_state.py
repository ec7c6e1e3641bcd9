"""Environments export their state, and others of the same kind continue from it."""

# covers J18

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from memory.recall import RecallSlots
from OpenAI_Gym import gym_slots
from OpenAI_Gym.gym_make import make_slots
from OpenAI_Gym.gym_slots import EnvListSlots, JoinedSlots, VectorEnvSlots
from toy_envs import Toy

from relaax_like.client.values import SpaceValues
from relaax_like.wire.errors import InvalidInputError

K = 3


def join_cart_poles() -> Any:
    return make_slots("CartPole-v1", K, mode="vector_entry_point", needs={"partial_steps"}, seed=4)


KINDS: dict[str, Callable[[], Any]] = {
    "vectorised": lambda: make_slots("CartPole-v1", K, seed=4),
    "vectorised, one by one": join_cart_poles,
    "single": lambda: make_slots("CartPole-v1", K, mode="sync", seed=4),
    "box of actions": lambda: make_slots("Pendulum-v1", K, seed=4),
    "draws in each step": lambda: make_slots("FrozenLake-v1", K, seed=4),
    "tuple of observations": lambda: make_slots("Blackjack-v1", K, seed=4),
    "actions repeated": lambda: make_slots("CartPole-v1", K, action_repeat=3, seed=4),
    "new seeds": lambda: make_slots("CartPole-v1", K, needs={"seed_resets"}, seed=4),
    "new seeds from no seed": lambda: make_slots("CartPole-v1", K, needs={"seed_resets"}),
    "no seed": lambda: make_slots("CartPole-v1", K, mode="sync"),
    "recall": lambda: RecallSlots(K, delay=2, seed=4),
}


def to_lists(value: Any) -> Any:
    """Returns nested values as something that == compares; NaN is text."""
    if isinstance(value, dict):
        return {name: to_lists(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return (value.dtype.name, repr(value.tolist()))
    return [to_lists(part) for part in value] if isinstance(value, list) else value


def play(slots: Any, steps: int, seed: int) -> list[Any]:
    """Steps with random actions; returns all that came."""
    actions, random = SpaceValues(slots.action_space, "action"), np.random.default_rng(seed)
    came = []
    for _ in range(steps):
        t = slots.step(actions.sample(K, random))
        ended = t.terminated | t.truncated
        finals = t.final_observations
        if isinstance(finals, dict):
            finals = {name: leaf[ended] for name, leaf in finals.items()}
        elif finals is not None:
            finals = finals[ended]
        came.append(to_lists([t.observations, t.rewards, t.terminated, t.truncated, finals]))
    return came


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_slots_go_on_as_those_did_whose_state_they_were_given(make: Callable[[], Any]) -> None:
    first = make()
    first.reset()
    play(first, 37, seed=0)
    second = make()
    second.set_state(first.get_state())
    assert to_lists(second.get_state()) == to_lists(first.get_state())
    assert play(second, 30, seed=1) == play(first, 30, seed=1)
    third = make()
    third.set_state(second.get_state())
    assert play(third, 300, seed=2) == play(first, 300, seed=2)
    assert to_lists(third.get_state()) == to_lists(first.get_state())
    for slots in (first, second, third):
        slots.close()


def test_slots_that_were_stepped_alone_and_cut_off_go_on_too() -> None:
    first = make_slots("CartPole-v1", K, needs={"partial_steps"}, seed=4)
    first.reset()
    play(first, 5, seed=0)
    first.partial_step(np.zeros(K, np.int64), np.array([True, False, True]))
    first.reset(np.array([False, True, False]))
    play(first, 3, seed=1)
    second = make_slots("CartPole-v1", K, needs={"partial_steps"}, seed=4)
    second.set_state(first.get_state())
    assert play(second, 100, seed=2) == play(first, 100, seed=2)


def test_a_state_does_not_change_with_what_comes_after_it() -> None:
    for name in ("vectorised", "single", "recall"):
        slots = KINDS[name]()
        slots.reset()
        play(slots, 5, seed=0)
        state = slots.get_state()
        before = to_lists(state)
        play(slots, 50, seed=1)
        assert to_lists(state) == before


def test_an_environment_that_remembers_more_than_its_actions_is_noticed() -> None:
    """A toy counts its episodes, and shows the number."""
    first = EnvListSlots([Toy(0)])
    first.reset()
    for _ in range(4):
        first.step(np.array([1]))
    with pytest.raises(
        InvalidInputError, match=r"slot 0: .*led to a different state.*different version"
    ):
        EnvListSlots([Toy(0)]).set_state(first.get_state() or {})


@pytest.mark.parametrize(
    ("made", "other", "want"),
    [
        ("CartPole-v1", {"slots": 2}, "num_envs was 3 when the state was saved, but is 2"),
        ("CartPole-v1", {"env_args": {"sutton_barto_reward": True}}, "sutton_barto_reward was"),
        ("Pendulum-v1", {"slots": 2}, "slots: 3 in the saved state, expected 2"),
        ("Pendulum-v1", {"env_args": {"g": 1.0}}, "slot 0: .*led to a different state"),
    ],
)
def test_a_state_of_other_environments_is_refused(
    made: str, other: dict[str, Any], want: str
) -> None:
    first = make_slots(made, K, seed=4)
    first.reset()
    play(first, 5, seed=0)
    second = make_slots(made, **{"slots": K, "seed": 4, **other})
    with pytest.raises(InvalidInputError, match=want):
        second.set_state(first.get_state())


@pytest.mark.parametrize(
    ("there", "here"), itertools.permutations(["vectorised", "vectorised, one by one", "single"], 2)
)
def test_a_state_of_another_form_of_environments_is_refused(there: str, here: str) -> None:
    first, second = KINDS[there](), KINDS[here]()
    first.reset()
    with pytest.raises(InvalidInputError, match="the environments were made in another form"):
        second.set_state(first.get_state())


@pytest.mark.parametrize("kind", ["vectorised", "no seed"])
def test_a_state_of_another_kind_of_generator_is_refused(kind: str) -> None:
    first, second = KINDS[kind](), KINDS[kind]()
    first.reset()
    state = first.get_state()
    other = np.random.MT19937(1).state
    if kind == "vectorised":
        state["generator"] = other
    else:
        state["episodes"][0]["generator"] = other
    with pytest.raises(InvalidInputError, match="random generator does not fit"):
        second.set_state(state)


def test_an_environment_that_fails_in_the_replay_is_named() -> None:
    class Failing(Toy):
        def step(self, action: Any) -> Any:
            raise KeyError("no such action")

    first = EnvListSlots([Toy(0)], seed=1)
    first.reset()
    first.step(np.array([1]))
    with pytest.raises(
        InvalidInputError, match=r"slot 0: replaying .* failed \(KeyError: 'no such"
    ):
        EnvListSlots([Failing(0)]).set_state(first.get_state() or {})


def test_an_array_that_the_environment_no_longer_has_is_named() -> None:
    first, second = (make_slots("CartPole-v1", K, seed=4) for _ in range(2))
    first.reset()
    state: Any = first.get_state()
    state["attributes"]["wind"] = np.zeros(3)
    with pytest.raises(InvalidInputError, match=r"wind was \(3,\) when .*, but is None now"):
        second.set_state(state)


def test_what_cannot_be_said_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    toys = VectorEnvSlots(SyncVectorEnv([lambda: Toy(0)]))
    toys.reset()
    assert toys.get_state() is None
    joined = JoinedSlots([toys])
    joined.reset()
    assert joined.get_state() is None
    monkeypatch.setattr(gym_slots, "_MAX_REPLAYED", 5)
    slots = make_slots("Pendulum-v1", K, seed=4)
    assert slots.get_state() is None  # not begun
    slots.reset()
    play(slots, 4, seed=0)
    assert slots.get_state() is not None
    play(slots, 1, seed=0)
    assert slots.get_state() is None


def test_seeds_of_resets_are_refused_or_required_as_saved() -> None:
    first, second = (
        make_slots("CartPole-v1", K, mode="sync", needs=needs) for needs in ({"seed_resets"}, set())
    )
    first.reset()
    second.reset()
    for slots, other in ((first, second), (second, first)):
        with pytest.raises(InvalidInputError, match=r"another form \(.* or with seed_resets\)"):
            slots.set_state(other.get_state())
