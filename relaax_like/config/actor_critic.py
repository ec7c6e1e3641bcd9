"""Settings of algorithms whose model is an `ActorCritic`: spaces and networks."""

from typing import Any, Self

from pydantic import Field, model_validator

from relaax_like.config.actions import LEARNED, ActionConfig, Bound, Choices, Std
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.found_spaces import describe_actions
from relaax_like.config.network import NetworkConfig
from relaax_like.config.spaces import (
    validate_action_leaves,
    validate_bounds,
    validate_continuous,
    validate_discrete,
    validate_multi_discrete,
)
from relaax_like.wire.spaces import ACTION, Box, Discrete, MultiDiscrete, Space, Spaces

# Name of an array that agents store together with the actions; see `core.prediction.LOG_PROB`.
_TAKEN_NAME = "log_prob"


class ActorCriticConfig(EncoderConfig):
    """Base of the `Config` of an algorithm whose model is an `ActorCritic`.

    Fields are read from the keys of the YAML's `algorithm` section.
    """

    num_actions: Choices = None
    """Number of discrete actions; a list for several choices at once, with the number of actions of
    each (MultiDiscrete). Set at most one of num_actions, action_size and actions; by default it
    comes from the environment."""
    action_size: int | None = Field(default=None, ge=1)
    """Number of components of a continuous action."""
    actions: dict[str, ActionConfig] | None = Field(default=None, min_length=1)
    """For actions with several leaves, such as a Dict space: maps each leaf to its kind and size
    (config/actions.py). It must name every leaf of the environment."""
    rewards: dict[str, float] | None = Field(default=None, min_length=1)
    """For environments with several rewards: maps each, in the order in which the environment sends
    them, to its weight. Learning uses the weighted sum; null: there is one reward."""
    network: NetworkConfig = NetworkConfig()
    """Layers of the policy, and of the value function."""
    shared_network: bool = False
    """Share all layers except the last between the policy and the value function."""
    std: Std = LEARNED
    """Continuous actions: standard deviation, the same in all states. learned: one per component,
    starting at exp(log_std_init); a number, or one per component: fixed. With bounded, it is the
    standard deviation before tanh."""
    log_std_init: float = 0.0
    """Continuous actions: initial logarithm of a learned standard deviation."""
    bounded: bool = False
    """Continuous actions: squash them into action_low .. action_high with tanh. Otherwise actions
    are unbounded, and are clipped before they reach the environment."""
    action_low: Bound | None = None
    """With bounded: lowest action of the environment, as one number or one per component."""
    action_high: Bound | None = None
    """With bounded: highest action of the environment, as one number or one per component."""

    @model_validator(mode="after")
    def _validate_actions(self) -> Self:
        kinds = ("num_actions", "action_size", "actions")
        given = [key for key in kinds if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are set; set only one of num_actions (discrete), "
                "action_size (continuous) and actions (several leaves), or none of them to use the "
                "environment's actions"
            )
        if self._lacks_actions:
            self._validate_bound_keys()
            return self
        if self.actions is None:
            self._get_only_action().validate_keys("action_")
            return self
        fields = ActorCriticConfig.model_fields
        keys = ("std", "log_std_init", "bounded", "action_low", "action_high")
        given = [key for key in keys if getattr(self, key) != fields[key].default]
        if given:
            own = " and ".join(key.removeprefix("action_") for key in given)
            is_not, them = ("is not", "it") if len(given) == 1 else ("are not", "them")
            raise ValueError(
                f"{' and '.join(given)} {is_not} for leaves in actions (of the file, or of an "
                "environment with several leaves, switches, or a leaf with a name other than "
                f"{ACTION!r}); remove {them}, and, if a leaf needs {them}, list the leaves in "
                f"actions, each with its own {own}"
            )
        if _TAKEN_NAME in self.actions:
            raise ValueError(
                f"actions: a leaf cannot be named {_TAKEN_NAME!r}, because the log-probability of "
                "the actions has the same name; rename the leaf in the environment"
            )
        return self

    def _validate_bound_keys(self) -> None:
        """Refuses one bound alone, which the environment's bounds would replace."""
        given = [key for key in ("action_low", "action_high") if getattr(self, key) is not None]
        if len(given) == 1:
            other = "action_high" if given == ["action_low"] else "action_low"
            if not self.bounded:
                raise ValueError(
                    f"{given[0]} has no effect without bounded: true, which is only for continuous "
                    f"actions; remove {given[0]}, or set bounded: true and {other}"
                )
            raise ValueError(
                f"{given[0]} is set without {other}; set both, or remove {given[0]} to use the "
                "environment's bounds"
            )

    def _get_only_action(self) -> ActionConfig:
        return ActionConfig.model_construct(
            num=self.num_actions,
            size=self.action_size,
            std=self.std,
            log_std_init=self.log_std_init,
            bounded=self.bounded,
            low=self.action_low,
            high=self.action_high,
        )

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file lacks observations, actions, or both."""
        return super().lacks_spaces or self._lacks_actions

    @property
    def _lacks_actions(self) -> bool:
        return self.num_actions is None and self.action_size is None and self.actions is None

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of observations and actions that the file does not set.

        Raises:
          InvalidInputError: a leaf cannot be used, and the error names it; or the actions are
            bounded, but neither the file nor the environment has finite bounds.
        """
        keys = super().describe_spaces(observation_spaces, action_spaces)
        if not self._lacks_actions:
            return keys
        return keys | describe_actions(action_spaces, self.bounded and self.action_low is None)

    @property
    def action_leaves(self) -> dict[str, ActionConfig]:
        """The settings of each leaf of the action space, sorted by name; {} if not known yet."""
        if self._lacks_actions:
            return {}
        if self.actions is None:
            return {ACTION: self._get_only_action()}
        return dict(sorted(self.actions.items()))

    @property
    def action_spaces(self) -> Spaces:
        """The space of each leaf of an action, sorted by name; {} if not known yet."""
        return {leaf: own.space for leaf, own in self.action_leaves.items()}

    @property
    def action_space(self) -> Space:
        """The space of the only action; for configs with num_actions or action_size."""
        return self._get_only_action().space

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose spaces do not fit this network.

        What the settings do not define yet is not compared.

        Raises:
          InvalidInputError: a space does not fit; the error says what differs, and the cure.
        """
        super().validate_spaces(observation_spaces, action_spaces)
        if self._lacks_actions:
            return
        if self.actions is not None:
            validate_action_leaves(action_spaces, self.action_spaces)
            return
        space = self.action_space
        if isinstance(space, Discrete):
            validate_discrete(action_spaces, space.n, any_start=True)
        elif isinstance(space, MultiDiscrete):
            validate_multi_discrete(action_spaces, space.n)
        else:
            assert isinstance(space, Box)
            validate_continuous(action_spaces, space.shape[0])
            if self.bounded:
                validate_bounds(action_spaces, space.low, space.high)
