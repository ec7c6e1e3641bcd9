"""Environments that fail, or that return something other than Gymnasium's values: one line each."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import toy_envs
from OpenAI_Gym import gym_make
from OpenAI_Gym.gym_make import make_slots
from OpenAI_Gym.gym_slots import EnvListSlots, JoinedSlots, VectorEnvSlots
from support.cluster import ROOT

from relaax_like.config.loader import load_experiment
from relaax_like.launch.local import open_slots
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError

NOTHING = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("kind", "error", "want"),
    [
        ("four values", ConfigError, r"step returned 4 values, expected the 5 .*wrap .*slot 0\)$"),
        ("six values", ConfigError, r"step returned 6 values, expected the 5 values of Gymnasium"),
        ("bare reset", ConfigError, r"reset returned a ndarray, expected the 2 .*wrap .*slot 0\)$"),
        ("two flags", InvalidInputError, r"^terminated: expected True or False, got .*\(slot 0\)$"),
        ("error", RelaaxError, r"^slot 0, step 1: KeyError: 'arm'$"),
        ("exit", RelaaxError, r"^slot 0, step 1: SystemExit: 0$"),
        ("assertion", RelaaxError, r"^slot 0, step 1: AssertionError: .*toy_envs\.py:\d+$"),
    ],
)
@pytest.mark.parametrize("action_repeat", [1, 2])
def test_what_does_not_fit_is_one_line(
    kind: str, error: type[Exception], want: str, action_repeat: int
) -> None:
    slots = make_slots("Odd-v0", 2, env_args={"kind": kind}, action_repeat=action_repeat)
    with pytest.raises(error, match=want):
        play(slots)
    slots.close()


def play(slots: Any) -> None:
    slots.reset()
    slots.step(NOTHING)


def test_the_slot_that_is_stepped_or_reset_is_known() -> None:
    seen = []

    class Looking(toy_envs.Odd):
        def reset(self, **options: Any) -> Any:
            seen.append(slots.where)
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            seen.append(slots.where)
            return super().step(action)

    slots = EnvListSlots([Looking("") for _ in range(2)])
    slots.reset()
    slots.step(NOTHING)
    slots.step(NOTHING)
    assert seen == [
        f"slot {slot}, {call}" for call in ("reset", "step 1", "step 2") for slot in range(2)
    ]
    slots.close()


def test_flags_of_one_element_and_no_info_are_accepted() -> None:
    slots = make_slots("Odd-v0", 2, env_args={"kind": "no info"})
    slots.reset()
    transition = slots.step(NOTHING)
    assert transition.terminated.all()
    assert not transition.truncated.any()
    slots.close()


def test_a_second_one_that_cannot_be_made_is_refused_and_the_first_is_closed() -> None:
    with pytest.raises(ConfigError, match=r"slot 1 .*one emulator per process; .*start more clien"):
        make_slots("Odd-v0", 2, env_args={"kind": "one per process"})
    assert toy_envs.Odd.made == 0
    make_slots("Odd-v0", env_args={"kind": "one per process"}).close()


def test_slots_that_begin_equally_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for name, slots, warnings in (("Odd-v0", 3, 1), ("Odd-v0", 1, 0), ("CartPole-v1", 2, 0)):
        caplog.clear()
        env_args = {"kind": ""} if name == "Odd-v0" else {}
        made = make_slots(name, slots, mode="sync", env_args=env_args)
        made.reset()
        made.reset()
        assert len(caplog.messages) == warnings
        assert all("Odd begin with the same observation" in text for text in caplog.messages)


class Alike(toy_envs.ToyVector):
    """All slots begin with the same observation."""

    def reset(self, **options: Any) -> Any:
        observations, info = super().reset(**options)
        return np.zeros_like(observations), info


def test_vectorised_forms_that_begin_equally_are_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for envs in (2, 1):
        slots = VectorEnvSlots(Alike(envs, mode="Disabled"))
        slots.reset()
        slots.reset()
    joined = JoinedSlots([VectorEnvSlots(Alike(1, mode="Disabled")) for _ in range(2)])
    joined.reset()
    joined.reset()
    assert len(caplog.messages) == 2
    assert all("all 2 slots of Alike begin with" in text for text in caplog.messages)


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "CartPole-v1"])
def test_numbered_states_and_seeded_vectors_are_no_warning(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    slots = make_slots(name, 2, seed=1)
    slots.reset()
    assert caplog.messages == []
    slots.close()


def test_a_vectorised_reset_without_info_is_one_line() -> None:
    class Bare(toy_envs.ToyVector):
        """Returns what Gym below 0.26 returned."""

        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0]

    with pytest.raises(ConfigError, match=r"reset returned a ndarray, expected the 2 values"):
        VectorEnvSlots(Bare(2, mode="Disabled")).reset()


def test_an_id_with_only_a_vectorised_form_is_played_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gym_make._warn_of_vectorised.cache_clear()
    for _ in range(2):  # `relaax train` asks for the spaces first
        slots = make_slots("VectorOnly-v0", 2)
        assert slots.reset().shape == (2, 4)
        slots.close()
    assert caplog.messages == ["VectorOnly-v0 has only a vectorised form, which is used"]


def test_a_vector_environment_without_an_autoreset_mode_is_refused_and_closed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ConfigError, match=r"toy_envs\.Silent does not state what it does at an"):
        make_slots("Silent-v0", 2)
    assert capsys.readouterr().out == "closed\n"


@pytest.mark.parametrize(
    ("env", "weights", "error"),
    [
        ("Paying", "speed: 1, energy: -0.5", None),
        ("Paying", "speed: 1, energy: 1, style: 1", r"2 rewards .* has 3 \(speed, energy, style\)"),
        ("Paying", "", r"^environment toy_envs:Paying-v0: 2 rewards .* has 0 \(none\)"),
        ("Added", "", None),
    ],
)
def test_several_rewards_need_as_many_weights(
    tmp_path: Path, env: str, weights: str, error: str | None
) -> None:
    rewards = f"rewards: {{{weights}}}, " if weights else ""
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"algorithm: {{name: ppo, {rewards}state_size: 2, num_actions: 2}}\n"
        f"environment: {{program: OpenAI_Gym, env: 'toy_envs:{env}-v0', slots: 2}}\n"
    )
    if error is not None:
        with (
            pytest.raises(ConfigError, match=error),
            open_slots(load_experiment(file), "train"),
        ):
            pass
        return
    with open_slots(load_experiment(file), "train") as slots:
        slots.reset()
        transition = slots.step(NOTHING)
    want: Any = [[1.0, 2.0]] * 2 if weights else [3.0] * 2
    np.testing.assert_array_equal(transition.rewards, want)


@pytest.mark.parametrize(
    ("cause", "want"),
    [
        (ImportError("libGL.so.1: no such file"), r"ImportError: libGL\.so\.1: no such file \(Py"),
        (ModuleNotFoundError("", name="pygame"), r"pygame is not installed for "),
        (None, r"Simulator is not installed, run pip"),
    ],
)
def test_only_what_is_not_installed_is_said_to_be(cause: Exception | None, want: str) -> None:
    class Broken(gym.Env):
        def __init__(self) -> None:
            text = "Simulator is not installed, run pip install simulator"
            raise gym.error.DependencyNotInstalled(text) from cause

    gym.register("Broken-v1", Broken)
    try:
        with pytest.raises(ConfigError, match=f"^environment Broken-v1: {want}"):
            make_slots("Broken-v1")
    finally:
        del gym.registry["Broken-v1"]


OLD = """
import gymnasium as gym
import gymnasium.envs.classic_control
del gym.vector.AutoresetMode, gym.vector.VectorWrapper  # as in Gymnasium 0.29
from OpenAI_Gym.gym_make import make_slots
from relaax_like.wire.errors import ConfigError

slots = make_slots("CartPole-v1", 2, seed=1)
print(type(slots).__name__, slots.reset().shape)
try:
    make_slots("CartPole-v1", 2, mode="vector_entry_point")
except ConfigError as error:
    print(error)
"""


def test_a_gymnasium_without_autoreset_modes_plays_single_environments() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OLD],
        cwd=ROOT / "environments",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "EnvListSlots (2, 4)"
    assert "Gymnasium is below 1.1" in second
