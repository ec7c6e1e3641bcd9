"""The tutorial's algorithm and the same mathematics on Model and Algorithm."""

# covers R2, R3, R4, R5, R6, R7, R9, R10, R11, R12, R16, R29

from pathlib import Path

import numpy as np
import pytest

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

TUTORIAL = find_algorithm("policy_gradient_tutorial", Path())
FOLDERS = {name: find_algorithm(name, Path()) for name in ("policy_gradient", TUTORIAL.name)}
HIDDEN = 10


def load(name, module):
    return load_algorithm_module(FOLDERS[name], module)


def make_config(name, **settings):
    return load(name, "config").Config(hidden_layer_size=HIDDEN, **settings)


def serve(name, config, **options):
    variables = load(name, "model").make_initial_values(config, 3)
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    optimizers = {"default": OptimizerConfig(learning_rate=config.learning_rate)}
    metrics = options.pop("metrics", NullMetrics())
    return ParameterServer(Store(manifest, flat, optimizers), metrics=metrics, **options)


class Names(NullMetrics):
    """Notes which curves get points."""

    def __init__(self):
        self.seen = {}

    def scalar(self, name, y, x=None):
        self.seen[name] = y


def make_batch(steps=12):
    random = np.random.default_rng(5)
    states = random.standard_normal((steps, 4)).astype(np.float32)
    actions = random.integers(2, size=(steps, 1))
    advantages = random.standard_normal((steps, 1)).astype(np.float32)
    weights = [random.standard_normal(s).astype(np.float32) for s in ((4, HIDDEN), (HIDDEN, 1))]
    return states, actions, advantages, weights


def compute_loss(states, actions, advantages, w1, w2):
    """The seed's formula, in float64, with its logarithm of a difference."""
    pi = 1 / (1 + np.exp(-np.maximum(states.astype(np.float64) @ w1, 0) @ w2))
    log_likelihood = np.log(actions * (actions - pi) + (1 - actions) * (pi - actions))
    # For a = 0 the bracket is pi, for a = 1 it is 1 - pi.
    np.testing.assert_allclose(np.exp(log_likelihood), np.where(actions == 0, pi, 1 - pi))
    return -np.mean(log_likelihood * advantages)


def differentiate(batch, weights):
    """Central differences of the loss: slow, and right."""
    gradients = []
    for which, weight in enumerate(weights):
        gradient = np.zeros(weight.shape)
        for index in np.ndindex(weight.shape):
            losses = []
            for step in (1e-5, -1e-5):
                moved = [w.astype(np.float64) for w in weights]
                moved[which][index] += step
                losses.append(compute_loss(*batch, *moved))
            gradient[index] = (losses[0] - losses[1]) / 2e-5
        gradients.append(gradient)
    return gradients


def test_the_tutorials_gradient_is_that_of_the_seeds_formula():
    *batch, weights = make_batch()
    network = load(TUTORIAL.name, "model").AgentPolicyNN(make_config(TUTORIAL.name))
    network.assign_values(weights)
    for got, want in zip(
        network.compute_gradients(*batch), differentiate(batch, weights), strict=True
    ):
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_policy_gradient_computes_the_tutorials_gradient():
    states, actions, advantages, weights = make_batch()
    model = load("policy_gradient", "model").PolicyModel(make_config("policy_gradient"))
    compiled = CompiledAlgorithm(load("policy_gradient", "algorithm").PolicyGradient(model))
    compiled.set_values(weights)
    got, _ = compiled.compute_gradients(
        inputs={"observation": states},
        next_inputs={"observation": states},
        next_alive={"alive": np.ones((len(states), 1))},
        rewards={"reward": advantages},
        actions={"action": actions[:, 0]},
    )
    network = load(TUTORIAL.name, "model").AgentPolicyNN(make_config(TUTORIAL.name))
    network.assign_values(weights)
    want = network.compute_gradients(states, actions, advantages)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-6)


