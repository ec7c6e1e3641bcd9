"""What a policy returns: its form, and whether it fits the environment's action spaces."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.algorithm.model import Model
from relaax_like.config.places import describe_place
from relaax_like.nn.action_heads import count_outputs
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Box, Discrete, Space, Spaces

_UNKNOWN = -1  # a length that is not known while a function is traced


class PolicyOutputs:
    """The numbers of outputs of a policy, compared once with the environment's action spaces.

    Attributes:
      are_known: whether the policy has returned a result, so that nothing is left to learn.

    Args:
      model: whose policy it is.
    """

    def __init__(self, model: Model):
        self._model = model
        self._parameters: dict[str, dict[str, int]] = {}  # action -> parameter -> its length
        self._spaces: Spaces = {}
        self.are_known = False

    def learn(self, result: Any) -> None:
        """Checks the form of the policy's result, and compares it with the spaces, if known.

        Raises:
          ConfigError: the result is not as in `Model.policy`; or see `expect`.
        """
        mistake = self._find_mistake(result)
        if mistake:
            raise ConfigError(
                f"{self._place}: policy returned {mistake}; return the distributions and the next "
                "memory, such as {'action': distribution}, memory"
            )
        for name, distribution in result[0].items():
            # A folder's own distribution can be any class with the methods.
            get = getattr(distribution, "get_parameters", dict)
            self._parameters[name] = {key: _count_numbers(array) for key, array in get().items()}
        self.are_known = True
        self._compare()

    def expect(self, spaces: Spaces) -> None:
        """Sets the action spaces, and compares them with the policy's outputs, if known.

        Raises:
          ConfigError: the policy can choose actions that the environment does not have.
        """
        self._spaces = spaces
        if self.are_known:
            self._compare()

    @property
    def _place(self) -> str:
        return describe_place(type(self._model), "policy")

    def _find_mistake(self, result: Any) -> str:
        """Returns what is wrong with a result, as the object of a sentence; "" if it is valid."""
        if not isinstance(result, Sequence):
            return f"one value, of type {type(result).__name__}, expected two"
        if len(result) != 2:
            return f"{len(result)} values, expected two"
        distributions, memory = result
        for what, values, specs in (
            ("distributions", distributions, self._model.get_action_specs()),
            ("memory", memory, self._model.get_state_specs()),
        ):
            if not isinstance(values, Mapping):
                return f"a {type(values).__name__} as {what}, expected a dict by name"
            missing = [name for name, _ in specs if name not in values]
            if missing:
                return f"no {missing[0]!r} in {what}, expected all names of the specs"
        for name, distribution in distributions.items():
            if not hasattr(distribution, "log_prob"):
                return f"a {type(distribution).__name__} for {name!r}, expected a distribution"
        return ""

    def _compare(self) -> None:
        for name, space in self._spaces.items():
            for parameter, length in self._parameters.get(name, {}).items():
                expected = _count_expected(space, parameter)
                is_subset = isinstance(space, Discrete) and 0 <= length < space.n
                if expected is None or length in (expected, _UNKNOWN) or is_subset:
                    continue
                raise ConfigError(
                    f"{self._place}: policy computes {length} {parameter} for {name!r}, expected "
                    f"{expected} for the environment's action space, {space.describe()}; "
                    "correct the number of outputs (num_parameters of relaax_like.nn.action_heads "
                    "returns it)"
                )


def _count_numbers(array: Any) -> int:
    """Returns the length of one row of an array or tensor `[B, ...]`."""
    shape = array.shape
    known = getattr(shape, "rank", 0) is not None and None not in tuple(shape[1:])
    return math.prod(shape[1:]) if known else _UNKNOWN


def _count_expected(space: Space, parameter: str) -> int | None:
    """Returns the length of a distribution's parameter for a space; None: it can be any."""
    if isinstance(space, Box) != (parameter == "mean"):
        return None
    return count_outputs(space)
