"""Settings of bc."""

from pydantic import Field

from relaax_like.config.actor_critic import ActorCriticConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.update_plan import UpdatePlan

ACTOR, CRITIC, SHARED = "actor", "critic", "default"


class Config(ActorCriticConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    batch_size: int = Field(default=64, ge=1)
    """Steps per update, at most the number of steps in the smallest file; with a recurrent network,
    columns of a file per update."""

    @property
    def learns_offline(self) -> bool:
        """It learns from files, from nothing else."""
        return True

    @property
    def learns_online(self) -> bool:
        """To imitate itself would change nothing."""
        return False

    @property
    def rollout_steps(self) -> int:
        """Its agents only play, and collect nothing."""
        return 1

    @property
    def update_plan(self) -> UpdatePlan:
        """Each file is gone through once, whatever its size; steps are shuffled one by one."""
        return UpdatePlan(
            steps=self.rollout_steps,
            columns=1,
            epochs=1,
            minibatch=self.batch_size,
            axis="slots" if self.network.is_recurrent else "rows",
            update_norm=self.normalize_observations,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam, for the variable groups that actor-critic algorithms have."""
        groups = (SHARED,) if self.shared_network else (ACTOR, CRITIC)
        return {group: OptimizerConfig(learning_rate=self.learning_rate) for group in groups}
