"""The exploration values that `Model.policy` receives; does not need TensorFlow."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.algorithm.model import Model
from relaax_like.config.schedule import Schedule

# Entry of `explore`: a number in [0, 1) for each slot, the same throughout a run.
RANK = "rank"


class Exploration:
    """The schedules of a config, as `explore` of `Model.policy`.

    Attributes:
      names: of the entries of `explore`; empty if the model's policy does not take it.

    Args:
      model: whose policy explores.
      config: its fields that are schedules are used; None: no schedules.
    """

    def __init__(self, model: Model, config: Any = None):
        fields = {} if config is None else type(config).model_fields
        self._schedules: Mapping[str, Schedule] = {
            name: getattr(config, name)
            for name in fields
            if isinstance(getattr(config, name), Schedule)
        }
        self.names = (*self._schedules, RANK) if takes_explore(model) else ()

    def compute(
        self, global_t: int, size: int, ranks: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Computes the entries, name -> `[size] float32`; {} if the policy does not take them.

        Args:
          global_t: environment steps of the whole run.
          size: number of rows.
          ranks: `[size]`; None: zeros.
        """
        if not self.names:
            return {}
        explore = {
            name: np.full(size, schedule.compute(global_t), np.float32)
            for name, schedule in self._schedules.items()
        }
        explore[RANK] = np.zeros(size, np.float32) if ranks is None else ranks
        return explore


def takes_explore(model: Model) -> bool:
    """Returns whether a model's policy has a third parameter, `explore`."""
    parameters = inspect.signature(model.policy).parameters.values()
    return len([p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]) > 2
