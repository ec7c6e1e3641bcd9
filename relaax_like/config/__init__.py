"""One YAML file is one experiment: it is read, fully checked, and converted to typed objects.

The names that this module exports are for an algorithm's `config.py`.
"""

from relaax_like.config.actor_critic import ActorCriticConfig
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.continuous import ContinuousReplayConfig, NoisyReplayConfig, OfflineConfig
from relaax_like.config.discrete import DiscreteConfig, LinearValuesConfig
from relaax_like.config.encoder import EncoderConfig
from relaax_like.config.mirror import Mirror, parse_mirror
from relaax_like.config.network import NetworkConfig
from relaax_like.config.optimizer import OptimizerConfig, make_adam, make_sgd
from relaax_like.config.plan import Episodes, Offline, OnPolicy, Replay
from relaax_like.config.replay import ReplayConfig
from relaax_like.config.schedule import Constant, Exponential, Linear, Schedule, Tunable
from relaax_like.config.seeds import derive_seed
from relaax_like.config.spaces import validate_discrete, validate_vector

__all__ = [
    "ActorCriticConfig",
    "AlgorithmConfig",
    "Constant",
    "ContinuousReplayConfig",
    "DiscreteConfig",
    "EncoderConfig",
    "Episodes",
    "Exponential",
    "Linear",
    "LinearValuesConfig",
    "Mirror",
    "NetworkConfig",
    "NoisyReplayConfig",
    "Offline",
    "OfflineConfig",
    "OnPolicy",
    "OptimizerConfig",
    "Replay",
    "ReplayConfig",
    "Schedule",
    "Tunable",
    "derive_seed",
    "make_adam",
    "make_sgd",
    "parse_mirror",
    "validate_discrete",
    "validate_vector",
]
