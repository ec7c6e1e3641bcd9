"""The table: waiting, refusals, threads, and a state that continues bit-identically.

covers F19 (a large buffer, of which parts are drawn), F29 (balanced), J7 (what an
update found out returns by item)
"""

import copy
import dataclasses
import inspect
import json
import re
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.replay import HISTORY, SPEC, World
from support.threads import wait_until

from relaax_like.experience.replay import kernels
from relaax_like.experience.replay.row_spec import read_available_bytes
from relaax_like.experience.rollout import (
    Executed,
    RolloutBuffer,
    make_agent_ids,
    slice_slots,
)
from relaax_like.replay import (
    Balanced,
    Prioritized,
    RateLimiter,
    RowSpec,
    Sequences,
    Storage,
    Table,
    Transitions,
    Uniform,
)
from relaax_like.wire.errors import ConfigError, InvalidInputError

ITEMS = {
    "transitions": lambda: Transitions(3),
    "sequences": lambda: Sequences(5, 2),
}
SELECTORS = {"uniform": Uniform, "prioritized": Prioritized, "balanced": Balanced}


def make_table(items="transitions", selector="uniform", capacity=150, **settings):
    storage = Storage(SPEC, capacity, history=HISTORY, max_streams=3)
    return Table(storage, ITEMS[items](), SELECTORS[selector](), minibatch_size=4, **settings)


def assert_equal(first, second):
    """Compares everything in two batches or states, to the bit."""
    if isinstance(first, np.ndarray):
        assert first.dtype == second.dtype
        assert first.tobytes() == second.tobytes()
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_equal(first[name], second[name])
    elif hasattr(first, "_asdict"):
        assert_equal(first._asdict(), second._asdict())
    else:
        assert first == second


def play(table, world, steps):
    """Inserts, samples and learns; returns all batches."""
    batches = []
    for _ in range(steps):
        slots = sorted(world.random.choice(4, 2, replace=False).tolist())
        table.insert(world.make_segment(int(world.random.integers(1, 9)), slots))
        if (batch := table.sample(2)) is not None:
            batches.append(batch)
            table.update_priorities(batch.ids, batch.weights * batch.ids % 7)
    return batches


# State.


@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.parametrize("selector", SELECTORS)
def test_a_restored_table_continues_bit_identically(items, selector):
    settings = {"limiter": RateLimiter(0.2, 20, max_segment_steps=16, max_minibatches=2)}
    table = make_table(items, selector, **settings)
    world = World(4, zeros=0.5 if selector == "balanced" else 0.0)
    play(table, world, 25)
    state = copy.deepcopy(table.get_state())
    restored = make_table(items, selector, **copy.deepcopy(settings), seed=99)
    restored.set_state(state)
    assert_equal(copy.deepcopy(restored.get_state()), state)
    other = copy.deepcopy(world)
    batches = play(table, world, 25)
    assert len(batches) > 1
    again = play(restored, other, 25)
    assert len(again) == len(batches)
    for batch, same in zip(batches, again, strict=True):
        assert_equal(batch, same)
    assert_equal(table.get_state(), restored.get_state())
    assert table.counts == restored.counts


def make_steps(rewards, agent=7, start=0):
    """Returns a segment of one slot, in the middle of an episode."""
    world = World(0, agents=1)
    world.agents[0].number = agent
    world.agents[0].step = start
    segment = world.make_segment(len(rewards), [0], ends=0, holes=0, differs=0, history=False)
    columns = np.zeros((len(rewards), 1, 2), np.float32)
    columns[:, 0, 1] = rewards
    return dataclasses.replace(segment, rewards=columns)


def make_balanced_table(items, capacity=60):
    limiter = RateLimiter(0.5, 4, max_segment_steps=30, max_minibatches=2)
    storage = Storage(SPEC, capacity)
    return Table(storage, items, Balanced(), minibatch_size=4, limiter=limiter)


def test_without_a_reward_no_minibatch_is_due_and_none_is_made_up():
    table = make_balanced_table(Transitions())
    for start in (0, 10, 20):
        table.insert(make_steps([0] * 10, start=start))
        assert table.can_insert(30)
        assert table.sample() is None
    assert table.counts.deficit == 0
    # The 31st step has a reward: from now on, an update is due every second step.
    table.insert(make_steps([-1], start=30))
    assert (table.can_sample(1), table.counts.deficit) == (False, 0.5)
    table.insert(make_steps([0], start=31))
    assert table.sample(2) is None
    batch = table.sample()
    # One reward stands for both of its half; the others are two different steps.
    assert batch.returns[0, :, 1].tolist() == [-1, -1, 0, 0]
    assert len(set(batch.ids[0, 2:].tolist())) == 2
    assert batch.weights.tolist() == [[1, 1, 1, 1]]
    assert table.sample() is None


