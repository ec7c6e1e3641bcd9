"""Returns in NumPy, as slow references of `relaax_like.nn.returns`; see `experience.returns`."""

from typing import NamedTuple

import numpy as np

from relaax_like.experience.returns import _accumulate, _make_trace, compute_gae

__all__ = ["compute_gae", "compute_lambda_returns", "compute_n_step_returns", "compute_vtrace"]


class VTrace(NamedTuple):
    """The result of `compute_vtrace`; both arrays are `[T, k] float64`.

    Attributes:
      targets: v_t, the targets of the value function.
      advantages: the factors of the policy's gradient at t.
    """

    targets: np.ndarray
    advantages: np.ndarray


def compute_n_step_returns(
    rewards: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    n_step: int,
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

    Returns:
      `[T, k] float64`.
    """
    rewards, next_values = np.asarray(rewards, np.float64), np.asarray(next_values, np.float64)
    returns = one_step = rewards + gamma * np.abs(next_alive) * next_values
    goes_on = _make_trace(next_alive)
    # G of m steps from t is r_t and, if the episode continues, G of m - 1 steps from t + 1.
    for _ in range(min(n_step, len(rewards)) - 1):
        later = np.concatenate([returns[1:], returns[:1]])
        returns = np.where(goes_on, rewards + gamma * later, one_step)
    return returns


def compute_lambda_returns(
    rewards: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    gae_lambda: float,
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

    Returns:
      `[T, k] float64`.
    """
    trace = gae_lambda * _make_trace(next_alive)
    known = rewards + gamma * (np.abs(next_alive) - trace) * np.asarray(next_values, np.float64)
    return _accumulate(known, gamma * trace)


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

    Returns:
      Two `[T, k] float64`.
    """
    values, next_values = np.asarray(values, np.float64), np.asarray(next_values, np.float64)
    with np.errstate(over="ignore"):
        ratios = np.exp(np.asarray(log_ratios, np.float64))
    rho, c = np.minimum(ratios, rho_bar), gae_lambda * np.minimum(ratios, c_bar)
    discounts, trace = gamma * np.abs(next_alive), _make_trace(next_alive)
    deltas = rho * (rewards + discounts * next_values - values)
    corrections = _accumulate(deltas, gamma * c * trace)  # v_t - V(x_t)
    next_corrections = np.concatenate([corrections[1:], np.zeros_like(corrections[:1])])
    next_targets = next_values + trace * next_corrections
    advantages = rho * (rewards + discounts * next_targets - values)
    return VTrace(values + corrections, advantages)
