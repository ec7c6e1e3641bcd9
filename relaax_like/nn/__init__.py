"""Layers, networks and distributions in TensorFlow; for acting, most of them also in NumPy."""

from relaax_like.nn.action_heads import (
    make_action_spec,
    make_drawn_epsilon_greedy,
    make_epsilon_greedy,
    make_noisy_policy,
    make_policy,
    squash_to_box,
)
from relaax_like.nn.batch_norm import BatchNorm, Norming
from relaax_like.nn.layers import Dense, LayerNorm, NoisyDense, Parameter, take
from relaax_like.nn.module import Module, declare
from relaax_like.nn.networks import Network, make_network
from relaax_like.nn.normalization import Normalizer
from relaax_like.nn.target import Target

__all__ = [
    "BatchNorm",
    "Dense",
    "LayerNorm",
    "Module",
    "Network",
    "NoisyDense",
    "Normalizer",
    "Norming",
    "Parameter",
    "Target",
    "declare",
    "make_action_spec",
    "make_drawn_epsilon_greedy",
    "make_epsilon_greedy",
    "make_network",
    "make_noisy_policy",
    "make_policy",
    "squash_to_box",
    "take",
]
