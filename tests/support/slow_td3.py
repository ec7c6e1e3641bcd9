"""TD3 and DDPG written down straight, in float64: one update after another, without our classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax_like.nn.runtime import tf

BETA1, BETA2 = 0.9, 0.999


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A minibatch.

    Attributes:
      x, next_x: observations, `[B, n]`.
      actions: `[B, d]`, of the environment.
      returns, discounts, weights: `[B]`.
      noise: `[B, d]`, on the next action, of actions scaled to [-1, 1], clipped.
    """

    x: np.ndarray
    next_x: np.ndarray
    actions: np.ndarray
    returns: np.ndarray
    discounts: np.ndarray
    weights: np.ndarray
    noise: np.ndarray


class SlowTD3:
    """Networks of one hidden layer of ReLU units.

    Attributes:
      values: name -> array: weights and their targets, `target/NAME`.

    Args:
      values: at the start.
      critics: number of critics.
      delay: critic updates between two updates of the actor and the targets.
      low: bounds of the action, `[d]`.
      high: the same.
      tau: of the targets.
      rates: learning rates of Adam, of actor and critics.
      epsilon: of Adam.
    """

    def __init__(
        self,
        values: Mapping[str, np.ndarray],
        critics: int,
        delay: int,
        low: Sequence[float],
        high: Sequence[float],
        tau: float,
        rates: tuple[float, float],
        epsilon: float,
    ):
        self.values = {name: np.asarray(v, np.float64) for name, v in values.items()}
        self._critics, self._delay, self._tau, self._epsilon = critics, delay, tau, epsilon
        self._low, self._high = np.array(low, np.float64), np.array(high, np.float64)
        self._rates = dict(zip(("actor", "critic"), rates, strict=True))
        self._moments = {name: [0.0, 0.0] for name in values}
        self._steps = {"actor": 0, "critic": 0}

    def act(self, w: Mapping[str, Any], x: Any) -> Any:
        """Returns the action within the bounds."""
        u = tf.nn.relu(x @ w["actor.0.W"] + w["actor.0.b"]) @ w["policy.W"] + w["policy.b"]
        return self._low + (self._high - self._low) * (tf.tanh(u) + 1) / 2

    def value(self, w: Mapping[str, Any], i: int, x: Any, actions: Any) -> Any:
        """Returns the value of critic i, 1 for the first, `[B]`."""
        scaled = 2 * (actions - self._low) / (self._high - self._low) - 1
        joined = tf.concat([x, scaled], 1)
        hidden = tf.nn.relu(joined @ w[f"critic{i}.0.W"] + w[f"critic{i}.0.b"])
        return (hidden @ w[f"critic{i}.out.W"] + w[f"critic{i}.out.b"])[:, 0]

    def compute_errors(self, w: Mapping[str, Any], batch: Batch) -> list[Any]:
        """Returns Q_i(x, a) - y for each critic, `[B]`."""
        slow = {n.removeprefix("target/"): v for n, v in w.items() if n.startswith("target/")}
        action = self.act(slow, batch.next_x)
        action = action + batch.noise * (self._high - self._low) / 2
        action = tf.minimum(tf.maximum(action, self._low), self._high)
        several = [self.value(slow, i, batch.next_x, action) for i in self._numbers]
        least = several[0]
        for one in several[1:]:
            least = tf.minimum(least, one)
        goal = tf.stop_gradient(batch.returns + batch.discounts * least)
        return [self.value(w, i, batch.x, batch.actions) - goal for i in self._numbers]

    def compute_costs(self, w: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
        """Returns the costs of critics and actor."""
        squares = sum(error**2 for error in self.compute_errors(w, batch))
        best = self.value(w, 1, batch.x, self.act(w, batch.x))
        return {
            "critic": tf.reduce_mean(batch.weights * squares),
            "actor": -tf.reduce_mean(batch.weights * best),
        }

    def update(self, batch: Batch) -> None:
        """Makes one update."""
        self._step("critic", batch)
        if self._steps["critic"] % self._delay:
            return
        self._step("actor", batch)
        for name, value in self.values.items():
            if name.startswith("target/"):
                source = self.values[name.removeprefix("target/")]
                self.values[name] = self._tau * source + (1 - self._tau) * value

    @property
    def _numbers(self) -> range:
        return range(1, self._critics + 1)

    def _step(self, group: str, batch: Batch) -> None:
        parts = ("actor", "policy") if group == "actor" else ("critic",)
        w = {name: tf.Variable(value) for name, value in self.values.items()}
        own = [name for name in w if name.startswith(parts)]
        with tf.GradientTape() as tape:
            cost = self.compute_costs(w, batch)[group]
        slopes = tape.gradient(cost, [w[name] for name in own])
        self._steps[group] += 1
        t = self._steps[group]
        for name, slope in zip(own, slopes, strict=True):
            g, (m, v) = slope.numpy(), self._moments[name]
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            self._moments[name] = [m, v]
            # Kingma and Ba 2014, the end of section 2: epsilon without the correction.
            rate = self._rates[group] * np.sqrt(1 - BETA2**t) / (1 - BETA1**t)
            self.values[name] = self.values[name] - rate * m / (np.sqrt(v) + self._epsilon)
