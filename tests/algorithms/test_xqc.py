"""xqc and CrossQ: costs, buffers and gradients against a slow reference. covers F6, F24"""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from support.batch import load
from support.durable import crash, get_state, open_server
from support.replay_batch import make_replay_batch

from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import find_follows, make_manifest
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.layers import Layer
from relaax_like.nn.module import as_tf_variable, get_name
from relaax_like.nn.runtime import tf
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import ConfigError

ROWS, ATOMS, V_MAX, RATE = 6, 11, 4.0, 0.01
LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 1.0])
CROSSQ = {
    "atoms": None,
    "unit_norm": False,
    "target_networks": False,
    "normalize_rewards": False,
}
CASES: dict[str, dict[str, Any]] = {
    "xqc": {},
    "crossq": CROSSQ,
    "no targets": {"target_networks": False},
    "means and targets": {"atoms": None, "critics": 3, "entropy_target": -0.7},
    "rewards as they are": {"normalize_rewards": False, "critics": 1},
}
Arrays = dict[str, np.ndarray]


def make(**settings: Any) -> tuple[Any, Any, Any]:
    options = {
        "state_size": 3,
        "action_size": 2,
        "action_low": tuple(LOW),
        "action_high": tuple(HIGH),
        "network": {"layers": (5, 4), "activation": "relu"},
        "atoms": ATOMS,
        "v_max": V_MAX,
        **settings,
    }
    config = load("config", "xqc").Config.model_validate(options)
    model = load("model", "xqc").make_model(config, 1)
    model.xla = False
    return config, model, load("algorithm", "xqc").make_algorithm(config, model, 1)


def find_arrays(model: Any) -> Arrays:
    """Returns the values of all variables, in double precision."""
    return {v.name: v.value.astype(np.float64) for v in get_variables(model)}


def move(model: Any, seed: int = 0) -> Arrays:
    """Gives all weights and buffers values that no initialisation has; returns them."""
    random = np.random.default_rng(seed)
    for variable in model.find_variables():
        name, shape = get_name(variable), variable.numpy().shape
        if name.startswith("return"):
            continue
        # The actor's outputs are moderate: in single precision, a density far out is inexact.
        value = random.normal(0.0, 0.2 if name.startswith("actor.out") else 0.7, shape)
        if name.endswith((".gain", ".variance")):
            value = random.uniform(0.5, 2.0, shape)
        if name == "log_alpha":
            value = np.array(-0.4)
        as_tf_variable(variable).assign(value.astype(np.float32))
    if model.returns is not None:
        for name, value in (("count", 50.0), ("mean", -3.0), ("m2", 450.0)):
            getattr(model.returns, name).assign(value)
    return find_arrays(model)


