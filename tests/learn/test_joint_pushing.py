"""Several learners make each update together: it is the update of their joint batch."""

# covers D4

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from learn import test_replay_placements as replay
from learn.test_placements import (
    CASES,
    PPO,
    SLOTS,
    STEPS,
    make_algorithm,
    make_data,
    make_optimizers,
)

from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Push, Reply
from relaax_like.experience.collector import TrainingData
from relaax_like.learn.compiled_algorithm import CHOSEN, Gradient
from relaax_like.learn.gradients import CompiledGradients, draw_minibatches
from relaax_like.learn.joint_pushing import JointPushing
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.minibatches import find_first
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replayed import PRIORITY, ReplayIteration
from relaax_like.learn.tally import Tally
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.runtime import tf
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.replay import TransitionBatch
from relaax_like.wire.errors import ConfigError


class RecordingServer(ParameterServer):
    """Keeps the gradients that it applies."""

    def _push(self, push: Push, timeout_sec: float | None) -> Reply:
        self.gradients: list[np.ndarray] = getattr(self, "gradients", [])
        if push.gradient is not None:
            self.gradients.append(np.array(push.gradient.view(np.float32)))
        return super()._push(push, timeout_sec)


def make_server(algorithm: Any, method: str = "sync", optimizers: Any = None) -> RecordingServer:
    variables = get_variables(algorithm.model)
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    store = Store(manifest, flat, optimizers or make_optimizers(algorithm), find_follows(variables))
    combine = CombineConfig.model_validate({"method": method})
    return RecordingServer(store, metrics=NullMetrics(), combine=combine)


ALONE = ("stop", "statistics", "holes and memory", "phases")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "phases", "has_holes"), [CASES[case] for case in ALONE], ids=ALONE
)
def test_one_learner_alone_makes_the_updates_of_the_server(
    name: str, settings: dict[str, Any], phases: Any, has_holes: bool
) -> None:
    inside = make_algorithm(name, settings, phases)
    beside = make_algorithm(name, settings, phases)
    plan, tally = inside.config.plan, Tally()
    with make_server(inside) as home, make_server(beside) as server:
        whole = LearningPolicy(CompiledUpdates(inside, make_optimizers(inside)), plan, seed=7)
        whole.load(home.lease())
        compiled = CompiledGradients(beside, is_joint=True)
        with InProcessClient(server) as client:
            sink = policy = JointPushing(client, compiled, tally, plan, 7)
            sink.load()
            before = whole.get_values()
            for seed in range(4):
                data = make_data(inside, seed, has_holes)
                want = whole.forward(whole.data_preprocess(data))
                tally.add(data.env_steps)
                came = policy.forward(policy.data_preprocess(data))
                assert came == pytest.approx(want, rel=1e-4, abs=1e-5)
            for one, other, start in zip(whole.get_values(), sink.values, before, strict=True):
                moved = np.linalg.norm(one - start)
                assert np.linalg.norm(one - other) <= 1e-3 * moved + 1e-7
            sink.disconnect()


SHARES = ((0, 3), (3, 4))  # slots of the two learners
MEMORY = {"network": {"layers": ({"lstm": 4},)}, "shared_network": True}
TWO = {
    "a2c": (
        "a2c",
        {"rollout_steps": STEPS, "normalize_advantage": True, "normalize_observations": True},
        (),
    ),
    "ppo, stop": (
        "ppo",
        {**PPO, "normalize_advantage": "batch", "kl": 2e-3, "learning_rate": 1.0},
        (),
    ),
    # One network: three learners trace its loops over the steps.
    "ppo, memory": ("ppo", {**PPO, **MEMORY, "batch_size": 4}, ()),
    "ppo, clipped, scaled rewards": (
        "ppo",
        {
            **PPO,
            "shared_network": True,
            "max_gradient_norm": 0.05,
            "normalize_rewards": True,
            "normalize_advantage": "minibatch",
        },
        (),
    ),
}


