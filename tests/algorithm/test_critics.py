"""The networks of off-policy algorithms: what critics see, and how an actor explores."""

import numpy as np
import pytest
from support.deterministic import HIGH, LOW, make

from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.critics import Critics
from relaax_like.algorithm.model import get_acting_names
from relaax_like.nn.runtime import tf

ROWS = 20_000


def act(actor, observation=(0.3, -0.2), **how):
    inputs = {"observation": np.tile(np.array(observation, np.float32), (ROWS, 1))}
    return actor.act(inputs, {}, **how).actions["action"]


def get_numpy_actor(**settings):
    config, model, _ = make("td3", **settings)
    actor = make_actor(model, 0, config)
    assert isinstance(actor, NumpyActor)
    return actor


def get_compiled_actor(**settings):
    config, model, _ = make("td3", **settings)
    return CompiledActor(model, 0, config)


FORMS = pytest.mark.parametrize(
    "get_actor", [get_numpy_actor, get_compiled_actor], ids=["NumPy", "TensorFlow"]
)


def test_critics_see_actions_scaled_to_one():
    config, model, _ = make("td3")
    critics = Critics(config, seed=1, number=3)
    x, actions = np.zeros((2, 2), np.float32), np.array([LOW, HIGH], np.float32)
    values = critics({"observation": tf.constant(x)}, tf.constant(actions))
    scaled = tf.constant([[0.0, 0.0, -1.0, -1.0], [0.0, 0.0, 1.0, 1.0]])
    want = np.concatenate([network(scaled) for network in critics.networks], 1)
    assert values.shape == (2, 3)
    np.testing.assert_allclose(values, want, rtol=1e-6)
    first = critics.compute_first({"observation": tf.constant(x)}, tf.constant(actions))
    np.testing.assert_allclose(first, want[:, 0], rtol=1e-6)
    assert len({float(value) for value in want[0]}) == 3
    assert get_acting_names(model) == {"actor.0.W", "actor.0.b", "policy.W", "policy.b"}


def test_critics_see_all_observations():
    observations = {"goal": {"size": 1}, "arm": {"size": 2}}
    config, _, _ = make("td3", state_size=None, observations=observations)
    critics = Critics(config, seed=1, number=1)
    inputs = {"goal": tf.constant([[5.0]]), "arm": tf.constant([[3.0, 4.0]])}
    middle = (np.array(LOW, np.float32) + np.array(HIGH, np.float32)) / 2
    values = critics(inputs, tf.constant(middle[None]))
    want = critics.networks[0](tf.constant([[3.0, 4.0, 5.0, 0.0, 0.0]]))
    np.testing.assert_allclose(values, want, rtol=1e-6)


@FORMS
def test_noise_is_normal_in_units_of_the_box(get_actor):
    actor = get_actor(exploration_noise=0.02)
    best, drawn = act(actor, exploit=True), act(actor)
    assert (best == best[0]).all()
    z = (drawn - best[0]) / (0.02 * (np.array(HIGH) - LOW) / 2)
    # Five standard errors of the mean, the deviation, and the proportion within one deviation.
    np.testing.assert_allclose(z.mean(0), 0, atol=5 / ROWS**0.5)
    np.testing.assert_allclose(z.std(0), 1, atol=5 / (2 * ROWS) ** 0.5)
    np.testing.assert_allclose((np.abs(z) < 1).mean(0), 0.6827, atol=5 * (0.2166 / ROWS) ** 0.5)
    assert abs(np.corrcoef(z.T)[0, 1]) < 5 / ROWS**0.5


@FORMS
def test_the_best_action_is_that_of_the_network_without_noise(get_actor):
    actor = get_actor(exploration_noise=5.0)
    best = act(actor, exploit=True)
    u = actor.model.actor.head(
        actor.model.actor.encoder({"observation": tf.constant([[0.3, -0.2]])}, {})[0]
    )
    low, high = np.array(LOW), np.array(HIGH)
    want = low + (high - low) * (np.tanh(u) + 1) / 2
    np.testing.assert_allclose(best, np.broadcast_to(want, best.shape), rtol=1e-5)


@FORMS
def test_noisy_actions_are_clipped_to_the_bounds(get_actor):
    drawn = act(get_actor(exploration_noise=1.0))
    for component in range(2):
        for bound in (LOW[component], HIGH[component]):
            assert 0.05 < (drawn[:, component] == np.float32(bound)).mean() < 0.6
    assert ((drawn >= np.array(LOW)) & (drawn <= np.array(HIGH))).all()


@FORMS
def test_noise_follows_its_schedule(get_actor):
    schedule = {"kind": "linear", "start": 0.04, "end": 0.01, "steps": 1000}
    actor = get_actor(exploration_noise=schedule)
    best, deviations = act(actor, exploit=True), []
    for steps in (0, 500, 1000, 5000):
        actor.global_t = steps
        deviations.append((act(actor) - best)[:, 0].std() / 2)
    np.testing.assert_allclose(deviations, [0.04, 0.025, 0.01, 0.01], rtol=0.05)
