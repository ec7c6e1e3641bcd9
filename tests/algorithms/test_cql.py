"""cql: its costs against a slow reference, and its options."""

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf

LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
X = np.array([[0.1, -0.2], [0.5, 0.3], [-0.4, 0.2]], np.float32)
NEXT_X = np.array([[0.2, -0.1], [0.6, 0.1], [-0.3, 0.9]], np.float32)
ACTIONS = np.array([[0.5, 0.2], [-1.0, 0.9], [1.9, 0.5]], np.float32)
RETURNS = np.array([1.0, -0.5, 3.0], np.float32)
DISCOUNTS = np.array([0.9, 0.0, 0.9], np.float32)  # the second one has terminated


def make(**settings):
    options = {
        "state_size": 2,
        "action_size": 2,
        "action_low": tuple(LOW.tolist()),
        "action_high": tuple(HIGH.tolist()),
        "network": {"layers": (5,)},
        **settings,
    }
    config = load("config", "cql").Config.model_validate(options)
    model = load("model", "cql").make_model(config, 1)
    random = np.random.default_rng(0)
    for variable in model.find_variables():  # targets other than their sources
        if variable.numpy().dtype == np.float32 and variable.numpy().ndim:
            drawn = 0.5 * random.standard_normal(variable.numpy().shape)
            as_tf_variable(variable).assign(drawn.astype(np.float32))
    return config, model, load("algorithm", "cql").make_algorithm(config, model, 1)


class Draws:
    """Stands for `Algorithm.random`: gives what it was made with, in order."""

    def __init__(self, normal, uniform):
        self.draws = list(normal)
        self.drawn = uniform

    def normal(self, shape, **kwargs):
        return tf.constant(self.draws.pop(0))

    def uniform(self, shape):
        return tf.constant(self.drawn)


def make_batch():
    ones = np.ones(3, np.float32)
    return make_replay_batch(X, NEXT_X, ACTIONS, RETURNS, DISCOUNTS, ones)


def compute(algorithm, number, monkeypatch, seed=0):
    """Returns the losses, and the draws: normal ones at x and x', and uniform ones."""
    random = np.random.default_rng(seed)
    noise, next_noise = random.standard_normal((2, 3, number, 2)).astype(np.float32)
    uniform = random.random((3, number, 2)).astype(np.float32)
    monkeypatch.setattr(type(algorithm), "random", Draws((noise, next_noise), uniform))
    return algorithm.learn(make_batch()), noise, next_noise, uniform


@pytest.mark.parametrize(
    ("number", "critics", "weight", "entropy_target"), [(1, 2, 5.0, None), (4, 3, 0.7, 0.5)]
)
def test_the_costs_are_those_of_the_paper(number, critics, weight, entropy_target, monkeypatch):
    _, model, algorithm = make(
        cql_actions=number,
        critics=critics,
        cql_weight=weight,
        entropy_target=entropy_target,
        normalize_observations=False,
    )
    [variable] = model.log_alpha.find_variables()
    as_tf_variable(variable).assign(np.float32(-1.0))
    losses, noise, next_noise, uniform = compute(algorithm, number, monkeypatch)
    alpha = np.exp(-1.0)

    def act(x, drawn):
        """Returns actions scaled to [-1, 1], `[B, n, d]`, and their log-probabilities."""
        features, _ = model.encoder({"observation": tf.constant(x)}, {})
        outputs = np.asarray(model.head(features), np.float64)[:, None]
        mean, std = outputs[..., :2], np.exp(np.clip(outputs[..., 2:], -20, 2))
        u = mean + std * drawn
        normal = -0.5 * drawn**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (normal - np.log(1 - np.tanh(u) ** 2)).sum(-1)

    def value(module, x, scaled):
        actions = (LOW + (HIGH - LOW) * (scaled + 1) / 2).astype(np.float32)
        return np.asarray(module({"observation": tf.constant(x)}, tf.constant(actions)), np.float64)

    own, log_prob = act(X, noise)
    following, next_log_prob = act(NEXT_X, next_noise)
    goal = RETURNS + DISCOUNTS * value(model.targets.module, NEXT_X, following[:, 0]).min(-1)
    taken = value(model.critics, X, 2 * (ACTIONS - LOW) / (HIGH - LOW) - 1)
    cost = 0.0
    for row in range(3):
        kinds = (
            (2 * uniform - 1, np.full((3, number), np.log(0.25))),
            (own, log_prob),
            (following, next_log_prob),
        )
        terms = [  # exp Q / density: one for each action and critic
            np.exp(value(model.critics, X[row : row + 1], actions[row : row + 1, n])[0])
            / np.exp(density[row, n])
            for actions, density in kinds
            for n in range(number)
        ]
        assert len(terms) == 3 * number
        log_mean = np.log(np.mean(terms, 0))
        errors = taken[row] - goal[row]
        cost += (0.5 * errors**2 + weight * (log_mean - taken[row])).sum() / 3
    assert float(losses.costs["critic"]) == pytest.approx(cost, rel=1e-3)
    best = value(model.critics, X, own[:, 0]).min(-1)
    expected = (alpha * log_prob[:, 0] - best).mean()
    assert float(losses.costs["actor"]) == pytest.approx(expected, rel=1e-3)
    target = -2.0 if entropy_target is None else entropy_target
    expected = (log_prob[:, 0] + target).mean()  # log alpha is -1
    assert float(losses.costs["temperature"]) == pytest.approx(expected, rel=1e-3)


