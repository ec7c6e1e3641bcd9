"""a2c's networks; what goes in becomes a tensor first, so that they act in one compiled call."""

from typing import Any

import tensorflow as tf

from relaax_like.algorithm.actor_critic import ActorCritic
from relaax_like.algorithm.model import Tensors


class CompiledActorCritic(ActorCritic):
    """Knows TensorFlow only, as most models that are not made of our layers."""

    def policy(self, inputs: Tensors, states: Tensors) -> tuple[dict[str, Any], Tensors]:
        """See `ActorCritic`."""
        return super().policy({k: tf.convert_to_tensor(v) for k, v in inputs.items()}, states)


def make_model(config: Any, seed: int) -> CompiledActorCritic:
    """Builds the model with the values that a run starts from."""
    return CompiledActorCritic(config, seed)
