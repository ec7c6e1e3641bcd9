"""Updates inside one graph, on models small enough to work out by hand."""

# covers F6, F9

import logging
import re
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
from support.batch import make_algorithm, make_config
from support.scalars import Chase, Scalars, as_batch, make_x, read

from relaax_like.algorithm import Algorithm, Losses, Phase
from relaax_like.algorithm.model import Model
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.plan import OnPolicy
from relaax_like.config.schedule import Linear, Schedule, Tunable
from relaax_like.core.manifest import make_manifest
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.learn.draw import Draw
from relaax_like.learn.updates import CompiledUpdates, OptimizerState, shuffle
from relaax_like.nn.distributions import Categorical, Deterministic
from relaax_like.nn.layers import Parameter
from relaax_like.nn.module import Module
from relaax_like.nn.target import Target
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import ConfigError, InvalidInputError

XLA = pytest.mark.parametrize("xla", [False, True], ids=["plain", "xla"])
# Where both compute the same: the same graph is traced for them.
XLA_OR_SLOW = pytest.mark.parametrize(
    "xla", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "xla"]
)
ROWS, DECAY = 11, 0.1


class Regressor(Model):
    """The group actor predicts the reward from x, and the group critic its square."""

    def __init__(self, xla=False):
        super().__init__(name="regressor")
        self.xla = xla
        random = np.random.default_rng(1)
        self.w = tf.Variable(random.normal(size=(3, 1)).astype(np.float32), name="w")
        self.b = tf.Variable(0.5, name="b")
        self.u = tf.Variable(random.normal(size=(3, 1)).astype(np.float32), name="u")

    def get_input_specs(self):
        return [("x", {"shape": [3]})]

    def get_action_specs(self):
        return [("action", {"shape": [1]})]

    def policy(self, inputs, states):
        return {"action": Deterministic(inputs["x"] @ self.w + self.b)}, states

    def get_group(self, name):
        return "critic" if name == "u" else "actor"


class Regression(Algorithm):
    """A cost for each group, both with a decay of the weights."""

    autograph = False

    def learn(self, batch):
        x, y, model = batch.inputs["x"], batch.rewards["reward"], self.model
        actor = tf.reduce_mean((x @ model.w + model.b - y) ** 2)
        critic = tf.reduce_mean((x @ model.u - y**2) ** 2)
        own = 0.5 * DECAY * (tf.reduce_sum(model.w**2) + model.b**2)
        other = 0.5 * DECAY * tf.reduce_sum(model.u**2)
        return Losses(
            {"actor": actor + own, "critic": critic + other}, metrics={"decay": own + other}
        )


OPTIMIZERS = {
    "actor": OptimizerConfig(learning_rate=0.05, epsilon=1e-3),
    "critic": OptimizerConfig(learning_rate=0.02, adam_epsilon="inside"),
}


def make_batch(rows=ROWS, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3)).astype(np.float32)
    return as_batch({"x": x}, random.normal(size=(rows, 1)).astype(np.float32))


def order_of(seed, epoch, length, minibatch):
    order = shuffle(tf.constant(length), tf.constant([seed, epoch], tf.int64)).numpy()
    return [order[i : i + minibatch] for i in range(0, length - minibatch + 1, minibatch)]


_SHARED = {}


def share(make, xla=False):
    """Returns one result of `make(xla)` for all tests, as it was when it was new.

    What an update of it has traced and compiled, the next one calls.
    """
    if (make, xla) not in _SHARED:
        compiled = make(xla)
        _SHARED[make, xla] = compiled, compiled.get_values(), compiled.export_optimizers()
    compiled, values, optimizers = _SHARED[make, xla]
    compiled.set_values(values)
    compiled.import_optimizers(optimizers)
    return compiled


def make_regression(xla):
    return CompiledUpdates(Regression(Regressor(xla)), OPTIMIZERS)


class SlowAdam:
    """Kingma & Ba 2015, algorithm 1, in float64; epsilon as the configuration says."""

    def __init__(self, config):
        self.config, self.t, self.moments = config, 0, {}

    def step(self, weights, gradients):
        c = self.config
        self.t += 1
        for name, g in gradients.items():
            m, v = self.moments.get(name, (0.0, 0.0))
            m, v = c.beta1 * m + (1 - c.beta1) * g, c.beta2 * v + (1 - c.beta2) * g**2
            self.moments[name] = m, v
            root = np.sqrt(1 - c.beta2**self.t)
            epsilon = c.epsilon if c.adam_epsilon == "inside" else c.epsilon / root
            m_hat, v_hat = m / (1 - c.beta1**self.t), v / root**2
            weights[name] = weights[name] - c.learning_rate * m_hat / (np.sqrt(v_hat) + epsilon)


