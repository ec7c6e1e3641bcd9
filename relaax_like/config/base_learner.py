"""Settings of a `BaseLearner`, its data loader and its hooks.

    max_iterations: 10_000
    dataloader: {batch_size: 256, num_workers: 2}
    hook:
      save_ckpt_after_iter: 500
      log_show_after_iter: {ext_args: {freq: 10}}
      my_hook: {type: my_type, position: before_iter, priority: 5}

A hook is written in its full form under a name of the user's choice, or as a shorthand:

| shorthand | means | default |
|---|---|---|
| `load_ckpt_before_run: PATH` | `load_ckpt` of that file | `""`: `load_path`, or nothing |
| `save_ckpt_after_iter: FREQ` | `save_ckpt` after each FREQ iterations | 10 000 |
| `save_ckpt_after_run: true` | `save_ckpt` at the end | true |
| `log_show_after_iter: FREQ` | `log_show` after each FREQ iterations | 100 |
| `log_reduce_after_iter: true` | `log_reduce` after each iteration | with several learners |

A full form under such a name changes only the keys that it sets, unless its `type` is another one.
`null` disables the hook; so does `false` for a shorthand that takes true.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from relaax_like.config.base import Settings
from relaax_like.config.problems import Problems, describe_value
from relaax_like.config.yaml_document import YamlDocument

Position = Literal["before_run", "before_iter", "after_iter", "after_run"]


class DataloaderConfig(Settings):
    """Key `dataloader`: how `BaseLearner.start` loads its data."""

    batch_size: int = Field(default=64, ge=1)
    """Items per batch."""
    chunk_size: int | None = Field(default=None, ge=1)
    """Items requested at once; null: batch_size."""
    num_workers: int = Field(default=1, ge=1)
    """Loader threads; each loads one chunk at a time."""

    @model_validator(mode="after")
    def _validate_chunks(self) -> Self:
        if self.chunk_size is not None and self.batch_size % self.chunk_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of chunk_size "
                f"{self.chunk_size}; a batch consists of complete chunks: change one of them"
            )
        return self


class HookConfig(Settings):
    """The full form of a hook; its key is its name."""

    type: str
    """A registered type: load_ckpt, save_ckpt, log_show, log_reduce, or one of your own."""
    position: Position
    """When the hook is called."""
    priority: float = Field(default=20.0, ge=0)
    """Hooks at the same position run in ascending order of priority."""
    ext_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Further arguments of the hook's class."""


