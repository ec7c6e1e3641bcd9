"""Sections `observations` and `actions`: what they can say, what is refused, and dumping."""

# covers J17, R18

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.network import ConvStackConfig, DenseConfig
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

_ALL = {
    "observations": "{camera: {image: [84, 84, 3], layers: [nature]}, "
    "arm/joints: {size: 12, layers: [64]}, 0: {size: 3}}",
    "actions": "{move: {num: 4}, "
    "arm/aim: {size: 2, bounded: true, low: -1, high: [1, 2], std: 0.5}, "
    "0: {num: [3, 1]}, grip: {binary: 3}, turn: {size: 6, log_std_init: -1}}",
}


def load(folder: Path, section: str, leaves: str, more: str = "", algorithm: str = "a2c") -> Any:
    """Loads an experiment; the section stands on line 3, `more` on line 4."""
    file = folder / "experiment.yaml"
    file.write_text(f"algorithm:\n  name: {algorithm}\n  {section}: {leaves}\n  {more}\n")
    return load_experiment(file)


def test_sizes_images_and_branches_are_read(tmp_path: Path) -> None:
    more = "observation_history: 4"
    config = load(tmp_path, "observations", _ALL["observations"], more).algorithm
    assert list(config.observations) == ["camera", "arm/joints", "0"]
    assert config.observations["camera"].layers == (ConvStackConfig("nature"),)
    assert config.observations["arm/joints"].layers == (DenseConfig(64),)
    assert config.observations["0"].layers == ()
    assert config.images == ("camera",)
    assert config.input_shapes == {"camera": (84, 84, 12), "arm/joints": (48,), "0": (12,)}


def test_all_kinds_of_actions_are_read(tmp_path: Path) -> None:
    config = load(tmp_path, "actions", _ALL["actions"]).algorithm
    low, high = np.full(2, -1, np.float32), np.array([1, 2], np.float32)
    assert config.action_spaces == {
        "0": MultiDiscrete(n=(3, 1), shape=(2,)),
        "arm/aim": Box(dtype="float32", shape=(2,), low=low, high=high),
        "grip": MultiBinary(dtype="int64", shape=(3,)),
        "move": Discrete(n=4),
        "turn": Box(dtype="float32", shape=(6,)),
    }
    assert list(config.action_spaces) == sorted(config.actions)


@pytest.mark.parametrize(
    ("section", "absent"), [("observations", "state_size"), ("actions", "num_actions")]
)
def test_leaves_survive_dumping(tmp_path: Path, section: str, absent: str) -> None:
    experiment = load(tmp_path, section, _ALL[section])
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_experiment(experiment))
    assert load_experiment(saved).algorithm == experiment.algorithm
    assert absent not in saved.read_text()


def test_without_them_there_is_one_leaf_and_the_saved_form_says_nothing_of_it(
    tmp_path: Path,
) -> None:
    experiment = load(tmp_path, "observations", "null", "state_size: 5\n  num_actions: 3")
    config: Any = experiment.algorithm
    assert config.input_shapes == {"observation": (5,)}
    assert config.action_spaces == {"action": Discrete(n=3)}
    text = dump_experiment(experiment)
    assert "\n  observations" not in text
    assert "\n  actions" not in text
    assert "\n  state_size: 5\n" in text


