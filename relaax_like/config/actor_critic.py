"""Settings that all actor-critic algorithms share: spaces and networks."""

from typing import Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.config.problems import describe_value
from relaax_like.config.spaces import (
    validate_bounds,
    validate_continuous,
    validate_discrete,
    validate_image,
    validate_multi_discrete,
    validate_vector,
)
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, Space, Spaces

Bound = float | tuple[float, ...]


class ActorCriticConfig(AlgorithmConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    # Numbers in one observation, flattened.
    state_size: int = Field(default=4, ge=1)
    # Observations are images of this [height, width, channels], uint8; instead of state_size.
    image: tuple[int, int, int] | None = None
    # Discrete actions to choose from; a list: several choices at once, of so many actions each
    # (MultiDiscrete). Exactly one of num_actions and action_size is set.
    num_actions: int | tuple[int, ...] | None = None
    # Components of a continuous action.
    action_size: int | None = Field(default=None, ge=1)
    # Layers of the policy, and of the value function.
    network: NetworkConfig = NetworkConfig()
    # True: the two share all layers but the last one.
    shared_network: bool = False
    # Continuous actions: logarithm of the standard deviation at the start.
    log_std_init: float = 0.0
    # Continuous actions: squash them into action_low .. action_high, by tanh. Otherwise they may be
    # any numbers, and are clipped on their way to the environment.
    bounded: bool = False
    # A number, or one for each component; the bounds of the environment's actions.
    action_low: Bound | None = None
    action_high: Bound | None = None
    # Bring observations to mean 0 and deviation 1, by what all agents have seen.
    normalize_observations: bool = False

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
    def input_shape(self) -> tuple[int, ...]:
        """Of what the network sees: the newest observations, joined on the last axis."""
        if self.image is not None:
            return (*self.image[:2], self.image[2] * self.observation_history)
        return (self.state_size * self.observation_history,)

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
        if self.image is None:
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
