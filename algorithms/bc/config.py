"""Settings of bc."""

from typing import Literal

from pydantic import Field, model_validator

from relaax_like.config import ActorCriticConfig, Offline, OnPolicy, OptimizerConfig


class Config(ActorCriticConfig):
    """Settings of bc: the keys of the YAML's `algorithm` section."""

    batch_size: int = Field(default=64, ge=1)
    """Steps per update, at most the number of steps in the smallest file; with a recurrent network,
    slots of a file per update. Not used with `learn_from: overridden`."""

    learn_from: Literal["recordings", "overridden"] = "recordings"
    """`recordings`: the files of `learner.offline`. `overridden`: steps of connected clients in
    which something other than the policy decided, such as a human; see `executed` in the rlx
    protocol."""
    rollout_steps: int = Field(default=64, ge=1)
    """With `learn_from: overridden`: number of steps that an agent sends together."""
    num_steps: int = Field(default=256, ge=1)
    """With `learn_from: overridden`: environment steps of one iteration, a multiple of
    `rollout_steps`. Each epoch makes one update, from all overridden steps among them."""
    epochs: int = Field(default=4, ge=1)
    """With `learn_from: overridden`: updates of one iteration."""

    @model_validator(mode="after")
    def _validate_steps(self) -> "Config":
        if self.learn_from == "overridden" and self.num_steps % self.rollout_steps:
            raise ValueError(
                f"num_steps: {self.num_steps} is not a multiple of rollout_steps "
                f"{self.rollout_steps}; an iteration consists of complete rollouts: change one of "
                "them"
            )
        return self

    @property
    def plan(self) -> Offline | OnPolicy:
        """Recordings, each read once per pass; or all overridden steps of an iteration together."""
        if self.learn_from == "overridden":
            return OnPolicy(
                rollout_steps=self.rollout_steps,
                rollouts=self.num_steps // self.rollout_steps,
                epochs=self.epochs,
                update_norm=self.normalize_observations,
                overridden="only",
            )
        return Offline(
            batch_size=self.batch_size,
            minibatch_of="rollouts" if self.network.is_recurrent else "steps",
            update_norm=self.normalize_observations,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam, for the variable groups that actor-critic algorithms have."""
        return dict.fromkeys(self.network_groups, OptimizerConfig(learning_rate=self.learning_rate))
