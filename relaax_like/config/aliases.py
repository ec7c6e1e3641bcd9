"""Alternative names of hyperparameters, for the fields that name them as `validation_alias`.

    gamma: float = Field(default=0.99, ge=0, le=1, validation_alias=GAMMA)

Messages, `relaax keys` and the saved config use the canonical name, which comes first.
"""

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

GAMMA = AliasChoices("gamma", "discount", "rewards_gamma", "GAMMA")
MAX_GRADIENT_NORM = AliasChoices("max_gradient_norm", "grad_clip")
ENTROPY_COEFFICIENT = AliasChoices("entropy_coefficient", "entropy_coeff")
VALUE_COEFFICIENT = AliasChoices("value_coefficient", "value_coeff")
LEARNING_RATE = AliasChoices("learning_rate", "a_lr")
CRITIC_LEARNING_RATE = AliasChoices("critic_learning_rate", "c_lr")
MAX_GLOBAL_STEP = AliasChoices("max_global_step", "timesteps", "total_timesteps")
ENV = AliasChoices("env", "env_name")
MAX_EPISODE_STEPS = AliasChoices("max_episode_steps", "limit", "max_traj_len")
RANDOM_STEPS = AliasChoices("random_steps", "rnd")
ACTION_REPEAT = AliasChoices("action_repeat", "actrep")
ADAM_EPSILON = AliasChoices("adam_epsilon", "eps", "epsilon")


def get_key(name: str, field: FieldInfo) -> str:
    """Returns the canonical key of the field `name`: its `alias`, or its own name."""
    return field.alias or name


def get_aliases(name: str, field: FieldInfo) -> list[str]:
    """Returns the other spellings of the field `name` that are accepted on input."""
    choices = field.validation_alias
    spellings = choices.choices if isinstance(choices, AliasChoices) else []
    spelled = [name, *(spelling for spelling in spellings if isinstance(spelling, str))]
    key = get_key(name, field)
    return [spelling for spelling in dict.fromkeys(spelled) if spelling != key]
