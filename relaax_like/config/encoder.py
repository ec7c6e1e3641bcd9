"""Settings of what a model sees, and of the network that reads it; for any algorithm."""

from typing import Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.config.observations import ObservationConfig
from relaax_like.config.plan import RETURN_STATISTIC
from relaax_like.config.spaces import validate_image, validate_leaves, validate_vector
from relaax_like.wire.spaces import OBSERVATION, Box, Spaces


class EncoderConfig(AlgorithmConfig):
    """Base of the `Config` of an algorithm whose model has an `Encoder`.

    Fields are read from the keys of the YAML's `algorithm` section.
    """

    state_size: int = Field(default=4, ge=1)
    """Number of values in one observation, flattened."""
    image: tuple[int, int, int] | None = None
    """Shape [height, width, channels] of uint8 image observations; replaces state_size."""
    observations: dict[str, ObservationConfig] | None = Field(default=None, min_length=1)
    """For observations with several leaves, such as a Dict space: maps each leaf to its size or
    image and to the layers of its branch (config/observations.py). Replaces state_size and image.
    It must name every leaf of the environment; an unlisted leaf is an error, because it might be
    misspelt."""
    network: NetworkConfig = NetworkConfig()
    """Layers of each network."""
    normalize_observations: bool = False
    """Normalise observations to mean 0 and standard deviation 1, from statistics of all agents.
    With several leaves, each is normalised separately; images are not."""

    @model_validator(mode="after")
    def _validate_inputs(self) -> Self:
        if self.observations is not None:
            self._validate_observations(self.observations)
            return self
        if self.image is not None and (min(self.image) < 1 or self.has_normalizer):
            raise ValueError(
                f"image: {list(self.image)} with observation normalisation "
                f"{'on' if self.has_normalizer else 'off'}; expected [height, width, "
                "channels], each 1 or more, and no normalisation (images are scaled to [0, "
                "1])"
            )
        if self.network.begins_with_convolution and self.image is None:
            raise ValueError(
                "network: the first layer is a convolution, but the observations are not "
                "images; set image: [height, width, channels], or use dense layers"
            )
        if self.image is not None and not self.network.begins_with_convolution:
            raise ValueError(
                "image: the first layer of the network is not a convolution; start layers "
                "with nature, a3c, impala or {conv: ...}"
            )
        return self

    def _validate_observations(self, observations: dict[str, ObservationConfig]) -> None:
        if self.image is not None or "state_size" in self.model_fields_set:
            other = "state_size" if self.image is None else "image"
            raise ValueError(
                f"observations and {other} are both set; set only one of them (observations "
                "gives each leaf its own size or image)"
            )
        if self.network.begins_with_convolution:
            raise ValueError(
                "network: the first layer is a convolution, but the joined branches of "
                "observations are not an image; move the convolution into the layers of an "
                "image's branch"
            )
        if self.has_normalizer and len(self.images) == len(observations):
            raise ValueError(
                "observations: nothing to normalise, because all leaves are images (which are "
                "scaled to [0, 1]); turn the normalisation off"
            )
        if self.has_normalizer and RETURN_STATISTIC in observations:
            raise ValueError(
                f"observations: a leaf named {RETURN_STATISTIC!r} cannot be normalised, "
                "because the statistic of returns has the same name; rename the leaf in the "
                "environment"
            )

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out the default that `observations` replaces: what is dumped can be loaded."""
        data = handler(self)
        if self.observations is not None:
            del data["state_size"]
        return data

    @property
    def has_normalizer(self) -> bool:
        """Whether the model brings observations to mean 0 and deviation 1."""
        return self.normalize_observations

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what the network sees, by leaf: the newest observations, joined on the last axis."""
        length = self.observation_history
        if self.observations is not None:
            return {leaf: own.get_shape(length) for leaf, own in self.observations.items()}
        if self.image is not None:
            return {OBSERVATION: (*self.image[:2], self.image[2] * length)}
        return {OBSERVATION: (self.state_size * length,)}

    @property
    def images(self) -> tuple[str, ...]:
        """The leaves that are images."""
        if self.observations is not None:
            return tuple(leaf for leaf, own in self.observations.items() if own.image is not None)
        return () if self.image is None else (OBSERVATION,)

    @property
    def observation_spaces(self) -> Spaces:
        """The leaves that the environment sends: flat vectors, and images."""
        images, length = self.images, self.observation_history
        return {
            leaf: Box(
                dtype="uint8" if leaf in images else "float32",
                shape=(*shape[:-1], shape[-1] // length),
            )
            for leaf, shape in self.input_shapes.items()
        }

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose observations the encoder does not fit."""
        if self.observations is not None:
            leaves = {leaf: own.extent for leaf, own in self.observations.items()}
            validate_leaves(observation_spaces, leaves)
        elif self.image is None:
            validate_vector(observation_spaces, self.state_size)
        else:
            validate_image(observation_spaces, self.image)
