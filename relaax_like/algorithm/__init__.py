"""The classes for writing algorithms: `from relaax_like.algorithm import Algorithm, Batch, ...`.

TensorFlow is not imported before it is used.
"""

from relaax_like.algorithm.actor_critic import ActorCritic, Evaluation
from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.batch import Batch, Losses, Tensors
from relaax_like.algorithm.critics import (
    Critics,
    DeterministicModel,
    DiscreteCritics,
    Regularization,
    RegularNetwork,
)
from relaax_like.algorithm.encoder import Encoder, make_input_specs, make_normalizers
from relaax_like.algorithm.flare import FlareAlgorithm
from relaax_like.algorithm.linear_values import LinearValues
from relaax_like.algorithm.model import Model, Specs, get_variables
from relaax_like.algorithm.phases import Phase
from relaax_like.algorithm.return_support import ReturnSupport
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.plan import Episodes, Offline, OnPolicy, Replay
from relaax_like.config.schedule import Constant, Exponential, Linear, Schedule, Tunable
from relaax_like.nn.action_heads import (
    make_drawn_epsilon_greedy,
    make_epsilon_greedy,
    make_noisy_policy,
    make_policy,
    squash_to_box,
)
from relaax_like.nn.networks import Network, make_network
from relaax_like.nn.target import Target

__all__ = [
    "ActorCritic",
    "Algorithm",
    "AlgorithmConfig",
    "Batch",
    "Constant",
    "Critics",
    "DeterministicModel",
    "DiscreteCritics",
    "Encoder",
    "Episodes",
    "Evaluation",
    "Exponential",
    "FlareAlgorithm",
    "Linear",
    "LinearValues",
    "Losses",
    "Model",
    "Network",
    "Offline",
    "OnPolicy",
    "Phase",
    "RegularNetwork",
    "Regularization",
    "Replay",
    "ReturnSupport",
    "Schedule",
    "Specs",
    "Target",
    "Tensors",
    "Tunable",
    "get_variables",
    "make_drawn_epsilon_greedy",
    "make_epsilon_greedy",
    "make_input_specs",
    "make_network",
    "make_noisy_policy",
    "make_normalizers",
    "make_policy",
    "squash_to_box",
]
