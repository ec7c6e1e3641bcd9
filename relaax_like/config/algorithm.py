"""The base class of every algorithm folder's `Config`."""

from typing import Annotated, Any, Self

from pydantic import AliasChoices, Field, PrivateAttr

from relaax_like.config import hyper
from relaax_like.config.base import IN_JOBS, Settings
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.schedule import Schedule
from relaax_like.wire.spaces import Spaces


class AlgorithmConfig(Settings):
    """Base of the `Config` that an algorithm folder's `config.py` exports.

        class Config(AlgorithmConfig):
            layer_size: int = Field(default=200, ge=1, alias="hidden_layer_size")
            '''Units of the hidden layer.'''

    The YAML file, messages and the saved config use a field's alias if it has one. A
    `validation_alias` adds spellings that are only accepted on input (`Settings`).
    Do not import TensorFlow in `config.py`: the parameter server loads it, too.

    A field or property `plan` defines how experience is used (`config.plan`), or how each of
    several Algorithms uses it. Without a plan, agents learn by themselves, or a learner beside them
    pushes one gradient per batch.
    """

    name: Annotated[str | None, IN_JOBS] = None
    """Name of an algorithm, a folder in algorithms/ or a package that registers this name; set
    exactly one of name and path."""
    path: str | None = None
    """Folder of your own algorithm, relative to the YAML file."""
    max_global_step: int = Field(
        default=10**8,
        ge=1,
        validation_alias=AliasChoices("max_global_step", "timesteps", "total_timesteps"),
    )
    """Training ends when all clients together have taken this many environment steps; algorithms
    that learn from recordings count the steps that they learn from."""
    observation_history: int = Field(default=1, ge=1, le=1000)
    """Number of most recent observations that the network sees at once."""
    masks: dict[Annotated[str, IN_JOBS], tuple[int, ...]] = Field(default={})
    """For environments that say which actions are legal: each discrete leaf of the actions with its
    numbers of choices, as in `{action: [6]}`; by default from the environment."""
    learning_rate: hyper.LearningRate = 1e-3
    """Learning rate of the default optimizer."""
    # The experiment's; not a key of this section.
    _seed: int = PrivateAttr(default=0)

    @property
    def _own_name(self) -> str:
        return self.name or "this algorithm"

    @property
    def seed(self) -> int:
        """The experiment's seed; derive yours from it with `config.seeds.derive_seed`."""
        return self._seed

    def with_seed(self, seed: int) -> Self:
        """Returns a copy with the experiment's seed."""
        copy = self.model_copy()
        copy._seed = seed
        return copy

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file lacks observations, actions, or both.

        If so, the environment's spaces are used, through `describe_spaces`.
        """
        return False

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns keys to add to this section, with their values; by default there are none.

        They follow from the environment's spaces.

        Args:
          observation_spaces: the environment's, leaf name -> space.
          action_spaces: the same for actions.

        Raises:
          InvalidInputError: the algorithm cannot use such a space; the error names the leaf, or
            what the space lacks.
        """
        return {}

    @property
    def observation_spaces(self) -> Spaces:
        """The space of each leaf of an observation; {} if the settings do not define them.

        Programs that use a trained policy (`relaax_like.load`) need this and `action_spaces`.
        """
        return {}

    @property
    def action_spaces(self) -> Spaces:
        """The space of each leaf of an action; {} if the settings do not define them."""
        return {}

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses a client whose spaces the algorithm cannot use; by default accepts all.

        Args:
          observation_spaces: the client's, leaf name -> space.
          action_spaces: the same for actions.

        Raises:
          InvalidInputError: the algorithm cannot use a space; the error reports it, and the
            setting or wrapper that helps.
        """

    @property
    def schedules(self) -> dict[str, Schedule]:
        """What changes with the environment steps, besides learning rates: key -> schedule."""
        return {key: value for key, value in self if isinstance(value, Schedule)}

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """One optimizer per variable group; overridden by the parameter server's `optimizers`."""
        return {"default": OptimizerConfig(learning_rate=self.learning_rate)}
