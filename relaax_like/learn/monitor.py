"""Summarises the log variables of many iterations.

A policy's log variables are numbers, except that

- `[scalars]NAME` is a dict of numbers, which become `NAME/KEY`;
- `[histogram]NAME` is an array of any shape, which is shown as a distribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.ndarray import make_array

_SCALARS = "[scalars]"
_HISTOGRAM = "[histogram]"
# Kinds of dtypes: objects, texts, bytes, complex numbers, dates.
_NO_NUMBERS = "OUScMm"


@dataclass(frozen=True)
class Shown:
    """Results of some iterations.

    Attributes:
      means: name -> mean over the iterations that had the number; can be NaN or infinite.
      histograms: name -> the newest values, `[n] float64`.
    """

    means: dict[str, float]
    histograms: dict[str, np.ndarray]


@dataclass
class Monitor:
    """Collects log variables until they are shown.

        monitor.add({"loss": 0.5, "[histogram]errors": errors})
        monitor.take().means["loss"]

    Not thread-safe.
    """

    _sums: dict[str, float] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _histograms: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, variables: Mapping[str, Any]) -> None:
        """Adds the log variables of one iteration.

        Raises:
          InvalidInputError: a variable is not a number, or not what its prefix announces; the error
            names the variable. Nothing was added.
        """
        numbers = read_numbers(variables)
        histograms = read_histograms(variables)
        for name, number in numbers.items():
            self._sums[name] = self._sums.get(name, 0.0) + number
            self._counts[name] = self._counts.get(name, 0) + 1
        self._histograms.update(histograms)

    def take(self) -> Shown:
        """Returns the results since the last call, and starts over."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        shown = Shown(means, self._histograms)
        self._sums, self._counts, self._histograms = {}, {}, {}
        return shown


def is_histogram(name: str) -> bool:
    """Returns whether a log variable is shown as a distribution, not as a number."""
    return name.startswith(_HISTOGRAM)


def read_numbers(variables: Mapping[str, Any]) -> dict[str, float]:
    """Returns all numbers among log variables, those of `[scalars]NAME` as `NAME/KEY`.

    Raises:
      InvalidInputError: a variable is not a number, or `[scalars]NAME` is not a dict of numbers;
        the error names the variable.
    """
    numbers = {}
    for name, value in variables.items():
        if name.startswith(_SCALARS):
            group = name.removeprefix(_SCALARS).strip()
            if not isinstance(value, Mapping):
                raise InvalidInputError(
                    f"log variable {name!r}: expected a dict of numbers, got "
                    f"{type(value).__name__}",
                    name,
                )
            for key, number in value.items():
                numbers[f"{group}/{key}"] = _to_number(f"{name}/{key}", number)
        elif not is_histogram(name):
            numbers[name] = _to_number(name, value)
    return numbers


def read_histograms(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the values of each `[histogram]NAME`, `[n] float64`, by NAME.

    Raises:
      InvalidInputError: a value is not an array of numbers; the error names the variable.
    """
    histograms = {}
    for name, value in variables.items():
        if is_histogram(name):
            key = name.removeprefix(_HISTOGRAM).strip()
            # A copy: the policy might use its array again.
            histograms[key] = _to_array(name, value).flatten()
    return histograms


def _to_number(name: str, value: Any) -> float:
    array = _to_array(name, value)
    if array.size != 1:
        raise InvalidInputError(
            f"log variable {name!r}: expected a number, got shape {list(array.shape)}; take its "
            f"mean, or name it {_HISTOGRAM}{name.removeprefix(_SCALARS)}",
            name,
        )
    return float(array.item())


def _to_array(name: str, value: Any) -> np.ndarray:
    array = make_array(value)
    if array is None or array.dtype.kind in _NO_NUMBERS:
        shown = " ".join(repr(value)[:80].split())  # an array can have several lines
        raise InvalidInputError(f"log variable {name!r}: expected numbers, got {shown}", name)
    return array.astype(np.float64)
