"""OfflineTrainer: learns from recorded trajectories; environments are only used for evaluation."""

import threading
from collections.abc import Sequence
from pathlib import Path

from relaax_like.config.models import Experiment
from relaax_like.experience.trajectory_files import find_trajectories
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.learners import make_offline_learner, validate_recordings
from relaax_like.launch.local import validate_environment
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.reports.modes import LogMode
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, InvalidInputError


class OfflineTrainer(BaseTrainer):
    """Learns from the files of `learner.offline`, until the budget of steps is reached.

    `global_t` counts each step of the files every time that it is learned from. A run that was
    stopped resumes with the file that would have been next.

    Args:
      experiment: with `learner.offline` set.
      overrides: see `BaseTrainer`.
      log: see `BaseTrainer`.

    Raises:
      ConfigError: there are no such files; some are damaged, or do not match the algorithm's
        settings; or the test environment does not match them.
    """

    def __init__(
        self,
        experiment: Experiment,
        overrides: Sequence[str] = (),
        log: LogMode = LogMode.PLAIN,
    ):
        super().__init__(experiment, overrides, log)
        folder = experiment.learner.offline
        assert folder is not None, "the experiment has learner.offline"
        self._files = find_trajectories(folder)
        if not self._files:
            what = (
                "contains no trajectories (iteration-N.npz)"
                if folder.is_dir()
                else "no such folder"
            )
            raise ConfigError(
                f"learner.offline: {folder}: {what}; expected RUN/trajectories of a run with "
                "learner.collect_traj: true. To record one: `relaax train FILE "
                "--collect-traj`, where FILE is an experiment that plays and learns in the "
                "server"
            )

        # Before the training starts: it reads files one by one, and uses the environment later.
        validate_recordings(experiment, self._files)
        if experiment.learner.eval_freq:
            _validate_tests(experiment, folder)

    def train(self, server: ParameterServer, stop: threading.Event) -> None:
        """Learns until the end; see `BaseTrainer`."""
        with tracing.span(tracing.START):
            learner = make_offline_learner(self.experiment, server, self._files)
        try:
            learner.load()
            learner.run(lambda: bool(learner.newest.finished) or stop.is_set())
        finally:
            learner.close()


def _validate_tests(experiment: Experiment, folder: Path) -> None:
    """Raises ConfigError if evaluations would play another environment than the recorded one."""
    try:
        validate_environment(experiment, "test")
    except InvalidInputError as error:
        environment = experiment.environment
        assert environment is not None
        raise ConfigError(
            f"environment: {environment.env or experiment.environment_program} does not match "
            f"the recordings in {folder}, which fit the algorithm's settings ({error}); name "
            "the recorded environment, or pass --eval-freq 0 to learn without evaluations"
        ) from error
