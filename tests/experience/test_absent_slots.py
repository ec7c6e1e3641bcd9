"""Slots that are absent from steps, and steps that something else than the policy has decided."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.experience.rollout import (
    ALIVE,
    TERMINATED,
    TRUNCATED,
    Executed,
    Rollout,
    RolloutBuffer,
)

SLOTS, STEPS = 3, 4


@dataclass
class Step:
    """What became of one action of a slot."""

    seen: float
    action: int
    memory: float
    reward: float = 0.0
    alive: float = ALIVE
    following: float | None = None
    overridden: bool = False


@dataclass
class Slot:
    """A slot, told by hand: its steps, the open one last."""

    steps: list[Step] = field(default_factory=list)
    memory: float = 0.0
    is_open: bool = False  # the last step has neither ended nor been followed by another

    def act(self, seen: float, action: int) -> None:
        if self.is_open:
            self.steps[-1].following = seen
        self.steps.append(Step(seen, action, self.memory))
        self.memory += 1.0
        self.is_open = True

    def end(self, alive: float, final: float) -> None:
        self.steps[-1].alive, self.steps[-1].following = alive, final
        self.memory, self.is_open = 0.0, False


@dataclass
class Game:
    """Plays at random: tells a buffer what happens, and remembers what is to come of it."""

    random: np.random.Generator
    absence: float
    override: float
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(SLOTS)])

    def __post_init__(self) -> None:
        self._absent = self._draw_absent()

    def play(self, buffer: RolloutBuffer, steps: int) -> list[Rollout]:
        random, rollouts = self.random, []
        for t in range(steps):
            absent = self._absent
            seen = 100.0 * t + np.arange(SLOTS)
            actions = random.integers(1000, size=SLOTS)
            memory = np.array([slot.memory for slot in self.slots])
            for slot, is_absent, one, action in zip(self.slots, absent, seen, actions, strict=True):
                if not is_absent:
                    slot.act(float(one), int(action))
            buffer.add_actions(
                {"x": np.where(absent, -1.0, seen)[:, None]},
                {"a": actions},
                np.zeros(SLOTS, np.float32),
                {"m": memory[:, None].astype(np.float32)},
                t,
                absent=absent if absent.any() else None,
            )
            rewards = random.integers(1, 100, size=SLOTS).astype(float)
            alive = np.full(SLOTS, ALIVE)
            finals = -seen - 1.0
            overridden = (random.uniform(size=SLOTS) < self.override) & ~absent
            executed = actions + 1000
            for i, slot in enumerate(self.slots):
                if not slot.is_open:
                    continue
                slot.steps[-1].reward += rewards[i]
                if random.uniform() < 0.15:
                    alive[i] = random.choice([TERMINATED, TRUNCATED])
                if overridden[i]:
                    slot.steps[-1].overridden = True
                    slot.steps[-1].action = int(executed[i])
                    slot.memory = 0.0
                if alive[i] != ALIVE:
                    slot.end(float(alive[i]), float(finals[i]))
                elif overridden[i]:
                    slot.is_open = False
            absent_next = self._draw_absent()
            rollout = buffer.add_outcome(
                rewards[:, None],
                alive,
                {"x": np.where(absent_next, -1.0, 100.0 * (t + 1) + np.arange(SLOTS))[:, None]},
                {"x": finals[:, None]} if (alive == TRUNCATED).any() else None,
                Executed({"a": executed}, overridden) if overridden.any() else None,
                absent_next if absent_next.any() else None,
            )
            self._absent = absent_next
            if rollout is not None:
                rollouts.append(rollout)
        return rollouts

    def _draw_absent(self) -> Any:
        return self.random.uniform(size=SLOTS) < self.absence


def find_rows(rollouts: list[Rollout], slot: int) -> list[tuple[Rollout, int, bool]]:
    """Returns rollout, row, and whether it is the last valid one there, of a slot's valid rows."""
    found = []
    for rollout in rollouts:
        valid = np.ones((STEPS, SLOTS), bool) if rollout.valid is None else rollout.valid
        rows = np.flatnonzero(valid[:, slot])
        found += [(rollout, int(row), row == rows[-1]) for row in rows]
    return found


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    absence=st.sampled_from([0.0, 0.2, 0.6, 0.95]),
    override=st.sampled_from([0.0, 0.2, 0.7]),
)
def test_valid_rows_are_the_steps_that_were_taken(
    seed: int, absence: float, override: float
) -> None:
    game = Game(np.random.default_rng(seed), absence, override)
    buffer = RolloutBuffer(STEPS, np.arange(SLOTS))
    rollouts = game.play(buffer, steps=5 * STEPS + 2)
    for number, slot in enumerate(game.slots):
        wanted = []
        for before, step in zip([None, *slot.steps], slot.steps, strict=False):
            if step.overridden:
                if before is not None and before.alive == ALIVE and not before.overridden:
                    before.alive = TRUNCATED  # the trace is cut
                continue
            wanted.append(step)
        rows = find_rows(rollouts, number)
        assert len(rows) <= len(wanted)
        for (rollout, row, is_last), step in zip(rows, wanted, strict=False):
            assert rollout.inputs["x"][row, number, 0] == step.seen
            assert rollout.actions["a"][row, number] == step.action
            assert rollout.rewards[row, number, 0] == step.reward
            alive = rollout.next_alive[row, number]
            # Behind the last row of a rollout it is cut anyway.
            assert alive == step.alive or (is_last and (alive, step.alive) == (ALIVE, TRUNCATED))
            if alive != TERMINATED and step.following is not None:
                assert rollout.next_inputs["x"][row, number, 0] == step.following
        firsts = {id(rollout): row for rollout, row, _ in reversed(rows)}
        for (rollout, row, _), step in zip(rows, wanted, strict=False):
            if firsts[id(rollout)] == row:  # memory at the first row that is learned from
                assert rollout.states["m"][number, 0] == step.memory


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), absence=st.sampled_from([0.0, 0.4]))
def test_of_every_step_that_was_taken_one_is_counted(seed: int, absence: float) -> None:
    game = Game(np.random.default_rng(seed), absence, 0.3)
    buffer, counted = RolloutBuffer(STEPS, np.arange(SLOTS)), 0
    for _ in range(5):
        assert len(game.play(buffer, STEPS)) == 1
        counted += buffer.newest_env_steps
        assert counted == sum(len(slot.steps) for slot in game.slots)
    game.play(buffer, 2)
    assert counted + buffer.env_steps == sum(len(slot.steps) for slot in game.slots)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000), absence=st.sampled_from([0.0, 0.4]))
