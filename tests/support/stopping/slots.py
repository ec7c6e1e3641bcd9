"""Gymnasium environments with a Ctrl-C at an exact step: STOP_AT steps after they were made."""

import os
import signal
from pathlib import Path
from typing import Any

from relaax_like.config.algorithm_folder import load_folder_module

_GYM = Path(__file__).parents[3] / "environments" / "OpenAI_Gym"
STOP_AT = "RELAAX_TEST_STOP_AT"


class StoppingSlots:
    """Slots that interrupt their process during a step."""

    def __init__(self, slots: Any, stop_at: int):
        self._slots = slots
        self._left = stop_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slots, name)

    def step(self, actions: Any) -> Any:
        self._left -= 1
        if not self._left:
            signal.raise_signal(signal.SIGINT)
        return self._slots.step(actions)


def make_slots(environment: Any, seed: int) -> StoppingSlots:
    slots = load_folder_module(_GYM, "slots").make_slots(environment, seed)
    return StoppingSlots(slots, int(os.environ.get(STOP_AT, 0)))
