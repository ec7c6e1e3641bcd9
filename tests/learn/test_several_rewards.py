"""Several rewards, from the environment to `learn`: in one process, and over the network."""

# covers F2, F9

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster
from support.rollouts import make_rollout
from support.several_rewards.slots import REWARDS, PayingSlots

import relaax_like
from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.algorithm.model import Model, get_reward_columns
from relaax_like.client import Interactor, RlxClient, find_exit_status
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.plan import OnPolicy
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.trajectory_files import TRAJECTORY_FOLDER
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.wire.errors import ConfigError, ProtocolError

FOLDER = ROOT / "tests" / "support" / "several_rewards"
# Of an episode of action 1 alone; of action 0 alone it would be 35.
SLOW = 10 * REWARDS[1].sum()


def write_experiment(folder: Path, placement: str) -> Path:
    rollouts = "null" if placement == "agent" else "4"
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"learner: {{placement: {placement}, target_episodes: 20}}\n"
        f"algorithm: {{path: {FOLDER}, max_global_step: 4000, rollouts: {rollouts}}}\n"
        f"environment: {{path: {FOLDER}, slots: 4}}\n"
    )
    return file


@pytest.mark.parametrize("placement", ["agent", "server"])
def test_their_weighted_sum_is_learned_in_one_process(placement: str, tmp_path: Path) -> None:
    result = relaax_like.train(write_experiment(tmp_path, placement))
    assert result.mean_return == pytest.approx(SLOW, rel=0.1)


def test_it_is_learned_from_files(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "server")
    relaax_like.train(file, ["learner.collect_traj=true", "algorithm.max_global_step=600"])
    recorded = tmp_path / "run" / TRAJECTORY_FOLDER
    copies = [f"run_dir={tmp_path / 'copy'}", f"learner.offline={recorded}"]
    result = relaax_like.train(file, [*copies, "algorithm.max_global_step=2000"])
    assert result.global_t >= 2000


def test_it_is_learned_over_the_network(tmp_path: Path) -> None:
    sets = ("learner.placement=server", "learner.target_episodes=20")
    with Cluster(tmp_path, FOLDER, *sets, "algorithm.max_global_step=4000") as cluster:
        ps, rlx = cluster.start_both_servers()
        slots = PayingSlots()
        spaces = (slots.observation_space, slots.action_space)
        address = f"localhost:{cluster.rlx_port}"
        wanted = r"rewards: 1 per slot, but the model has 3 \(speed \[1\], costs \[2\]\)"
        with RlxClient(address, *spaces, retry=None) as misfit:
            misfit.act([1.0])
            with pytest.raises(ProtocolError, match=wanted) as refused:
                misfit.reward_and_act(1.0, [1.0])
            assert find_exit_status(refused.value) == 2  # so that it is not restarted
        with RlxClient(address, *spaces, slots=4) as client:
            Interactor(slots, client).run()
        assert ps.wait() == 0
        found = ps.wait_for(r"mean return ([\d.]+) \(last 20\).*; \d+ episodes")
        assert float(found[1]) == pytest.approx(SLOW, rel=0.1)
        rlx.stop()
        assert TRACE not in ps.output + rlx.output
        cluster.assert_nothing_left()


def load(name: str) -> Any:
    return load_algorithm_module(FOLDER, name)


def make_compiled(**settings: Any) -> tuple[CompiledUpdates, OnPolicy]:
    config = load("config").Config(max_global_step=1, **settings)
    model = load("model").make_model(config, 1)
    algorithm = load("algorithm").make_algorithm(config, model, 1)
    return CompiledUpdates(algorithm, config.optimizers), config.plan


def test_learn_reads_them_by_name() -> None:
    compiled, plan = make_compiled()
    random = np.random.default_rng(0)
    rollout = dataclasses.replace(
        make_rollout(4, 0, 8),
        inputs={"observation": np.ones((8, 4, 1), np.float32)},
        next_inputs={"observation": np.ones((8, 4, 1), np.float32)},
        rewards=random.standard_normal((8, 4, 3)).astype(np.float32),
        actions={"action": random.integers(0, 2, (8, 4))},
        states={},
    )
    policy = LearningPolicy(compiled, plan, 0)
    data = TrainingData(
        rollout=rollout,
        tickets=(),
        env_steps=32,
        mean_version=0.0,
        keys=np.zeros((4, 2), np.int64),
    )
    metrics = policy.forward(policy.data_preprocess(data))
    for column, name in enumerate(("speed", "first cost", "second cost")):
        assert metrics[name] == pytest.approx(rollout.rewards[..., column].mean(), abs=1e-6)


@pytest.mark.parametrize("shape", [None, [], [0], [2, 2]])
def test_rewards_of_another_shape_are_refused_with_their_line(shape: list[int] | None) -> None:
    class Shaped(Model):
        def get_input_specs(self):  # type: ignore[no-untyped-def]
            return []

        def get_action_specs(self):  # type: ignore[no-untyped-def]
            return []

        def get_reward_specs(self):  # type: ignore[no-untyped-def]
            costs = ("costs", {"shape": shape})
            return [] if shape is None else [("speed", {"shape": [1]}), costs]

        def policy(self, inputs, memory):  # type: ignore[no-untyped-def]
            return {}, memory

    what = "no rewards, expected at least one"
    if shape is not None:
        what = f"reward 'costs' has shape {re.escape(str(shape))}"
    wanted = rf"test_several_rewards\.py:\d+: {what}"
    with pytest.raises(ConfigError, match=wanted):
        get_reward_columns(Shaped())


def test_scaling_of_several_rewards_is_refused_with_the_line() -> None:
    compiled, plan = make_compiled(reward_discount=0.9)
    rewards = r"the rewards are speed \[1\], costs \[2\]"
    wanted = rf"model\.py:\d+: {rewards}, but plan\.reward_discount scales one"
    with pytest.raises(ConfigError, match=wanted):
        LearningPolicy(compiled, plan, 0)


def test_complete_trajectories_of_several_rewards_are_refused_with_the_line() -> None:
    compiled, plan = make_compiled()
    wanted = r"model\.py:\d+: the rewards are speed \[1\], costs \[2\], but a Buffer has one"
    with pytest.raises(ConfigError, match=wanted):
        PPOOptim(compiled, plan, 0, max_traj_len=10)
