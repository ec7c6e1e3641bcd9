"""The tutorial's two networks: the global weights, and the functions that an agent adds."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from relaax_like.core import Variable
from relaax_like.nn import Dense

from .config import Config


class GlobalPolicyNN(tf.Module):
    """Holds only the weights: W1 `[state_size, layer_size]` and W2 `[layer_size, 1]`, no biases."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(name="policy")
        self.hidden = Dense(
            "W1",
            config.state_size,
            config.layer_size,
            seed=seed,
            activation="relu",
            use_bias=False,
        )
        self.output = Dense("W2", config.layer_size, 1, seed=seed + 1, use_bias=False)

    @property
    def values(self) -> list[tf.Variable]:
        """W1 and W2."""
        return [self.hidden.W, self.output.W]

    def assign_values(self, values: Sequence[np.ndarray]) -> None:
        """Copies arrays, such as the parameter server's, into the weights."""
        for variable, value in zip(self.values, values, strict=True):
            variable.assign(value)


class AgentPolicyNN(GlobalPolicyNN):
    """Adds the forward pass and the gradient of the policy-gradient loss."""

    def __init__(self, config: Config, seed: int = 0):
        super().__init__(config, seed)
        states = tf.TensorSpec([None, config.state_size], tf.float32)
        column = tf.TensorSpec([None, 1], tf.float32)
        # A concrete function skips the matching of Python arguments, a third of the time per call.
        self._policy = tf.function(
            lambda s: tf.sigmoid(self._logits(s)), input_signature=[states], jit_compile=True
        ).get_concrete_function()
        self._gradients = tf.function(
            self._trace_gradients, input_signature=[states, column, column]
        )

    def run_policy(self, state: np.ndarray) -> float:
        """Returns pi, the probability of action 0, for one state `[state_size]`."""
        row = np.asarray(state, np.float32).reshape(1, -1)
        return float(self._policy(tf.constant(row)).numpy()[0, 0])

    def compute_gradients(
        self, states: np.ndarray, actions: np.ndarray, advantages: np.ndarray
    ) -> list[np.ndarray]:
        """Computes the gradients of the loss with respect to W1 and W2.

        With pi = P(action 0), log-likelihood = log(pi) for action 0 and log(1 - pi) for action 1,
        which the tutorial writes as log(a * (a - pi) + (1 - a) * (pi - a)):

            loss = -mean(log-likelihood * advantage)

        Williams 1992 (REINFORCE, https://doi.org/10.1007/BF00992696).

        Args:
          states: `[T, state_size]`.
          actions: `[T, 1]`, 0 or 1.
          advantages: `[T, 1]`.

        Returns:
          Gradients `[state_size, layer_size]` and `[layer_size, 1]`, float32.
        """
        batch = [np.asarray(array, np.float32) for array in (states, actions, advantages)]
        return [gradient.numpy() for gradient in self._gradients(*batch)]

    def _logits(self, states: tf.Tensor) -> tf.Tensor:
        return self.output(self.hidden(states))

    def _trace_gradients(
        self, states: tf.Tensor, actions: tf.Tensor, advantages: tf.Tensor
    ) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = self._logits(states)
            # log(sigmoid(z)) and log(1 - sigmoid(z)), never with the logarithm of zero.
            log_likelihood = tf.where(
                actions == 0, -tf.nn.softplus(-logits), -tf.nn.softplus(logits)
            )
            loss = -tf.reduce_mean(log_likelihood * advantages)
        return tape.gradient(loss, self.values)


def make_initial_values(config: Config, seed: int) -> list[Variable]:
    """Returns the initial weights of a run."""
    network = GlobalPolicyNN(config, seed)
    return [Variable(name, v.numpy()) for name, v in zip(("W1", "W2"), network.values, strict=True)]
