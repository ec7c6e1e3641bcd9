"""Trains an experiment in this process, with its algorithm's own trainer or a built-in one."""

import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from relaax_like.config.algorithm_folder import TRAINER, load_algorithm_module
from relaax_like.config.loader import add_spaces, load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import fix_run_dir
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.local import ask_environment, require_program
from relaax_like.launch.offline_trainer import OfflineTrainer
from relaax_like.launch.policies_trainer import PoliciesTrainer
from relaax_like.launch.recordings import find_recorded_spaces
from relaax_like.launch.trainer import Trainer
from relaax_like.runs.folders.modes import LogMode
from relaax_like.runs.folders.run_folder import begin_run
from relaax_like.runs.processes.process import Shutdown, Stopped
from relaax_like.wire.errors import ConfigError, RelaaxError


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a training run.

    Attributes:
      run_dir: the run's folder.
      global_t: environment steps of the run.
      mean_return: of the newest `learner.target_episodes` episodes, or fewer; None: no episode has
        ended, for example because no environment was played.
      finished: what ended the training, target or budget; "": it was stopped, and can be resumed.
      exit_status: of `relaax train`: 0, or 128 + the number of the signal that stopped it.
    """

    run_dir: Path
    global_t: int
    mean_return: float | None
    finished: str
    exit_status: int


def train(path: str | Path, overrides: Sequence[str] = (), force: bool = False) -> TrainingResult:
    """Trains a new run; see `relaax_like.train`, also for the errors."""
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        raise RelaaxError(
            f"relaax_like.train: called in the thread {thread.name!r}, but only the main thread "
            "receives signals; call it in the main thread, or start a process"
        )
    experiment = load_experiment(path, overrides, new_run=True, several=True)
    trainer = make_trainer(experiment, overrides)
    begin_run(experiment, force)
    with _keep_signal_handlers():
        try:
            exit_status = trainer.run(Shutdown())
        except Stopped as stopped:
            raise SystemExit(stopped.args[0]) from None
    status = trainer.status
    assert status is not None, "the training has ended"
    return TrainingResult(
        run_dir=experiment.run_dir,
        global_t=status.global_t,
        mean_return=status.mean_return,
        finished=status.finished,
        exit_status=exit_status,
    )


def make_trainer(
    experiment: Experiment, overrides: Sequence[str] = (), log: LogMode = LogMode.PLAIN
) -> BaseTrainer:
    """Makes the trainer of an experiment, from `trainer.py` in the algorithm's folder.

    Without such a file, makes an `OfflineTrainer` if `learner.offline` is set, otherwise a
    `Trainer`. `learner.placement: standalone` has the same effect as `server`.

    Args:
      experiment: to train.
      overrides: of keys of its file.
      log: how the progress is shown.

    Raises:
      ConfigError: `trainer.py` cannot be used; there is no environment or recording that the
        training needs; the algorithm cannot use their spaces; or see `OfflineTrainer`.
      Exception: an error of the constructor in `trainer.py`.
    """
    if experiment.policies:
        return PoliciesTrainer(experiment, overrides, log)
    if experiment.learner.placement == "standalone":  # all is one process here
        learner = experiment.learner.model_copy(update={"placement": "server"})
        experiment = replace(experiment, learner=learner)
        overrides = [*overrides, "learner.placement=server"]
    experiment, found = _find_spaces(experiment)
    trainer_class: type[BaseTrainer] = Trainer
    if (experiment.algorithm_folder / TRAINER).is_file():
        if experiment.learner.workers:
            raise ConfigError(
                f"learner.workers: {experiment.learner.workers}, but "
                f"{experiment.algorithm_folder / TRAINER} starts its own environments; set it to "
                "0, or remove trainer.py"
            )
        trainer_class = _load_trainer_class(experiment.algorithm_folder)
    elif experiment.learner.offline is not None:
        trainer_class = OfflineTrainer
    else:
        require_program(experiment)
    overrides = [*overrides, *found, *fix_run_dir(experiment.run_dir)]
    return trainer_class(experiment, overrides, log)


def _find_spaces(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """Completes an experiment with spaces; without an environment, with those of a data set."""
    recorded = None
    if experiment.environment is None and experiment.algorithm.lacks_spaces:
        recorded = find_recorded_spaces(experiment.learner.offline or ())
    if recorded is None:
        return ask_environment(experiment)
    return add_spaces(experiment, *recorded)


def _load_trainer_class(folder: Path) -> type[BaseTrainer]:
    file = folder / TRAINER
    trainer_class = getattr(load_algorithm_module(folder, file.stem), "Trainer", None)
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, BaseTrainer)):
        what = "no class Trainer" if trainer_class is None else f"Trainer is {trainer_class!r:.200}"
        raise ConfigError(
            f"{file}: {what}; expected class Trainer(BaseTrainer), from "
            "relaax_like.launch.base_trainer; define it, or remove trainer.py"
        )
    if missing := sorted(trainer_class.__abstractmethods__):
        raise ConfigError(f"{file}: class Trainer lacks {missing[0]}; define it, see BaseTrainer")
    for method in ("__init__", "train", "make_agents"):
        _validate_method(file, trainer_class, method)
    return trainer_class


def _validate_method(file: Path, trainer_class: type[BaseTrainer], method: str) -> None:
    """Checks that a method can be called like that of BaseTrainer.

    Raises:
      ConfigError: it cannot; the error shows the expected parameters.
    """
    expected = inspect.signature(getattr(BaseTrainer, method))
    wanted = f"expected {_format_parameters(expected)}, see BaseTrainer"
    own = getattr(trainer_class, method)
    if not callable(own):
        raise ConfigError(f"{file}: Trainer.{method} is {own!r:.200}; {wanted}")
    # As bound to an instance, with or without self.
    called = getattr(object.__new__(trainer_class), method)
    try:
        inspect.signature(called).bind(*list(expected.parameters)[1:])
    except TypeError as error:
        takes = _format_parameters(inspect.signature(own))
        raise ConfigError(f"{file}: Trainer.{method} takes {takes}: {error}; {wanted}") from None


def _format_parameters(signature: inspect.Signature) -> str:
    """Formats the parameters without their types."""
    empty = inspect.Parameter.empty
    parameters = [one.replace(annotation=empty) for one in signature.parameters.values()]
    return str(inspect.Signature(parameters))


@contextlib.contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restores the handlers that a `Shutdown` replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
