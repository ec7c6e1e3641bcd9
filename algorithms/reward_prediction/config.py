"""Settings of reward_prediction."""

from pydantic import Field, field_validator

from relaax_like.config import ActorCriticConfig, OnPolicy, Tunable, hyper
from relaax_like.config.optimizer import OptimizerConfig, make_adam
from relaax_like.config.plan import Replay

ACTOR_CRITIC, PREDICTION = "actor_critic", "prediction"
# Variable groups: what both train, and what only one of them trains.
TRUNK, HEADS, REWARD = "trunk", "heads", "reward"


class Config(ActorCriticConfig):
    """Settings of reward_prediction: the keys of the YAML's `algorithm` section."""

    shared_network: bool = True
    """Must be true: the reward is predicted from what policy and value function share."""
    rollout_steps: int = Field(default=16, ge=1)
    """Steps of every slot in one rollout."""
    rollouts: int = Field(default=8, ge=1)
    """Rollouts, each of one slot, in one gradient of the actor-critic."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    gae_lambda: hyper.GaeLambda = 0.95
    """Lambda of generalised advantage estimation; 1: all rewards of the rollout; 0: one reward plus
    the next value."""
    entropy_coefficient: hyper.EntropyCoefficient = 0.01
    """Weight of the policy's entropy in the loss."""
    value_coefficient: hyper.ValueCoefficient = 0.5
    """Weight of the value function's squared error in the loss."""
    max_gradient_norm: hyper.MaxGradientNorm = 0.5
    """Maximum norm of each gradient; larger ones are scaled down; null: no limit."""
    learning_rate: hyper.LearningRate = 7e-4
    """Learning rate of Adam."""
    adam_epsilon: hyper.AdamEpsilon = 1e-5
    """Epsilon of Adam."""
    predict_rewards: bool = True
    """Learn to predict rewards, too; false: only the actor-critic, to compare with."""
    prediction_coefficient: Tunable = Field(default=1.0, gt=0)
    """Weight of the prediction's cross-entropy in the loss."""
    frames: int = Field(default=3, ge=1)
    """Observations from which the reward after the last of them is predicted."""
    capacity: int = Field(default=20_000, ge=2)
    """Steps in the table from which predictions are learned."""
    batch_size: int = Field(default=32, ge=2, multiple_of=2)
    """Predictions in one gradient; half of them of a reward that is not 0."""
    predictions_per_update: float = Field(default=1.0, gt=0)
    """Gradients of the predictions for each one of the actor-critic."""

    @field_validator("shared_network")
    @classmethod
    def _validate_shared(cls, value: bool) -> bool:
        if not value:
            raise ValueError("false, but the predictions need the shared layers; set it to true")
        return value

    @property
    def plan(self) -> dict[str, OnPolicy | Replay]:
        """Rollouts of the newest policy, and a table of past steps, half of them with a reward."""
        plans: dict[str, OnPolicy | Replay] = {
            ACTOR_CRITIC: OnPolicy(
                rollout_steps=self.rollout_steps,
                rollouts=self.rollouts,
                update_norm=self.normalize_observations,
                discount=self.gamma,
            )
        }
        if self.predict_rewards:
            plans[PREDICTION] = Replay(
                capacity=self.capacity,
                batch_size=self.batch_size,
                updates_per_step=self.predictions_per_update / (self.rollout_steps * self.rollouts),
                rollout_steps=self.rollout_steps,
                sequence_steps=self.frames,
                burn_in_steps=self.frames - 1,  # a sequence for each step, which ends there
                discount=self.gamma,
                balance_rewards=True,
            )
        return plans

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for all variables."""
        return {"default": make_adam(self.learning_rate, self.adam_epsilon)}
