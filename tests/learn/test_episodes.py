"""The plan `Episodes`: each update is made of whole episodes, and nothing else."""

# covers J4, P26, R30

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support.learning import (
    STEPS,
    PlainPolicy,
    make_experience,
    make_plain_server,
    make_plain_service,
    make_rewarded,
)
from support.reinforce import write_reinforce
from support.threads import Caller, wait_until

import relaax_like
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.core.records import StreamProgress
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.episodes import EpisodeCollector, join_columns
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Rollout
from relaax_like.experience.trajectory_files import (
    TRAJECTORY_FOLDER,
    find_trajectories,
    read_trajectories,
)
from relaax_like.learn.experience_service import ExperienceService
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.parameter_server.parameter_server import ParameterServer

EPISODES = 3


def make_episode(length: int, end: float, seed: int) -> Rollout:
    random = np.random.default_rng(seed)
    observations = random.standard_normal((length + 1, 1, 4)).astype(np.float32)
    alive = np.full((length, 1), ALIVE, np.float32)
    alive[-1] = end
    return Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=alive,
        rewards=random.standard_normal((length, 1, 1)).astype(np.float32),
        actions={"action": random.integers(2, size=(length, 1))},
        log_prob=np.full((length, 1), np.log(0.5), np.float32),
        states={},
        versions=np.zeros(length, np.int64),
        starts=np.array([[seed, 0, 0]]),
    )


def learn(folder: Path, rollout: Rollout) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Makes one update of a new policy; returns its values, and what the update returned."""
    config = load_algorithm_module(folder, "config").Config()
    model = load_algorithm_module(folder, "model").make_model(config, 3)
    algorithm = load_algorithm_module(folder, "algorithm").Reinforce(model, config, 0)
    compiled = CompiledUpdates(algorithm, config.optimizers)
    policy = LearningPolicy(compiled, config.plan, 0)
    keys = np.zeros((rollout.slots, 2), np.int64)
    data = TrainingData(
        rollout=rollout, tickets=(), env_steps=rollout.env_steps, mean_version=0.0, keys=keys
    )
    results = policy.forward(policy.data_preprocess(data))
    assert policy.global_t == rollout.env_steps
    return policy.state_dict(), results


def test_an_update_is_that_of_the_episodes_alone_however_they_are_padded(tmp_path: Path) -> None:
    folder = write_reinforce(tmp_path, f"Episodes(episodes={EPISODES}, discount=self.gamma)")
    ends = ((5, TERMINATED), (8, TRUNCATED), (2, TERMINATED))
    episodes = [make_episode(*one, seed) for seed, one in enumerate(ends)]
    state, results = learn(folder, join_columns(episodes, 8))
    assert results["updates"] == 1
    # The cost, from the episodes one by one: log-probabilities times normalised returns.
    config = load_algorithm_module(folder, "config").Config()
    model = load_algorithm_module(folder, "model").make_model(config, 3)
    returns, log_probs = [], []
    for episode in episodes:
        rewards, total = episode.rewards[:, 0, 0], 0.0
        backwards = [total := reward + config.gamma * total for reward in rewards[::-1]]
        returns += backwards[::-1]
        inputs = {"observation": tf.constant(episode.inputs["observation"])}
        policies, _ = model.policy(inputs, {})
        log_probs.append(policies["action"].log_prob(tf.constant(episode.actions["action"])))
    spread = (np.array(returns) - np.mean(returns)) / np.std(returns)
    cost = -np.mean(np.concatenate(log_probs)[:, 0] * spread)
    assert results["default"] == pytest.approx(cost, abs=1e-6)
    for length in (9, 32):
        padded, same = learn(folder, join_columns(episodes, length))
        assert same["default"] == pytest.approx(results["default"], abs=1e-6)
        for name, value in state.items():
            np.testing.assert_allclose(padded[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_reinforce_learns_from_whole_episodes_and_each_file_has_them(tmp_path: Path) -> None:
    """Returns at the start are about 20."""
    folder = write_reinforce(tmp_path, "Episodes(episodes=16, discount=self.gamma)")
    sets = [
        f"run_dir={tmp_path / 'run'}",
        "algorithm.max_global_step=50000",
        "learner.collect_traj=true",
        "seed=1",
    ]
    result = relaax_like.train(folder / "minimal.yaml", sets)
    assert result.global_t >= 50_000
    assert result.mean_return > 60
    files = find_trajectories(tmp_path / "run" / TRAJECTORY_FOLDER)
    assert len(files) > 20
    seen = set()
    for file in files:
        rollout = read_trajectories(file)
        assert rollout.slots == 16
        assert rollout.valid is not None
        assert rollout.starts is not None
        lengths = rollout.valid.sum(0)
        ends = rollout.next_alive[lengths - 1, np.arange(16)]
        assert set(ends.tolist()) <= {TERMINATED, TRUNCATED}
        before = np.arange(len(rollout.next_alive))[:, None] < lengths - 1
        assert (rollout.next_alive[before] == ALIVE).all()
        assert (rollout.starts[:, 2] == 0).all()
        seen |= set(map(tuple, rollout.starts[:, :2].tolist()))
        assert rollout.env_steps == lengths.sum()
    assert len(seen) == 16 * len(files)  # none came twice
    assert len({agent for agent, _ in seen}) == 8


def make_service(
    collectors: list[EpisodeCollector], server: ParameterServer | None = None
) -> tuple[ExperienceService, PlainPolicy]:
    """Makes the service of a learner that waits for two episodes."""
    policy = PlainPolicy()
    server = server or make_plain_server()

    def make_collector() -> EpisodeCollector:
        collectors.append(EpisodeCollector(STEPS, 2, capacity=8, max_steps=1000))
        return collectors[-1]

    service = make_plain_service(
        server, policy, columns=2, waits=False, make_collector=make_collector
    )
    return service, policy


def make_part(agent: int, step: int, ends: bool) -> Rollout:
    """The part of agent's first episode that begins at `step`."""
    rollout = make_rewarded(1, agent + step / 100)
    alive = np.full((STEPS, 1), ALIVE, np.float32)
    alive[-1] = TERMINATED if ends else ALIVE
    return dataclasses.replace(rollout, next_alive=alive, starts=np.array([[agent, 0, step]]))


