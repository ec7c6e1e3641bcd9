"""Types of hyperparameters that several algorithms have: their range and accepted spellings.

class Config(AlgorithmConfig):
    gamma: hyper.Gamma = 0.99
    '''Discount factor per step.'''
"""

from typing import Annotated

from pydantic import AliasChoices, Field

from relaax_like.config.schedule import TUNABLE, Schedule, Tunable

_GAMMA = AliasChoices("gamma", "discount", "rewards_gamma", "GAMMA")
_RATE = AliasChoices("learning_rate", "a_lr")
_CRITIC_RATE = AliasChoices("critic_learning_rate", "c_lr")
_EPSILON = AliasChoices("adam_epsilon", "eps", "epsilon")
_NORM = AliasChoices("max_gradient_norm", "grad_clip")
_ENTROPY = AliasChoices("entropy_coefficient", "entropy_coeff")
_VALUE = AliasChoices("value_coefficient", "value_coeff")

Gamma = Annotated[float, Field(ge=0, le=1, validation_alias=_GAMMA)]
GaeLambda = Annotated[Tunable, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(ge=0, validation_alias=_RATE)]
LearningRateSchedule = Annotated[Schedule, Field(validation_alias=_RATE)]
CriticLearningRate = Annotated[float, Field(ge=0, validation_alias=_CRITIC_RATE)]
AdamEpsilon = Annotated[float, Field(gt=0, validation_alias=_EPSILON)]
MaxGradientNorm = Annotated[float | None, Field(gt=0, validation_alias=_NORM), TUNABLE]
EntropyCoefficient = Annotated[Tunable, Field(ge=0, validation_alias=_ENTROPY)]
ValueCoefficient = Annotated[Tunable, Field(ge=0, validation_alias=_VALUE)]
