"""Environments' spaces: what they fill in where the file leaves it open, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from support.batch import load

from relaax_like.config import EncoderConfig
from relaax_like.config.leaves import ActionConfig, LeafConfig, ObservationConfig
from relaax_like.config.loader import add_spaces, dump_experiment, load_experiment, require_spaces
from relaax_like.config.spaces import (
    describe_mismatch,
    validate_discrete,
    validate_leaves,
    validate_vector,
)
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space

WRAPPER = "gymnasium.wrappers.FlattenObservation"
INTEGERS = (Discrete(n=16), MultiDiscrete(n=(3, 4), shape=(2,)))


def check(own: LeafConfig, space: Space, leaf: str = "", *, listed: bool = False) -> None:
    leaf = leaf or own.role
    validate_leaves({leaf: space}, {leaf: own}, listed=listed)


@pytest.mark.parametrize("space", INTEGERS, ids=lambda space: type(space).__name__)
def test_integers_as_observations_are_refused_with_the_wrapper_to_use(space: Space) -> None:
    for validate in (
        lambda: validate_vector({"observation": space}, 16),
        lambda: check(ObservationConfig(size=16), space, "place", listed=True),
    ):
        with pytest.raises(InvalidInputError, match=type(space).__name__) as raised:
            validate()
        assert WRAPPER in str(raised.value)


def test_the_numbers_of_many_choices_are_shortened() -> None:
    space = MultiDiscrete(n=(2,) * 40, shape=(40,))
    with pytest.raises(InvalidInputError, match=r"\[2, 2, .*, \.\.\.\] \(40 numbers\)") as raised:
        check(ActionConfig(num=(3,) * 40), space)
    assert len(str(raised.value)) < 400


def test_the_wrapper_is_not_named_where_it_does_not_help() -> None:
    box = Box(dtype="float32", shape=(3,))
    for validate in (
        lambda: validate_vector({"a": box, "b": box}, 6),
        lambda: check(ObservationConfig(size=16), box, "place", listed=True),
    ):
        with pytest.raises(InvalidInputError) as raised:
            validate()
        assert WRAPPER not in str(raised.value)


def test_a_size_that_no_setting_can_have_is_for_a_wrapper() -> None:
    empty = Box(dtype="float32", shape=(0,))
    for validate in (
        lambda: validate_vector({"observation": empty}, 4),
        lambda: check(ActionConfig(size=4), empty),
        lambda: validate_discrete({"action": Discrete(n=1)}, 4),
        lambda: check(ObservationConfig(num=4), Discrete(n=5000)),
    ):
        with pytest.raises(InvalidInputError, match="; wrap the environment") as raised:
            validate()
        assert "set it to" not in str(raised.value)


def test_no_setting_is_a_cure_once_a_run_has_begun() -> None:
    for validate in (
        lambda: validate_vector({"observation": Box(dtype="float32", shape=(5,))}, 4),
        lambda: validate_discrete({"action": Discrete(n=3)}, 4),
    ):
        with pytest.raises(InvalidInputError, match="; set ") as raised:
            validate()
        text = describe_mismatch(raised.value)
        assert "; set " not in text
        assert " A run that has begun keeps its spaces: choose the environment" in text


VECTOR = Box(dtype="float64", shape=(2, 3))
SMALL_IMAGE = Box(dtype="uint8", shape=(10, 12, 3))
IMAGE = Box(dtype="uint8", shape=(84, 84, 3))
TWO = {"action": Discrete(n=2)}
FILE = """
algorithm:
  name: ppo
