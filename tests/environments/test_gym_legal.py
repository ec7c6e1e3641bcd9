"""Where environments of Gymnasium say which actions are legal. covers PE20"""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from OpenAI_Gym.gym_make import make_slots

import relaax_like
from relaax_like.client.interactor import Interactor
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import MultiBinary

MASK = "mask:action"


class Walk(gym.Env):
    """Counts to ten; action i is legal if the position says so, and pays i."""

    def __init__(self, where: str = "info", action: str = "discrete", forgets: bool = False):
        self.action_space: Any = gym.spaces.Discrete(3)
        if action != "discrete":
            self.action_space = gym.spaces.MultiDiscrete([2, 3])
        self._parts = [3] if action == "discrete" else [2, 3]
        self._where, self._forgets = where, forgets
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space: Any = box
        if where == "observation":
            flags = gym.spaces.MultiBinary(sum(self._parts))
            self.observation_space = gym.spaces.Dict({"observation": box, "action_mask": flags})
        self.resets, self.step_count, self.illegal = 0, 0, 0

    def _look(self):
        self.legal = [
            np.array([(self.step_count + i) % n != 0 for i in range(n)]) for n in self._parts
        ]
        seen, flags = np.full(2, self.step_count / 10, np.float32), np.concatenate(self.legal)
        if self._where == "observation":
            return {"observation": seen, "action_mask": flags.astype(np.int8)}, {}
        if self._forgets and self.step_count == 2:
            return seen, {}
        name = "legal" if self._where == "other" else "action_mask"
        return seen, {name: tuple(self.legal) if len(self._parts) > 1 else self.legal[0]}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets, self.step_count = self.resets + 1, 0
        return self._look()

    def step(self, action):
        chosen = np.ravel(action)
        self.illegal += not all(ok[a] for ok, a in zip(self.legal, chosen, strict=True))
        self.step_count += 1
        seen, info = self._look()
        return seen, float(chosen[0]), self.step_count == 10, False, info


gym.register("Walk-v0", entry_point=Walk)


def get_walks(slots: Any) -> list[Walk]:
    return [env.unwrapped for env in slots._envs]


@pytest.mark.parametrize("where", ["info", "observation"])
@pytest.mark.parametrize("action", ["discrete", "multi"])
def test_the_mask_becomes_a_leaf_and_no_reset_is_made_twice(where, action):
    slots = make_slots("Walk-v0", 2, seed=1, env_args={"where": where, "action": action})
    n = 3 if action == "discrete" else 5
    assert set(slots.observation_space) == {"observation", MASK}
    assert slots.observation_space[MASK] == MultiBinary(shape=(n,), dtype="bool")
    first = slots.reset()
    assert [walk.resets for walk in get_walks(slots)] == [1, 1]
    assert first[MASK].dtype == np.bool_
    np.testing.assert_array_equal(first[MASK][0], np.concatenate(get_walks(slots)[0].legal))
    transition = slots.step(np.ones((2, 2) if n == 5 else 2, np.int64))
    np.testing.assert_array_equal(
        transition.observations[MASK][1], np.concatenate(get_walks(slots)[1].legal)
    )
    slots.close()


class Sharing(gym.Env):
    """All environments write their observations into one array."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    shared = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shared[:] = self.np_random.integers(1, 10)
        return self.shared, {}


gym.register("Sharing-v0", entry_point=Sharing)


def test_a_first_look_keeps_its_observation():
    first = make_slots("Sharing-v0", 5, seed=0).reset()
    want = [np.random.default_rng(seed).integers(1, 10) for seed in range(5)]
    np.testing.assert_array_equal(first[:, 0], want)


def test_a_name_off_and_what_is_refused():
    named = make_slots("Walk-v0", env_args={"where": "other"}, masks="legal")
    assert MASK in named.observation_space
    auto = make_slots("Walk-v0", env_args={"where": "other"})
    off = make_slots("Walk-v0", masks="off")
    for slots in (auto, off):
        assert not isinstance(slots.observation_space, dict)
    for name, masks in (("Walk-v0", "nothing"), ("Pendulum-v1", "legal")):
        with pytest.raises(ConfigError, match="masks"):
            make_slots(name, masks=masks)
    forgets = make_slots("Walk-v0", env_args={"forgets": True})
    forgets.reset()
    forgets.step(np.array([1]))
    with pytest.raises(InvalidInputError) as caught:
        forgets.step(np.array([1]))
    assert caught.value.field == "action_mask"


@pytest.mark.parametrize("action", ["discrete", "multi"])
def test_random_first_steps_are_legal(action):
    slots = make_slots("Walk-v0", 3, seed=0, env_args={"action": action})

    class Stops:
        def step(self, observations, *outcome):
            legal = observations[MASK]
            best = legal.argmax(-1) if action == "discrete" else draw_first(legal)
            return relaax_like.client.StepResult(actions=best)

    def draw_first(legal):
        return np.stack([legal[:, :2].argmax(-1), legal[:, 2:].argmax(-1)], -1)

    Interactor(slots, Stops(), random_steps=6, max_steps=300, seed=0).run()
    assert [walk.illegal for walk in get_walks(slots)] == [0, 0, 0]


def test_state_of_an_environment_with_masks_returns(tmp_path):
    slots = make_slots("Taxi-v4", 2, seed=3)
    slots.reset()
    for _ in range(5):
        last = slots.step(np.array([0, 1]))
    again = make_slots("Taxi-v4", 2, seed=99)
    again.set_state(slots.get_state())
    np.testing.assert_array_equal(again._now[MASK], last.observations[MASK])
    one, other = slots.step(np.array([2, 3])), again.step(np.array([2, 3]))
    for name in one.observations:
        np.testing.assert_array_equal(one.observations[name], other.observations[name])
