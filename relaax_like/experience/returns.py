"""Returns: pure functions of rewards, in NumPy; `nn.returns` has those for compiled graphs.

`compute_gae` takes a rollout of T steps of k slots, whose episodes can begin and end at any step.
Two arrays, `[T, k]`, describe what follows step t:

- `next_alive[t]`: 1 the episode continues; 0 it terminated with this step: the value after it is 0;
  -1 it was truncated: it would have continued, but was not observed any further.
- `next_values[t]`: V(x_{t+1}), the value of the state after the action at t. Where the episode
  ended, this is the value of its final observation, never that of the next episode's first one; at
  t = T - 1, the rollout bootstraps from it. After a termination it can be any finite number.

A value is therefore multiplied by |next_alive| (a truncation bootstraps, a termination does not),
and terms of later steps by [next_alive = 1] (no trace extends into another episode). Below,
d_t = gamma |next_alive_t|; c_t = [next_alive_t = 1], except that c_{T-1} = 0.
"""

import numpy as np


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


def compute_gae(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    next_alive: np.ndarray,
    gamma: float,
    gae_lambda: float,
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

    Returns:
      `[T, k] float64`.
    """

    values, next_values = np.asarray(values, np.float64), np.asarray(next_values, np.float64)
    deltas = rewards + gamma * np.abs(next_alive) * next_values - values
    return _accumulate(deltas, gamma * gae_lambda * _make_trace(next_alive))


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
