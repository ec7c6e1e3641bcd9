"""Algorithm: what to predict and what to learn with a Model."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from relaax_like.computation.model import Model, Tensors
from relaax_like.nn import runtime  # noqa: F401 - settings, before anything is computed


def make_generator(seed: int) -> tf.random.Generator:
    """Returns a source of random numbers; any whole number is a seed."""
    return tf.random.Generator.from_seed(seed & 0x7FFFFFFFFFFFFFFF, alg="philox")


class Algorithm:
    """Owns a Model; decides which of its functions predict and which costs it learns from.

    Written once; a `ComputationTask` derives the compiled forms. All arguments are dictionaries of
    tensors keyed by the model's specs, batch first. Its methods are traced: no Python side effects.

    `learn_order`, `stop` and `after_update` are for updates that a `LearningTask` makes itself;
    gradients that go to a parameter server know nothing of them.

    Attributes:
      learn_order: variable groups that are stepped one after another, all of them: `learn` is asked
        anew for each, and sees the values that the groups before it left. Empty: one call, and all
        groups are stepped at once.
      autograph: whether its methods, and those of its model, have an `if` or a loop of Python that
        depends on a tensor. False where none has: they are compiled in half the time.

    Args:
      model: the network.
      seed: of the draws in `predict`.
      max_gradient_norm: gradients are scaled down to this global norm (Pascanu et al. 2013,
        https://arxiv.org/abs/1211.5063); None leaves them as they are. By variable group: each
        group's gradient to a norm of its own.
    """

    learn_order: Sequence[str] = ()
    autograph: bool = True
    # Environment steps of the whole run, `[] int64`, while a LearningTask traces `learn`.
    global_t: tf.Tensor | int = 0

    def __init__(
        self,
        model: Model,
        seed: int = 0,
        max_gradient_norm: float | Mapping[str, float | None] | None = None,
    ):
        self.model = model
        self.max_gradient_norm = max_gradient_norm
        self.generator = make_generator(seed)

    def predict(self, inputs: Tensors, states: Tensors) -> tuple[Tensors, Tensors]:
        """Returns actions drawn from the policy, and the next states."""
        distributions, next_states = self.model.policy(inputs, states)
        return {k: d.sample(self.generator) for k, d in distributions.items()}, next_states

    def exploit(self, inputs: Tensors, states: Tensors) -> tuple[Tensors, Tensors]:
        """Returns the policy's best actions, and the next states."""
        distributions, next_states = self.model.policy(inputs, states)
        return {k: d.mode() for k, d in distributions.items()}, next_states

    def prepare(
        self,
        inputs: Tensors,
        next_inputs: Tensors,
        states: Tensors,
        next_states: Tensors,
        next_alive: Tensors,
        actions: Tensors,
        next_actions: Tensors,
        rewards: Tensors,
        extras: Tensors | None = None,
    ) -> Tensors:
        """Computes what all minibatches of a batch share, such as advantages; by default nothing.

        Called once for each batch, before its first update. No gradient flows through it.

        Returns:
          Tensors with the first axes of the batch, cut into minibatches with it. Where there are
          any, `learn` gets them as one argument more, `extras`.
        """
        return {} if extras is None else extras

    def learn(
        self,
        inputs: Tensors,
        next_inputs: Tensors,
        states: Tensors,
        next_states: Tensors,
        next_alive: Tensors,
        actions: Tensors,
        next_actions: Tensors,
        rewards: Tensors,
    ) -> Tensors:
        """Returns the costs, scalars by name. Optional: not all tasks learn.

        A cost that bears the name of a variable group reaches that group alone; all others are
        added up and reach all groups. What is no cost but worth knowing, such as a divergence,
        comes along through `tf.stop_gradient`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not learn")

    def stop(self, metrics: Tensors) -> tf.Tensor:
        """Returns whether the rest of the epochs is skipped, `[] bool`; by default it never is.

        Asked after each update, which stays.

        Args:
          metrics: what `learn` returned for the update's minibatch.
        """
        return tf.constant(False)

    def after_update(self, version: tf.Tensor) -> None:
        """Changes variables that no gradient reaches, such as a copied target; by default none.

        Called after each update, before `stop` is asked.

        Args:
          version: updates so far, this one included, `[] int64`: 1 after the first.
        """
