"""Items of random segments equal those of a slow reference, over gaps, holes, ends and eviction.

covers F24 (sequences that never cross an episode)
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.replay import HISTORY, SPEC, Reference, World, show_all

from relaax_like.experience.rollout import ALIVE, TERMINATED
from relaax_like.replay import Sequences, Storage, Table, Transitions, Uniform

DISCOUNT = 0.9

plays = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32 - 1),
        "capacity": st.integers(60, 200),
        "max_streams": st.integers(3, 6),
        "segments": st.integers(1, 30),
        "has_history": st.booleans(),
        "holes": st.sampled_from([0.0, 0.0, 0.2]),
        "ends": st.sampled_from([0.02, 0.15, 0.6]),
    }
)


def play(items, seed, capacity, max_streams, segments, has_history, holes, ends):
    """Inserts random segments in a table and in the reference; yields both after each."""
    world = World(seed)
    random = world.random
    history = HISTORY if has_history else {}
    storage = Storage(SPEC, capacity, history=history, max_streams=max_streams)
    table = Table(storage, items, Uniform(), minibatch_size=1)
    reference = Reference(has_history)
    # Slots beyond max_streams are used in a test of their own.
    known = list(range(min(max_streams, len(world.agents))))
    for _ in range(segments):
        what = random.random()
        slots = sorted(random.choice(known, random.integers(1, 4), replace=False).tolist())
        if what < 0.1:
            world.lose_segment(int(random.integers(1, 6)), slots[0])
        elif what < 0.2:
            agent = world.agents[slots[0]].number
            table.forget([agent])
            reference.evict(storage.oldest_id)
            reference.cut(agent)
        segment = world.make_segment(
            int(random.choice([1, 1, 2, 7])),
            slots,
            holes=holes,
            ends=ends,
            history=has_history and random.random() < 0.8,
            starts=random.random() < 0.9,
        )
        table.insert(segment)
        reference.insert(segment, storage.oldest_id)
        yield table, storage, reference


def gather_all(table, storage, items):
    """Returns the batch of all items, one minibatch, in the order of their ids."""
    ids = np.sort(table.get_state()["selector"]["members"])
    weights = np.ones(len(ids), np.float32)
    return ids, items.gather(storage, ids[None], weights[None], np.random.default_rng(0)) if len(
        ids
    ) else None


def stack_all(stacks, has_history):
    """Returns observations of lists of numbers, `[N, ...]`, the newest last."""
    expected = {}
    numbers = np.array([[*stack[:1]] * (3 - len(stack)) + stack for stack in stacks])
    for name, array in show_all(numbers).items():  # [N, 3, ...]
        number = HISTORY.get(name, 1) if has_history else 1
        parts = [array[:, -number + i] for i in range(number)]
        expected[name] = np.concatenate(parts, -1)
    return expected


def assert_same_rows(storage, reference):
    assert storage.next_id == reference.next_id
    for row in reference.rows.values():
        shown = show_all(np.array(row.observation))
        is_earlier = not row.is_step and (row.previous is None or not row.previous.is_step)
        for name in ["pixels"] if is_earlier else shown:
            array = storage.observations[name]
            np.testing.assert_array_equal(array[row.id % storage.capacity], shown[name])


@given(plays, st.integers(1, 5))
@settings(max_examples=80)
def test_transitions_equal_the_reference(settings, n):
    items = Transitions(n, DISCOUNT)
    depth = 3 if settings["has_history"] else 1
    for table, storage, reference in play(items, **settings):
        ids, batch = gather_all(table, storage, items)
        found = {
            r.id: reference.find_transition(r, n, DISCOUNT) for r in reference.list_steps(depth)
        }
        expected = {i: item for i, item in found.items() if item is not None}
        assert ids.tolist() == sorted(expected)
        assert table.counts.items == len(ids)
        if batch is None:
            continue
        rows = [reference.rows[i] for i in ids.tolist()]
        items_ = [expected[i] for i in ids.tolist()]
        np.testing.assert_allclose(batch.returns[0], [i[0] for i in items_], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(batch.discounts[0], [i[1] for i in items_], rtol=1e-6)
        assert batch.steps[0].tolist() == [len(i[2]) for i in items_]
        observations = stack_all([reference.stack(r, depth) for r in rows], depth > 1)
        following = stack_all([reference.stack_next(i[2][-1], depth) for i in items_], depth > 1)
        for name in observations:
            np.testing.assert_array_equal(batch.observations[name][0], observations[name])
            np.testing.assert_array_equal(batch.next_observations[name][0], following[name])
        assert [tuple(key) for key in batch.keys[0].tolist()] == [r.key for r in rows]
        assert batch.versions[0].tolist() == [r.version for r in rows]
        assert batch.actions["action"][0].tolist() == [r.action for r in rows]
        assert batch.log_prob[0].tolist() == [r.log_prob for r in rows]
        assert batch.extras["priority"][0].tolist() == [r.extra for r in rows]
        assert batch.ages[0].tolist() == [storage.next_id - 1 - r.id for r in rows]
    assert_same_rows(storage, reference)


@given(plays, st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=80)
def test_sequences_equal_the_reference(settings, learned, burn_in):
    steps = learned + burn_in
    items = Sequences(steps, burn_in, DISCOUNT)
    depth = 3 if settings["has_history"] else 1
    for table, storage, reference in play(items, **settings):
        ids, batch = gather_all(table, storage, items)
        found = {
            r.id: reference.find_sequence(r, steps, burn_in, learned)
            for r in reference.list_steps(depth)
        }
        expected = {i: item for i, item in found.items() if item is not None}
        assert ids.tolist() == sorted(expected)
    for place, id_ in enumerate(ids.tolist()):
        before, rows = expected[id_]
        assert_sequence(batch, place, [*before, *rows], len(before), reference, depth > 1)


def assert_sequence(batch, place, rows, burnt_in, reference, has_history):
    length, padded = len(rows), batch.valid.shape[1]
    present = np.arange(padded) < length
    assert batch.present[0, :, place].tolist() == present.tolist()
    assert batch.valid[0, :, place].tolist() == (present & (np.arange(padded) >= burnt_in)).tolist()
    assert batch.continues[0, :, place].tolist() == (np.arange(padded) < length - 1).tolist()
    assert batch.begins[0, :length, place].tolist() == [r.key[2] == 0 for r in rows]
    np.testing.assert_array_equal(batch.rewards[0, :length, place], [r.reward for r in rows])
    assert batch.actions["action"][0, :length, place].tolist() == [r.action for r in rows]
    factors = [0.0 if r.alive == TERMINATED else DISCOUNT for r in rows]
    np.testing.assert_allclose(batch.discounts[0, :length, place], factors, rtol=1e-6)
    assert all(r.alive == ALIVE for r in rows[:-1])
    # Burn-in steps whose earlier observations were evicted show the oldest one that is there.
    if not has_history:
        numbers = [[r.observation] for r in rows] + [[rows[-1].following]]
        shown = stack_all([n * 3 for n in numbers], False)
        for name, array in shown.items():
            np.testing.assert_array_equal(batch.observations[name][0, : length + 1, place], array)
    else:
        stacks = [reference.stack(r, 3) for r in rows[burnt_in:]]
        shown = stack_all([*stacks, reference.stack_next(rows[-1], 3)], True)
        for name, array in shown.items():
            np.testing.assert_array_equal(
                batch.observations[name][0, burnt_in : length + 1, place], array
            )
    assert tuple(batch.keys[0, place].tolist()) == rows[burnt_in].key


def test_each_step_is_valid_in_exactly_one_sequence():
    world = World(3)
    items = Sequences(steps=6, burn_in=2)
    storage = Storage(SPEC, 2_000)
    table = Table(storage, items, Uniform(), minibatch_size=1)
    steps = 0
    for _ in range(40):
        steps += table.insert(world.make_segment(7, [0, 1], holes=0.1)).steps
    table.forget([agent.number for agent in world.agents])
    _, batch = gather_all(table, storage, items)
    rewards = batch.rewards[batch.valid]
    assert len(rewards) == steps
    assert len(np.unique(rewards)) == rewards.size


def test_a_silent_slot_s_chain_ends_where_there_are_more_slots_than_streams():
    world = World(0, agents=3)
    items = Transitions(3, DISCOUNT)
    storage = Storage(SPEC, 200, max_streams=2)
    table = Table(storage, items, Uniform(), minibatch_size=1)
    for slot in (0, 1):
        table.insert(world.make_segment(2, [slot], ends=0, holes=0, differs=0))
    assert table.counts.items == 0  # two of three steps each
    third = world.make_segment(1, [2], ends=0, holes=0)
    table.insert(third)
    _, batch = gather_all(table, storage, items)
    assert batch.keys[0].tolist() == [[100, 0, 0], [100, 0, 1]]
    assert batch.steps[0].tolist() == [2, 1]
    np.testing.assert_allclose(batch.discounts[0], [DISCOUNT**2, DISCOUNT], rtol=1e-6)
    # Its next segment begins a chain of its own, although its ids continue.
    table.insert(world.make_segment(3, [0], ends=0, holes=0, differs=0))
    _, batch = gather_all(table, storage, items)
    assert batch.steps[0].tolist() == [2, 1, 2, 1, 3]


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_item_that_was_evicted_before_it_was_complete_never_becomes_one(is_closed):
    world = World(0)
    items = Transitions(6, DISCOUNT)
    storage = Storage(SPEC, 12)
    table = Table(storage, items, Uniform(), minibatch_size=1)
    table.insert(world.make_segment(4, [0], ends=0, holes=0, differs=0))
    table.insert(world.make_segment(4, [1], ends=0, holes=0, differs=0))
    table.insert(world.make_segment(3, [1], ends=0, holes=0, differs=0))
    assert 0 < storage.oldest_id < 4  # some of the first slot's
    if is_closed:
        table.forget([100, 101])
    else:
        table.insert(world.make_segment(1, [0], ends=1, holes=0))
    ids, batch = gather_all(table, storage, items)
    assert storage.oldest_id <= ids[0] < 4
    slots = batch.keys[0, :, 0]
    assert len(slots[slots == 100]) == 4 - storage.oldest_id + (not is_closed)


@pytest.mark.parametrize("n", [1, 3])
def test_a_termination_cuts_the_value_and_a_truncation_bootstraps(n):
    for alive, factor in ((0.0, 0.0), (-1.0, DISCOUNT)):
        world = World(1)
        segment = world.make_segment(1, [0], ends=0, holes=0)
        segment.next_alive[:] = alive
        items = Transitions(n, DISCOUNT)
        storage = Storage(SPEC, 50)
        table = Table(storage, items, Uniform(), minibatch_size=4)
        table.insert(segment)
        batch = table.sample()
        assert batch.discounts.tolist() == [[np.float32(factor)] * 4]
        for name, array in segment.next_inputs.items():
            np.testing.assert_array_equal(batch.next_observations[name][0], array[0].repeat(4, 0))
