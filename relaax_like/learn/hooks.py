"""Hooks: what a learner does before and after a run, and before and after each iteration.

    class CountHook(LearnerHook):
        def __call__(self, engine):
            print(engine.last_iter)

    register_learner_hook("count", CountHook)
    learner = BaseLearner({"hook": {"mine": {"type": "count", "position": "after_iter"}}}, ...)

Hooks at the same position run in the order of their priorities, the lowest first; those with the
same priority run in the order in which they were added.
"""

import abc
import bisect
import difflib
import inspect
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.config.base_learner import HookConfig, Position
from relaax_like.learn.monitor import Shown, is_histogram, read_numbers
from relaax_like.wire.errors import ConfigError, SnapshotError

if TYPE_CHECKING:
    from relaax_like.learn.base_learner import BaseLearner

POSITIONS: tuple[str, ...] = typing.get_args(Position)


class Hook(abc.ABC):
    """An object that is called at some point of a run.

    Args:
      name: identifies the hook.
      priority: 0 or more; lower runs earlier.

    Raises:
      ConfigError: the priority is below 0, or NaN.
    """

    def __init__(self, name: str, priority: float):
        if not priority >= 0:
            raise ConfigError(f"hook {name}: priority is {priority}, expected 0 or more")
        self._name = name
        self._priority = priority

    @property
    def name(self) -> str:
        """The hook's name."""
        return self._name

    @property
    def priority(self) -> float:
        """Order among the hooks at the same position; lower runs earlier."""
        return self._priority

    @abc.abstractmethod
    def __call__(self, engine: Any) -> Any:
        """Runs the hook; `engine` is the caller."""


class LearnerHook(Hook):
    """A hook of a learner, which passes itself as `engine`.

    Args:
      name: identifies the hook.
      priority: 0 or more; lower runs earlier.
      position: before_run, before_iter, after_iter or after_run. In after_iter `engine.last_iter`
        does not count the current iteration yet; `engine.updates` does.

    Raises:
      ConfigError: the priority is below 0 or NaN, or there is no such position.
    """

    def __init__(self, name: str, priority: float, *, position: str):
        super().__init__(name, priority)
        if position not in POSITIONS:
            raise ConfigError(
                f"hook {name}: position is {position!r}, expected {_either(POSITIONS)}"
            )
        self._position = position

    @property
    def position(self) -> str:
        """When the hook is called."""
        return self._position

    @abc.abstractmethod
    def __call__(self, engine: "BaseLearner") -> Any:
        """Runs the hook in the training thread; training continues when it returns."""


# Position -> hooks in the order in which they run; has all positions.
Hooks = dict[str, list[LearnerHook]]

_registry: dict[str, type[LearnerHook]] = {}


def register_learner_hook(name: str, hook_type: type[LearnerHook]) -> None:
    """Registers a class as a `type` of hooks.

    The arguments of the class must be those of `LearnerHook`; further keyword-only arguments are
    the `ext_args` of the settings.

    Args:
      name: value of `type` in the settings.
      hook_type: the class.

    Raises:
      ConfigError: the class is not a `LearnerHook`, or another class already has the name.
    """
    if not (isinstance(hook_type, type) and issubclass(hook_type, LearnerHook)):
        raise ConfigError(f"hook type {name}: expected a LearnerHook class, got {hook_type!r:.80}")
    if _registry.setdefault(name, hook_type) is not hook_type:
        raise ConfigError(
            f"hook type {name}: this name is already used by {_registry[name].__name__}; choose "
            "another name"
        )


def add_learner_hook(hooks: Hooks, hook: LearnerHook) -> None:
    """Inserts a hook after all hooks at its position with the same or a lower priority."""
    bisect.insort_right(hooks.setdefault(hook.position, []), hook, key=lambda h: h.priority)


def merge_hooks(first: Hooks, second: Hooks) -> Hooks:
    """Merges hooks; those of `first` run earlier than those of `second` with the same priority."""
    return {
        position: sorted(
            first.get(position, []) + second.get(position, []), key=lambda hook: hook.priority
        )
        for position in POSITIONS
    }


def show_hooks(hooks: Hooks) -> str:
    """Returns one line per position with its hooks in order: "after_iter: a (10), b (20)"."""
    lines = []
    for position in POSITIONS:
        names = [f"{hook.name} ({hook.priority:g})" for hook in hooks.get(position, [])]
        lines.append(f"{position}: {', '.join(names) or 'none'}")
    return "\n".join(lines)


def build_learner_hook_by_cfg(hook_configs: Mapping[str, HookConfig | None]) -> Hooks:
    """Makes hooks from their settings (`BaseLearnerConfig.hook`); None disables a hook.

    Raises:
      ConfigError: an unknown type or argument, a missing argument, or a value that its hook
        refuses.
      Exception: another error of a registered class.
    """
    hooks: Hooks = {position: [] for position in POSITIONS}
    for name, config in hook_configs.items():
        if config is not None:
            add_learner_hook(hooks, _make_hook(name, config))
    return hooks


def _make_hook(name: str, config: HookConfig) -> LearnerHook:
    hook_type = _registry.get(config.type)
    if hook_type is None:
        raise ConfigError(
            f"hook.{name}.type: {_unknown(config.type, _registry)}; register a type of your own "
            "with register_learner_hook"
        )
    parameters = inspect.signature(hook_type).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "position"]
    for key in config.ext_args:
        if key not in known:
            raise ConfigError(f"hook.{name}.ext_args.{key}: {_unknown(key, known)}")
    for one in parameters:
        if one.name in known and one.default is one.empty and one.name not in config.ext_args:
            raise ConfigError(
                f"hook.{name}.ext_args.{one.name}: missing, but hooks of type {config.type} need "
                "it; set it"
            )
    arguments: dict[str, Any] = dict(config.ext_args)
    return hook_type(name, config.priority, position=config.position, **arguments)