"""

# name: (spaces of observations, the keys that describe them)
_OBSERVATIONS = {
    "vector": ({"observation": VECTOR}, {"state_size": 6}),
    "switches": ({"observation": MultiBinary(shape=(5,))}, {"state_size": 5}),
    "integer": ({"observation": Discrete(n=16, start=3)}, {"num_states": 16}),
    "integers": (
        {"observation": MultiDiscrete(n=(3, 4, 5, 6), shape=(2, 2))},
        {"num_states": [3, 4, 5, 6]},
    ),
    "image": (
        {"observation": IMAGE},
        {"image": [84, 84, 3], "network": {"layers": ["nature"], "activation": "tanh"}},
    ),
    "small image": (
        {"observation": SMALL_IMAGE},
        {"image": [10, 12, 3], "network": {"layers": ["impala"], "activation": "tanh"}},
    ),
    "several leaves": (
        {"camera": IMAGE, "arm/joints": VECTOR, "inventory": Discrete(n=7)},
        {
            "observations": {
                "arm/joints": {"size": 6},
                "camera": {"image": [84, 84, 3], "layers": ["nature"]},
                "inventory": {"num": 7},
            }
        },
    ),
    "one leaf with a name": ({"joints": VECTOR}, {"observations": {"joints": {"size": 6}}}),
}
# name: (spaces of actions, the keys that describe them)
_ACTIONS = {
    "choice": ({"action": Discrete(n=3, start=-1)}, {"num_actions": 3}),
    "choices": ({"action": MultiDiscrete(n=(3, 2), shape=(2,))}, {"num_actions": [3, 2]}),
    "continuous": ({"action": Box(dtype="float32", shape=(2,))}, {"action_size": 2}),
    "switches": ({"action": MultiBinary(shape=(4,))}, {"actions": {"action": {"binary": 4}}}),
    "several leaves": (
        {"0": Discrete(n=3), "1/aim": Box(dtype="float32", shape=(2,))},
        {"actions": {"0": {"num": 3}, "1/aim": {"size": 2}}},
    ),
}
# name: (spaces of observations, of actions, what is said)
_UNUSABLE = {
    "too many values": (
        {"observation": Discrete(n=4097)},
        TWO,
        "leaf 'observation', a Discrete, has an integer of 4097 values, but at most 4096",
    ),
    "nothing to see": (
        {"a": VECTOR, "b": Box(dtype="float32", shape=(0,))},
        TWO,
        "leaf 'b' has shape [0], so it has no values",
    ),
    "nothing to choose": (
        {"observation": VECTOR},
        {"action": Discrete(n=1)},
        "leaf 'action' is a Discrete of 1 action",
    ),
    "nothing to do": (
        {"observation": VECTOR},
        {"action": Box(dtype="float32", shape=(0,))},
        "leaf 'action' has shape [0], so it has no components",
    ),
}


def load_ppo(tmp_path: Path, *lines: str):
    file = tmp_path / "experiment.yaml"
    file.write_text(FILE + "".join(f"  {line}\n" for line in lines))
    return load_experiment(file, [f"run_dir={tmp_path / 'run'}"])


def ask(experiment, observations=None, actions=TWO):
    return add_spaces(experiment, observations or {"observation": VECTOR}, actions)


@pytest.mark.parametrize(("spaces", "keys"), _OBSERVATIONS.values(), ids=_OBSERVATIONS)
def test_observations_are_described_as_a_file_would(tmp_path, spaces, keys):
    experiment = load_ppo(tmp_path)
    assert experiment.algorithm.lacks_spaces

    complete, _ = ask(experiment, spaces)

    assert experiment.algorithm.describe_spaces(spaces, TWO) == keys | {"num_actions": 2}
    assert not complete.algorithm.lacks_spaces
    complete.algorithm.validate_spaces(spaces, TWO)


@pytest.mark.parametrize(("spaces", "keys"), _ACTIONS.values(), ids=_ACTIONS)
def test_actions_are_described_as_a_file_would(tmp_path, spaces, keys):
    experiment = load_ppo(tmp_path)

    complete, _ = ask(experiment, actions=spaces)

    described = experiment.algorithm.describe_spaces({"observation": VECTOR}, spaces)
    assert described == {"state_size": 6, **keys}
    complete.algorithm.validate_spaces({"observation": VECTOR}, spaces)


def test_bounds_that_the_file_leaves_open_are_the_environment_s(tmp_path):
    space = Box(dtype="float32", shape=(2,), low=[-1, -2], high=[1, 3])

    complete, _ = ask(load_ppo(tmp_path, "bounded: true"), actions={"action": space})

    assert complete.algorithm.action_low == (-1, -2)
    assert complete.algorithm.action_high == (1, 3)
    with pytest.raises(ConfigError, match="low is missing in component 0 of the environment"):
        ask(
            load_ppo(tmp_path, "bounded: true"),
            actions={"action": Box(dtype="float32", shape=(1,))},
        )


@pytest.mark.parametrize(("observations", "actions", "said"), _UNUSABLE.values(), ids=_UNUSABLE)
def test_spaces_that_cannot_be_used_are_refused_by_name(tmp_path, observations, actions, said):
    with pytest.raises(ConfigError) as raised:
        ask(load_ppo(tmp_path), observations, actions)
    assert said in str(raised.value)


def test_what_the_file_says_is_not_asked(tmp_path):
    experiment = load_ppo(tmp_path, "state_size: 6", "network: {layers: [8]}")
    assert experiment.algorithm.lacks_spaces  # of actions

    assert experiment.algorithm.describe_spaces({"observation": IMAGE}, TWO) == {"num_actions": 2}


def test_layers_of_the_file_that_do_not_suit_an_image_are_refused(tmp_path):
    experiment = load_ppo(tmp_path, "network: {layers: [8]}")

    with pytest.raises(ConfigError, match="not a convolution"):
        ask(experiment, {"observation": IMAGE})
    complete, _ = ask(load_ppo(tmp_path, "network: {activation: relu}"), {"observation": IMAGE})
    assert complete.algorithm.network.activation == "relu"


def test_the_overrides_and_the_saved_form_give_the_same_experiment(tmp_path):
    spaces = _OBSERVATIONS["several leaves"][0]
    experiment = load_ppo(tmp_path, "gamma: 0.9")

    complete, overrides = ask(experiment, spaces)

    again = load_experiment(experiment.file, [f"run_dir={experiment.run_dir}", *overrides])
    assert again.algorithm == complete.algorithm
    (tmp_path / "config.yaml").write_text(dump_experiment(complete))
    assert load_experiment(tmp_path / "config.yaml").algorithm == complete.algorithm
    assert complete.algorithm.seed == experiment.algorithm.seed
    require_spaces(complete)


def test_without_an_environment_the_keys_are_named(tmp_path):
    with pytest.raises(ConfigError, match="set state_size, image, num_states or observations"):
        require_spaces(load_ppo(tmp_path))


def test_a_mirror_waits_for_the_spaces(tmp_path):
    lines = ("mirror_observation: [0.1, -1]", "mirror_action: [1, 0.1]")
    experiment = load_ppo(tmp_path, *lines)

    with pytest.raises(ConfigError, match="mirror_observation: 2 numbers, expected 6"):
        ask(experiment)
    complete, _ = ask(experiment, {"observation": Box(dtype="float32", shape=(2,))})
    assert complete.algorithm.observation_mirror is not None


MIRRORED = {"observation": Box(dtype="float32", shape=(3,), mirror=(-0.1, 2, 1))}
SWAPPED = {"action": Discrete(n=2, mirror=(1, 0.1))}


# covers P14
def test_mirror_images_come_from_the_environment(tmp_path):
    experiment = load_ppo(tmp_path, "mirror: 2", "state_size: 3", "num_actions: 2")
    assert experiment.algorithm.lacks_spaces

    complete, overrides = add_spaces(experiment, MIRRORED, SWAPPED)

    assert overrides == [
        "algorithm.mirror_observation=[-0.1, 2, 1]",
        "algorithm.mirror_action=[1, 0.1]",
    ]
    assert not complete.algorithm.lacks_spaces
    assert complete.algorithm.observation_mirror.indices == (0, 2, 1)
    assert complete.algorithm.observation_mirror.signs == (-1, 1, 1)
    assert complete.algorithm.action_mirror.indices == (1, 0)


def test_mirror_images_are_left_alone_without_the_mirror_loss(tmp_path):
    complete, _ = add_spaces(load_ppo(tmp_path), MIRRORED, SWAPPED)
    assert complete.algorithm.mirror_observation is None


@pytest.mark.parametrize(
    ("observations", "actions", "words"),
    [
        (MIRRORED, TWO, "add a method get_action_mirror_indices to a Gymnasium environment, or mi"),
        (
            {"a": VECTOR, "b": VECTOR},
            SWAPPED,
            "only observations of one leaf, named 'observation', can be",
        ),
        (
            {"observation": Box(dtype="float32", shape=(2,), mirror=(np.nan, 1))},
            SWAPPED,
            "mirror_observation: expected a finite number, got nan",
        ),
        (MIRRORED, {"action": Discrete(n=2, mirror=(0.1,))}, "1 number, expected 2"),
        (
            {"observation": Box(dtype="uint8", shape=(10, 12, 3), mirror=(0.1,))},
            SWAPPED,
            "images cannot be mirrored",
        ),
    ],
)
def test_mirror_images_that_are_none_are_refused(tmp_path, observations, actions, words):
    with pytest.raises(ConfigError, match=words):
        add_spaces(load_ppo(tmp_path, "mirror: 1"), observations, actions)


def test_integers_are_seen_as_one_hot_vectors():
    from relaax_like.algorithm import Encoder

    config = EncoderConfig.model_validate(
        {
            "observations": {"place": {"num": (3, 3, 2)}, "speed": {"size": 1}},
            "network": {"layers": ()},
            "observation_history": 2,
        }
    )
    encoder = Encoder(config, seed=0)
    assert encoder.get_input_specs() == [
        ("place", {"shape": (6,), "dtype": "int64"}),
        ("speed", {"shape": (2,), "dtype": "float32"}),
    ]
    place = np.array([[0, 2, 1, 1, 0, 0], [-1, 9, 0, 0, 0, 1]], np.int64)

    features, _ = encoder({"place": place, "speed": np.ones((2, 2), np.float32)}, {})

    known = [1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0]
    others = [0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1]  # -1 and 9 are no values
    assert features.tolist() == [[*known, 1, 1], [*others, 1, 1]]


def test_shipped_algorithms_leave_the_same_things_open():
    names = (
        "a2c",
        "impala",
        "ppo",
        "bc",
        "cql",
        "ddpg",
        "dqn",
        "q_learning",
        "sac",
        "sarsa",
        "td3",
        "td3_bc",
    )
    for name in names:
        assert load("config", name).Config().lacks_spaces


def test_actions_that_do_not_count_from_0_are_refused() -> None:
    validate_discrete({"action": Discrete(n=3)}, 3)
    with pytest.raises(InvalidInputError, match="counts actions from 0") as caught:
        validate_discrete({"action": Discrete(n=3, start=1)}, 3)
    assert caught.value.field == "action_spaces"
