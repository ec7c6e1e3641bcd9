"""Targets take the best, or the expected, legal next action. covers PE20

In each test an illegal choice has by far the largest value at the next state.
"""

import dataclasses
import math

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf

BATCH, ACTIONS = 4, 3
RANDOM = np.random.default_rng(0)
X, NEXT_X = (RANDOM.standard_normal((BATCH, 2)).astype(np.float32) for _ in range(2))
TAKEN = np.array([0, 1, 0, 1])
RETURNS = np.array([1.0, -0.5, 0.2, 0.3], np.float32)
DISCOUNTS = np.array([0.9, 0.9, 0.0, 0.81], np.float32)
LEGAL = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0]], np.bool_)  # the last one never
MASK = "mask:action"


def make(name, **settings):
    options = {"state_size": 2, "num_actions": ACTIONS, "masks": {"action": (ACTIONS,)}, **settings}
    config = load("config", name).Config.model_validate(options)
    model = load("model", name).make_model(config, 1)
    model.masks = config.masks
    return config, model, load("algorithm", name).make_algorithm(config, model, 1)


def make_batch():
    batch = make_replay_batch(X, NEXT_X, TAKEN, RETURNS, DISCOUNTS, np.ones(BATCH, np.float32))
    batch.inputs[MASK] = tf.ones((BATCH, ACTIONS), tf.bool)
    batch.next_inputs[MASK] = tf.constant(LEGAL)
    return batch


def raise_last(layer, by=100.0):
    """Makes the last action the best in all states."""
    for variable in layer.find_variables():
        if variable.numpy().shape[-1:] == (ACTIONS,) and variable.numpy().ndim == 1:
            value = variable.numpy().copy()
            value[-1] += by
            as_tf_variable(variable).assign(value)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_takes_the_best_legal_action(double):
    _, model, algorithm = make("dqn", double=double, network={"layers": (5,)})
    for network in (model.online, model.target.module):
        raise_last(network)

    def compute(network, x):
        features, _ = network.encode({"observation": tf.constant(x)}, {})
        return np.asarray(network.to_values(network.compute_atoms(features)))

    online, chosen_by = compute(model.online, X), compute(model.online, NEXT_X)
    target = compute(model.target.module, NEXT_X)
    assert (target.argmax(-1) == ACTIONS - 1).all()
    costs = []
    for row in range(BATCH):
        values = (chosen_by if double else target)[row]
        best = max((a for a in range(ACTIONS) if LEGAL[row, a]), key=lambda a: values[a])
        error = abs(RETURNS[row] + DISCOUNTS[row] * target[row, best] - online[row, TAKEN[row]])
        costs.append(0.5 * error**2 if error < 1 else error - 0.5)
    found = algorithm.learn(make_batch()).costs["default"]
    np.testing.assert_allclose(found, np.mean(costs), rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"distribution": {"kind": "categorical", "atoms": 5, "v_min": -5, "v_max": 200}},
        {"distribution": {"kind": "quantile", "atoms": 4}},
        {"noisy": True},
    ],
    ids=["categorical", "quantile", "noisy"],
)
def test_each_form_of_dqn_ignores_the_values_of_illegal_actions(settings):
    """A value that is never legal does not matter, however large it is."""
    costs = []
    for by in (0.0, 1000.0):
        _, model, algorithm = make("dqn", network={"layers": (5,)}, **settings)
        for network in (model.online, model.target.module):
            for variable in network.advantages.find_variables():
                value = variable.numpy().copy()
                if value.ndim == 1:
                    value.reshape(ACTIONS, -1)[-1, -1] += by
                    as_tf_variable(variable).assign(value)
        costs.append(float(algorithm.learn(make_batch()).costs["default"]))
    assert costs[0] == pytest.approx(costs[1], rel=1e-5)


@pytest.mark.parametrize("name", ["q_learning", "sarsa"])
def test_linear_values_take_legal_actions(name):
    settings = {"gamma": 0.9, "epsilon": 0.2, "learning_rate": 0.5}
    config, model, algorithm = make(name, **settings)
    algorithm.config = config.model_copy(update={"epsilon": 0.2})  # a number, as while it learns
    [weights] = [as_tf_variable(one) for one in model.values.find_variables()]
    value = RANDOM.standard_normal(weights.shape).astype(np.float32)
    value[:, -1] += 50
    weights.assign(value)
    values, following = X @ weights.numpy(), NEXT_X @ weights.numpy()
    batch = make_batch()
    if name == "sarsa":  # time comes first, and every step is the last one of its episode
        batch = make_batch_of_ends(batch)
    errors = np.asarray(algorithm.learn(batch).rows["td_error"]).reshape(-1)
    for row in range(BATCH):
        legal = following[row][LEGAL[row]]
        future = legal.max() if name == "q_learning" else 0.8 * legal.max() + 0.2 * legal.mean()
        want = RETURNS[row] + DISCOUNTS[row] * future - values[row, TAKEN[row]]
        assert errors[row] == pytest.approx(want, rel=1e-4)


