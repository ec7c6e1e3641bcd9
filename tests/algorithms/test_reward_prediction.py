"""reward_prediction: its costs against slow references, and the Model that two learners share.

covers F2, F10, F29, R2
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch import load, make_config
from support.cluster import ROOT, TRACE, Processes, find_command, find_free_port
from support.compare import compare
from support.hierarchy import make_store
from support.serial import STOPPED, read_run, train
from support.threads import Caller

from relaax_like.algorithm.model import find_sharing, get_trainable_variables, get_variables
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learners import make_iteration_learners
from relaax_like.learn.algorithm_publishers import AlgorithmPublishers
from relaax_like.learn.named_algorithms import NamedAlgorithms
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.metrics.curves import read_curves
from relaax_like.nn.module import get_name
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

PROGRAM = ROOT / "tests" / "support" / "stopping"
ACTOR_CRITIC, PREDICTION = "actor_critic", "prediction"
LABEL = f"{ACTOR_CRITIC}+{PREDICTION}"
GROUPS = ("trunk", "heads", "reward")
FRAMES = 3


# XLA takes seconds for the update of each run.
UNCOMPILED = """

_make_compiled = make_model


def make_model(config, seed):
    model = _make_compiled(config, seed)
    model.xla = False
    return model
"""


def make_algorithms(**settings):
    config = make_config((5,), "reward_prediction", state_size=2, **settings)
    return load("algorithm", "reward_prediction").make_algorithms(config, 0)


def make_sequences(rewards, last, random):
    """Returns the arguments of an update of sequences, one of each length `last + 1`."""
    shape = (FRAMES, len(last))
    valid = np.arange(FRAMES)[:, None] == last
    inputs = random.standard_normal((*shape, 2)).astype(np.float32)
    return {
        "inputs": {"observation": inputs},
        "next_inputs": {"observation": inputs},
        "next_alive": {"alive": (np.arange(FRAMES)[:, None] < last).astype(np.float32)},
        "rewards": {"reward": np.where(valid, rewards, 7.0)[..., None].astype(np.float32)},
        "actions": {"action": np.zeros(shape, np.int64), "log_prob": np.zeros(shape, np.float32)},
        "states": {},
        "extras": {"mask": valid.astype(np.float32)},
    }


def make_all(algorithms):
    named = NamedAlgorithms(algorithms)
    made = {}
    for name, algorithm in named.algorithms.items():
        other = made.get(named.sharing[name][0])
        optimizers = dict.fromkeys(GROUPS, algorithm.config.optimizers["default"])
        others = named.find_groups_of_others(name)
        made[name] = CompiledUpdates(algorithm, optimizers, name, other, others)
    return made


def read_groups(compiled, model):
    """Returns group -> the values of its variables."""
    values = dict(zip([v.name for v in get_variables(model)], compiled.get_values(), strict=True))
    named = [(model.get_group(get_name(v)), get_name(v)) for v in get_trainable_variables(model)]
    return {
        group: np.concatenate([values[name].ravel() for own, name in named if own == group])
        for group in GROUPS
    }


def test_the_prediction_s_cost_equals_a_slow_reference():
    algorithms = make_algorithms(prediction_coefficient=0.5)
    model = algorithms[PREDICTION].model
    compiled = make_all(algorithms)[PREDICTION]
    random = np.random.default_rng(0)
    rewards, last = np.array([2.0, 0.0, -0.5, 0.0]), np.array([2, 0, 1, 2])
    arguments = make_sequences(rewards, last, random)
    values = {v.name: v.value for v in get_variables(model)}
    (w, b), (w3, b3) = ([values[f"{n}.{k}"] for k in "Wb"] for n in ("trunk.0", "reward"))
    features = np.tanh(arguments["inputs"]["observation"] @ w + b)
    errors = []
    for column, end in enumerate(last):
        seen = [features[end - k, column] if k <= end else np.zeros(5) for k in range(FRAMES)]
        logits = np.concatenate(seen) @ w3 + b3
        which = 1 + int(np.sign(rewards[column]))
        errors.append(np.log(np.exp(logits).sum()) - logits[which])
    learned = compiled.update(**arguments)
    assert learned.costs["reward"] == pytest.approx(0.5 * np.mean(errors), rel=1e-5)
    assert learned.costs["trunk"] == learned.costs["reward"]


def test_each_trains_the_trunk_and_its_own_group_with_the_optimizer_of_both():
    algorithms = make_algorithms()
    model = algorithms[PREDICTION].model
    assert algorithms[ACTOR_CRITIC].model is model
    made = make_all(algorithms)
    random = np.random.default_rng(1)
    batch = make_sequences(np.array([1.0, 0.0]), np.array([2, 2]), random)
    for number, (name, leaves) in enumerate([(PREDICTION, "heads"), (ACTOR_CRITIC, "reward")], 1):
        before = read_groups(made[name], model)
        made[name].update(**batch)
        after = {one: read_groups(compiled, model) for one, compiled in made.items()}
        for group in GROUPS:
            moved = (after[name][group] != before[group]).any()
            assert moved == (group != leaves), group
            np.testing.assert_array_equal(after[ACTOR_CRITIC][group], after[PREDICTION][group])
        states = [compiled.export_optimizers() for compiled in made.values()]
        assert states[0].steps == states[1].steps
        assert states[0].steps["trunk"] == number
        np.testing.assert_array_equal(states[0].slots["trunk"], states[1].slots["trunk"])
    # Each counts its own updates, by the group that only it trains.
    made[PREDICTION].update(**batch)
    steps = made[PREDICTION].export_optimizers().steps
    assert steps == {"trunk": 3, "heads": 1, "reward": 2}
    counted = {name: compiled.count_updates(steps) for name, compiled in made.items()}
    assert counted == {ACTOR_CRITIC: 1, PREDICTION: 2}


def test_one_without_a_group_of_its_own_is_refused():
    algorithms = make_algorithms()
    algorithms[ACTOR_CRITIC].frozen = ()
    with pytest.raises(ConfigError, match=r"prediction shares its Model .*frozen"):
        make_all(algorithms)


def test_both_publish_the_same_variables_and_optimizers():
    algorithms = make_algorithms()
    store = make_store(algorithms)
    model = algorithms[PREDICTION].model
    manifest = make_manifest(get_variables(model))
    sharing = find_sharing({name: one.model for name, one in algorithms.items()})
    with ParameterServer(store, metrics=NullMetrics()) as server:
        publishers = AlgorithmPublishers(server, dict.fromkeys(algorithms, manifest), sharing)
        assert set(server.lease().slots) == {f"{LABEL}/{group}" for group in GROUPS}
        first, second = (publishers.make_publisher(name) for name in algorithms)
        leases = first.lease(), second.lease()
        for lease in leases:
            assert lease.manifest.segments[0].name == manifest.segments[0].name
            assert set(lease.slots) == set(GROUPS)
        np.testing.assert_array_equal(leases[0].values, leases[1].values)


@pytest.fixture(scope="module")
def uncompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the algorithm."""
    copy = tmp_path_factory.mktemp("algorithms") / "reward_prediction"
    ignored = shutil.ignore_patterns("__*")
    shutil.copytree(ROOT / "algorithms" / "reward_prediction", copy, ignore=ignored)
    file = copy / "algorithm.py"
    file.write_text(file.read_text() + UNCOMPILED)
    return copy


