"""Spaces of observations and actions, as users specify them."""

import sys
from typing import Any

from relaax_like.client.values import SpaceValues


def make_space_values(space: Any, name: str) -> SpaceValues:
    """Returns the `SpaceValues` of a user's space: a `UserSpace`, or a Gymnasium space.

    Args:
      space: a leaf, a dict of leaves, or a Gymnasium space, whose values are nested as it is.
      name: "observation" or "action".

    Raises:
      ConfigError: the space is something else, an empty dict, or a Gymnasium space of an
        unsupported kind or without leaves.
      InvalidInputError: a Gymnasium space has a leaf that the protocol does not allow.
    """
    # A caller with such a space has imported Gymnasium; the base install does not include it.
    gymnasium: Any = sys.modules.get("gymnasium")
    if gymnasium is not None and isinstance(space, gymnasium.Space):
        from relaax_like.client.gym_spaces import SpaceCodec

        return SpaceCodec(space, name)
    return SpaceValues(space, name)
