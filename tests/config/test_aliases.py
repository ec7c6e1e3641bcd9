"""Hyperparameters by the names that other projects, and older files, give them."""

from typing import Any

import pytest

from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.keys import flags_to_overrides
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.wire.errors import ConfigError

SPELLINGS = {
    "gamma": ("discount", "rewards_gamma", "GAMMA"),
    "max_gradient_norm": ("grad_clip",),
    "entropy_coefficient": ("entropy_coeff",),
    "value_coefficient": ("value_coeff",),
    "learning_rate": ("a_lr",),
    "critic_learning_rate": ("c_lr",),
    "adam_epsilon": ("eps", "epsilon"),
}
KEYS = {
    "ppo": tuple(SPELLINGS),
    "a2c": tuple(key for key in SPELLINGS if key != "critic_learning_rate"),
    "bc": ("learning_rate",),
    "policy_gradient": ("gamma", "learning_rate"),
    "policy_gradient_tutorial": ("gamma", "learning_rate"),
}
CASES = [
    (algorithm, key, alias)
    for algorithm, keys in KEYS.items()
    for key in keys
    for alias in SPELLINGS[key]
]
HEADS = {
    name: f"algorithm:\n  name: {name}\n" + ("" if "gradient" in name else "  num_actions: 2\n")
    for name in KEYS
}
OFFLINE = "learner: {offline: .}\n"


@pytest.fixture
def write(tmp_path: Any) -> Any:
    def write(algorithm: str, *lines: str) -> Any:
        path = tmp_path / "file.yaml"
        section = HEADS[algorithm] + "".join(f"  {line}\n" for line in lines)
        path.write_text(section + (OFFLINE if algorithm == "bc" else ""))
        return path

    return write


@pytest.mark.parametrize(("algorithm", "key", "alias"), CASES)
def test_an_alias_gives_the_same_config(write: Any, algorithm: str, key: str, alias: str) -> None:
    want = dump_experiment(load_experiment(write(algorithm, f"{key}: 0.125")))
    assert f"\n  {key}: 0.125\n" in want
    assert alias not in load_config_class(find_algorithm(algorithm)).model_fields
    assert dump_experiment(load_experiment(write(algorithm, f"{alias}: 0.125"))) == want
    bare, flag = write(algorithm), "--" + alias.replace("_", "-")
    assert dump_experiment(load_experiment(bare, [f"algorithm.{alias}=0.125"])) == want
    overrides = flags_to_overrides(bare, [flag, "0.125"])
    assert overrides == [f"algorithm.{key}=0.125"]
    assert dump_experiment(load_experiment(bare, overrides)) == want
    # A flag overrides the file in any spelling.
    for written, set_ in ((key, alias), (alias, key)):
        path = write(algorithm, f"{written}: 0.5")
        assert dump_experiment(load_experiment(path, [f"algorithm.{set_}=0.125"])) == want


@pytest.mark.parametrize(("algorithm", "key", "alias"), CASES)
def test_two_spellings_of_one_key_are_refused(
    write: Any, algorithm: str, key: str, alias: str
) -> None:
    expected = rf"algorithm\.{alias}: another spelling of {key}, which is also set; keep one"
    with pytest.raises(ConfigError, match=rf"file\.yaml:\d+: {expected}"):
        load_experiment(write(algorithm, f"{key}: 0.5", f"{alias}: 0.5"))
    flags = [f"algorithm.{key}=0.5", f"algorithm.{alias}=0.5"]
    with pytest.raises(ConfigError, match=rf"--set \S+ {expected}"):
        load_experiment(write(algorithm), flags)


def test_messages_name_the_canonical_key_and_two_aliases_each_other(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"yaml:4: algorithm\.gamma: expected 1 or less, got 2"):
        load_experiment(write("ppo", "discount: 2"))
    with pytest.raises(ConfigError, match=r"algorithm\.GAMMA: another spelling of discount"):
        load_experiment(write("ppo", "GAMMA: 0.5", "discount: 0.5"))
    with pytest.raises(ConfigError, match="did you mean max_gradient_norm"):
        load_experiment(write("ppo", "max_grad_norm: 1"))


@pytest.mark.parametrize("alias", SPELLINGS["gamma"])
def test_python_accepts_aliases_too(alias: str) -> None:
    config: Any = load_config_class(find_algorithm("ppo"))
    assert config(num_actions=2, **{alias: 0.25}).gamma == 0.25
