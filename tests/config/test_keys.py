"""The keys of experiments, with type, default and meaning."""

import pytest

from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.base import Settings
from relaax_like.config.base_learner import BaseLearnerConfig
from relaax_like.config.keys import FLAG_SECTIONS, list_keys
from relaax_like.config.models import SECTION_MODELS

ALGORITHMS = ("a2c", "bc", "policy_gradient", "policy_gradient_tutorial", "ppo")
MODELS: dict[str, type[Settings]] = {
    **FLAG_SECTIONS,
    **SECTION_MODELS,
    **{name: load_config_class(find_algorithm(name)) for name in ALGORITHMS},
    "base learner": BaseLearnerConfig,
}


@pytest.mark.parametrize("name", MODELS)
def test_every_key_has_a_type_and_one_line_of_meaning(name: str) -> None:
    keys = list(list_keys(MODELS[name]))
    assert len(keys) >= 3
    for key in keys:
        assert key.type, key
        assert key.meaning.endswith("."), key
        assert "\n" not in key.meaning
        assert len(key.meaning) > 10, key
    assert len({key.name for key in keys}) == len(keys)


def find(model: str, name: str) -> tuple[str, str | None, str]:
    (key,) = (key for key in list_keys(MODELS[model]) if key.name == name)
    return key.type, key.default, key.meaning


def test_keys_are_what_the_file_has() -> None:
    assert find("ppo", "epochs") == (
        "integer >= 1",
        "10",
        "Passes over the data of each iteration.",
    )
    assert find("ppo", "kl")[:2] == ("number > 0 or null", "null")
    assert find("ppo", "clip_schedule")[:2] == ("constant, linear", "constant")
    assert find("ppo", "network.layers")[:2] == ("list of layer", "[64, 64]")
    assert find("ppo", "observations.NAME.size")[0] == "integer >= 1 or null"
    assert find("relaax-parameter-server", "bind")[:2] == ("HOST:PORT", "localhost:7000")
    assert find("relaax-parameter-server", "optimizers.NAME.rho")[1] == "0.9"
    assert find("relaax-parameter-server", "combine.method")[:2] == ("fifo, avg, dc, sync", "fifo")
    assert find("", "run_dir")[1] is None
    # An alias is the key, and what only other algorithms have is left out.
    names = {key.name for key in list_keys(MODELS["policy_gradient_tutorial"])}
    assert {"hidden_layer_size", "gamma"} <= names
    assert not {"layer_size", "rewards_gamma", "GAMMA"} & names
    assert "normalize_observations" not in {key.name for key in list_keys(MODELS["ppo"])}
