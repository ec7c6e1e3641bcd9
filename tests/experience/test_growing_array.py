"""Arrays that grow: nothing lost at any length, nothing squeezed into the first one's dtype."""

# covers P6

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.experience.growing_array import GrowingArray, GrowingTree
from relaax_like.wire.errors import InvalidInputError


@given(st.lists(st.integers(0, 200), max_size=8))
def test_elements_and_pieces_lie_one_behind_the_other(pieces: list[int]) -> None:
    array, length = GrowingArray("x"), 0
    for piece in pieces:
        array.put(length, [length, -length])
        n = np.arange(length + 1, length + 1 + piece)
        array.write(length + 1, np.stack([n, -n], 1))
        length += 1 + piece
    if pieces:
        n = np.arange(length)
        np.testing.assert_array_equal(array.view(length), np.stack([n, -n], 1))


def test_memory_is_moved_seldom() -> None:
    array, owners = GrowingArray("x"), set()
    for row in range(10_000):
        array.put(row, 1.0)
        owners.add(array.view(1).ctypes.data)
    assert len(owners) < 12


def test_a_row_that_is_not_in_use_may_be_written_again() -> None:
    array = GrowingArray("x")
    for element in (7, 8):
        array.put(0, element)
    assert array.view(1).tolist() == [8]


@pytest.mark.parametrize(
    ("first", "later"),
    [(np.float32(1), 2.5), (np.float32(1), 3), (np.int64(1), np.int32(4)), (1.5, True)],
)
def test_numbers_of_the_same_kind_are_converted(first: Any, later: Any) -> None:
    array = GrowingArray("x")
    array.put(0, first)
    array.put(1, later)
    assert array.view(2).dtype == np.asarray(first).dtype
    assert array.view(2)[1] == later


@pytest.mark.parametrize(
    ("first", "later"),
    [(1, 2.5), (True, 2), (np.zeros(3), np.zeros(1)), (np.zeros(3), 0.0), (1.0, "2"), (1.0, None)],
)
def test_what_would_lose_something_is_refused(first: Any, later: Any) -> None:
    array = GrowingArray("x")
    array.put(0, first)
    for put in (lambda: array.put(1, later), lambda: array.write(1, np.asarray(later)[None])):
        with pytest.raises(
            InvalidInputError, match=r"x is .*, expected .*the same shape and dtype"
        ):
            put()


def test_a_given_dtype_holds_from_the_first_element_on() -> None:
    array = GrowingArray("x", np.float32)
    array.put(0, 1)
    assert array.view(1).dtype == np.float32


def test_a_tree_keeps_its_names() -> None:
    tree = GrowingTree("state")
    tree.put(0, {"a": 1.0, "b": [2, 3]})
    tree.write(1, {"b": [[4, 5], [6, 7]], "a": [8.0, 9.0]}, 2)
    got = tree.map(lambda array: array, 3)
    assert isinstance(got, dict)
    assert (got["a"].tolist(), got["b"].tolist()) == ([1, 8, 9], [[2, 3], [4, 5], [6, 7]])
    assert tree.names == {"a", "b"}
    for other in ({"a": 1.0}, {"a": 1.0, "b": [2, 3], "c": 4}, 1.0):
        with pytest.raises(InvalidInputError, match="expected a dict of"):
            tree.put(3, other)


def test_a_leaf_is_named() -> None:
    tree = GrowingTree("state")
    tree.put(0, {"a": 1})
    with pytest.raises(InvalidInputError) as caught:
        tree.put(1, {"a": 1.5})
    assert caught.value.field == "state['a']"


def test_a_first_element_that_was_refused_does_not_set_the_names() -> None:
    tree = GrowingTree("observations")
    with pytest.raises(InvalidInputError, match=r"expected \[3, ...\]"):
        tree.write(0, {"a": np.zeros(3), "b": np.zeros(2)}, 3)
    with pytest.raises(InvalidInputError, match=r"contains 'text' .dtype <U4"):
        tree.put(0, {"a": 1.0, "b": "text"})
    tree.put(0, 1.0)
    assert tree.map(np.copy, 1).tolist() == [1.0]


def test_an_integer_that_the_first_element_s_dtype_cannot_represent_is_refused() -> None:
    array = GrowingArray("x")
    array.put(0, np.int8(1))
    array.put(1, 127)  # int64
    for refuse, named in (
        (lambda: array.put(2, 300), "300"),
        (lambda: array.write(2, np.array([1, -129])), "-129"),
    ):
        with pytest.raises(InvalidInputError, match=rf"contains {named}, which int8, .*, cannot"):
            refuse()
    array.write(2, np.array([-128]))
    assert array.view(3).tolist() == [1, 127, -128]


def test_an_integer_is_rounded_to_the_float_of_the_first_element() -> None:
    array = GrowingArray("reward", np.float32)
    array.write(0, np.array([16_777_217]))
    array.put(1, 16_777_217)
    assert array.view(2).tolist() == [16_777_216.0] * 2
