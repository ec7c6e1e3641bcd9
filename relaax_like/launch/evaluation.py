"""Greedy evaluation: the best actions of the newest snapshot, in fresh episodes."""

from dataclasses import dataclass

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.bridge.service import NullMetrics
from relaax_like.client.interactor import Interactor, SlotEpisode
from relaax_like.config.models import Experiment
from relaax_like.launch.local import make_local_agents, open_slots
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import read_best, read_latest
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import SnapshotError


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
      returns: [n] float64, one per episode, in the order of their ends.
      lengths: [n] int64, environment steps.
      global_t: training steps of the evaluated weights.
      version: of the weights.
    """

    returns: np.ndarray
    lengths: np.ndarray
    global_t: int
    version: int


def evaluate_snapshot(experiment: Experiment, episodes: int, best: bool = False) -> Evaluation:
    """Plays with a snapshot of the experiment; a running training is not disturbed.

    Args:
      experiment: whose snapshots.
      episodes: to play.
      best: the kept one with the best mean return in training, instead of the newest.

    Raises:
      SnapshotError: there is no snapshot, or none that can be used.
    """
    directory = experiment.parameter_server.checkpoint_dir
    state = read_best(directory) if best else read_latest(directory)
    if state is None and best:
        raise SnapshotError(
            f"{directory}: no snapshot has a score; it takes a whole window of episodes "
            "(learner.target_episodes) to have one"
        )
    if state is None:
        raise SnapshotError(f"{directory}: no snapshot to evaluate; train first")
    store = Store(state.manifest, state.values, experiment.optimizers)
    store.import_state(state)
    ended: list[SlotEpisode] = []
    with ParameterServer(store, metrics=NullMetrics()) as server:
        _play(experiment, server, episodes, ended)
    return Evaluation(
        returns=np.array([episode.score for episode in ended[:episodes]]),
        lengths=np.array([episode.length for episode in ended[:episodes]]),
        global_t=state.global_t,
        version=state.version,
    )


def _play(
    experiment: Experiment, server: ParameterServer, episodes: int, ended: list[SlotEpisode]
) -> None:
    environment = experiment.environment
    with open_slots(experiment, "eval") as slots:
        assert environment is not None
        agents = make_local_agents(
            experiment, slots, lambda name: InProcessClient(server, name), exploit=True
        )
        try:
            Interactor(
                slots,
                agents,
                rnd=environment.rnd,
                limit=environment.limit,
                max_episodes=episodes,
                on_episode=ended.append,
                seed=experiment.seed,
            ).run()
        finally:
            agents.close()


def format_evaluation(evaluation: Evaluation) -> str:
    """Returns one line: mean, 95 % confidence interval of the mean, spread, episodes, weights."""
    returns = evaluation.returns
    half = 1.96 * returns.std(ddof=1) / np.sqrt(len(returns)) if len(returns) > 1 else float("nan")
    return (
        f"mean return {returns.mean():.2f} +- {half:.2f} (95 % interval of the mean), "
        f"min {returns.min():g}, max {returns.max():g}, {len(returns)} greedy episodes, "
        f"mean length {evaluation.lengths.mean():.1f}; weights of step {evaluation.global_t:,}, "
        f"version {evaluation.version:,}"
    )
