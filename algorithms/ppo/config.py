"""Settings of ppo."""

from typing import Literal, Self

from pydantic import Field, model_validator

from relaax_like.config.actor_critic import ActorCriticConfig
from relaax_like.config.aliases import (
    ADAM_EPSILON,
    CRITIC_LEARNING_RATE,
    ENTROPY_COEFFICIENT,
    GAMMA,
    LEARNING_RATE,
    MAX_GRADIENT_NORM,
    VALUE_COEFFICIENT,
)
from relaax_like.config.mirror import Mirror, parse_mirror
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.update_plan import UpdatePlan
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete

ACTOR, CRITIC, SHARED = "actor", "critic", "default"


class Config(ActorCriticConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    num_steps: int = Field(default=2048, ge=1)
    """Environment steps of all slots together in one iteration."""
    rollout_steps: int = Field(default=128, ge=1)
    """Steps of every slot in one rollout; num_steps is a multiple of it."""
    epochs: int = Field(default=10, ge=1)
    """Times that an iteration goes through its steps."""
    batch_size: int = Field(default=64, ge=1)
    """Steps in one update; with a recurrent network, rollouts in one update."""
    gamma: float = Field(default=0.99, ge=0, le=1, validation_alias=GAMMA)
    """Discount per step."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of the generalised advantages; 1: all of the rollout's rewards; 0: one step and the
    value."""
    learning_rate: float = Field(default=3e-4, ge=0, validation_alias=LEARNING_RATE)
    """Learning rate of the actor, and of both where they share layers."""
    critic_learning_rate: float = Field(default=3e-4, ge=0, validation_alias=CRITIC_LEARNING_RATE)
    """Learning rate of the critic."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of the learning rates; linear: they fall to 0 at max_global_step."""
    adam_epsilon: float = Field(default=1e-5, gt=0, validation_alias=ADAM_EPSILON)
    """Epsilon of Adam."""
    kl: float | None = Field(default=None, gt=0)
    """Divergence from the policy that the iteration began with above which the rest of its updates
    is skipped; null: never."""
    clip: float = Field(default=0.2, gt=0)
    """Ratios of probabilities count up to 1 +- clip."""
    clip_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of clip; linear: it falls to 0 at max_global_step."""
    clip_value: float | None = Field(default=None, gt=0)
    """Values count up to so far from those that the iteration began with; null: all the way."""
    max_gradient_norm: float | None = Field(default=0.5, gt=0, validation_alias=MAX_GRADIENT_NORM)
    """Norm to which the gradients of the actor and of the critic are scaled down, each by itself
    (together where they share layers); null: never."""
    entropy_coefficient: float = Field(default=0.0, ge=0, validation_alias=ENTROPY_COEFFICIENT)
    """Weight of the policy's entropy in the actor's cost."""
    value_coefficient: float = Field(default=0.5, ge=0, validation_alias=VALUE_COEFFICIENT)
    """Weight of the squared error in the critic's cost."""
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Shift and scale advantages to mean 0 and deviation 1: within each update, over the whole
    iteration, or not at all."""
    prenorm: bool = False
    """Normalise observations by mean and deviation of those of the run's first steps. Nothing is
    learned from these, and they count for max_global_step. A run that starts from a policy with
    statistics of its own (learner.previous) keeps those instead."""
    prenormalize_steps: int = Field(default=100, ge=1)
    """Steps that prenorm measures, rounded up to whole iterations."""
    update_norm: bool = False
    """Normalise observations, and let what each iteration saw move mean and deviation after it."""
    normalize_rewards: bool = False
    """Divide rewards by the running deviation of the discounted return, and clip them to +-10."""
    mirror: float = Field(default=0.0, ge=0)
    """Weight of the mirror loss: what the policy does in a mirrored state is to be the mirror image
    of what it does in the state itself. 0: none."""
    mirror_observation: tuple[float, ...] | None = None
    """Mirror image of an observation: at place i component |e|, negated if e < 0; index 0 is
    written 0.1 or -0.1. One for each of the state_size numbers."""
    mirror_action: tuple[float, ...] | None = None
    """Mirror image of an action, written the same way, one for each component; discrete: of the
    probabilities of all choices."""
    normalize_observations: bool = Field(default=False, exclude=True)
    """Not for ppo, which has prenorm and update_norm instead."""

    @model_validator(mode="after")
    def _validate_sizes(self) -> Self:
        if "normalize_observations" in self.model_fields_set:
            raise ValueError(
                "normalize_observations: ppo has prenorm (measured before training) and "
                "update_norm (and during it) instead"
            )
        if self.num_steps % self.rollout_steps:
            raise ValueError(
                f"num_steps: {self.num_steps} is no multiple of rollout_steps "
                f"{self.rollout_steps}; an iteration is made of whole rollouts"
            )
        pieces, what = self.num_steps, "num_steps"
        if self.network.is_recurrent:
            pieces, what = self.update_plan.columns, "num_steps / rollout_steps rollouts"
        if self.batch_size > pieces:
            raise ValueError(
                f"batch_size: {self.batch_size} is more than an iteration has, {what} = {pieces}"
            )
        return self

    @model_validator(mode="after")
    def _validate_mirror(self) -> Self:
        given = [self.mirror_observation is not None, self.mirror_action is not None]
        if any(given) and not all(given):
            raise ValueError("mirror_observation and mirror_action: set both, or none")
        if self.mirror and not all(given):
            raise ValueError(
                f"mirror: {self.mirror:g} needs mirror_observation and mirror_action, which say "
                "how the mirror image looks"
            )
        if self.image is not None and any(given):
            raise ValueError("mirror_observation: images cannot be mirrored, only vectors can")
        if self.observations is not None and any(given):
            raise ValueError(
                "mirror_observation: says nothing about observations of several leaves; set "
                "state_size instead of observations, or leave out the mirror"
            )
        _, action = self.observation_mirror, self.action_mirror
        if action is not None:
            self._validate_action_mirror(action)
        return self

    def _validate_action_mirror(self, mirror: Mirror) -> None:
        space = self.action_space
        if isinstance(space, Box):
            if space.low is None or space.high is None:
                return
            for place, (index, sign) in enumerate(zip(mirror.indices, mirror.signs, strict=True)):
                ends = sorted((sign * space.low[index], sign * space.high[index]))
                if ends != [space.low[place], space.high[place]]:
                    raise ValueError(
                        f"mirror_action: component {index} would leave the bounds of component "
                        f"{place}, {space.low[place]:g} to {space.high[place]:g}, when it is "
                        "mirrored to there"
                    )
            return
        if -1 in mirror.signs:
            raise ValueError("mirror_action: probabilities of choices cannot be negated")
        if isinstance(space, MultiDiscrete):
            owners = [choice for choice, size in enumerate(space.n) for _ in range(size)]
            pairs = {(owners[place], owners[index]) for place, index in enumerate(mirror.indices)}
            if len(pairs) > len(space.n):
                raise ValueError(
                    "mirror_action: takes a choice apart; expected all actions of one in one other"
                )

    @property
    def observation_mirror(self) -> Mirror | None:
        """Of what the network sees."""
        if self.mirror_observation is None:
            return None
        mirror = parse_mirror(
            "mirror_observation", self.mirror_observation, self.state_size, "of state_size"
        )
        return mirror.repeat(self.observation_history)

    @property
    def action_mirror(self) -> Mirror | None:
        """Of an action's components, or of the probabilities of all choices."""
        if self.mirror_action is None:
            return None
        space = self.action_space
        if isinstance(space, Discrete):
            return parse_mirror("mirror_action", self.mirror_action, space.n, "action")
        if isinstance(space, MultiDiscrete):
            size = sum(space.n)
            return parse_mirror("mirror_action", self.mirror_action, size, "action of each choice")
        size = space.shape[0]
        return parse_mirror("mirror_action", self.mirror_action, size, "component of an action")

    @property
    def has_normalizer(self) -> bool:
        """Whether observations are normalised at all."""
        return self.prenorm or self.update_norm

    @property
    def update_plan(self) -> UpdatePlan:
        """Steps are shuffled one by one; with a recurrent network, rollouts are."""
        return UpdatePlan(
            steps=self.rollout_steps,
            columns=self.num_steps // self.rollout_steps,
            epochs=self.epochs,
            minibatch=self.batch_size,
            axis="slots" if self.network.is_recurrent else "rows",
            prenormalize_steps=self.prenormalize_steps if self.prenorm else 0,
            update_norm=self.update_norm,
            reward_discount=self.gamma if self.normalize_rewards else None,
            discount=self.gamma,
            gae_lambda=self.gae_lambda,
        )

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for actor and critic, or for all variables where they share layers."""
        if self.shared_network:
            return {SHARED: self._make_optimizer(self.learning_rate)}
        return {
            ACTOR: self._make_optimizer(self.learning_rate),
            CRITIC: self._make_optimizer(self.critic_learning_rate),
        }

    def _make_optimizer(self, learning_rate: float) -> OptimizerConfig:
        if self.lr_schedule == "constant":
            return OptimizerConfig(learning_rate=learning_rate, epsilon=self.adam_epsilon)
        return OptimizerConfig(
            learning_rate=learning_rate,
            epsilon=self.adam_epsilon,
            schedule="linear",
            learning_rate_end=0.0,
            schedule_env_steps=self.max_global_step,
        )
