"""DI-engine's comm learner: drives a `BaseLearner` whose data come from a coordinator.

`BaseCommLearner` is the interface; `RemoteCommLearner` implements it with a `LearnerSlave`, and
takes the place of DI-engine's `FlaskFileSystemLearner`: gRPC instead of Flask, JSON instead of
pickled files.
"""

import abc
import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.addons.coordinator.comm_hooks import SendLearnInfoHook, SendPolicyHook
from relaax_like.addons.coordinator.job import validate_name
from relaax_like.addons.coordinator.slave import LearnerSlave, find_callbacks
from relaax_like.addons.coordinator.tasks import TaskFail
from relaax_like.learn.base_learner import BaseLearner, TrainedPolicy
from relaax_like.learn.hooks import LearnerHook
from relaax_like.wire.array_file import write_arrays
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.security import ClientSecurity

logger = logging.getLogger(__name__)

# Longest wait of one `get_data`; a data loader that closes waits for it.
_GET_DATA_SEC = 0.5
_LOOK_SEC = 0.05
_CLOSE_SEC = 5.0
# Keys of `config/base_learner.py` that are paths.
_PATH_KEYS = ("load_path", "load_ckpt_before_run")
_POLICY_KIND = "policy 1"
_NO_LEARNER = "there is no learner; send learner_start_task first"

CreatePolicy = Callable[[Mapping[str, Any]], Any]


class ServedLearner(BaseLearner):
    """A learner whose data and progress pass through a comm learner.

    Attributes:
      send_policy: see `BaseCommLearner.send_policy`.
      send_learn_info: see `BaseCommLearner.send_learn_info`.
    """

    send_policy: Callable[[Mapping[str, Any]], None]
    send_learn_info: Callable[[Mapping[str, Any]], None]

    @property
    def max_iterations(self) -> int | None:
        """Number of iterations after which the learner ends; None: no limit."""
        return self._config.max_iterations


