"""`relaax_like.load`: a trained policy in a program of the user."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support.cues.slots import CueSlots
from support.hierarchy import FOLDER
from support.saved_runs import (
    ALGORITHMS,
    draw_ends,
    draw_observations,
    play_greedily,
    write_case,
    write_run,
)

import relaax_like
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_spaces import write_run_spaces
from relaax_like.launch.policy import Policy
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.wire.errors import ConfigError, InvalidInputError, SnapshotError
from relaax_like.wire.spaces import ACTION, OBSERVATION, Box, Discrete, MultiDiscrete, RunSpaces

STEPS, SLOTS = 10, 2
LARGE = "a2c, impala"  # takes seconds; tests/launch/test_export.py has it
RECURRENT = "a2c, lstm, several choices"


@pytest.fixture(scope="module", params=[name for name in ALGORITHMS if name != LARGE])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """An untrained run of each algorithm and each kind of network."""
    return write_case(tmp_path_factory.mktemp("case") / "run", request.param)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recurrent policy, with three versions; the older the better."""
    folder = tmp_path_factory.mktemp("several") / "run"
    return write_run(folder, ALGORITHMS[RECURRENT], versions=(2, 3, 7))


def pick(values: Any, slot: int) -> Any:
    """Returns one slot's values."""
    if isinstance(values, dict):
        return {name: array[slot] for name, array in values.items()}
    return values[slot]


def act_through(policy: Policy, observations: list[Any], ends: np.ndarray) -> list[Any]:
    actions = []
    for observation, ended in zip(observations, ends, strict=True):
        policy.reset(None if ended.all() else ended)
        actions.append(policy.act(observation))
    return actions


def test_it_acts_as_the_run_s_own_agents_do(case: Experiment) -> None:
    observations, ends = draw_observations(case, STEPS, SLOTS), draw_ends(STEPS, SLOTS)
    wanted = play_greedily(case, observations, ends)
    assert len({array.tobytes() for array in wanted}) > 1  # they are not all the same
    ends[0] = True
    with relaax_like.load(case.run_dir) as policy:
        actions = act_through(policy, observations, ends)
        for action, own in zip(actions, wanted, strict=True):
            assert action.dtype == own.dtype
            np.testing.assert_array_equal(action, own)
        # One slot alone: its actions have no batch axis.
        policy.reset()
        for observation, ended, own in zip(observations, ends, wanted, strict=True):
            if ended[1]:
                policy.reset()
            action = policy.act(pick(observation, 1))
            assert isinstance(action, int) == (own.ndim == 1)
            np.testing.assert_allclose(action, own[1], rtol=1e-5, atol=1e-6)


def test_a_version_is_chosen_by_number_age_or_score(run: Path) -> None:
    for version, want in (("latest", 7), ("best", 2), (3, 3), ("3", 3)):
        policy = relaax_like.load(run, version=version)
        assert (policy.version, policy.global_t) == (want, 100 * want)


def test_the_versions_that_exist_are_listed_where_one_does_not(run: Path) -> None:
    with pytest.raises(SnapshotError, match=r"no snapshot of version 4; the versions are 2, 3, 7$"):
        relaax_like.load(run, version=4)
    with pytest.raises(ConfigError, match="version: 'newest', expected latest, best, or the"):
        relaax_like.load(run, version="newest")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    want = r"has no config\.yaml, or no access to it; expected the folder of a run"
    with pytest.raises(ConfigError, match=want):
        relaax_like.load(tmp_path)


def test_nothing_is_written_while_another_process_holds_the_run(run: Path) -> None:
    def list_files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}

    with Snapshots(run / "checkpoints", keep=3):  # the lock of a parameter server
        before = list_files()
        relaax_like.load(run).act(np.zeros(3))
        assert list_files() == before


def test_a_batch_of_another_size_needs_a_reset_where_there_is_a_memory(
    run: Path, tmp_path: Path
) -> None:
    policy = relaax_like.load(run)
    assert policy.act(np.zeros((2, 3))).shape == (2, 2)
    with pytest.raises(
        InvalidInputError, match=r"batch of 3, but .* of 2 are .*; call reset\(\) first"
    ):
        policy.act(np.zeros((3, 3)))
    with pytest.raises(InvalidInputError, match=r"ended: shape \[3\], expected \[2\]"):
        policy.reset([True, False, False])
    policy.reset()
    assert policy.act(np.zeros((3, 3))).shape == (3, 2)
    plain = relaax_like.load(write_run(tmp_path / "run", ALGORITHMS["ppo, normalised"]))
    assert plain.act(np.zeros((2, 4))).shape == (2,)
    assert isinstance(plain.act(np.zeros(4)), int)


def test_agents_that_could_not_be_made_are_made_by_the_next_call(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise InvalidInputError("too large")

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(arguments)
        return make_slot_agents(*arguments, **options)

    made: list[Any] = []
    policy = relaax_like.load(run)
    policy.act(np.zeros((2, 3)))
    policy.reset()
    host = policy._saved.host
    make_slot_agents = host.make_slot_agents
    monkeypatch.setattr(host, "make_slot_agents", fail)
    with pytest.raises(InvalidInputError, match="too large"):
        policy.act(np.zeros((3, 3)))
    monkeypatch.setattr(host, "make_slot_agents", make)
    policy.act(np.zeros((2, 3)))
    assert len(made) == 1  # the earlier ones are closed


def test_memory_changes_actions_until_it_is_reset(run: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(40, 3))
    policy = relaax_like.load(run)
    remembered = [policy.act(observation).tolist() for observation in observations]
    forgotten = []
    for observation in observations:
        policy.reset()
        forgotten.append(policy.act(observation).tolist())
    assert remembered[0] == forgotten[0]
    assert remembered != forgotten


def test_actions_are_drawn_on_request(tmp_path: Path) -> None:
    policy = relaax_like.load(write_run(tmp_path / "run", ALGORITHMS["ppo, normalised"]))
    observations = np.zeros((300, 4), np.float32)
    assert len(set(policy.act(observations).tolist())) == 1
    assert len(set(policy.act(observations, greedy=False).tolist())) > 1


def test_an_agent_that_chooses_by_itself_draws_nothing(tmp_path: Path) -> None:
    name = "policy_gradient_tutorial"
    policy = relaax_like.load(write_run(tmp_path / "run", ALGORITHMS[name]))
    with pytest.raises(InvalidInputError, match="greedy: False, but the algorithm's Agent"):
        policy.act(np.zeros(4), greedy=False)


@pytest.mark.parametrize(
    ("observation", "want"),
    [
        (np.zeros(5), r"observation: shape \[5\], expected \[3\]"),
        (np.zeros((2, 2, 3)), r"shape \[2, 2, 3\], expected \[3\]"),
        (np.zeros((0, 3)), "an empty batch"),
        (np.full(3, np.nan), "NaN or infinity"),
        ("left", "observation: "),
    ],
    ids=["size", "axes", "empty", "NaN", "text"],
)
def test_an_observation_that_does_not_fit_is_refused(
    run: Path, observation: Any, want: str
) -> None:
    with pytest.raises(InvalidInputError, match=want):
        relaax_like.load(run).act(observation)


def test_leaves_are_named_by_their_paths_or_nested(tmp_path: Path) -> None:
    experiment = write_case(tmp_path / "run", "a2c, several leaves")
    policy = relaax_like.load(experiment.run_dir)
    (flat,) = draw_observations(experiment, 1, 4)
    nested = {"arm": {"joints": flat["arm/joints"]}, "goal": flat["goal"], "camera": flat["camera"]}
    actions = policy.act(flat)
    policy.reset()
    np.testing.assert_array_equal(policy.act(nested), actions)
    policy.reset()
    del flat["goal"]
    with pytest.raises(InvalidInputError, match=r"expected a dict with \['arm/joints', 'camera'"):
        policy.act(flat)


def test_leaves_have_the_names_that_clients_give_them(tmp_path: Path) -> None:
    leaves = "observations: {left_arm: {size: 2}, a/0: {size: 2}}"
    run = write_run(tmp_path / "run", f"name: ppo, num_actions: 3, {leaves}")
    policy = relaax_like.load(run)
    one, other = np.random.default_rng(0).normal(size=(2, 4, 2))
    actions = policy.act({"left_arm": one, "a/0": other})
    np.testing.assert_array_equal(policy.act({"left arm": one, "a": (other,)}), actions)
    box = gym.spaces.Box(-1, 1, (2,))
    space = gym.spaces.Dict({"a": gym.spaces.Tuple([box]), "left arm": box})
    named = relaax_like.load(run, observation_space=space)
    np.testing.assert_array_equal(named.act({"left arm": one, "a": (other,)}), actions)
    match = r"observation: the keys \['left arm'\] and \['left_arm'\] would have the same name"
    with pytest.raises(InvalidInputError, match=match):
        policy.act({"left arm": one, "left_arm": one, "a": (other,)})


def test_an_action_space_clips_and_shapes_what_the_policy_does(tmp_path: Path) -> None:
    algorithm = "name: a2c, state_size: 4, action_size: 4, network: {layers: [8]}"
    run = write_run(tmp_path / "run", algorithm)
    observations = 5 * np.random.default_rng(0).normal(size=(50, 2, 2))
    means = relaax_like.load(run).act(observations.reshape(50, 4))
    assert abs(means).max() > 0.5
    policy = relaax_like.load(
        run,
        observation_space=Box(dtype="float32", shape=(2, 2)),
        action_space=gym.spaces.Box(-0.25, 0.5, (2, 2), np.float64),
    )
    actions = policy.act(observations)
    assert actions.dtype == np.float64
    np.testing.assert_allclose(actions.reshape(50, 4), means.clip(-0.25, 0.5), atol=1e-6)
    with pytest.raises(InvalidInputError, match=r"shape \[3\] \(3 numbers"):
        relaax_like.load(run, action_space=Box(dtype="float32", shape=(3,)))


def test_the_spaces_of_the_run_are_used(tmp_path: Path) -> None:
    algorithm = "name: a2c, num_states: 4, num_actions: 3, network: {layers: [8]}"
    run = write_run(tmp_path / "one", algorithm)
    wanted = [relaax_like.load(run).act(state) for state in range(4)]
    spaces = RunSpaces({OBSERVATION: Discrete(n=4, start=5)}, {ACTION: Discrete(n=3, start=-1)})
    write_run_spaces(run, spaces)
    policy = relaax_like.load(run)
    assert [policy.act(state + 5) + 1 for state in range(4)] == wanted
    with pytest.raises(InvalidInputError, match=r"observation: 4 is outside 5\.\.8"):
        policy.act(4)

    run = write_run(tmp_path / "several", algorithm.replace("4", "[4, 2]").replace("3", "[3, 5]"))
    states = np.array([[0, 1], [3, 0], [2, 1]])
    wanted = relaax_like.load(run).act(states)
    several = MultiDiscrete(n=(4, 2), shape=(2,), starts=(7, -3))
    write_run_spaces(
        run,
        RunSpaces(
            {OBSERVATION: several},
            {ACTION: MultiDiscrete(n=(3, 5), shape=(2,), starts=(1, 0))},
        ),
    )
    actions = relaax_like.load(run).act(states + np.array([7, -3]))
    np.testing.assert_array_equal(actions, wanted + np.array([1, 0]))

    run = write_run(
        tmp_path / "box",
        algorithm.replace("num_states", "state_size").replace("num_actions: 3", "action_size: 2"),
    )
    states = np.random.default_rng(0).normal(size=(9, 2, 2))
    means = relaax_like.load(run).act(states.reshape(9, 4))
    box = Box(dtype="float32", shape=(2, 1), low=[[-0.1], [0]], high=[[np.inf], [0.05]])
    write_run_spaces(
        run, RunSpaces({OBSERVATION: Box(dtype="float32", shape=(2, 2))}, {ACTION: box})
    )
    actions = relaax_like.load(run).act(states)
    np.testing.assert_allclose(actions, means.reshape(9, 2, 1).clip(box.low, box.high), atol=1e-6)
    assert (actions[..., 0] == np.float32([-0.1, 0.05])).any(axis=0).all()


CONFIG = """
from relaax_like.config.algorithm import AlgorithmConfig


class Config(AlgorithmConfig):
    pass
"""
MODEL = """
import numpy as np

from relaax_like.core.manifest import Variable


def make_initial_values(config, seed):
    return [Variable("W", np.zeros(2, np.float32))]
"""


def test_spaces_that_the_settings_do_not_say_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.py").write_text(CONFIG)
    (folder / "model.py").write_text(MODEL)
    run = write_run(tmp_path / "run", f"path: '{folder}'")
    with pytest.raises(ConfigError, match=r"pass observation_space=\.\.\. and action_space="):
        relaax_like.load(run)


def test_a_snapshot_of_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    config = (run / "config.yaml").read_text().replace("lstm: 5", "lstm: 6")
    other = tmp_path / "config.yaml"
    other.write_text(config)
    with pytest.raises(SnapshotError, match=r"shape .* for variable policy\.lstm\.[UW], but the"):
        relaax_like.load(other)


def test_the_import_is_light_and_acting_in_numpy_loads_no_tensorflow(run: Path) -> None:
    code = (
        "import sys\n"
        "import relaax_like\n"
        "assert not {'numpy', 'pydantic', 'grpc'} & set(sys.modules)\n"
        f"print(relaax_like.load({str(run)!r}).act([0.0, 1.0, 2.0]).shape)\n"
        "print('tensorflow' in sys.modules, 'gymnasium' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("(2,)\nFalse False\n", "")


def test_several_algorithms_act_together(tmp_path: Path) -> None:
    spaces = CueSlots.observation_space, CueSlots.action_space
    run = write_run(tmp_path / "run", f"path: '{FOLDER}'")
    observations = list(np.random.default_rng(0).normal(size=(STEPS, SLOTS, 2)))
    ends = draw_ends(STEPS, SLOTS)
    wanted = play_greedily(load_experiment(run / "config.yaml"), observations, ends, *spaces)
    ends[0] = True
    with relaax_like.load(run, observation_space=spaces[0], action_space=spaces[1]) as policy:
        actions = act_through(policy, observations, ends)
    np.testing.assert_array_equal(actions, wanted)
