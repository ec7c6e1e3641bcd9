"""Environments that a module of the user's registers."""

from textwrap import dedent

import gymnasium as gym
import pytest

from relaax_like.config.algorithm_folder import find_environment, load_folder_module
from relaax_like.wire.errors import ConfigError

MAKE = load_folder_module(find_environment("OpenAI_Gym").parent, "gym_make")


def test_a_module_of_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_ramps.py").write_text(
        dedent("""
            import gymnasium as gym
            from gymnasium.envs.classic_control import CartPoleEnv

            gym.register("Ramp-v0", entry_point=CartPoleEnv)
        """)
    )
    monkeypatch.syspath_prepend("/")  # put back afterwards
    with pytest.raises(ConfigError, match="my_ramps"):
        MAKE.make_slots("my_ramps:Ramp-v0", 2)
    monkeypatch.chdir(tmp_path)
    slots = MAKE.make_slots("my_ramps:Ramp-v0", 2, seed=0)
    assert slots.reset().shape == (2, 4)
    slots.close()


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (FileNotFoundError("File ramp.xml does not exist"), ": File ramp.xml does not exist$"),
        (KeyError("slope"), ": KeyError: 'slope'$"),
        (RuntimeError("no\nlicence"), ": RuntimeError: no licence$"),
    ],
    ids=repr,
)
def test_what_a_constructor_raises_is_one_line(error, want):
    class Failing(gym.Env):
        def __init__(self, render_mode=None):
            raise error

    gym.register("Failing-v0", Failing)
    try:
        with pytest.raises(ConfigError, match=f"^environment Failing-v0{want}"):
            MAKE.make_slots("Failing-v0")
    finally:
        del gym.registry["Failing-v0"]
