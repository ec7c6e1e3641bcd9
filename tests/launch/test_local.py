"""Environments in the process that trains: wrong values end it with a line that names their slot.

covers R29
"""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.broken_envs import AT
from support.cluster import BARE, ROOT

import relaax_like
from relaax_like.client.interactor import Transition
from relaax_like.config.loader import load_experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.launch.local import CheckedSlots, open_slots
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

BROKEN = "support.broken_envs:Broken-v0"
A2C = "name: a2c, state_size: 4, num_actions: 2, network: {layers: [4]}, rollout_steps: 4"
EXPECTED = "expected finite numbers of at most 1e+08 in magnitude"


def write_experiment(folder: Path, wrong: str) -> Path:
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"algorithm: {{{A2C}, max_global_step: 400}}\n"
        f"environment: {{program: OpenAI_Gym, env: '{BROKEN}', slots: 2, "
        f"args: {{wrong: {json.dumps(wrong)}}}}}\n"
    )
    return file


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            "NaN reward",
            "rewards: NaN or infinity in slot {slot} (first: nan at [{slot}]), expected finite "
            "numbers",
        ),
        ("huge reward", "rewards: 1e+18 in slot {slot}; " + EXPECTED),
        ("text as reward", "rewards: expected a number, got 'much' (slot {slot})"),
        ("two rewards", "rewards: {numbers}, expected equally many of all slots"),
        (
            "NaN",
            "observations: NaN or infinity in slot {slot} (first: nan at [{slot}, 2]), expected "
            "finite numbers",
        ),
        ("huge observation", "observations: 3e+38 in slot {slot}; " + EXPECTED),
        (
            "short observation",
            "observation: float32 [3], expected float32 [4] as declared by the space (slot {slot})",
        ),
        (
            "text as observation",
            "observation: <U1 [4], expected float32 [4] as declared by the space (slot {slot})",
        ),
    ],
)
@pytest.mark.parametrize("call", ["step", "partial_step"])
def test_a_wrong_value_is_refused_by_environment_field_and_slot(
    tmp_path: Path, wrong: str, message: str, call: str
) -> None:
    experiment = load_experiment(write_experiment(tmp_path, wrong))
    slot = int(derive_seed(experiment.seed, "environment", "train") % 2 == 0)  # with an odd seed
    with open_slots(experiment, "train") as slots:
        slots.reset()
        more = () if call == "step" else (np.ones(2, np.bool_),)
        step = functools.partial(getattr(slots, call), np.zeros(2, np.int64), *more)
        for _ in range(AT - 1):
            step()
        with pytest.raises(InvalidInputError) as caught:
            step()
    numbers = ", ".join(f"{1 + (one == slot)} in slot {one}" for one in range(2))
    assert (
        str(caught.value) == f"environment {BROKEN}: {message.format(slot=slot, numbers=numbers)}"
    )


def test_a_large_number_in_a_final_observation_counts_where_an_episode_ended() -> None:
    final = np.zeros((2, 4), np.float32)
    final[1] = 1e18
    ended = np.array([False, False])

    class Ending:
        slots, observation_space, action_space = 2, Box(dtype="float32", shape=(4,)), Discrete(n=2)

        def step(self, actions: Any) -> Transition:
            nowhere = np.zeros(2, np.bool_)
            return Transition(
                observations=np.zeros((2, 4)),
                rewards=np.zeros(2),
                terminated=ended,
                truncated=nowhere,
                final_observations=final,
            )

    slots = CheckedSlots(Ending(), "Mine")  # type: ignore[arg-type]  # it is never reset
    slots.step(None)
    ended[1] = True
    with pytest.raises(InvalidInputError, match=r"Mine: final_observations: 1e\+18 in slot 1"):
        slots.step(None)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"agents": ["a"]}, "agents"),
        ({"agents": ["a", "b", "c"]}, "agents"),
        ({"agents": ["a", "b\n"]}, "agents"),
        ({"agents": None}, "agents"),
        ({"games": [0]}, "games"),
        ({"games": [0, -1]}, "games"),
        ({"kinds": ["k", "k"]}, "observation_spaces"),
    ],
)
def test_agents_that_do_not_name_the_slots_are_refused(changed: Any, field: str) -> None:
    class Playing:
        slots, observation_space, action_space = 2, Box(dtype="float32", shape=(4,)), Discrete(n=2)
        agents, games, kinds = ["a", "b"], [0, 0], None

    CheckedSlots(Playing(), "Mine")  # type: ignore[arg-type]  # it never plays
    for name, value in changed.items():
        setattr(Playing, name, value)
    with pytest.raises(InvalidInputError, match=f"Mine: {field}: "):
        CheckedSlots(Playing(), "Mine")  # type: ignore[arg-type]


@pytest.mark.parametrize("present", [[1, 0], [True], [[True, False]], ["yes", "no"]])
def test_what_does_not_say_which_slots_are_present_is_refused(tmp_path: Path, present: Any) -> None:
    (tmp_path / "slots.py").write_text(
        (ROOT / "tests" / "support" / "turns" / "slots.py").read_text()
        + f"\n\nTurns.present = {present!r}\n"
    )
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\nalgorithm: {{name: q_learning, max_global_step: 40}}\n"
        f"environment: {{path: '{tmp_path}'}}\n"
    )
    with pytest.raises(InvalidInputError) as caught:
        relaax_like.train(file)
    assert caught.value.field == "present"


def test_a2c_ends_at_a_nan_reward(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "NaN reward")
    with pytest.raises(InvalidInputError, match=f"environment {BROKEN}: rewards: NaN"):
        relaax_like.train(file)


def test_a_folder_without_make_slots_is_named(tmp_path: Path) -> None:
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "slots.py").touch()
    file = tmp_path / "experiment.yaml"
    file.write_text(f"algorithm: {{path: '{BARE}'}}\nenvironment: {{path: game}}\n")
    with (
        pytest.raises(ConfigError, match=r"game/slots\.py: no function make_slots found; define"),
        open_slots(load_experiment(file), "train"),
    ):
        pass