def run_slowly(compiled, batch, minibatches):
    """The same updates with gradients by hand; returns weights and mean costs."""
    weights = {name: value.astype(np.float64) for name, value in read(compiled).items()}
    x, y = batch["inputs"]["x"].astype(np.float64), batch["rewards"]["reward"].astype(np.float64)
    actor, critic = SlowAdam(OPTIMIZERS["actor"]), SlowAdam(OPTIMIZERS["critic"])
    costs = []
    for rows in minibatches:
        w, b, u, n = weights["w"], weights["b"], weights["u"], len(rows)
        error = x[rows] @ w + b - y[rows]
        critic_error = x[rows] @ u - y[rows] ** 2
        decay = DECAY / 2 * ((w**2).sum() + b**2 + (u**2).sum())
        actor_decay = DECAY / 2 * ((w**2).sum() + b**2)
        actor_cost = (error**2).mean() + actor_decay
        costs.append([actor_cost, (critic_error**2).mean() + decay - actor_decay, decay])
        gradients = {
            "w": 2 / n * x[rows].T @ error + DECAY * w,
            "b": 2 / n * error.sum() + DECAY * b,
        }
        actor.step(weights, gradients)
        critic.step(weights, {"u": 2 / n * x[rows].T @ critic_error + DECAY * u})
    return weights, dict(zip(("actor", "critic", "decay"), np.mean(costs, axis=0), strict=True))


def assert_values(compiled, want, tolerance=1e-5):
    for name, value in read(compiled).items():
        np.testing.assert_allclose(value, want[name], rtol=tolerance, atol=tolerance, err_msg=name)


