"""Section `observations`: what it can say, what is refused and with which words, and dumping."""

# covers J17, R18

from pathlib import Path
from typing import Any

import pytest

from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.config.network import ConvStackConfig, DenseConfig
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

_ALL = (
    "{camera: {image: [84, 84, 3], layers: [nature]}, arm/joints: {size: 12, layers: [64]}, "
    "0: {size: 3}}"
)


def load(folder: Path, observations: str, more: str = "", algorithm: str = "a2c") -> Any:
    """Loads an experiment; `observations` stand on line 4, `more` on line 5."""
    file = folder / "experiment.yaml"
    file.write_text(
        f"algorithm:\n  name: {algorithm}\n  num_actions: 2\n"
        f"  observations: {observations}\n  {more}\n"
    )
    return load_experiment(file)


def test_sizes_images_and_branches_are_read_and_survive_dumping(tmp_path: Path) -> None:
    experiment = load(tmp_path, _ALL, "observation_history: 4")
    config = experiment.algorithm
    assert list(config.observations) == ["camera", "arm/joints", "0"]
    assert config.observations["camera"].layers == (ConvStackConfig("nature"),)
    assert config.observations["arm/joints"].layers == (DenseConfig(64),)
    assert config.observations["0"].layers == ()
    assert config.images == ("camera",)
    assert config.input_shapes == {"camera": (84, 84, 12), "arm/joints": (48,), "0": (12,)}
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_experiment(experiment))
    assert load_experiment(saved).algorithm == config
    assert "state_size" not in saved.read_text()


def test_without_it_there_is_one_leaf_and_the_saved_form_says_nothing_of_it(tmp_path: Path) -> None:
    experiment = load(tmp_path, "null", "state_size: 5")
    assert experiment.algorithm.input_shapes == {"observation": (5,)}  # type: ignore[attr-defined]
    text = dump_experiment(experiment)
    assert "\n  observations" not in text
    assert "\n  state_size: 5\n" in text


# name: (value of `observations`, another line, what is said, of which line and key)
_BAD = {
    "state_size too": (
        "{a: {size: 3}}",
        "state_size: 4",
        "algorithm: state_size and observations are set; set only one of them",
    ),
    "image too": (
        "{a: {size: 3}}",
        "image: [8, 8, 1]",
        "algorithm: image and observations are set; set only one of them",
    ),
    "no leaf": ("{}", "", "4: algorithm.observations: expected at least 1 item, got 0"),
    "no section": ("3", "", "4: algorithm.observations: expected a section of keys, got 3"),
    "neither size nor image": (
        "{a: {layers: [3]}}",
        "",
        "4: algorithm.observations.a: expected exactly one of size (for a vector), image and num "
        "(for integers), but none of them is set",
    ),
    "size and image": (
        "{a: {size: 3, image: [8, 8, 1], layers: [nature]}}",
        "",
        "4: algorithm.observations.a: expected exactly one of size (for a vector), image and num "
        "(for integers), but size and image are set",
    ),
    "values of an integer": (
        "{a: {num: 4097}}",
        "",
        "4: algorithm.observations.a.num: expected an integer of 1 to 4096, or a list of such",
    ),
    "integers are not normalised": (
        "{a: {num: 3}}",
        "normalize_observations: true",
        "observations: nothing to normalise, because all leaves are images",
    ),
    "size of zero": (
        "{a: {size: 0}}",
        "",
        "4: algorithm.observations.a.size: expected 1 or more, got 0",
    ),
    "flat image": (
        "{a: {image: [8, 0, 1], layers: [nature]}}",
        "",
        "4: algorithm.observations.a: image: [8, 0, 1], expected [height, width, channels]",
    ),
    "convolution of a vector": (
        "{a: {size: 3, layers: [nature]}}",
        "",
        "4: algorithm.observations.a: layers: the first layer is a convolution, but the leaf "
        "is not",
    ),
    "image without convolution": (
        "{a: {image: [8, 8, 1], layers: [8]}}",
        "",
        "4: algorithm.observations.a: image: the first layer of the branch is not a "
        "convolution; start",
    ),
    "memory in a branch": (
        "{a: {size: 3, layers: [8, {lstm: 4}]}}",
        "",
        "4: algorithm.observations.a: layers: a branch cannot contain lstm or gru; put them "
        "into network.layers",
    ),
    "convolution behind dense": (
        "{a: {size: 3, layers: [8, nature]}}",
        "",
        "4: algorithm.observations.a.layers: layer 1 (nature) is a convolution after",
    ),
    "misspelt layer": (
        "{a: {size: 3, layers: [natur]}}",
        "",
        "4: algorithm.observations.a.layers.0: expected a number of units (an integer)",
    ),
    "misspelt key": (
        "{a: {sise: 3}}",
        "",
        "4: algorithm.observations.a.sise: unknown key; did you mean size? (known: size, image, "
        "num, layers)",
    ),
    "convolution behind the branches": (
        "{a: {size: 3}}",
        "network: {layers: [nature]}",
        "network: the first layer is a convolution, but the joined branches",
    ),
    "images are not normalised": (
        "{a: {image: [8, 8, 1], layers: [nature]}}",
        "normalize_observations: true",
        "observations: nothing to normalise, because all leaves are images",
    ),
    "a statistic's name": (
        "{return: {size: 3}}",
        "normalize_observations: true",
        "observations: a leaf named 'return' cannot be normalised",
    ),
}


