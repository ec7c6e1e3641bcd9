"""Learning from rows with holes equals learning from the same rows without, on both updates."""

# covers F22, P12

import dataclasses

import numpy as np
import pytest
from support.batch import load

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.batch import Losses
from relaax_like.experience.collector import Collector
from relaax_like.experience.holes import cut_ends, make_dense
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import (
    TrajectoryWriter,
    find_trajectories,
    read_trajectories,
)
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.rollout_messages import bytes_to_rollout, rollout_to_bytes
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.wire.errors import InvalidInputError

STEPS, SLOTS = 5, 3
FORMS = ["dense", "recurrent"]


def make_algorithm(form, **settings):
    layers = (4, {"lstm": 3}) if form == "recurrent" else (4,)
    config = load("config", "ppo").Config(
        network={"layers": layers},
        shared_network=True,
        state_size=3,
        num_actions=2,
        num_steps=STEPS * SLOTS,
        rollout_steps=STEPS,
        batch_size=SLOTS if form == "recurrent" else STEPS * SLOTS,
        epochs=2,
        **settings,
    )
    model = load("model", "ppo").make_model(config, 0)
    model.xla = False  # each shape comes once: compiling it takes longer than all else
    return config, load("algorithm", "ppo").make_algorithm(config, model, 0)


def make_rollout(config, model, seed=0):
    random = np.random.default_rng(seed)
    shape = (STEPS, SLOTS)
    observations = random.standard_normal((STEPS + 1, SLOTS, 3)).astype(np.float32)
    return Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=random.choice([1.0, 1.0, 0.0, -1.0], shape).astype(np.float32),
        rewards=random.standard_normal((*shape, 1)).astype(np.float32),
        actions={"action": random.integers(2, size=shape)},
        log_prob=np.full(shape, np.log(0.5), np.float32),
        states={
            name: random.standard_normal((SLOTS, *p["shape"])).astype(np.float32)
            for name, p in model.get_state_specs()
        },
        versions=np.zeros(STEPS, np.int64),
    )


def punch(rollout, seed=0, longer=3):
    """Puts holes with other numbers between the rows, others in each slot."""
    random = np.random.default_rng(seed)
    steps = STEPS + longer
    valid = np.zeros((steps, SLOTS), np.bool_)
    for slot in range(SLOTS):
        valid[random.choice(steps, STEPS, replace=False), slot] = True

    def spread(array):
        filled = random.permutation(np.resize(array, (steps, *array.shape[1:])))
        for slot in range(SLOTS):
            filled[valid[:, slot], slot] = array[:, slot]
        return filled

    named = ("inputs", "next_inputs", "actions")
    return dataclasses.replace(
        rollout,
        **{f: {n: spread(a) for n, a in getattr(rollout, f).items()} for f in named},
        **{f: spread(getattr(rollout, f)) for f in ("next_alive", "rewards", "log_prob")},
        versions=np.zeros(steps, np.int64),
        valid=valid,
    )


def collect(rollout):
    steps, slots = rollout.next_alive.shape
    collector = Collector(steps, slots, capacity=slots)
    collector.add(rollout)
    return collector.get_training_data()


def assert_same(a, b, rtol=2e-4):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=2e-6)


