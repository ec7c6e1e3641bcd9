"""The check that an algorithm's folder learns a problem within a time."""

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from relaax_like.client.interactor import Interactor
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.models import Experiment, LearnerConfig
from relaax_like.config.plan import Offline, get_plan
from relaax_like.launch.bandit import EPISODE_STEPS, BanditSlots
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.conformance_subject import Failed, NotApplicable, Subject
from relaax_like.launch.local import open_slots
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.runs.processes.process import Shutdown
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import ACTION, OBSERVATION

# An experiment of the folder: the problem that its algorithm must learn in time.
CHECK_NAME = "check.yaml"
_LOOK_SEC = 0.1
# Time that can pass for each second of processor time.
_PATIENCE = 10
# Slots of the bandit, and the fraction of its best return that must be reached.
_BANDIT_SLOTS, _BANDIT_EPISODES, _PASSES_AT = 8, 100, 0.8


def check_learning(subject: Subject, learn_sec: float) -> str:
    """Checks that the algorithm learns a bandit with its own spaces, or the problem of check.yaml.

    The bandit is a `BanditSlots`; a check.yaml without an environment does not define a problem.

    Args:
      subject: the folder.
      learn_sec: processor time, so that a busy machine does not decide; and a tenth of the time
        that can pass, for an environment that waits.

    Returns:
      What ended it.

    Raises:
      Failed: the mean return did not reach its target in time.
      NotApplicable: the plan is Offline, or the spaces are not known.
      ConfigError: check.yaml has no `learner.target_return`.
      RelaaxError, Exception, Stopped: see `BaseTrainer.run`.
    """
    experiment = subject.experiment
    if isinstance(get_plan(experiment.algorithm), Offline):
        raise NotApplicable("the plan is Offline, so it does not play")
    learner, make_slots = _define_problem(subject, learn_sec)
    if learner.placement == "standalone":  # all is one process here
        learner = learner.model_copy(update={"placement": "server"})
    with tempfile.TemporaryDirectory() as folder:
        checked = _move(replace(experiment, learner=learner), Path(folder) / "run")
        trainer = _CheckTrainer(checked, make_slots, learn_sec)
        with _quiet():
            trainer.run(Shutdown())
        status = trainer.status
    assert status is not None
    if "reached the target" not in status.finished:
        mean = status.mean_return
        found = "no episode has ended"
        if mean is not None:
            found = f"the mean return of {status.return_episodes} episode(s) is {mean:.3g}"
        cure = "define a problem" if make_slots else "lower learner.target_return"
        raise Failed(
            f"{subject.folder}: {status.finished or trainer.why}; after {status.global_t:,} steps "
            f"{found}; expected {learner.target_return:g} or more over {learner.target_episodes} "
            f"episodes; choose other settings with --set, pass a longer --learn-sec, or {cure} in "
            f"{CHECK_NAME}"
        )
    return status.finished


def _define_problem(
    subject: Subject, learn_sec: float
) -> tuple[LearnerConfig, Callable[[], Any] | None]:
    """Returns the target, and what makes the bandit's slots; None: the problem of check.yaml."""
    experiment = subject.experiment
    if experiment.file.name == CHECK_NAME and experiment.environment is not None:
        if experiment.learner.target_return is None:
            raise ConfigError(
                f"{experiment.file}: learner.target_return is missing; set it to the mean return "
                f"that the algorithm must reach within {learn_sec:g} s of processor time"
            )
        return experiment.learner, None
    observations, actions = _find_spaces(subject.config)
    learner = LearnerConfig(
        placement=experiment.learner.placement,
        max_rollouts_ahead=experiment.learner.max_rollouts_ahead,
        target_return=_PASSES_AT * EPISODE_STEPS,
        target_episodes=_BANDIT_EPISODES,
    )
    return learner, lambda: BanditSlots(observations, actions, _BANDIT_SLOTS, 0)


def _move(experiment: Experiment, run_dir: Path) -> Experiment:
    """Returns an experiment whose run leaves everything in a folder, and sends nothing."""
    settings = experiment.parameter_server.model_copy(
        update={
            "checkpoint_dir": run_dir / "checkpoints",
            "metrics_dir": run_dir / "metrics",
            "mirror_url": None,
            "progress_interval_sec": 1e9,
        }
    )
    return replace(
        experiment,
        run_dir=run_dir,
        compile_cache=None,
        parameter_server=settings,
        metrics_server=None,
        wandb=None,
    )


class _CheckTrainer(BaseTrainer):
    """Trains on environments in this process for a limited time."""

    def __init__(
        self, experiment: Experiment, make_slots: Callable[[], Any] | None, learn_sec: float
    ):
        super().__init__(experiment)
        self._make_slots = make_slots
        self._learn_sec = learn_sec
        self.why = ""  # what ended it before the target or the budget

    def train(self, server: ParameterServer, stop: threading.Event) -> None:

        over = threading.Event()
        with contextlib.ExitStack() as ends:
            if self._make_slots is None:
                slots: Any = ends.enter_context(open_slots(self.experiment, "train"))
            else:
                slots = self._make_slots()
            agents = self.make_agents(slots, server, over)
            ends.callback(agents.close)
            ends.callback(over.set)
            threading.Thread(target=self._watch, args=(over,), daemon=True).start()
            Interactor(slots, agents, stop=over).run()

    def _watch(self, over: threading.Event) -> None:
        """Ends the training when its time is used up; in its own thread."""
        used, began = time.process_time(), time.monotonic()
        while not over.wait(_LOOK_SEC):
            if time.process_time() - used > self._learn_sec:
                self.why = f"{self._learn_sec:g} s of processor time used up"
            elif time.monotonic() - began > _PATIENCE * self._learn_sec:
                self.why = f"{_PATIENCE * self._learn_sec:g} s passed"
            if self.why:
                over.set()


def _find_spaces(config: AlgorithmConfig) -> tuple[Any, Any]:
    """Returns the spaces of observations and actions that the folder's settings define."""
    found: list[Any] = []
    for name, spaces in (
        (OBSERVATION, config.observation_spaces),
        (ACTION, config.action_spaces),
    ):
        if not spaces:
            raise NotApplicable(
                f"the settings do not define the {name}s ({name}_spaces of the Config is empty), "
                "so the environment is not known; set the keys that define them, or define the "
                f"property {name}_spaces, or a problem in {CHECK_NAME}"
            )
        found.append(spaces[name] if spaces.keys() == {name} else spaces)
    return found[0], found[1]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the log lines of a training run, except for errors."""
    logger = logging.getLogger("relaax_like")
    before, logger.disabled = logger.level, False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