class BaseCommLearner(abc.ABC):
    """Creates a learner for each task; subclasses define where data come from and results go.

        class MyCommLearner(BaseCommLearner):
            def send_policy(self, state_dict): ...
            def get_data(self, batch_size): ...
            def send_learn_info(self, learn_info): ...

            @property
            def hooks4call(self):
                return [SendPolicyHook("send_policy", 100, position="before_run"), ...]

        comm = MyCommLearner({"use_distributed": False}, create_policy, exp_dir="runs/mine")
        comm.start()
        learner = comm._create_learner({"learner_cfg": {"max_iterations": 10}, "policy": {}})
        comm.close()

    Args:
      cfg: settings: `use_distributed` (default False), and the keys of subclasses.
      create_policy: makes a policy from the task's `policy`; if the result has an attribute
        `learn_mode`, the value of the attribute is trained.
      exp_dir: folder of the experiment; its subfolder `ckpt` has checkpoints.
      rank: number of this learner among those that train together.
      world_size: number of learners that train together.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        create_policy: CreatePolicy,
        *,
        exp_dir: str | Path,
        rank: int = 0,
        world_size: int = 1,
    ):
        self._cfg = cfg
        self._create_policy = create_policy
        self._exp_dir = Path(exp_dir)
        self._rank, self._world_size = rank, world_size
        self._use_distributed = bool(cfg.get("use_distributed", False))
        self._end_flag = True

    @abc.abstractmethod
    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Stores or sends the state of a policy: `state_dict` and `iter`."""

    @abc.abstractmethod
    def get_data(self, batch_size: int) -> Any:
        """Returns `batch_size` items; None: there are too few so far. See `learn.data_loader`."""

    @abc.abstractmethod
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Stores or sends the progress of the learner."""

    @property
    @abc.abstractmethod
    def hooks4call(self) -> Sequence[LearnerHook]:
        """The hooks that call `send_policy` and `send_learn_info`."""

    def start(self) -> None:
        """Starts the service."""
        self._end_flag = False

    def close(self) -> None:
        """Stops the service. Idempotent."""
        self._end_flag = True

    def _create_learner(self, task_info: Mapping[str, Any]) -> ServedLearner:
        """Makes a learner with a policy in learn mode, a data loader and this object's methods.

        Args:
          task_info: has `learner_cfg`, see `config/base_learner.py`, and `policy`.

        Raises:
          ConfigError: the settings are wrong.
          Exception: an error of `create_policy`, or of a registered hook class.
        """
        given = task_info.get("learner_cfg", {})
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"learner_cfg: {given!r:.80}, expected a mapping of settings, such as "
                "{'max_iterations': 100}"
            )
        config = {**given, "use_distributed": self._use_distributed}
        learner = ServedLearner(
            config, exp_dir=self._exp_dir, rank=self._rank, world_size=self._world_size
        )
        for name in ("get_data", "send_policy", "send_learn_info"):
            setattr(learner, name, getattr(self, name))
        try:
            learner.setup_dataloader()
            policy = self._create_policy(task_info.get("policy", {}))
            learner.policy = _select_learn_mode(policy)
        except BaseException:
            learner.close()  # its data loader would take the data of the next learner
            raise
        return learner


def _select_learn_mode(policy: Any) -> TrainedPolicy:
    found: TrainedPolicy = getattr(policy, "learn_mode", policy)
    return found


class RemoteCommLearner(BaseCommLearner):
    """A resident comm learner: connects to a coordinator, whose tasks start and feed learners.

        comm = RemoteCommLearner(
            {"address": "localhost:7004", "name": "learner-1"}, create_policy, exp_dir="runs/mine"
        )
        comm.start()   # tasks come, one learner after another
        comm.close()

    Three queues of length 1 connect the learner's threads to the tasks: `get_data` puts a demand
    and waits for the data; `learner_get_data_task` returns the demand; `learner_learn_task` passes
    the data and returns the progress after the iteration. After the last iteration, that task
    returns the progress after the run, with `finished`; then the learner is closed, and another
    start task can follow.

    The newest policy is in the array file `EXP/policy.npz`.

    Args:
      cfg: settings: `address` (HOST:PORT of the coordinator) and `name` (unique there); optional:
        `use_distributed`, and `send_learn_info_freq` (default 10, see `SendLearnInfoHook`).
      create_policy: see `BaseCommLearner`.
      exp_dir: see `BaseCommLearner`.
      rank: see `BaseCommLearner`.
      world_size: see `BaseCommLearner`.
      security: token of role learner, and certificates; None: no token and no TLS.

    Attributes:
      slave: the session with the coordinator.

    Raises:
      ConfigError: `address` or `name` is missing, empty or not text, `address` is not HOST:PORT, or
        a file that `security` names cannot be used.
      InvalidInputError: `name` is not a valid name; see `job.validate_name`.
    """

    def __init__(
        self,
        cfg: Mapping[str, Any],
        create_policy: CreatePolicy,
        *,
        exp_dir: str | Path,
        rank: int = 0,
        world_size: int = 1,
        security: ClientSecurity | None = None,
    ):
        super().__init__(cfg, create_policy, exp_dir=exp_dir, rank=rank, world_size=world_size)
        needed = {
            "address": "HOST:PORT of the coordinator",
            "name": "a name that no other slave of the coordinator has",
        }
        for key, expected in needed.items():
            if not cfg.get(key) or not isinstance(cfg[key], str):
                found = f"{cfg[key]!r:.80}" if key in cfg else "missing"
                raise ConfigError(f"cfg.{key}: {found}, expected text: {expected}")
        validate_name(cfg["name"], "cfg.name")
        self.slave = LearnerSlave(
            cfg["address"], cfg["name"], find_callbacks(self), security=security
        )
        self._learner: ServedLearner | None = None
        self._learner_thread: threading.Thread | None = None
        self._error = ""
        self._demand_lock = threading.Lock()
        self._make_queues()

    def _make_queues(self) -> None:
        self._data_demand_queue: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=1)
        self._data_result_queue: queue.Queue[Any] = queue.Queue(maxsize=1)
        self._learn_info_queue: queue.Queue[dict[str, Any]] = queue.Queue(maxsize=1)
        self._has_demand = False

    def start(self) -> None:
        """Starts to connect; call this once. The coordinator need not be running yet."""
        super().start()
        self.slave.start()

    def close(self) -> None:
        """Leaves the coordinator and ends the learner. Idempotent."""
        super().close()
        self.slave.close()
        self.deal_with_learner_close()

    # What the learner calls.

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        """Writes the policy's state to `EXP/policy.npz`, atomically.

        Raises:
          OSError: the file cannot be written.
          ValueError: an array of the state contains Python objects.
        """
        arrays = dict(state_dict["state_dict"])
        arrays["relaax_iter"] = np.array(state_dict["iter"])
        self._exp_dir.mkdir(parents=True, exist_ok=True)
        write_arrays(self._exp_dir / "policy.npz", arrays, _POLICY_KIND)

    def get_data(self, batch_size: int) -> Any:
        """Requests `batch_size` items, and returns them; None: they have not arrived yet.

        Waits briefly. A request stays open after None: a later call returns its items.
        """
        with self._demand_lock:
            if not self._has_demand:
                learner = self._learner
                updates = 0 if learner is None else learner.updates
                demand = {"batch_size": batch_size, "cur_learner_iter": updates}
                try:
                    self._data_demand_queue.put(demand, timeout=_GET_DATA_SEC)
                except queue.Full:
                    return None
                self._has_demand = True
            try:
                data = self._data_result_queue.get(timeout=_GET_DATA_SEC)
            except queue.Empty:
                return None
            self._has_demand = False
            return data

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Queues the progress for the task that waits for it.

        Blocks while earlier progress is queued; gives up if another learner is started, or if this
        comm learner is closed.

        Raises:
          ValueError: the progress contains an object that JSON cannot represent.
        """
        learner, waiting = self._learner, self._learn_info_queue
        while learner is self._learner and not self._end_flag:
            try:
                waiting.put(_to_json(learn_info), timeout=_LOOK_SEC)
                return
            except queue.Full:
                continue

    @property
    def hooks4call(self) -> Sequence[LearnerHook]:
        """The hooks that send the policy and the progress, at the positions of `comm_hooks`.

        Raises:
          ConfigError: `send_learn_info_freq` is not an integer of 1 or more.
        """
        freq = self._cfg.get("send_learn_info_freq", 10)
        return [
            SendPolicyHook("send_policy", 100, position="before_run"),
            SendPolicyHook("send_policy", 100, position="after_iter"),
            SendLearnInfoHook("send_learn_info", 110, position="after_iter", freq=freq),
            SendLearnInfoHook("send_learn_info", 110, position="after_run", freq=freq),
        ]

    # What the tasks call.

    def deal_with_resource(self) -> dict[str, int]:
        """Returns the number of this machine's NVIDIA GPUs, with the key `gpu`."""
        return {"gpu": len(list(Path("/dev").glob("nvidia[0-9]*")))}

    def deal_with_learner_start(self, task_info: Mapping[str, Any]) -> None:
        """Makes a learner and starts it in a thread; closes an earlier one.

        Raises:
          TaskFail: the settings are wrong, or the policy or data loader cannot be made.
          ConfigError: `send_learn_info_freq` is not an integer of 1 or more.
        """
        self.deal_with_learner_close()
        self._make_queues()  # without what a learner that could not be created had demanded
        hooks = self.hooks4call
        try:
            _refuse_paths(task_info.get("learner_cfg", {}))
            learner = self._create_learner(task_info)
        except Exception as error:
            reason = str(error)
            if not isinstance(error, RelaaxError):  # of the user's policy: "'layers'" says little
                reason = f"{type(error).__name__}: {error}; check the task's policy and learner_cfg"
            raise TaskFail.because(f"the learner cannot be created: {reason}") from error
        for hook in hooks:
            learner.register_hook(hook)
        self._learner, self._error = learner, ""
        self._learner_thread = threading.Thread(
            target=self._learn, args=(learner,), name="learner", daemon=True
        )
        self._learner_thread.start()

    def deal_with_get_data(self) -> dict[str, Any]:
        """Waits for the learner's demand, and returns it: `batch_size` and `cur_learner_iter`.

        Raises:
          TaskFail: there is no learner, or it has ended.
        """
        return dict(self._wait_for(self._data_demand_queue))

    def deal_with_learner_learn(self, data: Any) -> dict[str, Any]:
        """Passes data to the learner, and returns its progress after the iteration.

        After the last iteration, returns the progress after the run, and closes the learner.

        Raises:
          TaskFail: there is no learner, it has ended, or it has not taken the previous data.
        """
        learner = self._learner
        if learner is None:  # data would stay in the queue for the next one
            raise TaskFail.because(_NO_LEARNER)
        try:
            self._data_result_queue.put_nowait(data)
        except queue.Full:
            raise TaskFail.because(
                "the learner has not taken the previous data yet; send learner_get_data_task first"
            ) from None
        info = dict(self._wait_for(self._learn_info_queue))
        last = learner.max_iterations
        if last is not None and not info["finished"] and info["last_iter"] + 1 >= last:
            info = dict(self._wait_for(self._learn_info_queue))  # that after the run
        if info["finished"]:
            self.deal_with_learner_close()
        return info

    def deal_with_learner_close(self) -> None:
        """Ends the learner, if there is one; afterwards another learner can be started."""
        learner, self._learner = self._learner, None
        thread, self._learner_thread = self._learner_thread, None
        if learner is not None:
            learner.close()
        if thread is not None:
            thread.join(_CLOSE_SEC)
            self._make_queues()  # without what its loader had demanded ahead

    def _learn(self, learner: ServedLearner) -> None:
        try:
            learner.start()
        except Exception as error:
            logger.exception("the learner failed")
            self._error = f"{type(error).__name__}: {error}"

    def _wait_for(self, source: "queue.Queue[Any]") -> Any:
        """Waits for an entry of a queue, as long as the learner's thread lives.

        Raises:
          TaskFail: there is no learner, or it has ended.
        """
        while True:
            thread = self._learner_thread
            alive = thread is not None and thread.is_alive()
            try:
                return source.get(timeout=_LOOK_SEC)
            except queue.Empty:
                if alive:
                    continue
            message = _NO_LEARNER
            if thread is not None:
                reason = f": {self._error}" if self._error else ""
                message = f"the learner has ended{reason}; send learner_start_task to start another"
            raise TaskFail.because(message)


