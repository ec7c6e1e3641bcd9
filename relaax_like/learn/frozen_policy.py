"""FrozenPolicy: replaces a learner for agents that only act with given values."""

from collections.abc import Sequence

import numpy as np

from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.core.roles import Learner, OnUpdate


class FrozenPolicy(Learner):
    """Provides values that its owner sets; learns nothing.

        values = FrozenPolicy(arrays, version)
        processor = ComputationDataProcessor(actor, values, metrics)
        values.set(newer_arrays, newer_version)

    Used by one thread.

    Args:
      values: of all variables, in manifest order.
      version: of the values.
      global_t: environment steps of the run, for schedules.
    """

    def __init__(self, values: Sequence[np.ndarray], version: int, global_t: int = 0):
        self._global_t = global_t
        self._finished = ""
        self._newest = LearnerUpdate((), version, global_t, "", values)
        self._on_update: OnUpdate = lambda learned: None

    @property
    def values(self) -> Sequence[np.ndarray]:
        """The newest values."""
        assert self._newest.values is not None
        return self._newest.values

    def set(self, values: Sequence[np.ndarray], version: int) -> None:
        """Makes agents act with other values from now on; the caller must not change the arrays."""
        self._newest = LearnerUpdate((), version, self._global_t, "", values)
        self._on_update(self._newest)

    def finish(self, why: str) -> None:
        """Reports with the answers to all further requests that the training has finished.

        So agents that submit requests stop.

        Args:
          why: what ended the training; not empty.
        """
        self._finished = why

    def start(self, on_update: OnUpdate) -> None:
        """Provides the values; see `Learner`."""
        self._on_update = on_update
        on_update(self._newest)

    def submit(self, request: LearnRequest) -> None:
        """Answers immediately."""
        version = self._newest.version
        update = LearnerUpdate((request.number,), version, self._global_t, self._finished, None)
        self._on_update(update)

    def stop(self) -> None:
        """Does nothing."""
