"""FlareAlgorithm: algorithms in FLARE's form, with eight arguments."""

from __future__ import annotations

import abc
from typing import Any

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.batch import Batch, Losses, Tensors
from relaax_like.nn.layers import merge_steps
from relaax_like.nn.lazy_tensorflow import tf


class FlareAlgorithm(Algorithm):
    """An algorithm whose `learn` takes FLARE's eight dictionaries and returns costs.

        class SimpleQ(FlareAlgorithm):
            def predict(self, inputs, states):
                ...                                         # epsilon-greedy, say
                return {"action": action}, states

            def learn(self, inputs, next_inputs, states, next_states, next_alive, actions,
                      next_actions, rewards):
                ...
                return {"cost": (q - target) ** 2}          # [B, 1], [B], or a scalar

    All arguments are of single steps, `[B, ...]`; rollouts are split into steps, with the memory
    that the model's policy has at each step. For single steps, `next_states` comes from the agent,
    or from the model's policy if the agent provides none.
    `next_alive["alive"]: [B, 1]` is 1, 0 after a termination, -1 after a truncation (for single
    steps of a plan `Replay`, 1). A cost with a variable group's name only trains that group; the
    sum of all others trains all groups.

    `predict` and `exploit` can be overridden if the agent has its own `CompiledAlgorithm`;
    otherwise an override is refused, because agents then act with `Model.policy`.
    """

    def predict(self, inputs: Tensors, states: Tensors) -> tuple[Tensors, Tensors]:
        """Returns actions drawn from the policy, `[B, ...]` by name, and the next memory."""
        policies, states = self.model.policy(inputs, states)
        return {name: p.sample(self.random) for name, p in policies.items()}, states

    def exploit(self, inputs: Tensors, states: Tensors) -> tuple[Tensors, Tensors]:
        """Returns the policy's best actions, and the next memory."""
        policies, states = self.model.policy(inputs, states)
        return {name: policy.mode() for name, policy in policies.items()}, states

    @abc.abstractmethod
    def learn(  # type: ignore[override]
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
        """Returns costs by name: `[B, 1]` or `[B]`, to average over the batch, or scalars."""

    def compute_losses(self, batch: Batch) -> Losses:
        """Calls `learn` with single steps."""
        found = self._find_states(batch)
        rows = batch
        if batch.begins is not None:
            rows = _merge(batch)
            found = tf.nest.map_structure(merge_steps, found)
        states, next_states = found
        alive = tf.where(rows.continues > 0, 1.0, tf.where(rows.discount > 0, -1.0, 0.0))
        costs = self.learn(
            rows.inputs,
            rows.next_inputs,
            states,
            next_states,
            {"alive": alive[:, None]},
            rows.actions,
            rows.next_actions,
            {name: _as_column(reward) for name, reward in rows.rewards.items()},
        )
        means = {name: _average(rows, cost) for name, cost in costs.items()}
        common = [mean for name, mean in means.items() if name not in self.trained_groups]
        totals = {}
        for group in self.trained_groups:
            parts = [*common, *([means[group]] if group in means else [])]
            if parts:
                totals[group] = tf.add_n(parts)
        metrics = {name: mean for name, mean in means.items() if name not in self.trained_groups}
        return Losses(totals, metrics=metrics)

    def _find_states(self, batch: Batch) -> tuple[Tensors, Tensors]:
        """Returns the memory before and after each row."""
        if not self.model.get_state_specs():
            return {}, {}
        if batch.begins is None:
            found = batch.next_memory or self.model.policy(batch.inputs, batch.memory)[1]
            return batch.memory, found

        def step(carried: Any, row: Any) -> Any:
            inputs, begins = row
            keep = 1.0 - tf.cast(begins, tf.float32)[:, None]
            before = {name: keep * state for name, state in carried[1].items()}
            return before, dict(self.model.policy(inputs, before)[1])

        start = (dict(batch.memory), dict(batch.memory))
        return tf.scan(step, (dict(batch.inputs), batch.begins), start)


def _merge(batch: Batch) -> Batch:
    """Returns the rows `[T * B, ...]` of a rollout `[T, B, ...]`."""
    names = ("inputs", "next_inputs", "actions", "rewards", "next_actions", "extras")
    tensors = ("discount", "continues", "valid", "weights")
    parts = {name: getattr(batch, name) for name in (*names, *tensors)}
    nested = {k: dict(v) if k in names else v for k, v in parts.items()}
    merged = tf.nest.map_structure(merge_steps, nested)
    return Batch(returns=None, log_prob=None, reduction=batch.reduction, **merged)


def _as_column(reward: tf.Tensor) -> tf.Tensor:
    return reward[:, None] if len(reward.shape) == 1 else reward


def _average(rows: Batch, cost: tf.Tensor) -> tf.Tensor:
    if not len(cost.shape):
        return cost
    return rows.mean(tf.reshape(cost, [-1]))
