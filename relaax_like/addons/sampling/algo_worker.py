"""AlgoWorker: a copy of actor and critic, and its values."""

from collections.abc import Sequence

import numpy as np

from relaax_like.algorithm.acting import Arrays, make_actor
from relaax_like.algorithm.exploration import takes_explore
from relaax_like.algorithm.model import (
    Model,
    get_learning_specs,
    get_normalizers,
    get_variables,
)
from relaax_like.core.moments import Moments
from relaax_like.core.prediction import Prediction
from relaax_like.wire.errors import ConfigError

_PARTS = ("count", "mean", "m2")


class AlgoWorker:
    """Acts and estimates values with a copy of a model, in NumPy if its layers allow that.

    Convolutions, and operations of TensorFlow, are compiled; see `make_actor`.

        worker = AlgoWorker(model, seed=1)
        worker.sync_policy(values, version)
        prediction = worker.act(inputs, states)

    Attributes:
      model: as the argument.
      version: of the values; 0 before the first `sync_policy`.

    Args:
      model: has a method `value`, like `ActorCritic`, and is used only by this worker. Its current
        values are used until the first `sync_policy`.
      seed: of the drawn actions.

    Raises:
      ConfigError: the model has no method `value`, or its policy reads a schedule; or see
        `make_actor`.
      Exception: another error of its `policy`; see `make_actor`.
    """

    def __init__(self, model: Model, seed: int):
        try:
            actor = make_actor(model, seed, whole=True)  # `value` reads the critic
        except KeyError as error:
            if not takes_explore(model):
                raise
            raise ConfigError(
                f"AlgoWorker: {type(model).__name__}.policy reads {error}, which does not exist. "
                "If it is an entry of explore: there are no schedules here; use a policy without "
                "explore, or `relaax train --workers`"
            ) from error
        if not hasattr(model, "value"):
            raise ConfigError(
                f"AlgoWorker: {type(model).__name__} has no method value; define one (see "
                "ActorCritic), or use `relaax train --workers`, which does not require it"
            )
        self.model = model
        self._actor = actor
        variables = get_variables(model)
        self._places = {variable.name: place for place, variable in enumerate(variables)}
        self._values = [variable.value for variable in variables]
        self.version = 0

    def sync_policy(self, values: Sequence[np.ndarray], version: int) -> None:
        """Sets the values of actor and critic.

        Args:
          values: of all variables, in manifest order; the caller must not change them.
          version: of the values.
        """
        self._values = list(values)
        self.version = version
        self._actor.set_values(self._values, version)

    def act(self, inputs: Arrays, states: Arrays, do_eval: bool = False) -> Prediction:
        """Chooses actions for `[B, ...]` inputs and memory; the best ones if `do_eval`."""
        return self._actor.act(inputs, states, do_eval)

    def compute_values(self, inputs: Arrays, states: Arrays) -> np.ndarray:
        """Returns V, `[B] float32`, for `[B, ...]` inputs and the memory before them."""
        return self._actor.value(inputs, states)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the inputs that the copy normalises."""
        inputs = {name for name, _ in get_learning_specs(self.model)}
        return tuple(n.statistic for n in get_normalizers(self.model) if n.statistic in inputs)

    def get_statistic(self, name: str) -> Moments:
        """Returns a running statistic of the copy; `name` is one of `statistics`."""
        count, mean, m2 = (self._values[self._places[f"{name}.{part}"]] for part in _PARTS)
        return Moments(float(count), mean, m2)

    def add_to_statistics(self, inputs: Arrays) -> None:
        """Adds rows `[B, ...]` to the copy's running statistics, until the next `sync_policy`."""
        values = list(self._values)
        for name in self.statistics:
            moments = self.get_statistic(name).merge(Moments.of(inputs[name]))
            for part in _PARTS:
                values[self._places[f"{name}.{part}"]] = np.asarray(getattr(moments, part))
        self.sync_policy(values, self.version)