def _is_freq(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# Argument of the hook's class that has the value of a shorthand -> whether it fits, and what is
# expected; None: there is no such argument, and the value says whether there is a hook.
_VALUES: dict[str | None, tuple[Callable[[Any], bool], str]] = {
    "freq": (_is_freq, "the number of iterations between two calls (1 or more), or null"),
    "load_path": (
        lambda value: isinstance(value, str),
        "the path of a checkpoint as text, or null",
    ),
    None: (lambda value: isinstance(value, bool), "true or false"),
}
# Shorthand -> type, position, priority, and the argument that has its value.
_SHORTHANDS: dict[str, tuple[str, Position, float, str | None]] = {
    "load_ckpt_before_run": ("load_ckpt", "before_run", 20.0, "load_path"),
    "save_ckpt_after_iter": ("save_ckpt", "after_iter", 20.0, "freq"),
    "save_ckpt_after_run": ("save_ckpt", "after_run", 20.0, None),
    "log_show_after_iter": ("log_show", "after_iter", 20.0, "freq"),
    "log_reduce_after_iter": ("log_reduce", "after_iter", 10.0, None),
}
_DEFAULTS: dict[str, Any] = {
    "load_ckpt_before_run": "",
    "save_ckpt_after_iter": 10_000,
    "save_ckpt_after_run": True,
    "log_show_after_iter": 100,
}
LOG_REDUCE = "log_reduce_after_iter"
# Value of key `hook` without any of the default hooks.
NO_HOOKS: dict[str, Any] = dict.fromkeys(_DEFAULTS)


class BaseLearnerConfig(Settings):
    """Settings of a `BaseLearner`; `make_base_learner_config` creates them from a dict."""

    max_iterations: int | None = Field(default=None, ge=1)
    """`BaseLearner.start` returns after this many iterations, including those before a loaded
    checkpoint; null: no limit."""
    load_path: str = ""
    """Checkpoint (.npz) to start from; "": none."""
    use_cuda: bool = False
    """Tell the policy to use a GPU, with the index rank mod 8."""
    use_distributed: bool = False
    """Several learners train together; required if the argument world_size of `BaseLearner` is
    above 1."""
    dataloader: DataloaderConfig = DataloaderConfig()
    """How `BaseLearner.start` loads its data."""
    hook: dict[str, HookConfig | None] = Field(default_factory=dict, validate_default=True)
    """Name -> full form; null disables the hook of that name."""

    @field_validator("hook", mode="before")
    @classmethod
    def _merge_hooks(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        hooks = {name: _to_full_form(name, default) for name, default in _DEFAULTS.items()}
        return {**hooks, **{name: _to_full_form(name, given) for name, given in value.items()}}

    @model_validator(mode="after")
    def _validate_load_path(self) -> Self:
        hooks = {
            name: hook for name, hook in self.hook.items() if hook and hook.type == "load_ckpt"
        }
        if self.load_path and not hooks:
            raise ValueError(
                f"load_path is {self.load_path!r}, but there is no hook of type load_ckpt to "
                "load it; add one, or remove load_path"
            )
        for name, hook in hooks.items():
            path = hook.ext_args.get("load_path")
            if self.load_path and path and path != self.load_path:
                raise ValueError(
                    f"load_path is {self.load_path!r}, but hook.{name} loads {path!r}; set "
                    "only one of them"
                )
        return self


def make_base_learner_config(
    given: Mapping[str, Any] | BaseLearnerConfig | None = None,
) -> BaseLearnerConfig:
    """Merges the given settings into the defaults, key by key at every depth.

    Args:
      given: nested settings; None: only defaults; a `BaseLearnerConfig` is returned unchanged.

    Raises:
      ConfigError: one line per problem, with the key and what was expected.
    """
    if isinstance(given, BaseLearnerConfig):
        return given
    data = dict(given or {})
    try:
        return BaseLearnerConfig.model_validate(data)
    except ValidationError as error:
        problems = Problems(YamlDocument(Path("learner"), data))
        problems.add_validation((), BaseLearnerConfig, error)
        problems.raise_if_any()
        raise


def make_log_reduce_hook() -> HookConfig:
    """Returns the default hook of learners that train together."""
    return HookConfig.model_validate(_expand(LOG_REDUCE, True))


def _expand(shorthand: str, value: Any) -> dict[str, Any]:
    kind, position, priority, argument = _SHORTHANDS[shorthand]
    arguments = {} if argument is None else {argument: value}
    return {"type": kind, "position": position, "priority": priority, "ext_args": arguments}


def _to_full_form(name: str, given: Any) -> Any:
    """Expands a shorthand, and adds its defaults to a full form under a shorthand's name."""
    kind, *_, argument = _SHORTHANDS.get(name, (None, None))
    if given is None or isinstance(given, HookConfig):
        return given
    if isinstance(given, Mapping):
        if kind is None or given.get("type", kind) != kind:
            return given
        return _deep_merge(_expand(name, _DEFAULTS.get(name, True)), given)
    if kind is None:
        near = difflib.get_close_matches(str(name), _SHORTHANDS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(
            f"{name}: expected a section with type and position, got {describe_value(given)}; only "
            f"the shorthands {', '.join(_SHORTHANDS)} have other values{hint}"
        )
    fits, expected = _VALUES[argument]
    if not fits(given):
        raise ValueError(f"{name}: expected {expected}, got {describe_value(given)}")
    return None if given is False else _expand(name, given)


def _deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            value = _deep_merge(known, value)
        merged[key] = value
    return merged
