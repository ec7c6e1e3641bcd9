"""Returns: pure functions of rewards, in NumPy; `nn.returns` has those for compiled graphs.

All functions except `compute_discounted_returns` and `normalize` take a rollout of T steps of k
slots, whose episodes can begin and end at any step. Two arrays, `[T, k]`, describe what follows
step t:

- `next_alive[t]`: 1 the episode continues; 0 it terminated with this step: the value after it is 0;
  -1 it was truncated: it would have continued, but was not observed any further.
- `next_values[t]`: V(x_{t+1}), the value of the state after the action at t. Where the episode
  ended, this is the value of its final observation, never that of the next episode's first one; at
  t = T - 1, the rollout bootstraps from it. After a termination it can be any finite number.

A value is therefore multiplied by |next_alive| (a truncation bootstraps, a termination does not),
and terms of later steps by [next_alive = 1] (no trace extends into another episode). Below,
d_t = gamma |next_alive_t|; c_t = [next_alive_t = 1], except that c_{T-1} = 0.

These functions skip holes: rows whose `valid` is False. The results are bit-identical to those of
the same data without these rows, and NaN in the holes.
"""

from typing import NamedTuple

import numpy as np

from relaax_like.experience.holes import skip_holes


class VTrace(NamedTuple):
    """The result of `compute_vtrace`; both arrays are `[T, k] float64`.

    Attributes:
      targets: v_t, the targets of the value function.
      advantages: the factors of the policy's gradient at t.
    """

    targets: np.ndarray
    advantages: np.ndarray


