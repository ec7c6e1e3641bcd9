"""dqn: its costs against numbers from hand, its network, and what it refuses. covers X20"""

import math

import numpy as np
import pytest
from support.batch import load
from support.replay_batch import make_replay_batch

import relaax_like
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.nn import NoisyDense
from relaax_like.nn.module import as_tf_variable
from relaax_like.nn.runtime import tf
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.rlx_server.slots import SlotSpec
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


def compute_atoms(network, x):
    features, _ = network.encode({"observation": tf.constant(x)}, {})
    return network.compute_atoms(features)


def compute_values(network, x):
    return np.asarray(network.to_values(compute_atoms(network, x)))


@pytest.mark.parametrize("double", [False, True])
def test_the_cost_is_that_of_the_paper(double):
    model, algorithm = make(double=double)
    random = np.random.default_rng(0)
    for variable in model.target.module.find_variables():  # another network than the online one
        as_tf_variable(variable).assign(
            random.standard_normal(variable.numpy().shape).astype(np.float32)
        )
    losses = algorithm.learn(make_batch())

    online = compute_values(model.online, X)
    chosen_by = compute_values(model.online, NEXT_X)
    target = compute_values(model.target.module, NEXT_X)
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
    got = compute_values(model.online, X)
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
        (["learner.placement=agent", "learner.max_lag=3"], "a Replay plan learns from old steps"),
        (["algorithm.batch_size=200000"], "batch_size: 200000 is larger than capacity"),
        (["algorithm.warm_up_steps=200000"], "warm_up_steps: 200000 is larger than capacity"),
        (["algorithm.priority_exponent=2"], "priority_exponent"),
        (["algorithm.network={layers: [{lstm: 4}]}"], "network: recurrent layers learn from seq"),
        (["algorithm.burn_in_steps=2"], "burn_in_steps is 2, but minibatches consist of single"),
        (
            ["algorithm.sequence_steps=4", "algorithm.burn_in_steps=4"],
            "burn_in_steps 4; expected",
        ),
        (
            ["algorithm.sequence_steps=4", "algorithm.n_step=2"],
            "sequence_steps is 4, which cannot be combined with n_step=2; remove sequence_steps",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(sets, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment("dqn", sets)


def test_what_a_replay_plan_cannot_honour_is_refused_when_the_learner_is_made(tmp_path):
    sets = ["algorithm.state_size=4", "algorithm.num_actions=2", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(
        ConfigError, match=r"learner\.collect_traj: true, but a replay table writes no traj"
    ):
        relaax_like.train("dqn", [*sets, "learner.collect_traj=true"])


def test_steps_that_somebody_else_decides_are_accepted_and_absent_slots_are_not():
    model, _ = make()
    config = load("config", "dqn").Config.model_validate(
        {"state_size": 2, "num_actions": 3, "network": {"layers": (5,)}}
    )
    frozen = FrozenPolicy([variable.value for variable in get_variables(model)], 0)
    actor = make_actor(model, 0, config)
    processor = ComputationDataProcessor(actor, frozen, NullMetrics(), "test")
    host = BatchHost(config, lambda: {ONLY_NAME: processor})
    try:
        slots = host.make_slot_agents(
            SlotSpec(config.observation_spaces, config.action_spaces, 1, client_id="x")
        )
        assert set(slots.unsupported) == {"present"}
        assert "plan cannot learn from such steps" in slots.unsupported["present"]
    finally:
        host.close()


def draw_target(model):
    """Gives the target other values than the network."""
    random = np.random.default_rng(0)
    for variable in model.target.module.find_variables():
        value = random.standard_normal(variable.numpy().shape).astype(np.float32)
        as_tf_variable(variable).assign(value)


def project_slowly(probabilities, support, returns, discount):
    """Bellemare et al. 2017, algorithm 1, atom by atom."""
    width = (support[-1] - support[0]) / (len(support) - 1)
    projected = np.zeros(len(support))
    for j, z in enumerate(support):
        reached = min(max(returns + discount * z, support[0]), support[-1])
        place = (reached - support[0]) / width
        low, high = math.floor(place), math.ceil(place)
        if low == high:
            projected[low] += probabilities[j]
        else:
            projected[low] += probabilities[j] * (high - place)
            projected[high] += probabilities[j] * (place - low)
    return projected


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize(("double", "dueling"), [(False, False), (True, True)])
def test_the_categorical_cost_is_that_of_the_paper(double, dueling):
    distribution = {"kind": "categorical", "atoms": 7, "v_min": -3.0, "v_max": 4.0}
    model, algorithm = make(double=double, dueling=dueling, distribution=distribution)
    draw_target(model)
    losses = algorithm.learn(make_batch())

    def compute(network, x):
        return np.asarray(compute_atoms(network, x))

    support = np.linspace(-3, 4, 7)
    online, following = compute(model.online, X), compute(model.online, NEXT_X)
    target = compute(model.target.module, NEXT_X)
    costs, priorities = [], []
    for row in range(3):
        chosen_by = (following if double else target)[row]
        best = int(np.argmax([softmax(logits) @ support for logits in chosen_by]))
        goal = project_slowly(
            softmax(target[row, best]), support, float(RETURNS[row]), float(DISCOUNTS[row])
        )
        assert goal.sum() == pytest.approx(1)
        log_prob = np.log(softmax(online[row, ACTIONS[row]]))
        costs.append(-(goal * log_prob).sum())
        known = goal > 0
        priorities.append((goal[known] * (np.log(goal[known]) - log_prob[known])).sum())
    np.testing.assert_allclose(losses.costs["default"], np.mean(WEIGHTS * costs), rtol=1e-4)
    np.testing.assert_allclose(losses.rows["priority"], priorities, rtol=1e-3, atol=1e-5)
    # Only the return of 30 is more than one atom outside, by the weights of the rows.
    share = losses.metrics["outside v_min to v_max"]
    np.testing.assert_allclose(share, WEIGHTS[2] / WEIGHTS.sum(), rtol=1e-5)
    assert float(losses.metrics["smallest target"]) == pytest.approx(-0.5)
    assert 30 - 0.81 * 3 < float(losses.metrics["largest target"]) < 30 + 0.81 * 4
    values = compute_values(model.online, X)
    np.testing.assert_allclose(values[1, 2], softmax(online[1, 2]) @ support, rtol=1e-4)


@pytest.mark.parametrize(
    ("shares", "count"),
    [
        ((0.0, 0.0, 0.0, 0.0), 0),
        ((0.012, 0.0, 0.012, 0.0), 0),  # less than 1 % of 200 updates
        ((0.5, 0.0), 1),
        ((0.0, 0.0, 0.03, 0.0, 0.5, 0.5), 1),  # once
        ((0.5,), 0),  # too few updates
    ],
)
def test_targets_outside_of_the_distribution_are_one_line(caplog, shares, count):
    distribution = {"kind": "categorical", "v_min": -1.0, "v_max": 0.0}
    _, algorithm = make(distribution=distribution)
    for index, share in enumerate(shares):
        numbers = {"outside v_min to v_max": share, "smallest target": -14.0 - index}
        algorithm.review({**numbers, "largest target": -0.5}, 100)
    assert len(caplog.messages) == count
    assert all("v_min: -1 to v_max: 0" in message for message in caplog.messages)
    assert all("about -1" in message for message in caplog.messages)
    assert all(" to -0.5. " in message for message in caplog.messages)


def test_other_distributions_have_nothing_to_review(caplog):
    for distribution in (None, {"kind": "quantile"}):
        _, algorithm = make(distribution=distribution)
        metrics = algorithm.learn(make_batch()).metrics
        algorithm.review({name: float(number) for name, number in metrics.items()}, 1000)
    assert caplog.messages == []


@pytest.mark.parametrize("placement", ["server", pytest.param("agent", marks=pytest.mark.slow)])
def test_a_run_whose_returns_do_not_fit_says_so_in_each_placement(tmp_path, caplog, placement):
    distribution = "{kind: categorical, v_min: 0, v_max: 1}"
    sets = [f"learner.placement={placement}", "algorithm.max_global_step=1500"]
    sets += ["learner.eval_freq=0", "algorithm.network.layers=[8]", "algorithm.warm_up_steps=100"]
    sets += [f"algorithm.distribution={distribution}", f"run_dir={tmp_path / 'run'}"]
    relaax_like.train("dqn", sets)
    lines = [message for message in caplog.messages if "v_max: 1" in message]
    assert len(lines) == 1


@pytest.mark.parametrize(("double", "dueling"), [(False, False), (True, True)])
def test_the_quantile_cost_is_that_of_the_paper(double, dueling):
    distribution = {"kind": "quantile", "atoms": 4}
    model, algorithm = make(double=double, dueling=dueling, distribution=distribution)
    draw_target(model)
    losses = algorithm.learn(make_batch())

    def compute(network, x):
        return np.asarray(compute_atoms(network, x))

    online, following = compute(model.online, X), compute(model.online, NEXT_X)
    target = compute(model.target.module, NEXT_X)
    costs, priorities = [], []
    for row in range(3):
        best = int(np.argmax((following if double else target)[row].mean(-1)))
        cost, sizes = 0.0, []
        for i, atom in enumerate(online[row, ACTIONS[row]]):
            for atom_of_target in target[row, best]:
                error = RETURNS[row] + DISCOUNTS[row] * atom_of_target - atom
                huber = 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5
                cost += abs((i + 0.5) / 4 - (error < 0)) * huber / 4
                sizes.append(abs(error))
        costs.append(cost)
        priorities.append(np.mean(sizes))
    np.testing.assert_allclose(losses.costs["default"], np.mean(WEIGHTS * costs), rtol=1e-4)
    np.testing.assert_allclose(losses.rows["priority"], priorities, rtol=1e-4)


def test_quantiles_settle_where_the_returns_are_and_a_mean_does_not():
    """Of returns 0 and 10, equally likely: half of the quantiles at each, but the mean at 5."""
    compute = load("algorithm", "dqn").compute_quantile_cost
    goals = tf.constant([[0.0, 10.0]])
    atoms = tf.Variable([[4.0, 4.5, 5.5, 6.0]])

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            cost = tf.reduce_sum(compute(atoms, goals)[0])
        atoms.assign_sub(0.2 * tape.gradient(cost, atoms))

    for _ in range(600):
        step()
    assert (np.abs(atoms.numpy() - [[0, 0, 10, 10]]) < 1.5).all()


def test_noise_is_factorised_and_the_same_in_numpy():
    layer = NoisyDense("n", 3, 2, seed=1)
    layer.arrays = {k: as_tf_variable(v).numpy() for k, v in layer.get_variables().items()}
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    noise = layer.draw_noise(np.random.default_rng(1), x)
    random = np.random.default_rng(1)
    draws = [random.standard_normal((4, n), np.float32) for n in (3, 2)]
    first, second = (np.sign(e) * np.sqrt(np.abs(e)) for e in draws)
    a, size = layer.arrays, 0.5 / np.sqrt(3)
    np.testing.assert_allclose(a["W_noise"], size, rtol=1e-6)
    for row in range(4):
        weights = a["W"] + a["W_noise"] * np.outer(first[row], second[row])
        want = x[row] @ weights + a["b"] + a["b_noise"] * second[row]
        np.testing.assert_allclose(layer(x, noise)[row], want, rtol=1e-4, atol=1e-6)
    tensors = layer(tf.constant(x), tuple(map(tf.constant, noise)))
    np.testing.assert_allclose(tensors, layer(x, noise), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer(tf.constant(x)), x @ a["W"] + a["b"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "distribution",
    [
        None,
        {"kind": "categorical", "atoms": 5, "v_min": -1.0, "v_max": 1.0},
        {"kind": "quantile", "atoms": 5},
    ],
)
@pytest.mark.parametrize("noisy", [False, True])
def test_agents_act_with_noise_and_play_greedily_without_it(noisy, distribution):
    settings = {
        "state_size": 2,
        "num_actions": 3,
        "network": {"layers": (5,)},
        "epsilon": 0.0,
        "noisy": noisy,
        "dueling": True,
        "distribution": distribution,
    }
    config = load("config", "dqn").Config.model_validate(settings)
    model = load("model", "dqn").make_model(config, 1)
    x = {"observation": np.zeros((400, 2), np.float32)}
    actors = [make_actor(model, 0, config), CompiledActor(model, 0, config)]
    assert isinstance(actors[0], NumpyActor)
    best = int(np.argmax(compute_values(model.online, np.zeros((1, 2), np.float32))))
    for actor in actors:
        assert (actor.act(x, {}, exploit=True).actions["action"] == best).all()
        taken = set(actor.act(x, {}).actions["action"].tolist())
        assert taken == ({0, 1, 2} if noisy else {best})


def test_noisy_networks_draw_other_noise_for_each_value_and_learn_how_much(monkeypatch):
    costs = {}
    for noisy in (False, True):
        model, algorithm = make(noisy=noisy)
        for seed in (1, 2):
            generator = tf.random.Generator.from_seed(seed)
            monkeypatch.setattr(type(algorithm), "random", generator)
            with tf.GradientTape() as tape:
                cost = algorithm.learn(make_batch()).costs["default"]
            costs[noisy, seed] = float(cost)
    assert costs[False, 1] == costs[False, 2]
    assert abs(costs[True, 1] - costs[True, 2]) > 1e-4
    gradients = tape.gradient(cost, [model.online.advantages.W_noise, model.online.advantages.W])
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)


@pytest.mark.parametrize(
    ("distribution", "want"),
    [
        ("{kind: quantile, v_min: 0}", "v_min: 0.0 has no effect with kind: quantile"),
        ("{kind: quantile, v_max: 5}", "v_max: 5.0 has no effect with kind: quantile"),
        (
            "{kind: categorical, v_min: 1, v_max: 1}",
            "v_min is 1.0 and v_max is 1.0, but kind: categorical needs",
        ),
        ("{kind: categorical}", "v_min is null and v_max is null, but kind: categorical needs"),
        ("{kind: normal}", "categorical"),
    ],
)
def test_distributions_that_cannot_work_are_refused(distribution, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment("dqn", [f"algorithm.distribution={distribution}"])
