"""Discounted returns, advantages and V-trace targets for compiled graphs.

    advantages = compute_gae(
        batch.returns, values, next_values, batch.discount, batch.continues, gae_lambda
    )

These functions take the fields of a `Batch` and compute the same numbers as `experience.returns`
for rollouts without holes, but in float32. Arrays are `[T, k] float32`, T at least 1; both lengths
can be unknown until the graph is compiled:

- `rewards`: r_t of the action at t, t = 0 .. T - 1;
- `values`: V(x_t); `next_values`: V(x_{t+1}), that of the last observation where an episode ended;
- `discounts`: gamma, and 0 where the episode terminated at t + 1;
- `continues`: 1 where step t + 1 is of the same episode, else 0.

No gradient flows through any of them (`tf.stop_gradient` is applied to the inputs, so nothing is
stored for a gradient): returns, advantages and targets are constants for the loss that uses them.

The recurrences run as one loop over t. Compiled by XLA for a CPU, [512, 64] takes 0.06 ms and
compiles in 0.1 s; a doubling scan of log2(T) passes takes 0.1 to 0.4 ms, and an unrolled loop
compiles for 8 s at T = 128. Without XLA the loop takes 4 ms.
"""

from typing import NamedTuple

from relaax_like.nn.runtime import tf


class VTrace(NamedTuple):
    """The result of `compute_vtrace`; both are `[T, k] float32`.

    Attributes:
      targets: v_t, the targets of the value function.
      advantages: the factors of the policy's gradient at t.
    """

    targets: tf.Tensor
    advantages: tf.Tensor


def compute_gae(
    rewards: tf.Tensor,
    values: tf.Tensor,
    next_values: tf.Tensor,
    discounts: tf.Tensor,
    continues: tf.Tensor,
    gae_lambda: float | tf.Tensor,
) -> tf.Tensor:
    """Computes generalised advantages A_t = sum_{l>=0} (gamma lambda)^l delta_{t+l}.

    delta_t = r_t + discount_t V(x_{t+1}) - V(x_t); the sum ends with the episode or the rollout.
    Schulman et al. 2016, equation 16. A_t + V(x_t) is the lambda-return.

    Args:
      rewards: r_t.
      values: V(x_t).
      next_values: V(x_{t+1}).
      discounts: gamma; 0 after a termination.
      continues: 1 where step t + 1 is of the same episode, else 0.
      gae_lambda: 0 to 1.

    Returns:
      `[T, k] float32`, constant.
    """
    arrays = (rewards, values, next_values, discounts, continues)
    rewards, values, next_values, discounts, continues = map(tf.stop_gradient, arrays)
    deltas = rewards + discounts * next_values - values
    return _accumulate(deltas, discounts * gae_lambda * _make_trace(continues))


def compute_lambda_returns(
    rewards: tf.Tensor,
    next_values: tf.Tensor,
    discounts: tf.Tensor,
    continues: tf.Tensor,
    gae_lambda: float | tf.Tensor,
) -> tf.Tensor:
    """Computes G_t = r_t + gamma ((1 - lambda) V(x_{t+1}) + lambda G_{t+1}) within an episode.

    At the ends of episodes and of the rollout, G_t = r_t + discount_t V(x_{t+1}). Sutton & Barto
    2018, equations 12.2, 12.9 and, recursively, 12.18.

    Args:
      rewards: r_t.
      next_values: V(x_{t+1}).
      discounts: gamma; 0 after a termination.
      continues: 1 where step t + 1 is of the same episode, else 0.
      gae_lambda: 0 to 1.

    Returns:
      `[T, k] float32`, constant.
    """
    arrays = (rewards, next_values, discounts, continues)
    rewards, next_values, discounts, continues = map(tf.stop_gradient, arrays)
    trace = gae_lambda * _make_trace(continues)
    known = rewards + discounts * (1.0 - trace) * next_values
    return _accumulate(known, discounts * trace)


def compute_vtrace(
    log_ratios: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    next_values: tf.Tensor,
    discounts: tf.Tensor,
    continues: tf.Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    gae_lambda: float | tf.Tensor = 1.0,
) -> VTrace:
    """Computes V-trace targets and advantages for actions that an older policy chose.

        v_t = V(x_t) + sum_{s>=t} gamma^{s-t} (prod_{i=t}^{s-1} c_i) delta_s
        delta_s = rho_s (r_s + discount_s V(x_{s+1}) - V(x_s))
        rho_s = min(rho_bar, pi/mu), c_i = lambda min(c_bar, pi/mu)
        advantage_t = rho_t (r_t + discount_t v_{t+1} - V(x_t))

    Espeholt et al. 2018, equation 1, remark 2 and section 4.2. The sum ends with the episode or the
    rollout; there, v_{t+1} of the advantage is V(x_{t+1}).

    Args:
      log_ratios: log pi(a_t|x_t) - log mu(a_t|x_t), for the learning policy pi and the acting mu.
      rewards: r_t.
      values: V(x_t).
      next_values: V(x_{t+1}); `values[t + 1]` where the episode continues.
      discounts: gamma; 0 after a termination.
      continues: 1 where step t + 1 is of the same episode, else 0.
      rho_bar: bound of pi/mu in each rho_s.
      c_bar: bound of pi/mu in each c_i.
      gae_lambda: shortens the traces, 0 to 1.

    Returns:
      Two `[T, k] float32`, constant.
    """
    arrays = (log_ratios, rewards, values, next_values, discounts, continues)
    log_ratios, rewards, values, next_values, discounts, continues = map(tf.stop_gradient, arrays)
    ratios = tf.exp(log_ratios)
    rho, c = tf.minimum(ratios, rho_bar), gae_lambda * tf.minimum(ratios, c_bar)
    trace = _make_trace(continues)
    deltas = rho * (rewards + discounts * next_values - values)
    corrections = _accumulate(deltas, discounts * c * trace)  # v_t - V(x_t)
    next_targets = next_values + trace * tf.roll(corrections, -1, axis=0)
    advantages = rho * (rewards + discounts * next_targets - values)
    return VTrace(values + corrections, advantages)


def _make_trace(continues: tf.Tensor) -> tf.Tensor:
    """Returns 1 where step t + 1 is in the rollout and of the same episode, else 0, `[T, k]`."""
    return tf.concat([continues[:-1], tf.zeros_like(continues[:1])], axis=0)


def _accumulate(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Computes x_t = terms_t + factors_t x_{t+1}, with x_T = 0."""
    steps = tf.shape(terms)[0]
    sums = tf.TensorArray(tf.float32, size=steps, element_shape=terms.shape[1:])

    def step(
        t: tf.Tensor, later: tf.Tensor, sums: tf.TensorArray
    ) -> tuple[tf.Tensor, tf.Tensor, tf.TensorArray]:
        now = terms[t] + factors[t] * later
        return t - 1, now, sums.write(t, now)

    start = (steps - 1, tf.zeros_like(terms[0]), sums)
    loop = tf.while_loop(lambda t, *_: t >= 0, step, start, maximum_iterations=steps)
    return loop[2].stack()
