"""The progress of a training run for people: its line, its curves, and the summary at its end."""

import logging
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from relaax_like.config.algorithm_folder import SLOTS
from relaax_like.config.models import Experiment
from relaax_like.core.records import Status
from relaax_like.metrics.names import EPISODE_LENGTH, EPISODES, MEAN_RETURN, RETURN_EPISODES
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.runs.processes.process import Shutdown

logger = logging.getLogger(__name__)

_CURVES_INTERVAL_SEC = 1.0


def format_progress(status: Status, serves: bool = True) -> str:
    """Returns the progress line for people; without a mean return if no episode has ended.

    Args:
      status: of the parameter server.
      serves: whether it has clients; False for a run in one process.
    """
    parts = [f"step {status.global_t:,}", f"{status.env_steps_per_sec:,.0f} steps/s"]
    if status.mean_return is not None:
        parts.append(f"mean return {status.mean_return:.1f} (last {status.return_episodes})")
    parts.append(f"version {status.version:,}")
    if serves:
        parts.append(f"clients {status.clients}")
    return " | ".join(parts)


def log_progress(status: Status, serves: bool = True, policy: str = "") -> None:
    """Writes the progress line to the log, after the policy's name; see `format_progress`."""
    logger.info("%s%s", f"{policy}: " if policy else "", format_progress(status, serves))


def watch_progress(
    server: ParameterServer,
    shutdown: Shutdown,
    interval_sec: float,
    show: Callable[[Status], None] = log_progress,
    on_first_step: Callable[[], None] = lambda: None,
) -> None:
    """Shows the progress and records its curves, until the training or the process is to end.

    Nothing is shown before the first step, while libraries are loaded and code is compiled; nor, if
    no client is connected, while no steps are counted.

    Args:
      server: of the training.
      shutdown: of the process.
      interval_sec: time between two calls of `show`.
      show: shows the status.
      on_first_step: called once, when a step has been counted.
    """
    curves = _ReturnCurves(server)
    next_points, next_line = time.monotonic(), time.monotonic() + interval_sec
    shown = first = server.global_t
    has_begun = False
    while not (shutdown.requested.is_set() or server.stop_requested.is_set()):
        if server.wait_finished(0.1):
            break
        if not has_begun and server.global_t != first:
            has_begun = True
            on_first_step()
        now = time.monotonic()
        if now >= next_points:
            next_points = now + _CURVES_INTERVAL_SEC
            curves.record(server.global_t)
        if now < next_line:
            continue
        next_line += interval_sec
        status = server.status()
        if status.global_t != shown or (status.clients and has_begun):
            show(status)
        shown = status.global_t
    curves.record(server.global_t, last=True)


class _ReturnCurves:
    """Records curves of a run: mean return and mean length of its episodes, and their number."""

    def __init__(self, server: ParameterServer):
        self._server = server
        self._metrics = server.metrics()
        self._recorded = 0  # episodes
        self._newest_x = -1

    def record(self, global_t: int, last: bool = False) -> None:
        """Adds a point to each curve, if an episode has ended since the previous one.

        The last point is at the end of the training, regardless of when an episode ended.
        """
        means = self._server.episode_means
        is_new = means.episodes != self._recorded or (last and global_t != self._newest_x)
        if means.mean_return is None or not is_new:
            return
        self._recorded, self._newest_x = means.episodes, global_t
        self._metrics.scalar(MEAN_RETURN, means.mean_return, global_t)
        self._metrics.scalar(RETURN_EPISODES, means.return_episodes, global_t)
        self._metrics.scalar(EPISODE_LENGTH, means.mean_length or 0.0, global_t)
        self._metrics.scalar(EPISODES, means.episodes, global_t)


def print_summary(experiment: Experiment, status: Status, serves: bool = True) -> None:
    """Logs how the training ended and where its files are; see `format_progress`."""
    settings = experiment.parameter_server
    name = f"{experiment.policy}: " if experiment.policy else ""
    logger.info("%s%s", name, f"finished: {status.finished}" if status.finished else "stopped")
    episodes = f"; {status.episodes} episodes" if status.episodes else ""
    if status.unlearned_steps:
        episodes += f"; {status.unlearned_steps:,} more steps were not learned from"
    logger.info("%s%s", format_progress(status, serves), episodes)
    logger.info("snapshots   %s", _relative(settings.checkpoint_dir))
    curves = (experiment.metrics_server or settings).metrics_dir
    logger.info("curves      tensorboard --logdir %s", _quote(curves))
    logger.info("picture     relaax plot %s", _quote(experiment.run_dir))
    logger.info("config      %s", _relative(experiment.run_dir / "config.yaml"))
    config = experiment.run_dir / "config.yaml"
    plays, program = experiment.environment is not None, experiment.environment_program
    if experiment.policy:  # one of several in a run
        run_dir = experiment.run_dir.parents[1]
        logger.info("continue    relaax resume %s", _quote(run_dir))
        logger.info("evaluate    relaax eval %s", _quote(run_dir / "config.yaml"))
        return
    if not status.finished and (plays or experiment.learner.offline is not None):
        logger.info("continue    relaax resume %s", _quote(experiment.run_dir))
    elif not status.finished:  # its environments are started by hand, and so are its servers
        logger.info("continue    relaax-parameter-server --config %s", _quote(config))
    if program is not None and (program.parent / SLOTS).is_file():
        logger.info("evaluate    relaax eval %s", _quote(config))


def _quote(path: Path) -> str:
    """Returns a path as an argument of a command in a shell."""
    return shlex.quote(str(_relative(path)))


def _relative(path: Path) -> Path:
    absolute = path.absolute()
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute
