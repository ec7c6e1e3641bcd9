"""Hooks: priorities, positions, the registry, and building them from settings."""

# covers D9, D10, D18

import re
from typing import Any

import pytest

from relaax_like.config.base_learner import make_base_learner_config
from relaax_like.learn.hooks import (
    POSITIONS,
    Hook,
    Hooks,
    LearnerHook,
    LoadCkptHook,
    LogReduceHook,
    LogShowHook,
    SaveCkptHook,
    add_learner_hook,
    build_learner_hook_by_cfg,
    merge_hooks,
    register_learner_hook,
    show_hooks,
)
from relaax_like.wire.errors import ConfigError


class NoteHook(LearnerHook):
    """Notes a word."""

    def __init__(self, name: str, priority: float, *, position: str, word: str = ""):
        super().__init__(name, priority, position=position)
        self.word = word

    def __call__(self, engine: Any) -> None:
        raise AssertionError("not called here")


register_learner_hook("test_hooks/note", NoteHook)


class NeedyHook(NoteHook):
    """Needs a word."""

    def __init__(self, name: str, priority: float, *, position: str, word: str):
        super().__init__(name, priority, position=position, word=word)


register_learner_hook("test_hooks/needy", NeedyHook)


def make_hook(name: str, priority: float, position: str = "after_iter") -> NoteHook:
    return NoteHook(name, priority, position=position)


def names_of(hooks: Hooks, position: str = "after_iter") -> list[str]:
    return [hook.name for hook in hooks[position]]


def build(hook: dict[str, Any]) -> Hooks:
    return build_learner_hook_by_cfg(make_base_learner_config({"hook": hook}).hook)


def test_a_hook_is_abstract_and_has_name_and_priority() -> None:
    class Here(Hook):
        def __call__(self, engine: Any) -> Any:
            return engine + 1

    with pytest.raises(TypeError, match="abstract"):
        Hook("a", 1)  # type: ignore[abstract]
    with pytest.raises(TypeError, match="abstract"):
        LearnerHook("a", 1, position="after_run")  # type: ignore[abstract]
    hook = Here("a", 0)
    assert (hook.name, hook.priority, hook(4)) == ("a", 0, 5)


@pytest.mark.parametrize("priority", [-1, -0.001, float("nan")])
def test_a_negative_priority_is_refused(priority: float) -> None:
    with pytest.raises(ConfigError, match=r"hook a: priority is .*, expected 0 or more"):
        make_hook("a", priority)


@pytest.mark.parametrize("position", POSITIONS)
def test_the_four_positions_are_known(position: str) -> None:
    assert make_hook("a", 1, position).position == position


@pytest.mark.parametrize("position", ["", "after", "before_train"])
def test_another_position_is_refused(position: str) -> None:
    with pytest.raises(ConfigError, match="expected before_run, before_iter, after_iter or after"):
        make_hook("a", 1, position)


def test_lower_priorities_run_earlier_and_equals_in_their_order() -> None:
    hooks: Hooks = {}
    for name, priority in [("a", 20), ("b", 10), ("c", 20), ("d", 10.5), ("e", 10), ("f", 0)]:
        add_learner_hook(hooks, make_hook(name, priority))
    assert names_of(hooks) == ["f", "b", "e", "d", "a", "c"]


def test_merged_hooks_keep_the_order_of_equals_and_the_first_ones_run_earlier() -> None:
    first: Hooks = {}
    second: Hooks = {}
    for name, priority in [("a", 20), ("b", 20), ("c", 5)]:
        add_learner_hook(first, make_hook(name, priority))
    for name, priority in [("d", 20), ("e", 0), ("f", 5)]:
        add_learner_hook(second, make_hook(name, priority))
    add_learner_hook(second, make_hook("g", 1, "before_run"))
    merged = merge_hooks(first, second)
    assert names_of(merged) == ["e", "c", "f", "a", "b", "d"]
    assert names_of(merged, "before_run") == ["g"]
    assert set(merged) == set(POSITIONS)
    assert names_of(first) == ["c", "a", "b"]  # unchanged
    assert names_of(merge_hooks(second, first)) == ["e", "f", "c", "d", "a", "b"]


