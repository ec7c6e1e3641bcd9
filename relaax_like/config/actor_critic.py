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
from relaax_like.config.update_plan import RETURN_STATISTIC
from relaax_like.wire.spaces import OBSERVATION, Box, Discrete, MultiDiscrete, Space, Spaces

Bound = float | tuple[float, ...]


class ActorCriticConfig(AlgorithmConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    state_size: int = Field(default=4, ge=1)
    """Numbers in one observation, flattened."""
    image: tuple[int, int, int] | None = None
    """Observations are images of this [height, width, channels], uint8; instead of state_size."""
    observations: dict[str, ObservationConfig] | None = Field(default=None, min_length=1)
    """Observations have several leaves, as those of a Dict space: leaf -> its size or image, and
    the layers of its branch (config/observations.py); instead of state_size and image. It names all
    leaves of the environment: any other is refused, as it may be one that was misspelt."""
    num_actions: int | tuple[int, ...] | None = None
    """Discrete actions to choose from; a list: several choices at once, of so many actions each
    (MultiDiscrete). Exactly one of num_actions and action_size is set."""
    action_size: int | None = Field(default=None, ge=1)
    """Components of a continuous action."""
    network: NetworkConfig = NetworkConfig()
    """Layers of the policy, and of the value function."""
    shared_network: bool = False
    """The policy and the value function share all layers but the last one."""
    log_std_init: float = 0.0
    """Continuous actions: logarithm of the standard deviation at the start."""
    bounded: bool = False
    """Continuous actions: squash them into action_low .. action_high, by tanh. Otherwise they may
    be any numbers, and are clipped on their way to the environment."""
    action_low: Bound | None = None
    """Lowest actions of the environment, with bounded: a number, or one for each component."""
    action_high: Bound | None = None
    """Highest actions of the environment, with bounded: a number, or one for each component."""
    normalize_observations: bool = False
    """Bring observations to mean 0 and deviation 1, by what all agents have seen; of several leaves
    each by itself, but for images."""

    @field_validator("num_actions", mode="before")
    @classmethod
    def _validate_num_actions(cls, value: Any) -> Any:
        several = isinstance(value, list | tuple)
        sizes, least = (list(value), 1) if several else ([value], 2)
        whole = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
        if value is None or (sizes and whole and min(sizes) >= least):
            return tuple(value) if several else value
        raise ValueError(
            f"{value if several else describe_value(value)} came, expected a number of 2 or more, "
            "or a list: for each of several choices a number of 1 or more"
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
                f"image: {list(self.image)}, observations normalised: {self.has_normalizer}; "
                "expected [height, width, channels] of 1 or more, without normalisation (images "
                "are scaled to [0, 1])"
            )
        if self.network.begins_with_convolution and self.image is None:
            raise ValueError(
                "network: its first layer is a convolution, but observations are no images; set "
                "image: [height, width, channels], or use dense layers"
            )
        if self.image is not None and not self.network.begins_with_convolution:
            raise ValueError(
                "image: the network's first layer is no convolution; begin layers with nature, "
                "a3c, impala or {conv: ...}"
            )
        return self

    def _validate_observations(self, observations: dict[str, ObservationConfig]) -> None:
        if self.image is not None or "state_size" in self.model_fields_set:
            other = "state_size" if self.image is None else "image"
            raise ValueError(
                f"observations and {other}: set one of the two; with observations each leaf has "
                "its own size or image"
            )
        if self.network.begins_with_convolution:
            raise ValueError(
                "network: its first layer is a convolution, but what comes out of the branches of "
                "observations is no image; put it into the layers of an image's branch"
            )
        if self.has_normalizer and len(self.images) == len(observations):
            raise ValueError(
                "observations: nothing to normalise, as all leaves are images (which are scaled to "
                "[0, 1]); leave out the normalisation"
            )
        if self.has_normalizer and RETURN_STATISTIC in observations:
            raise ValueError(
                f"observations: a leaf named {RETURN_STATISTIC!r} cannot be normalised, as the "
                "statistic of returns has that name; rename it in the environment"
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
                raise ValueError(f"{given[0]} means nothing without bounded: true")
            return
        if self.action_size is None or len(given) < 2:
            raise ValueError(
                "bounded: true needs action_size, action_low and action_high (continuous actions "
                "and their bounds)"
            )
        low, high = self._get_bound("action_low"), self._get_bound("action_high")
        if not (low < high).all():
            raise ValueError(
                f"action_low: {low.tolist()}, expected less than action_high {high.tolist()} "
                "everywhere"
            )

    def _get_bound(self, name: str) -> np.ndarray:
        """Returns one number per component, `[action_size] float32`."""
        assert self.action_size is not None
        bound = np.asarray(getattr(self, name), np.float32)
        if bound.shape not in ((), (self.action_size,)):
            raise ValueError(
                f"{name}: {len(bound)} numbers, expected one, or one for each of the "
                f"{self.action_size} components (action_size)"
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
