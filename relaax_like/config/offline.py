"""Settings shared by algorithms that learn the values of actions from recordings."""

from typing import Self

from pydantic import Field, model_validator

from relaax_like.config import hyper
from relaax_like.config.continuous import ContinuousConfig
from relaax_like.config.plan import Offline


class OfflineConfig(ContinuousConfig):
    """Base of the `Config` of an algorithm with an actor and `Critics` that learns from recordings.

    Fields are read from the keys of the YAML's `algorithm` section. `max_global_step` counts the
    steps of all minibatches: a run makes `max_global_step / batch_size` updates, rounded up to a
    multiple of `updates_at_once`.
    """

    normalize_observations: bool = True
    """Normalise observations to mean 0 and standard deviation 1, from the statistics of all
    recorded steps."""
    batch_size: int = Field(default=256, ge=1)
    """Steps of one update, drawn from all recordings."""
    updates_at_once: int = Field(default=100, ge=1)
    """Number of updates that are made together, in one call; then their values are published. More
    is faster."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""

    @model_validator(mode="after")
    def _validate_network(self) -> Self:
        if self.network.is_recurrent:
            raise ValueError(
                f"network: {self._own_name} learns from single steps, which recurrent layers "
                "cannot use; remove lstm and gru (observation_history shows the network earlier "
                "observations)"
            )
        return self

    @property
    def plan(self) -> Offline:
        """Minibatches of steps of all recordings."""
        return Offline(
            minibatch_size=self.batch_size,
            updates_at_once=self.updates_at_once,
            discount=self.gamma,
            prenormalize=self.normalize_observations,
        )
