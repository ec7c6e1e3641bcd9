"""Section `actions`: what it can say, what is refused and with which words, and dumping."""

# covers J17

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

_ALL = (
    "{move: {num: 4}, arm/aim: {size: 2, bounded: true, low: -1, high: [1, 2], std: 0.5}, "
    "0: {num: [3, 1]}, grip: {binary: 3}, turn: {size: 6, log_std_init: -1}}"
)


def load(folder: Path, actions: str, more: str = "", algorithm: str = "a2c") -> Any:
    """Loads an experiment; `actions` stand on line 3, `more` on line 4."""
    file = folder / "experiment.yaml"
    file.write_text(
        f"algorithm:\n  name: {algorithm}\n  actions: {actions}\n  {more}\n", encoding="utf-8"
    )
    return load_experiment(file)


def test_all_kinds_are_read_and_survive_dumping(tmp_path: Path) -> None:
    experiment = load(tmp_path, _ALL)
    config = experiment.algorithm
    low, high = np.full(2, -1, np.float32), np.array([1, 2], np.float32)
    assert config.action_spaces == {
        "0": MultiDiscrete(n=(3, 1), shape=(2,)),
        "arm/aim": Box(dtype="float32", shape=(2,), low=low, high=high),
        "grip": MultiBinary(dtype="int64", shape=(3,)),
        "move": Discrete(n=4),
        "turn": Box(dtype="float32", shape=(6,)),
    }
    assert list(config.action_spaces) == sorted(config.actions)
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_experiment(experiment))
    assert load_experiment(saved).algorithm == config


def test_without_it_there_is_one_leaf_and_the_saved_form_says_nothing_of_it(tmp_path: Path) -> None:
    experiment = load(tmp_path, "null", "num_actions: 3")
    config: Any = experiment.algorithm
    assert config.action_spaces == {"action": Discrete(n=3)}
    assert "\n  actions" not in dump_experiment(experiment)


# name: (value of `actions`, another line, what is said, of which line and key)
_BAD = {
    "num_actions too": (
        "{a: {num: 3}}",
        "num_actions: 4",
        "algorithm: num_actions and actions are set; set only one of num_actions (discrete), "
        "action_size (continuous) and actions (several leaves), or none",
    ),
    "a key for all leaves": (
        "{a: {num: 3}}",
        "std: 0.5",
        "algorithm: std is not for leaves in actions (of the file, or of an environment with "
        "several leaves, switches, or a leaf with a name other than 'action'); remove it, and, if "
        "a leaf needs it, list the leaves in actions, each with its own std",
    ),
    "bounds for all leaves": (
        "{a: {size: 3}}",
        "action_low: -1",
        "algorithm: action_low is not for leaves in actions (of the file, or of an environment "
        "with several leaves, switches, or a leaf with a name other than 'action'); remove it, "
        "and, if a leaf needs it, list the leaves in actions, each with its own low",
    ),
    "two keys for all leaves": (
        "{a: {size: 3}}",
        "action_low: -1\n  action_high: 1",
        "algorithm: action_low and action_high are not for leaves in actions (of the file, or of "
        "an environment with several leaves, switches, or a leaf with a name other than 'action'); "
        "remove them, and, if a leaf needs them, list the leaves in actions, each with its own low "
        "and high",
    ),
    "no leaf": ("{}", "", "3: algorithm.actions: expected at least 1 item, got 0"),
    "no kind": (
        "{a: {std: 1}}",
        "",
        "3: algorithm.actions.a: expected exactly one of num (discrete), size (continuous) and "
        "binary (switches), but none of them is set",
    ),
    "two kinds": (
        "{a: {num: 2, binary: 1}}",
        "",
        "3: algorithm.actions.a: expected exactly one of num (discrete), size (continuous) and "
        "binary (switches), but num and binary are set",
    ),
    "one action": (
        "{a: {num: 1}}",
        "",
        "3: algorithm.actions.a.num: expected an integer of 2 to 2147483648, or a list",
    ),
    "no switch": ("{a: {binary: 0}}", "", "3: algorithm.actions.a.binary: expected 1 or more"),
    "no component": ("{a: {size: 0}}", "", "3: algorithm.actions.a.size: expected 1 or more"),
    "bounds without bounded": (
        "{a: {size: 2, low: -1}}",
        "",
        "3: algorithm.actions.a: low has no effect without bounded: true, which is only for "
        "continuous actions; set bounded: true and high, or remove low",
    ),
    "bounds of a choice": (
        "{a: {num: 2, low: -1, high: 1}}",
        "",
        "3: algorithm.actions.a: low and high have no effect without bounded: true, which is only "
        "for continuous actions; remove low and high",
    ),
    "bounded without a bound": (
        "{a: {size: 2, bounded: true, low: -1}}",
        "",
        "3: algorithm.actions.a: a bounded action needs low and high; set high, or set bounded: "
        "false and remove low",
    ),
    "bounded switches": (
        "{a: {binary: 2, bounded: true, low: -1, high: 1}}",
        "",
        "3: algorithm.actions.a: bounded: true is only for continuous actions; set bounded: false "
        "and remove low and high; or set size, low and high instead of the other kind of action",
    ),
    "bounds the other way round": (
        "{a: {size: 1, bounded: true, low: 1, high: 0}}",
        "",
        "3: algorithm.actions.a: low: 1.0 in component 0, expected less than high (0.0)",
    ),
    "a bound too many": (
        "{a: {size: 1, bounded: true, low: [0, 0], high: 1}}",
        "",
        "3: algorithm.actions.a: low: 2 numbers, expected one number, or 1 (one per component, "
        "size)",
    ),
    "deviation of a choice": (
        "{a: {num: 2, std: 0.5}}",
        "",
        "3: algorithm.actions.a: std: 0.5 also needs size; only continuous actions",
    ),
    "misspelt key": (
        "{a: {nun: 3}}",
        "",
        "3: algorithm.actions.a.nun: unknown key; did you mean num?",
    ),
    "name of the log-probability": (
        "{log_prob: {num: 2}}",
        "",
        "actions: a leaf cannot be named 'log_prob'",
    ),
}


