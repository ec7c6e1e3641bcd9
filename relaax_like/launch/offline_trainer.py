"""OfflineTrainer: learns from recorded trajectories; environments are only played to evaluate."""

import threading
from collections.abc import Sequence

from relaax_like.config.models import Experiment
from relaax_like.config.run_spaces import keep_run_spaces
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.learners import make_offline_learner, validate_recordings
from relaax_like.launch.local import validate_environment
from relaax_like.launch.online_tester import describe_without_tests, require_environment
from relaax_like.launch.recordings import find_recorded_spaces, find_recordings
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.runs.folders.modes import LogMode
from relaax_like.wire import tracing
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import RunSpaces


class OfflineTrainer(BaseTrainer):
    """Learns from the recordings of `learner.offline`, until the budget or the target is reached.

    The budget is `max_global_step`: `global_t` counts each recorded step every time that it is
    learned from. The target is `learner.target_eval_return`. A run that was stopped resumes with
    the recording, or the minibatches, that would have been next.

    Args:
      experiment: with `learner.offline` set.
      overrides: see `BaseTrainer`.
      log: see `BaseTrainer`.

    Raises:
      ConfigError: see `find_recordings` and `validate_recordings`; or the environment for
        evaluations is missing, or does not match the algorithm's settings.
    """

    def __init__(
        self,
        experiment: Experiment,
        overrides: Sequence[str] = (),
        log: LogMode = LogMode.PLAIN,
    ):
        super().__init__(experiment, overrides, log)
        sources = experiment.learner.offline
        assert sources is not None, "the experiment has learner.offline"
        masks = experiment.environment.masks if experiment.environment else "auto"
        self._recordings = find_recordings(sources, masks)
        self._spaces = find_recorded_spaces(sources, masks)
        # Before the training starts: it reads them later, and uses the environment later.
        validate_recordings(experiment, self._recordings, self._spaces)
        if experiment.learner.eval_freq:
            require_environment(experiment)
            played = _validate_tests(experiment, ", ".join(sources))
            self._spaces = self._spaces or played

    def train(self, server: ParameterServer, stop: threading.Event) -> None:
        """Learns until the end; see `BaseTrainer`."""
        if self._spaces is not None:
            keep_run_spaces(self.experiment.run_dir, self._spaces)
        with tracing.span(tracing.START):
            learner = make_offline_learner(self.experiment, server, self._recordings)
        try:
            learner.load()
            self.note_ready()
            learner.run(lambda: bool(learner.newest.finished) or stop.is_set())
        finally:
            learner.close()


def _validate_tests(experiment: Experiment, sources: str) -> RunSpaces:
    """Checks that evaluations would not play another environment than the recorded one.

    Returns:
      The environment's spaces.

    Raises:
      ConfigError: the environment does not match the settings; or see `validate_environment`.
    """
    try:
        return validate_environment(experiment, "test")
    except InvalidInputError as error:
        environment = experiment.environment
        assert environment is not None
        key = "program" if environment.path is None else "path"
        raise ConfigError(
            f"environment.{'env' if environment.env else key}: "
            f"{environment.env or experiment.environment_program} does not match the algorithm's "
            f"settings ({error}), which fit the recordings in {sources}; if it is not the recorded "
            "environment, name that one, otherwise correct the settings; or set "
            f"{describe_without_tests(experiment)} to learn without evaluations"
        ) from error
