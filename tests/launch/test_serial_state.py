"""A stopped and resumed run in one process is bit-identical to an uninterrupted one.

What is compared is all that the run leaves behind: values, optimizers, statistics, episodes, and
all that a run resumes from: observations, memory, random generators, experience. XLA
compiles the updates with targets, and of a learner beside its agents; the others need it not.
"""

import logging
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.cluster import TRACE, Cluster, find_command
from support.compare import compare
from support.reinforce import write_reinforce
from support.serial import (
    PPO,
    STOP_AT,
    STOPPED,
    TARGETS,
    make_uncompiled_ppo,
    read_run,
    train,
    write_experiment,
)
from support.uncompiled import copy_uncompiled

from relaax_like.launch.serial_state import SerialState, read_document
from relaax_like.runs.folders.run_folder import BEGUN_NAME
from relaax_like.wire.errors import InvalidInputError

LINEAR = ("algorithm.lr_schedule=linear", "algorithm.clip_schedule=linear")


def write_two(folder: Path, **learner: str) -> list[Path]:
    """Writes two experiments, of which one will be stopped."""
    return [write_experiment(folder / name, **learner) for name in ("a", "b")]


def make_sarsa(folder: Path) -> dict[str, str]:
    """Returns sarsa, whose update is made soon."""
    algorithm = f"path: '{copy_uncompiled('sarsa', folder)}', learning_rate: 1e-3"
    return {"placement": "server", "algorithm": f"{{{algorithm}, updates_at_once: 8}}"}


def assert_same(one: Path, other: Path) -> None:
    first, second = read_run(one / "run"), read_run(other / "run")
    assert compare(first, second, "run") == ""
    assert first["global_t"] >= 768


def test_stopped_twice_with_linear_schedules(tmp_path, caplog):
    """Vectorised CartPole: one random generator for all."""
    caplog.set_level(logging.INFO)
    sets = (*LINEAR, "algorithm.max_global_step=768")
    straight, stopped = write_two(tmp_path, **make_uncompiled_ppo(tmp_path))
    assert train(straight, *sets) == 0
    # In the middle of the first rollout, then of the fourth iteration.
    assert train(stopped, *sets, stop_at=9) == STOPPED
    assert train(stopped, *sets, stop_at=111) == STOPPED
    assert read_run(tmp_path / "b" / "run")["global_t"] == 3 * 128
    assert train(stopped, *sets) == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    assert caplog.text.count("continuing in the middle of the episodes") == 2


def test_targets_phases_schedules_and_draws_go_on(tmp_path):
    """Stopped behind one iteration, which is eight updates."""
    budget = "algorithm.max_global_step=768"
    straight, stopped = write_two(tmp_path, **TARGETS)
    assert train(straight, budget) == 0
    assert train(stopped, budget, stop_at=45) == STOPPED
    first = read_run(tmp_path / "b" / "run")
    assert first["steps"] == {"actor": 4, "critic": 8}  # so the copy is two steps old
    assert train(stopped, budget) == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    assert read_run(tmp_path / "b" / "run")["steps"] == {"actor": 24, "critic": 48}


