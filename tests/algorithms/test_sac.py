"""sac: its costs against a slow reference, and what it refuses."""

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

from relaax_like.config.loader import load_experiment
from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

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
    assert [phase.every for phase in make(actor_every=20)[2].phases] == [1, 20, 20]


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
        ("actor",),
        ("temperature",),
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
    with pytest.raises(InvalidInputError, match="sac needs one continuous action"):
        config.describe_spaces(observations, {"action": Discrete(n=2)})


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["algorithm.num_states=4"], "num_states: sac observes vectors"),
        (["algorithm.temperature=0"], "temperature"),
        (["algorithm.target_critics=3"], "target_critics: 3, but there are 2 critics"),
        (["algorithm.critic_dropout=1"], "critic_dropout"),
    ],
)
def test_settings_that_cannot_work_are_refused(sets, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment("sac", sets)