def test_once_the_last_reward_is_evicted_no_minibatch_is_due():
    table = make_balanced_table(Transitions(), capacity=12)
    table.insert(make_steps([0, 5, 0, 0, 0, 0]))
    assert table.sample() is not None
    for start in (6, 12):
        table.insert(make_steps([0] * 6, start=start))
    assert not table.can_sample(1)
    assert table.counts.deficit == 0


def test_a_sequence_counts_by_the_reward_of_its_last_step():
    items = Sequences(steps=3, burn_in=2)
    table = make_balanced_table(items)
    table.insert(make_steps([0, 0, 1, 0, 0, 0, 2, 0]))
    batch = table.sample()
    last = batch.valid[0].argmax(0)
    rewards = batch.rewards[0, last, np.arange(4), 1].tolist()
    assert sorted(rewards[:2]) == [1, 2]
    assert rewards[2:] == [0, 0]
    # Sequences of four steps: only that of the steps 0 to 3 contains a reward without ending in it.
    table = make_balanced_table(Sequences(steps=4))
    table.insert(make_steps([0, 0, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0]))
    batch = table.sample()
    assert batch.keys[0, :2, 2].tolist() == [4, 4]
    assert sorted(batch.keys[0, 2:, 2].tolist()) == [0, 8]


def test_the_same_segments_in_the_same_order_make_the_same_table():
    tables = [make_table(), make_table()]
    for table in tables:
        world = World(8)
        for _ in range(30):
            table.insert(world.make_segment(3, [0, 2]))
    assert_equal(*(table.get_state() for table in tables))


def test_another_table_s_state_is_refused_with_the_numbers():
    state = make_table().get_state()
    with pytest.raises(InvalidInputError, match=r"capacity is 150 in the saved .* 151 in this"):
        make_table(capacity=151).set_state(state)
    with pytest.raises(InvalidInputError, match="items Transitions, this one with Sequences"):
        make_table("sequences").set_state(state)
    with pytest.raises(InvalidInputError, match="selector Uniform, this one with Prioritized"):
        make_table(selector="prioritized").set_state(state)
    with pytest.raises(InvalidInputError, match="limiter None, this one with RateLimiter"):
        make_table(limiter=RateLimiter(1.0)).set_state(state)
    for settings, message in (
        ({"max_streams": 4}, "max_streams is 3 .* 4 in this one"),
        ({"history": {"pixels": 4, "touch": 2}}, "history of 'pixels' is 3 .* 4 in this one"),
    ):
        storage = Storage(SPEC, 150, **{"history": HISTORY, "max_streams": 3, **settings})
        with pytest.raises(InvalidInputError, match=message):
            Table(storage, Transitions(3), Uniform(), minibatch_size=4).set_state(state)
    columns = dict(SPEC.actions, second=np.dtype((np.float32, (2,))))
    other = Storage(dataclasses.replace(SPEC, actions=columns), 150, history=HISTORY, max_streams=3)
    with pytest.raises(InvalidInputError, match=r"'actions/second' is missing .* float32 \[2\]"):
        Table(other, Transitions(3), Uniform(), minibatch_size=4).set_state(state)
    storage = Storage(SPEC, 150, history=HISTORY, max_streams=3)
    with pytest.raises(InvalidInputError, match=r"lookahead .* is 2 in the saved .* 3 in this one"):
        Table(storage, Transitions(4), Uniform(), minibatch_size=4).set_state(state)


@pytest.mark.parametrize("part", ["kinds", "counts", "storage"])
def test_a_damaged_state_is_refused_and_the_table_stays_empty(part):
    state = {**make_table().get_state(), part: []}
    table, untouched = make_table(), make_table()
    with pytest.raises(InvalidInputError, match="saved table"):
        table.set_state(state)
    assert_equal(table.get_state(), untouched.get_state())


def test_a_state_is_arrays_and_json():
    """So that it can be saved without pickle."""

    def replace(value):
        if isinstance(value, dict):
            assert all(isinstance(name, str) for name in value)
            return {name: replace(one) for name, one in value.items()}
        return None if isinstance(value, np.ndarray) else value

    for selector in SELECTORS:
        limiter = RateLimiter(0.2, max_segment_steps=16, max_minibatches=2)
        table = make_table(selector=selector, limiter=limiter)
        play(table, World(0), 3)
        state = replace(table.get_state())
        assert json.loads(json.dumps(state)) == state


