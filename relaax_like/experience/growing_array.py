"""Arrays that grow at the end, by one element or many at a time."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from relaax_like.wire.errors import InvalidInputError

# One array, or several by name.
Tree = np.ndarray | dict[str, np.ndarray]

_KINDS = "biufcV"  # numbers, and V: bfloat16
_FEWEST = 64


class GrowingArray:
    """Elements of one shape and dtype, stored one after another in one array.

    The first element sets shape and dtype, unless the dtype of single numbers is given. The
    capacity doubles when it is used up: an element costs amortized constant time, and, beyond the
    first 64 elements, up to half of the memory is unused.
    The owner knows which rows are in use: those after them can be overwritten.
    """

    def __init__(self, field: str, dtype: type[np.generic] | None = None):
        """Starts without memory.

        Args:
          field: name of the array in errors.
          dtype: of single numbers; None: dtype and shape are those of the first element.
        """
        self._field = field
        self._array = None if dtype is None else np.empty(0, dtype)
        self._latest: np.dtype | None = None  # dtype of the latest element, which fits

    def put(self, row: int, element: ArrayLike) -> None:
        """Writes one element.

        Args:
          row: index of the element, at most one after the rows in use.
          element: `[...]`.

        Raises:
          InvalidInputError: the element is not a number or an array of numbers, has another shape
            than the first, or cannot be converted to its dtype. Floats are rounded to that dtype;
            integers must fit.
          ValueError: NumPy cannot convert the element to an array.
        """
        element = np.asarray(element)
        array = self._array
        # The common case, for each array of each step, without another call.
        if (
            array is None
            or row >= len(array)
            or element.dtype is not self._latest
            or element.shape != array.shape[1:]
        ):
            array = self._make_room(row, element[None])
            self._validate_range(element)
        array[row] = element

    def write(self, start: int, elements: np.ndarray) -> None:
        """Writes elements `[n, ...]` from the row `start` on; raises the same as `put`."""
        array = self._make_room(start, elements)
        self._validate_range(elements)
        array[start : start + len(elements)] = elements

    @property
    def field(self) -> str:
        """Name of the array in errors."""
        return self._field

    def view(self, length: int) -> np.ndarray:
        """Returns the first `length` elements, not copied."""
        assert self._array is not None, "nothing was written"
        return self._array[:length]

    def _make_room(self, used: int, elements: np.ndarray) -> np.ndarray:
        array, more = self._array, len(elements)
        shape, dtype = elements.shape[1:], elements.dtype
        if array is None:
            if dtype.kind not in _KINDS:
                first = next(iter(elements.ravel()[:1].tolist()), "nothing")
                raise InvalidInputError(
                    f"{self._field} contains {first!r:.80} (dtype {dtype}), expected a number or "
                    "an array of numbers",
                    self._field,
                )
            array = np.empty((0, *shape), dtype)
        elif shape != array.shape[1:] or not (
            dtype == array.dtype or np.can_cast(dtype, array.dtype, "same_kind")
        ):
            raise InvalidInputError(
                f"{self._field} is {dtype} of {list(shape)}, expected {array.dtype} of "
                f"{list(array.shape[1:])}; all elements must have the same shape and dtype",
                self._field,
            )
        if used + more > len(array):
            room = max(_FEWEST, 2 * len(array), used + more)
            grown = np.empty((room, *array.shape[1:]), array.dtype)
            grown[:used] = array[:used]
            self._array = array = grown
        # Integers of a wider dtype are checked one by one.
        is_wider = array.dtype.kind in "iu" and not np.can_cast(dtype, array.dtype)
        self._latest = None if is_wider else dtype
        return array

    def _validate_range(self, elements: np.ndarray) -> None:
        assert self._array is not None
        dtype = self._array.dtype
        if self._latest is not None:
            return
        wrong = elements[elements.astype(dtype) != elements]
        if wrong.size:
            raise InvalidInputError(
                f"{self._field} contains {wrong[0]}, which {dtype}, the dtype of the first "
                "element, cannot represent; use one dtype for all elements",
                self._field,
            )


class GrowingTree:
    """A GrowingArray, or one per name if the first element is a mapping."""

    def __init__(self, field: str):
        """Starts without memory.

        Args:
          field: name of the tree in errors.
        """
        self._field = field
        self._arrays: dict[str | None, GrowingArray] = {}  # None: the one without a name

    @property
    def names(self) -> set[str | None]:
        """Names of the arrays; empty before the first element."""
        return set(self._arrays)

    def put(self, row: int, element: ArrayLike | Mapping[str, ArrayLike]) -> None:
        """Writes one element; see `GrowingArray.put`.

        Raises:
          InvalidInputError: also if the names are not those of the first element.
          ValueError: see `GrowingArray.put`.
        """
        array = self._arrays.get(None)
        if array is not None and not hasattr(element, "keys"):  # faster than isinstance
            array.put(row, element)
            return
        if self._arrays:
            self._put(row, element)
            return
        with self._forgetting_refused_names():
            self._put(row, element)

    def _put(self, row: int, element: ArrayLike | Mapping[str, ArrayLike]) -> None:
        for array, leaf in self._match(element):
            array.put(row, leaf)

    def write(self, start: int, elements: ArrayLike | Mapping[str, ArrayLike], number: int) -> None:
        """Writes elements `[number, ...]` from the row `start` on.

        Raises:
          InvalidInputError: see `put`; or an array has another length.
          ValueError: see `put`.
        """
        with self._forgetting_refused_names():
            leaves = [(array, np.asarray(leaf)) for array, leaf in self._match(elements)]
            for array, leaf in leaves:
                if leaf.shape[:1] != (number,):
                    raise InvalidInputError(
                        f"{array.field} has shape {list(leaf.shape)}, expected [{number}, ...], "
                        "as long as the rewards",
                        array.field,
                    )
            for array, leaf in leaves:
                array.write(start, leaf)

    def map(self, function: Callable[[np.ndarray], np.ndarray], length: int) -> Tree:
        """Applies the function to the first `length` elements of each array."""
        leaves = {name: function(array.view(length)) for name, array in self._arrays.items()}
        if None in leaves:
            return leaves[None]
        return {str(name): leaf for name, leaf in leaves.items()}

    @contextlib.contextmanager
    def _forgetting_refused_names(self) -> Iterator[None]:
        """Forgets the names if the block refuses the first element, so another can be the first."""
        first = not self._arrays
        try:
            yield
        except ValueError:  # an InvalidInputError, or one of NumPy
            if first:
                self._arrays.clear()
            raise

    def _match(
        self, element: ArrayLike | Mapping[str, ArrayLike]
    ) -> Iterator[tuple[GrowingArray, ArrayLike]]:
        leaves: Mapping[str | None, ArrayLike] = (
            element if isinstance(element, Mapping) else {None: element}  # type: ignore[assignment]
        )
        arrays = self._arrays
        if not arrays:
            for name in leaves:
                field = self._field if name is None else f"{self._field}[{name!r}]"
                arrays[name] = GrowingArray(field)
        if leaves.keys() != arrays.keys():
            raise InvalidInputError(
                f"{self._field} is {_describe(leaves)}, expected {_describe(arrays)} as in the "
                "first push",
                self._field,
            )
        return ((arrays[name], leaf) for name, leaf in leaves.items())


def _describe(leaves: Mapping[str | None, object]) -> str:
    if None in leaves:
        return "one array"
    return f"a dict of {sorted(map(str, leaves))}"
