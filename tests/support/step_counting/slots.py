"""Environments that write one byte to a file for each step that one of them takes.

The file is that of the variable RELAAX_TEST_STEPS, and common to all processes. Episodes have up to
40 steps. With RELAAX_TEST_STATELESS set, a run cannot be resumed in the middle of them. With
RELAAX_TEST_STOP set to "PID CALLS", a process gets a Ctrl-C during that call of `step`; only one,
where several processes step.
"""

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

STEPS_FILE = "RELAAX_TEST_STEPS"
STATELESS = "RELAAX_TEST_STATELESS"
STOP = "RELAAX_TEST_STOP"


class StepCountingSlots:
    """Any number of them; see the module."""

    observation_space = Box(dtype="float32", shape=(4,))
    action_space = Discrete(n=2)

    def __init__(self, slots: int, seed: int, file: Path):
        self.slots = slots
        self._random = np.random.default_rng(seed)
        self._left = self._draw_lengths()
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        stop = os.environ.get(STOP, "")
        self._mark = file.with_name(f"stop {stop}")
        self._stop_pid, self._calls_left = map(int, stop.split()) if stop else (0, 0)
        if not os.environ.get(STATELESS):
            self.get_state = self._get_state
            self.set_state = self._set_state

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        mask = np.ones(self.slots, np.bool_) if mask is None else mask
        self._left = np.where(mask, self._draw_lengths(), self._left)
        return self._observe()

    def step(self, actions: Any) -> Transition:
        os.write(self._file, b"." * self.slots)
        self._calls_left -= 1
        if not self._calls_left:
            with contextlib.suppress(FileExistsError):
                self._mark.touch(exist_ok=False)
                os.kill(self._stop_pid, signal.SIGINT)
        self._left -= 1
        ended, final = self._left == 0, self._observe()
        truncated = ended & (np.arange(self.slots) % 2 == 0)
        return Transition(
            observations=self.reset(ended),
            rewards=np.asarray(actions, np.float64),
            terminated=ended & ~truncated,
            truncated=truncated,
            final_observations=final if ended.any() else None,
        )

    def close(self) -> None:
        os.close(self._file)

    def _observe(self) -> np.ndarray:
        return np.repeat(self._left[:, None], 4, axis=1).astype(np.float32)

    def _draw_lengths(self) -> np.ndarray:
        return self._random.integers(1, 41, self.slots)

    def _get_state(self) -> dict[str, Any]:
        return {"left": self._left.copy(), "random": dict(self._random.bit_generator.state)}

    def _set_state(self, state: Mapping[str, Any]) -> None:
        self._left = np.array(state["left"])
        self._random.bit_generator.state = state["random"]


def make_slots(environment: Any, seed: int) -> StepCountingSlots:
    return StepCountingSlots(environment.slots, seed, Path(os.environ[STEPS_FILE]))