# Segments.


def test_views_and_read_only_arrays_are_inserted_like_copies():
    tables = [make_table(), make_table()]
    world = World(3)
    for _ in range(12):
        segment = world.make_segment(4, [0, 1, 2, 3])
        part = slice_slots(segment, 1, 3)
        tables[0].insert(part)
        copied = copy.deepcopy(part)
        for value in vars(copied).values():
            for array in value.values() if isinstance(value, dict) else [value]:
                if array is not None:
                    array.flags.writeable = False
        tables[1].insert(copied)
    assert_equal(*(table.get_state() for table in tables))


def test_each_step_of_a_rollout_buffer_leads_to_what_its_slot_saw_next():
    """With slots that are absent, and actions that something else decided."""
    random = np.random.default_rng(0)
    slots = 3
    buffer = RolloutBuffer(5, make_agent_ids("agent", slots))
    table = None
    seen = np.arange(1, slots + 1)
    newest = slots
    played: dict[float, list[float]] = {}  # observation -> the next one, discount
    last = [None] * slots  # the observation of the slot's last step
    absent = np.zeros(slots, bool)
    for t in range(400):
        observations = np.where(absent, 0, seen).astype(np.float32)[:, None]
        for slot in np.flatnonzero(~absent):
            if last[slot] is not None:
                played[last[slot]] = [float(seen[slot]), 0.5]
            last[slot] = float(seen[slot])
        nothing = np.zeros(slots, np.float32)
        buffer.add_actions(
            {"x": observations}, {"a": nothing}, nothing, {}, t, None, absent if t > 9 else None
        )
        alive = random.choice([1.0, 0.0, -1.0], slots, p=[0.8, 0.1, 0.1]).astype(np.float32)
        overridden = ~absent & (random.random(slots) < 0.1) & (t > 9)
        seen_before, seen = seen, newest + 1 + np.arange(slots)
        finals = newest + 1 + slots + np.arange(slots)
        newest = finals[-1]
        seen = np.where(absent & (alive == 1.0), seen_before, seen)
        for slot in np.flatnonzero(alive != 1.0):
            if last[slot] is not None:
                played[last[slot]] = [float(finals[slot]), 0.5 if alive[slot] < 0 else 0.0]
            last[slot] = None
        for slot in np.flatnonzero(overridden):
            played.pop(float(seen_before[slot]), None)
            last[slot] = None
        absent = random.random(slots) < (0.25 if t > 8 else 0.0)
        rollout = buffer.add_outcome(
            np.ones((slots, 1), np.float32),
            alive,
            {"x": np.where(absent, 0, seen).astype(np.float32)[:, None]},
            {"x": finals.astype(np.float32)[:, None]},
            absent_next=absent if t > 8 else None,
            executed=Executed({"a": nothing}, overridden) if t > 9 else None,
        )
        if rollout is not None:
            if table is None:
                storage = Storage(RowSpec.from_rollout(rollout), 5_000)
                table = Table(storage, Transitions(1, 0.5), Uniform(), minibatch_size=20_000)
            table.insert(rollout)
    batch = table.sample()
    found = np.stack(
        [batch.observations["x"], batch.next_observations["x"], batch.discounts[..., None]], -1
    ).reshape(-1, 3)
    found = np.unique(found, axis=0)
    assert len(found) > 500
    wrong = [row for row in found.tolist() if played.get(row[0]) != row[1:]]
    assert not wrong
    assert len(found) > 0.8 * len(played)


# Ids and priorities.


def test_ids_are_never_used_twice_and_errors_of_evicted_items_are_counted():
    table = make_table(selector="prioritized", capacity=60)
    world = World(1)
    table.insert(world.make_segment(8, [0], holes=0))
    batch = table.sample(3)
    first = 0
    for _ in range(20):
        table.insert(world.make_segment(8, [0], holes=0))
        assert table.rows[1] >= first + 8
        first = table.rows[1]
    before = copy.deepcopy(table.get_state()["selector"])
    table.update_priorities(batch.ids, np.ones((3, 4)))
    assert_equal(table.get_state()["selector"], before)
    assert table.get_state()["counts"]["dropped"] == 12
    assert table.get_state()["counts"]["evicted"] > 60
    table.update_priorities(table.sample().ids, np.full((1, 4), 9.0))
    assert table.get_state()["selector"]["leaves"].max() > before["leaves"].max()