def test_a_saturated_policy_has_a_finite_gradient():
    network = load(TUTORIAL.name, "model").AgentPolicyNN(make_config(TUTORIAL.name))
    network.assign_values([np.full((4, HIDDEN), 100, np.float32), np.full((HIDDEN, 1), -100)])
    states, actions = np.ones((2, 4)), np.array([[0], [1]])
    for gradient in network.compute_gradients(states, actions, np.ones((2, 1))):
        assert np.isfinite(gradient).all()


def test_shapes_and_glorot_range_of_the_initial_values():
    config = make_config(TUTORIAL.name)
    w1, w2 = load(TUTORIAL.name, "model").make_initial_values(config, 0)
    assert (w1.name, w1.value.shape) == ("W1", (4, HIDDEN))
    assert (w2.name, w2.value.shape) == ("W2", (HIDDEN, 1))
    limit = np.sqrt(6 / (4 + HIDDEN))
    assert 0.7 * limit < np.abs(w1.value).max() <= limit


def test_initial_values_depend_on_the_seed_alone():
    model, config = load(TUTORIAL.name, "model"), make_config(TUTORIAL.name)
    first, again, other = (model.make_initial_values(config, seed)[0].value for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_config_keys_of_the_seed_become_its_fields():
    config = load(TUTORIAL.name, "config").Config(rewards_gamma=0.5, state_size=3)
    assert (config.layer_size, config.gamma, config.state_size) == (200, 0.5, 3)
    assert config.gamma == config.GAMMA
    assert config.optimizers["default"].learning_rate == 0.01


@pytest.mark.parametrize("name", FOLDERS)
def test_spaces_that_do_not_fit_are_refused_with_the_cure(name):
    config = make_config(name)
    fitting = {"observation": Box(dtype="float32", shape=(4,))}, {"action": Discrete(n=2)}
    config.validate_spaces(*fitting)
    with pytest.raises(InvalidInputError, match="state_size is 4; set it to 3"):
        config.validate_spaces({"observation": Box(dtype="float32", shape=(3,))}, fitting[1])
    with pytest.raises(InvalidInputError, match="Discrete of 3 values"):
        config.validate_spaces(fitting[0], {"action": Discrete(n=3)})
    with pytest.raises(InvalidInputError, match="for a Box or MultiBinary named"):
        config.validate_spaces({"a": fitting[0]["observation"]}, fitting[1])


@pytest.mark.parametrize("name", FOLDERS)
def test_one_update_per_episode_and_fresh_weights_after_it(name):
    config = make_config(name)
    with serve(name, config) as server:
        agent = load(name, "agent").Agent(config, InProcessClient(server, "test"))
        for episode in (1, 2):
            assert agent.act(np.zeros(4)) in (0, 1)
            for _ in range(4):
                assert agent.reward_and_act(1.0, np.ones(4)) in (0, 1)
            assert agent.reward_and_reset(0.5) == 4.5
            assert (server.version, server.global_t) == (episode, 5 * episode)
        newest = InProcessClient(server, "other").get_values()
        kept = [v.numpy() for v in agent.network.values] if hasattr(agent, "network") else None
        if kept is None:
            kept = [v.value for v in agent.compiled.get_variables()]
        for have, want in zip(kept, newest, strict=True):
            np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("name", FOLDERS)
def test_curves_have_the_names_of_other_algorithms(name):
    config, metrics = make_config(name), Names()
    with serve(name, config, metrics=metrics) as server:
        agent = load(name, "agent").Agent(config, InProcessClient(server, "test"))
        agent.act(np.zeros(4))
        agent.reward_and_reset(1.0)
    assert metrics.seen["episode reward"] == 1.0
    assert ("Optimizer/actor" in metrics.seen) == (name == "policy_gradient")


@pytest.mark.parametrize("name", FOLDERS)
def test_an_episode_of_one_step_changes_nothing_and_is_not_nan(name):
    config = make_config(name)
    with serve(name, config) as server:
        client = InProcessClient(server, "test")
        before = [value.copy() for value in client.get_values()]
        agent = load(name, "agent").Agent(config, client)
        agent.act(np.ones(4))
        agent.reward_and_reset(1)
        for old, new in zip(before, client.get_values(), strict=True):
            np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_budget_ends_with_none(name):
    config = make_config(name, max_global_step=3)
    with serve(name, config, stop=StopCondition(3)) as server:
        agent = load(name, "agent").Agent(config, InProcessClient(server, "test"))
        agent.act(np.zeros(4))
        assert agent.reward_and_act(1.0, np.zeros(4)) is not None
        assert agent.reward_and_act(1.0, np.zeros(4)) is not None
        assert agent.reward_and_act(1.0, np.zeros(4)) is None
    config = make_config(name, max_global_step=1)
    with serve(name, config, stop=StopCondition(1)) as server:
        agent = load(name, "agent").Agent(config, InProcessClient(server, "test"))
        agent.act(np.zeros(4))
        assert agent.reward_and_reset(1.0) is None
        assert server.finished == "budget of 1 env steps used up"


@pytest.mark.parametrize("name", FOLDERS)
def test_exploiting_takes_the_likelier_action_every_time(name):
    config = make_config(name)
    with serve(name, config) as server:
        agent = load(name, "agent").Agent(config, InProcessClient(server, "test"))
        agent.exploit = True
        state = np.array([0.3, -0.2, 0.5, 0.1])
        chosen = {agent.act(state) for _ in range(20)}
        w1, w2 = InProcessClient(server, "other").get_values()
        pi = 1 / (1 + np.exp(-np.maximum(state @ w1, 0) @ w2))[0]
        assert chosen == {0 if pi >= 0.5 else 1}


@pytest.mark.parametrize("name", FOLDERS)
def test_actions_are_drawn_as_often_as_the_policy_says(name):
    config = make_config(name)
    with serve(name, config) as server:
        client = InProcessClient(server, "test")
        agent = load(name, "agent").Agent(config, client)
        state = np.array([1.5, -2.0, 0.5, 3.0])
        drawn = np.array([agent.act(state) for _ in range(2000)])
        w1, w2 = client.get_values()
        pi = 1 / (1 + np.exp(-np.maximum(state @ w1, 0) @ w2))[0]
        # Five standard deviations.
        assert abs((drawn == 0).mean() - pi) < 5 * np.sqrt(pi * (1 - pi) / 2000) + 1e-3


@pytest.mark.parametrize(
    ("name", "learning_rate", "episodes"),
    [("policy_gradient", 0.02, 300), ("policy_gradient_tutorial", 0.05, 120)],
    ids=["policy_gradient", "policy_gradient_tutorial"],
)
def test_it_learns_a_two_armed_choice_that_depends_on_the_state(name, learning_rate, episodes):
    """Reward 1 for action 0 in state +1 and for action 1 in state -1: the best return is 20.

    Episodes of 20 steps, seed 3, all rewards known; the return of the last 50 is asserted.
    """
    config = make_config(name, learning_rate=learning_rate)
    random = np.random.default_rng(0)
    with serve(name, config) as server:
        agent = load(name, "agent").Agent(config, InProcessClient(server, "test"))
        scores = []
        for _ in range(episodes):
            signs = random.choice([-1.0, 1.0], size=21)
            action = agent.act(signs[0] * np.ones(4))
            for step in range(20):
                reward = float(action == (0 if signs[step] > 0 else 1))
                if step < 19:
                    action = agent.reward_and_act(reward, signs[step + 1] * np.ones(4))
            scores.append(agent.reward_and_reset(reward))
        assert np.mean(scores[-50:]) >= 18.0, scores[::20]


def test_three_actions_have_an_output_each():
    config = make_config("policy_gradient", num_actions=3)
    values = load("policy_gradient", "model").make_initial_values(config, 0)
    assert [v.value.shape for v in values] == [(4, HIDDEN), (HIDDEN, 3)]
