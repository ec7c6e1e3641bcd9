"""What every algorithm folder's `Config` has."""

from typing import Any, Self

from pydantic import Field, PrivateAttr

from relaax_like.config.aliases import LEARNING_RATE
from relaax_like.config.base import Settings
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.wire.spaces import Spaces


class AlgorithmConfig(Settings):
    """Base of the `Config` that an algorithm folder's `config.py` exports.

        class Config(AlgorithmConfig):
            layer_size: int = Field(default=200, ge=1, alias="hidden_layer_size")
            '''Units of the hidden layer.'''

    The YAML file, messages and the saved config use a field's alias where it has one. A
    `validation_alias` adds spellings that are accepted on input only (`config.aliases`).
    Import no TensorFlow in `config.py`: the parameter server loads it too.

    A field or property `plan` says how experience is used (`config.plan`), or how each of several
    tasks uses it; without one, agents learn by themselves.
    """

    name: str | None = None
    """Name of a shipped algorithm (a folder in algorithms/); set exactly one of name and path."""
    path: str | None = None
    """Folder of your own algorithm, relative to the YAML file."""
    max_global_step: int = Field(default=10**8, ge=1)
    """Training ends when all clients together have taken this many environment steps."""
    observation_history: int = Field(default=1, ge=1, le=1000)
    """Number of most recent observations that the network sees at once."""
    learning_rate: float = Field(default=1e-3, ge=0, validation_alias=LEARNING_RATE)
    """Learning rate of the default optimizer."""
    # The experiment's; not a key of this section.
    _seed: int = PrivateAttr(default=0)

    @property
    def seed(self) -> int:
        """The experiment's seed; derive yours from it with `config.seeds.derive_seed`."""
        return self._seed

    def with_seed(self, seed: int) -> Self:
        """Returns a copy that carries the experiment's seed."""
        copy = self.model_copy()
        copy._seed = seed
        return copy

    @property
    def lacks_spaces(self) -> bool:
        """Whether the file does not define observations or actions.

        Then the environment's spaces are used, through `describe_spaces`.
        """
        return False

    def describe_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, Any]:
        """Returns the keys of this section that the file does not set, with their values.

        Args:
          observation_spaces: leaf name -> space, as the environment has them.
          action_spaces: the same for actions.

        Raises:
          InvalidInputError: the algorithm cannot use such a space; names leaf and space.
        """
        return {}

    @property
    def observation_spaces(self) -> Spaces:
        """What one observation is made of, leaf by leaf; {} where the settings do not say it.

        Programs that use a trained policy (`relaax_like.load`) need it, and `action_spaces`.
        """
        return {}

    @property
    def action_spaces(self) -> Spaces:
        """What one action is made of, leaf by leaf; {} where the settings do not say it."""
        return {}

    def validate_spaces(self, observation_spaces: Spaces, action_spaces: Spaces) -> None:
        """Refuses a client whose spaces the algorithm cannot use; by default it accepts all.

        Args:
          observation_spaces: leaf name -> space, as the client's hello has them.
          action_spaces: the same for actions.

        Raises:
          InvalidInputError: says what came and which setting or wrapper would mend it.
        """

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """One optimizer per variable group; overridden by the parameter server's `optimizers`."""
        return {"default": OptimizerConfig(learning_rate=self.learning_rate)}
