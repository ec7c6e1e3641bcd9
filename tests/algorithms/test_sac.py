"""sac: its costs against a slow reference, and what it refuses."""

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

from relaax_like.config.loader import load_experiment
from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary

LOW, HIGH = (-2.0, 0.0), (2.0, 1.0)
X = np.array([[0.1, -0.2], [0.5, 0.3], [-0.4, 0.2]], np.float32)
NEXT_X = np.array([[0.2, -0.1], [0.6, 0.1], [-0.3, 0.9]], np.float32)
ACTIONS = np.array([[0.5, 0.2], [-1.0, 0.9], [1.9, 0.5]], np.float32)
RETURNS = np.array([1.0, -0.5, 3.0], np.float32)
DISCOUNTS = np.array([0.9, 0.0, 0.81], np.float32)
WEIGHTS = np.array([1.0, 0.5, 0.25], np.float32)


def make(**settings):
    options = {
        "state_size": 2,
        "action_size": 2,
        "action_low": LOW,
        "action_high": HIGH,
        "network": {"layers": (5,)},
        **settings,
    }
    config = load("config", "sac").Config.model_validate(options)
    model = load("model", "sac").make_model(config, 1)
    return config, model, load("algorithm", "sac").make_algorithm(config, model, 1)


def make_batch():
    return make_replay_batch(X, NEXT_X, ACTIONS, RETURNS, DISCOUNTS, WEIGHTS)


class Draws:
    """Stands for `Algorithm.random`: gives what it was made with, in order."""

    def __init__(self, *draws):
        self.draws = list(draws)

    def normal(self, shape, **kwargs):
        return tf.constant(self.draws.pop(0))

    uniform = normal


@pytest.mark.parametrize("temperature", [None, 0.3])
def test_the_costs_are_those_of_the_paper(temperature, monkeypatch):
    _, model, algorithm = make(temperature=temperature, critics=3)
    random = np.random.default_rng(0)
    for variable in model.targets.module.find_variables():  # others than the critics
        as_tf_variable(variable).assign(
            random.standard_normal(variable.numpy().shape).astype(np.float32)
        )
    next_noise, noise = random.standard_normal((2, 3, 2)).astype(np.float32)
    monkeypatch.setattr(type(algorithm), "random", Draws(next_noise, noise))
    losses = algorithm.learn(make_batch())

    alpha = 1.0 if temperature is None else temperature

    def act(x, drawn):
        """Returns actions scaled to [-1, 1], and their log-probabilities."""
        features, _ = model.encoder({"observation": tf.constant(x)}, {})
        outputs = np.asarray(model.head(features), np.float64)
        mean, std = outputs[:, :2], np.exp(np.clip(outputs[:, 2:], -20, 2))
        u = mean + std * drawn
        normal = -0.5 * drawn**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (normal - np.log(1 - np.tanh(u) ** 2)).sum(1)

    def value(module, x, scaled):
        low, high = np.array(LOW), np.array(HIGH)
        actions = (low + (high - low) * (scaled + 1) / 2).astype(np.float32)
        return np.asarray(module({"observation": tf.constant(x)}, tf.constant(actions)))

    scaled, log_prob = act(NEXT_X, next_noise)
    next_value = value(model.targets.module, NEXT_X, scaled).min(1)
    goal = RETURNS + DISCOUNTS * (next_value - alpha * log_prob)
    low, high = np.array(LOW), np.array(HIGH)
    taken = value(model.critics, X, 2 * (ACTIONS - low) / (high - low) - 1)
    errors = taken - goal[:, None]
    np.testing.assert_allclose(
        losses.costs["critic"], (WEIGHTS * (errors**2).sum(1)).mean(), rtol=1e-3
    )
    np.testing.assert_allclose(losses.rows["priority"], np.abs(errors).mean(1), rtol=1e-3)
    scaled, log_prob = act(X, noise)
    best = value(model.critics, X, scaled).min(1)
    np.testing.assert_allclose(
        losses.costs["actor"], (WEIGHTS * (alpha * log_prob - best)).mean(), rtol=1e-3, atol=1e-4
    )
    if temperature is None:
        # log alpha is 0, and so is the cost; its slope is what counts.
        with tf.GradientTape() as tape:
            monkeypatch.setattr(type(algorithm), "random", Draws(next_noise, noise))
            cost = algorithm.learn(make_batch()).costs["temperature"]
        [variable] = model.log_alpha.find_variables()
        slope = tape.gradient(cost, as_tf_variable(variable))
        np.testing.assert_allclose(slope, -(WEIGHTS * (log_prob - 2.0)).mean(), rtol=1e-3)
    else:
        assert set(losses.costs) == {"critic", "actor"}


