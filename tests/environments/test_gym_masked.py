"""MaskedCartPole-v1, and environments that draw nothing unless they are asked."""

import gymnasium as gym
import numpy as np
import pytest

from relaax_like.config.algorithm_folder import find_environment, load_folder_module

MAKE = load_folder_module(find_environment("OpenAI_Gym").parent, "gym_make")


def test_it_is_cartpole_without_its_velocities():
    masked = MAKE.make_slots("MaskedCartPole-v1", seed=5)
    whole = gym.make("CartPole-v1")
    seen = masked.reset()
    state, _ = whole.reset(seed=5)
    for _ in range(30):
        np.testing.assert_array_equal(seen[0], state[[0, 2]])
        transition = masked.step(np.array([1]))
        state, _, terminated, truncated, _ = whole.step(1)
        assert transition.terminated[0] == terminated
        if terminated or truncated:
            return
        seen = transition.observations
    pytest.fail("the pole has not fallen in 30 steps of pushing to one side")


def test_only_the_slot_that_is_drawn_has_a_render_mode_and_sparks():
    """They stay in its world until it is drawn, and each makes the next step slower."""
    slots = MAKE.make_slots("LunarLander-v3", 2, seed=0, draw=True)
    slots.reset()
    for _ in range(20):
        transition = slots.step(np.array([2, 2]))  # the main engine
        assert not transition.terminated.any()
    drawn, other = (env.unwrapped for env in slots._envs)
    assert (drawn.render_mode, other.render_mode) == ("rgb_array", None)
    assert drawn.particles != []
    assert other.particles == []
    frame = slots.render()
    assert frame is not None
    assert frame.ndim == 3