def make_arrays(seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    arrays = {
        "x": random.normal(1.0, 2.0, (ROWS, 3)),
        "next_x": random.normal(-1.0, 1.5, (ROWS, 3)),
        "actions": LOW + (HIGH - LOW) * random.uniform(size=(ROWS, 2)),
        "returns": random.normal(0.0, 6.0, ROWS),
        "discount": np.array([0.9, 0.0, 0.81, 0.9, 0.9, 0.9]),
        "weights": np.array([1.0, 0.5, 0.25, 2.0, 0.75, 1.5]),
        "valid": np.array([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]),
        "next_noise": random.standard_normal((ROWS, 2)),
        "noise": random.standard_normal((ROWS, 2)),
    }
    return {name: value.astype(np.float32) for name, value in arrays.items()}


class Draws:
    """Stands for `Algorithm.random`: gives what it was made with, in order."""

    def __init__(self, *draws: np.ndarray):
        self.draws = list(draws)

    def normal(self, shape: Any, **kwargs: Any) -> tf.Tensor:
        return tf.constant(self.draws.pop(0))


def learn(algorithm: Any, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Any:
    draws = Draws(arrays["next_noise"], arrays["noise"])
    monkeypatch.setattr(type(algorithm), "random", draws)
    names = ("x", "next_x", "actions", "returns", "discount", "weights")
    batch = make_replay_batch(*(arrays[name] for name in names))
    return algorithm.learn(dataclasses.replace(batch, valid=tf.constant(arrays["valid"])))


class Reference:
    """The costs in NumPy and double precision, a row at a time where that is possible.

    Args:
      config: of the algorithm.
      values: of all variables by name.
      arrays: the minibatch.
    """

    def __init__(self, config: Any, values: Arrays, arrays: Arrays):
        self.config, self.values = config, values
        self.arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
        self.updates: Arrays = {}
        counted = self.arrays["weights"] * self.arrays["valid"]
        self.counted = counted

    def mean(self, rows: Any) -> float:
        total = sum(share * row for share, row in zip(self.counted, rows, strict=True))
        return float(total / self.arrays["valid"].sum())

    def norm(self, name: str, x: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
        """Normalises each feature; by the moments of rows with these shares, if there are any."""
        values = self.values
        mean, variance = values[f"{name}.mean"], values[f"{name}.variance"]
        if shares is not None:
            old = mean, variance
            mean = (shares[:, None] * x).sum(0) / shares.sum()
            variance = (shares[:, None] * (x - mean) ** 2).sum(0) / shares.sum()
            for kind, was, new in zip(("mean", "variance"), old, (mean, variance), strict=True):
                self.updates[f"{name}.{kind}"] = (1 - RATE) * was + RATE * new
        scaled = (x - mean) / np.sqrt(variance + 1e-5)
        return values[f"{name}.gain"] * scaled + values[f"{name}.shift"]

    def run(self, name: str, x: np.ndarray, shares: np.ndarray | None = None) -> np.ndarray:
        x = self.norm(f"{name}.norm", x, shares)
        for layer in range(2):
            x = x @ self.values[f"{name}.{layer}.W"]
            x = np.maximum(self.norm(f"{name}.norm{layer}", x, shares), 0.0)
        return x @ self.values[f"{name}.out.W"] + self.values[f"{name}.out.b"]

    def act(
        self, x: np.ndarray, noise: np.ndarray, shares: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns actions scaled to [-1, 1], and their log-probabilities."""
        outputs = self.run("actor", x, shares)
        mean, std = outputs[:, :2], np.exp(np.clip(outputs[:, 2:], -20.0, 2.0))
        u = mean + std * noise
        normal = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (normal + 2 * np.log(np.cosh(u))).sum(1)

    def judge(self, first: str = "") -> tuple[np.ndarray, np.ndarray]:
        """Returns what critics, or with "target/" their targets, say of both steps, as one batch.

        Returns:
          `[m, B, outputs]` for x, a; and for x', a'.
        """
        arrays = self.arrays
        scaled = 2 * (arrays["actions"] - LOW) / (HIGH - LOW) - 1
        next_scaled, _ = self.act(arrays["next_x"], arrays["next_noise"])
        rows = [np.concatenate([arrays["x"], scaled], 1)]
        rows += [np.concatenate([arrays["next_x"], next_scaled], 1)]
        shares = np.concatenate([self.counted, self.counted])
        both = [self.run(name, np.concatenate(rows), shares) for name in self.name_critics(first)]
        return np.array(both)[:, :ROWS], np.array(both)[:, ROWS:]

    def name_critics(self, first: str = "") -> list[str]:
        return [f"{first}critic{i}" for i in range(1, self.config.critics + 1)]

    def find_mean(self, values: np.ndarray) -> float:
        """Returns the mean return that one critic expects in one row."""
        if self.config.atoms is None:
            return float(values[0])
        return float(sum(p * z for p, z in zip(softmax(values), make_atoms(), strict=True)))

    def find_scale(self) -> float:
        if not self.config.normalize_rewards:
            return 1.0
        count, mean, m2 = (self.values[f"return.{name}"] for name in ("count", "mean", "m2"))
        deviation = np.sqrt(m2 / count)
        return float(max(deviation, (abs(mean) + 3 * deviation) / V_MAX))

    def find_goals(self) -> list[Any]:
        """Returns the goal of each row: a number, or probabilities of the atoms."""
        arrays, alpha = self.arrays, np.exp(self.values["log_alpha"])
        _, log_prob = self.act(arrays["next_x"], arrays["next_noise"])
        _, after = self.judge("target/" if self.config.target_networks else "")
        goals: list[Any] = []
        for row in range(ROWS):
            means = [self.find_mean(values[row]) for values in after]
            smallest = int(np.argmin(means))
            discount = arrays["discount"][row]
            reward = arrays["returns"][row] / self.find_scale()
            reward -= discount * alpha * log_prob[row]
            if self.config.atoms is None:
                goals.append(reward + discount * means[smallest])
            else:
                goals.append(project(softmax(after[smallest][row]), reward, discount))
        return goals

    def find_critic_cost(self, goals: list[Any]) -> tuple[float, np.ndarray]:
        """Returns the cost, and how far each critic is from the goal of each row, `[B, m]`."""
        now, _ = self.judge()
        costs, errors = np.zeros((2, ROWS, len(now)))
        for row, i in np.ndindex(ROWS, len(now)):
            if self.config.atoms is None:
                errors[row, i] = abs(now[i, row, 0] - goals[row])
                costs[row, i] = errors[row, i] ** 2
                continue
            learned = np.log(softmax(now[i, row]))
            goal = goals[row]
            costs[row, i] = -sum(p * q for p, q in zip(goal, learned, strict=True))
            errors[row, i] = costs[row, i] + sum(p * np.log(p) for p in goal if p > 0)
        return sum(self.mean(costs[:, i]) for i in range(len(now))), errors

    def find_actor_cost(self) -> tuple[float, np.ndarray]:
        """Returns the cost, and the log-probabilities."""
        scaled, log_prob = self.act(self.arrays["x"], self.arrays["noise"], self.counted)
        rows = np.concatenate([self.arrays["x"], scaled], 1)
        values = [self.run(name, rows) for name in self.name_critics()]
        best = [min(self.find_mean(one[row]) for one in values) for row in range(ROWS)]
        alpha = np.exp(self.values["log_alpha"])
        return self.mean(alpha * log_prob - np.array(best)), log_prob


def make_atoms() -> list[float]:
    return [-V_MAX + 2 * V_MAX * i / (ATOMS - 1) for i in range(ATOMS)]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def project(probabilities: np.ndarray, reward: float, discount: float) -> np.ndarray:
    """Bellemare et al. 2017, algorithm 1."""
    atoms, moved = make_atoms(), np.zeros(ATOMS)
    for p, z in zip(probabilities, atoms, strict=True):
        place = (reward + discount * z + V_MAX) * (ATOMS - 1) / (2 * V_MAX)
        place = min(max(place, 0.0), ATOMS - 1.0)
        low, high = int(np.floor(place)), int(np.ceil(place))
        if low == high:
            moved[low] += p
        else:
            moved[low] += p * (high - place)
            moved[high] += p * (place - low)
    return moved


@pytest.mark.parametrize("case", CASES)
def test_costs_priorities_and_buffers_are_those_of_the_reference(case, monkeypatch):
    config, model, algorithm = make(**CASES[case])
    values, arrays = move(model), make_arrays()
    with tf.GradientTape() as tape:
        losses = learn(algorithm, arrays, monkeypatch)
    slow = Reference(config, values, arrays)
    cost, errors = slow.find_critic_cost(slow.find_goals())
    assert set(losses.costs) == {"critic", "actor", "temperature"}
    np.testing.assert_allclose(losses.costs["critic"], cost, rtol=1e-4)
    np.testing.assert_allclose(losses.rows["priority"], errors.mean(1), rtol=1e-4, atol=1e-5)
    cost, log_prob = slow.find_actor_cost()
    np.testing.assert_allclose(losses.costs["actor"], cost, rtol=1e-4)
    np.testing.assert_allclose(losses.metrics["alpha"], np.exp(-0.4), rtol=1e-6)
    np.testing.assert_allclose(
        losses.list_metrics({"actor"})["entropy"], -slow.mean(log_prob), rtol=1e-4
    )
    entropy = -2.0 if config.entropy_target is None else config.entropy_target
    [variable] = model.log_alpha.find_variables()
    slope = tape.gradient(losses.costs["temperature"], as_tf_variable(variable))
    np.testing.assert_allclose(slope, -slow.mean(log_prob + entropy), rtol=1e-4)
    # Of the critics: by the moments of both steps; of the actor: by those of x. No target's own.
    buffers = {name for name in slow.updates if not name.startswith("target/")}
    assert set(losses.updates) == buffers
    for name in buffers:
        want = slow.updates[name]
        np.testing.assert_allclose(losses.updates[name], want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_row_that_does_not_count_has_no_influence(monkeypatch):
    _, model, algorithm = make()
    move(model)
    arrays, changed = make_arrays(), make_arrays()
    assert arrays["valid"][3] == 0
    for name in ("x", "next_x", "actions", "returns", "noise", "next_noise"):
        changed[name][3] *= -0.5
    first, second = (learn(algorithm, one, monkeypatch) for one in (arrays, changed))
    for group, cost in first.costs.items():
        np.testing.assert_allclose(second.costs[group], cost, rtol=1e-5)
    for name, value in first.updates.items():
        np.testing.assert_allclose(second.updates[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("atoms", [ATOMS, None])
def test_rewards_are_not_scaled_before_any_is_known(atoms, monkeypatch):
    """As in the first update beside agents, whose statistics come with the next values."""
    costs = []
    for is_scaled in (True, False):
        _, model, algorithm = make(atoms=atoms, normalize_rewards=is_scaled)
        move(model)
        if is_scaled:
            for variable in model.returns.find_variables():
                as_tf_variable(variable).assign(0.0)
        costs.append(float(learn(algorithm, make_arrays(), monkeypatch).costs["critic"]))
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)


WEIGHTS = [
    "critic1.0.W",
    "critic2.1.W",
    "critic1.norm.gain",
    "critic2.norm0.shift",
    "critic1.out.b",
]


@pytest.mark.parametrize("case", ["xqc", "crossq"])
def test_the_slopes_of_the_costs_are_those_of_finite_differences(case, monkeypatch):
    """Of the critics: of their moments too, and not of the goals."""
    config, model, algorithm = make(**CASES[case])
    values, arrays = move(model), make_arrays()
    with tf.GradientTape(persistent=True) as tape:
        costs = learn(algorithm, arrays, monkeypatch).costs
    variables = {get_name(v): as_tf_variable(v) for v in model.find_variables()}
    goals = Reference(config, values, arrays).find_goals()

    def find_cost(changed: Arrays, group: str) -> float:
        slow = Reference(config, changed, arrays)
        return slow.find_critic_cost(goals)[0] if group == "critic" else slow.find_actor_cost()[0]

    actor = ["actor.0.W", "actor.1.W", "actor.norm.gain", "actor.norm1.shift", "actor.out.W"]
    for group, names in (("critic", WEIGHTS), ("actor", actor)):
        for name in names:
            slope = tape.gradient(costs[group], variables[name]).numpy()
            largest = np.abs(slope).max()
            assert largest > 0
            for place in list(np.ndindex(*slope.shape))[:4]:
                step = np.zeros(slope.shape)
                step[place] = 1e-6
                up, down = (
                    find_cost({**values, name: values[name] + sign * step}, group)
                    for sign in (1, -1)
                )
                want = (up - down) / 2e-6
                assert slope[place] == pytest.approx(want, rel=1e-3, abs=1e-4 * float(largest)), (
                    name
                )


def test_actions_are_the_same_in_numpy_and_tensorflow_after_the_statistics_have_moved():
    _, model, _ = make()
    values = move(model)
    arrays = make_arrays()
    policy = model.policy({"observation": tf.constant(arrays["x"])}, {})[0]["action"]
    config, other, _ = make()
    slow = Reference(config, values, arrays)
    want, log_prob = slow.act(arrays["x"], arrays["noise"])
    for layer in find_layers(other.actor):
        layer.arrays = {
            attribute: values[variable.name].astype(np.float32)
            for attribute, variable in layer.get_variables().items()
        }
    quick = other.policy({"observation": arrays["x"]}, {})[0]["action"]
    noise = arrays["noise"]
    # In NumPy, the log-probability is that of the rounded action.
    for one, draws, rtol in ((policy, Draws(noise), 1e-4), (quick, ArrayDraws(noise), 1e-3)):
        action, found = one.sample_with_log_prob(draws)
        np.testing.assert_allclose(
            action, LOW + (HIGH - LOW) * (want + 1) / 2, rtol=1e-5, atol=1e-5
        )
        np.testing.assert_allclose(found + model.log_volume, log_prob, rtol=rtol, atol=1e-5)
    np.testing.assert_allclose(quick.mode(), policy.mode(), rtol=1e-5, atol=1e-5)


class ArrayDraws:
    """Stands for a generator of NumPy."""

    def __init__(self, draws: np.ndarray):
        self.draws = draws

    def standard_normal(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return self.draws


def find_layers(module: Any) -> list[Layer]:
    return [one for one in [module.norm, *module.norms, *module.hidden, module.out] if one]


def make_inputs(rows: int, seed: int = 0) -> dict[str, Arrays]:
    random = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal((rows, *shape)).astype(np.float32)

    return {
        "inputs": {"observation": draw(3)},
        "next_inputs": {"observation": draw(3)},
        "next_alive": {"alive": np.ones(rows, np.float32)},
        "rewards": {"reward": draw(1)},
        "actions": {"action": np.tanh(draw(2))},
    }


RATES = {"last_rate_share": 0.25, "max_global_step": 1000}
RATES |= {"learning_rate": 1e-3, "critic_learning_rate": 4e-3}


@pytest.fixture(scope="module")
def compiled() -> tuple[Any, Any, CompiledUpdates]:
    """Updates of one critic; compiling them takes most of the time of this file."""
    config, model, algorithm = make(critics=1, **RATES)
    return config, model, CompiledUpdates(algorithm, config.optimizers)


def test_buffers_move_with_their_own_group_and_hidden_weights_keep_unit_norm(compiled):
    _, model, updates = compiled
    names = [variable.name for variable in get_variables(model)]
    seen = []
    for seed in range(3):
        seen.append(dict(zip(names, updates.get_values(), strict=True)))
        updates.update(Draw(batch_size=8), **make_inputs(8, seed))
    seen.append(dict(zip(names, updates.get_values(), strict=True)))
    buffers = [name for name in names if name.endswith((".mean", ".variance"))]
    for name in [one for one in buffers if not one.startswith(("return", "target/"))]:
        moved = [(old[name] != new[name]).any() for old, new in itertools.pairwise(seen)]
        # Of the first hidden layer, as the input's norm has taken away the mean.
        assert moved == ([False, False, True] if name.startswith("actor") else [True] * 3), name
    for name in names:
        if name.endswith("W") and not name.startswith("target/"):
            norms = np.linalg.norm(seen[-1][name], axis=0)
            assert (np.abs(norms - 1).max() < 1e-6) == (".out." not in name), name
            assert (seen[-1][name] != seen[0][name]).any(), name
    # Targets follow buffers as they follow weights.
    for name in ("critic1.norm.mean", "critic1.1.W", "critic1.norm1.variance"):
        old, new, source = (
            *(one[f"target/{name}"] for one in seen[-2:]),
            seen[-1][name],
        )
        np.testing.assert_allclose(new, 0.995 * old + 0.005 * source, rtol=1e-5, atol=1e-7)
    _, model, _ = make(**CROSSQ)
    arrays = find_arrays(model)
    assert not any("target" in name or "return" in name for name in arrays)
    assert np.abs(np.linalg.norm(arrays["critic1.1.W"], axis=0) - 1).min() > 1e-2


def test_after_a_kill_the_journal_leads_to_the_same_bits(tmp_path):
    config, model, algorithm = make(critics=1)
    compiled, variables = CompiledGradients(algorithm), get_variables(model)
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])

    def open_run(folder: Any) -> Any:
        store = Store(manifest, flat, config.optimizers, find_follows(variables))
        return open_server(folder, store=store)

    server = open_run(tmp_path / "run")
    with InProcessClient(server) as client:
        for seed in range(3):
            for pushed in compiled.compute_updates(**make_inputs(8, seed)):
                values = client.push_pull(pushed.arrays, pushed.groups)
                compiled.set_values(values)
            if seed == 1:
                server.save_checkpoint()
        want = get_state(server)
        left = crash(server, tmp_path / "run", tmp_path)
    with open_run(left) as again:
        assert get_state(again) == want
    now = {v.name: value for v, value in zip(variables, values, strict=True)}
    old = {v.name: value for v, value in zip(variables, manifest.unpack(flat), strict=True)}
    for name in ("critic1.0.W", "critic1.norm.mean", "target/critic1.norm.mean", "actor.0.W"):
        assert (now[name] != old[name]).any(), name
    np.testing.assert_allclose(np.linalg.norm(now["critic1.1.W"], axis=0), 1, atol=1e-6)


def test_rates_fall_linearly_to_their_last_share(compiled):
    config, model, updates = compiled
    for group, rate in (("critic", 4e-3), ("actor", 1e-3), ("temperature", 1e-3)):
        optimizer = config.optimizers[group]
        assert (optimizer.learning_rate, optimizer.schedule) == (rate, "linear")
        assert optimizer.learning_rate_end == pytest.approx(0.25 * rate)
        assert optimizer.schedule_env_steps == 1000
    assert make(max_global_step=1000)[0].optimizers["actor"].schedule == "constant"
    # A first step of Adam moves each number by its rate.
    names = [variable.name for variable in get_variables(model)]
    place, moved = names.index("critic1.out.b"), []
    before, state = updates.get_values(), updates.export_optimizers()
    slots = {group: np.zeros_like(array) for group, array in state.slots.items()}
    state = dataclasses.replace(state, steps=dict.fromkeys(state.steps, 0), slots=slots)
    for step in (0, 500, 1000, 2000):
        updates.import_optimizers(state)
        updates.update(Draw(batch_size=8), global_t=step, **make_inputs(8))
        moved.append(np.abs(updates.get_values()[place] - before[place]).max())
        updates.set_values(before)
    np.testing.assert_allclose(moved, [4e-3, 2.5e-3, 1e-3, 1e-3], rtol=1e-3)


@pytest.mark.parametrize(
    ("sets", "key"),
    [
        (["algorithm.atoms=1"], "atoms"),
        (["algorithm.v_max=0"], "v_max"),
        (["algorithm.actor_every=0"], "actor_every"),
        (["algorithm.critics=0"], "critics"),
        (["algorithm.initial_temperature=0"], "initial_temperature"),
        (["algorithm.adam_beta1=1"], "adam_beta1"),
        (["algorithm.last_rate_share=1.5"], "last_rate_share"),
        (["algorithm.last_rate_share=0.5", "algorithm.max_global_step=null"], "max_global_step"),
        (["algorithm.sequence_steps=4"], "sequence_steps"),
        (["algorithm.num_states=4"], "num_states"),
        (["algorithm.network={layers: [{gru: 8}]}"], "network"),
    ],
)
def test_settings_that_cannot_work_are_refused(sets, key):
    with pytest.raises(ConfigError, match=key):
        load_experiment("xqc", sets)


def test_both_experiments_say_what_they_are():
    xqc, crossq = (load_experiment(name, []).algorithm for name in ("xqc", "xqc/crossq"))
    assert (xqc.atoms, xqc.v_max, xqc.critics, xqc.actor_every) == (101, 5.0, 2, 3)
    assert xqc.plan.reward_discount == xqc.gamma
    assert crossq.plan.reward_discount is None
    assert {name: getattr(crossq, name) for name in CROSSQ} == CROSSQ
    assert (crossq.optimizers["critic"].beta1, crossq.updates_per_step) == (0.5, 1.0)
