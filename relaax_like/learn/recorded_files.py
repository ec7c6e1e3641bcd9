"""Recordings as sources of iterations: one after another, or minibatches from all of them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from relaax_like.algorithm.model import Model
from relaax_like.config.plan import Offline, RolloutPlan
from relaax_like.config.seeds import derive_seed
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.ranges import Ranges, RangeWatch
from relaax_like.experience.recordings import Recording
from relaax_like.experience.rollout import Arrays, Rollout, concatenate, get_valid, stack_history
from relaax_like.experience.trajectory_files import DamagedFileError
from relaax_like.learn.learner_loop import Source
from relaax_like.learn.rollout_layout import RolloutLayout, remove_question
from relaax_like.learn.tally import Tally
from relaax_like.wire import tracing
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import ACTION, MASK, OBSERVATION, RunSpaces, Space, find_legal


class RecordedFiles(Source):
    """Each recording is an iteration; all are read repeatedly, each time in another order.

    The order depends on the seed, the number of recordings and the number of the iteration: a run
    that resumes from a snapshot draws what it would have drawn.

    Args:
      files: at least one, in an order that is always the same.
      tally: counts the steps of each recording that is read.
      model: its specs define the rollouts.
      action_spaces: leaf -> space, if they are known.
      seed: of the orders.
    """

    def __init__(
        self,
        files: Sequence[Recording],
        tally: Tally,
        model: Model,
        action_spaces: Mapping[str, Space],
        seed: int,
    ):
        self._files = files
        self._tally = tally
        self._model = model
        self._action_spaces = action_spaces
        self._seed = seed

    def get(self, done: int, timeout_sec: float) -> TrainingData:
        """Reads the next recording; see `Source`.

        Raises:
          InvalidInputError: the recording cannot be read, or does not fit the algorithm.
        """
        file = self._files[draw_index(self._seed, len(self._files), done)]
        with tracing.span("read"):
            rollout = _conform(file, self._model, self._action_spaces)
        self._tally.add(rollout.env_steps)
        return _make_iteration(rollout)


class RecordedSteps(Source):
    """An iteration consists of steps drawn uniformly, with replacement, from all recordings.

    They are kept in memory. The draws depend on the seed and the number of the iteration: a run
    that resumes from a snapshot draws what it would have drawn.

    If the plan requests it, the first iteration has all steps once, for the running statistics of
    the inputs; it is not counted.

    Args:
      files: at least one, in an order that is always the same.
      tally: counts the steps that are drawn.
      model: its specs define the rollouts.
      action_spaces: leaf -> space, if they are known.
      plan: with `updates_at_once`.
      seed: of the draws.

    Raises:
      InvalidInputError: a recording cannot be read, or its rollout does not fit the algorithm.
    """

    def __init__(
        self,
        files: Sequence[Recording],
        tally: Tally,
        model: Model,
        action_spaces: Mapping[str, Space],
        plan: Offline,
        seed: int,
    ):
        assert plan.updates_at_once is not None, "the plan mixes recordings"
        self._tally = tally
        self._seed = seed
        self._prenormalizes = plan.prenormalize
        self._size = plan.batch_size * plan.updates_at_once
        with tracing.span("read"):
            self._steps = concatenate(
                [_make_steps(_conform(file, model, action_spaces)) for file in files]
            )

    @property
    def steps(self) -> Rollout:
        """All valid steps of the recordings, `[1, n, ...]`."""
        return self._steps

    def get(self, done: int, timeout_sec: float) -> TrainingData:
        """Draws the steps of some minibatches; see `Source`."""
        if self._prenormalizes and not done:
            return _make_iteration(self._steps)
        generator = np.random.default_rng(derive_seed(self._seed, "steps", done))
        chosen = generator.integers(self._steps.slots, size=self._size)
        self._tally.add(self._size)
        return _make_iteration(_select_columns(self._steps, lambda array: array[:, chosen]))


def _make_iteration(rollout: Rollout) -> TrainingData:
    """Returns an iteration for which no agent waits."""
    keys = np.stack([np.zeros(rollout.slots, np.int64), np.arange(rollout.slots)], 1)
    return TrainingData(
        rollout=rollout, tickets=(), env_steps=rollout.env_steps, mean_version=None, keys=keys
    )


def validate_files(
    files: Sequence[Recording],
    model: Model,
    action_spaces: Mapping[str, Space],
    plan: RolloutPlan,
    spaces: RunSpaces | None = None,
) -> int:
    """Reads all recordings once, so that an unusable one does not end the training hours later.

    This takes about a second per GB, plus the time of the disk.

    Args:
      files: the recordings.
      model: see `RecordedFiles`.
      action_spaces: see `RecordedFiles`.
      plan: of the updates.
      spaces: of the recordings; values outside are reported. None: not known.

    Returns:
      Their steps.

    Raises:
      InvalidInputError: files cannot be read, and the error lists all of them; or the rollout of a
        file does not fit the algorithm; or it has too few steps or slots for one update, unless the
        plan mixes the steps of all files.
    """
    mixes = isinstance(plan, Offline) and plan.updates_at_once is not None
    rollouts = read_files(files, model, action_spaces, None if mixes else plan, spaces)
    return sum(rollout.env_steps for rollout in rollouts)


def read_files(
    files: Sequence[Recording],
    model: Model,
    action_spaces: Mapping[str, Space],
    plan: RolloutPlan | None = None,
    spaces: RunSpaces | None = None,
) -> Iterator[Rollout]:
    """Yields the rollouts of all recordings that can be learned from, in the arrays of the model.

    Args:
      files: the recordings.
      model: see `RecordedFiles`.
      action_spaces: see `RecordedFiles`.
      plan: of updates that use one recording each; None: they need no minimum of steps.
      spaces: of the recordings; values outside are reported. None: not known.

    Raises:
      InvalidInputError: after the last rollout; see `validate_files`.
    """
    damaged: list[DamagedFileError] = []
    unfit: InvalidInputError | None = None
    watch = RangeWatch()
    ranges = Ranges(watch, *(spaces or ({}, {})), kind="recorded")
    for file in files:
        try:
            rollout = _conform(file, model, action_spaces)
            ranges.add(OBSERVATION, rollout.inputs, rollout.valid)
            ranges.add(ACTION, rollout.actions, rollout.valid)
            if plan is not None:
                _validate_length(rollout, file.name, plan)
        except DamagedFileError as error:
            damaged.append(error)
        except InvalidInputError as error:
            unfit = unfit or error
        else:
            yield rollout
    ranges.close()
    watch.close()
    refusal = _list_damaged(damaged, len(files)) if damaged else unfit
    if refusal is not None:
        raise refusal


def _list_damaged(damaged: Sequence[DamagedFileError], number: int) -> InvalidInputError:
    """Returns an error that lists all damaged recordings, among a number of them."""
    lines = "".join(f"\n  {one.path} ({one.reason})" for one in damaged)
    return InvalidInputError(
        f"damaged recordings, or recordings without trajectories ({len(damaged)} of {number}); "
        f"leave them out, or record or download them again:{lines}"
    )


def _validate_length(rollout: Rollout, name: str, plan: RolloutPlan) -> None:
    rows = plan.minibatch_of == "steps"
    length, what = (rollout.env_steps, "step(s)") if rows else (rollout.slots, "slot(s)")
    if length < plan.batch_size:
        raise InvalidInputError(
            f"{name} has {length} {what}, but an update needs {plan.batch_size}, the plan's "
            "batch_size (usually algorithm.batch_size); lower it, or leave the recording out",
            "batch_size",
        )


def _conform(file: Recording, model: Model, action_spaces: Mapping[str, Space]) -> Rollout:
    """Reads a rollout, and converts it to what the model reads; each slot begins without memory.

    The recorded memory belongs to another network.
    """
    rollout = file.read()
    memory = {
        name: np.zeros((rollout.slots, *properties["shape"]), np.float32)
        for name, properties in model.get_state_specs()
    }
    layout = RolloutLayout(model, len(rollout.next_alive), action_spaces)
    try:
        conformed = layout.conform(dataclasses.replace(rollout, states=memory))
        _validate_legal(conformed, model.masks)
        return conformed
    except InvalidInputError as error:
        raise InvalidInputError(
            f"{file.name} cannot be learned from: {remove_question(error)}; correct the "
            "algorithm's settings if they are not those of the recording, or leave it out",
            error.field,
        ) from error


def _validate_legal(rollout: Rollout, masks: Mapping[str, Sequence[int]]) -> None:
    """Refuses actions that the recorded masks forbid: they have no finite log-probability.

    Args:
      rollout: `[T, k]`, with masks.
      masks: see `Model.masks`.

    Raises:
      InvalidInputError: an action in a valid row is not legal.
    """
    valid = get_valid(rollout)
    for leaf, sizes in masks.items():
        chosen = rollout.actions[leaf][valid].reshape(-1, len(sizes))
        legal = find_legal(rollout.inputs[MASK + leaf][valid], chosen, sizes)
        if not legal.all():
            row, component = np.argwhere(~legal)[0]
            raise InvalidInputError(
                f"actions {leaf}: {chosen[row, component]} in component {component} is not legal "
                f"in its mask ({np.mean(~legal.all(-1)):.3g} of all actions are not), expected "
                "legal actions; to learn without masks, begin a run with environment.masks: off",
                f"actions {leaf}",
            )


def _make_steps(rollout: Rollout) -> Rollout:
    """Returns the valid rows of a rollout `[T, k, ...]` side by side, `[1, n, ...]`.

    Each row has its own next observation, also where the next row is a hole.
    """
    rollout = stack_history(rollout)
    valid = get_valid(rollout)
    chosen = _select_columns(rollout, lambda array: array[valid][None])
    return dataclasses.replace(
        chosen, valid=None, states={}, versions=rollout.versions.min(keepdims=True), starts=None
    )


def _select_columns(rollout: Rollout, select: Callable[[np.ndarray], np.ndarray]) -> Rollout:
    """Returns a rollout whose arrays `[T, k, ...]` are changed by a function.

    `valid` is unchanged, as are arrays of other shapes; `extras` are dropped.
    """

    def select_all(arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: select(array) for name, array in arrays.items()}

    return dataclasses.replace(
        rollout,
        inputs=select_all(rollout.inputs),
        next_inputs=select_all(rollout.next_inputs),
        next_alive=select(rollout.next_alive),
        rewards=select(rollout.rewards),
        actions=select_all(rollout.actions),
        log_prob=select(rollout.log_prob),
        extras={},
    )


def draw_index(seed: int, number: int, iteration: int) -> int:
    """Returns the index of the file, 0 to `number` - 1, from which an iteration learns.

    Every `number` iterations, starting at 0, go through all files in a different order.
    """
    epoch, place = divmod(iteration, number)
    order = np.random.default_rng(derive_seed(seed, "files", epoch)).permutation(number)
    return int(order[place])
