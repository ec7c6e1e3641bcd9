"""Settings of algorithms with one discrete action."""

from typing import Any

from pydantic import Field

from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.found_spaces import describe_actions
from relaax_like.config.spaces import describe_leaves, validate_discrete
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, MAX_DISCRETE, Discrete, Spaces


class DiscreteConfig(EncoderConfig):
    """Base of the `Config` of an algorithm with one discrete action.

    Fields are read from the keys of the YAML's `algorithm` section.
    """

    num_actions: int | None = Field(default=None, ge=2, le=MAX_DISCRETE)
    """Number of actions; by default it comes from the environment."""

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file lacks observations, actions, or both."""
        return super().lacks_spaces or self.num_actions is None

    @property
    def action_spaces(self) -> Spaces:
        """One of `num_actions` actions; {} if their number is not known yet."""
        return {} if self.num_actions is None else {ACTION: Discrete(n=self.num_actions)}

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of observations and actions that the file does not set.

        Raises:
          InvalidInputError: an observation cannot be used, or the action is not one Discrete of two
            or more.
        """
        keys = super().describe_spaces(observation_spaces, action_spaces)
        if self.num_actions is None:
            actions = describe_actions(action_spaces, bounded=False)
            if not isinstance(actions.get("num_actions"), int):
                raise InvalidInputError(
                    f"action_spaces: got {describe_leaves(action_spaces)}; "
                    f"{self.name or 'this algorithm'} needs one discrete action (Discrete) named "
                    f"{ACTION!r}; choose another algorithm for other actions",
                    "action_spaces",
                )
            keys |= actions
        return keys

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose spaces do not fit this network.

        What the settings do not define yet is not compared.

        Raises:
          InvalidInputError: a space does not fit; the error says what differs, and the cure.
        """
        super().validate_spaces(observation_spaces, action_spaces)
        if self.num_actions is not None:
            validate_discrete(action_spaces, self.num_actions, any_start=True)