def test_a_replay_table_goes_on(tmp_path):
    """With steps that were evicted, priorities, and n-step transitions that are not complete."""
    path = copy_uncompiled("dqn", tmp_path)
    settings = (
        f"{{path: '{path}', state_size: 4, num_actions: 2, network: {{layers: [8]}}, "
        "batch_size: 8, capacity: 300, warm_up_steps: 32, updates_per_step: 0.25, n_step: 3, "
        "updates_at_once: 4, priority_exponent: 0.6, target_every: 10, "
        "epsilon: {kind: linear, start: 1.0, end: 0.1, steps: 500}}"
    )
    budget = "algorithm.max_global_step=768"
    straight, stopped = write_two(tmp_path, placement="server", algorithm=settings)
    assert train(straight, budget) == 0
    assert train(stopped, budget, stop_at=5) == STOPPED  # during warm-up
    assert train(stopped, budget, stop_at=130) == STOPPED
    agents = read_run(tmp_path / "b" / "run")["serial"]["state"]["agents"]
    assert agents["processors"]["RL"]["learner"]["table"]["counts"]["evicted"] > 0
    assert train(stopped, budget) == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    assert read_run(tmp_path / "b" / "run")["steps"] == {"default": (768 - 32) // 4}


@pytest.mark.slow
def test_delayed_updates_of_the_actor_go_on(tmp_path):
    """td3 stopped between two updates of its actor, with the noise of its actions."""
    path = copy_uncompiled("td3", tmp_path)
    settings = (
        f"{{path: '{path}', network: {{layers: [8]}}, batch_size: 8, capacity: 300, "
        "warm_up_steps: 32, updates_per_step: 0.25, updates_at_once: 1, policy_delay: 5}"
    )
    budget = ("algorithm.max_global_step=832", "environment.env=Pendulum-v1")
    straight, stopped = write_two(tmp_path, placement="server", algorithm=settings)
    assert train(straight, *budget) == 0
    assert train(stopped, *budget, stop_at=120) == STOPPED
    steps = read_run(tmp_path / "b" / "run")["steps"]
    assert steps["critic"] % 5 != 0
    assert steps["actor"] == steps["critic"] // 5 > 0
    assert train(stopped, *budget) == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    assert read_run(tmp_path / "b" / "run")["steps"] == {"actor": 40, "critic": 200}


def test_rollouts_that_overlap_go_on(tmp_path):
    """sarsa, which learns from a step when the next action is known."""
    slots, budget = "environment.slots=3", "algorithm.max_global_step=768"
    straight, stopped = write_two(tmp_path, **make_sarsa(tmp_path))
    assert train(straight, slots, budget) == 0
    assert train(stopped, slots, budget, stop_at=1) == STOPPED
    assert train(stopped, slots, budget, stop_at=50) == STOPPED
    # A budget that is raised, too: its end is in the middle of episodes.
    assert train(stopped, slots, "algorithm.max_global_step=512") == 0
    assert train(stopped, slots, budget) == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    assert read_run(tmp_path / "a" / "run")["steps"] == {"default": 768}


def test_memories_leftover_rollouts_a_history_and_running_statistics_go_on(tmp_path):
    """Three single slots fill eight columns, so that rollouts wait from iteration to iteration."""
    sets = (
        *("environment.slots=3", "environment.random_steps=2", "environment.max_episode_steps=30"),
        *("algorithm.observation_history=2", "algorithm.prenorm=true"),
        *("algorithm.update_norm=true", "algorithm.normalize_rewards=true"),
        *("algorithm.network={layers: [{lstm: 8}, {gru: 4}]}", "algorithm.batch_size=4"),
    )
    straight, stopped = write_two(tmp_path, **make_uncompiled_ppo(tmp_path))
    assert train(straight, *sets, "algorithm.max_global_step=768") == 0
    assert train(stopped, *sets, "algorithm.max_global_step=768", stop_at=55) == STOPPED
    serial = read_run(tmp_path / "b" / "run")["serial"]["state"]
    collector = serial["agents"]["processors"]["RL"]["learner"]["collector"]
    assert collector["num_added"] - collector["num_taken"] > 0
    assert train(stopped, *sets, "algorithm.max_global_step=768") == 0
    assert_same(tmp_path / "a", tmp_path / "b")
    memory = read_run(tmp_path / "b" / "run")["serial"]["state"]["agents"]["agents"]["agent"]
    for array in memory["states"]["RL"].values():  # of actor and critic
        lstm, gru = array[:, :16], array[:, 16:]  # the former has a cell beside its output
        assert gru.shape[-1] == 4
        assert np.any(lstm)
        assert np.any(gru)


def test_unfinished_episodes_go_on(tmp_path):
    plan = "Episodes(episodes=3, rollout_steps=8, max_steps=24, discount=self.gamma)"
    sets = ("environment.slots=3", "algorithm.max_global_step=768")
    algorithm = f"{{path: '{write_reinforce(tmp_path, plan)}'}}"
    learner = {"placement": "server", "algorithm": algorithm}
    straight, stopped = write_two(tmp_path, **learner)
    assert train(straight, *sets) == 0
    assert train(stopped, *sets, stop_at=60) == STOPPED
    collector = read_run(tmp_path / "b" / "run")["serial"]["state"]
    collector = collector["agents"]["processors"]["RL"]["learner"]["collector"]
    assert sum(len(known["rollouts"]) for known in collector["unfinished"]) > 1
    assert train(stopped, *sets) == 0
    assert_same(tmp_path / "a", tmp_path / "b")


def test_a_learner_beside_its_agents_goes_on_too(tmp_path):
    """`placement: agent`: the gradient of a shape that has come 100 times is compiled again."""
    sets = (
        *("algorithm.rollout_steps=4", "algorithm.learning_rate_end=0"),
        *("algorithm.normalize_observations=true", "algorithm.max_global_step=2000"),
    )
    a2c = {
        "placement": "agent",
        "algorithm": "{name: a2c, state_size: 4, num_actions: 2, network: {layers: [8]}}",
    }
    straight, stopped = write_two(tmp_path, **a2c)
    assert train(straight, *sets) == 0
    assert train(stopped, *sets, stop_at=401) == STOPPED
    assert train(stopped, *sets) == 0
    assert_same(tmp_path / "a", tmp_path / "b")


def test_the_commands_stop_refuse_and_resume(tmp_path):
    budget = ("--max-global-step", "768")
    straight, stopped = write_two(tmp_path, **make_sarsa(tmp_path))
    with Cluster(tmp_path) as cluster:
        begin = [find_command("relaax"), "train", stopped, *budget]
        first = cluster.start("first", begin, **{STOP_AT: "77"})
        assert train(straight, "algorithm.max_global_step=768") == 0
        assert first.wait() == STOPPED
        first.wait_for(r"continue +relaax resume b/run")
        refused = cluster.start("refused", begin)
        assert refused.wait() == 2
        resumed = cluster.start("resumed", [find_command("relaax"), "resume", "b/run"])
        assert resumed.wait() == 0, resumed
        resumed.wait_for("continuing in the middle of the episodes of b/run/serial.npz")
        for program in cluster.started:
            assert TRACE not in program.output
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run that was stopped in its first rollout, which takes no time; not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    assert train(write_experiment(folder, **PPO), stop_at=9) == STOPPED
    return folder


def go_on(begun: Path, folder: Path, *sets: str) -> int:
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    return train(write_experiment(folder, **PPO), *sets, stop_at=3)


UNUSABLE = {
    "environments": (("environment.slots=2",), r"environment is \{.*but was \{"),
    "arguments": (("environment.args={sutton_barto_reward: true}",), "environment is"),
    "rollouts": (("algorithm.rollout_steps=8",), "rollout_steps is 8, but was 16"),
    "weights": (
        ("seed=1",),
        r"weights \w{8}, but the run is at step 0, version 0, checksum \w{8}",
    ),
}


@pytest.mark.parametrize(("sets", "want"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_state_that_does_not_fit_is_named_and_the_run_goes_on_without(
    sets, want, begun, tmp_path, caplog
):
    if sets == ("seed=1",):
        sets = (*sets, f"relaax-parameter-server.checkpoint_dir={tmp_path / 'other'}")
        (begun / "run" / BEGUN_NAME).unlink()  # a run that had begun would need its checkpoints
    assert go_on(begun, tmp_path, *sets) == STOPPED
    (record,) = [r for r in caplog.records if "serial.npz" in r.message]
    assert re.search(want, record.message)
    assert "episodes restart" in record.message
    # And what it leaves behind now can be used again.
    assert read_document(tmp_path / "run" / "serial.npz")["state"]["interactor"]["steps"] <= 12


@pytest.mark.parametrize("damage", ["cut off", "changed", "no zip", "an older format"])
def test_a_damaged_state_is_named_and_the_run_goes_on_without(damage, begun, tmp_path, caplog):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run" / "serial.npz"
    content = bytearray(path.read_bytes())
    if damage == "cut off":
        content = content[: len(content) // 2]
    elif damage == "changed":
        content[len(content) // 3] ^= 0x10
    elif damage == "no zip":
        content = bytearray(b"something else")
    else:
        older = re.sub(rb"serial state \d", b"serial state 1", bytes(content))
        assert older != content
        content = bytearray(older)
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="damaged"):
        read_document(path)
    assert train(write_experiment(tmp_path, **PPO), stop_at=3) == STOPPED
    assert re.search(r"serial.npz: damaged, .* \(.*episodes restart", caplog.text)


def test_a_state_that_the_agents_cannot_take_names_its_file(tmp_path):
    def refuse(state):
        raise InvalidInputError("history: 2 steps, expected 3", "history")

    state = SerialState.__new__(SerialState)
    vars(state).update(
        _path=tmp_path / "serial.npz",
        _server=SimpleNamespace(version=1),
        _slots=SimpleNamespace(set_state=lambda state: None),
        _agents=SimpleNamespace(set_state=refuse),
        _read=lambda: {"environments": {}, "agents": {}, "interactor": {}},
    )
    with pytest.raises(
        InvalidInputError, match=r"serial\.npz: cannot be restored: history: 2 .* Remove the file"
    ) as caught:
        state.restore()
    assert caught.value.field == "history"


def test_agents_that_keep_a_state_of_their_own_begin_anew_and_a_line_says_so(tmp_path):
    with Cluster(tmp_path) as cluster:
        argv = [find_command("relaax"), "train", cluster.config, "--log", "plain"]
        first = cluster.start("train", [*argv, "--set", "relaax-rlx-server.score_lines=true"])
        first.wait_for("score")
        assert first.stop(signal.SIGINT) == STOPPED
        first.wait_for("agents of this kind cannot be saved: .* episodes restart")
        assert not (tmp_path / "run" / "serial.npz").exists()
        resume = [find_command("relaax"), "resume", "run", "--max-global-step", "100000"]
        second = cluster.start("resume", resume)
        second.wait_for(r"serial.npz: no such file; the run was killed.* episodes restart")
        second.wait_for("score")
        assert second.stop(signal.SIGINT) == STOPPED
        assert TRACE not in first.output + second.output