def learn_with(monkeypatch, draws, **settings):
    _, model, algorithm = make(temperature=0.3, **settings)
    monkeypatch.setattr(type(algorithm), "random", Draws(*draws))
    return model, algorithm.learn(make_batch())


def test_a_target_is_of_critics_drawn_at_random_and_the_actor_takes_the_mean(monkeypatch):
    noise = np.random.default_rng(1).standard_normal((2, 3, 2)).astype(np.float32)
    order = np.array([0.1, 0.9, 0.3, 0.8], np.float32)  # the second and the fourth
    model, losses = learn_with(
        monkeypatch,
        (noise[0], order, noise[1]),
        critics=4,
        target_critics=2,
        actor_value="mean",
    )
    policy = model.policy({"observation": tf.constant(NEXT_X)}, {})[0]["action"]
    action, log_prob = policy.sample_with_log_prob(Draws(noise[0]))
    values = model.critics({"observation": tf.constant(NEXT_X)}, action).numpy()
    chosen = values[:, [1, 3]].min(1)
    assert (chosen != values.min(1)).any()
    goal = RETURNS + DISCOUNTS * (chosen - 0.3 * (log_prob.numpy() + model.log_volume))
    taken = model.critics({"observation": tf.constant(X)}, tf.constant(ACTIONS)).numpy()
    want = (WEIGHTS * ((taken - goal[:, None]) ** 2).sum(1)).mean()
    np.testing.assert_allclose(losses.costs["critic"], want, rtol=1e-4)
    policy = model.policy({"observation": tf.constant(X)}, {})[0]["action"]
    action, log_prob = policy.sample_with_log_prob(Draws(noise[1]))
    values = model.critics({"observation": tf.constant(X)}, action).numpy()
    want = (WEIGHTS * (0.3 * (log_prob.numpy() + model.log_volume) - values.mean(1))).mean()
    np.testing.assert_allclose(losses.costs["actor"], want, rtol=1e-4)


def test_the_actor_can_wait_for_several_updates_of_the_critics():
    assert [phase.every for phase in make(actor_every=20)[2].phases] == [1, 20]


def test_critics_can_have_dropout_and_layer_normalization():
    config, model, _ = make(critics=1, critic_layer_norm=True, critic_dropout=0.25)
    [network] = model.critics.networks
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    kept = np.random.default_rng(1).random((3, 5)).astype(np.float32)
    weights = {v.name: as_tf_variable(v).numpy() for v in network.find_variables()}
    hidden = x @ weights["critic1.0.W"] + weights["critic1.0.b"]
    for draw in (None, kept):
        y = hidden if draw is None else np.where(draw >= 0.25, hidden / 0.75, 0.0)
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5)
        y = np.tanh(y) @ weights["critic1.out.W"] + weights["critic1.out.b"]
        found = network(tf.constant(x), None if draw is None else Draws(draw))
        np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)
    assert config.network.activation == "tanh"
    assert {name.rsplit(".", 1)[0] for name in weights} == {
        "critic1.0",
        "critic1.norm0",
        "critic1.out",
    }
    plain = make(critics=1, critic_dropout=0.25)[1].critics.networks[0]
    assert not any("norm" in v.name for v in plain.find_variables())


def test_a_step_of_the_temperature_needs_it_to_be_tuned():
    assert [phase.groups for phase in make()[2].phases] == [
        ("critic",),
        ("actor", "temperature"),
    ]
    config, _, algorithm = make(temperature=0.1)
    assert [phase.groups for phase in algorithm.phases] == [("critic",), ("actor",)]
    assert set(config.optimizers) == {"critic", "actor"}


