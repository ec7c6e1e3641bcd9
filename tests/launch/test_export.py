"""`relaax export`: files that act as the run does, without TensorFlow and without this package."""

import errno
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.cluster import ROOT, TRACE, Processes, find_command
from support.here import run_relaax
from support.saved_runs import (
    ALGORITHMS,
    draw_ends,
    draw_observations,
    play_greedily,
    write_case,
    write_run,
)

import relaax_like
from relaax_like.agent.history import ObservationHistory
from relaax_like.algorithm.greedy import GreedyPolicy
from relaax_like.client.values import SpaceValues
from relaax_like.config.loader import load_experiment
from relaax_like.config.run_spaces import write_run_spaces
from relaax_like.launch.export import export_policy
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.spaces import Box, Discrete, MultiDiscrete, RunSpaces

STEPS, SLOTS = 10, 2
WITHOUT_A_MODEL = "policy_gradient_tutorial"
EXPORTED = [name for name in ALGORITHMS if name != WITHOUT_A_MODEL]
# Plays with an exported policy: a file of arrays [T, B, ...] in, the actions out.
PLAY = """
import sys

import numpy as np
import onnxruntime

file, given, taken = sys.argv[1:]
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
with np.load(given, allow_pickle=False) as arrays:
    observations = dict(arrays)
ends = observations.pop("ends")
memory = {
    one.name: np.zeros((ends.shape[1], *one.shape[1:]), np.float32)
    for one in session.get_inputs()
    if one.name.startswith("memory_")
}
actions = []
for step, ended in enumerate(ends):
    feeds = {name: np.where(ended[:, None], 0, old) for name, old in memory.items()}
    feeds.update((name, array[step]) for name, array in observations.items())
    found = dict(zip(names, session.run(names, feeds)))
    memory = {name: found["next_" + name] for name in memory}
    actions.append(found["action"])
np.savez(taken, actions=actions)
print({"tensorflow", "relaax_like", "onnx"} & set(sys.modules), sorted(memory))
"""


def to_leaves(observations: Any) -> dict[str, np.ndarray]:
    return observations if isinstance(observations, dict) else {"observation": observations}