def test_priorities_change_what_is_drawn():
    table = make_table(selector="prioritized")
    world = World(2)
    table.insert(world.make_segment(30, [0], holes=0))
    seen = np.unique(table.sample(50).ids)
    assert len(seen) > 20
    errors = np.where(seen == seen[3], 1e6, 0.0)
    table.update_priorities(seen, errors)
    ids = table.sample(50).ids
    assert (ids == seen[3]).mean() > 0.9
    with pytest.raises(InvalidInputError, match=r"errors have shape \[2\], expected \[3\]"):
        table.update_priorities(seen[:3], errors[:2])


# Waiting.


def test_nothing_is_sampled_before_the_warm_up_and_a_complete_item():
    table = make_table(limiter=RateLimiter(1.0, warm_up_steps=5, max_segment_steps=4))
    world = World(0)
    assert table.sample() is None
    table.insert(world.make_segment(4, [0], holes=0))
    assert table.sample() is None
    table.insert(world.make_segment(4, [0], holes=0))
    assert table.sample().ids.shape == (1, 4)


def test_no_insertion_is_due_while_the_learner_is_behind_but_there_is_an_item():
    limiter = RateLimiter(1.0)
    table = Table(Storage(SPEC, 100), Transitions(5), Uniform(), minibatch_size=1, limiter=limiter)
    world = World(0)
    for _ in range(5):  # the first item is complete with the fifth step
        assert table.can_insert(1)
        table.insert(world.make_segment(1, [0], ends=0, holes=0))
    assert table.counts.deficit == 5.0
    for _ in range(4):
        assert not table.can_insert(1)
        table.sample()
    assert table.can_insert(1)
    for deficit in (2.0, 3.0):
        table.insert(world.make_segment(1, [0], ends=0, holes=0))
        assert table.counts.deficit == deficit


def test_threads_that_insert_and_sample_leave_whole_items():
    table = make_table(
        selector="prioritized",
        capacity=300,
        limiter=RateLimiter(0.5, 20, max_segment_steps=6, max_minibatches=2),
    )
    errors, turn = [], threading.Lock()

    def insert(slot):
        world = World(slot)
        try:
            for _ in range(60):
                segment = world.make_segment(6, [slot], history=False, differs=0)
                with turn:
                    wait_until(lambda: table.can_insert(6), "the learner")
                    table.insert(segment)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=insert, args=(slot,), daemon=True) for slot in range(3)]
    for thread in threads:
        thread.start()
    batches = 0
    while any(thread.is_alive() for thread in threads):
        if (batch := table.sample(2)) is None:
            continue
        batches += 2
        vector = batch.observations["vector"][..., 0]
        # The newest of the stacked observations is the one of the same row.
        np.testing.assert_array_equal(batch.observations["pixels"][..., 0, 0, -1], vector)
        continues = batch.discounts > 0
        newer = batch.next_observations["vector"][..., 0]
        assert (newer[continues] > vector[continues]).all()
        table.update_priorities(batch.ids, batch.returns[..., 0])
    assert not errors
    assert table.counts.deficit <= 4 + 5
    assert table.counts.minibatches == batches


# Refusals.