def compute_discounted_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Computes R_t = r_t + gamma * R_{t+1} for one complete episode, with R_T = 0.

    Sutton & Barto 2018, equation 3.9 (http://incompleteideas.net/book/the-book-2nd.html).

    Args:
      rewards: [T] or [T, k], any number type; r_t is the reward of the action at t.
      gamma: discount, 0 to 1.

    Returns:
      float64 of the same shape.
    """
    # Always float: an integer array would truncate every discounted sum.
    returns = np.array(rewards, np.float64)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def compute_n_step_returns(
    rewards: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    n_step: int,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Computes G_t = sum_{i=0}^{m-1} gamma^i r_{t+i} + gamma^m |next_alive_{t+m-1}| V(x_{t+m}).

    m is `n_step`, or less where the episode or the rollout ends earlier. Sutton & Barto 2018,
    equation 7.1 (http://incompleteideas.net/book/the-book-2nd.html). With `n_step` of T or more,
    all steps of a rollout reach to its end, as in A3C (Mnih et al. 2016, algorithm S3).

    Args:
      rewards: r_t of the action at t, t = 0 .. T - 1, `[T, k]`.
      next_values: V(x_{t+1}), t = 0 .. T - 1, `[T, k]`.
      next_alive: of t + 1, t = 0 .. T - 1, `[T, k]`: 1, 0 or -1.
      gamma: discount, 0 to 1.
      n_step: 1 or more.
      valid: `[T, k] bool`, False in holes; None: no holes.

    Returns:
      `[T, k] float64`.

    Raises:
      ValueError: `n_step` is below 1.
    """
    if n_step < 1:
        raise ValueError(f"n_step is {n_step}, expected 1 or more")

    def compute(alive: np.ndarray, rewards: np.ndarray, next_values: np.ndarray) -> np.ndarray:
        one_step = rewards + gamma * np.abs(alive) * next_values
        goes_on = _make_trace(alive)
        returns = one_step
        # G of m steps from t is r_t and, if the episode continues, G of m - 1 steps from t + 1.
        for _ in range(min(n_step, len(rewards)) - 1):
            later = np.concatenate([returns[1:], returns[:1]])
            returns = np.where(goes_on, rewards + gamma * later, one_step)
        return returns

    rewards, next_values = np.asarray(rewards, np.float64), np.asarray(next_values, np.float64)
    return skip_holes(compute, valid, next_alive, rewards, next_values)


def compute_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    gae_lambda: float,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Computes generalised advantages A_t = sum_{l>=0} (gamma lambda)^l delta_{t+l}.

    delta_t = r_t + d_t V(x_{t+1}) - V(x_t); the sum ends with the episode or the rollout, so that
    A_t = delta_t + gamma lambda c_t A_{t+1}. Schulman et al. 2016, equation 16
    (https://arxiv.org/abs/1506.02438). A_t + V(x_t) is the lambda-return.

    Args:
      rewards: r_t of the action at t, t = 0 .. T - 1, `[T, k]`.
      values: V(x_t), t = 0 .. T - 1, `[T, k]`.
      next_values: V(x_{t+1}), t = 0 .. T - 1, `[T, k]`.
      next_alive: of t + 1, t = 0 .. T - 1, `[T, k]`: 1, 0 or -1.
      gamma: discount, 0 to 1.
      gae_lambda: 0 (one step: much bias, little variance) to 1 (no bias of V inside the rollout).
      valid: `[T, k] bool`, False in holes; None: no holes.

    Returns:
      `[T, k] float64`.
    """

    def compute(
        alive: np.ndarray, rewards: np.ndarray, values: np.ndarray, next_values: np.ndarray
    ) -> np.ndarray:
        deltas = rewards + gamma * np.abs(alive) * next_values - values
        return _accumulate(deltas, gamma * gae_lambda * _make_trace(alive))

    values, next_values = np.asarray(values, np.float64), np.asarray(next_values, np.float64)
    return skip_holes(compute, valid, next_alive, rewards, values, next_values)


def compute_lambda_returns(
    rewards: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    gae_lambda: float,
    valid: np.ndarray | None = None,
) -> np.ndarray:
    """Computes G_t = r_t + d_t ((1 - lambda) V(x_{t+1}) + lambda G_{t+1}), where c_t = 1.

    Elsewhere, at the ends of episodes and of the rollout, G_t = r_t + d_t V(x_{t+1}). The mean of
    the n-step returns with weights (1 - lambda) lambda^{n-1}, where the longest one has the rest of
    the weight: Sutton & Barto 2018, equations 12.2, 12.9 and, recursively, 12.18
    (http://incompleteideas.net/book/the-book-2nd.html).

    Args:
      rewards: r_t of the action at t, t = 0 .. T - 1, `[T, k]`.
      next_values: V(x_{t+1}), t = 0 .. T - 1, `[T, k]`.
      next_alive: of t + 1, t = 0 .. T - 1, `[T, k]`: 1, 0 or -1.
      gamma: discount, 0 to 1.
      gae_lambda: 0 (one-step returns) to 1 (returns to the end of the rollout).
      valid: `[T, k] bool`, False in holes; None: no holes.

    Returns:
      `[T, k] float64`.
    """

    def compute(alive: np.ndarray, rewards: np.ndarray, next_values: np.ndarray) -> np.ndarray:
        trace = gae_lambda * _make_trace(alive)
        known = rewards + gamma * (np.abs(alive) - trace) * next_values
        return _accumulate(known, gamma * trace)

    return skip_holes(compute, valid, next_alive, rewards, np.asarray(next_values, np.float64))


def compute_vtrace(
    log_ratios: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    gae_lambda: float = 1.0,
    valid: np.ndarray | None = None,
) -> VTrace:
    """Computes V-trace targets and advantages for actions that an older policy chose.

        v_t = V(x_t) + sum_{s>=t} gamma^{s-t} (prod_{i=t}^{s-1} c_i) delta_s
        delta_s = rho_s (r_s + d_s V(x_{s+1}) - V(x_s))
        rho_s = min(rho_bar, pi/mu), c_i = lambda min(c_bar, pi/mu)
        advantage_t = rho_t (r_t + d_t v_{t+1} - V(x_t))

    Espeholt et al. 2018, equation 1, remark 2 (lambda) and section 4.2, the policy gradient
    (https://arxiv.org/abs/1802.01561); these c_i are not the c_t at the top of this file. The sum
    ends with the episode or the rollout; there, v_{t+1} of the advantage is V(x_{t+1}). On-policy
    (all ratios 1) and with rho_bar and c_bar of 1 or more, v_t is the n-step return to the end of
    the rollout (equation 2), and with gae_lambda < 1 the lambda-return.

    Args:
      log_ratios: log pi(a_t|x_t) - log mu(a_t|x_t), t = 0 .. T - 1, `[T, k]`, for the learning
        policy pi and the acting policy mu.
      rewards: r_t of the action at t, t = 0 .. T - 1, `[T, k]`.
      values: V(x_t), t = 0 .. T - 1, `[T, k]`.
      next_values: V(x_{t+1}), t = 0 .. T - 1, `[T, k]`; `values[t + 1]` if the episode continues.
      next_alive: of t + 1, t = 0 .. T - 1, `[T, k]`: 1, 0 or -1.
      gamma: discount, 0 to 1.
      rho_bar: bound of pi/mu in each rho_s; determines to which policy's value v_t converges; if
        infinite, that of the learning policy.
      c_bar: bound of pi/mu in each c_i; determines how fast v_t converges. At most rho_bar in the
        paper.
      gae_lambda: shortens the traces, 0 to 1.
      valid: `[T, k] bool`, False in holes; None: no holes.

    Returns:
      Two `[T, k] float64`.
    """

    def compute(
        alive: np.ndarray,
        ratios: np.ndarray,
        rewards: np.ndarray,
        values: np.ndarray,
        next_values: np.ndarray,
    ) -> np.ndarray:
        rho, c = np.minimum(ratios, rho_bar), gae_lambda * np.minimum(ratios, c_bar)
        discounts, trace = gamma * np.abs(alive), _make_trace(alive)
        deltas = rho * (rewards + discounts * next_values - values)
        corrections = _accumulate(deltas, gamma * c * trace)  # v_t - V(x_t)
        next_corrections = np.concatenate([corrections[1:], np.zeros_like(corrections[:1])])
        next_targets = next_values + trace * next_corrections
        advantages = rho * (rewards + discounts * next_targets - values)
        return np.stack([values + corrections, advantages], -1)

    values, next_values = np.asarray(values, np.float64), np.asarray(next_values, np.float64)
    with np.errstate(over="ignore"):
        ratios = np.exp(np.asarray(log_ratios, np.float64))
    results = skip_holes(compute, valid, next_alive, ratios, rewards, values, next_values)
    return VTrace(results[..., 0], results[..., 1])


def normalize(values: np.ndarray, epsilon: float = 1e-20) -> np.ndarray:
    """Shifts and scales to mean 0 and standard deviation 1: (v - mean) / (std + epsilon).

    Equal values (an episode of one step, constant returns) become 0, not the rounding error of
    their mean divided by the rounding error of their deviation.

    Args:
      values: any shape, at least one element.
      epsilon: keeps nearly equal values small; PPO implementations use about 1e-4.

    Returns:
      float64 of the same shape.
    """
    values = np.asarray(values, np.float64)
    centred = values - values.mean()
    deviation = centred.std()
    if deviation <= 1e-12 * np.abs(values).max():
        return np.zeros_like(centred)
    return centred / (deviation + epsilon)


def _make_trace(next_alive: np.ndarray) -> np.ndarray:
    """Returns c_t: whether step t + 1 is in the rollout and of the same episode, `[T, k] bool`."""
    trace = np.asarray(next_alive) > 0
    trace[-1:] = False
    return trace


def _accumulate(terms: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Computes x_t = terms_t + factors_t x_{t+1}, with x_T = 0; `[T, ...] float64`."""
    sums = np.array(terms, np.float64)
    for t in range(len(sums) - 2, -1, -1):
        sums[t] += factors[t] * sums[t + 1]
    return sums
