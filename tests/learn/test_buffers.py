"""Buffers mean the same where the learner steps the optimizers, and where it pushes gradients.

A slow reference in NumPy says what they are.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from support.buffers.algorithm import Moving
from support.buffers.config import Config
from support.buffers.model import MovingModel

from relaax_like.algorithm import Losses, Phase
from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.core.manifest import find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients, draw_minibatches
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.named_algorithms import NamedAlgorithms
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.tally import Tally
from relaax_like.learn.updates import CompiledUpdates, NotFiniteError
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import ConfigError

STEPS, SLOTS = 16, 8
RATE = 0.25


def make_algorithm(cls: type = Moving, phases: Sequence[Phase] = (), **settings) -> Moving:
    config = Config(rate=RATE, **settings)
    algorithm = cls(MovingModel(config, 0), config, 0)
    algorithm.phases = phases
    return algorithm


def make_data(seed: int) -> TrainingData:
    random, shape = np.random.default_rng(seed), (STEPS, SLOTS)
    observations = random.normal(1.0, 2.0, (STEPS + 1, SLOTS, 4)).astype(np.float32)
    rollout = Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=np.ones(shape, np.float32),
        rewards=random.standard_normal((*shape, 1)).astype(np.float32),
        actions={"action": random.integers(2, size=shape)},
        log_prob=np.zeros(shape, np.float32),
        states={},
        versions=np.zeros(STEPS, np.int64),
        valid=random.uniform(size=shape) > 0.2,
    )
    keys = np.stack([np.ones(SLOTS, np.int64), np.arange(SLOTS)], 1)
    return TrainingData(
        rollout=rollout, tickets=(1,), env_steps=rollout.env_steps, mean_version=0.0, keys=keys
    )


def make_server(algorithm: Moving) -> ParameterServer:
    variables = get_variables(algorithm.model)
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    store = Store(manifest, flat, algorithm.config.optimizers, find_follows(variables))
    return ParameterServer(store, metrics=NullMetrics())


def follow_slowly(minibatches: Iterator[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the buffers after minibatches, each of them the observations that count."""
    mean, variance, steps = np.zeros(4), np.ones(4), 0
    for x in minibatches:
        mean += RATE * (x.mean(0) - mean)
        variance += RATE * (x.var(0) - variance)
        steps += 1
    return {"mean": mean, "variance": variance, "critic.steps": np.array(steps)}