@pytest.mark.parametrize("form", FORMS)
def test_an_iteration_with_holes_leads_to_the_same_values(form):
    """With rewards that are scaled by a sum over time, and statistics that see each row once."""
    states, costs = [], []
    for with_holes in (False, True):
        config, algorithm = make_algorithm(form, update_norm=True, normalize_rewards=True)
        rollout = make_rollout(config, algorithm.model)
        policy = LearningPolicy(CompiledUpdates(algorithm, config.optimizers), config.plan, seed=1)
        for seed in range(2):
            data = collect(punch(rollout, seed) if with_holes else rollout)
            costs.append(policy.forward(policy.data_preprocess(data)))
        states.append(policy.get_values())
    assert_same(*states)
    for name, cost in costs[0].items():
        assert costs[2][name] == pytest.approx(cost, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_with_holes_is_that_of_the_rows_without(form):
    config, algorithm = make_algorithm(form)
    compiled = CompiledAlgorithm(algorithm)
    rollout = make_rollout(config, algorithm.model)
    gradients = []
    for one in (rollout, make_dense(punch(rollout)).rollout):
        gradients.append(
            compiled.compute_gradients(**compiled.make_arguments(one, cut_ends(one)))[0]
        )
    assert max(np.abs(part).max() for part in gradients[0]) > 1e-3
    assert_same(*gradients)


@pytest.mark.parametrize(
    ("form", "rows", "needed"), [("dense", 14, 15), ("recurrent", 0, 1)], ids=["steps", "rollouts"]
)
def test_too_few_valid_rows_for_a_minibatch_are_refused(form, rows, needed):
    config, algorithm = make_algorithm(form)
    policy = LearningPolicy(CompiledUpdates(algorithm, config.optimizers), config.plan, seed=1)
    rollout = make_rollout(config, algorithm.model)
    valid = (np.arange(STEPS * SLOTS) < rows).reshape(STEPS, SLOTS)
    data = collect(dataclasses.replace(rollout, valid=valid))
    with pytest.raises(
        InvalidInputError, match=rf"{rows} valid row\(s\), but a minibatch needs {needed}"
    ):
        policy.forward(policy.data_preprocess(data))


class Probe(Algorithm):
    """Tells what it saw of a column that a data handler added."""

    autograph = False

    def learn(self, batch):
        cost = batch.mean(self.model.evaluate(batch).values ** 2)
        groups = dict.fromkeys(self.trained_groups, cost)
        return Losses(groups, metrics={"goal": batch.mean(batch.extras["goal"])})


class Handler:
    """Marks every second row as a hole, and adds a column that is the row's number."""

    def after_interact(self, rollout):
        shape = rollout.next_alive.shape
        rows = np.broadcast_to(np.arange(STEPS, dtype=np.float32)[:, None], shape)
        return dataclasses.replace(rollout, valid=rows % 2 == 0, extras={"goal": rows})

    def after_learn(self, training_data, policy_data):
        pass


def test_a_data_handler_may_leave_rows_out_and_add_columns():
    config, algorithm = make_algorithm("dense")
    algorithm = Probe(algorithm.model, config)
    compiled = CompiledUpdates(algorithm, config.optimizers)
    plan = dataclasses.replace(config.plan, batch_size=9)
    policy = LearningPolicy(compiled, plan, seed=1)
    collector = Collector(STEPS, SLOTS, capacity=SLOTS, data_handler=Handler())
    collector.add(make_rollout(config, algorithm.model))
    costs = policy.forward(policy.data_preprocess(collector.get_training_data()))
    assert costs["goal"] == pytest.approx(np.mean([0, 2, 4]))


def assert_equal(one, other):
    for name, want in vars(other).items():
        got = getattr(one, name)
        for key in want if isinstance(want, dict) else [None]:
            pair = (got, want) if key is None else (got[key], want[key])
            np.testing.assert_array_equal(*pair, err_msg=name)


def make_with_holes():
    config, algorithm = make_algorithm("dense")
    rollout = punch(make_rollout(config, algorithm.model))
    extras = {"goal": rollout.log_prob[..., None] * 2}
    starts = np.arange(3 * SLOTS).reshape(SLOTS, 3)
    return algorithm.model, dataclasses.replace(rollout, extras=extras, starts=starts)


def test_holes_and_further_columns_travel_and_are_kept(tmp_path):
    model, rollout = make_with_holes()
    steps = len(rollout.next_alive)
    came = bytes_to_rollout(rollout_to_bytes(rollout))
    assert_equal(RolloutLayout(model, steps).conform(came), rollout)
    TrajectoryWriter(tmp_path, 1e9).write(1, rollout)
    assert_equal(read_trajectories(find_trajectories(tmp_path)[0]), rollout)
    whole = dataclasses.replace(rollout, valid=None)
    assert bytes_to_rollout(rollout_to_bytes(whole)).valid is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"valid": np.ones((2, SLOTS), np.bool_)}, r"valid: bool of \[2, 3\], expected bool"),
        ({"valid": np.ones((8, SLOTS), np.float32)}, "valid: float32"),
        ({"valid": np.zeros((8, SLOTS), np.bool_)}, "valid: all False"),
        ({"extras": {"goal": np.zeros((2, SLOTS), np.float32)}}, r"extras goal: .* expected \[8"),
        ({"extras": {"goal": np.full((8, SLOTS), np.nan, np.float32)}}, "goal: nan at"),
        ({"extras": {"goal": np.array([["a"] * SLOTS] * 8)}}, "extras goal: <U1"),
        ({"starts": np.zeros((2, 3), np.int64)}, r"starts: int64 of \[2, 3\], expected int64 of"),
        ({"starts": np.zeros((SLOTS, 3), np.float32)}, "starts: float32"),
        ({"starts": np.full((SLOTS, 3), -1)}, r"starts: \[-1, -1, -1\] \(slot, episode, step\)"),
        (
            {"history": {"observation": np.zeros((1, SLOTS, 1), np.float32)}},
            r"history observation: shape \[1, 3, 1\], expected \[n - 1, k, ...\] for the model's "
            r"input \[3\] of n observations",
        ),
        (
            {"history": {"observation": np.zeros((0, SLOTS, 3), np.float32)}},
            r"history observation: shape \[0, 3, 3\], expected",
        ),
        (
            {"history": {"observation": np.zeros((2, SLOTS, 2), np.float32)}},
            r"inputs observation: float32 of \[8, 3, 3\], expected float32 of \[8, 3, 1\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, text):
    model, rollout = make_with_holes()
    layout = RolloutLayout(model, len(rollout.next_alive))
    with pytest.raises(InvalidInputError, match=text):
        layout.conform(dataclasses.replace(rollout, **change))


def test_a_rollout_without_any_hole_says_so():
    model, rollout = make_with_holes()
    valid = np.ones_like(rollout.valid)
    layout = RolloutLayout(model, len(valid))
    assert layout.conform(dataclasses.replace(rollout, valid=valid)).valid is None


def test_a_collector_refuses_valid_of_another_shape():
    _, rollout = make_with_holes()
    collector = Collector(len(rollout.next_alive), SLOTS, capacity=SLOTS)
    with pytest.raises(InvalidInputError, match="valid has shape"):
        collector.add(dataclasses.replace(rollout, valid=rollout.valid[:, :1]))
