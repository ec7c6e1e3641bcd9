"""Four holes that another queue for experience documents of its checkpoints: they are not here.

covers R2, R22
"""

import copy
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.replayed import make_config, make_source, make_step

from relaax_like.core.journal.files import list_segments
from relaax_like.core.journal.journal import Journal
from relaax_like.core.records import Origin
from relaax_like.wire.array_file import read_arrays, write_arrays
from relaax_like.wire.errors import InvalidInputError, JournalError


def make_table(capacity: int = 64) -> Any:
    source, _ = make_source(make_config(capacity=capacity, warm_up_steps=0))
    return source._table


def test_an_error_of_the_disk_does_not_end_the_thread_that_takes_experience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, tally = make_source(make_config(), folder=tmp_path / "replay")
    source.load()
    work: list[int] = list(range(20))
    errors: list[Exception] = []
    append = Journal.append

    def fail_once(self: Journal, pieces: Any) -> None:
        if len(work) == 15:
            raise JournalError("Input/output error")
        append(self, pieces)

    monkeypatch.setattr(Journal, "append", fail_once)

    def take_all() -> None:
        try:
            while work:
                number = work.pop(0)
                source.add(make_step(number), [], origin=Origin("one", 5, number + 1))
                while source.has_iteration:
                    source.get(0, 0.0)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=take_all)
    thread.start()
    thread.join(60)
    assert not errors
    assert source._table.counts.steps == 20
    assert tally.take().env_steps == 20


def test_a_state_that_is_taken_while_rows_come_and_go_is_of_one_moment() -> None:
    table = make_table(capacity=16)
    stop = threading.Event()

    def insert_all() -> None:
        number = 0
        while not stop.is_set():
            table.insert(make_step(number))
            number += 1

    thread = threading.Thread(target=insert_all)
    thread.start()
    try:
        states = []
        while len(states) < 20:
            with table._lock:
                if table.counts.steps > 20 * (len(states) + 2):  # the oldest are gone
                    states.append(copy.deepcopy(table.get_state()))
    finally:
        stop.set()
        thread.join(20)
    for state in states:
        again = make_table(capacity=16)
        again.set_state(state)
        oldest, following = again.rows
        rows = np.arange(oldest, following) % 16
        steps = again._storage.keys[rows, 2]
        steps = steps[again._storage.read_states(rows) != 3]
        # One after another up to the newest that was counted, with the observations of each.
        newest = again.counts.steps - 1
        np.testing.assert_array_equal(steps, np.arange(newest - len(steps) + 1, newest + 1))
        drawn = again.sample(1)
        np.testing.assert_array_equal(drawn.observations["observation"][..., 0], drawn.keys[..., 2])


@contextmanager
def ending_at(call: str, number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Makes the n-th call of a function of `os` raise, as if the process ended there."""
    calls: list[int] = []
    original = getattr(os, call)

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, count)
        yield calls


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_replacing_a_state_never_loses_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "state.npz"
    old, new = ({"x": np.full(1000, value)} for value in (1.0, 2.0))
    write_arrays(path, old, "test 1")
    number = 1
    while True:
        with ending_at(call, number, monkeypatch) as calls:
            try:
                write_arrays(path, new, "test 1")
            except KeyboardInterrupt:
                pass
        kept = read_arrays(path, "test 1")["x"]
        assert kept.tolist() in (old["x"].tolist(), new["x"].tolist())
        if len(calls) < number:
            break
        number += 1
    assert number > 1 or call == "open"
    np.testing.assert_array_equal(read_arrays(path, "test 1")["x"], new["x"])


def test_a_state_is_loaded_whole_or_not_at_all() -> None:
    table, other = make_table(), make_table(capacity=32)
    for number in range(40):
        table.insert(make_step(number))
        other.insert(make_step(number + 100))
    again = make_table()
    with pytest.raises(InvalidInputError, match="resume with the same settings"):
        again.set_state(other.get_state())
    for part in ("storage", "selector", "limiter", "random", "counts"):
        broken = copy.deepcopy(table.get_state())
        broken[part] = {}
        with pytest.raises(InvalidInputError, match="the saved table is incomplete"):
            again.set_state(broken)
        assert again.counts.rows == again.counts.items == again.counts.steps == 0
    again.set_state(table.get_state())
    assert again.counts == table.counts


def test_a_damaged_log_changes_nothing_on_the_disk(tmp_path: Path) -> None:
    folder = tmp_path / "replay"
    source, _ = make_source(make_config(), folder=folder, segment_bytes=2_000)
    source.load()
    for number in range(40):
        source.add(make_step(number), [], origin=Origin("one", 5, number + 1), is_urgent=True)
    source.close()
    segments = list_segments(folder)
    assert len(segments) > 2
    path = segments[1].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    again, _ = make_source(make_config(), folder=folder)
    with pytest.raises(JournalError):
        again.load()
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