def test_a_capacity_that_does_not_fit_into_memory_is_refused_with_the_figures():
    spec = RowSpec(
        observations={"screen": np.dtype((np.uint8, (84, 84, 1)))},
        actions={"action": np.dtype(np.int64)},
    )
    figures = (
        r"capacity 1,000,000 needs 6\.6\d GiB.*7,1\d\d bytes.*only 4\.00 GiB.*"
        r"less than about 60\d,\d\d\d"
    )
    with pytest.raises(ConfigError, match=figures):
        Storage(spec, 1_000_000, history={"screen": 4}, available_bytes=4 << 30)
    # The capacity that is named fits, also where most of the memory does not depend on it.
    room = 2 * 4096 * spec.row_bytes
    with pytest.raises(ConfigError, match=r"to less than about [\d,]+, or") as caught:
        Storage(spec, 100_000, max_streams=4096, available_bytes=room)
    named = int(re.findall(r"about ([\d,]+),", str(caught.value))[0].replace(",", ""))
    Storage(spec, named, max_streams=4096, available_bytes=room)
    with pytest.raises(ConfigError, match="; free memory, or make observations smaller"):
        Storage(spec, 100_000, max_streams=4096, available_bytes=room // 4)
    # Close to the limit, the selector decides.
    available = Storage(spec, 1_000).num_bytes + 40_000
    storage = Storage(spec, 1_000, available_bytes=available)
    with pytest.raises(ConfigError, match="capacity 1,000 needs"):
        Table(storage, Transitions(), Prioritized(), minibatch_size=1)
    Table(storage, Transitions(), Uniform(), minibatch_size=1)
    available = read_available_bytes()
    assert available is None or available > 1 << 20
    # A million frames of Pong, with priorities: the aim is 7.6 GB.
    assert 1e6 * (spec.row_bytes + Prioritized.bytes_per_row) < 7.6e9


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_a_container_has_the_memory_of_its_limit(tmp_path):
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal:  9 kB\nMemAvailable:  8000 kB\n")
    read = partial(read_available_bytes, machine, tmp_path)
    assert read() == 8000 * 1024
    version_2 = {
        "memory.max": "1000000\n",
        "memory.current": "700000\n",
        "memory.stat": "anon 5\ninactive_file 200000\n",
    }
    write_files(tmp_path, version_2)
    assert read() == 500_000
    write_files(tmp_path, {"memory.max": "max\n"})
    assert read() == 8000 * 1024
    version_1 = {"memory.limit_in_bytes": "90\n", "memory.usage_in_bytes": "100\n"}
    write_files(tmp_path / "memory", version_1)
    assert read() == 0
    assert read_available_bytes(tmp_path / "none", tmp_path / "none") is None


def test_the_figures_are_those_of_the_arrays():
    storage = Storage(SPEC, 1_000, max_streams=10)
    arrays = [storage.rewards, storage.log_prob, storage.links]
    for named in (storage.observations, storage.actions, storage.extras):
        arrays += named.values()
    assert storage.num_bytes == sum(a.nbytes for a in [*arrays, storage.streams])
    for selector in (Uniform(), Prioritized()):
        selector.start(1025)  # the worst case of a tree
        arrays = [a for a in vars(selector).values() if isinstance(a, np.ndarray)]
        arrays += [selector._tree.nodes] if isinstance(selector, Prioritized) else []
        assert sum(a.nbytes for a in arrays) <= 1025 * selector.bytes_per_row


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": np.zeros((2, 1, 1), np.float32)}, r"rewards .*\[2, 1, 1\].*\[2, 1, 2\]"),
        ({"actions": {}}, r"actions\['action'\] is missing, expected 'action'"),
        ({"versions": np.zeros(3, np.int64)}, r"versions .*\[3\].*\[2\]"),
        ({"next_alive": np.zeros((0, 1), np.float32)}, r"next_alive has shape \[0, 1\]"),
        ({"valid": np.ones((2, 2), bool)}, r"valid .*\[2, 2\].*\[2, 1\]"),
        ({"history": {"pixels": np.zeros((2, 1, 2, 2, 1))}}, r"history\['touch'\] is missing"),
    ],
)
def test_a_segment_that_does_not_fit_changes_nothing(change, message):
    table = make_table()
    segment = World(0).make_segment(2, [0])
    vars(segment).update(change)
    before = copy.deepcopy(table.get_state())
    with pytest.raises(InvalidInputError, match=message):
        table.insert(segment)
    assert_equal(table.get_state(), before)


def test_segments_that_are_too_large_are_refused_with_the_numbers():
    world = World(0)
    table = make_table(capacity=20)
    before = copy.deepcopy(table.get_state())
    with pytest.raises(InvalidInputError, match=r"30 step\(s\) of 1 slot\(s\) .* capacity is 20"):
        table.insert(world.make_segment(30, [0]))
    with pytest.raises(InvalidInputError, match=r"4 slots, but max_streams .* is 3"):
        make_table().insert(world.make_segment(1, [0, 1, 2, 3]))
    twice = world.make_segment(1, [0, 0])
    with pytest.raises(InvalidInputError, match="expected a different number for each slot"):
        make_table().insert(twice)
    assert_equal(table.get_state(), before)


# Kernels.


@pytest.mark.parametrize("items", ITEMS)
def test_interpreted_kernels_give_the_same_bits(items, monkeypatch):
    compiled = make_table(items, "prioritized")
    batches = play(compiled, World(6), 15)
    for module in ("storage", "items", "selectors", "sum_tree"):
        monkeypatch.setattr(
            f"relaax_like.experience.replay.{module}.load_kernel", lambda loop: loop
        )
    interpreted = make_table(items, "prioritized")
    for batch, same in zip(batches, play(interpreted, World(6), 15), strict=True):
        assert_equal(batch, same)
    assert_equal(compiled.get_state(), interpreted.get_state())


def test_all_kernels_are_compiled():
    pytest.importorskip("numba")
    functions = [one for one in vars(kernels).values() if inspect.isfunction(one)]
    loops = {one for one in functions if one.__module__ == kernels.__name__}
    assert loops - {kernels.compile_kernels} == set(kernels.LOOPS)
    for loop in kernels.LOOPS:
        assert hasattr(kernels.load_kernel(loop), "py_func")
