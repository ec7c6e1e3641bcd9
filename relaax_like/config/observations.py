"""Settings of several inputs: one entry for each leaf of the environment's observations.

    observations:
      camera: {image: [84, 84, 3], layers: [nature]}
      joints: {size: 12, layers: [64]}
      goal: {size: 3}
      inventory: {num: [10, 4]}
    network: {layers: [256, {lstm: 128}]}

Each leaf goes through its branch: its own layers, with the network's activation. The outputs of the
branches are joined in the order of the leaves' names, whatever their order in the file, and go
through the layers of `network`. The integers of a Discrete or MultiDiscrete leaf (`num`) first
become one-hot vectors.
"""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from relaax_like.config.base import Settings
from relaax_like.config.network import Layers, begins_with_convolution, is_recurrent
from relaax_like.config.problems import describe_names, describe_wrong
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, Space

MAX_VALUES = 4096
"""Maximum number of values of an integer: each is a component of a one-hot vector."""


def _parse_values(value: Any) -> Any:
    several = isinstance(value, list | tuple)
    sizes = list(value) if several else [value]
    if value is None or (sizes and all(map(_is_number_of_values, sizes))):
        return tuple(value) if several else value
    raise ValueError(
        f"expected an integer of 1 to {MAX_VALUES}, or a list of such integers (the number of "
        f"values of each), got {describe_wrong(value, _is_number_of_values)}"
    )


def _is_number_of_values(size: Any) -> bool:
    is_integer = isinstance(size, int) and not isinstance(size, bool)
    return is_integer and 1 <= size <= MAX_VALUES


NumValues = Annotated[int | tuple[int, ...] | None, BeforeValidator(_parse_values)]


class ObservationConfig(Settings):
    """One entry of the section `observations`; its key is the leaf's name."""

    size: int | None = Field(default=None, ge=1)
    """Number of values in the leaf, a Box or MultiBinary, flattened. Set exactly one of size, image
    and num."""
    image: tuple[int, int, int] | None = None
    """Shape [height, width, channels] of the leaf, a uint8 image."""
    num: NumValues = None
    """Number of values of the leaf, an integer (Discrete); a list for several integers, with the
    number of values of each (MultiDiscrete)."""
    layers: Layers = ()
    """Layers of the branch, as in `network`, none of them recurrent; without layers the leaf itself
    is joined."""

    @model_validator(mode="after")
    def _validate_branch(self) -> Self:
        given = [name for name in ("size", "image", "num") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "expected exactly one of size (for a vector), image and num (for integers), but "
                f"{describe_names(given)}"
            )
        if self.image is not None and min(self.image) < 1:
            raise ValueError(
                f"image: {list(self.image)}, expected [height, width, channels], each 1 or more"
            )
        convolution = begins_with_convolution(self.layers)
        if convolution and self.image is None:
            raise ValueError(
                "layers: the first layer is a convolution, but the leaf is not an image; set "
                "image: [height, width, channels] instead of size or num, or use dense layers"
            )
        if self.image is not None and not convolution:
            found = "the first layer of the branch is not a convolution"
            if not self.layers:
                found = "the branch has no layers, but an image needs a convolution first"
            raise ValueError(
                f"image: {found}; start its layers with nature, a3c, impala or {{conv: ...}}"
            )
        if is_recurrent(self.layers):
            raise ValueError(
                "layers: a branch cannot contain lstm or gru; put them into network.layers, "
                "which follow the branches"
            )
        return self

    @property
    def space(self) -> Space:
        """The space of the model's input: flat, an image, or integers counted from 0."""
        if self.image is not None:
            return Box(dtype="uint8", shape=self.image)
        if isinstance(self.num, int):
            return Discrete(n=self.num)
        if self.num is not None:
            return MultiDiscrete(n=self.num, shape=(len(self.num),))
        assert self.size is not None
        return Box(dtype="float32", shape=(self.size,))
