"""dqn: its costs against numbers from hand, its network, and what it refuses. covers X20"""

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

import relaax_like
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import TASK
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

X = np.array([[0.1, -0.2], [0.5, 0.3], [-0.4, 0.2]], np.float32)
NEXT_X = np.array([[0.2, -0.1], [0.6, 0.1], [-0.3, 0.9]], np.float32)
ACTIONS = np.array([0, 2, 1])
RETURNS = np.array([1.0, -0.5, 30.0], np.float32)
DISCOUNTS = np.array([0.9, 0.0, 0.81], np.float32)
WEIGHTS = np.array([1.0, 0.5, 0.25], np.float32)


def make(**settings):
    options = {"state_size": 2, "num_actions": 3, "network": {"layers": (5,)}, **settings}
    config = load("config", "dqn").Config.model_validate(options)
    model = load("model", "dqn").make_model(config, 1)
    return model, load("algorithm", "dqn").make_algorithm(config, model, 1)


def make_batch():
    return make_replay_batch(X, NEXT_X, ACTIONS, RETURNS, DISCOUNTS, WEIGHTS)


def compute_values(model, module, x):
    return module({"observation": x})


@pytest.mark.parametrize("double", [False, True])
def test_the_cost_is_that_of_the_paper(double):
    model, algorithm = make(double=double)
    random = np.random.default_rng(0)
    for variable in model.target.module.find_variables():  # another network than the online one
        as_tf_variable(variable).assign(
            random.standard_normal(variable.numpy().shape).astype(np.float32)
        )
    losses = algorithm.learn(make_batch())

    online = np.asarray(model.online({"observation": tf.constant(X)}))
    chosen_by = np.asarray(model.online({"observation": tf.constant(NEXT_X)}))
    target = np.asarray(model.target.module({"observation": tf.constant(NEXT_X)}))
    costs, sizes = [], []
    for row in range(3):
        best = int(np.argmax((chosen_by if double else target)[row]))
        goal = RETURNS[row] + DISCOUNTS[row] * target[row, best]
        error = abs(goal - online[row, ACTIONS[row]])
        sizes.append(error)
        costs.append(WEIGHTS[row] * (0.5 * error**2 if error < 1 else error - 0.5))
    np.testing.assert_allclose(losses.costs["default"], np.mean(costs), rtol=1e-5)
    np.testing.assert_allclose(losses.rows["priority"], sizes, rtol=1e-4)


def test_double_changes_the_cost():
    """The test above could not fail if both forms chose the same actions."""
    costs = []
    for double in (False, True):
        model, algorithm = make(double=double)
        random = np.random.default_rng(0)
        for variable in model.target.module.find_variables():
            as_tf_variable(variable).assign(
                random.standard_normal(variable.numpy().shape).astype(np.float32)
            )
        costs.append(float(algorithm.learn(make_batch()).costs["default"]))
    assert abs(costs[0] - costs[1]) > 1e-3


def test_dueling_adds_the_value_and_the_advantages_without_their_mean():
    model, _ = make(dueling=True)
    features, _ = model.online.encoder({"observation": tf.constant(X)}, {})
    advantages, value = model.online.advantages(features), model.online.value(features)
    want = np.asarray(value) + np.asarray(advantages)
    want -= np.asarray(advantages).mean(1, keepdims=True)
    got = np.asarray(model.online({"observation": tf.constant(X)}))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert np.abs(got - np.asarray(advantages)).max() > 1e-3


def test_spaces_come_from_the_environment():
    config = load("config", "dqn").Config(name="dqn")
    observations = {"observation": Box(dtype="float32", shape=(4,))}
    keys = config.describe_spaces(observations, {"action": Discrete(n=5)})
    assert keys == {"state_size": 4, "num_actions": 5}
    with pytest.raises(InvalidInputError, match="dqn needs one discrete action"):
        config.describe_spaces(observations, {"action": Box(dtype="float32", shape=(2,))})


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["learner.placement=agent", "learner.max_lag=3"], "plan Replay learns from old steps"),
        (["algorithm.batch_size=200000"], "batch_size: 200000 is larger than capacity"),
        (["algorithm.warm_up_steps=200000"], "warm_up_steps: 200000 is larger than capacity"),
        (["algorithm.priority_exponent=2"], "priority_exponent"),
        (["algorithm.network={layers: [{lstm: 4}]}"], "network: recurrent layers need sequences"),
    ],
)
def test_settings_that_cannot_work_are_refused(sets, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment("dqn", sets)


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["algorithm.normalize_observations=true"], "normalize_observations: a plan Replay feeds"),
        (["learner.collect_traj=true"], "learner.collect_traj: a replay table writes no files"),
    ],
)
def test_what_a_replay_plan_cannot_honour_is_refused_when_the_learner_is_made(sets, want, tmp_path):
    sizes = ["algorithm.state_size=4", "algorithm.num_actions=2", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=want):
        relaax_like.train("dqn", [*sizes, *sets])


def test_steps_that_somebody_else_decides_are_accepted_and_absent_slots_are_not():
    model, _ = make()
    config = load("config", "dqn").Config.model_validate(
        {"state_size": 2, "num_actions": 3, "network": {"layers": (5,)}}
    )
    frozen = FrozenPolicy([variable.value for variable in get_variables(model)], 0)
    actor = make_actor(model, 0, config)
    processor = ComputationDataProcessor(actor, frozen, NullMetrics(), "test")
    host = BatchHost(config, lambda: {TASK: processor})
    try:
        slots = host.make_slot_agents(
            config.observation_spaces, config.action_spaces, 1, client_id="x", exploit=False
        )
        assert set(slots.unsupported) == {"present"}
        assert "plan cannot learn from such steps" in slots.unsupported["present"]
    finally:
        host.close()
