"""Settings that all actor-critic algorithms share: spaces and networks."""

from typing import Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from relaax_like.config.actions import LEARNED, Std
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.network import NetworkConfig
from relaax_like.config.problems import describe_value
from relaax_like.config.spaces import (
    validate_bounds,
    validate_continuous,
    validate_discrete,
    validate_multi_discrete,
)
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, Space, Spaces

Bound = float | tuple[float, ...]


class ActorCriticConfig(EncoderConfig):
    """Fields are read from the keys of the YAML's `algorithm` section."""

    num_actions: int | tuple[int, ...] | None = None
    """Number of discrete actions; a list for several choices at once, with the number of actions of
    each (MultiDiscrete). Set exactly one of num_actions and action_size."""
    action_size: int | None = Field(default=None, ge=1)
    """Number of components of a continuous action."""
    network: NetworkConfig = NetworkConfig()
    """Layers of the policy, and of the value function."""
    shared_network: bool = False
    """Share all layers except the last between the policy and the value function."""
    std: Std = LEARNED
    """Continuous actions: standard deviation, the same in all states. learned: one per component,
    which begins at exp(log_std_init); a number, or one per component: fixed. With bounded it is
    that before tanh."""
    log_std_init: float = 0.0
    """Continuous actions: initial logarithm of a learned standard deviation."""
    bounded: bool = False
    """Continuous actions: squash them into action_low .. action_high with tanh. Otherwise actions
    are unbounded, and are clipped before they reach the environment."""
    action_low: Bound | None = None
    """With bounded: lowest action of the environment, as one number or one per component."""
    action_high: Bound | None = None
    """With bounded: highest action of the environment, as one number or one per component."""

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
    def _validate_actions(self) -> Self:
        if (self.num_actions is None) == (self.action_size is None):
            raise ValueError(
                "set exactly one of num_actions (discrete) and action_size (continuous)"
            )
        self._validate_bounds()
        self._validate_std()
        return self

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

    def _validate_std(self) -> None:
        if self.std == LEARNED:
            return
        if self.action_size is None:
            raise ValueError(
                f"std: {self.std} also needs action_size; only continuous actions have a standard "
                "deviation"
            )
        if self.log_std_init:
            raise ValueError(
                f"log_std_init: {self.log_std_init:g} has no effect with std: {self.std}, which is "
                "fixed; remove one of them"
            )
        if isinstance(self.std, tuple) and len(self.std) != self.action_size:
            raise ValueError(
                f"std: {len(self.std)} numbers, expected one number, or {self.action_size} (one "
                "per component, action_size)"
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
        super().validate_spaces(observation_spaces, action_spaces)
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
