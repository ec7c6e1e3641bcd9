"""Settings of several inputs: one entry for each leaf of the environment's observations.

    observations:
      camera: {image: [84, 84, 3], layers: [nature]}
      joints: {size: 12, layers: [64]}
      goal: {size: 3}
    network: {layers: [256, {lstm: 128}]}

Each leaf goes through its branch: layers of its own, with the network's activation. What comes out
of the branches is joined, in the order of the leaves' names however the file lists them, and goes
through the layers of `network`.
"""

from typing import Self

from pydantic import Field, model_validator

from relaax_like.config.base import Settings
from relaax_like.config.network import Layers, begins_with_convolution, is_recurrent


class ObservationConfig(Settings):
    """One entry of the section `observations`; its key is the leaf's name."""

    size: int | None = Field(default=None, ge=1)
    """Number of values in the leaf, flattened; set exactly one of size and image."""
    image: tuple[int, int, int] | None = None
    """Shape [height, width, channels] of the leaf, a uint8 image."""
    layers: Layers = ()
    """Layers of the branch, as in `network`, none of them recurrent; without layers the leaf itself
    is joined."""

    @model_validator(mode="after")
    def _validate_branch(self) -> Self:
        if (self.size is None) == (self.image is None):
            raise ValueError("set exactly one of size (for a vector) and image")
        if self.image is not None and min(self.image) < 1:
            raise ValueError(
                f"image: {list(self.image)}, expected [height, width, channels], each 1 or more"
            )
        convolution = begins_with_convolution(self.layers)
        if convolution and self.image is None:
            raise ValueError(
                "layers: the first layer is a convolution, but the leaf is not an image; set "
                "image: [height, width, channels] instead of size, or use dense layers"
            )
        if self.image is not None and not convolution:
            raise ValueError(
                "image: the first layer of the branch is not a convolution; start its layers "
                "with nature, a3c, impala or {conv: ...}"
            )
        if is_recurrent(self.layers):
            raise ValueError(
                "layers: a branch cannot contain lstm or gru; put them into network.layers, "
                "which follow the branches"
            )
        return self

    @property
    def extent(self) -> int | tuple[int, int, int]:
        """The one of size and image that is set."""
        extent = self.size if self.image is None else self.image
        assert extent is not None
        return extent

    def get_shape(self, history: int) -> tuple[int, ...]:
        """Returns the shape of the branch's input: the newest `history` leaves, joined."""
        shape = self.extent if isinstance(self.extent, tuple) else (self.extent,)
        return (*shape[:-1], shape[-1] * history)
