"""Runs with a prior: a part of each minibatch is recorded, wherever the learner is.

covers F24, J11 (recordings are learned from beside what is played)
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT
from support.compare import compare
from support.serial import STOPPED, read_run, train, write_experiment
from support.standalone import StandaloneCluster
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.config.algorithm_folder import load_folder_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import EnvironmentConfig
from relaax_like.config.sources import PRIOR_NAME
from relaax_like.core.records import Status
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import TrajectoryWriter
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.learn.prior import keep_prior
from relaax_like.replay import Table
from relaax_like.runs.folders.run_folder import begin_run
from relaax_like.wire.errors import ConfigError

DQN = (
    "state_size: 4, num_actions: 2, network: {layers: [8]}, batch_size: 8, capacity: 300, "
    "warm_up_steps: 32, updates_per_step: 0.25, n_step: 3, updates_at_once: 4, "
    "prior_fraction: 0.25, max_global_step: 768"
)
NETWORKED = (
    *("state_size=4", "num_actions=2", "network={layers: [8]}", "batch_size=8", "capacity=10000"),
    *("warm_up_steps=32", "updates_per_step=0.25", "updates_at_once=4"),
)
# Recorded observations; those of CartPole-v1 are far below.
RECORDED = 50.0
STEPS = 70


def record(folder: Path, steps: int = STEPS, size: int = 4, number: int = 1) -> Path:
    """Writes a recording of one long episode, `[steps, 1]`, of which each step has the reward 7."""
    seen = RECORDED + np.arange((steps + 1) * size, dtype=np.float32).reshape(-1, 1, size)
    alive = np.ones((steps, 1), np.float32)
    alive[-1] = 0
    rollout = Rollout(
        inputs={"observation": seen[:-1]},
        next_inputs={"observation": seen[1:]},
        next_alive=alive,
        rewards=np.full((steps, 1, 1), 7, np.float32),
        actions={"action": np.arange(steps)[:, None] % 2},
        log_prob=np.zeros((steps, 1), np.float32),
        states={},
        versions=np.full(steps, 1000),
    )
    TrajectoryWriter(folder, 1e9).write(number, rollout)
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes an experiment of dqn in a folder."""
    path = copy_uncompiled("dqn", tmp_path)

    def make(name: str, placement: str = "server") -> Path:
        settings = f"{{path: '{path}', {DQN}}}"
        return write_experiment(tmp_path / name, placement=placement, algorithm=settings)

    return make


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The minibatches that tables of this process return."""
    found: list[Any] = []
    sample = Table.sample

    def keep(self: Table, minibatches: int = 1) -> Any:
        batch = sample(self, minibatches)
        found.extend([] if batch is None else [batch])
        return batch

    monkeypatch.setattr(Table, "sample", keep)
    return found


@pytest.mark.parametrize("placement", ["server", "agent"])
def test_a_quarter_of_each_minibatch_is_recorded_also_after_a_stop(
    placement: str, write: Callable[..., Path], drawn: list[Any], tmp_path: Path
) -> None:
    prior = f"algorithm.prior={record(tmp_path / 'recorded')}"
    straight, stopped = write("a", placement), write("b", placement)
    assert train(straight, prior) == 0
    first = list(drawn)
    drawn.clear()
    assert train(stopped, prior, stop_at=130) == STOPPED
    assert train(stopped, prior) == 0
    assert compare(*(read_run(tmp_path / name / "run") for name in "ab"), "run") == ""
    assert len(first) == len(drawn) >= 40
    for one, other in zip(first, drawn, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        is_recorded = one.observations["observation"][..., 0] >= RECORDED
        assert (is_recorded.sum(1) == 2).all()
        # Three rewards of 7, with the discount 0.99, except at the end.
        most = one.returns[is_recorded].max()
        assert most == pytest.approx(7 * (1 + 0.99 + 0.99**2))


def test_recordings_that_have_changed_are_refused_when_the_run_resumes(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    prior = f"algorithm.prior={record(tmp_path / 'recorded')}"
    file = write("a")
    assert train(file, prior, stop_at=130) == STOPPED
    record(tmp_path / "recorded", 5, number=2)
    with pytest.raises(ConfigError, match=r"^algorithm\.prior: \S+/recorded has 75 steps") as found:
        train(file, prior)
    assert f"remove {tmp_path / 'a' / 'run' / 'checkpoints' / PRIOR_NAME} " in str(found.value)
    # Another folder is another setting.
    assert train(file, f"algorithm.prior={record(tmp_path / 'others')}") == 0


def test_a_start_without_progress_does_not_hold_the_recordings(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    """Such as one that was refused for another reason."""
    prior = f"algorithm.prior={record(tmp_path / 'recorded')}"
    file = write("a")
    experiment = load_experiment(file, [prior])
    assert experiment.algorithm.prior == (str(tmp_path / "recorded"),)
    kept = experiment.parameter_server.checkpoint_dir / PRIOR_NAME
    keep_prior(kept.parent, experiment.algorithm.prior, 3, 4)
    with pytest.raises(ConfigError, match=r"^algorithm\.prior: .* expected 3 steps"):
        train(file, prior)
    begin_run(load_experiment(file), force=False)
    assert not kept.exists()


def demonstrate(folder: Path, bits: int, steps: int = 1000, slots: int = 8) -> Path:
    """Writes a recording in which the first wrong bit is flipped in each step, `[steps, slots]`."""
    section = EnvironmentConfig(program="bit_flip", slots=slots, args={"bits": bits})
    module = load_folder_module(ROOT / "environments" / "bit_flip", "slots")
    games = module.make_slots(section, 5)
    seen, rows = games.reset(), []
    for _ in range(steps):
        action = (seen["achieved_goal"] != seen["desired_goal"]).argmax(1)
        outcome = games.step(action)
        after = dict(outcome.observations)
        for name, last in (outcome.final_observations or {}).items():
            after[name] = np.where(outcome.terminated[:, None], last, after[name])
        rows.append((seen, after, action, outcome.rewards, 1.0 - outcome.terminated))
        seen = outcome.observations
    before, after, action, rewards, alive = zip(*rows, strict=True)
    rollout = Rollout(
        inputs={name: np.stack([one[name] for one in before]) for name in seen},
        next_inputs={name: np.stack([one[name] for one in after]) for name in seen},
        next_alive=np.stack(alive).astype(np.float32),
        rewards=np.stack(rewards)[..., None].astype(np.float32),
        actions={"action": np.stack(action)},
        log_prob=np.zeros((steps, slots), np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
    )
    TrajectoryWriter(folder, 1e9).write(1, rollout)
    return folder


def test_what_is_hardly_ever_found_by_chance_is_learned_from_demonstrations(tmp_path: Path) -> None:
    """Of eight bits; without a prior it reaches 0 to 3 of 100 goals, with seeds 0 to 2."""
    sets = [
        *(f"run_dir={tmp_path / 'run'}", f"algorithm.prior={demonstrate(tmp_path / 'seen', 8)}"),
        *("environment.args.bits=8", "algorithm.hindsight=null", "algorithm.batch_size=64"),
        *("algorithm.network={layers: [64]}", "algorithm.learning_rate=3e-3"),
        *("algorithm.max_global_step=12000", "algorithm.updates_per_step=0.5"),
        *("algorithm.epsilon={kind: linear, start: 1.0, end: 0.05, steps: 6000}",),
        "algorithm.target_every=64",
    ]
    file = ROOT / "algorithms" / "dqn" / "bit_flip.yaml"
    relaax_like.train(file, sets)
    assert (evaluate_policies(load_experiment(file, sets), 100)[""].success_rate or 0) >= 0.9


@pytest.mark.slow
def test_a_killed_learner_reads_them_again_and_the_status_has_their_number(tmp_path: Path) -> None:
    """The parameter server keeps running; the table's journal has no recorded steps."""
    recorded = record(tmp_path / "recorded")
    settings = [f"algorithm.{one}" for one in NETWORKED]
    with StandaloneCluster(tmp_path, copy_uncompiled("dqn", tmp_path), *settings) as cluster:
        cluster.sets.append(f"algorithm.prior={recorded}")
        server, learner = cluster.start_parameter_server(), cluster.start_learner()
        rlx, client = cluster.start_rlx_server(), cluster.start_paced_client("one")

        def is_learning(status: Status) -> bool:
            return status.version >= wanted and status.prior_steps == STEPS

        wanted = 10
        before = cluster.wait_status(is_learning, "updates with recorded steps")
        assert (before.table_steps or 0) >= 32
        assert learner.stop(signal.SIGKILL) == -signal.SIGKILL
        learner, wanted = cluster.start_learner(), before.version + 10
        after = cluster.wait_status(is_learning, "more of them")
        assert (after.table_steps or 0) > (before.table_steps or 0)
        assert learner.stop(signal.SIGKILL) == -signal.SIGKILL
        record(recorded, 5, number=2)
        learner = cluster.start_learner()
        learner.wait_for(r"learning has failed: algorithm\.prior: \S+/recorded has 75 steps")
        assert learner.wait() == 2
        for program in (client, rlx, server):
            program.stop()


def test_recordings_that_cannot_be_used_are_named(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    file = write("a")
    wide = record(tmp_path / "wide", size=5)
    broken = record(tmp_path / "broken")
    (broken / "iteration-00000001.npz").write_bytes(b"no zip")
    for folder, words in (
        (tmp_path / "none", "no such folder"),
        (wide, r"expected float32 of \[70, 1, 4\]"),
        (broken, r"damaged recordings.*\n  \S*/broken/iteration-00000001.npz"),
    ):
        with pytest.raises(ConfigError, match=rf"(?s)^algorithm\.prior: \S*.*{words}"):
            train(file, f"algorithm.prior={folder}")
    with pytest.raises(ConfigError, match=r"^algorithm\.prior: minari:none: not a readable"):
        train(file, "algorithm.prior=minari:none")