# name: (section, its value, another line, what is said, of which line and key)
_BAD = {
    "observations: state_size too": (
        "observations",
        "{a: {size: 3}}",
        "state_size: 4",
        "algorithm: state_size and observations are set; set only one of them",
    ),
    "observations: image too": (
        "observations",
        "{a: {size: 3}}",
        "image: [8, 8, 1]",
        "algorithm: image and observations are set; set only one of them",
    ),
    "observations: no leaf": (
        "observations",
        "{}",
        "",
        "3: algorithm.observations: expected at least 1 item, got 0",
    ),
    "observations: no section": (
        "observations",
        "3",
        "",
        "3: algorithm.observations: expected a section of keys, got 3",
    ),
    "observations: neither size nor image": (
        "observations",
        "{a: {layers: [3]}}",
        "",
        "3: algorithm.observations.a: expected exactly one of size (for a vector), image (for an "
        "image) and num (for integers), but none of them is set",
    ),
    "observations: size and image": (
        "observations",
        "{a: {size: 3, image: [8, 8, 1], layers: [nature]}}",
        "",
        "3: algorithm.observations.a: expected exactly one of size (for a vector), image (for an "
        "image) and num (for integers), but size and image are set",
    ),
    "observations: values of an integer": (
        "observations",
        "{a: {num: 4097}}",
        "",
        "3: algorithm.observations.a.num: expected an integer of 1 to 4096, or a list of such",
    ),
    "observations: integers are not normalised": (
        "observations",
        "{a: {num: 3}}",
        "normalize_observations: true",
        "observations: nothing to normalise, because images",
    ),
    "observations: size of zero": (
        "observations",
        "{a: {size: 0}}",
        "",
        "3: algorithm.observations.a.size: expected 1 or more, got 0",
    ),
    "observations: flat image": (
        "observations",
        "{a: {image: [8, 0, 1], layers: [nature]}}",
        "",
        "3: algorithm.observations.a: image: [8, 0, 1], expected [height, width, channels]",
    ),
    "observations: convolution of a vector": (
        "observations",
        "{a: {size: 3, layers: [nature]}}",
        "",
        "3: algorithm.observations.a: layers: the first layer is a convolution, but the leaf "
        "is not",
    ),
    "observations: image without convolution": (
        "observations",
        "{a: {image: [8, 8, 1], layers: [8]}}",
        "",
        "3: algorithm.observations.a: image: the first layer of the branch is not a "
        "convolution; start",
    ),
    "observations: memory in a branch": (
        "observations",
        "{a: {size: 3, layers: [8, {lstm: 4}]}}",
        "",
        "3: algorithm.observations.a: layers: a branch cannot contain lstm or gru; put them "
        "into network.layers",
    ),
    "observations: convolution behind dense": (
        "observations",
        "{a: {size: 3, layers: [8, nature]}}",
        "",
        "3: algorithm.observations.a.layers: layer 1 (nature) is a convolution after",
    ),
    "observations: misspelt layer": (
        "observations",
        "{a: {size: 3, layers: [natur]}}",
        "",
        "3: algorithm.observations.a.layers.0: expected a number of units (an integer)",
    ),
    "observations: misspelt key": (
        "observations",
        "{a: {sise: 3}}",
        "",
        "3: algorithm.observations.a.sise: unknown key; did you mean size? (known: size, image, "
        "num, layers)",
    ),
    "observations: convolution behind the branches": (
        "observations",
        "{a: {size: 3}}",
        "network: {layers: [nature]}",
        "network: the first layer is a convolution, but its input, described by observations",
    ),
    "observations: images are not normalised": (
        "observations",
        "{a: {image: [8, 8, 1], layers: [nature]}}",
        "normalize_observations: true",
        "observations: nothing to normalise, because images",
    ),
    "observations: a statistic's name": (
        "observations",
        "{return: {size: 3}}",
        "normalize_observations: true",
        "observations: a leaf named 'return' cannot be normalised",
    ),
    "actions: num_actions too": (
        "actions",
        "{a: {num: 3}}",
        "num_actions: 4",
        "algorithm: num_actions and actions are set; set only one of num_actions, action_size, "
        "actions, or none",
    ),
    "actions: a key for all leaves": (
        "actions",
        "{a: {num: 3}}",
        "std: 0.5",
        "algorithm: std is not for leaves in actions (of the file, or of an environment with "
        "several leaves, switches, or a leaf with a name other than 'action'); remove it, and, if "
        "a leaf needs it, list the leaves in actions, each with its own std",
    ),
    "actions: bounds for all leaves": (
        "actions",
        "{a: {size: 3}}",
        "action_low: -1",
        "algorithm: action_low is not for leaves in actions (of the file, or of an environment "
        "with several leaves, switches, or a leaf with a name other than 'action'); remove it, "
        "and, if a leaf needs it, list the leaves in actions, each with its own low",
    ),
    "actions: two keys for all leaves": (
        "actions",
        "{a: {size: 3}}",
        "action_low: -1\n  action_high: 1",
        "algorithm: action_low and action_high are not for leaves in actions (of the file, or of "
        "an environment with several leaves, switches, or a leaf with a name other than 'action'); "
        "remove them, and, if a leaf needs them, list the leaves in actions, each with its own low "
        "and high",
    ),
    "actions: no leaf": (
        "actions",
        "{}",
        "",
        "3: algorithm.actions: expected at least 1 item, got 0",
    ),
    "actions: no kind": (
        "actions",
        "{a: {std: 1}}",
        "",
        "3: algorithm.actions.a: expected exactly one of num (discrete), size (continuous) and "
        "binary (switches), but none of them is set",
    ),
    "actions: two kinds": (
        "actions",
        "{a: {num: 2, binary: 1}}",
        "",
        "3: algorithm.actions.a: expected exactly one of num (discrete), size (continuous) and "
        "binary (switches), but num and binary are set",
    ),
    "actions: one action": (
        "actions",
        "{a: {num: 1}}",
        "",
        "3: algorithm.actions.a.num: expected an integer of 2 to 2147483648, or a list",
    ),
    "actions: no switch": (
        "actions",
        "{a: {binary: 0}}",
        "",
        "3: algorithm.actions.a.binary: expected 1 or more",
    ),
    "actions: no component": (
        "actions",
        "{a: {size: 0}}",
        "",
        "3: algorithm.actions.a.size: expected 1 or more",
    ),
    "actions: bounds without bounded": (
        "actions",
        "{a: {size: 2, low: -1}}",
        "",
        "3: algorithm.actions.a: low has no effect without bounded: true, which is only for "
        "continuous actions; set bounded: true and high, or remove low",
    ),
    "actions: bounds of a choice": (
        "actions",
        "{a: {num: 2, low: -1, high: 1}}",
        "",
        "3: algorithm.actions.a: low and high have no effect without bounded: true, which is only "
        "for continuous actions; remove low and high",
    ),
    "actions: bounded without a bound": (
        "actions",
        "{a: {size: 2, bounded: true, low: -1}}",
        "",
        "3: algorithm.actions.a: a bounded action needs low and high; set high, or set bounded: "
        "false and remove low",
    ),
    "actions: bounded switches": (
        "actions",
        "{a: {binary: 2, bounded: true, low: -1, high: 1}}",
        "",
        "3: algorithm.actions.a: bounded: true is only for continuous actions; set bounded: false "
        "and remove low and high; or set size, low and high instead of the other kind of action",
    ),
    "actions: bounds the other way round": (
        "actions",
        "{a: {size: 1, bounded: true, low: 1, high: 0}}",
        "",
        "3: algorithm.actions.a: low: 1.0 in component 0, expected less than high (0.0)",
    ),
    "actions: a bound too many": (
        "actions",
        "{a: {size: 1, bounded: true, low: [0, 0], high: 1}}",
        "",
        "3: algorithm.actions.a: low: 2 numbers, expected one number, or 1 (one per component, "
        "size)",
    ),
    "actions: deviation of a choice": (
        "actions",
        "{a: {num: 2, std: 0.5}}",
        "",
        "3: algorithm.actions.a: std: 0.5 also needs size; only continuous actions",
    ),
    "actions: misspelt key": (
        "actions",
        "{a: {nun: 3}}",
        "",
        "3: algorithm.actions.a.nun: unknown key; did you mean num?",
    ),
    "actions: name of the log-probability": (
        "actions",
        "{log_prob: {num: 2}}",
        "",
        "actions: a leaf cannot be named 'log_prob'",
    ),
}