def test_spaces_come_from_the_environment():
    config = load("config", "sac").Config(name="sac")
    observations = {"observation": Box(dtype="float32", shape=(4,))}
    low, high = np.array([-2.0, -2.0], np.float32), np.array([2.0, 2.0], np.float32)
    action = Box(dtype="float32", shape=(2,), low=low, high=high)
    keys = config.describe_spaces(observations, {"action": action})
    bounds = {"action_low": [-2.0, -2.0], "action_high": [2.0, 2.0]}
    assert keys == {"state_size": 4, "action_size": 2, **bounds}
    keys = config.describe_spaces(observations, {"action": Discrete(n=2)})
    assert keys == {"state_size": 4, "num_actions": 2}
    assert not load("config", "sac").Config(name="sac", **keys).lacks_spaces
    two = {"a": Discrete(n=2), "b": Discrete(n=2)}
    for spaces in ({"action": MultiBinary(shape=(2,))}, two):
        with pytest.raises(InvalidInputError, match="sac needs one continuous action"):
            config.describe_spaces(observations, spaces)


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["algorithm.num_states=4"], "num_states: sac observes vectors"),
        (["algorithm.temperature=0"], "temperature"),
        (
            ["algorithm.target_critics=3"],
            "target_critics: 3, expected at most the number of critics, 2",
        ),
        (["algorithm.critic_dropout=1"], "critic_dropout"),
        (
            ["algorithm.num_actions=2", "algorithm.action_size=2"],
            "num_actions and action_size are set",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(sets, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment("sac", sets)


DISCRETE = np.array([0, 2, 1])


def make_discrete(**settings):
    options = {"state_size": 2, "num_actions": 3, "network": {"layers": (5,)}, **settings}
    config = load("config", "sac").Config.model_validate(options)
    model = load("model", "sac").make_model(config, 1)
    random = np.random.default_rng(0)
    for module in (model.targets.module, model.head):  # others than the critics; not uniform
        for variable in module.find_variables():
            drawn = random.standard_normal(variable.numpy().shape).astype(np.float32)
            as_tf_variable(variable).assign(drawn)
    return model, load("algorithm", "sac").make_algorithm(config, model, 1)


@pytest.mark.parametrize("entropy", [{}, {"entropy_fraction": 0.5}, {"entropy_target": 0.2}])
def test_the_costs_of_discrete_actions_are_means_over_all_of_them(entropy):
    model, algorithm = make_discrete(critics=3, **entropy)
    batch = make_replay_batch(X, NEXT_X, DISCRETE, RETURNS, DISCOUNTS, WEIGHTS)
    with tf.GradientTape() as tape:
        losses = algorithm.learn(batch)  # without random numbers: `algorithm.random` is None
        temperature = losses.costs["temperature"]
    alpha = 1.0

    def act(x):
        logits = np.asarray(model.policy({"observation": tf.constant(x)}, {})[0]["action"].logits)
        return [np.exp(row) / np.exp(row).sum() for row in logits.astype(np.float64)]

    def value(module, x):
        return np.asarray(module({"observation": tf.constant(x)}))  # [B, A, 3]

    probs, next_probs = act(X), act(NEXT_X)
    values, next_values = value(model.critics, X), value(model.targets.module, NEXT_X)
    critic, actor, surplus, priorities = [], [], [], []
    target = {"entropy_fraction": 0.5 * np.log(3), "entropy_target": 0.2}
    wanted = target[next(iter(entropy))] if entropy else 0.98 * np.log(3)
    for row in range(3):
        soft, cost, log_prob = 0.0, 0.0, 0.0
        for action in range(3):
            p, next_p = probs[row][action], next_probs[row][action]
            soft += next_p * (min(next_values[row, action]) - alpha * np.log(next_p))
            cost += p * (alpha * np.log(p) - min(values[row, action]))
            log_prob += p * np.log(p)
        goal = RETURNS[row] + DISCOUNTS[row] * soft
        errors = values[row, DISCRETE[row]] - goal
        critic.append(WEIGHTS[row] * (errors**2).sum())
        actor.append(WEIGHTS[row] * cost)
        surplus.append(WEIGHTS[row] * (log_prob + wanted))
        priorities.append(np.abs(errors).mean())
    np.testing.assert_allclose(losses.costs["critic"], np.mean(critic), rtol=1e-4)
    np.testing.assert_allclose(losses.costs["actor"], np.mean(actor), rtol=1e-4)
    np.testing.assert_allclose(losses.rows["priority"], priorities, rtol=1e-4)
    [variable] = model.log_alpha.find_variables()
    slope = tape.gradient(temperature, as_tf_variable(variable))
    np.testing.assert_allclose(slope, -np.mean(surplus), rtol=1e-4)


def test_discrete_actions_are_drawn_from_their_probabilities_and_critics_can_be_regular():
    model, _ = make_discrete(critic_layer_norm=True, critic_dropout=0.5)
    policy = model.policy({"observation": tf.constant(X)}, {})[0]["action"]
    actions = policy.sample(tf.random.Generator.from_seed(1))
    assert set(actions.numpy().tolist()) <= {0, 1, 2}
    inputs = {"observation": tf.constant(X)}
    assert model.critics(inputs).shape == (3, 3, 2)
    dropped = model.critics(inputs, tf.random.Generator.from_seed(1))
    assert np.abs(dropped - model.critics(inputs)).max() > 1e-3
