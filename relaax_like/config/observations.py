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
    """Numbers in the leaf, flattened. Exactly one of size and image is set."""
    image: tuple[int, int, int] | None = None
    """The leaf is an image of this [height, width, channels], uint8."""
    layers: Layers = ()
    """The branch, as `network` lists layers; none of them is recurrent. Without layers the leaf
    itself is joined."""

    @model_validator(mode="after")
    def _validate_branch(self) -> Self:
        if (self.size is None) == (self.image is None):
            raise ValueError("set exactly one of size (a vector) and image")
        if self.image is not None and min(self.image) < 1:
            raise ValueError(
                f"image: {list(self.image)}, expected [height, width, channels] of 1 or more"
            )
        convolution = begins_with_convolution(self.layers)
        if convolution and self.image is None:
            raise ValueError(
                "layers: the first one is a convolution, but the leaf is no image; set image: "
                "[height, width, channels] instead of size, or use dense layers"
            )
        if self.image is not None and not convolution:
            raise ValueError(
                "image: the branch's first layer is no convolution; begin its layers with nature, "
                "a3c, impala or {conv: ...}"
            )
        if is_recurrent(self.layers):
            raise ValueError(
                "layers: lstm and gru cannot stand in a branch; put them into network.layers, "
                "which come after the branches"
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
