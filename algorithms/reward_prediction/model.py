"""The network: an actor-critic with shared layers, and a head that predicts rewards from them."""

import tensorflow as tf

from relaax_like.algorithm import ActorCritic, Batch
from relaax_like.nn import Dense

from .config import HEADS, REWARD, TRUNK, Config


class RewardPredictingModel(ActorCritic):
    """Adds a linear head on the shared layers' features of several observations."""

    def __init__(self, config: Config, seed: int):
        super().__init__(config, seed)
        heads = ("actor", "critic", "heads")
        self.groups = {TRUNK: ("trunk",), HEADS: heads, REWARD: ("reward",)}
        self.frames = config.frames
        assert self.trunk is not None, "the settings demand it"
        width = config.frames * self.trunk.features
        self.reward = Dense("reward", width, 3, seed=seed + 2000, gain=0.01)

    def predict_rewards(self, batch: Batch) -> tf.Tensor:
        """Returns logits of a negative reward, none, and a positive one, `[B, 3]`.

        Args:
          batch: sequences `[T, B, ...]` with one valid step each. The reward after that step is
            predicted from its observation and those of up to `frames - 1` steps before it; what is
            before the start of an episode counts as zeros.
        """
        features = self.encode(batch)  # [T, B, F]
        last = tf.argmax(batch.valid, 0, tf.int32)  # [B]
        places = last - tf.range(self.frames)[:, None]  # [frames, B]; below 0: there is none
        chosen = tf.one_hot(places, tf.shape(features)[0])  # [frames, B, T]
        seen = tf.einsum("kbt,tbf->bkf", chosen, features)
        width = self.frames * features.shape[-1]
        return self.reward(tf.reshape(seen, [-1, width]))