def write_experiment(
    folder: Path, path: Path, placement: str = "server", algorithm: str = ""
) -> Path:
    """Writes an experiment on four fields in a row, of which only the last has a reward."""
    folder.mkdir(exist_ok=True)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        "relaax-parameter-server: {progress_interval_sec: 1000}\n"
        f"learner: {{placement: {placement}}}\n"
        f"algorithm: {{path: '{path}', network: {{layers: [8]}}, rollouts: 4, batch_size: 8, "
        f"max_global_step: 1200, {algorithm}}}\n"
        f"environment: {{path: '{PROGRAM}', env: FrozenLake-v1, slots: 4, "
        "args: {desc: [SFFG], is_slippery: false}}\n"
    )
    return file


def assert_both_learned(folder: Path) -> None:
    state = read_latest(folder / "run" / "checkpoints")
    assert state is not None
    steps = {group: state.steps[f"{LABEL}/{group}"] for group in GROUPS}
    assert min(steps["heads"], steps["reward"]) > 5
    assert steps["trunk"] == steps["heads"] + steps["reward"]
    curves = read_curves(folder / "run" / "metrics")
    assert {f"Optimizer/{ACTOR_CRITIC}/heads", f"Optimizer/{PREDICTION}/accuracy"} <= set(curves)


def test_stopped_and_resumed_it_equals_an_uninterrupted_run(
    uncompiled: Path, tmp_path: Path
) -> None:
    files = [write_experiment(tmp_path / name, uncompiled) for name in ("a", "b")]
    assert train(files[0]) == 0
    assert train(files[1], stop_at=121) == STOPPED
    assert train(files[1]) == 0
    first, second = (read_run(tmp_path / name / "run") for name in ("a", "b"))
    assert compare(first, second, "run") == ""
    assert_both_learned(tmp_path / "a")


def test_it_learns_beside_its_agents(uncompiled: Path, tmp_path: Path) -> None:
    assert train(write_experiment(tmp_path, uncompiled, "agent")) == 0
    assert_both_learned(tmp_path)


def test_without_the_predictions_there_is_no_second_learner(
    uncompiled: Path, tmp_path: Path
) -> None:
    file = write_experiment(tmp_path, uncompiled, algorithm="predict_rewards: false")
    assert train(file, "algorithm.max_global_step=400") == 0
    steps = read_run(tmp_path / "run")["steps"]
    assert steps.keys() == {f"{ACTOR_CRITIC}/{group}" for group in GROUPS}
    assert steps[f"{ACTOR_CRITIC}/reward"] == 0


class Watching:
    """A parameter server that notes whether another learner could change the values meanwhile."""

    def __init__(self, server: ParameterServer):
        self._server = server
        self.is_free = lambda: True
        self.seen: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def publish(self, publication: Any) -> Any:
        self.seen.append(Caller(self.is_free).get())
        return self._server.publish(publication)


def make_rollout(rewards: np.ndarray, number: int) -> Rollout:
    """Returns the rollout of a slot, `[T, 1]`, with rewards `[T]`."""
    steps = len(rewards)
    inputs = np.random.default_rng(number).standard_normal((steps + 1, 1, 2)).astype(np.float32)
    return Rollout(
        inputs={"observation": inputs[:-1]},
        next_inputs={"observation": inputs[1:]},
        next_alive=np.ones((steps, 1), np.float32),
        rewards=rewards[:, None, None].astype(np.float32),
        actions={"action": np.zeros((steps, 1), np.int64)},
        log_prob=np.full((steps, 1), -0.7, np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
        starts=np.array([[7, 0, number * steps]]),
    )


def test_an_update_is_published_before_another_learner_changes_the_values(
    uncompiled: Path, tmp_path: Path
) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\nlearner: {{placement: server}}\n"
        f"algorithm: {{path: '{uncompiled}', state_size: 2, num_actions: 2, rollout_steps: 8, "
        "rollouts: 1, batch_size: 4, network: {layers: [4]}}\n"
    )
    experiment = load_experiment(file)
    config = experiment.algorithm
    store = make_store(load("algorithm", "reward_prediction").make_algorithms(config, 0))
    with ParameterServer(store, metrics=NullMetrics()) as server:
        watching = Watching(server)
        loops = make_iteration_learners(experiment, watching)  # type: ignore[arg-type]
        lock = loops[PREDICTION]._sink.lock
        assert loops[ACTOR_CRITIC]._sink.lock is lock

        def is_free() -> bool:
            taken = lock.acquire(blocking=False)  # type: ignore[attr-defined]
            if taken:
                lock.release()  # type: ignore[attr-defined]
            return taken

        watching.is_free = is_free
        for loop in loops.values():
            loop.load()
        updates = []
        for number, rewards in enumerate([np.zeros(8), np.eye(8)[3], np.zeros(8)]):
            for loop in loops.values():
                loop.source.add(make_rollout(rewards, number), ())
            due = [loop.source.has_iteration for loop in loops.values()]
            updates.append(due)
            for loop, is_due in zip(loops.values(), due, strict=True):
                if is_due:
                    loop.learn()
        # The steps before the first rollout with a reward make no prediction due.
        assert updates == [[True, False], [True, True], [True, True]]
        assert watching.seen == [False] * 5
        assert is_free()
        newest = server.lease()
        model = [loop._learner.policy.get_values() for loop in loops.values()]
        for one in model:
            np.testing.assert_array_equal(newest.manifest.pack(one), newest.values)
        assert newest.steps == {f"{LABEL}/{g}": n for g, n in zip(GROUPS, (5, 3, 2), strict=True)}
        for loop in loops.values():
            loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["server", "standalone"])
def test_it_learns_over_the_network(placement: str, uncompiled: Path, tmp_path: Path) -> None:
    file = write_experiment(tmp_path, uncompiled, placement)
    file.write_text(file.read_text().replace(f"path: '{PROGRAM}'", "program: OpenAI_Gym"))
    sets = ["algorithm.max_global_step=6000"]
    for section in ("relaax-parameter-server", "relaax-rlx-server", "learner"):
        sets.append(f"{section}.bind=localhost:{find_free_port()}")
    with Processes(tmp_path) as processes:
        flags = [part for one in sets for part in ("--set", one)]
        program = processes.start("run", [find_command("relaax"), "run", file, *flags])
        assert program.wait(240) == 0, program
    assert TRACE not in program.output
    assert_both_learned(tmp_path)
