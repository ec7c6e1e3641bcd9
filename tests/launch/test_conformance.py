"""Conformance: the shipped folders hold to it, and what breaks a rule is found by its check."""

# covers F2, F6, F9

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.cluster import ROOT

from relaax_like.config.models import Experiment, MetricsServerConfig, WandbConfig
from relaax_like.launch import conformance, conformance_checks
from relaax_like.launch.conformance import CheckResult, check_algorithm, find_folder_experiment
from relaax_like.launch.conformance_subject import Failed
from relaax_like.wire.errors import ConfigError

CHECKS = (
    "specs",
    "numpy equals tensorflow",
    "together equals alone",
    "legal actions",
    "padding changes nothing",
    "resume",
    "placements agree",
    "declarations",
    "export",
    "learns",
)
NO_MASKS = {"legal actions": "there are no masks"}
FROM_A_TABLE = {"padding changes nothing": "Replay", "placements agree": "Replay"}
# Experiment -> checks that are not applicable, each with a word of the reason.
FOLDERS: dict[str, dict[str, str]] = {
    "a2c": {},
    "ppo": {},
    "ppo/masked_cartpole.yaml": {},
    "bc": {"placements agree": "Offline", "learns": "Offline"},
    "cql": {"placements agree": "Offline", "learns": "Offline"},
    "td3_bc": {"placements agree": "Offline", "learns": "Offline"},
    "dqn": FROM_A_TABLE,
    "sac": FROM_A_TABLE,
    "td3": FROM_A_TABLE,
    "xqc": FROM_A_TABLE,
    "q_learning": {},
    "sarsa": {"padding changes nothing": "overlap"},
    "ddpg": FROM_A_TABLE,
    "policy_gradient": {
        "numpy equals tensorflow": "compiled by TensorFlow",
        **dict.fromkeys(("padding changes nothing", "placements agree"), "no plan"),
        **dict.fromkeys(("resume", "declarations"), "no make_algorithm"),
    },
}


def check(name: str, only: Sequence[str] = ()) -> dict[str, CheckResult]:
    place = str(ROOT / "algorithms" / name) if "/" in name else name
    # More than the 30 s of the command: other tests need the same cores.
    results = check_algorithm(find_folder_experiment(place), learn_sec=120.0, only=only)
    return {one.name: one for one in results}


# All checks of these in `make test`: one learns from rollouts, one from a table. All checks of an
# actor-critic are in `algorithm/test_walk_through.py`; what is left out of the others' here is in
# `learn/test_holes.py`, `learn/test_placements.py`, and `launch/test_serial_state.py`.
QUICK = ("dqn", "q_learning")
# Of all other folders: what compiles no update; and one that learns continuous actions.
CHEAP = ("specs", "numpy equals tensorflow", "together equals alone", "export")
LEARNS = ("sac",)


@pytest.mark.timeout(300)  # nine checks, of which one learns for up to half a minute
@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in FOLDERS]
)
def test_shipped_folders_hold_to_all_checks(name: str) -> None:
    results = check(name)
    assert tuple(results) == CHECKS
    assert_passed(name, results)


@pytest.mark.parametrize("name", [one for one in FOLDERS if one not in QUICK])
def test_shipped_folders_hold_to_the_checks_that_are_cheap(name: str) -> None:
    only = (*CHEAP, "learns") if name in LEARNS else CHEAP
    results = check(name, only)
    assert tuple(results) == only
    assert_passed(name, results)


def assert_passed(name: str, results: dict[str, CheckResult]) -> None:
    for result in results.values():
        word = {**NO_MASKS, **FOLDERS[name]}.get(result.name, "")
        assert result.outcome == ("not applicable" if word else "passed"), result
        assert word in result.reason


def copy(folder: Path, file: str, old: str, new: str) -> Path:
    """Copies a2c with another piece of code; returns the copy's folder."""
    copied = folder / "mine"
    shutil.copytree(ROOT / "algorithms" / "a2c", copied, ignore=shutil.ignore_patterns("__*"))
    for other in ("acrobot", "pendulum", "recall"):
        (copied / f"{other}.yaml").unlink()
    experiment = copied / "a2c.yaml"
    experiment.write_text(experiment.read_text().replace("name: a2c", "path: ./"))
    code = (copied / file).read_text()
    assert old in code
    (copied / file).write_text(code.replace(old, new))
    return copied


# What is wrong -> file, code, wrong code, check that finds it, words of the reason.
MISTAKES: dict[str, tuple[str, str, str, str, str]] = {
    "a mean of all rows": (
        "algorithm.py",
        "batch.mean(",
        "tf.reduce_mean(",
        "padding changes nothing",
        "use batch.mean",
    ),
    "a cost of another group": (
        "algorithm.py",
        'self.model.name_costs(actor, critic, {"entropy": entropy})',
        "Losses({'acotr': actor, 'critic': critic})",
        "resume",
        "'acotr'",
    ),
}


