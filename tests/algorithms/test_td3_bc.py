"""td3_bc: its costs against a slow reference, its options, and what it refuses."""

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

from relaax_like.config.loader import load_experiment
from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

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
    config = load("config", "td3_bc").Config.model_validate(options)
    model = load("model", "td3_bc").make_model(config, 1)
    return config, model, load("algorithm", "td3_bc").make_algorithm(config, model, 1)


def compute(algorithm, noise, monkeypatch):
    """Returns the losses when the target's noise is as given."""

    class Noise:
        def normal(self, shape):
            return tf.constant(noise)

    monkeypatch.setattr(type(algorithm), "random", Noise())
    ones = np.ones(3, np.float32)
    return algorithm.learn(make_replay_batch(X, NEXT_X, ACTIONS, RETURNS, DISCOUNTS, ones))


def scramble(model):
    """Makes targets other than their sources, and outputs other than 0."""
    random = np.random.default_rng(0)
    for variable in model.find_variables():
        if variable.numpy().dtype == np.float32:
            shape = variable.numpy().shape
            as_tf_variable(variable).assign(random.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("std", "clip", "alpha"), [(0.2, 0.5, 2.5), (1.0, 0.3, 7.0)])
def test_the_costs_are_those_of_the_paper(std, clip, alpha, normalize, monkeypatch):
    _, model, algorithm = make(
        target_noise=std, target_noise_clip=clip, alpha=alpha, normalize_observations=normalize
    )
    scramble(model)
    shift, scale = np.zeros(2), np.ones(2)
    if normalize:
        [normalizer] = model.actor.encoder.normalizers.values()
        for name, value in (("count", 4.0), ("mean", [0.5, -1.0]), ("m2", [16.0, 1.0])):
            as_tf_variable(getattr(normalizer, name)).assign(np.float64(value))
        shift, scale = np.array([0.5, -1.0]), np.array([2.0, 0.5])
    noise = np.array([[0.4, -3.0], [2.0, 0.1], [-0.2, 0.3]], np.float32)
    losses = compute(algorithm, noise, monkeypatch)

    def read(layer):
        return [np.asarray(v.numpy(), np.float64) for v in layer.find_variables()]

    def run(layers, x):
        """Returns a network's outputs: tanh layers, then a linear one."""
        arrays = [array for layer in layers for array in read(layer)]
        by_axes = sorted(arrays, key=lambda a: -a.ndim)
        assert len(by_axes) == 4
        first, second = [a for a in arrays if a.ndim == 2]
        b1, b2 = [a for a in arrays if a.ndim == 1]
        return np.tanh(x @ first + b1) @ second + b2

    def act(actor, x):
        return np.tanh(run([actor.encoder.network, actor.head], (x - shift) / scale))

    def value(critics, x, scaled):
        joined = np.concatenate([(x - shift) / scale, scaled], 1)
        return np.concatenate([run([network], joined) for network in critics.networks], 1)

    target = act(model.target_actor.module, NEXT_X)
    target = np.clip(target + np.clip(std * noise, -clip, clip), -1, 1)
    next_value = value(model.target_critics.module, NEXT_X, target).min(1)
    goal = RETURNS + DISCOUNTS * next_value
    recorded = 2 * (ACTIONS - LOW) / (HIGH - LOW) - 1
    errors = value(model.critics, X, recorded) - goal[:, None]
    assert float(losses.costs["critic"]) == pytest.approx((errors**2).sum(1).mean(), rel=1e-3)
    own = act(model.actor, X)
    first = value(model.critics, X, own)[:, 0]
    weight = alpha / np.abs(first).mean()
    expected = ((own - recorded) ** 2).mean() - weight * first.mean()
    assert float(losses.costs["actor"]) == pytest.approx(expected, rel=1e-3)
    assert float(losses.list_metrics({"actor"})["distance"]) == pytest.approx(
        ((own - recorded) ** 2).mean(), rel=1e-3
    )


def test_the_weight_of_the_values_has_no_gradient(monkeypatch):
    """With it, the cost of the values would be alpha times the sign of their mean: no slope."""
    _, model, algorithm = make(alpha=1e6)
    scramble(model)
    with tf.GradientTape() as tape:
        cost = compute(algorithm, np.zeros((3, 2), np.float32), monkeypatch).costs["actor"]
    weights = [as_tf_variable(v) for v in model.actor.head.find_variables()]
    assert all(np.abs(slope).max() > 1 for slope in tape.gradient(cost, weights))


def test_the_actor_moves_in_every_nth_update():
    assert [(phase.groups, phase.every) for phase in make()[2].phases] == [
        (("critic",), 1),
        (("actor",), 2),
    ]
    assert make(actor_every=5)[2].phases[1].every == 5


def test_targets_follow_by_tau():
    _, model, _ = make(tau=0.25)
    assert (model.target_actor.tau, model.target_critics.tau) == (0.25, 0.25)


def test_it_draws_minibatches_from_all_recordings_and_normalises_by_them():
    config, *_ = make(batch_size=32, updates_at_once=7, gamma=0.5)
    plan = config.plan
    assert (plan.batch_size, plan.updates_at_once, plan.discount) == (32, 7, 0.5)
    assert plan.prenormalize
    assert not make(normalize_observations=False)[0].plan.prenormalize


def test_rates_are_those_of_the_settings():
    optimizers = make(learning_rate=0.1, critic_learning_rate=0.2, adam_epsilon=0.3)[0].optimizers
    assert {name: one.learning_rate for name, one in optimizers.items()} == {
        "actor": 0.1,
        "critic": 0.2,
    }
    assert {one.epsilon for one in optimizers.values()} == {0.3}


@pytest.mark.parametrize("name", ["td3_bc", "cql"])
def test_spaces_come_from_the_environment(name):
    config = load("config", name).Config(name=name)
    observations = {"observation": Box(dtype="float32", shape=(4,))}
    low, high = np.array([-2.0, -2.0], np.float32), np.array([2.0, 2.0], np.float32)
    action = Box(dtype="float32", shape=(2,), low=low, high=high)
    keys = config.describe_spaces(observations, {"action": action})
    bounds = {"action_low": [-2.0, -2.0], "action_high": [2.0, 2.0]}
    assert keys == {"state_size": 4, "action_size": 2, **bounds}
    with pytest.raises(InvalidInputError, match=f"{name} needs one continuous action"):
        config.describe_spaces(observations, {"action": Discrete(n=2)})


@pytest.mark.parametrize("name", ["td3_bc", "cql"])
@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["learner.offline=null"], r"only learns from recorded trajectories; name a folder"),
        (
            ["algorithm.num_states=4", "algorithm.normalize_observations=false"],
            "observes vectors without layers",
        ),
        (["algorithm.num_states=4"], "observes vectors without layers"),  # not: normalised
        (["algorithm.network={layers: [{gru: 4}]}"], "learns from single steps"),
        (["learner.placement=agent"], "plan is Offline"),
    ],
)
def test_settings_that_cannot_work_are_refused(name, sets, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment(name, sets)