def _unknown(given: str, known: typing.Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown name {given!r}{hint} (known: {', '.join(known) or 'none'})"


def _either(names: typing.Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _check_freq(name: str, freq: Any) -> int:
    if isinstance(freq, bool) or not isinstance(freq, int) or freq < 1:
        raise ConfigError(f"hook {name}: freq is {freq!r:.80}, expected an integer, 1 or more")
    return freq


class LoadCkptHook(LearnerHook):
    """Type `load_ckpt`: loads a checkpoint.

    Args:
      name: see `LearnerHook`, also for priority and position.
      load_path: the file; "": the learner's `load_path`; if that is empty, too, loads nothing.

    Raises:
      ConfigError: an argument is not valid.
    """

    def __init__(self, name: str, priority: float, *, position: str, load_path: str = ""):
        super().__init__(name, priority, position=position)
        if not isinstance(load_path, str):
            raise ConfigError(
                f"hook {name}: load_path is {load_path!r:.80}, expected a path as text"
            )
        self._load_path = load_path

    def __call__(self, engine: "BaseLearner") -> None:
        """Loads the checkpoint; see `BaseLearner.load_checkpoint`, also for the errors."""
        path = self._load_path or engine.load_path
        if path:
            engine.load_checkpoint(path)


class SaveCkptHook(LearnerHook):
    """Type `save_ckpt`: writes a checkpoint; only in the learner of rank 0.

    If one cannot be written before or after an iteration (disk full), the error is logged, and
    training continues; before and after the run, the error is raised.

    Args:
      name: see `LearnerHook`, also for priority and position.
      freq: iterations between two checkpoints; has no effect at before_run and after_run.

    Raises:
      ConfigError: an argument is not valid.
    """

    def __init__(self, name: str, priority: float, *, position: str, freq: int = 1):
        super().__init__(name, priority, position=position)
        self._freq = _check_freq(name, freq)

    def __call__(self, engine: "BaseLearner") -> None:
        """Writes a checkpoint if one is due; see `BaseLearner.write_checkpoint` for errors."""
        if not self.position.endswith("_iter"):
            engine.write_checkpoint()
        elif engine.updates % self._freq == 0:
            try:
                engine.write_checkpoint()
            except SnapshotError as error:
                engine.logger.error("%s; training continues", error)


class LogShowHook(LearnerHook):
    """Type `log_show`: collects log variables, and periodically shows their means.

    The learner of rank 0 records curves and writes a log line; all learners empty their log buffer.
    For `[histogram]NAME`, the newest values are recorded. A mean that is not finite has no point.

    | curve | x axis |
    |---|---|
    | `Optimizer/NAME` | environment steps, `last_step` of the learner; only if it is not 0 |
    | `Optimizer_by_iteration/NAME` | iterations |

    Args:
      name: see `LearnerHook`, also for priority and position.
      freq: number of iterations that are shown together.

    Raises:
      ConfigError: an argument is not valid.
    """

    def __init__(self, name: str, priority: float, *, position: str, freq: int = 100):
        super().__init__(name, priority, position=position)
        self._freq = _check_freq(name, freq)

    def __call__(self, engine: "BaseLearner") -> None:
        """Collects the log buffer, and shows the means if it is time.

        Raises:
          InvalidInputError: see `Monitor.add`, `Metrics.scalar` and `Metrics.histogram`.
        """
        variables = dict(engine.log_buffer)
        engine.log_buffer.clear()
        if engine.monitor is None:
            return
        engine.monitor.add(variables)
        if engine.updates % self._freq == 0:
            shown = engine.monitor.take()
            _write_line(engine, shown)
            _record(engine, shown)


def _write_line(engine: "BaseLearner", shown: Shown) -> None:
    parts = [f"iteration {engine.updates:,}"]
    if engine.last_step:
        parts.append(f"env steps {engine.last_step:,}")
    parts += [f"{name} {mean:.4g}" for name, mean in shown.means.items()]
    engine.logger.info("%s", " | ".join(parts))


def _record(engine: "BaseLearner", shown: Shown) -> None:
    assert engine.tb_logger is not None  # because there is a monitor
    axes = {"Optimizer_by_iteration": engine.updates}
    if engine.last_step:
        axes["Optimizer"] = engine.last_step
    for group, x in axes.items():
        for name, mean in shown.means.items():
            if np.isfinite(mean):
                engine.tb_logger.scalar(f"{group}/{name}", mean, x)
        for name, values in shown.histograms.items():
            engine.tb_logger.histogram(f"{group}/{name}", values, x)


class LogReduceHook(LearnerHook):
    """Type `log_reduce`: replaces each number in the log buffer by its mean over all learners.

    All learners must call it the same number of times and with the same names; each waits for all
    others. Histograms are not averaged.
    """

    def __call__(self, engine: "BaseLearner") -> None:
        """Passes the numbers to the learner's `reduce_log`.

        Raises:
          InvalidInputError: see `read_numbers`.
          Exception: an error of `reduce_log`.
        """
        buffer = engine.log_buffer
        kept = {name: value for name, value in buffer.items() if is_histogram(name)}
        reduced = engine.reduce_log(read_numbers(buffer))
        buffer.clear()
        buffer.update({**kept, **reduced})


register_learner_hook("load_ckpt", LoadCkptHook)
register_learner_hook("save_ckpt", SaveCkptHook)
register_learner_hook("log_show", LogShowHook)
register_learner_hook("log_reduce", LogReduceHook)
