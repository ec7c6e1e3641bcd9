"""An actor-critic, and the prediction of rewards, which shares its layers and trains them, too."""

from typing import Any

import tensorflow as tf

from relaax_like.algorithm import ActorCritic, Algorithm, Batch, Losses
from relaax_like.nn import Dense
from relaax_like.nn.returns import compute_vtrace

from .config import ACTOR_CRITIC, HEADS, PREDICTION, REWARD, TRUNK, Config


class SharedActorCritic(Algorithm):
    """Advantage actor-critic; see a2c.

    Mnih et al. 2016 (https://arxiv.org/abs/1602.01783).
    """

    autograph = False
    frozen = (REWARD,)
    config: Config
    model: ActorCritic

    def learn(self, batch: Batch) -> Losses:
        """Returns the cost of a rollout `[T, k, ...]`.

            mean(-A_t log pi(a_t|x_t) + c_v (v_t - V(x_t))^2 - c_e H(pi(.|x_t)))

        with v_t = V(x_t) + A_t and the advantages A_t being constant; if an older policy acted,
        they are those of V-trace (Espeholt et al. 2018, equation 1).
        """
        config, seen = self.config, self.model.evaluate(batch)
        log_prob = seen.log_prob(batch.actions)
        targets = compute_vtrace(
            log_prob - batch.log_prob,
            self.model.compute_returns(batch),
            seen.values,
            self.model.value(batch.next_inputs, seen.memory),
            batch.discount,
            batch.continues,
            gae_lambda=config.gae_lambda,
        ).targets
        entropy = batch.mean(seen.policy.entropy())
        advantages = targets - tf.stop_gradient(seen.values)
        actor = -batch.mean(log_prob * advantages) - config.entropy_coefficient * entropy
        critic = config.value_coefficient * batch.mean((targets - seen.values) ** 2)
        cost = actor + critic
        metrics = {"actor": actor, "critic": critic, "entropy": entropy}
        return Losses({TRUNK: cost, HEADS: cost}, metrics=metrics)


class RewardPrediction(Algorithm):
    """Predicts whether the next reward is negative, zero or positive.

    Jaderberg et al. 2017 (https://arxiv.org/abs/1611.05397), section 3.2. Only the shared layers
    learn from it, besides its own head.
    """

    autograph = False
    frozen = (HEADS,)
    config: Config
    model: Any  # see `make_model`

    def learn(self, batch: Batch) -> Losses:
        """Returns the mean cross-entropy of the sign of each sequence's last reward.

        Args:
          batch: sequences `[T, B, ...]` with one valid step each. The reward after that step is
            predicted from its observation and those of up to `frames - 1` steps before it; what is
            before the start of an episode counts as zeros.
        """
        features = self.model.encode(batch)  # [T, B, F]
        last = tf.argmax(batch.valid, 0, tf.int32)  # [B]
        places = last - tf.range(self.config.frames)[:, None]  # [frames, B]; below 0: there is none
        chosen = tf.one_hot(places, tf.shape(features)[0])  # [frames, B, T]
        seen = tf.einsum("kbt,tbf->bkf", chosen, features)
        width = self.config.frames * features.shape[-1]
        logits = self.model.reward(tf.reshape(seen, [-1, width]))  # [B, 3]
        rewards = tf.reduce_sum(batch.valid * self.model.compute_returns(batch), 0)  # [B]
        classes = 1 + tf.cast(tf.sign(rewards), tf.int32)
        errors = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
        hits = tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), classes), tf.float32)
        # One row of each sequence is valid.
        cost = self.config.prediction_coefficient * batch.mean(errors[None])
        return Losses({TRUNK: cost, REWARD: cost}, metrics={"accuracy": batch.mean(hits[None])})


def make_model(config: Config, seed: int) -> Any:
    """Builds the model of both: an actor-critic with a third head on the shared layers."""
    model: Any = ActorCritic(config, seed)
    assert model.trunk is not None, "the settings demand it"
    width = config.frames * model.trunk.features
    model.reward = Dense("reward", width, 3, seed=seed + 2000, gain=0.01)
    heads = ("actor", "critic", "heads")
    model.groups = {TRUNK: ("trunk",), HEADS: heads, REWARD: ("reward",)}
    return model


def make_algorithms(config: Config, seed: int) -> dict[str, Algorithm]:
    """Builds both; without `predict_rewards` only the first one."""
    model = make_model(config, config.seed)
    algorithms: dict[str, Algorithm] = {ACTOR_CRITIC: SharedActorCritic(model, config, seed)}
    if config.predict_rewards:
        algorithms[PREDICTION] = RewardPrediction(model, config, seed)
    return algorithms
