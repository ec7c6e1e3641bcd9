"""Records slot 0 of environments, one frame per step of the agent, to an .mp4 or a .gif."""

import contextlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client.interactor import EnvironmentSlots, Transition
from relaax_like.client.values import Values
from relaax_like.extras import describe_missing
from relaax_like.wire.errors import ConfigError

_SUFFIXES = (".mp4", ".gif")
_DEFAULT_FPS = 30.0


class FilmedSlots:
    """Environment slots that are recorded while they are stepped; an `EnvironmentSlots`.

        with FilmedSlots(slots, path) as filmed:
            Interactor(filmed, agents, max_episodes=1).run()

    A frame shows the state in which an action was chosen, so an episode of T steps has T frames.
    The slots' own `render() -> [height, width, 3] uint8, or None` draws it; slots without it, or
    that return None, cannot be recorded. Their `render_fps`, or else 30, is the frames per second.

    Attributes:
      path: of the file.
      frames: number written so far.
      fps: frames per second.
    """

    def __init__(self, slots: EnvironmentSlots, path: Path):
        """Wraps the slots, which the caller still owns. The first frame opens the file."""
        self.slots = slots.slots
        self.observation_space = slots.observation_space
        self.action_space = slots.action_space
        self.path = path
        self._temporary = path.with_name(f".tmp-{path.name}")
        self.frames = 0
        self.fps = float(getattr(slots, "render_fps", _DEFAULT_FPS))
        self._slots = slots
        self._writer: Any = None

    def __getattr__(self, name: str) -> Any:
        """Returns what else the slots have, such as `partial_step`, which is not recorded."""
        if name == "_slots":  # not made yet
            raise AttributeError(name)
        return getattr(self._slots, name)

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Resets; see `EnvironmentSlots.reset`."""
        return self._slots.reset(mask)

    def step(self, actions: Any) -> Transition:
        """Steps all slots; see `EnvironmentSlots.step`.

        Raises:
          ConfigError: slot 0 cannot be drawn, or the file cannot be written.
        """
        self._add(self._draw())
        return self._slots.step(actions)

    def close(self) -> None:
        """Completes the file, which replaces an existing one. Idempotent.

        Raises:
          ConfigError: the file cannot be written; an existing file is unchanged.
        """
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
            _validate_whole(self._temporary, self.frames)
            os.replace(self._temporary, self.path.resolve())
        except OSError as error:
            raise ConfigError(self._describe_failure(error)) from None
        finally:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> "FilmedSlots":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()
            return
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()
            self._temporary.unlink(missing_ok=True)

    def _draw(self) -> np.ndarray:
        render = getattr(self._slots, "render", None)
        try:
            frame = None if render is None else render()
            frame = None if frame is None else np.asarray(frame)
        except Exception as error:  # whatever an environment's drawing raises
            raise ConfigError(
                f"--video: the environment cannot be drawn: {type(error).__name__}: {error}; omit "
                "--video, or correct the environment's render"
            ) from error
        if frame is None or frame.ndim != 3 or frame.shape[2] < 3:
            what = "nothing" if frame is None else f"an array {list(frame.shape)}"
            raise ConfigError(
                "--video: the environment cannot be drawn: expected an image [height, width, "
                f"3], got {what}; add rgb_array to the render_modes of a Gymnasium environment, "
                "add a method render to your own slots, or omit --video"
            )
        return frame[..., :3].astype(np.uint8, copy=False)

    def _add(self, frame: np.ndarray) -> None:
        # The usual colours of mp4 have half the resolution.
        odd = [(0, size % 2) for size in frame.shape[:2]]
        frame = np.pad(frame, [*odd, (0, 0)], mode="edge")
        try:
            if self._writer is None:
                self._writer = _open(self._temporary, self.fps)
            self._writer.append_data(frame)
        except OSError as error:
            raise ConfigError(self._describe_failure(error)) from None
        self.frames += 1

    def _describe_failure(self, error: OSError) -> str:
        return (
            f"--video {self.path}: cannot be written: {error}; free disk space, or choose another "
            "file"
        )


def draw_without_screen() -> None:
    """Makes pygame draw in memory, by environment variables; call it before environments are made.

    Variables that the user has set stay. MUJOCO_GL is left to the user: with Mesa's software
    renderer, MuJoCo crashes beside TensorFlow, because each loads its own LLVM.
    """
    for name, value in (
        ("SDL_VIDEODRIVER", "dummy"),
        ("SDL_AUDIODRIVER", "dummy"),
        ("PYGAME_HIDE_SUPPORT_PROMPT", "1"),  # it would be printed between our own lines
    ):
        os.environ.setdefault(name, value)


def validate_video(path: Path) -> None:
    """Checks the name of the video file and the libraries, before slow preparations.

    Raises:
      ConfigError: no such format, no such folder, no access to it, or a library is not installed.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"--video {path}: expected a name that ends in {' or '.join(_SUFFIXES)}")
    if not os.path.isdir(path.parent):  # Path's method raises an error without access
        raise ConfigError(
            f"--video {path}: there is no folder {path.parent}, or no access to it; create it, or "
            "choose another one"
        )
    for library in ("imageio", "imageio_ffmpeg"):
        if importlib.util.find_spec(library) is None:
            raise ConfigError(f"--video: {describe_missing(library)}")


def _open(path: Path, fps: float) -> Any:
    import imageio.v2

    # Otherwise ffmpeg is forked, not spawned: such a child can hang in gRPC before it starts.
    os.environ.setdefault("IMAGEIO_FFMPEG_NO_PREVENT_SIGINT", "1")
    if path.suffix.lower() == ".gif":
        return imageio.v2.get_writer(path, duration=1000 / fps, loop=0)
    # Frames keep their size: only very old players need multiples of 16.
    return imageio.v2.get_writer(path, fps=fps, macro_block_size=1)


def _validate_whole(path: Path, frames: int) -> None:
    """Counts the frames of a file written by ffmpeg, which does not report a full disk.

    A .gif, which another library writes, is not checked.

    Raises:
      OSError: some or all are missing.
    """
    if path.suffix.lower() == ".gif":
        return
    import imageio_ffmpeg

    try:
        found = imageio_ffmpeg.count_frames_and_secs(str(path))[0]
    except RuntimeError:  # it is not a video
        found = 0
    if found != frames:
        raise OSError(f"ffmpeg wrote {found} of {frames} frame(s); the disk is probably full")