@XLA
def test_epochs_of_minibatches_equal_a_slow_reference(xla, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("TF_XLA_FLAGS", "")  # as without a cache
    compiled, batch = make_regression(xla), make_batch()
    minibatches = [rows for epoch in range(5) for rows in order_of(7, epoch, ROWS, 4)]
    assert len(minibatches) == 10
    want, want_costs = run_slowly(compiled, batch, minibatches)
    learned = compiled.update(Draw(batch_size=4, epochs=5, seed=7), **batch)
    assert learned.updates == 10
    assert learned.costs == pytest.approx(want_costs, rel=1e-5)
    assert_values(compiled, want)
    assert compiled.count_updates(compiled.export_optimizers().steps) == 10
    # No seconds: tracing says little about them, and this machine might have compiled it before.
    lines = [r.message for r in caplog.records if r.name == "relaax_like.learn.updates"]
    assert lines == ["compiling the update (once)"] * xla


@pytest.mark.parametrize(("xla", "count"), [(False, 25), (True, 110)], ids=["plain", "xla"])
def test_updates_of_a_whole_batch_equal_a_slow_reference(xla, count):
    """With XLA so many that a form for this shape takes over before the end."""
    compiled, batch = share(make_regression, xla), make_batch()
    want, want_costs = run_slowly(compiled, batch, [np.arange(ROWS)] * count)
    costs = [compiled.update(**batch).costs for _ in range(count)]
    means = {name: np.mean([c[name] for c in costs]) for name in costs[0]}
    assert means == pytest.approx(want_costs, rel=1e-5)
    assert_values(compiled, want)


class Clipped(Regression):
    max_gradient_norm = 0.3


@pytest.fixture(scope="module")
def slow_clipped():
    return CompiledAlgorithm(Clipped(Regressor()))


@pytest.mark.parametrize("epochs", [False, True], ids=["whole", "epochs"])
def test_updates_are_those_of_gradients_and_the_servers_kernel(epochs, slow_clipped):
    optimizers = {
        "actor": OptimizerConfig(
            name="adamw", schedule="linear", learning_rate_end=0, schedule_env_steps=100
        ),
        "critic": OptimizerConfig(name="rmsprop", momentum=0.5),
    }
    compiled, slow = CompiledUpdates(Clipped(Regressor()), optimizers), slow_clipped
    slow.set_values(compiled.get_values())
    variables = slow.get_variables()
    manifest = make_manifest(variables)
    store = Store(manifest, manifest.pack([v.value for v in variables]), optimizers)
    batch = make_batch()
    x, y = batch["inputs"]["x"], batch["rewards"]["reward"]
    if epochs:
        store.apply(None, env_steps=40)
        means = compiled.update(Draw(batch_size=3, epochs=2, seed=5), **batch, global_t=40).costs
        parts = [rows for epoch in range(2) for rows in order_of(5, epoch, ROWS, 3)]
    else:
        parts = [np.arange(ROWS)] * 6
    norms = []
    for number, rows in enumerate(parts):
        if not epochs:
            compiled.update(**batch, global_t=20 * number)
        gradients, costs = slow.compute_gradients(**as_batch({"x": x[rows]}, y[rows]))
        store.apply(manifest.pack(gradients, gradient=True), env_steps=0 if epochs else 20)
        slow.set_values(manifest.unpack(store.values.flat))
        norms.append(costs["gradient norm"])
    assert_values(compiled, read(slow), 1e-6)
    assert max(norms) > 0.3  # clipped
    if epochs:
        assert means["gradient norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    # The slots lie as in the server's snapshots.
    state, server = compiled.export_optimizers(), store.export_state()
    assert state.slot_names == server.slot_names
    assert state.steps == server.steps
    for group, slots in state.slots.items():
        np.testing.assert_allclose(slots, server.slots[group], rtol=1e-5, atol=1e-8)


SGD = OptimizerConfig(name="sgd", learning_rate=0.5)


def make_scalars(algorithm, xla=False, optimizer=SGD):
    return CompiledUpdates(algorithm(Scalars(xla)), {"critic": optimizer, "actor": optimizer})


class CriticFirst(Chase):
    phases = (Phase("critic"), Phase("actor"))


class ActorFirst(Chase):
    phases = (Phase("actor"), Phase("critic"))


# critic: 1 - 0.5 (1 - 3) = 2, then 2.5. The actor goes half of the way to the critic, which is at 1
# and 2 when it comes late, at 2 and 2.5 when it goes first.
STEPS = [
    (Chase, [(2, 0.5), (2.5, 1.25)], {"critic": 2.0, "actor": 0.5, "sum": 1.0}),
    (ActorFirst, [(2, 0.5), (2.5, 1.25)], {"critic": 2.0, "actor": 0.5, "sum": 1.0}),
    (CriticFirst, [(2, 1), (2.5, 1.75)], {"critic": 2.0, "actor": 2.0, "sum": 1.0}),
]


@pytest.mark.parametrize(
    ("algorithm", "steps", "costs", "xla"),
    [(*case, xla) for case, xla in (*((case, False) for case in STEPS), (STEPS[-1], True))],
    ids=["at once", "late", "first", "first-xla"],
)
def test_phases_see_the_values_that_earlier_ones_left(algorithm, steps, costs, xla):
    compiled = make_scalars(algorithm, xla)
    for number, (critic, actor) in enumerate(steps):
        learned = compiled.update(Draw(batch_size=1, epochs=1, seed=0), **make_x([0.0]))
        assert learned.updates == 1
        if number == 0:
            assert learned.costs == pytest.approx(costs)
        assert read(compiled) == pytest.approx({"critic": critic, "actor": actor})
    if not xla:  # of few updates no form is compiled
        other = make_scalars(algorithm, xla)
        assert other.update(**make_x([0.0])).costs == pytest.approx(costs)


@pytest.mark.parametrize(
    ("epochs", "xla"),
    [(False, False), (True, False), (True, True)],
    ids=["update", "epochs-plain", "epochs-xla"],
)
def test_a_phase_can_run_in_every_third_update_and_counts_its_own_steps(epochs, xla):
    class Delayed(Chase):
        phases = (Phase("critic"), Phase("actor", every=3))

    compiled = make_scalars(Delayed, xla)
    if epochs:
        learned = compiled.update(Draw(batch_size=1, epochs=1, seed=0), **make_x(np.zeros(7)))
        # Before the updates 3 and 6 the critic was at 3 - 2 / 2^3 and 3 - 2 / 2^6, the actor at 0
        # and half of that.
        first, second = 3 - 2 / 2**3, 3 - 2 / 2**6
        wanted = (0.5 * first**2 + 0.5 * (first / 2 - second) ** 2) / 2
        assert learned.costs["actor"] == pytest.approx(wanted)
    else:
        actors = []
        for _ in range(7):
            compiled.update(**make_x([0.0]))
            actors.append(float(read(compiled)["actor"]))
        first = (3 - 2 / 2**3) / 2
        assert actors[:5] == pytest.approx([0, 0, first, first, first])
    assert compiled.export_optimizers().steps == {"critic": 7, "actor": 2}
    resumed = make_scalars(Delayed, xla)
    resumed.set_values(compiled.get_values())
    resumed.import_optimizers(compiled.export_optimizers())
    for one in (compiled, resumed):
        one.update(**make_x([0.0]))
        one.update(**make_x([0.0]))
    assert read(resumed) == read(compiled)
    assert resumed.export_optimizers().steps == {"critic": 9, "actor": 3}


def test_in_phases_each_group_is_clipped_alone():
    class Far(CriticFirst):
        @property
        def max_gradient_norm(self):
            return {"critic": 1.0, "actor": 1.0}

    compiled = make_scalars(Far)
    compiled.set_values([np.float32(0.0), np.float32(7.0)])  # actor, critic
    costs = compiled.update(**make_x([0.0])).costs
    # Gradients are 4 and then, the critic being at 6.5, -6.5.
    assert read(compiled) == pytest.approx({"critic": 6.5, "actor": 0.5})
    assert costs["gradient norm critic"] == pytest.approx(4)
    assert costs["gradient norm actor"] == pytest.approx(6.5)


def test_a_cost_leaves_other_groups_alone_and_a_metric_all_of_them():
    class OnlyActor(Chase):
        def learn(self, batch):
            losses = super().learn(batch)
            return Losses({"critic": tf.constant(0.0), "actor": losses.costs["actor"]})

    class WithMetric(OnlyActor):
        def learn(self, batch):
            losses = super().learn(batch)
            wrong = 100.0 * self.model.critic**2 + self.model.actor
            return Losses(losses.costs, metrics={"wrong": wrong})

    for algorithm in (OnlyActor, WithMetric):
        compiled = make_scalars(algorithm)
        compiled.update(**make_x([0.0]))
        assert read(compiled) == {"critic": 1.0, "actor": 0.5}, algorithm


def test_frozen_groups_keep_their_values_and_their_steps():
    class Frozen(Chase):
        frozen = ("critic",)

        def learn(self, batch):
            return Losses({"actor": super().learn(batch).costs["actor"]})

    compiled = make_scalars(Frozen, optimizer=OptimizerConfig(name="adamw", learning_rate=0.5))
    compiled.update(**make_x([0.0]))
    assert read(compiled)["critic"] == 1.0
    assert read(compiled)["actor"] != 0.0
    assert compiled.export_optimizers().steps == {"critic": 0, "actor": 1}


class Climb(Algorithm):
    """The actor climbs by 1 per update, up to a height of 4."""

    autograph = False

    def learn(self, batch):
        actor = self.model.actor
        return Losses(
            {"actor": -2.0 * actor, "critic": 0.0 * self.model.critic}, metrics={"height": actor}
        )

    def stop(self, metrics):
        return metrics["height"] >= 4.0


# covers P10
@XLA_OR_SLOW
def test_stop_ends_all_epochs_after_the_update_that_asked_for_it(xla):
    compiled = make_scalars(Climb, xla)
    draw, rows = Draw(batch_size=2, epochs=4, seed=0), make_x(np.zeros(6))
    learned = compiled.update(draw, **rows)
    # Heights before the updates: 0, 1, 2, 3, 4. Three minibatches are an epoch.
    assert learned.updates == 5
    assert read(compiled)["actor"] == 5
    assert learned.costs["height"] == pytest.approx(2)
    learned = compiled.update(draw, **rows)
    assert (learned.updates, learned.costs["height"], read(compiled)["actor"]) == (1, 5, 6)


class Number(Module):
    """A variable that a target can follow."""

    def __init__(self):
        super().__init__()
        self.x = Parameter("actor", np.float32(0.0))

    def __call__(self, like):
        return self.x(like)


class Followed(Scalars):
    how: ClassVar = {"every": 3}

    def __init__(self, xla=False):
        super().__init__(xla)
        self.actor = Number()
        self.follower = Target(self.actor, **self.how)


class Mixed(Followed):
    how: ClassVar = {"tau": 0.25}


class MixedLater(Followed):
    how: ClassVar = {"every": 3, "tau": 0.5}


class Rise(Algorithm):
    """The actor climbs by 1 per update."""

    autograph = False

    def learn(self, batch):
        actor = self.model.actor(batch.returns)
        return Losses({"actor": -2.0 * actor, "critic": 0.0 * self.model.critic})


LATER = [0, 0, 1.5, 1.5, 1.5, 3.75, 3.75, 3.75, 6.375]


@pytest.mark.parametrize(
    ("model", "wanted", "xla"),
    [
        (Followed, [0, 0, 3, 3, 3, 6, 6, 6, 9], False),
        (Mixed, np.cumsum([0.25 * sum(0.75**j for j in range(i)) for i in range(1, 10)]), False),
        (MixedLater, LATER, False),
        (MixedLater, LATER, True),
    ],
    ids=["every", "tau", "both", "both-xla"],
)
def test_a_target_follows_its_source_also_after_a_resume(model, wanted, xla):
    def make():
        return CompiledUpdates(Rise(model(xla)), {"critic": SGD, "actor": SGD})

    def read_target(one):
        return float({v.name: v.value for v in one.get_variables()}["target/actor"])

    compiled, seen = make(), []
    for _ in range(4):
        compiled.update(**make_x([0.0]))
        seen.append(read_target(compiled))
    resumed = make()
    resumed.set_values(compiled.get_values())
    resumed.import_optimizers(compiled.export_optimizers())
    for _ in range(2):
        resumed.update(**make_x([0.0]))
        seen.append(read_target(resumed))
    resumed.update(Draw(batch_size=1, epochs=1, seed=0), **make_x(np.zeros(3)))
    seen.append(read_target(resumed))
    assert seen == pytest.approx([*wanted[:6], wanted[8]], rel=1e-5)
    assert read(resumed)["actor"] == 9


def test_a_target_s_source_is_of_one_variable_group():
    class Both(Module):
        def __init__(self, *parts):
            super().__init__()
            self.parts = parts

    class Spread(Scalars):
        def __init__(self):
            super().__init__()
            self.follower = Target(Both(self.actor, self.critic), tau=0.5)

    with pytest.raises(ConfigError, match=r"of a Target .*actor.*critic.*expected one"):
        make_scalars(lambda _: Chase(Spread()))


def test_draws_depend_on_seed_group_and_step_alone():
    class Noise(Chase):
        phases = (Phase("critic"), Phase("actor"))

        def learn(self, batch):
            noise = [self.random.normal([]), self.random.uniform([])]
            losses = super().learn(batch)
            return Losses(losses.costs, metrics={"normal": noise[0], "uniform": noise[1]})

    def draw(seed, count, start=0):
        compiled = CompiledUpdates(Noise(Scalars(), seed=seed), {"critic": SGD, "actor": SGD})
        state = compiled.export_optimizers()
        compiled.import_optimizers(replace(state, steps=dict.fromkeys(state.steps, start)))
        costs = [compiled.update(**make_x([0.0])).costs for _ in range(count)]
        return [(c["normal"], c["uniform"]) for c in costs]

    first = draw(3, 4)
    assert len({x for pair in first for x in pair}) == 8
    assert draw(3, 2, start=2) == first[2:]
    assert not {*first} & {*draw(4, 4)}


class ScheduleConfig(AlgorithmConfig):
    weight: Tunable = 2.0
    bound: Tunable | None = 0.5
    off: Tunable | None = None
    rate: Schedule = Linear(1.0, 0.0, steps=100)
    plan: OnPolicy = OnPolicy(rollout_steps=1, discount=0.5)


def test_settings_schedules_and_global_t_are_inputs_of_one_compiled_function():
    class Settled(Chase):
        traces = 0

        def learn(self, batch):
            type(self).traces += 1
            numbers = {
                "weight": self.config.weight,
                "bound": self.config.bound + 0.0 * tf.cast(self.config.off is None, tf.float32),
                "rate": self.config.rate,
                "discount": batch.discount[0],
                "global_t": tf.cast(self.global_t, tf.float32),
            }
            return Losses(super().learn(batch).costs, metrics=numbers)

    algorithm = Settled(Scalars(), ScheduleConfig())
    compiled = CompiledUpdates(algorithm, {"critic": SGD, "actor": SGD})
    wanted = {"weight": 2.0, "discount": 0.5, "bound": 0.5}
    assert len(compiled._settings.values) == 3
    for global_t, rate in ((0, 1.0), (25, 0.75), (1000, 0.0)):
        got = compiled.update(**make_x([0.0]), global_t=global_t).costs
        assert {k: got[k] for k in (*wanted, "rate", "global_t")} == pytest.approx(
            {**wanted, "rate": rate, "global_t": global_t}
        )
    assert Settled.traces == 1
    assert algorithm.config.weight == 2.0  # outside of a trace they are numbers


class RowResults(Algorithm):
    autograph = False

    def learn(self, batch):
        zero = 0.0 * (self.model.actor + self.model.critic)
        return Losses({"actor": zero, "critic": zero}, rows={"double": 2.0 * batch.inputs["x"]})


# covers J5
@XLA_OR_SLOW
def test_results_of_rows_come_back_at_their_places(xla):
    compiled = make_scalars(RowResults, xla)
    x = np.arange(12, dtype=np.float32)
    got = compiled.update(Draw(batch_size=12, epochs=2, seed=0), **make_x(x))
    np.testing.assert_array_equal(got.rows["double"], 2 * x)
    rollouts = x.reshape(3, 4)
    batch = as_batch({"x": rollouts}, rollouts[..., None])
    cuts = [("steps", 2), ("rollouts", 2), ("rollouts", 4), ("steps", 12)]
    for of, minibatch in cuts[:2] if xla else cuts:
        got = compiled.update(
            Draw(batch_size=minibatch, minibatch_of=of, epochs=1, seed=0), **batch
        )
        np.testing.assert_array_equal(got.rows["double"], 2 * rollouts)
    # Rows that were in no minibatch have none.
    got = compiled.update(Draw(batch_size=5, epochs=1, seed=0), **make_x(x))
    learned = ~np.isnan(got.rows["double"])
    assert learned.sum() == 10
    np.testing.assert_array_equal(got.rows["double"][learned], 2 * x[learned])
    np.testing.assert_array_equal(compiled.update(**make_x(x)).rows["double"], 2 * x)


class Seen(Algorithm):
    """Tells which rows it saw: row i is 2^i. What was seen in one update adds to the actor."""

    autograph = False

    def learn(self, batch):
        costs = {"actor": -self.model.actor, "critic": 0.0 * self.model.critic}
        return Losses(costs, metrics={"rows": tf.reduce_sum(batch.inputs["x"])})


def make_seen(xla):
    return make_scalars(Seen, xla)


def count_rows(learned):
    return round(learned.costs["rows"] * learned.updates)


@XLA_OR_SLOW
def test_an_epoch_goes_through_every_row_once_and_leaves_the_rest_out(xla):
    compiled = share(make_seen, xla)
    rows = make_x(2.0 ** np.arange(12))
    learned = compiled.update(Draw(batch_size=4, epochs=3, seed=1), **rows)
    assert (learned.updates, count_rows(learned)) == (9, 3 * (2**12 - 1))
    left_out = set()
    for seed in range(6):
        learned = compiled.update(Draw(batch_size=5, epochs=1, seed=seed), **rows)
        seen = count_rows(learned)
        assert (learned.updates, seen.bit_count()) == (2, 10)
        left_out.add(2**12 - 1 - seen)
    assert len(left_out) > 3


@XLA_OR_SLOW
def test_only_the_rows_that_count_are_gone_through(xla):
    compiled = share(make_seen, xla)
    rows = make_x(2.0 ** np.arange(12))
    for count, updates, each in ((8, 2, 8), (11, 2, 8), (4, 1, 4), (12, 3, 12)):
        learned = compiled.update(Draw(batch_size=4, epochs=1, seed=count, count=count), **rows)
        seen = count_rows(learned)
        assert (learned.updates, seen.bit_count()) == (updates, each)
        assert seen < 2**count
    with pytest.raises(InvalidInputError, match=r"count: 13, expected 4 .* to 12"):
        compiled.update(Draw(batch_size=4, epochs=1, seed=0, count=13), **rows)


@XLA_OR_SLOW
def test_the_same_seed_gives_the_same_result(xla):
    batch = make_batch()

    def run(seed):
        compiled = share(make_regression, xla)
        result = compiled.update(Draw(batch_size=4, epochs=2, seed=seed), **batch)
        return result.costs, np.concatenate([value.ravel() for value in compiled.get_values()])

    (first, one), (again, two), (other, three) = run(3), run(3), run(2**63 + 4)
    assert first == again
    assert first != other
    np.testing.assert_array_equal(one, two)
    assert (one != three).all()


def test_orders_are_permutations_that_differ_by_seed_and_epoch():
    draw = tf.function(lambda seed: shuffle(tf.constant(50), seed))
    seeds = [tf.constant([s, e], tf.int64) for s in range(20) for e in range(20)]
    orders = [draw(seed).numpy() for seed in seeds]
    assert len({order.tobytes() for order in orders}) == 400
    assert all(sorted(order) == list(range(50)) for order in orders)
    # Each place is equally likely; five standard deviations of a mean of 400 draws.
    deviation = np.sqrt((50**2 - 1) / 12 / 400)
    np.testing.assert_allclose(np.mean(orders, axis=0), 24.5, atol=5 * deviation)


class Sequences(Model):
    """Slot i is 2^i in its memory and in all of its observations; beside it stands the step."""

    def __init__(self, xla):
        super().__init__(name="sequences")
        self.xla = xla
        self.w = tf.Variable(0.0, name="w")

    def get_input_specs(self):
        return [("x", {"shape": [2]})]

    def get_state_specs(self):
        return [("memory", {"shape": [1]})]

    def get_action_specs(self):
        return [("action", {"shape": [1]})]

    def policy(self, inputs, states):
        raise NotImplementedError


class WholeRollouts(Algorithm):
    autograph = False

    def learn(self, batch):
        slots, steps = batch.inputs["x"][..., 0], batch.inputs["x"][..., 1]  # [T, m]
        wrong = [
            slots - batch.memory["memory"][:, 0],
            steps - tf.range(5.0)[:, None],
            batch.continues - 1.0,
            tf.cast(batch.begins, tf.float32),
            batch.actions["action"][..., 0] - slots,
            batch.returns - slots,
        ]
        return Losses(
            {"default": 0.0 * self.model.w},
            metrics={
                "slots": tf.reduce_sum(slots[0]),
                "wrong": tf.add_n([tf.reduce_max(tf.abs(part)) for part in wrong]),
                "length": tf.cast(tf.size(slots), tf.float32),
            },
        )


def make_rollout(steps=5, slots=6):
    names = np.broadcast_to(2.0 ** np.arange(slots, dtype=np.float32), (steps, slots))
    x = np.stack([names, np.broadcast_to(np.arange(steps)[:, None], names.shape)], -1)
    return {
        "inputs": {"x": x},
        "next_inputs": {"x": x},
        "next_alive": {"alive": np.ones_like(names)},
        "rewards": {"reward": names[..., None]},
        "actions": {"action": names[..., None]},
        "states": {"memory": names[0][:, None]},
    }


@XLA_OR_SLOW
def test_rollouts_cut_by_slots_keep_their_steps_and_their_memory(xla):
    compiled = CompiledUpdates(WholeRollouts(Sequences(xla)), {"default": SGD})
    learned = compiled.update(
        Draw(batch_size=2, minibatch_of="rollouts", epochs=2, seed=0), **make_rollout()
    )
    assert learned.updates == 6
    wanted = {"default": 0, "slots": 2 * (2**6 - 1) / 6, "wrong": 0, "length": 10}
    assert learned.costs == pytest.approx(wanted)


@XLA_OR_SLOW
def test_rollouts_cut_by_rows_are_taken_apart(xla):
    class Rows(Seen):
        def learn(self, batch):
            assert batch.begins is None
            difference = batch.inputs["x"] - batch.returns + batch.continues - 1.0
            losses = super().learn(batch)
            wrong = tf.reduce_max(tf.abs(difference))
            return Losses(losses.costs, metrics={**losses.metrics, "wrong": wrong})

    compiled = make_scalars(Rows, xla)
    rows = 2.0 ** np.arange(12, dtype=np.float32).reshape(3, 4)
    batch = as_batch({"x": rows}, rows[..., None])
    learned = compiled.update(Draw(batch_size=6, epochs=1, seed=1), **batch)
    assert (learned.updates, count_rows(learned), learned.costs["wrong"]) == (2, 2**12 - 1, 0)


def make_gru_algorithm(config, xla):
    algorithm = make_algorithm(config)
    algorithm.model.xla = xla
    return algorithm


@pytest.fixture(scope="module")
def whole_rollouts():
    """Settings of a2c, a rollout, and the values that its gradients on a server lead to."""
    config = make_config(
        layers=({"gru": 5},), shared_network=True, learning_rate=1e-2, max_gradient_norm=0.1
    )
    random = np.random.default_rng(0)
    steps, slots = 4, 6
    x = random.normal(size=(steps, slots, 4)).astype(np.float32)
    slow = CompiledAlgorithm(make_gru_algorithm(config, xla=False))
    memory = {
        name: random.normal(size=(slots, *shape)).astype(np.float32)
        for name, shape in slow.state_shapes.items()
    }
    assert memory
    batch = {
        "inputs": {"observation": x},
        "next_inputs": {"observation": x[::-1]},
        "next_alive": {"alive": random.choice([1.0, 0.0, -1.0], (steps, slots))},
        "rewards": {"reward": random.normal(size=(steps, slots, 1))},
        "actions": {
            "action": random.integers(2, size=(steps, slots)),
            "log_prob": np.log(random.uniform(0.3, 0.7, (steps, slots))),
        },
        "states": memory,
    }
    before = slow.get_variables()
    manifest = make_manifest(before)
    store = Store(manifest, manifest.pack([v.value for v in before]), config.optimizers)
    for chosen in [part for epoch in range(2) for part in order_of(9, epoch, slots, 2)]:
        cut = {
            part: {
                name: array[chosen] if part == "states" else array[:, chosen]
                for name, array in arrays.items()
            }
            for part, arrays in batch.items()
        }
        gradients, _ = slow.compute_gradients(**cut)
        store.apply(manifest.pack(gradients, gradient=True))
        slow.set_values(manifest.unpack(store.values.flat))
    return config, batch, before, read(slow)


@XLA_OR_SLOW
def test_whole_rollouts_of_an_actor_critic_equal_its_gradients_on_a_server(xla, whole_rollouts):
    """a2c has loops over the steps of a rollout, whose gradients are taken inside of our loops."""
    config, batch, before, want = whole_rollouts
    compiled = CompiledUpdates(make_gru_algorithm(config, xla), config.optimizers)
    compiled.update(Draw(batch_size=2, minibatch_of="rollouts", epochs=2, seed=9), **batch)
    assert_values(compiled, want, 2e-5)
    assert any(
        (value != v.value).any() for value, v in zip(compiled.get_values(), before, strict=True)
    )


@XLA_OR_SLOW
def test_imported_optimizers_go_on_bit_for_bit(xla):
    batch = make_batch()

    def go_on(compiled):
        compiled.update(**batch)
        compiled.update(Draw(batch_size=4, epochs=1, seed=1), **batch)
        return compiled.get_values()

    compiled = share(make_regression, xla)
    empty = compiled.export_optimizers()
    go_on(compiled)
    values, state = compiled.get_values(), compiled.export_optimizers()
    want = go_on(compiled)
    resumed = make_regression(xla)
    resumed.set_seen(compiled.get_seen())  # what is compiled for a shape can differ in the last bit
    resumed.set_values(values)
    resumed.import_optimizers(state)
    for got, value, old in zip(go_on(resumed), want, values, strict=True):
        np.testing.assert_array_equal(got, value)
        assert (got != old).any()
    # The slots matter, and what was exported is a copy that later updates leave alone.
    resumed.set_values(values)
    resumed.import_optimizers(empty)
    for got, value in zip(go_on(resumed), want, strict=True):
        assert (got != value).any()
    assert (max(empty.steps.values()), {float(np.abs(s).max()) for s in empty.slots.values()}) == (
        0,
        {0.0},
    )
    assert compiled.count_updates(state.steps) == 3
    assert all(slots.dtype == np.float32 for slots in state.slots.values())


def test_slots_of_another_optimizer_are_refused_and_change_nothing():
    compiled = share(make_regression)
    compiled.update(**make_batch())
    before = compiled.export_optimizers()
    sgd = CompiledUpdates(Regression(Regressor()), {**OPTIMIZERS, "critic": SGD})
    short = {**before.slots, "critic": before.slots["critic"][:, :1]}
    for state in (
        sgd.export_optimizers(),
        OptimizerState({"actor": 1, "critic": 1}, short, before.slot_names),
        OptimizerState({}, {}, {}),
    ):
        with pytest.raises(InvalidInputError, match="slots of group"):
            compiled.import_optimizers(state)
    with pytest.raises(InvalidInputError, match="steps of group critic: missing"):
        compiled.import_optimizers(replace(before, steps={"actor": 7}))
    after = compiled.export_optimizers()
    assert (compiled.count_updates(after.steps), after.steps) == (1, before.steps)
    for group, slots in before.slots.items():
        np.testing.assert_array_equal(after.slots[group], slots)


class Uncompilable(Regression):
    """Its metric uses an operation that XLA does not support."""

    def learn(self, batch):
        number = tf.numpy_function(lambda: np.float32(1), [], tf.float32)
        metrics = {"number": tf.ensure_shape(number, [])}
        return Losses(super().learn(batch).costs, metrics=metrics)


def test_an_update_that_xla_cannot_compile_is_an_error_with_line_and_cure():
    compiled = CompiledUpdates(Uncompilable(Regressor(xla=True)), OPTIMIZERS)
    want = rf"{re.escape(__file__)}:\d+: XLA cannot compile learn or prepare: .*xla = False"
    with pytest.raises(ConfigError, match=want):
        compiled.update(Draw(batch_size=4, epochs=2, seed=1), **make_batch())


MISTAKES = {
    "no cost": ({"actor": 0.0}, {}, r"no cost for the variable group 'critic'.*frozen"),
    "misspelt": (
        {"actor": 0.0, "critc": 0.0},
        {},
        r"'critc', which is not a variable group \(did you mean 'critic'\?\)",
    ),
    "both": (
        {"actor": 0.0, "critic": 0.0},
        {"actor": 0.0},
        "'actor' is a cost and a metric; rename the metric",
    ),
    "rows": (
        {"actor": 0.0, "critic": 0.0},
        {"kl": np.array([0.0, 1.0])},
        r"the metric 'kl' has the shape \(2,\), expected a number",
    ),
    "group": (
        {"actor": 0.0, "critic": 0.0},
        {"actr": {"kl": 0.0}},
        r"metrics under 'actr', which is not a variable group \(did you mean 'actor'\?\)",
    ),
    "in a group": (
        {"actor": 0.0, "critic": 0.0},
        {"actor": {"kl": np.array([0.0, 1.0])}},
        r"the metric 'kl' has the shape \(2,\), expected a number",
    ),
}


@pytest.mark.parametrize(("costs", "metrics", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_in_losses_names_file_and_line(costs, metrics, words):
    class Wrong(Regression):
        def learn(self, batch):
            return Losses(
                {k: tf.constant(v) for k, v in costs.items()},
                metrics=tf.nest.map_structure(tf.constant, metrics),
            )

    line = Wrong.learn.__code__.co_firstlineno
    with pytest.raises(ConfigError, match=rf"^\S*test_updates.py:{line}: .*{words}"):
        CompiledUpdates(Wrong(Regressor()), OPTIMIZERS).update(**make_batch())


def test_what_prepare_returns_must_be_tensors():
    class Wrong(Regression):
        def prepare(self, batch):
            return {"before": Categorical(tf.zeros([4, 2]))}

    line = Wrong.prepare.__code__.co_firstlineno
    with pytest.raises(ConfigError, match=rf"test_updates.py:{line}: .*Categorical as 'before'"):
        CompiledUpdates(Wrong(Regressor()), OPTIMIZERS).update(**make_batch())


def test_groups_that_do_not_fit_the_model_are_refused():
    with pytest.raises(ConfigError, match=r"optimizers: actor, expected .*: actor, critic"):
        CompiledUpdates(Regression(Regressor()), {"actor": SGD})


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"phases": (Phase("actor"),)}, "'critic' is in 0 phases, expected one"),
        ({"phases": (Phase("actor", "critic"), Phase("actor"))}, "'actor' is in 2 phases"),
        ({"phases": (Phase("actor"), Phase("citric"))}, r"did you mean 'critic'\?"),
        ({"phases": (Phase("actor", "critic", every=2),)}, "no phase runs in every update"),
        ({"frozen": ("citric",)}, r"'citric' is not a variable group \(did you mean 'critic'"),
        ({"frozen": ("actor", "critic")}, r"Wrong: frozen: it lists all variable"),
        ({"frozen": ("critic",), "phases": (Phase("critic"),)}, "not a variable group that is tr"),
    ],
)
def test_phases_and_frozen_groups_that_do_not_fit_are_refused(attributes, words):
    wrong = type("Wrong", (Regression,), attributes)
    with pytest.raises(ConfigError, match=words):
        CompiledUpdates(wrong(Regressor()), OPTIMIZERS)


