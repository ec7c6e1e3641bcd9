"""Settings of ppo."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from relaax_like.config import ActorCriticConfig, OnPolicy, Tunable, hyper
from relaax_like.config.mirror import Mirror, describe_mirrors, parse_mirror
from relaax_like.config.optimizer import OptimizerConfig, make_adam
from relaax_like.config.schedule import Linear, Schedule
from relaax_like.wire import Box, Spaces

_MIRROR_KEYS = ("mirror", "mirror_observation", "mirror_action")


class Config(ActorCriticConfig):
    """Settings of ppo: the keys of the YAML's `algorithm` section."""

    normalizing_keys: ClassVar[str] = "prenorm and update_norm"

    num_steps: int = Field(default=2048, ge=1)
    """Environment steps of all slots together per iteration."""
    rollout_steps: int = Field(default=128, ge=1)
    """Steps of every slot in one rollout; num_steps must be a multiple of it."""
    epochs: int = Field(default=10, ge=1)
    """Passes over the data of each iteration."""
    batch_size: int = Field(default=64, ge=1)
    """Steps per update; with a recurrent network, rollouts per update."""
    gamma: hyper.Gamma = 0.99
    """Discount factor per step."""
    gae_lambda: hyper.GaeLambda = 0.95
    """Lambda of generalised advantage estimation; 1: all rewards of the rollout; 0: one reward plus
    the next value."""
    learning_rate: hyper.LearningRate = 3e-4
    """Learning rate of the actor; with shared_network, also of the critic."""
    critic_learning_rate: hyper.CriticLearningRate = 3e-4
    """Learning rate of the critic."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of the learning rates; linear: down to 0 at max_global_step."""
    adam_epsilon: hyper.AdamEpsilon = 1e-5
    """Epsilon of Adam."""
    kl: Tunable | None = Field(default=None, gt=0)
    """Maximum KL divergence from the policy at the start of the iteration; above it, the
    iteration's remaining updates are skipped; null: no limit."""
    clip: Tunable = Field(default=0.2, gt=0)
    """Probability ratios are clipped to the range 1 - clip to 1 + clip."""
    clip_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of clip; linear: down to 0 at max_global_step."""
    clip_value: Tunable | None = Field(default=None, gt=0)
    """Values are clipped to this distance from those at the start of the iteration; null: no
    clipping."""
    max_gradient_norm: hyper.MaxGradientNorm = 0.5
    """Maximum gradient norm, for actor and critic separately, or for both together with
    shared_network; larger gradients are scaled down; null: no limit."""
    entropy_coefficient: hyper.EntropyCoefficient = 0.0
    """Weight of the policy's entropy in the actor's loss."""
    entropy_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of entropy_coefficient; linear: down to 0 at max_global_step."""
    value_coefficient: hyper.ValueCoefficient = 0.5
    """Weight of the squared error in the critic's loss."""
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Normalise advantages to mean 0 and standard deviation 1: within each update, over the whole
    iteration, or not at all."""
    prenorm: bool = False
    """Normalise observations by the mean and standard deviation measured in the first steps of the
    run. Nothing is learned from those steps, but they count towards max_global_step. A run that
    starts from a policy with its own statistics (learner.previous) keeps those instead."""
    prenormalize_steps: int = Field(default=100, ge=1)
    """Number of steps that prenorm measures, rounded up to complete iterations."""
    update_norm: bool = False
    """Normalise observations, and update mean and standard deviation after each iteration."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return, and clip them to
    +-10."""
    mirror: float = Field(default=0.0, ge=0)
    """Weight of the mirror loss, which teaches the policy to mirror its action in a mirrored state;
    0: off."""
    mirror_observation: tuple[float, ...] | None = None
    """Mirror image of an observation: the entry e at position i says that position i takes
    component |e|, negated if e < 0; index 0 is written as 0.1 or -0.1. One entry for each of the
    state_size values. By default, with mirror, it comes from the environment, as mirror_action
    does."""
    mirror_action: tuple[float, ...] | None = None
    """Mirror image of an action in the same notation, one entry per component; for discrete
    actions, of the probabilities of all choices."""
    normalize_observations: bool = Field(default=False, exclude=True)
    """Not supported by ppo, which has prenorm and update_norm instead."""

    @model_validator(mode="after")
    def _validate_sizes(self) -> Self:
        if "normalize_observations" in self.model_fields_set:
            raise ValueError(
                "normalize_observations is not supported by ppo; remove it, and to normalise "
                "observations set prenorm (measured before training) or update_norm (updated "
                "during training)"
            )
        if self.num_steps % self.rollout_steps:
            raise ValueError(
                f"num_steps: {self.num_steps} is not a multiple of rollout_steps "
                f"{self.rollout_steps}; an iteration consists of complete rollouts: change one of "
                "them"
            )
        pieces, what = self.num_steps, "num_steps"
        if self.network.is_recurrent:
            pieces = self.num_steps // self.rollout_steps
            what = "num_steps / rollout_steps rollouts"
        if self.batch_size > pieces:
            raise ValueError(
                f"batch_size: {self.batch_size} is more than one iteration provides ({what} = "
                f"{pieces}); lower it, or raise num_steps"
            )
        return self

    @model_validator(mode="after")
    def _validate_rewards(self) -> Self:
        if self.rewards is not None and self.normalize_rewards:
            raise ValueError(
                "normalize_rewards: true, but rewards is set; set normalize_rewards to false, and "
                "scale the weights of rewards instead"
            )
        return self

    @model_validator(mode="after")
    def _validate_mirror(self) -> Self:
        if (self.mirror_observation is None) != (self.mirror_action is None):
            there, missing = "mirror_observation", "mirror_action"
            if self.mirror_observation is None:
                there, missing = missing, there
            raise ValueError(f"{there} is set without {missing}; set both or neither")
        given = [key for key in _MIRROR_KEYS if getattr(self, key) not in (None, 0)]
        if not given:
            return self
        remove = f"remove {', '.join(given)}"
        if self.image is not None:
            raise ValueError(
                f"{given[0]}: images cannot be mirrored, only vectors; {remove}, or, if the "
                "environment sends a vector, set state_size instead of image, and dense layers"
            )
        if self.actions is not None:
            raise ValueError(
                f"{given[0]}: the leaves of actions cannot be mirrored, only one discrete or "
                f"continuous action; {remove}, or, if the environment has one such action, set "
                "num_actions or action_size instead of actions"
            )
        if self.observations is not None:
            raise ValueError(
                f"{given[0]}: the leaves of observations cannot be mirrored, only one vector; "
                f"{remove}, or, if the environment sends one vector, set state_size instead of "
                "observations"
            )
        if self.num_states is not None:
            raise ValueError(
                f"{given[0]}: integers cannot be mirrored, only vectors; {remove}, or, if the "
                "environment sends a vector, set state_size instead of num_states"
            )
        if self.masks:
            raise ValueError(
                f"{given[0]}: masks of legal actions cannot be mirrored; {remove}, or set "
                "environment.masks to off"
            )
        if self.lacks_spaces:
            return self
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
                        f"mirror_action: the mirrored bounds of component {index} are {ends[0]:g} "
                        f"to {ends[1]:g}, expected those of component {place}, "
                        f"{space.low[place]:g} to {space.high[place]:g}; correct mirror_action or "
                        "the bounds"
                    )
            return
        if -1 in mirror.signs:
            place = mirror.signs.index(-1)
            index = mirror.indices[place]
            raise ValueError(
                f"mirror_action: -{index or 0.1:g} at position {place}, but probabilities of "
                "choices cannot be negated; remove all minus signs, here or in the environment's "
                "mirror"
            )
        owners = [choice for choice, size in enumerate(space.sizes) for _ in range(size)]
        targets: dict[int, set[int]] = {}
        for place, index in enumerate(mirror.indices):
            targets.setdefault(owners[place], set()).add(owners[index])
        for choice, found in sorted(targets.items()):
            if len(found) > 1:
                raise ValueError(
                    f"mirror_action: the positions of choice {choice} have indices of the choices "
                    f"{', '.join(map(str, sorted(found)))}, expected indices of a single choice; "
                    "correct mirror_action"
                )

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file lacks observations, actions, or mirror images that it needs."""
        return super().lacks_spaces or self._lacks_mirrors

    @property
    def _lacks_mirrors(self) -> bool:
        return self.mirror > 0 and self.mirror_observation is None and self.mirror_action is None

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns observations, actions and mirror images, as far as the file does not set them.

        Raises:
          InvalidInputError: a leaf cannot be used; the actions are bounded, but the environment has
            no finite bounds; or a mirror image is needed, and is not defined, or there are several
            leaves.
        """
        keys = super().describe_spaces(observation_spaces, action_spaces)
        if not self._lacks_mirrors:
            return keys
        return keys | describe_mirrors(observation_spaces, action_spaces)

    @property
    def observation_mirror(self) -> Mirror | None:
        """Mirror of the network's input; None without mirror_observation."""
        if self.mirror_observation is None:
            return None
        assert self.state_size is not None, "mirrors are for vectors"
        mirror = parse_mirror(
            "mirror_observation",
            self.mirror_observation,
            self.state_size,
            "of the state_size values",
        )
        return mirror.repeat(self.observation_history)

    @property
    def action_mirror(self) -> Mirror | None:
        """Mirror of an action's components, or of the probabilities of all choices; None without
        mirror_action."""
        if self.mirror_action is None:
            return None
        space = self.action_space
        what = "action" if len(space.sizes) == 1 else "action of each choice"
        if isinstance(space, Box):
            what = "component of an action"
        size = sum(space.sizes) or space.shape[0]
        return parse_mirror("mirror_action", self.mirror_action, size, what)

    @property
    def has_normalizer(self) -> bool:
        """Whether observations are normalised at all."""
        return self.prenorm or self.update_norm

    @property
    def plan(self) -> OnPolicy:
        """Single steps are shuffled; with a recurrent network, rollouts are."""
        return OnPolicy(
            rollout_steps=self.rollout_steps,
            rollouts=self.num_steps // self.rollout_steps,
            epochs=self.epochs,
            batch_size=self.batch_size,
            minibatch_of="rollouts" if self.network.is_recurrent else "steps",
            prenormalize_steps=self.prenormalize_steps if self.prenorm else 0,
            update_norm=self.update_norm,
            reward_discount=self.gamma if self.normalize_rewards else None,
            discount=self.gamma,
        )

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Those of clip and entropy_coefficient; constant ones, too."""
        found = super().schedules
        for key, kind in (
            ("clip", self.clip_schedule),
            ("entropy_coefficient", self.entropy_schedule),
        ):
            value = getattr(self, key)
            end = value if kind == "constant" else 0.0
            found[key] = Linear(value, end, steps=self.max_global_step)
        return found

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """Adam for actor and critic, or for all variables if they share layers."""
        rates = (self.learning_rate, self.critic_learning_rate)
        return dict(zip(self.network_groups, map(self._make_optimizer, rates), strict=False))

    def _make_optimizer(self, learning_rate: float) -> OptimizerConfig:
        end = 0.0 if self.lr_schedule == "linear" else None
        return make_adam(learning_rate, self.adam_epsilon, end, self.max_global_step)
