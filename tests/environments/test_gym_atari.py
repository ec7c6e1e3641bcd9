"""Atari games: ale-py's own vectorised form, with the frames behind."""

import gymnasium as gym
import numpy as np
import pytest

from relaax_like.config.algorithm_folder import find_environment, load_folder_module
from relaax_like.wire.errors import ConfigError

MAKE = load_folder_module(find_environment("OpenAI_Gym").parent, "gym_make")


def test_it_is_what_ale_shows_with_the_frames_behind():
    slots = MAKE.make_slots("ALE/Pong-v5", 2, seed=5)
    plain = gym.make_vec(
        "ALE/Pong-v5",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        autoreset_mode="SameStep",
        stack_num=1,
    )
    assert slots.observation_space.shape == (84, 84, 1)
    assert slots.observation_space.dtype == "uint8"
    seen = slots.reset()
    frames, _ = plain.reset(seed=5)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(1000):
        np.testing.assert_array_equal(seen, np.moveaxis(frames, 1, -1))
        actions = rng.integers(6, size=2)
        transition = slots.step(actions)
        frames, rewards, terminated, _, infos = plain.step(actions)
        np.testing.assert_array_equal(transition.rewards, rewards)
        np.testing.assert_array_equal(transition.terminated, terminated)
        seen = transition.observations
        if transition.final_observations is not None:
            final = np.moveaxis(infos["final_obs"], 1, -1)
            np.testing.assert_array_equal(
                transition.final_observations[terminated], final[terminated]
            )
            ended += terminated.sum()
    assert ended >= 2  # nobody keeps the ball for so long by chance
    slots.close()
    plain.close()


def test_one_game_is_prepared_just_so_and_can_be_drawn():
    slots = MAKE.make_slots("ALE/Pong-v5", seed=0)
    assert slots.render() is None  # before the first frame
    assert slots.render_fps == 15  # of 60 frames a second, each step is four
    observations = slots.reset()
    assert observations.shape == (1, 84, 84, 1)
    frame = slots.render()
    assert frame.shape == (336, 336, 3)
    np.testing.assert_array_equal(frame[::4, ::4, 1], observations[0, :, :, 0])
    slots.close()


def test_frames_are_skipped_by_the_game_and_not_by_action_repeat():
    with pytest.raises(ConfigError, match=r"action_repeat.*: 2, but Atari games skip.*frameskip"):
        MAKE.make_slots("ALE/Pong-v5", 2, action_repeat=2)


def test_arguments_of_ale_are_handed_on_and_a_wrong_one_is_named():
    slots = MAKE.make_slots("ALE/Pong-v5", 2, env_args={"stack_num": 3, "img_height": 42})
    assert slots.reset().shape == (2, 42, 84, 3)
    slots.close()
    with pytest.raises(ConfigError, match="no_such"):
        MAKE.make_slots("ALE/Pong-v5", 2, env_args={"no_such": 3})
    with pytest.raises(ConfigError, match="Pnog"):
        MAKE.make_slots("ALE/Pnog-v5", 2)
