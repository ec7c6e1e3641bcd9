"""Settings of bc."""

from pydantic import Field

from relaax_like.config import ActorCriticConfig, Offline, OptimizerConfig

ACTOR, CRITIC, SHARED = "actor", "critic", "default"


class Config(ActorCriticConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    batch_size: int = Field(default=64, ge=1)
    """Steps per update, at most the number of steps in the smallest file; with a recurrent network,
    columns of a file per update."""

    @property
    def plan(self) -> Offline:
        """Each file is read once per pass; its steps are shuffled one by one."""
        return Offline(
            minibatch_size=self.batch_size,
            minibatch_of="rollouts" if self.network.is_recurrent else "steps",
            update_norm=self.normalize_observations,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam, for the variable groups that actor-critic algorithms have."""
        groups = (SHARED,) if self.shared_network else (ACTOR, CRITIC)
        return {group: OptimizerConfig(learning_rate=self.learning_rate) for group in groups}