@pytest.mark.parametrize(("actions", "more", "want"), _BAD.values(), ids=_BAD.keys())
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, actions: str, more: str, want: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, actions, more)
    assert want in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["action_size=2"], "action_size is set without action_low and action_high; set action_l"),
        (["action_size=2", "action_low=-1"], "action_size is set without action_high; set"),
        (["action_high=1"], "action_high is set without action_low; set"),
        (
            ["action_size=1", "action_low=1", "action_high=0"],
            r"action_low: 1.0 in component 0, expected less",
        ),
    ],
)
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "cql", "td3_bc"])
def test_an_action_without_its_bounds_is_refused(name: str, sets: list[str], want: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm: {want}"):
        load_experiment(name, [f"algorithm.{one}" for one in sets])


@pytest.mark.parametrize(
    ("key", "other"), [("action_low", "action_high"), ("action_high", "action_low")]
)
def test_one_bound_alone_is_not_replaced_by_the_environment_s(key: str, other: str) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm: {key} is set without {other}; set both"):
        load_experiment("ppo", ["algorithm.bounded=true", f"algorithm.{key}=1"])


@pytest.mark.parametrize(
    ("key", "other"), [("action_low", "action_high"), ("action_high", "action_low")]
)
def test_one_bound_alone_has_no_effect_without_bounded(key: str, other: str) -> None:
    want = rf"{key} has no effect without .*; remove {key}, or set bounded: true and {other}"
    with pytest.raises(ConfigError, match=want):
        load_experiment("ppo", [f"algorithm.{key}=1"])


def test_the_mirror_loss_of_ppo_is_refused(tmp_path: Path) -> None:
    mirror = "mirror_observation: [1, 0.1, 2, 3]\n  mirror_action: [1, 0.1]"
    with pytest.raises(ConfigError, match="the leaves of actions cannot be mirrored"):
        load(tmp_path, "{a: {size: 2}}", mirror, "ppo")


OBSERVATION = {"observation": Box(dtype="float32", shape=(4,))}
SPACES = {
    "move": Discrete(n=4, start=2),
    "arm/aim": Box(dtype="float32", shape=(2, 1), low=-1.0, high=np.array([[1], [2]], np.float32)),
    "0": MultiDiscrete(n=(3, 1), shape=(1, 2)),
    "grip": MultiBinary(shape=(3,)),
    "turn": Box(dtype="float64", shape=(3, 2)),
}
_MISFITS = {
    "missing": (
        {"move": SPACES["move"], "turn": SPACES["turn"]},
        "algorithm.actions names '0', 'arm/aim', 'grip', but the environment only has Discrete "
        "'move' of int64, Box 'turn' of float64; correct the names",
    ),
    "plain": (
        {"action": Discrete(n=4)},
        "algorithm.actions names '0', 'arm/aim', 'grip', 'move', 'turn', but the environment only",
    ),
    "not listed": (
        {**SPACES, "jump": Discrete(n=2)},
        "the environment has 'jump', not listed in algorithm.actions, which only has '0', "
        "'arm/aim', 'grip', 'move', 'turn'; for a new run, list all leaves there",
    ),
    "number": (
        {**SPACES, "move": Discrete(n=5)},
        "leaf 'move' is a Discrete of 5 actions, but algorithm.actions.move says Discrete of 4 "
        "actions; change the setting",
    ),
    "kind": (
        {**SPACES, "grip": MultiDiscrete(n=(2, 2, 2), shape=(3,))},
        "leaf 'grip' is a MultiDiscrete of [2, 2, 2] actions, but algorithm.actions.grip says "
        "MultiBinary of 3 switches",
    ),
    "size": (
        {**SPACES, "turn": Box(dtype="float32", shape=(5,))},
        "leaf 'turn' is a Box of 5 components, but algorithm.actions.turn says Box of 6",
    ),
    "bound": (
        {**SPACES, "arm/aim": Box(dtype="float32", shape=(2,), low=-3.0, high=2.0)},
        "low is -3.0 in component 0, but algorithm.actions.arm/aim.low is -1.0 there",
    ),
}


@pytest.mark.parametrize(("spaces", "want"), _MISFITS.values(), ids=_MISFITS.keys())
def test_an_environment_that_does_not_fit_is_refused_by_its_leaf(
    tmp_path: Path, spaces: Any, want: str
) -> None:
    config: Any = load(tmp_path, _ALL).algorithm
    config.validate_spaces(OBSERVATION, SPACES)
    with pytest.raises(InvalidInputError) as caught:
        config.validate_spaces(OBSERVATION, spaces)
    assert want in str(caught.value)
    assert caught.value.field == "action_spaces"


def test_a_plain_space_is_the_leaf_of_that_name(tmp_path: Path) -> None:
    """So an environment with switches alone has its settings, too."""
    config: Any = load(tmp_path, "{action: {binary: 5}}").algorithm
    config.validate_spaces(OBSERVATION, {"action": MultiBinary(shape=(5,))})
