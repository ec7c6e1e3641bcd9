"""Trains an experiment in this process: with its algorithm's own trainer, or one of ours."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import fix_run_dir
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.modes import LogMode
from relaax_like.launch.offline_trainer import OfflineTrainer
from relaax_like.launch.process import Shutdown, Stopped
from relaax_like.launch.run_folder import begin_run
from relaax_like.launch.trainer import Trainer
from relaax_like.wire.errors import ConfigError, RelaaxError


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """How a training ended.

    Attributes:
      run_dir: the run's folder.
      global_t: environment steps of the run.
      mean_return: of the newest `learner.target_episodes` episodes, or fewer; None: there were
        none, as where nothing is played.
      finished: what ended the training, target or budget; "": it was stopped, and may be resumed.
      exit_status: of `relaax train`: 0, or 128 + the number of the signal that stopped it.
    """

    run_dir: Path
    global_t: int
    mean_return: float | None
    finished: str
    exit_status: int


def train(path: str | Path, overrides: Sequence[str] = ()) -> TrainingResult:
    """Trains a new run; see `relaax_like.train`."""
    if threading.current_thread() is not threading.main_thread():
        raise RelaaxError(
            "relaax_like.train: called in another thread, but signals come to the main thread "
            "only; call it there, or start a process"
        )
    experiment = load_experiment(path, overrides, new_run=True)
    trainer = make_trainer(experiment, overrides)
    begin_run(experiment, force=False)
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
    """Makes what trains an experiment: `trainer.py` of the algorithm's folder decides.

    Without one, an `OfflineTrainer` where there is a `learner.offline`, and else a `Trainer`.

    Args:
      experiment: what to train.
      overrides: of keys of its file.
      log: how the progress is shown.

    Raises:
      ConfigError: `trainer.py` cannot be used, or there are no trajectories.
    """
    trainer_class: type[BaseTrainer] = Trainer
    if (experiment.algorithm_folder / "trainer.py").is_file():
        trainer_class = _load_trainer_class(experiment.algorithm_folder)
    elif experiment.learner.offline is not None:
        trainer_class = OfflineTrainer
    return trainer_class(experiment, [*overrides, *fix_run_dir(experiment.run_dir)], log)


def _load_trainer_class(folder: Path) -> type[BaseTrainer]:
    trainer_class = getattr(load_algorithm_module(folder, "trainer"), "Trainer", None)
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, BaseTrainer)):
        what = "no class Trainer" if trainer_class is None else f"Trainer is {trainer_class!r}"
        raise ConfigError(
            f"{folder / 'trainer.py'}: {what}; expected class Trainer(BaseTrainer), from "
            "relaax_like.launch.base_trainer, or no trainer.py"
        )
    if missing := sorted(trainer_class.__abstractmethods__):
        raise ConfigError(
            f"{folder / 'trainer.py'}: class Trainer lacks {', '.join(missing)}; see BaseTrainer"
        )
    return trainer_class


@contextlib.contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Puts back the handlers that a `Shutdown` replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
