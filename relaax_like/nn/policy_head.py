"""PolicyHead: converts outputs of a network to the distribution of one action."""

from __future__ import annotations

from typing import Any

from relaax_like.nn.action_heads import compute_means, make_policy, num_parameters
from relaax_like.nn.arrays import Values
from relaax_like.nn.distributions import Distribution
from relaax_like.nn.layers import Constant, Parameter
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.module import Module
from relaax_like.wire.spaces import Space


class PolicyHead(Module):
    """One leaf of the action space, with its standard deviation if it is continuous.

        head = PolicyHead(Discrete(n=4))
        network = make_network("policy", config, shape, head.outputs, seed=1)
        distribution = head(network(x))  # to act
        ...
        parameters = head.complete(network(x))  # to learn: with log_std
        distribution = head.make_distribution(parameters)

    Attributes:
      space: the leaf.
      outputs: number of network outputs that the head needs.
      size: number of parameters that `complete` returns.
      log_std: computes the log standard deviations of a Box, which needs it; otherwise None.

    Args:
      space: as the attribute.
      bounded: for a Box: squash actions into it.
      log_std: as the attribute.

    Raises:
      InvalidInputError: the space cannot be an action's; see `num_parameters`.
    """

    def __init__(
        self, space: Space, *, bounded: bool = False, log_std: Parameter | Constant | None = None
    ):
        super().__init__()
        self.space = space
        self.log_std = log_std
        self.outputs = num_parameters(space, bounded=bounded, separate_log_std=True)
        self.size = self.outputs if log_std is None else 2 * self.outputs
        self._bounded = bounded

    def __call__(self, outputs: Values) -> Any:
        """Returns the distribution, in NumPy for arrays.

        Args:
          outputs: `[..., outputs] float32`.

        Raises:
          InvalidInputError: the last axis of a tensor has another length.
        """
        log_std = None if self.log_std is None else self.log_std(outputs)
        return make_policy(self.space, outputs, log_std, bounded=self._bounded)

    def complete(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns all parameters of the distribution, `[..., size]`: with log_std, if any."""
        if self.log_std is None:
            return outputs
        log_std = tf.broadcast_to(self.log_std(outputs), tf.shape(outputs))
        return tf.concat([outputs, log_std], -1)

    def make_distribution(self, parameters: tf.Tensor) -> Distribution:
        """Returns the distribution for the parameters from `complete`.

        Raises:
          InvalidInputError: the last axis has a length other than `size`.
        """
        return make_policy(self.space, parameters, bounded=self._bounded)

    def compute_means(self, parameters: tf.Tensor) -> tf.Tensor:
        """Returns the policy's mean action, for the parameters from `complete`.

        Returns:
          For a continuous action, its mean `[..., d]`, or with bounds the squashed mean, which is
          the median; for discrete actions, the probability of each, choice by choice, `[..., n]`;
          for switches, the probability of being on, `[..., d]`.

        Raises:
          InvalidInputError: see `make_policy`; only for a continuous action.
        """
        return compute_means(self.space, parameters, bounded=self._bounded)
