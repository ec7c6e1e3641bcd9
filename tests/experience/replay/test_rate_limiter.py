"""The rate limiter: what waits, and that never both do.

covers F23 (learning every so many stored steps), F24 (no sampling before the warm-up)
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.replay import SPEC, World

from relaax_like.replay import (
    Prioritized,
    RateLimiter,
    Storage,
    Table,
    Transitions,
    Uniform,
)
from relaax_like.wire.errors import InvalidInputError


def test_nothing_is_sampled_before_the_warm_up():
    limiter = RateLimiter(0.5, warm_up_steps=10, max_segment_steps=4)
    for _ in range(9):
        assert limiter.can_insert(1)
        limiter.note_insert(1)
        assert not limiter.can_sample(1)
    limiter.note_insert(2)
    assert limiter.deficit == 0.5
    assert not limiter.can_sample(1)
    limiter.note_insert(1)
    assert limiter.can_sample(1)


@pytest.mark.parametrize(
    ("settings", "due_after_ten_more"),
    [((0.5, 10), 5), ((0.5, 25), 5), ((0.5, 0), 5), ((2.0, 10), 20), ((0.25, 40), 0)],
)
def test_other_settings_hold_from_where_a_run_is_continued(settings, due_after_ten_more):
    """Neither a burst of updates for the steps before, nor a pause."""
    before = RateLimiter(0.5, warm_up_steps=10, max_segment_steps=30)
    before.note_insert(30)
    before.note_sample(9)
    assert before.deficit == 1

    after = RateLimiter(settings[0], warm_up_steps=settings[1], max_segment_steps=30)
    after.set_state(before.get_state())
    assert (after.steps, after.minibatches, after.deficit) == (30, 9, 1)
    after.note_insert(10)
    assert after.deficit == 1 + due_after_ten_more

    again = RateLimiter(settings[0], warm_up_steps=settings[1], max_segment_steps=30)
    again.set_state(after.get_state())
    assert again.get_state() == after.get_state()

    counted = RateLimiter(settings[0], warm_up_steps=settings[1], max_segment_steps=30)
    counted.set_counts(30, 9)
    assert 0 <= counted.deficit <= counted.tolerance


def test_the_deficit_stays_in_its_range():
    limiter = RateLimiter(2.0, max_segment_steps=9, max_minibatches=2)
    inserted = 0
    while limiter.can_insert(4):
        limiter.note_insert(4)
        inserted += 4
    assert inserted == 8  # 16 minibatches are due, and 8 more would be too many
    assert limiter.deficit == 16.0
    sampled = 0
    while limiter.can_sample(2):
        limiter.note_sample(2)
        sampled += 2
    assert sampled == 16
    assert limiter.deficit == 0.0
    assert limiter.can_insert(4)


@given(
    st.floats(0.01, 50),
    st.integers(0, 50),
    st.integers(1, 40),
    st.integers(1, 8),
    st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=100),
)
def test_the_counts_never_make_both_wait(rate, warm_up, segment, minibatches, calls):
    limiter = RateLimiter(
        rate,
        warm_up,
        max_segment_steps=segment,
        max_minibatches=minibatches,
    )
    most = limiter.tolerance
    for inserts, number in calls:
        assert limiter.can_insert(number) or limiter.can_sample(minibatches)
        if inserts and limiter.can_insert(number):
            limiter.note_insert(number)
            most = max(most, limiter.tolerance + rate * (number - segment))
        elif not inserts and limiter.can_sample(min(number, minibatches)):
            limiter.note_sample(min(number, minibatches))
        assert 0.0 <= limiter.deficit <= most * (1 + 1e-9)


class Run(RuleBasedStateMachine):
    """A learner, and agents that join, leave and lose segments, on one table; nothing waits.

    An agent with a segment that the table does not take keeps it, as a thread that waits does.
    """

    @initialize(
        selector=st.sampled_from([Uniform, Prioritized]),
        rate=st.sampled_from([0.05, 0.5, 1.0, 4.0]),
        warm_up=st.integers(0, 30),
        n=st.sampled_from([1, 5]),
        minibatches=st.integers(1, 4),
        size=st.integers(1, 4),
        capacity=st.sampled_from([40, 100, 1000]),
        budget=st.integers(1, 200),
    )
    def begin(self, selector, rate, warm_up, n, minibatches, size, capacity, budget):
        self.world = World(budget, agents=3)
        self.limiter = RateLimiter(rate, warm_up, max_segment_steps=10, max_minibatches=minibatches)
        self.table = Table(
            Storage(SPEC, capacity, max_streams=3),
            Transitions(n),
            selector(),
            minibatch_size=size,
            limiter=self.limiter,
        )
        self.minibatches, self.budget = minibatches, budget
        self.waiting = {}  # slot -> its segment
        self.joined = {0}
        self.closed = False

    @rule(slot=st.integers(0, 2))
    def join(self, slot):
        self.joined.add(slot)

    @rule(slot=st.integers(0, 2), graceful=st.booleans())
    def leave(self, slot, graceful):
        self.joined.discard(slot)
        self.waiting.pop(slot, None)
        if graceful:
            self.table.forget([self.world.agents[slot].number])

    @rule(slot=st.integers(0, 2), length=st.integers(1, 10))
    def play(self, slot, length):
        if slot in self.joined and slot not in self.waiting and not self.closed:
            self.waiting[slot] = self.world.make_segment(length, [slot], holes=0.1)

    @rule(slot=st.integers(0, 2))
    def insert(self, slot):
        if slot not in self.waiting or self.closed:
            return
        if self.table.can_insert(self.waiting[slot].env_steps):
            self.table.insert(self.waiting.pop(slot))
            self.end_of_budget()

    @rule(slot=st.integers(0, 2))
    def slip(self, slot):
        if slot in self.waiting and not self.closed:
            self.table.insert(self.waiting.pop(slot))
            self.end_of_budget()

    @rule(fewer=st.integers(0, 3))
    def sample(self, fewer):
        number = max(1, self.minibatches - fewer)
        can = self.table.can_sample(number)
        batch = self.table.sample(number)
        assert (batch is not None) == can
        if can:
            self.table.update_priorities(batch.ids, batch.returns[..., 0])

    @precondition(lambda self: not self.closed)
    @rule()
    def learner_catches_up(self):
        while (batch := self.table.sample(self.minibatches)) is not None:
            pass
        assert self.limiter.deficit < self.minibatches or self.table.can_insert(10)
        assert batch is None

    def end_of_budget(self):
        if self.table.counts.steps >= self.budget:
            self.closed = True
            self.waiting.clear()

    @invariant()
    def one_of_both_can_continue(self):
        if getattr(self, "closed", True):
            return
        assert self.table.can_insert(10) or self.table.can_sample(self.minibatches)
        if self.limiter.steps < self.limiter.warm_up_steps:
            assert self.limiter.minibatches == 0
        assert self.limiter.deficit >= 0.0

    def teardown(self):
        if not hasattr(self, "table"):
            return
        # What is due is taken, then the learner is stopped: it does not wait forever.
        while self.table.can_sample():
            assert self.table.sample() is not None
        assert self.table.sample() is None


TestRun = Run.TestCase
TestRun.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_more_minibatches_than_the_limiter_was_made_for_are_refused_with_the_numbers():
    limiter = RateLimiter(1.0, max_segment_steps=6)
    table = Table(Storage(SPEC, 100), Transitions(), Uniform(), minibatch_size=1, limiter=limiter)
    with pytest.raises(InvalidInputError, match="2 minibatches requested, expected at most 1"):
        table.sample(2)