def make_batch_of_ends(batch):
    def spread(value):
        return {name: repeat(tensor) for name, tensor in value.items()}

    def repeat(tensor):
        return tf.stack([tensor, tensor])

    fields = {
        "inputs": spread(batch.inputs),
        "next_inputs": spread(batch.next_inputs),
        "actions": spread(batch.actions),
        "rewards": spread(batch.rewards),
        "returns": repeat(batch.returns),
        "discount": repeat(batch.discount),
        "continues": tf.zeros((2, BATCH)),
        "valid": repeat(batch.valid),
        "weights": repeat(batch.weights),
    }
    return dataclasses.replace(batch, **fields)


def test_sac_expects_over_legal_actions():
    config, model, algorithm = make(
        "sac", network={"layers": (5,)}, critics=2, entropy_fraction=0.5, temperature=None
    )
    raise_last(model.head, 3.0)
    for network in (model.critics, model.targets.module):
        raise_last(network)
    batch = make_batch()
    losses = algorithm.learn(batch)
    assert all(np.isfinite(cost) for cost in losses.costs.values())

    def compute(x, mask):
        logits = np.asarray(model.head(model.encoder({"observation": tf.constant(x)}, {})[0]))
        logits = np.where(mask, logits.astype(np.float64), -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        probs = weights / weights.sum(-1, keepdims=True)
        return probs, np.log(np.where(probs > 0, probs, 1))

    probs, logs = compute(NEXT_X, LEGAL)
    own = model.targets.module({"observation": tf.constant(NEXT_X)}, algorithm.random)
    smallest = np.asarray(own).min(-1)  # [B, A]
    goal = RETURNS + DISCOUNTS * (probs * (smallest - logs)).sum(-1)  # alpha is 1
    values = np.asarray(model.critics({"observation": tf.constant(X)}, algorithm.random))
    errors = values[np.arange(BATCH), TAKEN] - goal[:, None]
    np.testing.assert_allclose(losses.costs["critic"], (errors**2).sum(-1).mean(), rtol=1e-4)
    batch.inputs[MASK] = tf.constant(LEGAL)
    metrics = algorithm.learn(batch).list_metrics(None)
    _, logs = compute(X, LEGAL)
    probs, logs = compute(X, LEGAL)
    np.testing.assert_allclose(metrics["entropy"], -(probs * logs).sum(-1).mean(), rtol=1e-4)
    target = np.asarray(algorithm._find_target(batch.inputs))
    np.testing.assert_allclose(target, [0.5 * math.log(n) for n in LEGAL.sum(-1)], atol=1e-6)
    assert config.masks == {"action": (ACTIONS,)}


def test_an_actor_critic_evaluates_legal_actions_only():
    config = load("config", "ppo").Config.model_validate(
        {
            "state_size": 2,
            "actions": {"a": {"num": 3}, "b": {"num": (2, 2)}},
            "masks": {"a": (3,), "b": (2, 2)},
            "network": {"layers": (4,)},
        }
    )
    model = load("model", "ppo").make_model(config, 0)
    model.masks = config.masks
    names = [name for name, _ in model.get_input_specs()]
    assert names == ["observation", "mask:a", "mask:b"]
    masks = {
        "mask:a": np.array([[True, False, True]] * 4),
        "mask:b": np.array([[True, True, False, True]] * 4),
    }
    inputs = {"observation": X, **masks}
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    policies, _ = model.policy(tensors, {})
    batch = make_batch()
    batch.inputs.clear()
    batch.inputs.update(tensors)
    seen = model.evaluate(batch)
    for a in range(3):
        actions = {"a": np.full(4, a), "b": np.array([[1, 1]] * 4)}
        apart = sum(policies[name].log_prob(actions[name]) for name in actions)
        together = np.asarray(seen.log_prob(actions))
        np.testing.assert_allclose(together, apart, atol=1e-5)
        assert np.isfinite(together).all() == (a != 1)


def test_a_mirror_and_masks_are_refused_together():
    with pytest.raises(ValueError, match=r"mirror: masks of legal actions cannot be mirrored"):
        make("ppo", mirror=1.0, mirror_observation=(-0.1, 1.0), mirror_action=(1, 0.1, 2))