@pytest.mark.parametrize(("section", "leaves", "more", "want"), _BAD.values(), ids=_BAD.keys())
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, section: str, leaves: str, more: str, want: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, section, leaves, more)
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
    want = rf"a bounded action needs .*; set {other}, or remove {key} to use the environment"
    with pytest.raises(ConfigError, match=want):
        load_experiment("ppo", ["algorithm.bounded=true", f"algorithm.{key}=1"])


@pytest.mark.parametrize(
    ("key", "other"), [("action_low", "action_high"), ("action_high", "action_low")]
)
def test_one_bound_alone_has_no_effect_without_bounded(key: str, other: str) -> None:
    want = rf"{key} has no effect without .*; set bounded: true and {other}, or remove {key}"
    with pytest.raises(ConfigError, match=want):
        load_experiment("ppo", [f"algorithm.{key}=1"])


@pytest.mark.parametrize("section", ["observations", "actions"])
def test_the_mirror_loss_of_ppo_is_refused(tmp_path: Path, section: str) -> None:
    mirror = "mirror_observation: [1, 0.1, 2, 3]\n  mirror_action: [1, 0.1]"
    with pytest.raises(ConfigError, match=f"the leaves of {section} cannot be mirrored"):
        load(tmp_path, section, "{a: {size: 2}}", mirror, "ppo")


