"""Mirror: the mirror image of an observation or action, as written in settings or in a space."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relaax_like.config.problems import count
from relaax_like.config.spaces import describe_leaves
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, OBSERVATION, Spaces

_FIRST = 0.1  # Zero has no sign.


@dataclass(frozen=True)
class Mirror:
    """A signed permutation that is its own inverse: y[i] = signs[i] * x[indices[i]].

    Attributes:
      indices: one for each of the n components, 0 .. n - 1.
      signs: 1 or -1 each.
    """

    indices: tuple[int, ...]
    signs: tuple[int, ...]

    def repeat(self, times: int) -> "Mirror":
        """Returns the mirror of `times` concatenated vectors."""
        size = len(self.indices)
        shifted = (index + size * number for number in range(times) for index in self.indices)
        return Mirror(tuple(shifted), self.signs * times)


def parse_mirror(name: str, numbers: Sequence[float], size: int, what: str) -> Mirror:
    """Parses a mirror: entry i is the component that moves to index i, with its sign.

        parse_mirror("mirror_action", [-0.1, 2, 1], 3, ...)  # y = (-x[0], x[2], x[1])

    Index 0 is written 0.1 or -0.1.

    Args:
      name: of the setting.
      numbers: as written in the file.
      size: required number of entries.
      what: what an entry describes, for errors.

    Raises:
      ValueError: the number of entries is not `size`; or they are not a signed permutation that is
        its own inverse, and the error names the entry.
    """
    if len(numbers) != size:
        raise ValueError(
            f"{name}: {count(len(numbers), 'number')}, expected {size} (one for each {what})"
        )
    indices: list[int] = []
    for place, number in enumerate(numbers):
        index = 0 if abs(number) == _FIRST else int(abs(number))
        if (index == 0 or index != abs(number)) and abs(number) != _FIRST:
            raise ValueError(
                f"{name}: {number:g} at position {place}, expected an integer other than 0, or "
                "0.1 or -0.1 for index 0 (0 has no sign)"
            )
        if index >= size:
            raise ValueError(
                f"{name}: {number:g} at position {place}, but the largest index is {size - 1}; "
                "each index must occur once"
            )
        indices.append(index)
    signs = [1 if number > 0 else -1 for number in numbers]
    for place, index in enumerate(indices):
        if indices[index] != place or signs[index] != signs[place]:
            raise ValueError(
                f"{name}: position {place} takes {numbers[place]:g}, but position {index} "
                f"takes {numbers[index]:g}; expected a mirror, which is its own inverse: "
                "mirroring twice must restore the original"
            )
    return Mirror(tuple(indices), tuple(signs))


def describe_mirrors(observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
    """Returns the keys mirror_observation and mirror_action, from the mirrors of both spaces.

    Args:
      observation_spaces: leaf -> space.
      action_spaces: the same for actions.

    Raises:
      InvalidInputError: a space has no mirror, or leaves other than one named `observation` or
        `action`.
    """
    keys = {}
    for kind, leaf, spaces in (
        ("observation", OBSERVATION, observation_spaces),
        ("action", ACTION, action_spaces),
    ):
        space = spaces.get(leaf)
        if space is None or len(spaces) > 1:
            raise InvalidInputError(
                f"algorithm.mirror: got {describe_leaves(spaces)}, but only {kind}s of one leaf, "
                f"named {leaf!r}, can be mirrored; wrap the environment, or set algorithm.mirror "
                "to 0",
                f"{kind}_spaces",
            )
        if space.mirror is None:
            raise InvalidInputError(
                "algorithm.mirror: the environment does not define the mirror image of its "
                f"{kind}s; add a method get_{kind}_mirror_indices to a Gymnasium environment, or "
                f"mirror=(...) to an {kind} space of relaax_like.wire, or set "
                "algorithm.mirror_observation and algorithm.mirror_action, or set algorithm.mirror "
                "to 0",
                f"{kind}_spaces",
            )
        keys[f"mirror_{kind}"] = list(space.mirror)
    return keys