@pytest.mark.parametrize(("observations", "more", "want"), _BAD.values(), ids=_BAD.keys())
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, observations: str, more: str, want: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, observations, more)
    assert want in str(caught.value)


def test_the_mirror_loss_of_ppo_is_refused(tmp_path: Path) -> None:
    mirror = "mirror_observation: [1, 0.1]\n  mirror_action: [1, 0.1]"
    with pytest.raises(ConfigError, match="the leaves of observations cannot be mirrored"):
        load(tmp_path, "{a: {size: 2}}", mirror, "ppo")


VECTOR = Box(dtype="float32", shape=(3, 4))
GOAL = Box(dtype="float64", shape=(3,))
CAMERA = Box(dtype="uint8", shape=(84, 84, 3))
SPACES = {"camera": CAMERA, "arm/joints": VECTOR, "0": GOAL}
_MISFITS = {
    "missing": (
        {"camera": CAMERA, "0": GOAL},
        "algorithm.observations names 'arm/joints', but the environment only has Box 'camera' "
        "of uint8, Box '0' of float64",
    ),
    "plain": (
        {"observation": VECTOR},
        "algorithm.observations names '0', 'arm/joints', 'camera', but the environment only has",
    ),
    "unread": (
        {**SPACES, "wind": GOAL, "rain": GOAL},
        "the environment has 'rain', 'wind', not listed in algorithm.observations, which only has "
        "'0', 'arm/joints', 'camera'; list all leaves there, or wrap",
    ),
    "size": (
        {**SPACES, "0": Box(dtype="float32", shape=(2,))},
        "leaf '0' is a Box of float32, shape [2], but algorithm.observations.0.size is 3, the "
        "number of values",
    ),
    "kind": (
        {**SPACES, "0": Discrete(n=3)},
        "leaf '0' is a Discrete of int64, shape [], n 3, but algorithm.observations.0.size is 3",
    ),
    "image's shape": (
        {**SPACES, "camera": Box(dtype="uint8", shape=(84, 84, 1))},
        "leaf 'camera' is a Box of uint8, shape [84, 84, 1], but "
        "algorithm.observations.camera.image is [84, 84, 3], a uint8 Box",
    ),
    "image's type": (
        {**SPACES, "camera": Box(dtype="float32", shape=(84, 84, 3))},
        "leaf 'camera' is a Box of float32, shape [84, 84, 3], but "
        "algorithm.observations.camera.image",
    ),
}


@pytest.mark.parametrize(("spaces", "want"), _MISFITS.values(), ids=_MISFITS.keys())
def test_an_environment_that_does_not_fit_is_refused_by_its_leaf(
    tmp_path: Path, spaces: Any, want: str
) -> None:
    config: Any = load(tmp_path, _ALL).algorithm
    config.validate_spaces(SPACES, {"action": Discrete(n=2)})
    with pytest.raises(InvalidInputError) as caught:
        config.validate_spaces(spaces, {"action": Discrete(n=2)})
    assert want in str(caught.value)
    assert caught.value.field == "observation_spaces"


def test_the_one_leaf_form_refuses_a_dict_space(tmp_path: Path) -> None:
    config: Any = load(tmp_path, "null", "state_size: 3").algorithm
    with pytest.raises(InvalidInputError, match=r"algorithm\.observations"):
        config.validate_spaces({"a": GOAL, "b": GOAL}, {"action": Discrete(n=2)})