def run_learner_task(
    coordinator: Any,
    slave: str,
    task_info: Mapping[str, Any],
    sample: Callable[[int], Any],
    on_info: Callable[[Mapping[str, Any]], None] = lambda info: None,
) -> dict[str, Any]:
    """Drives one comm learner from its start to its end, in the process of a `Coordinator`.

    Args:
      coordinator: a `coordinator.Coordinator`.
      slave: name of the comm learner.
      task_info: see `BaseCommLearner._create_learner`; the slave's results repeat `task_id` and
        `buffer_id`.
      sample: receives a number of items, and returns that many, of JSON types: the data, or the
        names of data that both ends can read.
      on_info: called with the progress of each iteration, for example to update priorities.

    Returns:
      The last progress; `finished` is true.

    Raises:
      TaskFail: the learner refused a task, answered with a result that is not valid, did not
        answer in the task's time, or is lost.
      InvalidInputError: there is no such slave, it has too many open tasks, or `task_info` or the
        data are too large.
      TypeError: `task_info` or the data contain a value that JSON cannot represent.
      KeyError: a custom slave's result lacks `batch_size`, `info` or `finished`.
      CancelledError: the coordinator was closed; that of `concurrent.futures`.
      Exception: an error of `sample` or `on_info`.
    """
    coordinator.send_task(slave, "learner_start_task", task_info).result()
    while True:
        demand = coordinator.send_task(slave, "learner_get_data_task", {}).result()
        data = sample(demand["batch_size"])
        reply = coordinator.send_task(slave, "learner_learn_task", {"data": data}).result()
        on_info(reply["info"])
        if reply["info"]["finished"]:
            return dict(reply["info"])


def _refuse_paths(config: Any, place: str = "learner_cfg") -> None:
    """Checks that received settings do not name a file of this machine.

    Args:
      config: the settings; anything but a mapping has no keys.
      place: name of the settings, for the error.

    Raises:
      ConfigError: a key of `_PATH_KEYS` has a value.
    """
    items = config.items() if isinstance(config, Mapping) else ()
    for key, value in items:
        name = f"{place}.{key}"
        if key in _PATH_KEYS and value:
            raise ConfigError(
                f"{name}: a task cannot name a file of the machine that learns, but names "
                f"{str(value)[:80]!r}; remove the key"
            )
        _refuse_paths(value, name)


def _to_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the progress with lists in place of arrays."""
    text = json.dumps(info, default=lambda value: np.asarray(value).tolist())
    return dict(json.loads(text))
