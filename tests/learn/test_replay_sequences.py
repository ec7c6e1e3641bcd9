"""Sequences of a replay table for networks with a memory, running statistics, and data handlers.

covers F25, J5, J7
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.batch import load
from support.cluster import ROOT
from support.replayed import make_config, make_source, make_step

import relaax_like
from relaax_like.algorithm.model import get_trainable_variables
from relaax_like.core.moments import Moments
from relaax_like.core.records import LearnRequest
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.replayed import PRIORITY, _mix_errors
from relaax_like.learn.request_queue import RequestQueue
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.module import get_name
from relaax_like.nn.runtime import tf
from relaax_like.replay import SequenceBatch, TransitionBatch
from relaax_like.wire.errors import ConfigError, InvalidInputError

RECURRENT = {
    "network": {"layers": (5, {"gru": 4}), "activation": "tanh"},
    "sequence_steps": 4,
    "burn_in_steps": 1,
    "warm_up_steps": 20,
    "updates_per_step": 0.25,
    "priority_exponent": 0.6,
    "learning_rate": 1e-2,
}
ENDS = {5: 0.0, 12: -1.0, 14: 0.0}


def make_algorithm(config, kind=CompiledUpdates):
    model = load("model", "dqn").make_model(config, 3)
    model.xla = False
    algorithm = load("algorithm", "dqn").make_algorithm(config, model, 3)
    return algorithm, kind(algorithm, *([config.optimizers] if kind is CompiledUpdates else []))


def fill(source, steps=28):
    episode = start = 0
    for number in range(steps):
        alive = ENDS.get(number, 1.0)
        step = make_step(number, alive)
        source.add(replace(step, starts=np.array([[7, episode, number - start]])), [])
        if alive != 1.0:
            episode, start = episode + 1, number + 1


def compute_slowly(model, batch: SequenceBatch, update: int) -> tuple[float, np.ndarray]:
    """Returns the cost of one minibatch, and |delta| [L, B]: one step after another."""

    def step(network, observation, memory):
        features, after = network.encode(
            {"observation": tf.constant(observation[None])}, {"encoder": tf.constant(memory[None])}
        )
        values = network.to_values(network.compute_atoms(features))
        return values.numpy()[0], after["encoder"].numpy()[0]

    online, target = model.online, model.target.module
    _, length, size = batch.present.shape
    total, count, errors = 0.0, 0, np.zeros((length, size))
    for column in range(size):
        memory = other = np.zeros(4, np.float32)
        for t in range(length):
            if not batch.present[update, t, column]:
                break
            sequence = batch.observations["observation"][update, :, column]
            values, memory = step(online, sequence[t], memory)
            _, other = step(target, sequence[t], other)
            best = int(np.argmax(step(online, sequence[t + 1], memory)[0]))
            following = step(target, sequence[t + 1], other)[0][best]
            goal = batch.rewards[update, t, column, 0]
            goal += batch.discounts[update, t, column] * following
            error = abs(goal - values[batch.actions["action"][update, t, column]])
            errors[t, column] = error
            if batch.valid[update, t, column]:
                huber = 0.5 * error**2 if error < 1 else error - 0.5
                total += batch.weights[update, column] * huber
                count += 1
    return total / count, errors


def test_sequences_cost_what_a_slow_reference_says():
    config = make_config(**RECURRENT)
    source, _ = make_source(config)
    fill(source)
    algorithm, compiled = make_algorithm(config)
    policy = LearningPolicy(compiled, config.plan, 0)
    iteration = source.get(0, timeout_sec=0.0)
    batch = iteration.minibatches
    assert isinstance(batch, SequenceBatch)
    assert batch.valid.shape == (2, 4, 4)
    assert not batch.valid.all()
    assert (batch.discounts[batch.valid] == 0).any()
    want, errors = compute_slowly(algorithm.model, batch, 0)
    arguments = policy.data_preprocess(replace_first(iteration))
    learned = policy.forward(arguments)
    assert learned["updates"] == 1
    assert learned["default"] == pytest.approx(want, rel=1e-5)
    found = policy.rows[PRIORITY]
    np.testing.assert_allclose(found[batch.valid[0]], errors[batch.valid[0]], rtol=1e-4, atol=1e-5)


def replace_first(iteration):
    """Returns the iteration with its first minibatch alone."""

    def take(value):
        if isinstance(value, dict):
            return {name: array[:1] for name, array in value.items()}
        return value[:1]

    batch = iteration.minibatches
    return replace(iteration, minibatches=type(batch)(*[take(value) for value in batch]))


def test_a_sequence_has_one_priority_of_its_valid_steps():
    valid = np.array([[[True, False], [True, True], [False, True]]])  # [1, 3, 2]
    errors = np.array([[1.0, 9.0], [3.0, 2.0], [9.0, 4.0]])
    np.testing.assert_allclose(
        _mix_errors(errors, valid), [[0.9 * 3.0 + 0.1 * 2.0, 0.9 * 4.0 + 0.1 * 3.0]]
    )


def test_gradients_of_sequences_beside_agents_are_those_of_the_compiled_updates():
    config = make_config(**RECURRENT)
    source, _ = make_source(config)
    fill(source)
    arguments_of = source.get(0, timeout_sec=0.0)
    algorithm, _ = make_algorithm(config)
    other, beside = make_algorithm(config, CompiledGradients)
    sgd = {
        group: one.model_copy(update={"name": "sgd", "learning_rate": 1e-3})
        for group, one in config.optimizers.items()
    }
    inside = CompiledUpdates(algorithm, sgd)
    beside.wants_rows = True
    policy = LearningPolicy(inside, config.plan, 0)
    arguments = policy.data_preprocess(arguments_of)
    before = inside.get_values()
    values = [value.copy() for value in before]
    learned = inside.update(Draw(batch_size=4, minibatch_of="rollouts"), **arguments)
    assert learned.updates == 2
    beside.set_values(values)
    names = [variable.name for variable in beside.get_variables()]
    trainable = [get_name(variable) for variable in get_trainable_variables(other.model)]
    for gradient in beside.compute_updates(
        Draw(batch_size=4, minibatch_of="rollouts"), **arguments
    ):
        for name, array in zip(trainable, gradient.arrays, strict=True):
            values[names.index(name)] = values[names.index(name)] - 1e-3 * array
        beside.set_values(values)
    for one, two in zip(inside.get_values(), values, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-7)
    assert any((one != two).any() for one, two in zip(before, values, strict=True))
    rows = learned.rows[PRIORITY]
    np.testing.assert_allclose(gradient.rows[PRIORITY], rows, rtol=1e-4, atol=1e-5)


class Handler:
    """Scales rewards, repeats each step as that of another slot, and keeps what is learned."""

    def __init__(self):
        self.learned = []

    def after_interact(self, rollout: Rollout) -> list[Rollout]:
        rollout = replace(rollout, rewards=10.0 * rollout.rewards)
        return [rollout, replace(rollout, starts=rollout.starts + np.array([100, 0, 0]))]

    def after_learn(self, minibatches, policy_data) -> None:
        self.learned.append((minibatches, policy_data))


def test_a_data_handler_changes_what_comes_and_gets_what_was_learned():
    config = make_config()
    handler = Handler()
    source, tally = make_source(config, data_handler=handler)
    for number in range(9):
        source.add(make_step(number), [])
    iteration = source.get(0, timeout_sec=0.0)
    assert tally.take(iteration.tickets).env_steps == 9  # as they came
    assert source._table.counts.rows == 18
    batch = iteration.minibatches
    assert isinstance(batch, TransitionBatch)
    np.testing.assert_array_equal(
        batch.returns[..., 0], 10.0 * batch.observations["observation"][..., 0]
    )
    assert set(batch.keys[..., 0].ravel()) == {7, 107}
    _, compiled = make_algorithm(config)
    policy = LearningPolicy(compiled, config.plan, 0)
    results = policy.forward(policy.data_preprocess(iteration))
    source.note_learned(1, iteration, {**results, **policy.rows})
    ((seen, policy_data),) = handler.learned
    assert seen is batch
    assert policy_data[PRIORITY].shape == (8,)
    assert policy_data["default"] > 0


def test_beside_agents_an_error_of_a_data_handler_ends_the_learning_and_names_the_line():
    class Broken(Handler):
        def after_interact(self, rollout: Rollout) -> list[Rollout]:
            raise KeyError("goal")

    source, _ = make_source(make_config(), data_handler=Broken())
    queue = RequestQueue(source)
    queue.put(LearnRequest(1, make_step(0), env_steps=1))
    failed = queue.get(0, timeout_sec=10.0)
    with pytest.raises(ConfigError, match=r"test_replay_sequences\.py:\d+.*goal"):
        queue.has_rollouts(failed)


def test_the_log_has_steps_as_they_came_and_they_are_changed_again(tmp_path):
    config = make_config()
    source, _ = make_source(config, folder=tmp_path, data_handler=Handler())
    source.load()
    for number in range(5):
        source.add(make_step(number), [])
    source.close()
    again, _ = make_source(config, folder=tmp_path, data_handler=Handler())
    again.load()
    assert again._table.counts.rows == 10
    plain, _ = make_source(config, folder=tmp_path)
    plain.load()
    assert plain._table.counts.rows == 5


def test_with_a_log_a_data_handler_is_called_once_for_each_rollout(tmp_path):
    class Counting(Handler):
        calls = 0

        def after_interact(self, rollout: Rollout) -> list[Rollout]:
            self.calls += 1
            return super().after_interact(rollout)

    handler = Counting()
    source, _ = make_source(make_config(), folder=tmp_path, data_handler=handler)
    source.load()
    for number in range(3):
        source.add(make_step(number), [])
    assert handler.calls == 3
    assert source._table.counts.rows == 6


def test_if_one_of_a_data_handler_s_rollouts_is_refused_none_is_inserted():
    class Broken(Handler):
        def after_interact(self, rollout: Rollout) -> list[Rollout]:
            first, second = super().after_interact(rollout)
            return [first, replace(second, starts=second.starts[:, :2])]

    source, tally = make_source(make_config(), data_handler=Broken())
    with pytest.raises(InvalidInputError, match="starts"):
        source.add(make_step(0), [])
    assert source._table.counts.rows == 0
    assert tally.take().env_steps == 0


@pytest.mark.parametrize("history", [1, 2])
def test_running_statistics_are_those_of_all_steps_each_once(history):
    config = make_config(normalize_observations=True, observation_history=history)
    source, _ = make_source(config)
    _, compiled = make_algorithm(config)
    policy = LearningPolicy(compiled, config.plan, 0)
    for number in range(9):
        source.add(make_step(number, history=history), [])
    assert policy.data_preprocess(source.get(0, timeout_sec=0.0))
    for number in range(9, 12):
        source.add(make_step(number, history=history), [])
    state = source.take_state()
    again, _ = make_source(config)
    again.set_state(state)
    assert policy.data_preprocess(again.get(0, timeout_sec=0.0))
    # All twelve, the six of the warm-up included.
    seen = [[max(number - 1, 0), 0, number, 0][4 - 2 * history :] for number in range(12)]
    want = Moments.of(np.array(seen, np.float32))
    found = compiled.get_statistic("observation")
    assert found.count == 12
    np.testing.assert_allclose(found.mean, want.mean)
    np.testing.assert_allclose(found.m2, want.m2)


def test_after_a_crash_statistics_get_the_steps_that_no_publication_has(tmp_path):
    config = make_config(normalize_observations=True)
    source, _ = make_source(config, folder=tmp_path)
    source.load()
    _, compiled = make_algorithm(config)
    policy = LearningPolicy(compiled, config.plan, 0)
    for number in range(9):
        source.add(make_step(number), [])
    policy.data_preprocess(source.get(0, timeout_sec=0.0))
    published = compiled.get_values()
    for number in range(9, 12):
        source.add(make_step(number), [])
    policy.data_preprocess(source.get(0, timeout_sec=0.0))  # not published
    source.close()
    again, _ = make_source(config, folder=tmp_path)
    compiled.set_values(published)
    give_values(again, published)
    again.load()
    policy.data_preprocess(again.get(0, timeout_sec=0.0))
    found = compiled.get_statistic("observation")
    assert (found.count, found.mean[0]) == (12, 5.5)


def give_values(source, values):
    """Sets the values of the model whose statistics a source reads."""
    for normalizer in source._normalizers:
        normalizer.count.assign(next(float(value) for value in values if value.shape == ()))


def test_without_a_memory_recall_is_a_guess_and_with_one_it_is_learned(tmp_path: Path) -> None:
    file = ROOT / "algorithms" / "dqn" / "memory.yaml"
    sets = ["algorithm.epsilon.steps=5000", "algorithm.max_global_step=9000"]
    seen = relaax_like.train(file, [f"run_dir={tmp_path / 'memory'}", *sets])
    assert seen.mean_return > 0.85
    blind = ["algorithm.network={layers: [32]}", "algorithm.sequence_steps=null"]
    blind += ["algorithm.batch_size=320", "algorithm.max_global_step=4000"]
    guessed = relaax_like.train(file, [f"run_dir={tmp_path / 'blind'}", *blind])
    assert guessed.mean_return < 0.7