def test_a_gradient_alone_is_refused_where_there_are_phases():
    with pytest.raises(ConfigError, match=r"test_updates.py:\d+: phases: .*BatchAgent"):
        CompiledAlgorithm(CriticFirst(Scalars())).compute_gradients(**make_x([0.0]))


@pytest.mark.parametrize(
    ("draw", "changes", "field", "message"),
    [
        ({"batch_size": 12}, {}, "batch_size", "batch_size: 12, expected 1 to 11"),
        ({"batch_size": -1}, {}, "batch_size", "batch_size: -1, expected 1 to 11"),
        ({"epochs": 0}, {}, "epochs", "epochs: 0, expected 1 or more"),
        ({"minibatch_of": "rollouts"}, {}, "minibatch_of", "has no time axis"),
        (
            {},
            {"rewards": {"reward": np.zeros((12, 1))}},
            "rewards[reward]",
            r"rewards\[reward\]: \[12\] rows or slots, expected \[11\] like inputs\[x\]",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(draw, changes, field, message):
    compiled = CompiledUpdates(Regression(Regressor()), OPTIMIZERS)
    before = compiled.get_values()
    with pytest.raises(InvalidInputError, match=message) as caught:
        compiled.update(replace(Draw(batch_size=4, seed=0), **draw), **{**make_batch(), **changes})
    assert caught.value.field == field
    for old, new in zip(before, compiled.get_values(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_rollouts_whose_axes_are_swapped_are_refused():
    compiled = CompiledUpdates(WholeRollouts(Sequences(False)), {"default": SGD})
    batch = make_rollout()
    with pytest.raises(InvalidInputError, match='minibatch_of: "steps", but the memory'):
        compiled.update(Draw(batch_size=2, epochs=1, seed=0), **batch)
    scalars = make_scalars(Seen)
    x = np.zeros((3, 4), np.float32)
    swapped = {**make_x(x), "next_alive": {"alive": np.ones((4, 3))}}
    with pytest.raises(InvalidInputError, match=r"\[4, 3\] steps and slots, expected \[3, 4\]"):
        scalars.update(Draw(batch_size=2, epochs=1, seed=0), **swapped)
