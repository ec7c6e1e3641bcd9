"""Types of hyperparameters that several algorithms have: their range and accepted spellings.

class Config(AlgorithmConfig):
    gamma: hyper.Gamma = 0.99
    '''Discount factor per step.'''
"""

from typing import Annotated

from pydantic import Field

from relaax_like.config import aliases
from relaax_like.config.schedule import Schedule, Tunable, TunableMark

Gamma = Annotated[float, Field(ge=0, le=1, validation_alias=aliases.GAMMA)]
GaeLambda = Annotated[Tunable, Field(ge=0, le=1)]
LearningRate = Annotated[float, Field(ge=0, validation_alias=aliases.LEARNING_RATE)]
LearningRateSchedule = Annotated[Schedule, Field(validation_alias=aliases.LEARNING_RATE)]
CriticLearningRate = Annotated[float, Field(ge=0, validation_alias=aliases.CRITIC_LEARNING_RATE)]
AdamEpsilon = Annotated[float, Field(gt=0, validation_alias=aliases.ADAM_EPSILON)]
MaxGradientNorm = Annotated[
    float | None, Field(gt=0, validation_alias=aliases.MAX_GRADIENT_NORM), TunableMark()
]
EntropyCoefficient = Annotated[Tunable, Field(ge=0, validation_alias=aliases.ENTROPY_COEFFICIENT)]
ValueCoefficient = Annotated[Tunable, Field(ge=0, validation_alias=aliases.VALUE_COEFFICIENT)]
