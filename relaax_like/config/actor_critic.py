"""Settings of algorithms whose model is an `ActorCritic`: spaces and networks."""

from typing import ClassVar

from pydantic import Field

from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.leaves import LEARNED, ActionConfig, Bound, Choices, Std
from relaax_like.config.network import NetworkConfig
from relaax_like.wire.spaces import ACTION

# Variable groups of an `ActorCritic`: one if its networks share layers, or one of each.
SHARED, ACTOR, CRITIC = "default", "actor", "critic"
# Name of an array that agents store together with the actions; see `core.prediction.LOG_PROB`.
_TAKEN_NAME = "log_prob"


class ActorCriticConfig(EncoderConfig):
    """Base of the `Config` of an algorithm whose model is an `ActorCritic`.

    Fields are read from the keys of the YAML's `algorithm` section.
    """

    action_keys: ClassVar[tuple[str, ...]] = ("num_actions", "action_size", "actions")

    num_actions: Choices = None
    """Number of discrete actions; a list for several choices at once, with the number of actions of
    each (MultiDiscrete). Set at most one of num_actions, action_size and actions; by default it
    comes from the environment."""
    action_size: int | None = Field(default=None, ge=1)
    """Number of components of a continuous action."""
    actions: dict[str, ActionConfig] | None = Field(default=None, min_length=1)
    """For actions with several leaves, such as a Dict space: maps each leaf to its kind and size
    (config/leaves.py). It must name every leaf of the environment."""
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

    @property
    def network_groups(self) -> tuple[str, ...]:
        """The variable groups of the networks; see `ActorCritic.separate`."""
        return (SHARED,) if self.shared_network else (ACTOR, CRITIC)

    def _validate_action_keys(self) -> None:
        if self.actions is None:
            super()._validate_action_keys()
            return
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
