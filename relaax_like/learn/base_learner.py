"""BaseLearner: trains a policy, iteration by iteration, with hooks around each."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypedDict

import numpy as np

from relaax_like.config.base_learner import (
    LOG_REDUCE,
    BaseLearnerConfig,
    make_base_learner_config,
    make_log_reduce_hook,
)
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.learn import checkpoint as checkpoints
from relaax_like.learn.checkpoint import Checkpoint
from relaax_like.learn.data_loader import AsyncDataLoader, GetData
from relaax_like.learn.hooks import (
    POSITIONS,
    Hooks,
    LearnerHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    merge_hooks,
    show_hooks,
)
from relaax_like.learn.monitor import Monitor
from relaax_like.metrics.buffered import BufferedMetrics
from relaax_like.wire.errors import ConfigError

_SAVE_HOOK = "save_ckpt_after_run"
_GPUS_PER_HOST = 8


class TrainedPolicy(Protocol):
    """What a learner trains. Used only by the training thread."""

    def data_preprocess(self, data: Any) -> Any:
        """Converts a batch to the argument of `forward`."""

    def forward(self, data: Any) -> Mapping[str, Any]:
        """Learns from a batch, and returns log variables.

        They are numbers, `[scalars]NAME` and `[histogram]NAME` (see `learn.monitor`), and
        optionally `priority`: the new priorities of the batch's items, in their order.
        """

    def state_dict(self) -> Mapping[str, np.ndarray]:
        """Returns the complete state, name -> array; the caller does not keep the arrays."""

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores what `state_dict` returned; raises an error if the state does not fit."""


class PriorityInfo(TypedDict):
    """The new priorities of the items of a batch, in their order, for the buffer that holds them.

    `replay_buffer_idx` and `replay_unique_id` are the batch's fields of these names, or lists of
    its items' fields; `priority` is the policy's. A field that is missing is None.
    """

    replay_buffer_idx: Any
    replay_unique_id: Any
    priority: Any


class LearnInfo(TypedDict):
    """The progress of a learner; see the properties of `BaseLearner` with the same names.

    `finished`: whether the training of `start` has ended normally; True already in the hooks of
    after_run.
    """

    last_iter: int
    last_step: int
    finished: bool
    priority_info: PriorityInfo | None


# Number of each name -> its mean over all learners of a group; waits until all have called it.
ReduceLog = Callable[[dict[str, float]], dict[str, float]]


