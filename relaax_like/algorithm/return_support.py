"""ReturnSupport: a categorical distribution of the return, as critics learn it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from relaax_like.algorithm.batch import Batch, Tensors
from relaax_like.nn.lazy_tensorflow import tf

logger = logging.getLogger(__name__)

# Metrics: the share of targets more than one atom outside of the support, and their extremes.
_OUTSIDE, _SMALLEST, _LARGEST = "outside v_min to v_max", "smallest target", "largest target"
# A larger share of the targets of so many updates is worth a line.
_MAX_SHARE, _REVIEWED_UPDATES = 0.01, 200


class ReturnSupport:
    """N fixed returns z_i in equal distances; a network has the logits of their probabilities.

    Bellemare et al. 2017 (https://arxiv.org/abs/1707.06887).

    Attributes:
      atoms: z_i, `[N] float32`.

    Args:
      v_min: the smallest return z_1.
      v_max: the largest return z_N, above v_min.
      number: N, 2 or more.
    """

    def __init__(self, v_min: float, v_max: float, number: int):
        self.atoms = np.linspace(v_min, v_max, number, dtype=np.float32)
        self._reviewed: list[list[float]] = []  # updates, share outside, smallest, largest
        self._has_warned = False

    def compute_means(self, logits: Any) -> Any:
        """Returns the mean of each distribution, `[...]` for logits `[..., N]`."""
        if not isinstance(logits, np.ndarray):
            return tf.reduce_sum(tf.nn.softmax(logits) * self.atoms, -1)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return (weights * self.atoms).sum(-1) / weights.sum(-1)

    def compute_costs(
        self, logits: tf.Tensor, next_logits: tf.Tensor, returns: tf.Tensor, discount: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns cross-entropies, and these less their smallest possible values, `[...]` each.

        The goal is the distribution of `returns + discount Z'`. No gradient flows into it.

        Args:
          logits: that are learned, `[..., N]`.
          next_logits: of Z', `[..., N]`.
          returns: sums of rewards, `[...]`.
          discount: factor of what follows, `[...]`.
        """
        reached = returns[..., None] + discount[..., None] * self.atoms
        goal = tf.stop_gradient(self.project(tf.nn.softmax(next_logits), reached))
        costs = -tf.reduce_sum(goal * tf.nn.log_softmax(logits), -1)
        entropy = -tf.reduce_sum(tf.math.xlogy(goal, goal), -1)
        return costs, tf.stop_gradient(costs) - entropy

    def project(self, probabilities: tf.Tensor, reached: tf.Tensor) -> tf.Tensor:
        """Moves a distribution back to the support: Bellemare et al. 2017, equation 7.

        Args:
          probabilities: of each atom, `[..., N]`.
          reached: return that each atom moves to, `[..., N]`, clipped to the range of the support;
            its probability is divided between the two nearest z_i.

        Returns:
          Probabilities of the support, `[..., N]`.
        """
        atoms, number = self.atoms, len(self.atoms)
        # Clipped last: beyond the last place, the share of the one before would be negative.
        places = (reached - atoms[0]) * ((number - 1.0) / (float(atoms[-1]) - float(atoms[0])))
        places = tf.clip_by_value(places, 0.0, number - 1.0)
        below = tf.minimum(tf.floor(places), number - 2.0)
        above = tf.reshape((places - below) * probabilities, [-1])  # share of the atom above
        flat = tf.reshape(probabilities, [-1])
        starts = number * (tf.range(tf.size(flat)) // number)
        index = starts + tf.reshape(tf.cast(below, tf.int32), [-1])
        moved = tf.math.unsorted_segment_sum(flat - above, index, tf.size(flat))
        moved += tf.math.unsorted_segment_sum(above, index + 1, tf.size(flat))
        return tf.reshape(moved, tf.shape(probabilities))

    def measure(self, batch: Batch, targets: tf.Tensor) -> Tensors:
        """Returns the metrics that `review` reads.

        Args:
          batch: the minibatch.
          targets: means of the goals before they are clipped, `[...]`.
        """
        atoms = self.atoms
        atom = atoms[1] - atoms[0]
        is_outside = (targets < atoms[0] - atom) | (targets > atoms[-1] + atom)
        share = batch.mean(tf.cast(is_outside, tf.float32))
        is_known = batch.valid > 0
        return {
            _OUTSIDE: share / batch.mean(tf.ones_like(targets)),
            _SMALLEST: tf.reduce_min(tf.where(is_known, targets, np.inf)),
            _LARGEST: tf.reduce_max(tf.where(is_known, targets, -np.inf)),
        }

    def review(self, numbers: Mapping[str, Any], updates: int, setting: str) -> None:
        """Warns, once, if more than 1 % of the targets are clipped.

        Args:
          numbers: metrics of some updates, those of `measure` among them.
          updates: number of these updates.
          setting: where v_min and v_max are set.
        """
        if self._has_warned:
            return
        self._reviewed.append([updates, *(numbers[n] for n in (_OUTSIDE, _SMALLEST, _LARGEST))])
        counts, shares, smallest, largest = np.transpose(self._reviewed)
        if counts.sum() < _REVIEWED_UPDATES:
            return
        self._reviewed.clear()
        share = np.average(shares, weights=counts)
        if share > _MAX_SHARE:
            self._has_warned = True
            logger.warning(
                "%.1f %% of the targets are outside of %s, v_min: %g to v_max: "
                "%g, and are clipped; in the newest %d updates they were from about %.4g to %.4g. "
                "Let them be the smallest and the largest discounted return",
                *(100 * share, setting, self.atoms[0], self.atoms[-1], counts.sum()),
                *(smallest.min(), largest.max()),
            )
