"""The loop of `relaax train` with `learner.workers`: whole trajectories, sampled by processes."""

import os
import sys
import threading
from collections import deque

import numpy as np

from relaax_like.config.models import Experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.config.run_folder import CONFIG_NAME
from relaax_like.core.records import Episode
from relaax_like.core.roles import Publisher
from relaax_like.experience.buffer import Buffer
from relaax_like.launch.learners import make_trajectory_learner, require_plan
from relaax_like.sampling.algo_sampler import SampleTiming
from relaax_like.sampling.sampler_pool import SamplerPool
from relaax_like.sampling.trajectory_data import TrajectoryData
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError

# A worker computes a row or a few at a time: threads beside it would only be in the others' way.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def train_on_trajectories(
    experiment: Experiment,
    publisher: Publisher,
    stop: threading.Event,
    lengths: deque[int],
) -> None:
    """Samples and learns by turns, until the training's end or `stop`.

    Args:
      experiment: whose config.yaml lies in the run's folder.
      publisher: the parameter server.
      stop: ends it; what has been sampled since the last update is only counted.
      lengths: to which the trajectories' are added.

    Raises:
      ConfigError: there is nothing to sample in.
      RelaaxError: the workers cannot be started, or cannot go on.
    """
    plan = require_plan(experiment)
    assert isinstance(plan, OnPolicy), "an experiment with workers has one"
    steps = plan.env_steps
    # First, as they come up while TensorFlow is being loaded.
    with make_pool(experiment) as pool:
        with tracing.span(tracing.START):
            learner = make_trajectory_learner(experiment, publisher)
        try:
            learned = learner.load()
            while not learned.finished:
                assert learned.values is not None
                pool.sync_policy(learned.values, learned.version)
                with tracing.span("sample"):
                    sampled = pool.sample(steps, experiment.learner.max_traj_len, stop)
                if sampled is None:
                    break
                buffer, timing = sampled
                episodes = find_episodes(buffer)
                learner.add_counts(timing.env_steps + timing.discarded_steps, episodes)
                lengths.extend(episode.length for episode in episodes)
                learned = learner.learn_from(TrajectoryData(buffer))
                learner.record(_describe(timing))
        finally:
            learner.add_counts(pool.finish())
            learner.close()


def make_pool(experiment: Experiment) -> SamplerPool:
    """Starts the workers of a run whose config.yaml lies in its folder.

    Raises:
      ConfigError: there is nothing to sample in.
      RelaaxError: one cannot be started.
    """
    plan = require_plan(experiment)
    environment = experiment.environment
    if environment is None:
        raise ConfigError(f"{experiment.file}: training needs a section environment; add one")
    assert isinstance(plan, OnPolicy), "an experiment with workers has one"
    config = experiment.run_dir / CONFIG_NAME
    return SamplerPool(
        [sys.executable, "-m", "relaax_like.launch.sampler_main", str(config)],
        experiment.learner.workers,
        slots=environment.slots,
        discount=plan.discount,
        gae_lambda=plan.gae_lambda,
        environment={**_ONE_THREAD, **os.environ},
    )


def find_episodes(buffer: Buffer) -> list[Episode]:
    """Returns a buffer's trajectories as episodes, in order."""
    rewards, borders = buffer.rows().rewards, buffer.traj_idx
    returns = np.add.reduceat(rewards.astype(np.float64), borders[:-1])
    lengths = np.diff(borders)
    return [Episode(float(r), int(n)) for r, n in zip(returns, lengths, strict=True)]


def _describe(timing: SampleTiming) -> dict[str, float]:
    """Returns the curves of a sample."""
    rate = timing.env_steps / max(timing.sample_sec, 1e-9)
    ideal = timing.env_steps / max(timing.ideal_sec, 1e-9)
    return {
        "Time/Sample Rate": rate,
        "Time/Ideal Sample Rate": ideal,
        "Time/Overhead Loss": ideal - rate,
        "Time/Discarded Trajectories": timing.discarded_trajectories,
        "Time/Discarded Timesteps": timing.discarded_steps,
    }