def assert_buffers(values: Sequence[np.ndarray], want: dict[str, np.ndarray]) -> None:
    named = name(values)
    for key, value in want.items():
        np.testing.assert_allclose(named[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    assert named["critic.scale"] == 0.5


def name(values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    names = [variable.name for variable in get_variables(make_algorithm().model)]
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("phases", [(), (Phase("critic"), Phase("actor"))], ids=["one", "two"])
def test_iterations_set_buffers_as_a_slow_reference_does_on_both_placements(phases) -> None:
    settings = {"batch_size": 0, "epochs": 1}
    inside = make_algorithm(phases=phases, **settings)
    beside = make_algorithm(phases=phases, **settings)
    tally, seen = Tally(), []
    with make_server(inside) as home, make_server(beside) as server:
        whole = LearningPolicy(
            CompiledUpdates(inside, inside.config.optimizers), inside.config.plan, seed=7
        )
        whole.load(home.lease())
        compiled = CompiledGradients(beside)
        with InProcessClient(server) as client:
            sink = Pushing(client, compiled, tally, beside.config.plan, 7)
            sink.load()
            for seed in range(4):
                data = make_data(seed)
                seen.append(data.rollout.inputs["observation"][data.rollout.valid])
                whole.forward(whole.data_preprocess(data))
                tally.add(data.env_steps)
                sink.forward(sink.data_preprocess(data))
                compiled.set_values(sink.values)
                want = follow_slowly(iter(seen))
                assert_buffers(whole.get_values(), want)
                assert_buffers(sink.values, want)
            for own, others in zip(sink.values, whole.get_values(), strict=True):
                np.testing.assert_allclose(own, others, rtol=1e-3, atol=1e-4)
            assert name(sink.values)["target/critic.steps"] == 3.0  # at every third step


def make_batch(seed: int = 0, rows: int = 12) -> dict[str, dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    x = random.normal(2.0, 3.0, (rows, 4)).astype(np.float32)
    return {
        "inputs": {"observation": x},
        "next_inputs": {"observation": x},
        "next_alive": {"alive": np.ones(rows, np.float32)},
        "rewards": {"reward": random.normal(size=(rows, 1)).astype(np.float32)},
        "actions": {"action": random.integers(2, size=rows)},
    }


def test_each_minibatch_sees_what_the_one_before_it_has_set() -> None:
    """In the order that is drawn, in both forms."""
    draw, batch = Draw(batch_size=4, epochs=2, seed=5), make_batch()
    order = list(zip(range(6), draw_minibatches(12, 12, 4, 5, None), strict=False))
    want = follow_slowly(batch["inputs"]["observation"][rows] for _, rows in order)
    updates = CompiledUpdates(make_algorithm(), Config().optimizers)
    updates.update(draw, **batch)
    assert_buffers(updates.get_values(), want)
    with make_server(make_algorithm()) as server, InProcessClient(server) as client:
        gradients = CompiledGradients(make_algorithm())
        for gradient in gradients.compute_updates(draw, **batch):
            gradients.set_values(client.push_pull(gradient.arrays, gradient.groups))
        assert_buffers(client.get_values(), want)


def test_buffers_are_set_with_the_steps_of_their_group_and_kept_where_it_is_frozen() -> None:
    delayed = make_algorithm(phases=(Phase("critic"), Phase("actor", every=3)))
    updates = CompiledUpdates(delayed, Config().optimizers)
    updates.update(Draw(batch_size=2, epochs=1, seed=None), **make_batch())
    named = name(updates.get_values())
    assert named["critic.steps"] == 6
    x = make_batch()["inputs"]["observation"]
    np.testing.assert_allclose(
        named["mean"], follow_slowly(iter([x[4:6], x[10:12]]))["mean"], rtol=1e-4
    )
    frozen = make_algorithm()
    frozen.frozen = ("actor",)
    compiled = CompiledUpdates(frozen, Config().optimizers)
    compiled.update(**make_batch())
    named = name(compiled.get_values())
    assert (named["critic.steps"], named["mean"].any()) == (1, False)
    compiled = CompiledGradients(frozen)
    compiled.set_values([np.full_like(value, 3.0) for value in compiled.get_values()])
    gradients, _ = compiled.compute_gradients(**make_batch())
    assert [float(array.mean()) for array in gradients[:4]] == [0, 0, 3, 3]  # actor, and buffers
    assert gradients[6] == 4.0


def test_a_constant_is_taken_over_with_the_values() -> None:
    """So a resumed run, and every agent, has that of the run, whatever its own model began with."""
    other = make_algorithm()
    other.model.critic.scale.variable.assign(8.0)
    with make_server(other) as server, InProcessClient(server) as client:
        compiled = CompiledUpdates(make_algorithm(), Config().optimizers)
        compiled.set_values(client.get_values())
        compiled.update(**make_batch())
        assert name(compiled.get_values())["critic.scale"] == 8.0
        assert name(server.manifest.unpack(server.pull().values.flat))["critic.scale"] == 8.0


def test_an_algorithm_beside_another_sets_its_own_alone() -> None:
    named = NamedAlgorithms({"one": make_algorithm(), "two": make_algorithm()})
    variables = named.get_variables()
    manifest, optimizer = make_manifest(variables), Config().optimizers["actor"]
    flat = manifest.pack([{v.name: v.value for v in variables}[s.name] for s in manifest.segments])
    groups = dict.fromkeys(manifest.groups(), optimizer)
    store = Store(manifest, flat, groups, find_follows(variables))
    with (
        ParameterServer(store, metrics=NullMetrics()) as server,
        InProcessClient(server) as client,
    ):
        view = named.make_client("two", client)
        compiled = CompiledGradients(named.algorithms["two"])
        for gradient in compiled.compute_updates(**make_batch()):
            values = view.push_pull(gradient.arrays, gradient.groups)
        want = follow_slowly(iter([make_batch()["inputs"]["observation"]]))
        assert_buffers(values, want)
        one = named.make_client("one", client).get_values()
        assert_buffers(one, follow_slowly(iter([])))


def test_a_buffer_that_is_not_finite_is_not_set() -> None:
    class Infinite(Moving):
        def learn(self, batch):
            losses = super().learn(batch)
            infinite = {**losses.updates, "mean": losses.updates["mean"] / 0.0}
            return Losses(losses.costs, updates=infinite)

    updates = CompiledUpdates(make_algorithm(Infinite), Config().optimizers)
    before = updates.get_values()
    with pytest.raises(NotFiniteError):
        updates.update(**make_batch())
    for old, new in zip(before, updates.get_values(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean": None}, "no update of the buffer 'mean'"),
        ({"means": 0.0}, r"'means', which is not a buffer \(did you mean 'mean'"),
        ({"mean": np.zeros(3, np.float32)}, r"'mean' is float32 of shape \(3,\), expected .*4"),
        ({"mean": np.zeros(4)}, "'mean' is float64 of shape"),
    ],
)
@pytest.mark.parametrize("form", ["updates", "gradients"])
def test_a_mistake_in_updates_is_named(changes, words, form) -> None:
    class Wrong(Moving):
        def learn(self, batch):
            losses = super().learn(batch)
            changed = {**losses.updates, **changes}
            return Losses(losses.costs, updates={k: v for k, v in changed.items() if v is not None})

    algorithm = make_algorithm(Wrong)
    call = CompiledGradients(algorithm).compute_gradients
    if form == "updates":
        call = CompiledUpdates(algorithm, Config().optimizers).update
    with pytest.raises(ConfigError, match=rf"test_buffers.py:\d+: .*{words}"):
        call(**make_batch())


def test_learners_in_step_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"buffers \(critic.steps, mean, variance\).*: sync"):
        CompiledGradients(make_algorithm(), is_joint=True)


@pytest.mark.slow
def test_xla_sets_them_too() -> None:
    algorithm = make_algorithm()
    algorithm.model.xla = True
    updates = CompiledUpdates(algorithm, Config().optimizers)
    updates.update(**make_batch())
    assert_buffers(
        updates.get_values(), follow_slowly(iter([make_batch()["inputs"]["observation"]]))
    )
