"""q_learning and sarsa: tables worked out by hand, and what they refuse."""

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch
from support.table_of_values import learn_table

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.config.loader import load_experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.slots import SlotSpec
from relaax_like.wire.errors import ConfigError

TABLE = [[0.0, 0.0], [2.0, 4.0], [6.0, 1.0]]
# Two episodes: the first is terminated, the second one is truncated in state 1.
STEPS = [
    (0, 1, 1.0, 1, ALIVE),
    (1, 0, 0.0, 2, ALIVE),
    (2, 1, 5.0, 0, TERMINATED),
    (0, 0, 2.0, 1, TRUNCATED),
    (0, 1, 1.0, 1, ALIVE),
]
SETTINGS = {"gamma": 0.9, "learning_rate": 0.5, "epsilon": 0.2}


def test_q_learning_takes_the_best_next_value():
    tables = learn_table("q_learning", TABLE, STEPS[:4], **SETTINGS)
    # 0 + 0.5 (1 + 0.9 * 4 - 0)
    np.testing.assert_allclose(tables[0], [[0, 2.3], [2, 4], [6, 1]], rtol=1e-6)
    # 2 + 0.5 (0 + 0.9 * 6 - 2)
    np.testing.assert_allclose(tables[1], [[0, 2.3], [3.7, 4], [6, 1]], rtol=1e-6)
    # Terminated: 1 + 0.5 (5 - 1)
    np.testing.assert_allclose(tables[2], [[0, 2.3], [3.7, 4], [6, 3]], rtol=1e-6)
    # Truncated: 0 + 0.5 (2 + 0.9 * 4 - 0)
    np.testing.assert_allclose(tables[3], [[2.8, 2.3], [3.7, 4], [6, 3]], rtol=1e-6)


def test_sarsa_takes_the_value_of_the_next_action_and_learns_each_step_once():
    tables = learn_table("sarsa", TABLE, STEPS, **SETTINGS)
    np.testing.assert_array_equal(tables[0], TABLE)  # the next action is not known yet
    # 0 + 0.5 (1 + 0.9 * 2 - 0): the next action is 0, not the best one
    np.testing.assert_allclose(tables[1], [[0, 1.4], [2, 4], [6, 1]], rtol=1e-6)
    # 2 + 0.5 (0 + 0.9 * 1 - 2); terminated: 1 + 0.5 (5 - 1)
    np.testing.assert_allclose(tables[2], [[0, 1.4], [1.45, 4], [6, 3]], rtol=1e-6)
    # Truncated: the mean under the policy is 0.8 * 4 + 0.2 * (1.45 + 4) / 2 = 3.745;
    # 0 + 0.5 (2 + 0.9 * 3.745 - 0)
    want = [[2.68525, 1.4], [1.45, 4], [6, 3]]
    np.testing.assert_allclose(tables[3], want, rtol=1e-6)
    np.testing.assert_array_equal(tables[4], tables[3])


def test_both_agree_if_the_next_action_is_the_best_one():
    steps = [(0, 1, 1.0, 1, ALIVE), (1, 1, 0.0, 2, TERMINATED)]
    tables = [learn_table(name, TABLE, steps, **SETTINGS)[-1] for name in ("q_learning", "sarsa")]
    # 0 + 0.5 (1 + 0.9 * 4 - 0) and 4 + 0.5 (0 - 4)
    for table in tables:
        np.testing.assert_allclose(table, [[0, 2.3], [2, 2], [6, 1]], rtol=1e-6)


def test_the_learning_rate_falls_by_the_schedule():
    falling = {"kind": "linear", "start": 0.5, "end": 0.1, "steps": 4}
    steps = [(0, 0, 1.0, 0, TERMINATED)] * 3
    tables = learn_table(
        "q_learning", [[0.0, 0.0]], steps, **{**SETTINGS, "learning_rate": falling}
    )
    # 0.5; + 0.4 (1 - 0.5); + 0.3 (1 - 0.7)
    np.testing.assert_allclose([table[0, 0] for table in tables], [0.5, 0.7, 0.79], rtol=1e-5)


def test_a_linear_value_moves_along_the_observation():
    config = load("config", "q_learning").Config.model_validate(
        {"state_size": 2, "num_actions": 2, "learning_rate": 0.1}
    )
    model = load("model", "q_learning").make_model(config, 0)
    algorithm = load("algorithm", "q_learning").make_algorithm(config, model, 0)
    [weights] = [as_tf_variable(one) for one in model.values.find_variables()]
    weights.assign([[1.0, 0.0], [0.0, 2.0]])
    x, next_x = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 1.0]], np.float32)
    arrays = (np.array([1.0], np.float32), np.array([0.5], np.float32), np.ones(1, np.float32))
    with tf.GradientTape() as tape:
        batch = make_replay_batch(x, next_x, np.array([1]), *arrays)
        cost = algorithm.learn(batch).costs["default"]
    # delta = 1 + 0.5 max(3, 2) - 4 = -1.5; the weights of action 1 move by 0.1 delta x.
    np.testing.assert_allclose(tape.gradient(cost, weights), [[0, 1.5], [0, 3.0]], rtol=1e-6)
    assert config.optimizers["default"].name == "sgd"


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_vectors_have_linear_values_without_a_bias(name):
    config = load("config", name).Config.model_validate({"state_size": 3, "num_actions": 2})
    model = load("model", name).make_model(config, 1)
    [weights] = model.find_variables()
    assert weights.numpy().shape == (3, 2)
    assert not weights.numpy().any()


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
@pytest.mark.parametrize(
    ("key", "want"),
    [
        ("network={layers: [8]}", "network.layers: the values of .* are linear in the observation"),
        (
            "normalize_observations=true",
            "algorithm: normalize_observations: the values of .* use dqn",
        ),
        (
            "observations={a: {size: 2, layers: [4]}, b: {image: [9, 9, 1], layers: [impala]}}",
            "observations.a.layers, observations.b.image, observations.b.layers: the values of",
        ),
        (
            "learning_rate={kind: exponential, start: 0.5, end: 0.1, steps: 9}",
            "linear that decreases",
        ),
        ("learning_rate={kind: linear, start: 0.1, end: 0.5, steps: 9}", "linear that decreases"),
        ("learning_rate=-0.1", "algorithm: learning_rate: -0.1, expected 0 or more$"),
        ("learning_rate={start: 0.1, end: -0.5, steps: 9}", "-0.5, expected 0 or more$"),
    ],
)
def test_settings_that_cannot_work_are_refused(name, key, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment(name, [f"algorithm.{key}"])


def test_a_rollout_that_overlaps_has_a_step_of_its_own():
    with pytest.raises(ValueError, match="rollout_steps is 1, expected 2 or more"):
        OnPolicy(rollout_steps=1, overlap=True)


@pytest.mark.parametrize(
    ("name", "unsupported"), [("q_learning", set()), ("sarsa", {"present", "executed"})]
)
def test_slots_that_skip_steps_need_rollouts_that_do_not_overlap(name, unsupported):
    config = load("config", name).Config.model_validate({"num_states": 3, "num_actions": 2})
    model = load("model", name).make_model(config, 0)
    frozen = FrozenPolicy([variable.value for variable in get_variables(model)], 0)
    processor = ComputationDataProcessor(make_actor(model, 0, config), frozen, NullMetrics(), "x")
    host = BatchHost(config, lambda: {ONLY_NAME: processor})
    try:
        spaces = config.observation_spaces, config.action_spaces
        slots = host.make_slot_agents(SlotSpec(*spaces, 1, client_id="x"))
        assert set(slots.unsupported) == unsupported
    finally:
        host.close()