def test_only_what_was_overridden_is_valid_for_those_who_clone_it(
    seed: int, absence: float
) -> None:
    game = Game(np.random.default_rng(seed), absence, 0.3)
    rollouts = game.play(RolloutBuffer(STEPS, np.arange(SLOTS), "only"), 4 * STEPS)
    for number, slot in enumerate(game.slots):
        wanted = [step for step in slot.steps if step.overridden]
        rows = find_rows(rollouts, number)
        found = [
            (rollout.inputs["x"][row, number, 0], rollout.actions["a"][row, number])
            for rollout, row, _ in rows
        ]
        assert found == [(step.seen, step.action) for step in wanted]


def test_without_absence_and_overriding_there_is_no_mask() -> None:
    (rollout,) = Game(np.random.default_rng(0), 0.0, 0.0).play(
        RolloutBuffer(STEPS, np.arange(SLOTS)), STEPS
    )
    assert rollout.valid is None


def test_a_slot_that_is_absent_for_several_rollouts_keeps_its_last_step() -> None:
    """By hand: one slot acts once, is absent for five steps with a reward each, and ends."""
    buffer = RolloutBuffer(2, np.arange(2))
    rollouts = []
    for t in range(7):
        absent = np.array([0 < t < 6, False])
        buffer.add_actions(
            {"x": np.array([[t], [t]], float)},
            {"a": np.array([t, t])},
            np.zeros(2),
            {},
            0,
            absent=absent if absent.any() else None,
        )
        absent_next = np.array([t + 1 < 6, False])
        rollout = buffer.add_outcome(
            np.array([[10.0**t], [0.0]]) if t < 6 else np.zeros((2, 1)),
            np.array([TERMINATED if t == 5 else ALIVE, ALIVE]),
            {"x": np.array([[t + 1], [t + 1]], float)},
            absent_next=absent_next if absent_next.any() else None,
        )
        rollouts += [] if rollout is None else [rollout]
    first, second, third = rollouts
    assert [None if r.valid is None else r.valid[:, 0].tolist() for r in rollouts] == [
        [False, False],
        [False, False],
        [True, False],
    ]
    assert first.valid is not None
    assert second.valid is not None
    assert third.rewards[0, 0, 0] == pytest.approx(111_111.0)
    assert (third.actions["a"][0, 0], third.next_alive[0, 0]) == (0, TERMINATED)


def test_a_rollout_that_is_due_has_the_steps_that_were_taken() -> None:
    buffer = RolloutBuffer(STEPS, np.arange(2))
    rollouts = []
    for t in range(2 * STEPS):
        buffer.add_actions(
            {"x": np.array([[t], [-t]], float)}, {"a": np.array([t, t])}, np.zeros(2), {}, t
        )
        following = {"x": np.array([[t + 1], [-t - 1]], float)}
        rollout = buffer.add_outcome(
            np.full((2, 1), t), np.full(2, ALIVE), following, is_due=t in (1, 4)
        )
        rollouts += [] if rollout is None else [rollout]
    first, second = rollouts
    assert (first.env_steps, second.env_steps) == (4, 6)
    for rollout, start, steps in ((first, 0, 2), (second, 2, 3)):
        assert rollout.valid is not None
        assert rollout.valid[:, 0].tolist() == [t < steps for t in range(STEPS)]
        times = list(range(start, start + steps))
        assert rollout.inputs["x"][:steps, 0, 0].tolist() == times
        assert rollout.next_inputs["x"][:steps, 0, 0].tolist() == [t + 1 for t in times]
        assert rollout.rewards[:steps, 1, 0].tolist() == times
        assert rollout.starts is not None
        assert rollout.starts[:, 2].tolist() == [start, start]
        for array in (rollout.inputs["x"], rollout.next_inputs["x"], rollout.log_prob):
            assert np.isfinite(array).all()
    assert buffer.env_steps == 3 * 2