class BaseLearner:
    """Trains a policy: serially, with data from the caller, or in its own loop.

        learner = BaseLearner({"max_iterations": 1000}, exp_dir="runs/mine", metrics=recorder)
        learner.policy = policy
        for batch in batches:
            learner.train(batch)

        learner.get_data = get_data
        learner.setup_dataloader()
        learner.start()  # for example in a thread; request_stop() ends it
        learner.close()

    `train`, `start` and the hooks run in one thread; the properties, `request_stop` and `close` can
    be used in any thread.

    Attributes:
      get_data: source of the data for `setup_dataloader`; set it, or override it with a method.
      rank: number of this learner among those that train together; 0 writes checkpoints and curves.
      device: the device for the policy: "cpu", or with `use_cuda` "cuda:N", N being the rank mod 8.
      last_iter: number of finished iterations, including those before a loaded checkpoint.
      updates: number of iterations learned from; in hooks of after_iter, `last_iter` + 1.
      last_step: environment steps that the policy has learned from, if the data contain them. In a
        `LearnerLoop`, the newest known environment steps of the run.
      priority_info: priorities of the newest batch; None before the first one.
      tick_time: seconds of the newest iteration, in `start` with the wait for data; initially 0.
      log_buffer: log variables since a hook last emptied it, the newest of each name.
      log_variables: log variables of the newest iteration, even if a hook has emptied the buffer.
      monitor: collects log variables of many iterations; None for a rank above 0.
      logger: for lines of text; its name ends with the learner's `name` and `rank`.
      tb_logger: the recorder; None for a rank above 0.
      load_path: checkpoint to start from, as named in the settings; "": none.
      reduce_log: the argument; if that was None, a function that returns a copy.

    Args:
      config: `BaseLearnerConfig`, or a dict that is merged into its defaults; None: the defaults.
      exp_dir: folder of the experiment; checkpoints are written to its subfolder `ckpt`.
      metrics: recorder for curves; `close` closes it if it is a `BufferedMetrics`. None: no curves.
        Learners with a rank above 0 do not use it.
      rank: number of this learner among those that train together.
      world_size: number of learners that train together; above 1 `use_distributed` must be set.
      reduce_log: averages log variables over all learners; required if world_size is above 1 and
        the hook `log_reduce_after_iter` is on, which is then the default.

    Raises:
      ConfigError: wrong settings, or settings that contradict these arguments; the error names the
        key.
      Exception: an error of a registered hook class.
    """

    # Overridden by subclasses.
    _name = "BaseLearner"
    get_data: GetData | None = None

    def __init__(
        self,
        config: BaseLearnerConfig | Mapping[str, Any] | None,
        *,
        exp_dir: str | Path,
        metrics: Metrics | None = None,
        rank: int = 0,
        world_size: int = 1,
        reduce_log: ReduceLog | None = None,
    ):
        self._config = make_base_learner_config(config)
        if world_size < 1:
            raise ConfigError(f"world_size is {world_size}, expected 1 or more")
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"rank is {rank}, expected 0 or more and less than world_size, which is "
                f"{world_size}"
            )
        if world_size > 1 and not self._config.use_distributed:
            raise ConfigError(
                f"use_distributed is false, but world_size is {world_size}; set "
                "use_distributed: true"
            )
        self.rank = rank
        self.device = f"cuda:{rank % _GPUS_PER_HOST}" if self._config.use_cuda else "cpu"
        self.load_path = self._config.load_path
        self._exp_dir = Path(exp_dir)
        self.logger = logging.getLogger(f"{__name__}.{self._name}.{rank}")
        recorder = NullMetrics() if metrics is None else metrics
        self.tb_logger = recorder if rank == 0 else None
        self.monitor = Monitor() if rank == 0 else None
        self.log_buffer: dict[str, Any] = {}
        self.log_variables: dict[str, Any] = {}
        self.reduce_log: ReduceLog = reduce_log or dict
        self._policy: TrainedPolicy | None = None
        self._dataloader: AsyncDataLoader | None = None
        self._stop_requested = threading.Event()
        self.last_iter = self.updates = self.last_step = 0
        self.priority_info: PriorityInfo | None = None
        self._finished = False
        self.tick_time = 0.0
        self._ckpt_name: str | None = None
        self._hooks: Hooks = merge_hooks({}, self._make_hooks(world_size, reduce_log is not None))
        # The settings of a learner that was made by `relaax` are in its run's config.yaml.
        level = logging.DEBUG if isinstance(config, BaseLearnerConfig) else logging.INFO
        self.logger.log(level, "%s %d: %s", self.name, rank, self._config.model_dump_json())
        self.logger.debug("hooks:\n%s", show_hooks(self._hooks))

    # Training.

    def train(self, data: Any) -> None:
        """Trains one iteration.

        Calls the hooks of before_iter first, and those of after_iter last, which see the old
        `last_iter`. The log variable `train_time` is the time of all this in seconds, which the
        next iteration's hooks see; `data_preprocess_time` is that of the policy's
        `data_preprocess`.

        Args:
          data: for the policy: a mapping or object with fields, or a list of such items. The fields
            `replay_buffer_idx` and `replay_unique_id` are copied to `priority_info`; `env_steps` is
            added to `last_step`.

        Raises:
          RuntimeError: there is no policy.
          Exception: an error of the policy or of a hook; or `env_steps` is not a number.
        """
        self._require_policy()
        begun = time.perf_counter()
        with self._timed("train_time"):
            self._train(data)
        self.log_variables["train_time"] = self.log_buffer["train_time"]
        self.tick_time = time.perf_counter() - begun

    def start(self) -> None:
        """Trains with data from the data loader, until `max_iterations` or `request_stop`.

        Calls the hooks of before_run first, and those of after_run last. The log variable
        `data_time` is how many seconds an iteration has waited for data. After a failure, except in
        a hook of before_run, `save_checkpoint` is called before the error is raised.

        Raises:
          RuntimeError: there is no policy, or no data loader.
          Exception: an error of `get_data` or of a hook; see `train` for others.
        """
        self._require_policy()
        if self._dataloader is None:
            raise RuntimeError(
                "the learner has no data loader; call setup_dataloader() before start()"
            )
        self.call_hook("before_run")
        try:
            self._train_to_the_end(self._dataloader)
            self._finished = True
            self.call_hook("after_run")
        except BaseException as error:
            self._save_after(error)
            raise

    def request_stop(self) -> None:
        """Makes `start` end normally after the current iteration; returns immediately.

        A learner is started once: after this, or `max_iterations`, `start` trains nothing.
        """
        self._stop_requested.set()
        if self._dataloader is not None:
            self._dataloader.stop()

    def setup_dataloader(self) -> None:
        """Starts to fetch data for `start` with `get_data`, in separate threads.

        Closes an earlier data loader.

        Raises:
          RuntimeError: `get_data` is not set.
        """
        if self.get_data is None:
            raise RuntimeError(
                "the learner has no data source; set learner.get_data before setup_dataloader()"
            )
        if self._dataloader is not None:
            self._dataloader.close()
        config = self._config.dataloader
        self._dataloader = AsyncDataLoader(
            self.get_data, config.batch_size, config.num_workers, config.chunk_size
        )

    def close(self) -> None:
        """Ends `start`, closes the data loader and the recorder. Idempotent.

        Does not wait for `start`: points that `start` still records are lost.
        """
        self.request_stop()
        if self._dataloader is not None:
            self._dataloader.close()
            self._dataloader = None
        if isinstance(self.tb_logger, BufferedMetrics):
            self.tb_logger.close()

    # Hooks.

    def register_hook(self, hook: LearnerHook) -> None:
        """Adds a hook after those with the same position and priority."""
        add_learner_hook(self._hooks, hook)

    def call_hook(self, name: str) -> None:
        """Calls all hooks of a position.

        Raises:
          ConfigError: `name` is not a position.
          Exception: an error of a hook.
        """
        if name not in self._hooks:
            raise ConfigError(f"hook position {name!r}, expected one of {', '.join(POSITIONS)}")
        for hook in list(self._hooks[name]):
            hook(self)

    # Checkpoints.

    def save_checkpoint(self, name: str | None = None) -> None:
        """Calls the hook `save_ckpt_after_run`, at any time.

        Args:
          name: of the file, such as "best"; None: `iteration_N`.

        Raises:
          ConfigError: there is no hook of this name at after_run.
          InvalidInputError: the name is not a file name or begins with a dot, or the policy's state
            contains something other than plain arrays, or a reserved name.
          RuntimeError: there is no policy.
          SnapshotError: the checkpoint could not be written.
          Exception: an error of the policy's `state_dict`, or of a hook class of your own.
        """
        hooks = [hook for hook in self._hooks["after_run"] if hook.name == _SAVE_HOOK]
        if not hooks:
            raise ConfigError(
                f"hook {_SAVE_HOOK} is off, or not at after_run, so no checkpoint can be saved; "
                f"set hook.{_SAVE_HOOK}: true"
            )
        self._ckpt_name = name
        try:
            hooks[0](self)
        finally:
            self._ckpt_name = None

    def write_checkpoint(self) -> Path | None:
        """Writes policy, iterations and environment steps to a file; hooks call it.

        Returns:
          `EXP/ckpt/iteration_N.npz` with N the number of updates, or the name passed to
          `save_checkpoint`; None for a rank above 0, which writes nothing.

        Raises:
          InvalidInputError: the name is not a file name or begins with a dot, or the policy's state
            contains something other than plain arrays, or a reserved name.
          RuntimeError: there is no policy.
          SnapshotError: the checkpoint could not be written.
          Exception: an error of the policy's `state_dict`.
        """
        policy = self._require_policy()
        if self.rank != 0:
            return None
        name = self._ckpt_name or f"iteration_{self.updates}"
        path = checkpoints.checkpoint_path(self._exp_dir, name)
        content = Checkpoint(
            policy=policy.state_dict(), last_iter=self.updates, last_step=self.last_step
        )
        checkpoints.save_checkpoint(path, content)
        self.logger.info("saved %s", path)
        return path

    def resume_from(self, last_iter: int, last_step: int) -> None:
        """Continues counting from these numbers: a checkpoint's, or those of a `LearnerLoop`."""
        self.last_iter = self.updates = last_iter
        self.last_step = last_step

    def load_checkpoint(self, path: str | Path) -> None:
        """Resumes from a checkpoint: policy, `last_iter` and `last_step`.

        Raises:
          RuntimeError: there is no policy.
          SnapshotError: there is no such checkpoint, or it cannot be read, is damaged, or is of
            another kind.
          Exception: the policy's error, if the state does not fit.
        """
        policy = self._require_policy()
        content = checkpoints.load_checkpoint(Path(path))
        policy.load_state_dict(content.policy)
        self.resume_from(content.last_iter, content.last_step)
        self.logger.info("loaded %s: iteration %d", path, self.last_iter)

    # Properties.

    @property
    def name(self) -> str:
        """Name of the learner."""
        return self._name

    @property
    def policy(self) -> TrainedPolicy:
        """The policy to train.

        Raises:
          RuntimeError: the policy has not been set yet.
        """
        return self._require_policy()

    @policy.setter
    def policy(self, policy: TrainedPolicy) -> None:
        self._policy = policy

    @property
    def learn_info(self) -> LearnInfo:
        """The learner's progress."""
        return LearnInfo(
            last_iter=self.last_iter,
            last_step=self.last_step,
            finished=self._finished,
            priority_info=self.priority_info,
        )

    # Parts.

    def _make_hooks(self, world_size: int, has_reduce_log: bool) -> Hooks:
        configs = dict(self._config.hook)
        if world_size > 1:
            configs.setdefault(LOG_REDUCE, make_log_reduce_hook())
            if not has_reduce_log and configs[LOG_REDUCE] is not None:
                raise ConfigError(
                    f"hook.{LOG_REDUCE} is on, and world_size is {world_size}, but there "
                    "is no reduce_log to average over the learners; pass one, or set the hook "
                    "to false"
                )
        return build_learner_hook_by_cfg(configs)

    def _require_policy(self) -> TrainedPolicy:
        if self._policy is None:
            raise RuntimeError("the learner has no policy; set learner.policy first")
        return self._policy

    def _train(self, data: Any) -> None:
        policy = self._require_policy()
        self.call_hook("before_iter")
        begun = time.perf_counter()
        batch = policy.data_preprocess(data)
        preprocess_time = time.perf_counter() - begun
        variables = dict(policy.forward(batch))
        self.updates += 1
        self.last_step += _sum_env_steps(data)
        self.priority_info = PriorityInfo(
            replay_buffer_idx=_read(data, "replay_buffer_idx"),
            replay_unique_id=_read(data, "replay_unique_id"),
            priority=variables.pop("priority", None),
        )
        self.log_variables = {**variables, "data_preprocess_time": preprocess_time}
        self.log_buffer.update(self.log_variables)
        self.call_hook("after_iter")
        self.last_iter = self.updates

    def _train_to_the_end(self, dataloader: AsyncDataLoader) -> None:
        limit = self._config.max_iterations
        while not self._stop_requested.is_set() and (limit is None or self.last_iter < limit):
            begun = time.perf_counter()
            try:
                with self._timed("data_time"):
                    data = next(dataloader)
            except StopIteration:  # request_stop or close
                return
            self.train(data)
            self.tick_time = time.perf_counter() - begun

    def _save_after(self, error: BaseException) -> None:
        self.logger.error("the run failed at iteration %d: %r", self.last_iter, error)
        try:
            self.save_checkpoint()
        except Exception as second:  # the first one is what matters
            self.logger.error("could not save a checkpoint: %s", second)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Writes the duration of the block, in seconds, to the log buffer."""
        begun = time.perf_counter()
        yield
        self.log_buffer[name] = time.perf_counter() - begun


def _read(data: Any, name: str) -> Any:
    """Returns a field of a batch, or the list of its items' fields; None if there is none."""
    if isinstance(data, Sequence) and not hasattr(data, name):
        return [_read_field(item, name) for item in data]
    return _read_field(data, name)


def _read_field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)


def _sum_env_steps(data: Any) -> int:
    steps = _read(data, "env_steps")
    if isinstance(steps, list):
        return sum(int(number) for number in steps if number is not None)
    return 0 if steps is None else int(steps)
