"""Count, mean and spread of rows, measured part by part and merged: for running statistics."""

from dataclasses import dataclass

import numpy as np

# Elements converted to float64 at a time: limits the memory, and fits into the cache.
_BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared distances from the mean of rows, element by element.

    The population variance of an element is `m2 / count`. Merging the moments of parts, in any
    order and grouping, gives the moments of the whole, up to rounding.

        seen = Moments.of(observations)          # rows [n, ...]
        seen = seen.merge(Moments.of(more))

    Attributes:
      count: number of rows; can be 0.
      mean: [...] float64; 0 if there are no rows.
      m2: [...] float64, >= 0: the sum over rows of (row - mean) ** 2.
    """

    count: float
    mean: np.ndarray
    m2: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> "Moments":
        """Returns the moments of rows.

        Args:
          rows: [n, ...] of any real dtype; n can be 0.
        """
        rows = np.asarray(rows)
        moments = cls(0.0, np.zeros(rows.shape[1:]), np.zeros(rows.shape[1:]))
        step = max(1, _BLOCK_ELEMENTS // max(1, moments.mean.size))
        for start in range(0, len(rows), step):
            moments = moments.merge(_of_block(rows[start : start + step]))
        return moments

    def merge(self, other: "Moments") -> "Moments":
        """Returns the moments of the rows of both; neither is changed.

        With d = mean_b - mean_a and n = n_a + n_b: mean = mean_a + d n_b / n, and
        m2 = m2_a + m2_b + d^2 n_a n_b / n. Chan, Golub and LeVeque, "Updating formulae and a
        pairwise algorithm for computing sample variances" (Stanford, STAN-CS-79-773, 1979).
        """
        if not other.count:
            return self
        if not self.count:
            return other
        count = self.count + other.count
        share = other.count / count
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name
            distance = other.mean - self.mean
            return Moments(
                count,
                self.mean + distance * share,
                self.m2 + other.m2 + distance**2 * (self.count * share),
            )


def _of_block(rows: np.ndarray) -> Moments:
    """Computes moments in two passes, the second of which corrects the rounding of the first.

    The corrected two-pass algorithm in Chan, Golub and LeVeque, "Algorithms for computing the
    sample variance: analysis and recommendations" (The American Statistician 37, 1983).
    """
    count = len(rows)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name
        distances = rows.astype(np.float64)
        mean = distances.mean(axis=0)
        distances -= mean
        correction = distances.mean(axis=0)
        np.square(distances, out=distances)
        m2 = distances.sum(axis=0) - count * correction**2
    # Rounding can make the sum of equal rows negative.
    return Moments(float(count), mean + correction, np.maximum(m2, 0.0))