@pytest.mark.parametrize(("file", "old", "new", "name", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_fails_its_check(
    file: str, old: str, new: str, name: str, words: str, tmp_path: Path
) -> None:
    folder = copy(tmp_path, file, old, new)
    (result,) = check_algorithm(find_folder_experiment(str(folder)), only=[name])
    assert result.outcome == "failed"
    assert words in result.reason


def test_agents_that_learn_by_a_missing_file_fail(tmp_path: Path) -> None:
    folder = copy(tmp_path, "algorithm.py", "make_algorithm", "make_algorithm")
    (folder / "algorithm.py").unlink()
    (result,) = check_algorithm(find_folder_experiment(str(folder)), only=["resume"])
    assert result.outcome == "failed"
    assert "there is no algorithm.py, by which the agents of this folder learn" in result.reason


@pytest.mark.parametrize(
    ("key", "outcome"), [("", "failed"), ("rollout_steps: int = 16", "passed")]
)
def test_agents_that_learn_by_a_missing_plan_fail_unless_their_steps_are_known(
    tmp_path: Path, key: str, outcome: str
) -> None:
    """With `rollout_steps`, each batch is one gradient."""
    folder = tmp_path / "mine"
    ignored = shutil.ignore_patterns("__*")
    shutil.copytree(ROOT / "docs" / "examples" / "minimal", folder, ignore=ignored)
    code = (folder / "config.py").read_text().replace("return OnPolicy(", "OnPolicy(")
    (folder / "config.py").write_text(f"{code}\n    {key}\n")
    (result,) = check_algorithm(find_folder_experiment(str(folder)), only=["specs"])
    assert result.outcome == outcome, result
    place = f"{folder / 'config.py'}:15: plan returns None, but agents that learn by algorithm.py"
    assert result.reason.startswith(place if outcome == "failed" else "")


def test_a_group_without_an_optimizer_is_named() -> None:
    experiment = find_folder_experiment("a2c", ["relaax-parameter-server.optimizers={actor: {}}"])
    (result,) = check_algorithm(experiment, only=["specs"])
    assert result.outcome == "failed"
    assert "the variable group 'critic' has no optimizer; configure one" in result.reason


SHIFTED = """

_make_plain = make_model


def make_model(config, seed):
    model = _make_plain(config, seed)
    policy = model.policy

    def shifted(inputs, states):
        x = inputs["observation"]
        return policy({"observation": x + 0.01 * isinstance(x, np.ndarray)}, states)

    model.policy = shifted
    return model
"""


def test_a_policy_that_is_another_one_in_tensorflow_is_found(tmp_path: Path) -> None:
    model = copy(tmp_path, "model.py", "def make_model(", "def make_model(") / "model.py"
    code = model.read_text().replace("\n\nfrom", "\n\nimport numpy as np\nfrom", 1)
    model.write_text(code + SHIFTED)
    experiment = find_folder_experiment(str(tmp_path / "mine"))
    (found,) = check_algorithm(experiment, only=["numpy equals tensorflow"])
    assert found.outcome == "failed"
    assert "in NumPy, but" in found.reason


IGNORING = """

_make_plain = make_model


def make_model(config, seed):
    model = _make_plain(config, seed)
    policy = model.policy

    def ignoring(inputs, states):
        names = {name: x if name == "observation" else x | True for name, x in inputs.items()}
        return policy(names, states)

    model.policy = ignoring
    return model
"""
MASKED = {"a2c": 2, "bc": 2, "impala": 2, "ppo": 2, "q_learning": 3, "sarsa": 3}
WITH_MASKS = "algorithm.masks={action: [2]}"


@pytest.mark.parametrize(
    ("name", "choices"),
    [("dqn", 2), *(pytest.param(*one, marks=pytest.mark.slow) for one in MASKED.items())],
)
def test_shipped_folders_hold_to_masks(name: str, choices: int) -> None:
    experiment = find_folder_experiment(name, [f"algorithm.masks={{action: [{choices}]}}"])
    (found,) = check_algorithm(experiment, only=["legal actions"])
    assert (found.outcome, found.reason) == ("passed", "")


def test_masks_of_other_sizes_than_the_actions_are_named() -> None:
    experiment = find_folder_experiment("q_learning", [WITH_MASKS])
    (found,) = check_algorithm(experiment, only=["legal actions"])
    assert found.outcome == "failed"
    assert "algorithm.masks has 'action' with [2] choices" in found.reason


def test_a_policy_that_ignores_masks_is_found(tmp_path: Path) -> None:
    model = copy(tmp_path, "model.py", "def make_model(", "def make_model(") / "model.py"
    model.write_text(model.read_text() + IGNORING)
    experiment = find_folder_experiment(str(tmp_path / "mine"), [WITH_MASKS])
    (found,) = check_algorithm(experiment, only=["legal actions"])
    assert found.outcome == "failed"
    assert "drawn actions 'action' are not legal in their masks, expected none" in found.reason


def test_a_cost_of_illegal_actions_is_found(tmp_path: Path) -> None:
    entropy = "tf.reduce_sum(tf.nn.softmax(x := seen.policy.logits) * x, -1)"
    folder = copy(tmp_path, "algorithm.py", "seen.policy.entropy()", entropy)
    experiment = find_folder_experiment(str(folder), [WITH_MASKS])
    (found,) = check_algorithm(experiment, only=["legal actions"])
    assert found.outcome == "failed"
    assert "with masks, a gradient contains NaN" in found.reason


def test_masks_of_the_settings_are_checked_in_all_components(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "algorithm:\n  name: a2c\n  state_size: 2\n"
        "  actions: {a: {num: [3, 1, 4]}, b: {num: 5}}\n  masks: {a: [3, 1, 4], b: [5]}\n"
    )
    only = ["numpy equals tensorflow", "together equals alone", "legal actions"]
    found = list(check_algorithm(find_folder_experiment(str(file)), only=only))
    assert [one.outcome for one in found] == ["passed"] * 3, found


REFUSING = """

from relaax_like.nn.distributions import Categorical, Distribution


class Choices(Categorical):
    restrict = Distribution.restrict


class Model(ActorCritic):
    def policy(self, inputs, memory):
        found, memory = super().policy(inputs, memory)
        return {"action": Choices(found["action"].logits)}, memory


def make_model(config, seed):
    return Model(config, seed)
"""


def test_a_distribution_without_restrict_is_found(tmp_path: Path) -> None:
    model = copy(tmp_path, "model.py", "def make_model(", "def make_model(") / "model.py"
    model.write_text(model.read_text() + REFUSING)
    experiment = find_folder_experiment(str(tmp_path / "mine"), [WITH_MASKS])
    (found,) = check_algorithm(experiment, only=["legal actions"])
    assert found.outcome == "failed"
    assert "has no choices that a mask could restrict" in found.reason


def test_training_for_the_check_is_in_this_process_and_leaves_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trained: list[Experiment] = []

    class Trainer:
        status = SimpleNamespace(finished="mean return 9 reached the target 8")

        def __init__(self, experiment: Experiment, *_: object) -> None:
            trained.append(experiment)

        def run(self, _: object) -> int:
            return 0

    monkeypatch.setattr("relaax_like.launch.conformance_learning._CheckTrainer", Trainer)
    experiment = replace(
        find_folder_experiment("a2c", ["learner.placement=standalone"]),
        compile_cache=tmp_path,
        metrics_server=MetricsServerConfig(metrics_dir=tmp_path),
        wandb=WandbConfig(),
    )
    (result,) = check_algorithm(experiment, only=["learns"])
    assert result.outcome == "passed", result
    (checked,) = trained
    assert checked.learner.placement == "server"
    assert (checked.compile_cache, checked.metrics_server, checked.wandb) == (None, None, None)


def test_a_policy_that_does_not_learn_is_told_with_what_it_reached() -> None:
    experiment = find_folder_experiment("a2c", ["algorithm.learning_rate=0"])
    (result,) = check_algorithm(experiment, learn_sec=1.0, only=["learns"])
    assert result.outcome == "failed"
    assert ": 1 s of processor time used up; after " in result.reason


def test_the_command_ends_with_one_where_a_check_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from relaax_like.cli.check_algorithm import show_checks

    def run(outcome: conformance.Outcome) -> Callable[..., list[CheckResult]]:
        return lambda *_: [CheckResult("specs", outcome, "why", 0.5)]

    for outcome, status in (("passed", 0), ("not applicable", 0), ("failed", 1)):
        monkeypatch.setattr("relaax_like.cli.check_algorithm.check_algorithm", run(outcome))  # type: ignore[arg-type]
        assert show_checks("ppo", (), 1.0) == status
        assert f"{outcome:14} specs: why (0.5 s)" in capsys.readouterr().out


def test_the_export_is_not_checked_without_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (result,) = check_algorithm(find_folder_experiment("a2c"), only=["export"])
    assert result.outcome == "not applicable"
    assert "onnxruntime is not installed" in result.reason


def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown check 'spec'; expected one of specs, numpy eq"):
        list(check_algorithm(find_folder_experiment("a2c"), only=["spec"]))


def test_a_folder_without_one_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown algorithm"):
        find_folder_experiment("nothing")
    for name in (f"{tmp_path}/none", f"{tmp_path}/{'x' * 300}"):
        with pytest.raises(ConfigError, match=r": no such folder, or no access to it; expected"):
            find_folder_experiment(name)
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=r"no YAML file that is named .*\.yaml or check\.yaml"):
        find_folder_experiment(str(tmp_path / "a"))


def test_a_change_to_nan_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = [SimpleNamespace(name="w")]
    monkeypatch.setattr(conformance_checks, "get_variables", lambda model: variables)
    subject: Any = SimpleNamespace(make_model=lambda: None, folder="folder")
    start, one, other = [np.zeros(4)], [np.ones(4)], [np.full(4, np.nan)]
    with pytest.raises(Failed, match="w changes by 2, but the change here differs by nan"):
        conformance_checks._compare_changes(subject, start, one, other, "here", "cure")
    conformance_checks._compare_changes(subject, start, other, other, "here", "cure")
