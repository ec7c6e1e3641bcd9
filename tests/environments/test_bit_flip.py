"""Bit-flip: rules, state, serial and as a process. covers R30"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bit_flip.bits import BitSlots, make_bits
from scripted_server import Role, ScriptedServer

from relaax_like.client.values import SpaceValues
from relaax_like.config.algorithm_folder import load_folder_module
from relaax_like.config.models import EnvironmentConfig
from relaax_like.wire.errors import ConfigError, InvalidInputError

ENVIRONMENTS = Path(__file__).parents[2] / "environments"


def solve(seen: dict[str, np.ndarray]) -> np.ndarray:
    """Returns a bit of each slot that is not the goal's."""
    return (seen["achieved_goal"] != seen["desired_goal"]).argmax(1)


def test_an_episode_ends_with_success_at_the_goal() -> None:
    slots = BitSlots(1, bits=6, seed=1)
    seen = slots.reset()
    apart = int((seen["achieved_goal"] != seen["desired_goal"]).sum())
    assert apart > 0
    goal = seen["desired_goal"].copy()
    for left in range(apart - 1, 0, -1):
        came = slots.step(solve(seen))
        seen = came.observations
        assert (seen["achieved_goal"] != seen["desired_goal"]).sum() == left
        assert (came.rewards[0], came.terminated[0], came.truncated[0]) == (-1.0, False, False)
        assert came.success is None
    last = slots.step(solve(seen))
    assert (last.rewards[0], last.terminated[0], last.truncated[0]) == (0.0, True, False)
    assert last.success.tolist() == [1]
    np.testing.assert_array_equal(last.final_observations["achieved_goal"], goal)
    assert (last.observations["achieved_goal"] != last.observations["desired_goal"]).any()


def test_an_episode_is_cut_off_after_as_many_steps_as_bits() -> None:
    slots = BitSlots(2, bits=4, seed=0)
    slots.reset()
    slots._goals[:] = [[0, 0, 0, 0], [1, 1, 1, 1]]
    slots._bits[:] = [[1, 1, 0, 0], [1, 1, 1, 0]]
    came = slots.step(np.array([0, 3]))
    assert came.terminated.tolist() == [False, True]
    assert came.success.tolist() == [-1, 1]
    slots._goals[1] = 1.0 - slots._bits[1]
    for wanted in (False, False, True):
        came = slots.step(np.array([2, 0]))
        assert came.truncated[0] == wanted
    assert came.success[0] == 0
    assert came.rewards[0] == -1.0


def test_two_games_with_a_seed_are_the_same_also_after_a_restore() -> None:
    one, two = BitSlots(3, seed=5), BitSlots(3, seed=9)
    seen = one.reset()
    two.reset()
    two.set_state(one.get_state())
    for _ in range(50):
        actions = solve(seen)
        seen, other = one.step(actions).observations, two.step(actions).observations
        for name, array in seen.items():
            np.testing.assert_array_equal(array, other[name])
    with pytest.raises(
        InvalidInputError, match=r"saved state has \[slots, bits\] of \[3, 20\], expected \[2, 20\]"
    ):
        BitSlots(2).set_state(one.get_state())


def test_observations_fit_their_spaces() -> None:
    slots = BitSlots(4, seed=0)
    values = SpaceValues(slots.observation_space, "observation")
    leaves = values.to_leaves(slots.reset(), 4, "observations")
    assert {name: leaf.shape for name, leaf in leaves.items()} == {
        "achieved_goal": (4, 20),
        "desired_goal": (4, 20),
    }


@pytest.mark.parametrize(
    ("args", "want"),
    [
        ({"bits": 0}, r"args\.bits \(--env-arg\): expected an integer of 1 or more, got 0"),
        ({"bits": True}, r"args\.bits .*: expected an integer of 1 or more, got True"),
        ({"bits": 10**30}, "bits times slots is 10* x 1, expected at most 16,777,216"),
        ({"bit": 3}, r"environment\.args\.bit \(--env-arg\): no such argument, expected bits"),
    ],
)
def test_wrong_arguments_are_refused(args: dict[str, object], want: str) -> None:
    with pytest.raises(ConfigError, match=want):
        make_bits(args, 1, None)


def test_keys_that_mean_nothing_here_are_refused() -> None:
    module = load_folder_module(ENVIRONMENTS / "bit_flip", "slots")
    section = EnvironmentConfig(program="bit_flip", action_repeat=2)
    with pytest.raises(ConfigError, match=r"environment\.action_repeat: 2 is not supported by the"):
        module.make_slots(section, 0)
    made = module.make_slots(EnvironmentConfig(program="bit_flip", args={"bits": 3}), 0)
    assert made.observation_space["desired_goal"].shape == (3,)


def run_main(*args: object) -> tuple[int, str, str]:
    argv = [sys.executable, str(ENVIRONMENTS / "bit_flip" / "main"), *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_program_plays_and_reports_success(serve: Callable[..., ScriptedServer]) -> None:
    server = serve(Role(policy=lambda seen: {"action": solve(seen)}))
    options = ("--num-envs", 2, "--env-arg", "bits=5", "--episodes", 6, "--seed", 3)
    code, out, err = run_main("--rlx-server", server.address, *options)
    assert (code, err) == (0, "")
    assert out.startswith("bit_flip: done; ")
    ends = [step for step in server.sessions[0].steps if step.success is not None]
    assert {int(s) for step in ends for s in step.success[step.terminated]} == {1}
    code, out, err = run_main("--env-arg", "bit=5")
    assert (code, out) == (2, "")
    assert "environment.args.bit (--env-arg): no such argument, expected bits" in err
