"""Requests of agents and their results: rows of inputs, rows of actions. Needs no TensorFlow."""

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]
# Name of the Algorithm of a folder that has only one.
ONLY_NAME = "RL"
# Entry of an algorithm's `actions`, beside the actions themselves: their `Prediction.log_prob`.
LOG_PROB = "log_prob"


class Request(NamedTuple):
    """One agent's rows that need actions of an Algorithm: name -> `[k, ...]` inputs and states.

    Attributes:
      inputs: name -> `[k, ...]`.
      states: name -> `[k, ...]`, the memory before the step.
      exploit: whether to choose the best actions instead of exploring.
      algorithm: its name.
      ranks: `[k] float32`, see `make_ranks`; None: zeros.
      rated: whether the log-probability of the best actions is needed, which takes long to compute
        for a few rows; False: with `exploit`, it can be 0.
    """

    inputs: Arrays
    states: Arrays
    exploit: bool = False
    algorithm: str = ONLY_NAME
    ranks: np.ndarray | None = None
    rated: bool = True


def make_ranks(client: str, slots: int) -> np.ndarray:
    """Returns a number in [0, 1) for each slot of a client, the same in each run, `[k] float32`.

    With these numbers, policies can explore differently in each slot, as in Horgan et al. 2018
    (Ape-X, https://arxiv.org/abs/1803.00933).

    Args:
      client: name of the client.
      slots: number of its slots, k.
    """
    hashes = [zlib.crc32(f"{client}/{slot}".encode()) for slot in range(slots)]
    return np.array([(number >> 8) / 2**24 for number in hashes], np.float32)


class Prediction(NamedTuple):
    """A policy's choice for B rows.

    Attributes:
      actions: name -> [B, ...].
      next_states: name -> [B, ...], the memory after the step.
      log_prob: [B] float32, log-probability of all actions of a row together.
      version: version of the values that were used.
    """

    actions: Arrays
    next_states: Arrays
    log_prob: np.ndarray
    version: int

    def rows(self, start: int, stop: int) -> "Prediction":
        """Returns rows `start` to `stop` - 1, those of one agent; views."""
        part = slice(start, stop)
        return Prediction(
            {name: array[part] for name, array in self.actions.items()},
            {name: array[part] for name, array in self.next_states.items()}
            if self.next_states
            else {},
            self.log_prob[part],
            self.version,
        )