VECTOR = Box(dtype="float32", shape=(3, 4))
GOAL = Box(dtype="float64", shape=(3,))
CAMERA = Box(dtype="uint8", shape=(84, 84, 3))
OBSERVATIONS = {"camera": CAMERA, "arm/joints": VECTOR, "0": GOAL}
ACTIONS = {
    "move": Discrete(n=4, start=2),
    "arm/aim": Box(dtype="float32", shape=(2, 1), low=-1.0, high=np.array([[1], [2]], np.float32)),
    "0": MultiDiscrete(n=(3, 1), shape=(1, 2)),
    "grip": MultiBinary(shape=(3,)),
    "turn": Box(dtype="float64", shape=(3, 2)),
}
# name: (section, spaces of the environment, what is said)
_MISFITS = {
    "observations: missing": (
        "observations",
        {"camera": CAMERA, "0": GOAL},
        "algorithm.observations names 'arm/joints', but the environment only has Box 'camera' "
        "of uint8, Box '0' of float64",
    ),
    "observations: plain": (
        "observations",
        {"observation": VECTOR},
        "algorithm.observations names '0', 'arm/joints', 'camera', but the environment only has",
    ),
    "observations: unread": (
        "observations",
        {**OBSERVATIONS, "wind": GOAL, "rain": GOAL},
        "the environment has 'rain', 'wind', not listed in algorithm.observations, which only has "
        "'0', 'arm/joints', 'camera'; for a new run, list all leaves there",
    ),
    "observations: size": (
        "observations",
        {**OBSERVATIONS, "0": Box(dtype="float32", shape=(2,))},
        "leaf '0' is a Box of float32, shape [2] (2 numbers), but "
        "algorithm.observations.0.size is 3; change",
    ),
    "observations: kind": (
        "observations",
        {**OBSERVATIONS, "0": Discrete(n=3)},
        "leaf '0' is a Discrete of 3 values, but algorithm.observations.0.size is 3",
    ),
    "observations: image's shape": (
        "observations",
        {**OBSERVATIONS, "camera": Box(dtype="uint8", shape=(84, 84, 1))},
        "leaf 'camera' is a Box of uint8, shape [84, 84, 1] (7056 numbers), but "
        "algorithm.observations.camera.image is [84, 84, 3]; change",
    ),
    "observations: image's type": (
        "observations",
        {**OBSERVATIONS, "camera": Box(dtype="float32", shape=(84, 84, 3))},
        "leaf 'camera' is a Box of float32, shape [84, 84, 3] (21168 numbers), but "
        "algorithm.observations.camera.image",
    ),
    "actions: missing": (
        "actions",
        {"move": ACTIONS["move"], "turn": ACTIONS["turn"]},
        "algorithm.actions names '0', 'arm/aim', 'grip', but the environment only has Discrete "
        "'move' of int64, Box 'turn' of float64; correct the names",
    ),
    "actions: plain": (
        "actions",
        {"action": Discrete(n=4)},
        "algorithm.actions names '0', 'arm/aim', 'grip', 'move', 'turn', but the environment only",
    ),
    "actions: not listed": (
        "actions",
        {**ACTIONS, "jump": Discrete(n=2)},
        "the environment has 'jump', not listed in algorithm.actions, which only has '0', "
        "'arm/aim', 'grip', 'move', 'turn'; for a new run, list all leaves there",
    ),
    "actions: number": (
        "actions",
        {**ACTIONS, "move": Discrete(n=5)},
        "leaf 'move' is a Discrete of 5 values, but algorithm.actions.move.num is 4; "
        "change the setting",
    ),
    "actions: kind": (
        "actions",
        {**ACTIONS, "grip": MultiDiscrete(n=(2, 2, 2), shape=(3,))},
        "leaf 'grip' is a MultiDiscrete of [2, 2, 2] values, but algorithm.actions.grip.binary "
        "is 3, for a MultiBinary",
    ),
    "actions: size": (
        "actions",
        {**ACTIONS, "turn": Box(dtype="float32", shape=(5,))},
        "leaf 'turn' is a Box of float32, shape [5] (5 numbers), but algorithm.actions.turn.size "
        "is 6; change",
    ),
    "actions: bound": (
        "actions",
        {**ACTIONS, "arm/aim": Box(dtype="float32", shape=(2,), low=-3.0, high=2.0)},
        "low is -3.0 in component 0, but algorithm.actions.arm/aim.low is -1.0 there",
    ),
}


@pytest.mark.parametrize(("section", "spaces", "want"), _MISFITS.values(), ids=_MISFITS.keys())
def test_an_environment_that_does_not_fit_is_refused_by_its_leaf(
    tmp_path: Path, section: str, spaces: Any, want: str
) -> None:
    config = load(tmp_path, section, _ALL[section]).algorithm
    config.validate_spaces(OBSERVATIONS, ACTIONS)
    is_action = section == "actions"
    with pytest.raises(InvalidInputError) as caught:
        config.validate_spaces(*((OBSERVATIONS, spaces) if is_action else (spaces, ACTIONS)))
    assert want in str(caught.value)
    assert caught.value.field == f"{section.removesuffix('s')}_spaces"


def test_a_plain_space_is_the_leaf_of_that_name(tmp_path: Path) -> None:
    """So an environment with switches alone has its settings, too."""
    config = load(tmp_path, "actions", "{action: {binary: 5}}").algorithm
    config.validate_spaces({}, {"action": MultiBinary(shape=(5,))})


def test_the_one_leaf_form_refuses_a_dict_space(tmp_path: Path) -> None:
    config = load(tmp_path, "observations", "null", "state_size: 3").algorithm
    with pytest.raises(InvalidInputError, match=r"algorithm\.observations"):
        config.validate_spaces({"a": GOAL, "b": GOAL}, {"action": Discrete(n=2)})
