"""The environments of the hierarchical algorithm, with a Ctrl-C at an exact step."""

import os
import signal
from typing import Any

import numpy as np
from support.hierarchy import CueSlots

from relaax_like.client.interactor import Transition

STOP_AT = "RELAAX_TEST_STOP_AT"


class StoppingCueSlots(CueSlots):
    """Interrupts its process during a step; see `support.serial.train`."""

    def __init__(self, slots: int, seed: int):
        super().__init__(slots, seed)
        self._steps_left = int(os.environ.get(STOP_AT, 0))

    def step(self, actions: np.ndarray) -> Transition:
        """Rewards the actions; see `CueSlots`."""
        self._steps_left -= 1
        if not self._steps_left:
            signal.raise_signal(signal.SIGINT)
        return super().step(actions)


def make_slots(environment: Any, seed: int) -> StoppingCueSlots:
    """Makes the environments of one client or worker."""
    return StoppingCueSlots(environment.slots, seed % 2**32)
