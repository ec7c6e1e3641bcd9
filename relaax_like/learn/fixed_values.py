"""FixedValues: what stands in for a learner where agents only play with values at hand."""

from collections.abc import Sequence

import numpy as np

from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate


class FixedValues(Learner):
    """Hands out values that its owner sets; nothing is learned.

        values = FixedValues(arrays, version)
        processor = ComputationDataProcessor(actor, values, metrics)
        values.set(newer_arrays, newer_version)

    Used by one thread.
    """

    def __init__(self, values: Sequence[np.ndarray], version: int):
        self._newest = LearnerUpdate((), version, 0, "", values)
        self._on_update: OnUpdate = lambda learned: None

    def set(self, values: Sequence[np.ndarray], version: int) -> None:
        """Has agents act with other values from now on; the arrays must not change later."""
        self._newest = LearnerUpdate((), version, 0, "", values)
        self._on_update(self._newest)

    def start(self, on_update: OnUpdate) -> None:
        """Hands out the values; see `Learner`."""
        self._on_update = on_update
        on_update(self._newest)

    def submit(self, work: LearnRequest) -> None:
        """Answers at once."""
        newest = self._newest
        self._on_update(LearnerUpdate((work.number,), newest.version, 0, "", None))

    def stop(self) -> None:
        """Does nothing."""
