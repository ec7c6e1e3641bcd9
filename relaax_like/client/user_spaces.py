"""What users say as the space of their observations or actions."""

import sys
from typing import Any

from relaax_like.client.values import SpaceValues


def make_space_values(space: Any, name: str) -> SpaceValues:
    """Returns the `SpaceValues` of what a user has: a `UserSpace`, or a Gymnasium space.

    Args:
      space: a leaf, a dict of leaves, or a Gymnasium space, whose values are nested as it is.
      name: "observation" or "action".

    Raises:
      ConfigError: it is none of these, or cannot be sent.
    """
    # Who has such a space has imported Gymnasium, which the base install does not bring.
    gymnasium: Any = sys.modules.get("gymnasium")
    if gymnasium is not None and isinstance(space, gymnasium.Space):
        from relaax_like.client.gym_spaces import GymValues

        return GymValues(space, name)
    return SpaceValues(space, name)
