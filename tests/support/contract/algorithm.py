"""Costs and metrics that show which parts of the contract were honoured."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from relaax_like.algorithm import Algorithm, Batch, Losses, Phase
from relaax_like.learn.hooks import LearnerHook, register_learner_hook

from .config import Config
from .model import ContractModel


class Contract(Algorithm):
    autograph = False
    phases = (Phase("critic"), Phase("actor", every=2))  # if phases
    frozen = ("fixed",)  # if frozen

    def prepare(self, batch: Batch) -> dict[str, tf.Tensor]:  # if prepare
        return {"twice": 2.0 * batch.inputs["observation"][..., 0]}  # if prepare

    def learn(self, batch: Batch) -> Losses:
        model, x = self.model, batch.inputs["observation"]
        value, action = model.critic(x)[..., 0], batch.actions["action"]
        costs = {
            "critic": batch.mean((value - 1.0) ** 2),
            "actor": batch.mean(tf.reduce_sum(model.actor(x) ** 2, -1)),
            "fixed": batch.mean(model.fixed(tf.ones_like(x))[..., 0] ** 2),
        }
        metrics = {"critic seen": batch.mean(tf.cast(action // 2 % 2, tf.float32))}
        metrics["explores"] = batch.mean(tf.cast(action % 2, tf.float32))  # if exploration
        metrics["prepared"] = batch.mean(batch.extras["twice"])  # if prepare
        # An action says whether it was taken at an odd observation.  # if next actions
        after = tf.cast(batch.next_actions["action"] // 4, tf.float32)  # if next actions
        odd = batch.next_inputs["observation"][..., 0] % 2.0  # if next actions
        goes_on = batch.continues  # if next actions
        metrics["after"] = batch.mean(goes_on * tf.abs(after - odd))  # if next actions
        metrics["odd after"] = batch.mean(goes_on * odd)  # if next actions
        metrics["costs"] = batch.mean(batch.rewards["costs"][..., 1])  # if several rewards
        metrics["draw"] = self.random.normal(())  # if random
        metrics["steps"] = tf.cast(self.global_t, tf.float32)  # if settings
        metrics["epsilon"] = self.config.epsilon  # if settings
        metrics["inputs"] = tf.cast(tf.is_tensor(self.config.factor), tf.float32)  # if settings
        # Ten steps, which observe 0, 1, ... 9.  # if episodes
        lengths = tf.reduce_sum(batch.valid, 0)  # if episodes
        sums = tf.reduce_sum(batch.valid * x[..., 0], 0)  # if episodes
        whole = tf.logical_and(lengths == 10.0, sums == 45.0)  # if episodes
        metrics["whole"] = tf.reduce_mean(tf.cast(whole, tf.float32))  # if episodes
        # How many steps the next observation is away: two, or one before an end.  # if replay
        ahead = batch.next_inputs["observation"][..., 0] - x[..., 0]  # if replay
        metrics["ahead"] = batch.mean(ahead)  # if replay
        rows = {}
        rows["td_error"] = 3.0 * batch.inputs["observation"][..., 0]  # if rows
        updates = {}
        updates["counted"] = model.critic.counted.variable + 1.0  # if buffers
        return Losses(costs, rows, metrics, updates)

    def stop(self, metrics):  # if stop
        return True  # if stop

    def review(self, numbers, updates):  # if review
        path = Path(self.config.rows_file).with_name("reviewed.txt")  # if review
        path.write_text(f"{updates} {sorted(numbers)}")  # if review

    def predict(self, inputs, states):  # if predict
        raise NotImplementedError  # if predict


class Rows:  # if data handler
    def __init__(self, config):  # if data handler
        self.file = config.rows_file  # if data handler

    def after_interact(self, rollout):  # if data handler
        return rollout  # if data handler

    def after_learn(self, training_data, policy_data):  # if data handler
        found = policy_data.get("td_error", 0.0)  # if data handler
        x = training_data.rollout.inputs["observation"][..., 0]  # if data handler
        np.savez(self.file, expected=3.0 * x, found=found)  # if data handler


def make_data_handler(config):  # if data handler
    return Rows(config)  # if data handler


class NoteHook(LearnerHook):
    """Writes down what it sees."""

    def __init__(self, name, priority, *, position, file):
        super().__init__(name, priority, position=position)
        self._file = Path(file)

    def __call__(self, engine):
        cost = engine.log_buffer["critic"]
        self._file.write_text(f"iteration {engine.updates}, critic {cost:.3f}")


register_learner_hook(f"note {Path(__file__).parents[1].name}", NoteHook)


def make_algorithm(config: Config, model: ContractModel, seed: int) -> Contract:
    return Contract(model, config, seed)
