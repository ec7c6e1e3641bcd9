"""Videos of greedy episodes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import imageio.v3
import numpy as np
import pytest
from support.cluster import ROOT

from relaax_like.client.interactor import EnvironmentSlots
from relaax_like.config.algorithm_folder import load_folder_module
from relaax_like.config.models import EnvironmentConfig
from relaax_like.runs.folders.video import FilmedSlots, validate_video
from relaax_like.wire.errors import ConfigError


def make_slots(program: str = "OpenAI_Gym", **settings: Any) -> EnvironmentSlots:
    module = load_folder_module(ROOT / "environments" / program, "slots")
    options = {"draw": True} if program == "OpenAI_Gym" else {}
    config = EnvironmentConfig(program=program, **settings)
    slots: EnvironmentSlots = module.make_slots(config, 1, **options)
    return slots


def film(slots: EnvironmentSlots, path: Path, steps: int) -> int:
    with FilmedSlots(slots, path) as filmed:
        filmed.reset()
        for step in range(steps):
            filmed.step(np.full(filmed.slots, step % 2))
        return filmed.frames


@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_a_frame_per_step_at_the_environment_s_own_pace(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert film(make_slots(env="CartPole-v1"), path, 25) == 25
    frames = imageio.v3.imread(path)[..., :3]
    assert frames.shape[1:] == (400, 600, 3)
    # A black cart and a brown pole on white, and they move.
    assert frames.min() < 20
    assert frames.max() > 235
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 100
    # 50 frames a second. A .gif keeps equal ones as one that is shown for longer.
    if path.suffix == ".mp4":
        assert (len(frames), imageio.v3.immeta(path)["fps"]) == (25, 50)
    else:
        times = [imageio.v3.immeta(path, index=index)["duration"] for index in range(len(frames))]
        assert sum(times) == 25 * 20


class OddSlots:
    """Frames of odd sizes: black, then white."""

    slots = 1
    observation_space = action_space = None
    render_fps = 10.0

    def __init__(self, *frames: Any):
        self._frames = list(frames)

    def reset(self, mask: Any = None) -> None:
        pass

    def step(self, actions: Any) -> None:
        pass

    def render(self) -> Any:
        frame = self._frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return frame


def test_frames_of_odd_sizes_are_widened(tmp_path: Path) -> None:
    frames = [np.full((31, 65, 3), level, np.uint8) for level in (0, 255)]
    slots: Any = OddSlots(*frames)
    assert film(slots, tmp_path / "odd.mp4", 2) == 2
    back = imageio.v3.imread(tmp_path / "odd.mp4")
    assert back.shape == (2, 32, 66, 3)
    assert back[0].max() < 20
    assert back[1].min() > 235


def test_what_cannot_be_drawn_is_a_clear_error_and_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    cases: list[tuple[Any, str]] = [
        (make_slots("memory"), "got nothing"),
        (OddSlots(np.zeros((4, 4))), r"got an array \[4, 4\]"),
        (OddSlots([np.zeros((4, 5, 3))]), r"got an array \[1, 4, 5, 3\]"),
        (OddSlots(RuntimeError("no GPU")), "cannot be drawn: RuntimeError: no GPU"),
        (OddSlots(NotImplementedError()), "cannot be drawn: NotImplementedError"),
    ]
    for slots, want in cases:
        with pytest.raises(ConfigError, match=want):
            film(slots, path, 1)
        assert not path.exists()


FULL = """
import resource, sys
from pathlib import Path
import numpy as np
from relaax_like.runs.folders.video import FilmedSlots
from relaax_like.wire.errors import ConfigError

class Noise:
    slots, observation_space, action_space = 1, None, None
    random = np.random.default_rng(0)
    def render(self):
        return self.random.integers(0, 256, (64, 64, 3), np.uint8)
    def step(self, actions):
        return None

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # as on a full disk
try:
    with FilmedSlots(Noise(), Path(sys.argv[1])) as filmed:
        for _ in range(12):
            filmed.step(np.zeros(1))
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_a_full_disk_is_told_and_leaves_the_file_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("before")
    argv = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert f"--video {path}: cannot be written" in done.stdout, done.stderr
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert path.read_text() == "before"


@pytest.mark.parametrize("error", [ValueError("in the environment"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["out.mp4", "out.gif"])
def test_a_film_that_is_broken_off_leaves_the_file_before(
    tmp_path: Path, name: str, error: BaseException
) -> None:
    path = tmp_path / name
    path.write_text("before")
    frames = [np.full((32, 64, 3), level, np.uint8) for level in (0, 255)]
    slots: Any = OddSlots(*frames)

    def break_off() -> None:
        with FilmedSlots(slots, path) as filmed:
            filmed.step(np.zeros(1))
            raise error

    with pytest.raises(type(error)):
        break_off()
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert path.read_text() == "before"


def test_wrong_names_are_found_before_anything_is_played(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"out\.avi: expected a name that ends in \.mp4 or \.gif"):
        validate_video(tmp_path / "out.avi")
    with pytest.raises(ConfigError, match="there is no folder"):
        validate_video(tmp_path / "nowhere" / "out.mp4")
