"""Settings of a learner: merged over the defaults, shorthands of hooks, and what is refused."""

# covers D3, D18

import re
from typing import Any

import pytest

from relaax_like.config.base_learner import (
    BaseLearnerConfig,
    HookConfig,
    make_base_learner_config,
)
from relaax_like.wire.errors import ConfigError


def test_without_settings_all_are_the_defaults() -> None:
    config = make_base_learner_config()
    assert config.max_iterations is None
    assert config.load_path == ""
    assert not config.use_cuda
    assert not config.use_distributed
    assert config.dataloader.batch_size == 64
    assert config.dataloader.chunk_size is None
    assert config.dataloader.num_workers == 1
    assert {name: (h.type, h.position, h.priority, h.ext_args) for name, h in hooks(config)} == {
        "load_ckpt_before_run": ("load_ckpt", "before_run", 20, {"load_path": ""}),
        "save_ckpt_after_iter": ("save_ckpt", "after_iter", 20, {"freq": 10_000}),
        "save_ckpt_after_run": ("save_ckpt", "after_run", 20, {}),
        "log_show_after_iter": ("log_show", "after_iter", 20, {"freq": 100}),
    }


def hooks(config: BaseLearnerConfig) -> list[tuple[str, HookConfig]]:
    return [(name, hook) for name, hook in config.hook.items() if hook is not None]


def test_what_is_given_is_merged_over_the_defaults_at_every_depth() -> None:
    given = {
        "max_iterations": 7,
        "dataloader": {"num_workers": 3},
        "hook": {"log_show_after_iter": {"ext_args": {"freq": 5}, "priority": 1.5}},
    }
    config = make_base_learner_config(given)
    assert config.max_iterations == 7
    assert (config.dataloader.num_workers, config.dataloader.batch_size) == (3, 64)
    assert config.hook["log_show_after_iter"] == HookConfig(
        type="log_show", position="after_iter", priority=1.5, ext_args={"freq": 5}
    )
    assert config.hook["save_ckpt_after_iter"] is not None
    # Another learner has the defaults again.
    assert make_base_learner_config().hook["log_show_after_iter"] == HookConfig(
        type="log_show", position="after_iter", ext_args={"freq": 100}
    )


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("load_ckpt_before_run", "a.npz", ("load_ckpt", "before_run", 20, {"load_path": "a.npz"})),
        ("save_ckpt_after_iter", 3, ("save_ckpt", "after_iter", 20, {"freq": 3})),
        ("save_ckpt_after_run", True, ("save_ckpt", "after_run", 20, {})),
        ("log_show_after_iter", 1, ("log_show", "after_iter", 20, {"freq": 1})),
        ("log_reduce_after_iter", True, ("log_reduce", "after_iter", 10, {})),
        ("log_reduce_after_iter", {}, ("log_reduce", "after_iter", 10, {})),
        ("save_ckpt_after_run", {"priority": 30}, ("save_ckpt", "after_run", 30, {})),
        # A full form of another type takes nothing from the shorthand.
        (
            "save_ckpt_after_iter",
            {"type": "mine", "position": "before_run", "ext_args": {"every": 1}},
            ("mine", "before_run", 20, {"every": 1}),
        ),
        ("x", {"type": "mine", "position": "before_iter"}, ("mine", "before_iter", 20, {})),
    ],
)
def test_a_hook_s_value_becomes_its_full_form(name: str, value: Any, want: Any) -> None:
    hook = make_base_learner_config({"hook": {name: value}}).hook[name]
    assert hook is not None
    assert (hook.type, hook.position, hook.priority, hook.ext_args) == want


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("save_ckpt_after_run", False),
        ("log_reduce_after_iter", False),
        ("log_show_after_iter", None),
        ("load_ckpt_before_run", None),
    ],
)
def test_a_hook_that_is_off_is_none_and_stays_so_in_the_saved_settings(name: str, off: Any) -> None:
    config = make_base_learner_config({"hook": {name: off}})
    assert config.hook[name] is None
    again = BaseLearnerConfig.model_validate_json(config.model_dump_json())
    assert again == config


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (
            {"max_iteration": 5},
            "learner: max_iteration: unknown key; did you mean max_iterations?",
        ),
        (
            {"dataloader": {"batchsize": 5}},
            "learner: dataloader.batchsize: unknown key; did you mean batch_size? (known: "
            "batch_size, chunk_size, num_workers)",
        ),
        ({"dataloader": 5}, "dataloader: expected a section of keys, got 5"),
        (
            {"dataloader": {"batch_size": "5"}},
            "dataloader.batch_size: expected an integer, got '5'",
        ),
        ({"dataloader": {"num_workers": 0}}, "dataloader.num_workers: expected 1 or more, got 0"),
        (
            {"dataloader": {"batch_size": 10, "chunk_size": 4}},
            "dataloader: batch_size 10 is not a multiple of chunk_size 4",
        ),
        ({"max_iterations": 0}, "max_iterations: expected 1 or more, got 0"),
        ({"use_cuda": 1}, "use_cuda: expected true or false, got 1"),
        ({"hook": 3}, "hook: expected a section of keys, got 3"),
        (
            {"hook": {"save_ckpt_after_itr": 3}},
            "hook: save_ckpt_after_itr: expected a section with type and position, got 3; only the",
        ),
        ({"hook": {"save_ckpt_after_iter": 0}}, "save_ckpt_after_iter: expected the number"),
        (
            {"hook": {"save_ckpt_after_iter": True}},
            "save_ckpt_after_iter: expected the number of iterations between two calls (1 or "
            "more), or null",
        ),
        (
            {"hook": {"save_ckpt_after_run": 5}},
            "save_ckpt_after_run: expected true or false, got 5",
        ),
        (
            {"hook": {"load_ckpt_before_run": 5}},
            "load_ckpt_before_run: expected the path of a checkpoint as text, or null, got 5",
        ),
        (
            {"hook": {"save_ckpt_after_iter": {"freq": 5}}},
            "hook.save_ckpt_after_iter.freq: unknown key (known: type, position, priority, ext_arg",
        ),
        (
            {"hook": {"x": {"typ": "mine", "position": "after_run"}}},
            "hook.x.typ: unknown key; did you mean type?",
        ),
        ({"hook": {"x": {"position": "after_run"}}}, "hook.x.type: missing"),
        (
            {"hook": {"x": {"type": "mine", "position": "after"}}},
            "hook.x.position: expected 'before_run', 'before_iter', 'after_iter' or "
            "'after_run', got 'after'",
        ),
        (
            {"hook": {"x": {"type": "mine", "position": "after_run", "priority": -1}}},
            "hook.x.priority: expected 0 or more, got -1",
        ),
        (
            {"load_path": "a.npz", "hook": {"load_ckpt_before_run": "b.npz"}},
            "load_path is 'a.npz', but hook.load_ckpt_before_run loads 'b.npz'",
        ),
        (
            {"load_path": "a.npz", "hook": {"load_ckpt_before_run": None}},
            "load_path is 'a.npz', but there is no hook of type load_ckpt",
        ),
    ],
)
def test_wrong_keys_and_values_are_refused_by_name(given: dict[str, Any], want: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(want)):
        make_base_learner_config(given)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_base_learner_config({"load_pth": "x", "dataloader": {"num_workers": -1}})
    assert len(str(caught.value).splitlines()) == 2
