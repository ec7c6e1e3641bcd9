"""FixedValues: what stands in for a learner where agents only play with values at hand."""

from collections.abc import Sequence

import numpy as np

from relaax_like.computation.learning import Learned, Learner, OnLearned, Work


class FixedValues(Learner):
    """Hands out values that its owner sets; nothing is learned.

        values = FixedValues(arrays, version)
        processor = ComputationDataProcessor(actor, values, metrics)
        values.set(newer_arrays, newer_version)

    Used by one thread.
    """

    def __init__(self, values: Sequence[np.ndarray], version: int):
        self._newest = Learned((), version, 0, "", values)
        self._on_learned: OnLearned = lambda learned: None

    def set(self, values: Sequence[np.ndarray], version: int) -> None:
        """Has agents act with other values from now on; the arrays must not change later."""
        self._newest = Learned((), version, 0, "", values)
        self._on_learned(self._newest)

    def start(self, on_learned: OnLearned) -> None:
        """Hands out the values; see `Learner`."""
        self._on_learned = on_learned
        on_learned(self._newest)

    def submit(self, work: Work) -> None:
        """Answers at once."""
        newest = self._newest
        self._on_learned(Learned((work.number,), newest.version, 0, "", None))

    def stop(self) -> None:
        """Does nothing."""
