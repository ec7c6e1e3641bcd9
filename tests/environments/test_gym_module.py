"""Environments that a module of the user's registers."""

from textwrap import dedent

import gymnasium as gym
import numpy as np
import pytest

from relaax_like.config.algorithm_folder import find_environment, load_folder_module
from relaax_like.wire.errors import ConfigError, RelaaxError

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
        (
            FileNotFoundError("File ramp.xml does not exist"),
            ": FileNotFoundError: File ramp.xml does not exist$",
        ),
        (KeyError("slope"), ": KeyError: 'slope'$"),
        (SystemExit("no window"), ": SystemExit: no window$"),
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


class Screened(gym.Env):
    """Draws what it observes, and opens a window unless told otherwise."""

    metadata = {"render_modes": ["human", "rgb_array", "ansi"]}  # noqa: RUF012
    observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, own_mode="human", **given):
        self.given = given
        self.mode = given.get("render_mode", own_mode)

    def __setattr__(self, name, value):
        if name == "render_mode":
            raise AssertionError(f"render_mode was assigned: {value}")
        super().__setattr__(name, value)

    @property
    def render_mode(self):
        return self.mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.mode == "human":
            raise RuntimeError("cannot open a window")
        return np.zeros(2, np.uint8), {}

    def step(self, action):
        return np.zeros(2, np.uint8), 0.0, False, False, {}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)


@pytest.fixture
def screened(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    gym.register("Screened-v0", Screened)
    yield "Screened-v0"
    del gym.registry["Screened-v0"]


@pytest.mark.parametrize(
    ("env_args", "draw", "given"),
    [
        ({"own_mode": "no window"}, False, {}),
        ({"render_mode": "rgb_array"}, False, {"render_mode": "rgb_array"}),
        ({"render_mode": "ansi"}, True, {"render_mode": "ansi"}),
        ({}, True, {"render_mode": "rgb_array"}),
    ],
)
def test_an_environment_gets_the_render_mode_that_was_asked_for(screened, env_args, draw, given):
    slots = MAKE.make_slots(screened, env_args=env_args, draw=draw)
    slots.reset()
    slots.step(np.zeros(1, np.int64))
    assert slots._envs[0].unwrapped.given == given
    assert (slots.render() is not None) == (given.get("render_mode") == "rgb_array")


def test_a_reset_that_needs_a_screen_names_the_cure(screened, monkeypatch):
    slots = MAKE.make_slots(screened)
    with pytest.raises(ConfigError, match=r"cannot open a window.*set render_mode=rgb_array"):
        slots.reset()
    monkeypatch.setenv("DISPLAY", ":1")  # there it is another mistake
    with pytest.raises(RelaaxError, match=r"^slot 0, reset: RuntimeError: cannot open a window$"):
        slots.reset()
