"""Returns: pure functions of rewards, in NumPy."""

import numpy as np


def compute_discounted_returns(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Computes R_t = r_t + gamma * R_{t+1} for one whole episode, with R_T = 0.

    Sutton & Barto 2018, equation 3.9 (http://incompleteideas.net/book/the-book-2nd.html).

    Args:
      rewards: [T] or [T, k], any number type; r_t is the reward of the action at t.
      gamma: discount, 0 to 1.

    Returns:
      float64 of the same shape.
    """
    # Always float: adding up in an integer array would truncate every discounted sum.
    returns = np.array(rewards, np.float64)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def normalize(values: np.ndarray) -> np.ndarray:
    """Shifts and scales to mean 0 and standard deviation 1.

    Values that do not differ (an episode of one step, constant returns) become 0, not the rounding
    error of their mean divided by the rounding error of their deviation.

    Args:
      values: any shape, at least one element.

    Returns:
      float64 of the same shape.
    """
    values = np.asarray(values, np.float64)
    centred = values - values.mean()
    deviation = centred.std()
    if deviation <= 1e-12 * np.abs(values).max():
        return np.zeros_like(centred)
    return centred / (deviation + 1e-20)