def test_the_penalty_lowers_values_of_other_actions_alone(monkeypatch):
    """Its gradient by the values sums to 0: what others lose, the recorded actions gain."""
    algorithm = make(cql_weight=3.0, cql_actions=2)[2]
    plain = make(cql_weight=0.0, cql_actions=2)[2]

    def find_slope(algorithm):
        """Returns the slope by the bias of the first critic's output, which all values share."""
        network = algorithm.model.critics.networks[0]
        [bias] = [v for v in network.find_variables() if v.numpy().shape == (1,)]
        with tf.GradientTape() as tape:
            cost = compute(algorithm, 2, monkeypatch)[0].costs["critic"]
        return cost, tape.gradient(cost, as_tf_variable(bias))

    (cost, slope), (plain_cost, plain_slope) = find_slope(algorithm), find_slope(plain)
    np.testing.assert_allclose(slope, plain_slope, atol=1e-5)
    assert float(cost) != pytest.approx(float(plain_cost), rel=1e-3)


def test_observations_are_normalised_for_all_networks(monkeypatch):
    _, model, algorithm = make(normalize_observations=True)
    before = compute(algorithm, 10, monkeypatch)[0].costs
    [normalizer] = model.encoder.normalizers.values()
    values = model.critics({"observation": tf.constant(X)}, tf.constant(ACTIONS))
    for name, value in (("count", 4.0), ("mean", [0.5, -1.0]), ("m2", [16.0, 1.0])):
        as_tf_variable(getattr(normalizer, name)).assign(np.float64(value))
    after = compute(algorithm, 10, monkeypatch)[0].costs
    assert all(float(after[name]) != float(before[name]) for name in ("critic", "actor"))
    scaled = model.critics({"observation": tf.constant(X)}, tf.constant(ACTIONS))
    assert np.abs(np.asarray(scaled) - np.asarray(values)).min() > 0


def test_each_group_takes_its_step_in_order():
    config, _, algorithm = make(learning_rate=0.1, critic_learning_rate=0.2)
    assert [(phase.groups, phase.every) for phase in algorithm.phases] == [
        (("critic",), 1),
        (("actor",), 1),
        (("temperature",), 1),
    ]
    rates = {name: one.learning_rate for name, one in config.optimizers.items()}
    assert rates == {"critic": 0.2, "actor": 0.1, "temperature": 0.1}


def test_targets_follow_by_tau():
    assert make(tau=0.25)[1].targets.tau == 0.25


def test_it_draws_minibatches_from_all_recordings_and_normalises_by_them():
    plan = make(batch_size=32, updates_at_once=7, gamma=0.5)[0].plan
    assert (plan.batch_size, plan.updates_at_once, plan.discount) == (32, 7, 0.5)
    assert plan.prenormalize
