"""`relaax record`: plays with any policy, and writes what happens as recordings."""

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.model import get_variables
from relaax_like.client.interactor import EnvironmentSlots
from relaax_like.client.values import SpaceValues
from relaax_like.config.models import Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME, Prediction
from relaax_like.core.records import Episode, LearnRequest
from relaax_like.experience.rollout import Arrays, Rollout, concatenate
from relaax_like.experience.trajectory_files import TrajectoryWriter, find_trajectories
from relaax_like.launch.algorithm_code import (
    load_agent_class,
    make_actors,
)
from relaax_like.launch.frozen_agents import can_play_fixed, validate_values
from relaax_like.launch.local import (
    LocalAgents,
    ask_environment,
    make_interactor,
    open_slots,
)
from relaax_like.launch.saved_policy import LATEST, read_snapshot
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.nn.action_heads import actions_from_wire
from relaax_like.nn.settings import prepare_tensorflow
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import ACTION, MASK, Box, Space, Spaces, split_masks

logger = logging.getLogger(__name__)

SAMPLED, GREEDY, RANDOM = "sampled", "greedy", "random"
POLICIES = (SAMPLED, GREEDY, RANDOM)
# Steps of a slot that stay together in a file.
_ROLLOUT_STEPS = 128
# Minimum number of steps of a file, unless fewer are recorded.
_FILE_STEPS = 4096
_PROGRESS_SEC = 5.0


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The result of `record`.

    Attributes:
      steps: environment steps that were written.
      returns: `[n] float64`, of the episodes that ended in rollouts of which steps were written.
    """

    steps: int
    returns: np.ndarray

    def __str__(self) -> str:
        number = len(self.returns)
        mean = f", mean return {self.returns.mean():.2f}" if number else ""
        return f"{self.steps:,} steps, {number:,} episodes ended{mean}"


def record(
    experiment: Experiment,
    folder: Path,
    steps: int,
    policy: str = SAMPLED,
    version: str = LATEST,
    append: bool = False,
) -> Recorded:
    """Plays the experiment's environments, and writes exactly `steps` steps of all slots together.

    What was recorded before an error or an interruption is kept, and logged; `append` adds `steps`
    more.

    Args:
      experiment: defines environments, algorithm and, unless `policy` is "random", the snapshots.
      folder: of the files; it is created.
      steps: to write, 1 or more.
      policy: "sampled": actions as in training; "greedy": the best ones; "random": uniformly
        distributed ones, for which no snapshot is needed.
      version: of the snapshot; see `read_snapshot`.
      append: add to the files of the folder; otherwise there must be none. Other random numbers
        are drawn than for the existing files.

    Raises:
      ConfigError: an argument is wrong; the folder has files, or cannot be read or written to;
        there is no environment; or the algorithm's code cannot be loaded, or fails, or its agents
        cannot be recorded.
      SnapshotError: there is no usable snapshot.
      ProtocolError: the algorithm cannot use the environment's spaces.
      InvalidInputError: the environment returned a wrong value.
      RelaaxError: the environment's code failed.
    """
    _validate_arguments(folder, policy, append)
    prepare_tensorflow(experiment, learns=False)
    experiment, _ = ask_environment(experiment)
    _validate_agents(experiment)
    writer = TrajectoryWriter(folder, math.inf)
    number = writer.find_next()
    with open_slots(experiment, f"record {number}") as slots:
        recorder = _make_recorder(experiment, policy, version, writer, steps)
        agents = _make_agents(experiment, slots, recorder, policy, number)
        with contextlib.closing(agents):
            try:
                make_interactor(experiment, slots, agents).run()
            except BaseException:
                recorder.flush()
                logger.info("ended early: recorded %s to %s", recorder.recorded, folder)
                raise
            recorder.flush()
    return recorder.recorded


def _validate_arguments(folder: Path, policy: str, append: bool) -> None:
    """Checks the policy, and that recordings can be written to the folder, or added to it.

    Raises:
      ConfigError: see `record`.
    """
    if policy not in POLICIES:
        raise ConfigError(f"policy: {policy!r}, expected one of {', '.join(POLICIES)}")
    try:
        found = find_trajectories(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be read: {error.strerror}; correct its permissions, or name another "
            "folder with --output"
        ) from None
    if os.path.isfile(folder):  # unlike Path's method, it raises no error
        raise ConfigError(
            f"{folder}: a file; name a folder with --output that exists or can be created"
        )
    if found and not append:
        raise ConfigError(
            f"{folder}: already contains {len(found)} trajectory file(s); name another folder with "
            "--output, or pass --append to add to them"
        )


def _validate_agents(experiment: Experiment) -> None:
    """Checks that the algorithm's agents only need values to act.

    Raises:
      ConfigError: see `record`.
    """
    if not can_play_fixed(experiment):
        raise ConfigError(
            f"{experiment.algorithm_folder}: the agents of this algorithm run their own code, or "
            "have several Algorithms, and cannot be recorded; name an experiment with another "
            "algorithm"
        )


class _Recorder(FrozenPolicy):
    """Writes the rollouts that agents submit, until there are enough steps."""

    def __init__(
        self, values: Any, version: int, global_t: int, writer: TrajectoryWriter, steps: int
    ):
        super().__init__(values, version, global_t)
        self._writer = writer
        self._number = writer.find_next()
        self._rollouts: list[Rollout] = []
        self._waiting = 0  # steps in them
        self._wanted = steps
        self._steps = 0
        self._returns: list[float] = []
        self._written_returns = 0
        self._next_line = time.monotonic() + _PROGRESS_SEC

    @property
    def recorded(self) -> Recorded:
        """What was recorded so far."""
        return Recorded(steps=self._steps, returns=np.array(self._returns))

    def submit(self, work: LearnRequest) -> None:
        """Adds the rollout, up to the last step that is wanted.

        Writes a file once `_FILE_STEPS` steps or more wait, and as many are still missing.
        """
        missing = self._wanted - self._steps
        if work.rollout is not None and missing:
            rollout = work.rollout
            returns = [one.episode_return for one in work.episodes if isinstance(one, Episode)]
            if rollout.env_steps > missing:
                rollout = _take_first(rollout, missing)
                del returns[np.count_nonzero(rollout.next_alive[rollout.valid] <= 0) :]
            self._steps += rollout.env_steps
            self._returns += returns
            self._rollouts.append(rollout)
            self._waiting += rollout.env_steps
            # So the last file is not a small one, which might have too few steps for an update.
            if self._waiting >= _FILE_STEPS and self._wanted - self._steps >= _FILE_STEPS:
                self.flush()
        if self._steps == self._wanted:
            self.finish("recorded")
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _PROGRESS_SEC
            logger.info("recorded %s of %s steps", f"{self._steps:,}", f"{self._wanted:,}")
        super().submit(work)

    def flush(self) -> None:
        """Writes the rollouts that are not in a file yet as one file, if there are any.

        Raises:
          ConfigError: the file cannot be written.
        """
        if not self._rollouts:
            return
        written = self._steps - self._waiting
        rollouts, self._rollouts, self._waiting = self._rollouts, [], 0
        self._writer.write(self._number, concatenate(rollouts))
        self._number += 1
        if self._writer.has_failed:
            self._steps = written
            del self._returns[self._written_returns :]
            raise ConfigError(
                f"{written:,} of {self._wanted:,} steps were written, but the next file could not "
                "be, for the reason logged above; free disk space or make the folder writable, "
                f"then record the rest with --append --steps {self._wanted - written}"
            )
        self._written_returns = len(self._returns)


class _RandomActor:
    """Draws actions uniformly; see `NumpyActor`.

    Args:
      model: its policy is not called.
      spaces: of the environment's actions.
      seed: of the draws.
    """

    def __init__(self, model: Any, spaces: Mapping[str, Space], seed: int):
        self.model = model
        self.global_t = 0
        self.explores = False
        self._spaces = spaces
        self._values = SpaceValues(dict(spaces), ACTION)
        self._random = np.random.default_rng(seed)
        self._log_prob = -sum(_find_log_size(leaf, space) for leaf, space in spaces.items())

    def set_values(self, values: Any, version: int) -> None:
        """Ignores them."""

    def expect_actions(self, spaces: Spaces) -> None:
        """Expects nothing of a policy that does not act."""

    def act(self, inputs: Arrays, states: Arrays, *_: Any) -> Prediction:
        """Draws actions; the memory stays as it is."""
        rows = len(next(iter(inputs.values())))
        sampled = self._values.sample(rows, self._random, inputs)
        drawn = self._values.to_leaves(sampled, rows, ACTION)
        actions = {name: actions_from_wire(self._spaces[name], a) for name, a in drawn.items()}
        log_prob = np.full(rows, self._log_prob, np.float32)
        for name, mask in split_masks(inputs)[1].items():
            sizes = self._spaces[name.removeprefix(MASK)].sizes
            for part, n in zip(np.split(mask, np.cumsum(sizes)[:-1], -1), sizes, strict=True):
                log_prob += np.log(n / part.sum(-1)).astype(np.float32)
        return Prediction(actions, dict(states), log_prob, 0)


def _find_log_size(leaf: str, space: Space) -> float:
    """Returns the logarithm of the number of actions, or of the volume of a box.

    Raises:
      ConfigError: a Box has no finite bounds.
    """
    if not isinstance(space, Box):
        return float(np.log(space.sizes).sum())
    low, high = space.low, space.high
    if low is None or high is None or not np.isfinite([low, high]).all():
        raise ConfigError(
            f"policy: random, but the environment's action {leaf!r} has no finite bounds; record "
            "with --policy sampled, or set bounds in the environment"
        )
    return float(np.log(np.maximum(np.asarray(high, np.float64) - low, 1e-30)).sum())


def _make_recorder(
    experiment: Experiment, policy: str, version: str, writer: TrajectoryWriter, steps: int
) -> _Recorder:
    if policy == RANDOM:
        return _Recorder((), 0, 0, writer, steps)
    state = read_snapshot(experiment, version)
    values = state.manifest.unpack(state.values)
    return _Recorder(values, state.version, state.global_t, writer, steps)


def _make_agents(
    experiment: Experiment,
    slots: EnvironmentSlots,
    recorder: _Recorder,
    policy: str,
    number: int,
) -> LocalAgents:
    agent_class = load_agent_class(experiment)
    name = f"record-{number}"
    actor: Any = make_actors(experiment, name, agent_class)[ONLY_NAME]
    if policy == RANDOM:
        recorder.set([variable.value for variable in get_variables(actor.model)], 0)
        spaces = SpaceValues(slots.action_space, ACTION).spaces
        seed = derive_seed(experiment.seed, "record", str(number))
        actor = _RandomActor(actor.model, spaces, seed)
    else:
        validate_values(experiment, actor.model, recorder.values)
    processor = ComputationDataProcessor(actor, recorder, NullMetrics(), name)
    host = BatchHost(
        experiment.algorithm,
        lambda: {ONLY_NAME: processor},
        agent_class,
        recorded_steps=_ROLLOUT_STEPS,
        is_greedy=policy == GREEDY,
    )
    return LocalAgents(slots, host, name=name)


def _take_first(rollout: Rollout, steps: int) -> Rollout:
    """Returns a rollout of which only the first `steps` rows, of all slots together, are valid."""
    valid = np.arange(rollout.next_alive.size).reshape(rollout.next_alive.shape) < steps
    return dataclasses.replace(rollout, valid=valid)
