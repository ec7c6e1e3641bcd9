"""Observation history against a slow reference: lists, one slot after the other."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaax_like.agent.history import ObservationHistory
from relaax_like.wire.errors import ConfigError, InvalidInputError


class SlowHistory:
    """The same, straight from its description."""

    def __init__(self, length: int, slots: int) -> None:
        self.length = length
        self.seen: list[list[np.ndarray]] = [[] for _ in range(slots)]

    def add(self, observations: np.ndarray, began: Any) -> np.ndarray:
        for slot, observation in enumerate(observations):
            if began is not None and began[slot]:
                self.seen[slot] = []
            self.seen[slot].append(np.array(observation))
        return np.array([self.join(seen) for seen in self.seen])

    def join_final(self, slot: int, final: np.ndarray) -> np.ndarray:
        return self.join([*self.seen[slot], final])

    def join(self, seen: list[np.ndarray]) -> np.ndarray:
        while len(seen) < self.length:
            seen = [seen[0], *seen]
        return np.concatenate(seen[-self.length :], axis=-1)


def test_vectors_by_hand() -> None:
    history = ObservationHistory(length=3, slots=2)

    def add(rows: Any, began: Any = None) -> Any:
        return history.add({"observation": np.array(rows)}, began)["observation"].tolist()

    assert add([[1, -1], [5, -5]]) == [[1, -1, 1, -1, 1, -1], [5, -5, 5, -5, 5, -5]]
    assert add([[2, -2], [6, -6]]) == [[1, -1, 1, -1, 2, -2], [5, -5, 5, -5, 6, -6]]
    assert add([[3, -3], [7, -7]]) == [[1, -1, 2, -2, 3, -3], [5, -5, 6, -6, 7, -7]]
    # Slot 1 ends with 8 and begins again with 0.
    finals = history.join_finals({"observation": np.array([[0, 0], [8, -8]])})
    assert finals["observation"][1].tolist() == [6, -6, 7, -7, 8, -8]
    assert add([[4, -4], [0, 0]], np.array([False, True])) == [
        [2, -2, 3, -3, 4, -4],
        [0, 0, 0, 0, 0, 0],
    ]
    assert add([[5, -5], [1, -1]]) == [[3, -3, 4, -4, 5, -5], [0, 0, 0, 0, 1, -1]]


def test_images_are_joined_on_their_channels() -> None:
    history = ObservationHistory(length=2, slots=1)
    one = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3)
    history.add({"camera": one})
    both = history.add({"camera": one + 100})["camera"]
    assert (both.shape, both.dtype) == ((1, 2, 2, 6), np.uint8)
    assert both[0, 1, 0].tolist() == [6, 7, 8, 106, 107, 108]


_SHAPES = st.sampled_from([(1,), (3,), (2, 1), (2, 3, 1), (2, 2, 3)])


@given(data=st.data(), length=st.integers(1, 5), slots=st.integers(1, 4), shape=_SHAPES)
def test_every_run_equals_the_slow_reference(
    data: st.DataObject, length: int, slots: int, shape: tuple[int, ...]
) -> None:
    history, slow = ObservationHistory(length, slots), SlowHistory(length, slots)
    rng = np.random.default_rng(0)
    order = data.draw(st.sampled_from("CF"), "memory order")
    masks = st.lists(st.booleans(), min_size=slots, max_size=slots)
    observations = np.empty((slots, *shape), np.float32, order)
    given_out: list[tuple[np.ndarray, np.ndarray]] = []

    def check(got: np.ndarray, want: np.ndarray) -> None:
        np.testing.assert_array_equal(got, want)
        assert got.dtype == np.float32
        given_out.append((got, want))

    for step in range(data.draw(st.integers(1, 12), "steps")):
        ended = np.array(data.draw(masks, "ended")) if step else None
        if ended is not None and ended.any():
            finals = rng.random((slots, *shape), np.float32)
            joined = history.join_finals({"x": finals})["x"]
            want = [slow.join_final(slot, finals[slot]) for slot in np.flatnonzero(ended)]
            check(joined[ended], np.array(want))
        elif ended is not None and data.draw(st.booleans(), "None for no ends"):
            ended = None
        # The caller's own array, written again at each step.
        observations[:] = rng.random((slots, *shape), np.float32)
        check(history.add({"x": observations}, ended)["x"], slow.add(observations, ended))
    for got, want in given_out:
        np.testing.assert_array_equal(got, want)


def test_leaves_keep_histories_of_their_own() -> None:
    history = ObservationHistory(2, 1)
    history.add({"a": np.zeros((1, 1)), "b": np.ones((1, 2, 1), np.uint8)})
    joined = history.add({"a": np.full((1, 1), 2.0), "b": np.full((1, 2, 1), 3, np.uint8)})
    assert joined["a"].tolist() == [[0, 2]]
    assert joined["b"].tolist() == [[[1, 3], [1, 3]]]
    assert joined["b"].dtype == np.uint8


def test_nobody_can_write_into_the_memory() -> None:
    history = ObservationHistory(2, 1)
    for array in (
        history.add({"x": np.zeros((1, 2))}),
        history.join_finals({"x": np.ones((1, 2))}),
    ):
        with pytest.raises(ValueError, match="read-only"):
            array["x"][0] = 9


def test_finals_leave_the_history_as_it_was() -> None:
    history = ObservationHistory(2, 1)
    history.add({"x": np.array([[1]])})
    history.join_finals({"x": np.array([[9]])})
    assert history.add({"x": np.array([[2]])})["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize("observation", [np.zeros(3), np.zeros((2, 4))], ids=["scalars", "2 rows"])
def test_observations_that_cannot_be_joined_are_refused(observation: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match=r"'dial' has shape .* expected \[3, \.\.\., d\]"):
        ObservationHistory(2, 3).add({"dial": observation})


@pytest.mark.parametrize(("length", "slots"), [(0, 1), (2, 0)])
def test_sizes_below_one_are_refused(length: int, slots: int) -> None:
    with pytest.raises(ConfigError, match="0, expected 1 or more"):
        ObservationHistory(length, slots)
