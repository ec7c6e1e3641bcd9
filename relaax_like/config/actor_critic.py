"""Settings that all actor-critic algorithms share: spaces and networks."""

from typing import Any, Self

import numpy as np
from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.config.observations import ObservationConfig
from relaax_like.config.plan import RETURN_STATISTIC
from relaax_like.config.problems import describe_value
from relaax_like.config.spaces import (
    validate_bounds,
    validate_continuous,
    validate_discrete,
    validate_image,
    validate_leaves,
    validate_multi_discrete,
    validate_vector,
)
from relaax_like.wire.spaces import OBSERVATION, Box, Discrete, MultiDiscrete, Space, Spaces

Bound = float | tuple[float, ...]


class ActorCriticConfig(AlgorithmConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    state_size: int = Field(default=4, ge=1)
    """Number of values in one observation, flattened."""
    image: tuple[int, int, int] | None = None
    """Shape [height, width, channels] of uint8 image observations; replaces state_size."""
    observations: dict[str, ObservationConfig] | None = Field(default=None, min_length=1)
    """For observations with several leaves, such as a Dict space: maps each leaf to its size or
    image and to the layers of its branch (config/observations.py). Replaces state_size and image.
    It must name every leaf of the environment; an unlisted leaf is an error, because it might be
    misspelt."""
    num_actions: int | tuple[int, ...] | None = None
    """Number of discrete actions; a list for several choices at once, with the number of actions of
    each (MultiDiscrete). Set exactly one of num_actions and action_size."""
    action_size: int | None = Field(default=None, ge=1)
    """Number of components of a continuous action."""
    network: NetworkConfig = NetworkConfig()
    """Layers of the policy, and of the value function."""
    shared_network: bool = False
    """Share all layers except the last between the policy and the value function."""
    log_std_init: float = 0.0
    """Continuous actions: initial logarithm of the standard deviation."""
    bounded: bool = False
    """Continuous actions: squash them into action_low .. action_high with tanh. Otherwise actions
    are unbounded, and are clipped before they reach the environment."""
    action_low: Bound | None = None
    """With bounded: lowest action of the environment, as one number or one per component."""
    action_high: Bound | None = None
    """With bounded: highest action of the environment, as one number or one per component."""
    normalize_observations: bool = False
    """Normalise observations to mean 0 and standard deviation 1, from statistics of all agents.
    With several leaves, each is normalised separately; images are not."""

    @field_validator("num_actions", mode="before")
    @classmethod
    def _validate_num_actions(cls, value: Any) -> Any:
        several = isinstance(value, list | tuple)
        sizes, least = (list(value), 1) if several else ([value], 2)
        whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
        if value is None or (sizes and whole and min(sizes) >= least):
            return tuple(value) if several else value
        raise ValueError(
            "expected a number of 2 or more, or a list of numbers of 1 or more (one per "
            f"choice), got {value if several else describe_value(value)}"
        )

    @model_validator(mode="after")
    def _validate_spaces(self) -> Self:
        if (self.num_actions is None) == (self.action_size is None):
            raise ValueError(
                "set exactly one of num_actions (discrete) and action_size (continuous)"
            )
        self._validate_bounds()
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

    def _validate_bounds(self) -> None:
        given = [name for name in ("action_low", "action_high") if getattr(self, name) is not None]
        if not self.bounded:
            if given:
                raise ValueError(
                    f"{given[0]} has no effect without bounded: true; set bounded, or remove "
                    f"{given[0]}"
                )
            return
        if self.action_size is None or len(given) < 2:
            raise ValueError(
                "bounded: true also needs action_size, action_low and action_high (continuous "
                "actions and their bounds)"
            )
        low, high = self._get_bound("action_low"), self._get_bound("action_high")
        if not (low < high).all():
            raise ValueError(
                f"action_low: {low.tolist()}, expected less than action_high {high.tolist()} "
                "in every component"
            )

    def _get_bound(self, name: str) -> np.ndarray:
        """Returns one number per component, `[action_size] float32`."""
        assert self.action_size is not None
        bound = np.asarray(getattr(self, name), np.float32)
        if bound.shape not in ((), (self.action_size,)):
            raise ValueError(
                f"{name}: {len(bound)} numbers, expected one number, or {self.action_size} "
                "(one per component, action_size)"
            )
        return np.broadcast_to(bound, (self.action_size,)).copy()

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

    @property
    def action_space(self) -> Space:
        """The leaf that the network's outputs describe."""
        if isinstance(self.num_actions, int):
            return Discrete(n=self.num_actions)
        if self.num_actions is not None:
            return MultiDiscrete(n=self.num_actions, shape=(len(self.num_actions),))
        assert self.action_size is not None
        shape = (self.action_size,)
        if not self.bounded:
            return Box(dtype="float32", shape=shape)
        low, high = self._get_bound("action_low"), self._get_bound("action_high")
        return Box(dtype="float32", shape=shape, low=low, high=high)

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments that this network does not fit."""
        if self.observations is not None:
            leaves = {leaf: own.extent for leaf, own in self.observations.items()}
            validate_leaves(observation_spaces, leaves)
        elif self.image is None:
            validate_vector(observation_spaces, self.state_size)
        else:
            validate_image(observation_spaces, self.image)
        if isinstance(self.num_actions, int):
            validate_discrete(action_spaces, self.num_actions)
        elif self.num_actions is not None:
            validate_multi_discrete(action_spaces, self.num_actions)
        else:
            assert self.action_size is not None
            validate_continuous(action_spaces, self.action_size)
            if self.bounded:
                low, high = self._get_bound("action_low"), self._get_bound("action_high")
                validate_bounds(action_spaces, low, high)
