"""Replayed and LearningPolicy: minibatches of a table, and complete updates of them. covers F24"""

import threading
from typing import Any

import numpy as np
import pytest
from support.batch import load
from support.replayed import make_config, make_source, make_step

from relaax_like.algorithm.parts import DISCOUNT, WEIGHTS
from relaax_like.config.plan import Episodes, OnPolicy, Replay
from relaax_like.core.records import Episode
from relaax_like.learn.draw import Draw
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.replayed import PRIORITY, make_table
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.wire.errors import CollectorFullError, ConfigError, InvalidInputError


def make_compiled(config):
    model = load("model", "dqn").make_model(config, 3)
    model.xla = False
    algorithm = load("algorithm", "dqn").make_algorithm(config, model, 3)
    return CompiledUpdates(algorithm, config.optimizers)


def test_steps_are_counted_during_warm_up_and_minibatches_follow():
    source, tally = make_source(make_config())
    for number in range(5):
        source.add(make_step(number), [Episode(1.0, 5)] if number == 4 else [])
    assert not source.has_iteration
    iteration = source.get(0, timeout_sec=0.0)
    assert (iteration.minibatches, iteration.env_steps) == (None, 5)
    assert iteration.tickets == (1, 2, 3, 4, 5)
    assert not source.has_rollouts(iteration)
    assert tally.take(iteration.tickets).env_steps == 5
    assert source.get(0, timeout_sec=0.0) is None
    for number in range(5, 9):
        source.add(make_step(number, version=number), [])
    assert source.has_iteration
    iteration = source.get(0, timeout_sec=0.0)
    assert source.has_rollouts(iteration)
    assert iteration.minibatches.ids.shape == (2, 4)
    assert iteration.mean_version == iteration.minibatches.versions.mean()


def test_a_learner_waits_for_steps_and_wakes_up():
    source, _ = make_source(make_config())
    found = []
    thread = threading.Thread(target=lambda: found.append(source.get(0, timeout_sec=30.0)))
    thread.start()
    source.add(make_step(0), [])
    thread.join(20)
    assert found[0].env_steps == 1


def test_a_closed_source_gives_nothing_more_and_takes_nothing():
    source, _ = make_source(make_config())
    source.add(make_step(0), [])
    source.close()
    assert source.get(0, timeout_sec=30.0) is None
    with pytest.raises(CollectorFullError, match="closed"):
        source.add(make_step(1), [])


def test_where_the_learner_is_behind_nothing_more_is_taken_and_nothing_is_counted():
    source, tally = make_source(make_config())
    number = 0
    with pytest.raises(CollectorFullError, match="the learner is behind"):  # noqa: PT012
        while number < 100:
            source.add(make_step(number), [])
            number += 1
    assert tally.take().env_steps == number < 100
    while source.has_iteration:
        source.get(0, timeout_sec=0.0)
    source.add(make_step(number), [])
    assert tally.take().env_steps == 1


def test_agents_that_cannot_wait_are_taken_nevertheless_and_the_updates_are_made_up():
    source, tally = make_source(make_config())
    for number in range(160):
        source.add(make_step(number), [], is_urgent=True)
    assert tally.take().env_steps == 160
    assert source.table_status.overdue_updates == 154
    with pytest.raises(CollectorFullError, match="the learner is behind"):
        source.add(make_step(160), [])
    made = 0
    while source.has_iteration:
        made += len(source.get(0, timeout_sec=0.0).minibatches.ids)
    assert (made, source.table_status.overdue_updates) == (154, 0)
    source.add(make_step(160), [])


def test_rows_become_priorities():
    source, _ = make_source(make_config(priority_exponent=1.0, weight_exponent=1.0))
    for number in range(9):
        source.add(make_step(number), [])
    iteration = source.get(0, timeout_sec=0.0)
    ids = np.unique(iteration.minibatches.ids)
    errors = np.where(iteration.minibatches.ids == ids[0], -1000.0, 0.0)
    source.note_learned(1, iteration, {PRIORITY: errors.reshape(-1)})
    for number in range(9, 12):
        source.add(make_step(number), [])
    drawn = source.get(0, timeout_sec=0.0).minibatches
    # The new ones came with the largest priority; of those that were drawn only the first is left.
    assert set(np.unique(drawn.ids)) & set(ids.tolist()) <= {ids[0]}


def test_steps_of_minibatches_that_were_skipped_keep_their_priorities():
    source, _ = make_source(make_config(priority_exponent=1.0))
    for number in range(9):
        source.add(make_step(number), [])
    iteration = source.get(0, timeout_sec=0.0)
    ids, selector = iteration.minibatches.ids, source._table._selector
    errors = np.full(ids.shape, np.nan, np.float32)
    errors[0] = 5.0
    source.note_learned(1, iteration, {PRIORITY: errors.reshape(-1), "updates": np.array(1)})
    items, priorities = selector.get_priorities()
    assert set(items[priorities != 1.0].tolist()) == set(ids[0].tolist())
    np.testing.assert_allclose(priorities[priorities != 1.0], 5.01)


@pytest.mark.parametrize("method", ["after_interact", "after_learn"])
def test_a_data_handler_that_fails_is_named(method):
    def fail(*_):
        raise ValueError("wrong")

    class Unchanged:
        def after_interact(self, rollout):
            return rollout

        def after_learn(self, training_data, policy_data):
            pass

    handler = type("Failing", (Unchanged,), {method: fail})()
    source, _ = make_source(make_config(), data_handler=handler)

    def use():
        for number in range(9):
            source.add(make_step(number), [])
        source.note_learned(1, source.get(0, timeout_sec=0.0), {})

    place = f"{__file__}:{fail.__code__.co_firstlineno + 1}"
    with pytest.raises(ConfigError) as caught:
        use()
    assert str(caught.value) == f"{place}: ValueError: wrong"