def run_without_this_package(file: Path, arrays: dict[str, Any]) -> tuple[np.ndarray, str]:
    """Returns the actions of an ONNX file, and what the process has printed."""
    given, taken = file.with_name("given.npz"), file.with_name("taken.npz")
    np.savez(given, **arrays)
    argv = [sys.executable, "-c", PLAY, str(file), str(given), str(taken)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with np.load(taken, allow_pickle=False) as found:
        return found["actions"], done.stdout


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_policy_acts_as_the_run_does(name: str, tmp_path: Path) -> None:
    experiment = write_case(tmp_path / "run", name)
    exported = export_policy(experiment, folder=tmp_path / "out")
    assert exported.errors.keys() == {"ONNX", "SavedModel"}
    assert max(exported.errors.values()) <= 1e-5
    assert exported.compared == 1000
    observations, ends = draw_observations(experiment, STEPS, SLOTS), draw_ends(STEPS, SLOTS)
    wanted = play_greedily(experiment, observations, ends)
    ends[0] = True
    history = ObservationHistory(experiment.algorithm.observation_history, SLOTS)
    joined = [history.add(to_leaves(o), e) for o, e in zip(observations, ends, strict=True)]
    arrays = {
        leaf.replace("/", "_"): np.stack([step[leaf] for step in joined]) for leaf in joined[0]
    }
    actions, printed = run_without_this_package(
        tmp_path / "out" / "policy.onnx", {**arrays, "ends": ends}
    )
    # Of what remembers, that which chooses actions: the value function's memory is left out.
    cell = "gru" in ALGORITHMS[name] or "lstm" in ALGORITHMS[name]
    part = "trunk" if "shared_network" in ALGORITHMS[name] else "policy"
    assert printed == f"set() {[f'memory_{part}'] if cell else []}\n"
    for action, own in zip(actions, wanted, strict=True):
        np.testing.assert_allclose(action.reshape(own.shape), own, rtol=1e-5, atol=1e-5)


SPACES = {
    "discrete": (
        "num_states: 4, num_actions: 3",
        Discrete(n=4, start=5),
        Discrete(n=3, start=-1),
        {"n": 4, "start": 5},
        {"n": 3, "start": -1},
    ),
    "several": (
        "num_states: [4, 2], num_actions: [3, 5]",
        MultiDiscrete(n=(4, 2), shape=(2, 1), starts=(7, -3)),
        MultiDiscrete(n=(3, 5), shape=(1, 2), starts=(1, 0)),
        {"n": [4, 2], "starts": [7, -3]},
        {"n": [3, 5], "starts": [1, 0]},
    ),
    "box": (
        "state_size: 4, action_size: 2, normalize_observations: true",
        Box(dtype="float32", shape=(2, 2), low=0, high=1),
        Box(dtype="float64", shape=(2, 1), low=[[-0.1], [0]], high=[[np.inf], [0.05]]),
        {"low": 0.0, "high": 1.0},
        {"low": [[-0.1], [0.0]], "high": [[None], [0.05]]},
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_files_know_the_spaces_of_the_run(name: str, tmp_path: Path) -> None:
    keys, seen, acted, seen_facts, acted_facts = SPACES[name]
    run = write_run(tmp_path / "run", f"name: a2c, {keys}, network: {{layers: [8]}}")
    write_run_spaces(run, RunSpaces({"observation": seen}, {"action": acted}))
    export_policy(load_experiment(run / "config.yaml"), folder=tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "policy.onnx")
    (given,), outputs = session.get_inputs(), session.get_outputs()
    assert given.shape == ["batch", *seen.shape]
    assert {output.shape[0] for output in outputs} == {"batch"}
    states: Any = SpaceValues(seen, "observation").sample(200, np.random.default_rng(0))
    wanted = relaax_like.load(run).act(states)
    firsts = [
        space.start if isinstance(space, Discrete) else getattr(space, "get_start", lambda: 0)()
        for space in (seen, acted)
    ]
    (actions,) = session.run(["action"], {"observation": states - firsts[0]})
    np.testing.assert_allclose(actions + firsts[1], wanted, rtol=1e-6, atol=1e-6)

    facts = session.get_modelmeta().custom_metadata_map
    file = tmp_path / "out" / "saved_model" / "assets.extra" / "policy.json"
    same = json.loads(file.read_text())
    texts = ("run", "product")
    assert {k: v if k in texts else json.loads(v) for k, v in facts.items()} == same
    assert (same["run"], same["version"], same["product"]) == (
        "run",
        3,
        f"relaax_like {relaax_like.__version__}",
    )
    for kind, space, own in (("observation", seen, seen_facts), ("action", acted, acted_facts)):
        common = {"name": kind, "kind": type(space).__name__, "dtype": space.dtype}
        assert same[f"{kind}_spaces"] == {kind: {**common, "shape": [*space.shape], **own}}
    normalized = same["normalization"]
    assert normalized.keys() == ({"observation"} if name == "box" else set())
    if normalized:
        assert [len(normalized["observation"][key]) for key in ("mean", "deviation")] == [4, 4]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "run"
    return write_run(folder, ALGORITHMS["ppo, normalised"], versions=(2, 3))


@pytest.mark.parametrize(
    ("algorithm", "factor", "what"),
    [
        ("ppo, normalised", 1.1, r"action is different for [\d.]+% of the inputs"),
        ("ppo, bounded", 1.001, r"action is different by .*, expected at most 1e-05"),
    ],
)
def test_a_file_that_acts_otherwise_is_not_written(
    algorithm: str, factor: float, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # covers N15
    run = write_run(tmp_path / "run", ALGORITHMS[algorithm], versions=(2, 3))
    save = GreedyPolicy.save_onnx

    def spoil(policy: GreedyPolicy, *arguments: Any) -> None:
        for variable in policy._function.variables:
            variable.assign(factor * variable)
        save(policy, *arguments)

    monkeypatch.setattr(GreedyPolicy, "save_onnx", spoil)
    with pytest.raises(RelaaxError, match=rf"policy \(ONNX\) does not compute the same .*: {what}"):
        export_policy(load_experiment(run / "config.yaml"), folder=tmp_path / "out")
    assert list(tmp_path.iterdir()) == [run]


def test_a_model_that_tensorflow_cannot_write_is_a_clear_error(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = GreedyPolicy.save

    def save_into_a_file(policy: GreedyPolicy, folder: Path) -> None:
        folder.write_bytes(b"in the way")
        save(policy, folder / "below")

    monkeypatch.setattr(GreedyPolicy, "save", save_into_a_file)
    with pytest.raises(RelaaxError, match=r"out: cannot be written: .*; choose another folder"):
        export_policy(load_experiment(run / "config.yaml"), folder=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("leaves", "first", "second"),
    [
        ("a/b: {size: 2}, a_b: {size: 3}", "a/b", "a_b"),
        ("action_logits: {size: 2}", "action_logits", "action/logits"),
        ("action: {size: 2}", "action", "action"),
        ("memory/policy: {size: 2}", "memory/policy", "memory/policy"),
    ],
)
def test_two_arrays_with_the_same_name_are_refused(
    leaves: str, first: str, second: str, tmp_path: Path
) -> None:
    algorithm = f"name: a2c, num_actions: 3, observations: {{{leaves}}}, network: {{layers: [gru]}}"
    run = write_run(tmp_path / "run", algorithm.replace("[gru]", "[{gru: 4}]"))
    match = f"export: two inputs or outputs, '{first}' and '{second}', would both be named "
    with pytest.raises(ConfigError, match=f"{match}.*; use relaax serve instead, or rename"):
        export_policy(load_experiment(run / "config.yaml"), folder=tmp_path / "out")


WITH_AN_ODD_OPERATION = """
import tensorflow as tf


class OddModel(PPOModel):
    xla = False

    def policy(self, inputs, states):
        odd = tf.math.special.bessel_j0(inputs["observation"])
        return super().policy({"observation": odd}, states)


def make_model(config, seed):
    model = OddModel(config, seed)
    model.xla = False
    return model
"""


def test_an_operation_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    mine = shutil.copytree(ROOT / "algorithms" / "ppo", tmp_path / "mine")
    model = mine / "model.py"
    model.write_text(model.read_text() + WITH_AN_ODD_OPERATION)
    algorithm = ALGORITHMS["ppo, normalised"].replace("name: ppo", f"path: '{mine}'")
    run = write_run(tmp_path / "run", algorithm)
    with pytest.raises(ConfigError, match=r"cannot load the exported policy: .*BesselJ0"):
        export_policy(load_experiment(run / "config.yaml"), folder=tmp_path / "out")
    assert not (tmp_path / "out").exists()


WITH_A_MISTAKE = """
class WrongModel(PPOModel):
    def policy(self, inputs, states):
        return super().policy({"observation": inputs["velocity"]}, states)


def make_model(config, seed):
    return WrongModel(config, seed)
"""


def test_a_mistake_in_the_model_is_reported_with_its_line(tmp_path: Path) -> None:
    mine = shutil.copytree(ROOT / "algorithms" / "ppo", tmp_path / "mine")
    model = mine / "model.py"
    model.write_text(model.read_text() + WITH_A_MISTAKE)
    algorithm = ALGORITHMS["ppo, normalised"].replace("name: ppo", f"path: '{mine}'")
    run = write_run(tmp_path / "run", algorithm)
    with pytest.raises(ConfigError, match=r"mine/model\.py:\d+: KeyError: 'velocity'$"):
        export_policy(load_experiment(run / "config.yaml"), folder=tmp_path / "out")


def test_an_algorithm_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    experiment = write_case(tmp_path / "run", WITHOUT_A_MODEL)
    with pytest.raises(ConfigError, match=f"{WITHOUT_A_MODEL}: cannot be exported, because no"):
        export_policy(experiment)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


def test_the_command_says_what_it_wrote_and_that_it_compared(run: Path) -> None:
    argv = ["export", run, "--version", "best"]
    done = run_relaax(*argv)
    assert done.status == 0, done
    file = run / "export" / "2" / "policy.onnx"
    assert file.is_file()
    assert str(file) in done.output
    for wanted in (
        "policy of step 200, version 2",
        r"inputs +observation \[B, 4\] float32",
        r"outputs +action \[B\] int64; action_logits \[B, 3\] float32",
        "^ONNX computes the same as the run's own agents: 1,000 random inputs",
        "^SavedModel computes the same as the run's own agents: 1,000 random inputs",
    ):
        assert re.search(wanted, done.output, re.MULTILINE), wanted
    again = run_relaax(*argv)
    assert again.status == 2
    (line,) = again.lines
    assert "not an empty folder; remove it, or pass another with --to" in line


def test_what_the_base_install_lacks_is_named(run: Path, processes: Processes) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'onnxruntime'\", name='onnxruntime')"
    (processes.folder / "onnxruntime.py").write_text(missing)
    argv = [find_command("relaax"), "export", run]
    program = processes.start("export", argv, PYTHONPATH=str(processes.folder))
    assert program.wait() == 2
    (line,) = program.lines
    assert line.startswith("error: onnxruntime is not installed for ")
    assert line.endswith("; install it: pip install 'relaax_like[export]'")
    assert TRACE not in program.output


def test_a_folder_without_access_is_an_error(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> Iterator[Path]:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return list_files(path)

    list_files = Path.iterdir
    experiment = load_experiment(run / "config.yaml")
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(RelaaxError, match="cannot be read: Permission denied; choose another"):
        export_policy(experiment, folder=tmp_path)
