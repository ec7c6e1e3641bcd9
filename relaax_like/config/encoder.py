"""Settings of a model's observations, and of the network that reads them; for any algorithm."""

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.leaves import (
    ActionConfig,
    NumValues,
    ObservationConfig,
    validate_image_shape,
)
from relaax_like.config.network import NetworkConfig
from relaax_like.config.plan import RETURN_STATISTIC
from relaax_like.config.spaces import (
    PLAIN_ACTION,
    PLAIN_OBSERVATION,
    describe_actions,
    describe_leaves,
    describe_network,
    describe_observations,
    validate_leaves,
)
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, OBSERVATION, Space, Spaces

OBSERVATION_KEYS = (*PLAIN_OBSERVATION, "observations")
# Keys of algorithms for their only action -> the same key of a listed leaf. Subclasses have some.
_ACTION_KEYS = {
    **PLAIN_ACTION,
    "std": "std",
    "log_std_init": "log_std_init",
    "bounded": "bounded",
    "action_low": "low",
    "action_high": "high",
}


class EncoderConfig(AlgorithmConfig):
    """Base of the `Config` of an algorithm whose model has an `Encoder`.

    Fields are read from the keys of the YAML's `algorithm` section. The file sets at most one of
    state_size, image, num_states and observations; by default they come from the environment.

    Attributes:
      normalizing_keys: the keys that turn the normalisation of observations on, for errors.
      action_keys: those of num_actions, action_size and actions that the algorithm has; its actions
        are then those that the file describes, or the environment's. () if it says them otherwise.
      needed_action: what the only action must be, for errors; "": any actions can be used.
    """

    normalizing_keys: ClassVar[str] = "normalize_observations"
    action_keys: ClassVar[tuple[str, ...]] = ()
    needed_action: ClassVar[str] = ""

    state_size: int | None = Field(default=None, ge=1)
    """Number of values in one observation (a Box or MultiBinary), flattened."""
    image: tuple[int, int, int] | None = None
    """Shape [height, width, channels] of uint8 image observations."""
    num_states: NumValues = None
    """Number of values of an observation that is an integer (Discrete), at most 4096; a list for
    several integers, with the number of values of each (MultiDiscrete). The network sees each as a
    one-hot vector."""
    observations: dict[str, ObservationConfig] | None = Field(default=None, min_length=1)
    """For observations with several leaves, such as a Dict space: maps each leaf to its size, image
    or num and to the layers of its branch (config/leaves.py). It must name every leaf of the
    environment; an unlisted leaf is an error, because it might be misspelt."""
    network: NetworkConfig = NetworkConfig()
    """Layers of each network."""
    normalize_observations: bool = False
    """Normalise observations to mean 0 and standard deviation 1, from statistics of all agents.
    With several leaves, each is normalised separately; images and integers are not."""

    @model_validator(mode="after")
    def _validate_inputs(self) -> Self:
        given = [key for key in OBSERVATION_KEYS if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are set; set only one of them (observations gives each "
                "leaf its own size, image or num), or none of them to use the environment's "
                "observations"
            )
        self._validate_kind()
        if not given:
            return self
        validate_image_shape(self.image)
        convolution, (key,) = self.network.begins_with_convolution, given
        if convolution and self.image is None:
            cure = "begin only the branches of images with convolutions"
            if self.observations is None:
                cure = f"set image: [height, width, channels] instead of {key} for uint8 images"
            raise ValueError(
                f"network: the first layer is a convolution, but its input, described by {key}, is "
                f"not an image; use dense layers, or {cure}"
            )
        if self.image is not None and not convolution:
            raise ValueError(
                "image: the first layer of the network is not a convolution; start network.layers "
                "with nature, a3c, impala or {conv: ...}, or, if the algorithm has no layers, "
                "choose another algorithm"
            )
        if self.has_normalizer and not self.vectors:
            raise ValueError(
                f"{key}: nothing to normalise, because images are scaled to [0, 1], and integers "
                f"become one-hot vectors; set {self.normalizing_keys} to false, or use another "
                "algorithm"
            )
        if self.has_normalizer and RETURN_STATISTIC in self.vectors:
            raise ValueError(
                f"observations: a leaf named {RETURN_STATISTIC!r} cannot be normalised, "
                "because the statistic of returns has the same name; rename the leaf in the "
                "environment (and in algorithm.observations, if it is named there), or set "
                f"{self.normalizing_keys} to false"
            )
        return self

    def _validate_kind(self) -> None:
        """Refuses kinds of observations that the algorithm cannot read; by default accepts all.

        Raises:
          ValueError: the settings describe such observations.
        """

    @model_validator(mode="after")
    def _validate_actions(self) -> Self:
        given = [key for key in self.action_keys if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are set; set only one of {', '.join(self.action_keys)}, or "
                "none of them to use the environment's actions"
            )
        self._validate_action_keys()
        return self

    def _validate_action_keys(self) -> None:
        """Refuses keys of actions that contradict each other.

        Raises:
          ValueError: there are such keys.
        """
        if self.action_keys:
            self._get_only_action().validate_keys("action_", is_known=not self._lacks_actions)

    def _get_only_action(self) -> ActionConfig:
        own = {kind: getattr(self, key) for key, kind in _ACTION_KEYS.items() if hasattr(self, key)}
        return ActionConfig.model_construct(**own)

    @property
    def has_normalizer(self) -> bool:
        """Whether the model normalises observations to mean 0 and standard deviation 1."""
        return self.normalize_observations

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file lacks observations, or actions if it can describe them."""
        return not self.observation_leaves or self._lacks_actions

    @property
    def _lacks_actions(self) -> bool:
        keys = self.action_keys
        return bool(keys) and all(getattr(self, key) is None for key in keys)

    def require_spaces(self) -> None:
        """Checks that the settings define all that a model needs to be built.

        Raises:
          ConfigError: they lack observations, actions, or mirror images; see `lacks_spaces`.
        """
        if not self.lacks_spaces:
            return
        what, cure = "mirror images", "mirror_observation and mirror_action"
        if not self.observation_spaces:
            what, cure = "observations", " or ".join(OBSERVATION_KEYS)
        elif not self.action_spaces:
            what, cure = "actions", " or ".join(self.action_keys)
            if "action_size" in self.action_keys:
                cure += " (with action_low and action_high if the actions are bounded)"
        raise ConfigError(
            f"algorithm: the {what} are not defined; set {cure}, or take them from an environment "
            "(add_spaces)"
        )

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of observations and actions that the file does not set.

        With an image, also `network` with convolutions, unless the file lists layers. Bounds of an
        action in the file replace those of the environment.

        Raises:
          InvalidInputError: a leaf cannot be used, and the error names it; or the actions are
            bounded, but neither the file nor the environment has finite bounds.
        """
        keys: dict[str, Any] = {}
        if not self.observation_leaves:
            keys = describe_observations(observation_spaces)
            keys |= describe_network(keys, self.network)
        if not self._lacks_actions:
            return keys
        only = self._get_only_action()
        actions = describe_actions(action_spaces, only.bounded and only.low is None)
        fits = any(isinstance(actions.get(key), int) for key in self.action_keys)
        if self.needed_action and not fits:
            raise InvalidInputError(
                f"action_spaces: got {describe_leaves(action_spaces)}; {self._own_name} needs "
                f"{self.needed_action} named {ACTION!r}; choose another algorithm for other "
                "actions"
            )
        return keys | actions

    @property
    def observation_leaves(self) -> dict[str, ObservationConfig]:
        """The settings of each leaf of an observation; {} if not known yet."""
        if self.observations is not None:
            return self.observations
        if all(getattr(self, key) is None for key in OBSERVATION_KEYS):
            return {}
        own = {kind: getattr(self, key) for key, kind in PLAIN_OBSERVATION.items()}
        return {OBSERVATION: ObservationConfig.model_construct(**own)}

    @property
    def observation_spaces(self) -> Spaces:
        """The leaves of an observation: flat vectors, images and integers; {} if not known yet."""
        return {leaf: own.space for leaf, own in self.observation_leaves.items()}

    @property
    def action_leaves(self) -> dict[str, ActionConfig]:
        """The settings of each leaf of the action space, sorted by name; {} if not known yet."""
        listed = self._listed_actions
        if listed is not None:
            return dict(sorted(listed.items()))
        if self._lacks_actions or not self.action_keys:
            return {}
        return {ACTION: self._get_only_action()}

    @property
    def _listed_actions(self) -> dict[str, ActionConfig] | None:
        return getattr(self, "actions", None) if "actions" in self.action_keys else None

    @property
    def action_spaces(self) -> Spaces:
        """The space of each leaf of an action, sorted by name; {} if not known yet."""
        return {leaf: own.space for leaf, own in self.action_leaves.items()}

    @property
    def action_space(self) -> Space:
        """The space of the only action; for settings with num_actions or action_size."""
        return self._get_only_action().space

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Leaf -> shape of the model's input: the newest observations, joined on the last axis.

        A single integer (Discrete) has shape [1], or [observation_history].
        """
        shapes = {leaf: space.shape or (1,) for leaf, space in self.observation_spaces.items()}
        length = self.observation_history
        return {leaf: (*shape[:-1], shape[-1] * length) for leaf, shape in shapes.items()}

    @property
    def images(self) -> tuple[str, ...]:
        """The leaves that are images."""
        return self._list_leaves("image")

    @property
    def vectors(self) -> tuple[str, ...]:
        """The leaves that are vectors, neither images nor integers."""
        return self._list_leaves("size")

    @property
    def num_values(self) -> dict[str, tuple[int, ...]]:
        """Leaf -> number of values of each integer of the input, for leaves that are integers."""
        spaces, length = self.observation_spaces, self.observation_history
        return {leaf: spaces[leaf].sizes * length for leaf in self._list_leaves("num")}

    def _list_leaves(self, kind: str) -> tuple[str, ...]:
        return tuple(leaf for leaf, own in self.observation_leaves.items() if own.kind == kind)

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses environments whose spaces do not fit the settings.

        What the settings do not define yet is not compared.

        Raises:
          InvalidInputError: a leaf does not fit; the error says what differs, and the cure.
        """
        listed = self.observations is not None
        validate_leaves(observation_spaces, self.observation_leaves, listed=listed)
        listed = self._listed_actions is not None
        validate_leaves(action_spaces, self.action_leaves, listed=listed)
