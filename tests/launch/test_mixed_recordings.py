"""`relaax train` with minibatches from all recordings: statistics, tests, resuming. covers J11"""

from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT
from support.serial import train
from support.uncompiled import copy_uncompiled

from relaax_like.config.loader import load_experiment
from relaax_like.experience.rollout import stack_history
from relaax_like.experience.trajectory_files import find_trajectories, read_trajectories
from relaax_like.launch import learners
from relaax_like.launch.recording import record
from relaax_like.metrics.curves import read_curves
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

TD3_BC = ROOT / "algorithms" / "td3_bc" / "td3_bc.yaml"
STEPS = 700
# Of an iteration: 4 updates of 8 steps.
ITERATION = 32


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of Pendulum-v1 with random actions, in two files."""
    folder = tmp_path_factory.mktemp("recorded")
    experiment = load_experiment("sac", ["environment.slots=2"])
    for steps in (STEPS - 300, 300):
        record(experiment, folder, steps, "random", append=True)
    return folder


@pytest.fixture(scope="module")
def settings(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Of a small run without XLA."""
    path = copy_uncompiled("td3_bc", tmp_path_factory.mktemp("uncompiled"))
    return (
        *("algorithm.name=null", f"algorithm.path={path}", f"learner.offline={recorded}"),
        *("algorithm.network={layers: [8]}", "algorithm.batch_size=8"),
        *("algorithm.updates_at_once=4", "learner.eval_freq=0"),
        "relaax-parameter-server.progress_interval_sec=1000",
    )


def learn(folder: Path, iterations: int, *sets: str) -> State:
    budget = f"algorithm.max_global_step={iterations * ITERATION}"
    assert train(TD3_BC, f"run_dir={folder}", budget, *sets) == 0
    state = read_latest(folder / "checkpoints")
    assert state is not None
    return state


@pytest.fixture(scope="module")
def stopped(
    settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, State]:
    """A run of three iterations, and its state at their end."""
    folder = tmp_path_factory.mktemp("stopped")
    return folder, learn(folder, 3, *settings)


def get_values(state: State) -> dict[str, np.ndarray]:
    names = [segment.name for segment in state.manifest.segments]
    return dict(zip(names, state.manifest.unpack(state.values), strict=True))


def test_the_statistics_are_those_of_all_steps_and_do_not_count(
    recorded: Path, stopped: tuple[Path, State]
) -> None:
    _, state = stopped
    # An iteration for the statistics comes first; the actor moves in every second update.
    assert (state.global_t, state.version) == (3 * ITERATION, 4)
    assert state.steps == {"actor": 6, "critic": 12}
    seen = [read_trajectories(path) for path in find_trajectories(recorded)]
    rows = [
        rollout.inputs["observation"][
            np.ones_like(rollout.next_alive, bool) if rollout.valid is None else rollout.valid
        ]
        for rollout in seen
    ]
    joined = np.concatenate(rows).astype(np.float64)
    assert len(joined) == STEPS
    values = get_values(state)
    assert values["observation.count"] == STEPS
    np.testing.assert_allclose(values["observation.mean"], joined.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values["observation.m2"] / STEPS, joined.var(0), rtol=1e-5)


def test_without_normalisation_nothing_comes_first(
    tmp_path: Path, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the size of the memory is unknown."""
    monkeypatch.setattr(learners, "read_available_bytes", lambda: None)
    state = learn(tmp_path, 3, *settings, "algorithm.normalize_observations=false")
    assert (state.global_t, state.version) == (3 * ITERATION, 3)
    assert "observation.count" not in get_values(state)


def test_a_stopped_run_resumes_as_if_it_had_not_been_stopped(
    tmp_path: Path, settings: tuple[str, ...], stopped: tuple[Path, State]
) -> None:
    """The other one plays test episodes as well, which change nothing."""
    tests = ("learner.eval_freq=3", "learner.num_eval_eps=1", "environment.max_episode_steps=20")
    straight = learn(tmp_path / "straight", 7, *settings, *tests)
    curves = read_curves(tmp_path / "straight" / "metrics")
    assert {"Test/Return", "Optimizer/critic", "Optimizer/actor"} <= set(curves)
    resumed = learn(stopped[0], 7, *settings)
    assert resumed.version == straight.version
    np.testing.assert_array_equal(resumed.values, straight.values)
    for group, slots in straight.slots.items():
        np.testing.assert_array_equal(resumed.slots[group], slots)


def test_observations_are_joined_with_earlier_ones(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Recorded once each, and learned from as the model sees them."""
    sets = ("algorithm.observation_history=2",)
    record(load_experiment("sac", sets), tmp_path / "recorded", 300, "random")
    [path] = find_trajectories(tmp_path / "recorded")
    rollout = read_trajectories(path)
    assert rollout.inputs["observation"].shape[-1] == 3
    stacked = stack_history(rollout).inputs["observation"]
    assert stacked.shape[-1] == 6
    offline = f"learner.offline={tmp_path / 'recorded'}"
    state = learn(tmp_path / "run", 2, *settings, offline, *sets)
    mean = stacked[:300].mean((0, 1)) if rollout.valid is None else stacked[rollout.valid].mean(0)
    np.testing.assert_allclose(get_values(state)["observation.mean"], mean, rtol=1e-4, atol=1e-5)


def test_recordings_that_do_not_fit_into_memory_are_refused(
    tmp_path: Path, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "read_available_bytes", lambda: 1000)
    with pytest.raises(
        ConfigError, match=r"learner\.offline: .*GB of memory, but only .* available; .* fewer"
    ):
        learn(tmp_path, 1, *settings)