def test_a_state_continues_bit_identically():
    config = make_config(priority_exponent=0.6)
    first, _ = make_source(config)
    for number in range(9):
        first.add(make_step(number), [Episode(2.0, 3)])
    second, tally = make_source(config)
    second.set_state(first.take_state())
    counts = tally.take()
    assert (counts.env_steps, len(counts.episodes)) == (9, 9)
    for source in (first, second):
        source.add(make_step(9), [])
    ours, theirs = (source.get(0, timeout_sec=0.0).minibatches for source in (first, second))
    for name, arrays in ours._asdict().items():
        pair = flatten(arrays), flatten(getattr(theirs, name))
        for one, other in zip(*pair, strict=True):
            np.testing.assert_array_equal(one, other)


def flatten(arrays):
    return list(arrays.values()) if isinstance(arrays, dict) else [arrays]


def test_a_rollout_of_another_layout_is_refused():
    source, _ = make_source(make_config())
    step = make_step(0)
    wrong = {"observation": np.zeros((1, 1, 5), np.float32)}
    with pytest.raises(InvalidInputError, match="inputs"):
        source.add(type(step)(**{**vars(step), "inputs": wrong}), [])


def test_extras_of_a_data_handler_are_refused_with_the_cure():
    source, _ = make_source(make_config())
    step = make_step(0)
    extras = {"goal": np.zeros((1, 1), np.float32)}
    with pytest.raises(InvalidInputError, match=r"extras\['goal'\] is unknown, .* no extras"):
        source.add(type(step)(**{**vars(step), "extras": extras}), [])


def test_a_table_that_does_not_fit_into_memory_is_refused_with_the_figure():
    config = make_config(capacity=10**12)
    model = load("model", "dqn").make_model(config, 0)
    with pytest.raises(ConfigError, match=r"capacity 1,000,000,000,000 needs .* GiB"):
        make_table(config.plan, model, {}, 0)


def test_what_a_table_draws_is_what_the_update_sees():
    """n-step returns, discounts and weights, against numbers from hand."""
    config = make_config(n_step=2, priority_exponent=1.0, weight_exponent=1.0)
    source, _ = make_source(config)
    for number in range(9):  # an episode ends with the reward of 4
        source.add(make_step(number, alive=0.0 if number == 4 else 1.0), [])
    iteration = source.get(0, timeout_sec=0.0)
    policy = LearningPolicy(make_compiled(config), config.plan, 0)
    arguments = policy.data_preprocess(iteration)
    at = arguments["inputs"]["observation"][:, 0]
    ends = at >= 3
    first_episode = at <= 4
    rewards = np.where(at == 4, at, at + 0.5 * (at + 1))
    np.testing.assert_allclose(arguments["rewards"]["reward"][:, 0], rewards)
    done = first_episode & ends
    np.testing.assert_allclose(arguments["extras"][DISCOUNT], np.where(done, 0.0, 0.25))
    np.testing.assert_array_equal(arguments["extras"][WEIGHTS], np.ones(8))  # all are new
    assert set(at.tolist()) <= set(range(8))


def test_updates_of_one_call_equal_one_after_another():
    config = make_config()
    source, _ = make_source(config)
    for number in range(12):
        source.add(make_step(number), [])
    together, alone = (LearningPolicy(make_compiled(config), config.plan, 0) for _ in range(2))
    for _ in range(2):
        arguments = together.data_preprocess(source.get(0, timeout_sec=0.0))
        costs = together.forward(arguments)
        assert costs["updates"] == 2
        separate = []
        for half in (slice(0, 4), slice(4, 8)):
            part = {
                name: {key: array[half] for key, array in arrays.items()}
                for name, arrays in arguments.items()
            }
            separate.append(alone._compiled.update(**part))
        mean = np.mean([one.costs["default"] for one in separate])
        np.testing.assert_allclose(costs["default"], mean, rtol=1e-5)
        rows = np.concatenate([one.rows[PRIORITY] for one in separate])
        np.testing.assert_allclose(together.rows[PRIORITY], rows, rtol=1e-4, atol=1e-6)
    for one, other in zip(together.get_values(), alone.get_values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_batch_that_is_no_multiple_of_the_minibatch_is_refused():
    config = make_config()
    source, _ = make_source(config)
    for number in range(12):
        source.add(make_step(number), [])
    policy = LearningPolicy(make_compiled(config), config.plan, 0)
    arguments = policy.data_preprocess(source.get(0, timeout_sec=0.0))
    with pytest.raises(
        InvalidInputError, match="the batch has 8 rows or sequences, expected a multiple of"
    ):
        policy._compiled.update(Draw(batch_size=3), **arguments)


def test_plans_of_replay_name_their_defaults():
    plan = Replay(capacity=10, batch_size=2)
    assert (plan.updates_at_once, plan.rollout_steps, plan.priority_exponent) == (1, 1, None)


@pytest.mark.parametrize(
    ("plan", "numbers", "names"),
    [
        (Replay, {"capacity": 10, "batch_size": 2}, ("updates_at_once", "rollout_steps")),
        (OnPolicy, {"rollout_steps": 1, "rollouts": 1}, ("rollout_steps", "rollouts")),
        (Episodes, {}, ("episodes", "rollout_steps", "max_steps")),
    ],
)
def test_plans_refuse_numbers_that_cannot_work(plan: Any, numbers: dict[str, int], names: Any):
    for name in names:
        with pytest.raises(ValueError, match=f"{plan.__name__}: {name} is 0, expected 1 or more"):
            plan(**{**numbers, name: 0})
