"""Settings, and the spaces of the environment that plays."""

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.wire.spaces import Spaces

# The agents need them in order to draw actions.
ACTION_SPACES: Spaces = {}


class Config(AlgorithmConfig):
    """Settings of the recorder."""

    record: str
    """File to which all that an agent receives is added, one JSON list per line."""

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Accepts all spaces."""
        ACTION_SPACES.clear()
        ACTION_SPACES.update(action_spaces)
