"""A window that shows one environment on request; SIGUSR1 toggles it."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from relaax_like.extras import describe_missing


class Display:
    """Shows frames in a pygame window while the display is on, at the environment's own speed.

    `toggle` can be called from a signal handler: it only flips a flag, which the next `update` in
    the main thread applies. While the display is off, `update` only closes an open window.
    """

    def __init__(self, title: str, report: Callable[[str], None] | None = None) -> None:
        """Makes a display that is off.

        Args:
          title: title of the window.
          report: called with a line of text if a frame cannot be shown; default: print to stderr.
        """
        self.wanted = False
        self._title = title
        self._render: Callable[[], np.ndarray | None] = lambda: None
        self._frame_sec = 0.0
        self._report = report or (lambda line: print(line, file=sys.stderr, flush=True))
        self._pygame: Any = None
        self._window: Any = None
        self._next_frame_at = 0.0

    def attach(self, render: Callable[[], np.ndarray | None], fps: float) -> None:
        """Sets the environment to show.

        Args:
          render: draws a frame, `[height, width, 3]` uint8, or returns None if it cannot.
          fps: frames per second in the environment's own time.
        """
        self._render = render
        self._frame_sec = 1 / max(fps, 1e-3)

    def toggle(self, *unused: object) -> None:
        """Requests that the window be opened, or closed again. Suitable as a signal handler."""
        self.wanted = not self.wanted

    def update(self) -> None:
        """Opens, draws or closes the window, as requested.

        Waits until the next frame is due. After an error the display is off.
        """
        if not self.wanted:
            if self._window is not None:
                self._close_window()
            return
        try:
            self._draw()
        except Exception as error:
            # A driver or an environment's drawing can raise anything; training must continue.
            self.wanted = False
            self._close_window()
            self._report(
                f"cannot show {self._title} in a window: {error}; continuing without a window"
            )

    def close(self) -> None:
        """Closes the window. Idempotent."""
        self.wanted = False
        self._close_window()

    def _draw(self) -> None:
        if self._window is None:
            _prepare_screen()
        frame = self._render()
        if frame is None:
            raise RuntimeError(
                "the environment draws no frames; it needs render_mode rgb_array: start with "
                "--display if it declares that mode, else with --env-arg render_mode=rgb_array"
            )
        if frame.ndim != 3 or frame.shape[2] < 3:
            raise RuntimeError(
                f"a frame has shape {list(frame.shape)}, expected [height, width, 3]"
            )
        if self._window is None:
            self._open_window(frame.shape[1], frame.shape[0])
        pixels = np.ascontiguousarray(frame[..., :3].astype(np.uint8, copy=False))
        image = self._pygame.image.frombuffer(pixels, (frame.shape[1], frame.shape[0]), "RGB")
        self._window.blit(image, (0, 0))
        self._pygame.display.flip()
        if any(event.type == self._pygame.QUIT for event in self._pygame.event.get()):
            self.wanted = False  # the user closed it
        self._pace()

    def _pace(self) -> None:
        now = time.monotonic()
        if now < self._next_frame_at:
            time.sleep(self._next_frame_at - now)
        self._next_frame_at = max(now, self._next_frame_at) + self._frame_sec

    def _open_window(self, width: int, height: int) -> None:
        try:
            import pygame
        except ModuleNotFoundError:
            raise RuntimeError(str(describe_missing("pygame"))) from None
        self._pygame = pygame
        # Drawing without a window might have initialised pygame with another video driver.
        pygame.display.quit()
        pygame.display.init()
        # With vsync, a hidden window could delay training.
        self._window = pygame.display.set_mode((width, height), vsync=0)
        pygame.display.set_caption(self._title)

    def _close_window(self) -> None:
        self._window = None
        if self._pygame is not None:
            self._pygame.display.quit()


def _prepare_screen() -> None:
    """Chooses SDL's driver, before environments initialise pygame to draw their first frame.

    Raises an error if SDL would not find a screen, because it might open an invisible one instead.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # SDL would turn SIGINT and SIGTERM into events, which are never read.
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    if sys.platform in ("win32", "darwin") or os.environ.get("SDL_VIDEODRIVER"):
        return
    if os.environ.get("WAYLAND_DISPLAY"):
        return
    if not os.environ.get("DISPLAY"):
        raise RuntimeError("no display available (set DISPLAY or WAYLAND_DISPLAY)")
    os.environ["SDL_VIDEODRIVER"] = "x11"
