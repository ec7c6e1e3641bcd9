"""Algorithm: what to learn from a batch. An algorithm is written once and runs everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.algorithm.batch import Batch, Losses, Tensors
from relaax_like.algorithm.model import Model, get_groups
from relaax_like.algorithm.phases import Phase
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.nn.lazy_tensorflow import tf


class Algorithm:
    """Owns a model and computes the costs that it minimises.

        class Cloning(Algorithm):
            def learn(self, batch):
                policies, _ = self.model.policy(batch.inputs, batch.memory)
                log_prob = policies["action"].log_prob(batch.actions["action"])
                return Losses({"default": -batch.mean(log_prob)})

    The methods are traced by TensorFlow, so they must not have side effects in Python.

    Attributes:
      model: the network.
      config: the settings. While a method is traced, `Tunable` settings and schedules are tensors.
      global_t: environment steps of the whole run, `[] int64`, while a method is traced.
      random: source of random numbers, while `learn`, `prepare` or FLARE's `predict` is traced;
        draws of the first two depend only on `seed`, the variable groups of the phase, the number
        of the update, and their order in the method.
      phases: optimizer steps of one update, in order; empty: one step of all groups that are not
        frozen.
      frozen: variable groups that are not trained.
      autograph: whether methods of the algorithm or of its model have an `if` or a loop that
        depends on the value of a tensor. False halves the tracing time.
      seed: as the argument.

    Args:
      model: the network.
      config: the settings; None: the defaults of `AlgorithmConfig`.
      seed: of the random numbers.
    """

    phases: Sequence[Phase] = ()
    frozen: Sequence[str] = ()
    autograph: bool = True
    config: Any
    global_t: tf.Tensor | int = 0
    random: Any = None

    def __init__(self, model: Model, config: AlgorithmConfig | None = None, seed: int = 0):
        self.model = model
        self.config = AlgorithmConfig() if config is None else config
        self.seed = seed

    @property
    def trained_groups(self) -> tuple[str, ...]:
        """The variable groups that need a cost: all that are not frozen.

        Raises:
          ConfigError: see `Model.get_group`.
        """
        return tuple(group for group in get_groups(self.model) if group not in self.frozen)

    @property
    def max_gradient_norm(self) -> Any:
        """Maximum norm of the gradient of all groups of a phase; None: no limit.

        Larger gradients are scaled down to it. A mapping from variable group to norm scales each
        group's gradient by itself; groups that it does not have are not limited. By default,
        the setting of this name, or no limit without such a setting. Pascanu et al. 2013,
        https://arxiv.org/abs/1211.5063.
        """
        return getattr(self.config, "max_gradient_norm", None)

    def prepare(self, batch: Batch) -> Tensors:
        """Computes what all minibatches of a batch share, such as advantages; by default nothing.

        Called once per batch, before its first update; with a plan `Replay` and a learner beside
        its agents, once per minibatch. No gradient flows through it.

        Returns:
          Tensors with the leading axes of the batch. They are split into minibatches with it, and
          are in `batch.extras` in `learn`.
        """
        return {}

    def learn(self, batch: Batch) -> Losses:
        """Returns the costs of a minibatch. Optional: not every Algorithm learns.

        Each variable group that is not `frozen` needs a cost; a cost only trains the group of its
        name.

        Raises:
          NotImplementedError: the class does not override this method.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not learn: it has no method learn; define learn(self, "
            "batch), which returns Losses"
        )

    def compute_losses(self, batch: Batch) -> Losses:
        """Calls `learn`; classes whose `learn` has other arguments override this."""
        return self.learn(batch)

    def stop(self, metrics: Tensors) -> tf.Tensor | bool:
        """Returns whether to skip the remaining updates of this batch, `[] bool`; by default never.

        Called after each update, which is kept.

        Args:
          metrics: costs and metrics that `learn` returned for the update's minibatch.
        """
        return False

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        """Looks at the results of an iteration, such as to warn of a setting; by default nothing.

        It is not traced. If several learners make updates together, one of them calls it.

        Args:
          numbers: means of the costs and metrics of `learn` over the updates, by name.
          updates: number of updates of the iteration.
        """
