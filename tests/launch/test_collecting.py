"""`learner.collect_traj`: what is learned from lies in files; an Interactor hands it over."""

# covers J2, J15

from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster, find_command
from support.learning import make_server
from support.serial import make_uncompiled_ppo, train, write_experiment
from support.uncompiled import copy_uncompiled

from relaax_like.client.interactor import Interactor
from relaax_like.config.loader import load_experiment
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import find_trajectories, read_trajectories
from relaax_like.launch.agents import make_serial_host
from relaax_like.launch.local import LocalAgents, open_slots
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest

COUNTING = ROOT / "tests" / "support" / "counting"
LENGTHS = (3, 5)
STEPS = 4


def read_run(folder: Path) -> tuple[list[Rollout], State]:
    """Returns the files of a run in their order, and its newest snapshot."""
    state = read_latest(folder / "checkpoints")
    assert state is not None
    return [read_trajectories(file) for file in find_trajectories(folder / "trajectories")], state


def test_an_interactor_takes_an_agent_and_hands_its_experience_to_the_learner(
    tmp_path: Path,
) -> None:
    """Two slots that count; each iteration of 2 x 4 steps is in a file, as it happened."""
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        "learner: {collect_traj: true}\n"
        f"algorithm: {{path: '{copy_uncompiled('ppo', tmp_path)}', state_size: 4, num_actions: 2, "
        "network: {layers: [4]}, num_steps: 8, "
        f"rollout_steps: {STEPS}, batch_size: 8, epochs: 1}}\n"
        f"environment: {{path: '{COUNTING}', slots: 2}}\n"
    )
    experiment = load_experiment(file)
    with make_server(experiment) as server, open_slots(experiment, "train") as slots:
        host = make_serial_host(experiment, lambda name: None, server, "local")  # type: ignore[arg-type,return-value]
        agents = LocalAgents(slots, host)
        summary = Interactor(slots, agents, max_steps=48).run()
        agents.close()
        assert server.global_t == 48
    assert (summary.steps, summary.episodes) == (48, 24 // 3 + 24 // 5)
    files = find_trajectories(tmp_path / "run" / "trajectories")
    assert [file.name[:-4] for file in files] == [f"iteration-{n:08d}" for n in range(1, 7)]
    rollouts = [read_trajectories(file) for file in files]
    # An iteration is of the newest values: the version that acted is that of the one before it.
    for number, rollout in enumerate(rollouts):
        np.testing.assert_array_equal(rollout.versions, [number] * STEPS)

    def join(field: str, name: str | None = None) -> np.ndarray:
        arrays = [getattr(rollout, field) for rollout in rollouts]
        return np.concatenate([a if name is None else a[name] for a in arrays])

    before, after = join("inputs", "observation"), join("next_inputs", "observation")
    actions, alive, rewards = join("actions", "action"), join("next_alive"), join("rewards")
    assert set(actions.ravel()) == {0, 1}
    for slot, length in enumerate(LENGTHS):
        t = np.arange(24)
        np.testing.assert_array_equal(before[:, slot, 0], [slot] * 24)
        np.testing.assert_array_equal(before[:, slot, 1], t // length)
        np.testing.assert_array_equal(before[:, slot, 2], t % length)
        np.testing.assert_array_equal(rewards[:, slot, 0], t % length + 1)
        ends = t % length == length - 1
        end = 0.0 if slot == 0 else -1.0
        np.testing.assert_array_equal(alive[:, slot], np.where(ends, end, 1.0))
        # What came after each step, with the action that the environment received; of an episode
        # that was cut off its last observation. Behind a terminal state nothing counts.
        known = ~ends if slot == 0 else ends | ~ends
        np.testing.assert_array_equal(after[known, slot, 2], (t % length + 1)[known])
        np.testing.assert_array_equal(after[known, slot, 3], actions[known, slot])
    assert (join("log_prob") < 0).all()


def test_a_resumed_run_goes_on_with_its_files(tmp_path: Path) -> None:
    sets = ("learner.collect_traj=true", "environment.slots=3")
    ppo = make_uncompiled_ppo(tmp_path)
    straight, stopped = (write_experiment(tmp_path / name, **ppo) for name in ("a", "b"))
    assert train(straight, *sets, "algorithm.max_global_step=512") == 0
    assert train(stopped, *sets, "algorithm.max_global_step=256") == 0
    assert train(stopped, *sets, "algorithm.max_global_step=512") == 0
    (one, state), (other, _) = (read_run(tmp_path / name / "run") for name in ("a", "b"))
    assert len(one) == len(other) == state.version == 4
    assert sum(rollout.env_steps for rollout in one) == 512
    assert state.global_t == 528  # with those of one column that the next iteration would need
    for first, second in zip(one, other, strict=True):
        for field in ("inputs", "next_inputs", "actions"):
            for name, array in getattr(first, field).items():
                np.testing.assert_array_equal(array, getattr(second, field)[name])
        np.testing.assert_array_equal(first.log_prob, second.log_prob)


def test_the_learner_of_a_parameter_server_keeps_what_came_over_the_network(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        sets = (
            *("run_dir=run", "learner.collect_traj=true", "algorithm.max_global_step=1024"),
            f"relaax-parameter-server.bind=localhost:{cluster.ps_port}",
            f"relaax-rlx-server.bind=localhost:{cluster.rlx_port}",
            *("algorithm.name=null", f"algorithm.path={copy_uncompiled('ppo', tmp_path)}"),
            *("algorithm.network={layers: [4]}", "algorithm.epochs=1", "algorithm.num_steps=256"),
        )
        flags = [part for text in sets for part in ("--set", text)]
        file = ROOT / "algorithms" / "ppo" / "ppo.yaml"
        program = cluster.start("run", [find_command("relaax"), "run", str(file), *flags])
        assert program.wait(100) == 0, program
    assert TRACE not in program.output
    rollouts, state = read_run(tmp_path / "run")
    assert len(rollouts) == state.version == 4
    assert state.global_t >= 1024  # with those that were under way at the end
    # Two clients of four slots make the eight columns of an iteration.
    assert all(rollout.next_alive.shape == (32, 8) for rollout in rollouts)
    assert all(np.isfinite(rollout.inputs["observation"]).all() for rollout in rollouts)


def test_learners_beside_their_agents_keep_what_they_learn_from(tmp_path: Path) -> None:
    """Many small rollouts make a file, in each sitting; behavioural cloning learns from them."""
    a2c, bc = copy_uncompiled("a2c", tmp_path), copy_uncompiled("bc", tmp_path)
    file = write_experiment(
        tmp_path,
        placement="agent",
        algorithm=f"{{path: '{a2c}', state_size: 4, num_actions: 2, network: {{layers: [8]}}, "
        f"rollout_steps: {STEPS}}}",
    )
    for budget in (5120, 6144):
        assert train(file, "learner.collect_traj=true", f"algorithm.max_global_step={budget}") == 0
    rollouts, state = read_run(tmp_path / "run")
    assert all(rollout.next_alive.shape[0] == STEPS for rollout in rollouts)
    steps = [rollout.env_steps for rollout in rollouts]
    assert max(steps) == 4096
    assert len(steps) == 3
    # But for the unfinished rollout of each end, all is there, and once.
    assert 0 <= state.global_t - sum(steps) < 2 * STEPS * 4
    starts = [tuple(row) for rollout in rollouts for row in rollout.starts.tolist()]  # type: ignore[union-attr]
    assert len(set(starts)) == len(starts) == sum(steps) // STEPS

    sets = ("algorithm.name=null", f"algorithm.path={bc}", "learner.eval_freq=0")
    recorded = f"learner.offline={tmp_path / 'run' / 'trajectories'}"
    config = ROOT / "algorithms" / "bc" / "bc.yaml"
    clone = f"run_dir={tmp_path / 'clone'}"
    assert train(config, clone, recorded, *sets, f"algorithm.max_global_step={sum(steps)}") == 0
    cloned = read_latest(tmp_path / "clone" / "checkpoints")
    assert cloned is not None
    assert (cloned.global_t, cloned.version) == (sum(steps), 3)


def test_a_run_ends_as_it_should_when_the_folder_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_experiment(tmp_path, **make_uncompiled_ppo(tmp_path))
    sets = ("learner.collect_traj=true", "learner.collect_traj_max_mb=0.02")
    assert train(file, *sets, "algorithm.max_global_step=768") == 0
    assert caplog.text.count("learner.collect_traj_max_mb") == 1
    files = find_trajectories(tmp_path / "run" / "trajectories")
    assert 1 <= len(files) < 6
    assert sum(one.stat().st_size for one in files) <= 20_000
