"""Action repeat: rewards added up, stopped at the episode's end. covers F15"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from OpenAI_Gym.gym_make import make_slots
from OpenAI_Gym.gym_slots import EnvListSlots, VectorEnvSlots
from scripted_server import ScriptedServer
from toy_envs import Toy

from relaax_like.config.algorithm_folder import load_folder_module
from relaax_like.config.models import EnvironmentConfig
from relaax_like.wire.errors import ConfigError

GYM = Path(__file__).parents[2] / "environments" / "OpenAI_Gym"


def test_rewards_are_added_up_until_the_episode_ends() -> None:
    """The toy's step s of episode e pays 10 e + s; episode e has 2 + e % 3 steps.

    An observation is (0, episode, steps in it, last action); episodes of even number terminate.
    """
    slots = make_slots("Toy-v0", action_repeat=2)
    assert slots.reset().tolist() == [[0, 0, 0, -1]]
    told = []
    for action in (1, 2, 0, 1, 2):
        t = slots.step(np.array([action]))
        final = None if t.final_observations is None else np.asarray(t.final_observations).tolist()
        told.append(
            (
                np.asarray(t.observations).tolist()[0],
                t.rewards.tolist()[0],
                (bool(t.terminated[0]), bool(t.truncated[0])),
                final,
                None if t.success is None else t.success.tolist(),
            )
        )
    slots.close()
    assert told == [
        ([0, 1, 0, -1], 1 + 2, (True, False), [[0, 0, 2, 1]], [0]),
        ([0, 1, 2, 2], 11 + 12, (False, False), None, None),
        # One step only: the third is the episode's last.
        ([0, 2, 0, -1], 13, (False, True), [[0, 1, 3, 0]], None),
        ([0, 2, 2, 1], 21 + 22, (False, False), None, None),
        ([0, 3, 0, -1], 23 + 24, (True, False), [[0, 2, 4, 2]], [0]),
    ]


def test_slots_that_end_within_a_repeat_do_not_hold_up_the_others() -> None:
    """Three toys in step with each other until masked resets part them."""
    slots = make_slots("Toy-v0", 3, action_repeat=3)
    slots.reset()
    slots.reset(np.array([False, True, False]))  # slot 1 begins episode 1, of 3 steps
    t = slots.step(np.zeros(3, np.int64))
    assert t.rewards.tolist() == [1 + 2, 11 + 12 + 13, 1 + 2]
    assert (t.terminated.tolist(), t.truncated.tolist()) == (
        [True, False, True],
        [False, True, False],
    )
    slots.close()


def test_repeating_equals_the_same_actions_one_by_one() -> None:
    repeated = make_slots("Pendulum-v1", 2, seed=3, action_repeat=4)
    single = make_slots("Pendulum-v1", 2, seed=3)
    np.testing.assert_array_equal(repeated.reset(), single.reset())
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.uniform(-2, 2, (2, 1)).astype(np.float32)
        t = repeated.step(actions)
        steps = [single.step(actions) for _ in range(4)]
        np.testing.assert_array_equal(t.observations, steps[-1].observations)
        np.testing.assert_allclose(t.rewards, sum(step.rewards for step in steps))
        # The environment's own limit of 200 counts its own steps; 4 divides it.
        np.testing.assert_array_equal(t.truncated, steps[-1].truncated)
    repeated.close()
    single.close()


def test_one_slot_can_take_random_actions_alone() -> None:
    slots: Any = make_slots("Toy-v0", 2, needs={"partial_steps"}, action_repeat=2)
    before = slots.reset()
    t = slots.partial_step(np.array([1, 1]), np.array([False, True]))
    assert t.rewards.tolist() == [0, 1 + 2]
    assert t.observations[0].tolist() == before[0].tolist()


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"action_repeat": 1}, VectorEnvSlots),
        ({"action_repeat": 2}, EnvListSlots),
        ({"action_repeat": 2, "mode": "sync"}, EnvListSlots),
    ],
)
def test_environments_are_stepped_one_by_one(options: dict[str, Any], want: type) -> None:
    slots = make_slots("CartPole-v1", 2, **options)
    assert type(slots) is want
    slots.close()


def test_the_vectorised_form_refuses_it() -> None:
    with pytest.raises(
        ConfigError,
        match=r"action_repeat .*: 2, but the vectorised form of environment Cart.*mode sync",
    ):
        make_slots("CartPole-v1", 2, mode="vector_entry_point", action_repeat=2)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="mode: 'vector', expected one of auto, sync, vector_ent"):
        make_slots("CartPole-v1", 2, mode="vector")


def test_a_window_keeps_the_pace_of_the_environments_own_time() -> None:
    plain, repeated = make_slots("Toy-v0"), make_slots("Toy-v0", action_repeat=4)
    assert (plain.render_fps, repeated.render_fps) == (1000, 250)
    assert Toy.metadata["render_fps"] == 1000


def test_the_section_environment_makes_slots_that_repeat() -> None:
    module = load_folder_module(GYM, "slots")
    section = EnvironmentConfig(program="OpenAI_Gym", env="Pendulum-v1", action_repeat=50, slots=2)
    slots = module.make_slots(section, 1)
    slots.reset()
    actions = np.zeros((2, 1), np.float32)
    ends = [slots.step(actions).truncated.tolist() for _ in range(4)]
    assert ends == [[False, False]] * 3 + [[True, True]]
    slots.close()


def run_main(*args: object) -> tuple[int, str, str]:
    argv = [sys.executable, str(GYM / "main"), *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_program_counts_actions_as_steps(serve: Callable[..., ScriptedServer]) -> None:
    server = serve()
    options = "--env Pendulum-v1 --actrep 10 --num-envs 2 --limit 15 --episodes 2"
    code, out, err = run_main("--rlx-server", server.address, *options.split())
    assert (code, err) == (0, "")
    # 15 actions, 150 steps of the simulator: the limit struck before its own of 200.
    assert out.splitlines()[-1] == "Pendulum-v1: done; 2 episodes, 30 steps"
    assert len(server.sessions[0].steps) == 1 + 15


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (
            ["--action-repeat", "0"],
            "--action-repeat/--actrep: '0', expected an integer of 1 or more",
        ),
        (["--actrep", "2", "--vectorization-mode", "vector_entry_point"], "use mode sync"),
    ],
)
def test_a_mistake_is_one_clear_line_and_code_2(args: list[str], match: str) -> None:
    code, _, err = run_main(*args)
    assert code == 2
    assert match in err.splitlines()[-1]