def test_agents_play_on_until_there_are_whole_episodes_and_then_wait_for_their_update() -> None:
    collectors: list[EpisodeCollector] = []
    service, policy = make_service(collectors)
    policy.gate.clear()
    service.start()
    try:

        def send(sequence: int, rollout: Rollout, client: str) -> None:
            experience = make_experience(sequence, rollout, client_id=client)
            Caller(lambda: service.add(experience)).get()

        def wait(client: str, released: int, seconds: float = 60.0) -> int:
            seen = StreamProgress()
            while seen.released < released:
                newest = service.wait(client, 1, seen, 0, seconds)
                if newest == seen:
                    break
                seen = newest
            return seen.released

        # Nobody waits for an iteration that is not whole.
        send(1, make_part(1, 0, ends=False), "a")
        assert wait("a", 1) == 1
        send(1, make_part(2, 0, ends=True), "b")
        assert wait("b", 1) == 1
        assert policy.rewards == []
        # Who sends while there is a whole one waits for its values.
        send(2, make_part(1, STEPS, ends=True), "a")
        wait_until(policy.begun.is_set, "the update has begun")
        send(3, make_part(1, 0, ends=False), "a")
        assert wait("a", 2, seconds=0.3) == 1
        policy.gate.set()
        assert wait("a", 3) == 3
        (rewards,) = policy.rewards
        np.testing.assert_allclose(rewards[0], [2.0, 1.0])
        np.testing.assert_allclose(rewards[STEPS:, 1], 1.0 + STEPS / 100)
        assert collectors[0].dropped_steps == 0
    finally:
        policy.gate.set()
        service.stop()


def test_no_episode_is_learned_from_again_after_a_restart() -> None:
    server = make_plain_server()
    parts = [make_part(1, 0, ends=False), make_part(2, 0, ends=True), make_part(3, 0, ends=True)]
    experiences = [make_experience(number, part) for number, part in enumerate(parts, 1)]
    collectors: list[EpisodeCollector] = []
    first, policy = make_service(collectors, server)
    first.start()
    for experience in experiences:
        first.add(experience)
    wait_until(lambda: server.pull().version == 1, "the update")
    first.stop()
    assert len(policy.rewards) == 1

    second, policy = make_service(collectors, server)
    second.start()
    try:
        for experience in experiences:  # as of a client that has not heard of it
            second.add(experience)
        assert collectors[1].num_added == 0
        # The rest of an episode whose beginning is lost.
        second.add(make_experience(4, make_part(1, STEPS, ends=True)))
        assert (collectors[1].num_added, collectors[1].dropped_steps) == (0, STEPS)
    finally:
        second.stop()
    assert server.global_t == 4 * STEPS


def test_who_leaves_or_starts_anew_takes_its_unfinished_episode_along() -> None:
    collectors: list[EpisodeCollector] = []
    service, _ = make_service(collectors)
    service.start()
    try:

        def count_unfinished() -> int:
            return len(collectors[0].get_state()["unfinished"])

        service.add(make_experience(1, make_part(1, 0, ends=False), agent="one"))
        service.add(make_experience(2, make_part(2, 0, ends=False), agent="other"))
        assert count_unfinished() == 2
        service.add(make_experience(3, agent="one", is_leaving=True))
        assert count_unfinished() == 1
        service.add(make_experience(1, make_part(3, 0, ends=False), incarnation=2))
        assert count_unfinished() == 1
        assert collectors[0].dropped_steps == 2 * STEPS
    finally:
        service.stop()