def take_slots(data: TrainingData, first: int, last: int) -> TrainingData:
    def cut(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: array[:, first:last] for name, array in arrays.items()}

    rollout = data.rollout
    own = replace(
        rollout,
        inputs=cut(rollout.inputs),
        next_inputs=cut(rollout.next_inputs),
        next_alive=rollout.next_alive[:, first:last],
        rewards=rollout.rewards[:, first:last],
        actions=cut(rollout.actions),
        log_prob=rollout.log_prob[:, first:last],
        states={name: array[first:last] for name, array in rollout.states.items()},
    )
    return replace(data, rollout=own, env_steps=own.env_steps, keys=data.keys[first:last])


class Reference(CompiledGradients):
    """Learns from the joint batch; the minibatches have what each learner has drawn."""

    def compute_updates(
        self, draw: Any = None, *, global_t: int = 0, group: Any = None, **batch: Any
    ) -> Iterator[Gradient]:
        unit = draw.minibatch_of
        total = STEPS * SLOTS if unit == "steps" else SLOTS
        parts = self._make_batch(**batch)
        prepared = self._prepare_batch(parts, self.num_gradients + 1, global_t, None)
        drawn = []
        for first, last in SHARES:
            width = last - first
            length = STEPS * width if unit == "steps" else width
            before = first * STEPS if unit == "steps" else first
            end = before + length
            size = end * draw.batch_size // total - before * draw.batch_size // total
            size = min(size, length // (total // draw.batch_size))
            count = length if unit == "steps" else width
            chosen = draw_minibatches(
                length, count, size, draw.seed, find_first({"extras": {}}, unit, length, count)
            )
            drawn.append(_to_joint(chosen, first, width, unit))
        updates = draw.epochs * (total // draw.batch_size)
        for index, several in enumerate(itertools.islice(zip(*drawn, strict=False), updates)):
            union = tf.constant(np.concatenate(several).astype(np.int32))
            chosen_parts = {**prepared, CHOSEN: {unit: union}}
            is_end = index == updates - 1
            for gradient in self._compute_update(chosen_parts, index, is_end, global_t, None):
                yield gradient
            if gradient.is_last:
                return


def _to_joint(
    chosen: Iterator[np.ndarray], first: int, width: int, unit: str
) -> Iterator[np.ndarray]:
    for one in chosen:
        if unit == "rollouts":
            yield one + first
        else:
            yield one // width * SLOTS + one % width + first


@pytest.mark.parametrize(("name", "settings", "phases"), TWO.values(), ids=TWO)
def test_two_learners_make_the_update_of_their_joint_batch(
    name: str, settings: dict[str, Any], phases: Any
) -> None:
    algorithms = [make_algorithm(name, settings, phases) for _ in range(3)]
    plan = algorithms[0].config.plan
    with (
        make_server(algorithms[0], "fifo") as whole,
        make_server(algorithms[1], "sync") as server,
        ThreadPoolExecutor(2) as threads,
    ):
        jointly = Reference(algorithms[0])
        joint_tally = Tally()
        whole_sink = reference = Pushing(InProcessClient(whole), jointly, joint_tally, plan, 7)
        whole_sink.load()
        policies, sinks, tallies = [], [], []
        for algorithm in algorithms[1:]:
            compiled, tally = CompiledGradients(algorithm, is_joint=True), Tally()
            sink = JointPushing(InProcessClient(server), compiled, tally, plan, 7)
            policies.append(sink)
            sink.load()
            sink.join()
            sinks.append(sink)
            tallies.append(tally)
        before = [np.array(value) for value in whole_sink.values]
        for seed in range(50 if name == "a2c" else 10):
            data = make_data(algorithms[0], seed, has_holes=False)
            want = reference.forward(reference.data_preprocess(data))
            joint_tally.add(data.env_steps)  # counted after the iteration, as by all learners
            whole_sink.push_counts()
            jointly.set_values(whole_sink.values)

            def learn(index: int, data: TrainingData = data) -> Any:
                own = take_slots(data, *SHARES[index])
                tallies[index].add(own.env_steps)
                return policies[index].forward(policies[index].data_preprocess(own))

            came = list(threads.map(learn, range(2)))
            assert came[0] == came[1]
            assert came[0] == pytest.approx(want, rel=1e-3, abs=1e-5)
        assert len(whole.gradients) == len(server.gradients)
        for one, other in zip(whole.gradients, server.gradients, strict=True):
            assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one)
        for one, other, start in zip(whole_sink.values, server_values(server), before, strict=True):
            assert np.linalg.norm(one - other) <= 1e-3 * np.linalg.norm(one - start) + 1e-7
        for sink in sinks:
            sink.disconnect()


def join_batches(one: ReplayIteration, other: ReplayIteration) -> ReplayIteration:
    """Returns minibatches that have the rows of both."""
    batches = [one.minibatches, other.minibatches]
    joined: dict[str, Any] = {}
    for name in TransitionBatch._fields:
        first, second = (getattr(batch, name) for batch in batches)
        if isinstance(first, np.ndarray):
            joined[name] = np.concatenate([first, second], axis=1)
        else:
            joined[name] = {key: np.concatenate([first[key], second[key]], 1) for key in first}
    return dataclasses.replace(one, minibatches=TransitionBatch(**joined))


def test_two_learners_with_replay_tables_make_the_update_of_both_minibatches() -> None:
    algorithms = [replay.make_algorithm("dqn") for _ in range(3)]
    config = algorithms[0].config
    plan = dataclasses.replace(config.plan, batch_size=2 * replay.ROWS)
    with (
        make_server(algorithms[0], "fifo", config.optimizers) as whole,
        make_server(algorithms[1], "sync", config.optimizers) as server,
        ThreadPoolExecutor(2) as threads,
    ):
        jointly = CompiledGradients(algorithms[0])
        whole_sink = reference = Pushing(InProcessClient(whole), jointly, Tally(), plan, 0)
        whole_sink.load()
        policies, sinks = [], []
        for algorithm in algorithms[1:]:
            compiled = CompiledGradients(algorithm, is_joint=True)
            sink = JointPushing(InProcessClient(server), compiled, Tally(), config.plan, 0)
            policies.append(sink)
            sink.load()
            sink.join()
            sinks.append(sink)
        before = [np.array(value) for value in whole_sink.values]
        for seed in range(25):  # of two updates each
            own = [replay.make_iteration(algorithms[0], 2 * seed + index) for index in range(2)]
            joined = join_batches(*own)
            want = reference.forward(reference.data_preprocess(joined))
            jointly.set_values(whole_sink.values)

            def learn(index: int, own: Any = own) -> Any:
                return policies[index].forward(policies[index].data_preprocess(own[index]))

            came = list(threads.map(learn, range(2)))
            assert came[0] == came[1] == pytest.approx(want, rel=1e-3, abs=1e-5)
            rows = [policy.rows[PRIORITY].reshape(2, -1) for policy in policies]
            priorities = reference.rows[PRIORITY].reshape(2, -1)
            np.testing.assert_allclose(np.concatenate(rows, 1), priorities, rtol=1e-3, atol=1e-4)
        assert len(whole.gradients) == len(server.gradients) == 50
        for one, other in zip(whole.gradients[:20], server.gradients[:20], strict=True):
            assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(one)
        for one, other, start in zip(whole_sink.values, server_values(server), before, strict=True):
            assert np.linalg.norm(one - other) <= 1e-3 * np.linalg.norm(one - start) + 1e-7
        for sink in sinks:
            sink.disconnect()


def server_values(server: ParameterServer) -> list[np.ndarray]:
    values = server.pull().values
    assert values is not None
    return server.manifest.unpack(values.flat)


def test_minibatches_smaller_than_the_number_of_learners_are_made() -> None:
    """One slot each, two in a minibatch: two of three learners have a part of it."""
    settings = {**PPO, **MEMORY, "batch_size": 2}
    algorithms = [make_algorithm("ppo", settings) for _ in range(3)]
    plan = algorithms[0].config.plan
    with make_server(algorithms[0]) as server, ThreadPoolExecutor(3) as threads:
        policies, sinks = [], []
        for algorithm in algorithms:
            compiled = CompiledGradients(algorithm, is_joint=True)
            sink = JointPushing(InProcessClient(server), compiled, Tally(), plan, 7)
            policies.append(sink)
            sink.load()
            sink.join()
            sinks.append(sink)

        def learn(index: int) -> Any:
            own = take_slots(make_data(algorithms[0], 1, has_holes=False), index, index + 1)
            policy = policies[index]
            return policy.forward(policy.data_preprocess(own))["updates"]

        made = sorted(threads.map(learn, range(3)))
        assert made == [0, plan.epochs, plan.epochs]
        assert server.updates == plan.epochs
        assert [policy.is_recording for policy in policies].count(True) == 1
        for sink in sinks:
            sink.disconnect()


def test_a_metric_that_reads_rows_in_another_way_is_refused_by_name() -> None:
    algorithm = make_algorithm("a2c", {"rollout_steps": STEPS})
    learn = algorithm.learn

    def learn_and_count(batch: Any) -> Any:
        losses = learn(batch)
        metrics = {**losses.metrics, "rows": tf.reduce_sum(batch.valid)}
        return dataclasses.replace(losses, metrics=metrics)

    algorithm.learn = learn_and_count
    with make_server(algorithm) as server:
        compiled = CompiledGradients(algorithm, is_joint=True)
        sink = policy = JointPushing(
            InProcessClient(server), compiled, Tally(), algorithm.config.plan, 7
        )
        sink.load()
        data = make_data(algorithm, 1, has_holes=False)
        with pytest.raises(ConfigError, match=r"a2c.algorithm\.py:\d+: .*'rows' uses rows of"):
            policy.forward(policy.data_preprocess(data))
        sink.disconnect()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sac, many updates", "td3"])
def test_algorithms_with_phases_and_draws_make_updates_together_too(case: str) -> None:
    algorithm = replay.make_algorithm(case)
    with make_server(algorithm, "sync", algorithm.config.optimizers) as server:
        compiled = CompiledGradients(algorithm, is_joint=True)
        sink = policy = JointPushing(
            InProcessClient(server), compiled, Tally(), algorithm.config.plan, 0
        )
        sink.load()
        made = policy.forward(policy.data_preprocess(replay.make_iteration(algorithm, 1)))
        assert made["updates"] == server.updates == replay.UPDATES
        sink.disconnect()


def test_a_resumed_learner_compiles_the_shapes_that_were_compiled() -> None:
    algorithm = make_algorithm("a2c", {"rollout_steps": STEPS})
    algorithm.model.xla = True
    rollout = make_data(algorithm, 1, has_holes=False).rollout

    def count_compilations(compiled: CompiledGradients) -> int:
        built: list[bool] = []

        def compile_form(batch: Any, specs: Any, xla: bool) -> Any:
            built.append(xla)
            return len

        parts = compiled._make_batch(**compiled.make_arguments(rollout, rollout.next_alive))
        compiled._get("form", parts, compile_form)
        return built.count(True)

    compiled = CompiledGradients(algorithm, is_joint=True)
    assert sum(count_compilations(compiled) for _ in range(30)) == 1
    resumed = CompiledGradients(algorithm, is_joint=True)
    resumed.set_seen(compiled.get_seen())
    assert [count_compilations(resumed) for _ in range(2)] == [1, 0]