def test_shown_hooks_are_lines_in_the_order_in_which_they_run() -> None:
    hooks: Hooks = {}
    for name, priority, position in [("a", 20, "after_iter"), ("b", 2.5, "after_iter")]:
        add_learner_hook(hooks, make_hook(name, priority, position))
    assert show_hooks(hooks).splitlines() == [
        "before_run: none",
        "before_iter: none",
        "after_iter: b (2.5), a (20)",
        "after_run: none",
    ]


def test_default_settings_build_the_built_in_hooks() -> None:
    hooks = build({"log_reduce_after_iter": True})
    built = {p: [(type(h), h.name, h.priority) for h in hooks[p]] for p in POSITIONS}
    assert built == {
        "before_run": [(LoadCkptHook, "load_ckpt_before_run", 20)],
        "before_iter": [],
        "after_iter": [
            (LogReduceHook, "log_reduce_after_iter", 10),
            (SaveCkptHook, "save_ckpt_after_iter", 20),
            (LogShowHook, "log_show_after_iter", 20),
        ],
        "after_run": [(SaveCkptHook, "save_ckpt_after_run", 20)],
    }


def test_hooks_that_are_off_are_not_built() -> None:
    off = ("load_ckpt_before_run", "save_ckpt_after_iter", "log_show_after_iter")
    hooks = build({**dict.fromkeys(off), "save_ckpt_after_run": False})
    assert hooks == {position: [] for position in POSITIONS}


def test_a_registered_type_is_built_with_its_arguments() -> None:
    hook = build(
        {
            "mine": {
                "type": "test_hooks/note",
                "position": "before_iter",
                "priority": 3,
                "ext_args": {"word": "hello"},
            }
        }
    )["before_iter"][0]
    assert isinstance(hook, NoteHook)
    assert (hook.name, hook.priority, hook.word) == ("mine", 3, "hello")


@pytest.mark.parametrize(
    ("hook", "want"),
    [
        (
            {"x": {"type": "save_ckp", "position": "after_run"}},
            "hook.x.type: unknown name 'save_ckp'; did you mean save_ckpt?",
        ),
        (
            {"save_ckpt_after_iter": {"ext_args": {"frec": 5}}},
            "hook.save_ckpt_after_iter.ext_args.frec: unknown name 'frec'; did you mean freq?",
        ),
        (
            {"x": {"type": "log_reduce", "position": "after_iter", "ext_args": {"a": 1}}},
            "hook.x.ext_args.a: unknown name 'a' (known: none)",
        ),
        (
            {"x": {"type": "test_hooks/needy", "position": "after_run"}},
            "hook.x.ext_args.word: missing, but hooks of type test_hooks/needy need it",
        ),
        # The constructor's own arguments are not to be given twice.
        (
            {"save_ckpt_after_run": {"ext_args": {"position": "after_iter"}}},
            "hook.save_ckpt_after_run.ext_args.position: unknown name",
        ),
        (
            {"log_show_after_iter": {"ext_args": {"freq": 0}}},
            "hook log_show_after_iter: freq is 0, expected an integer, 1 or more",
        ),
        (
            {"save_ckpt_after_iter": {"ext_args": {"freq": "5"}}},
            "hook save_ckpt_after_iter: freq is '5', expected an integer",
        ),
        (
            {"load_ckpt_before_run": {"ext_args": {"load_path": 5}}},
            "hook load_ckpt_before_run: load_path is 5, expected a path as text",
        ),
    ],
)
def test_types_and_arguments_that_do_not_exist_are_refused_by_name(
    hook: dict[str, Any], want: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(want)):
        build(hook)


def test_a_taken_type_name_is_refused_and_registering_again_is_not() -> None:
    register_learner_hook("test_hooks/note", NoteHook)
    with pytest.raises(
        ConfigError, match="hook type save_ckpt: this name is already used by SaveCkptHook"
    ):
        register_learner_hook("save_ckpt", NoteHook)


@pytest.mark.parametrize("hook_type", [Hook, int, NoteHook("a", 1, position="after_run")])
def test_only_classes_of_learner_hooks_are_registered(hook_type: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a LearnerHook class"):
        register_learner_hook("test_hooks/other", hook_type)
