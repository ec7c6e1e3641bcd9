"""Minari data sets as recordings: what is read of them, and errors."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from support.serial import train
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.config.loader import load_experiment
from relaax_like.experience.trajectory_files import DamagedFileError
from relaax_like.launch import minari_data
from relaax_like.launch.recordings import find_recordings
from relaax_like.parameter_server.snapshots import read_latest
from relaax_like.wire.errors import ConfigError

minari = pytest.importorskip("minari", reason="the extra `offline` is not installed")
from minari.data_collector import EpisodeBuffer  # noqa: E402

ID = "tests/walk-v0"
MASK = "mask:action"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


VECTOR = gym.spaces.Box(-100, 100, (2,), np.float32)
FORCE = gym.spaces.Box(-2, 2, (1,), np.float32)


def observe(space: gym.Space, number: int) -> Any:
    if isinstance(space, gym.spaces.Dict):
        place = np.array([[number, 0.5]], np.float64)
        return {"place": place, "kind": np.int64(number % 3 + 4)}
    return np.full(space.shape, number, space.dtype)  # type: ignore[arg-type]


def stack(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([one[key] for one in observations]) for key in observations[0]}
    return np.stack(observations)


def write(
    episodes: int = 4,
    observations: gym.Space = VECTOR,
    actions: gym.Space = FORCE,
    **options: Any,
) -> list[Any]:
    """Writes a data set; returns the actions of each episode, which are uniform.

    The third episode terminates after 5 steps; the second one ends after 7, without a reason; the
    others are truncated after 7.
    """
    actions.seed(1)
    taken, buffers = [], []
    for number in range(1, episodes + 1):
        steps = 5 if number == 3 else 7
        taken.append(np.stack([actions.sample() for _ in range(steps)]))
        last = np.arange(steps) == steps - 1
        buffers.append(
            EpisodeBuffer(
                id=number - 1,
                observations=stack(
                    [observe(observations, 10 * number + step) for step in range(steps + 1)]
                ),
                actions=taken[-1],
                rewards=list(np.arange(1.0, steps + 1)),
                terminations=list(last & (number == 3)),
                truncations=list(last & (number not in (2, 3))),
                infos={},
            )
        )
    minari.create_dataset_from_buffers(
        ID,
        buffers,
        observation_space=observations,
        action_space=actions,
        algorithm_name="uniform",
        **options,
    )
    return taken


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "data sets"))


def test_a_data_set_has_the_steps_of_all_episodes(tmp_path: Path) -> None:
    taken = write()
    [recording] = find_recordings([f"minari:{ID}"])
    assert recording.name == f"minari:{ID} (episodes 0 to 3)"
    assert recording.bytes > 0
    rollout = recording.read()
    # Episodes of 7, 7, 5 and 7 steps, one after another.
    observed = [10 * e + s for e, n in ((1, 7), (2, 7), (3, 5), (4, 7)) for s in range(n)]
    np.testing.assert_array_equal(rollout.inputs["observation"][:, 0, 0], observed)
    np.testing.assert_array_equal(rollout.next_inputs["observation"][:, 0, 1], np.add(observed, 1))
    alive = np.ones(26)
    alive[[6, 13, 25]], alive[18] = -1, 0
    np.testing.assert_array_equal(rollout.next_alive[:, 0], alive)
    steps = [s for n in (7, 7, 5, 7) for s in range(1, n + 1)]
    np.testing.assert_array_equal(rollout.rewards[:, 0, 0], steps)
    np.testing.assert_array_equal(rollout.actions["action"][:, 0], np.concatenate(taken))
    # The folder is another name of the same data.
    folder = tmp_path / "data sets" / "tests" / "walk-v0"
    [other] = find_recordings([f"minari:{folder}"])
    np.testing.assert_array_equal(other.read().rewards, rollout.rewards)


def test_leaves_are_as_models_read_them() -> None:
    space = gym.spaces.Dict(
        place=gym.spaces.Box(-100, 100, (1, 2), np.float64), kind=gym.spaces.Discrete(3, start=4)
    )
    taken = write(1, space, gym.spaces.Discrete(2, start=5))
    [recording] = find_recordings([f"minari:{ID}"])
    rollout = recording.read()
    np.testing.assert_array_equal(rollout.inputs["place"][:2, 0], [[10, 0.5], [11, 0.5]])
    np.testing.assert_array_equal(rollout.inputs["kind"][:3, 0], [[1], [2], [0]])
    assert rollout.inputs["kind"].dtype == np.int64
    np.testing.assert_array_equal(rollout.actions["action"][:, 0], np.array(taken[0]) - 5)


def test_images_stay_images() -> None:
    write(1, gym.spaces.Box(0, 255, (4, 5, 3), np.uint8))
    [recording] = find_recordings([f"minari:{ID}"])
    images = recording.read().inputs["observation"]
    assert (images.dtype, images.shape) == (np.uint8, (7, 1, 4, 5, 3))


def test_many_episodes_are_several_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    write(5)  # of 7, 7, 5, 7 and 7 steps
    monkeypatch.setattr(minari_data, "_STEPS", 14)
    parts = find_recordings([f"minari:{ID}"])
    assert [part.read().env_steps for part in parts] == [14, 19]


def test_an_episode_without_some_of_its_steps_is_refused_by_its_number() -> None:
    write()
    data = minari.load_dataset(ID)
    data.storage.update_episode_metadata([{"total_steps": 9}], [2])
    [recording] = find_recordings([f"minari:{ID}"])
    with pytest.raises(DamagedFileError, match=r"episode 2 has 5 steps, .* total_steps, 9; .*hdf5"):
        recording.read()


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_formats_that_cut_long_episodes_are_read_if_none_is_cut(
    data_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow", reason="the extra `offline` is older")
    taken = write(data_format=data_format)
    [recording] = find_recordings([f"minari:{ID}"])
    rollout = recording.read()
    np.testing.assert_array_equal(rollout.actions["action"][:, 0], np.concatenate(taken))
    minari.delete_dataset(ID)
    # More rows than a batch of pyarrow has, which Minari takes for several episodes.
    long = 32_768
    buffers = [
        EpisodeBuffer(
            id=number,
            observations=np.zeros((steps + 1, 2), np.float32),
            actions=np.zeros((steps, 1), np.float32),
            rewards=[0.0] * steps,
            terminations=[False] * steps,
            truncations=[False] * steps,
            infos={},
        )
        for number, steps in enumerate((7, long, 5))
    ]
    minari.create_dataset_from_buffers(
        ID,
        buffers,
        observation_space=VECTOR,
        action_space=FORCE,
        algorithm_name="none",
        data_format=data_format,
    )
    monkeypatch.setattr(minari_data, "_STEPS", 1)
    first, second, third = find_recordings([f"minari:{ID}"])
    assert first.read().env_steps == 7
    with pytest.raises(DamagedFileError, match=rf"episode 1 has \d+ steps, .* {long};"):
        second.read()
    assert third.read().env_steps == 5


@pytest.mark.parametrize(
    ("side", "jpeg_encoding", "warned"), [(32, True, True), (32, False, False), (31, True, False)]
)
def test_images_with_losses_are_a_warning(
    side: int, jpeg_encoding: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    write(1, gym.spaces.Box(0, 255, (side, 40, 3), np.uint8), jpeg_encoding=jpeg_encoding)
    find_recordings([f"minari:{ID}"])
    lines = [record.getMessage() for record in caplog.records]
    assert any("were stored as JPEG" in line for line in lines) == warned


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "none/such-v0",
            "none/such-v0.*not a readable Minari data set .*minari download ID",
        ),
        ("none", "minari:none: not a readable Minari data set"),
    ],
)
def test_a_data_set_that_is_not_there_is_named(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_recordings([f"minari:{name}"])


def test_files_whose_size_cannot_be_read_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = SimpleNamespace(
        get_episode_metadata=lambda numbers: [{"total_steps": 7}], data_path="data"
    )
    data_set = SimpleNamespace(episode_indices=[0], storage=storage)
    monkeypatch.setattr(minari_data, "_load", lambda name: data_set)

    def fail(self: Path, pattern: str) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rglob", fail)
    with pytest.raises(ConfigError, match=r"not a readable Minari .*Permission denied"):
        find_recordings([f"minari:{ID}"])


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (gym.spaces.Text(3), r"Text is not supported; .* them; name another data set"),
        (
            gym.spaces.Dict({"left arm": VECTOR, "left_arm": VECTOR}),
            r"the keys \['left arm'\] and .* on the wire, 'left_arm'; name another data set",
        ),
    ],
)
def test_a_space_that_cannot_be_used_is_named(
    space: gym.Space, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded data cannot be converted with a wrapper."""
    data_set = SimpleNamespace(observation_space=space, action_space=FORCE)
    monkeypatch.setattr(minari_data, "_load", lambda name: data_set)
    with pytest.raises(ConfigError, match=words):
        minari_data.read_spaces(ID)


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ConfigError, match=r"minari is not installed; .*relaax_like\[offline\]"):
        find_recordings([f"minari:{ID}"])


def test_without_h5py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Minari is there, but not what it reads files with."""

    def load(name: str) -> Any:
        raise ImportError("h5py is not installed")

    monkeypatch.setattr(minari_data, "_load", load)
    with pytest.raises(ConfigError, match=r"h5py is not installed; .*relaax_like\[offline\]"):
        find_recordings([f"minari:{ID}"])


@pytest.mark.parametrize("place", [lambda folder: ID, lambda folder: str(folder / ID)])
def test_a_run_learns_from_a_data_set(place: Callable[[Path], str], tmp_path: Path) -> None:
    write(10)
    source = f"minari:{place(tmp_path / 'data sets')}"
    file = tmp_path / "experiment.yaml"
    path = copy_uncompiled("td3_bc", tmp_path)
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        f"learner: {{offline: '{source}'}}\n"
        f"algorithm: {{path: '{path}', network: {{layers: [4]}}, batch_size: 8,\n"
        "  updates_at_once: 2, max_global_step: 64}\n"
    )
    assert load_experiment(file).learner.offline == (source,)
    assert train(file) == 0
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert (state.global_t, state.steps["critic"]) == (64, 8)
    # The spaces came from the data set, and are kept.
    algorithm: Any = load_experiment(tmp_path / "run" / "config.yaml").algorithm
    assert (algorithm.state_size, algorithm.action_low, algorithm.action_high) == (2, (-2,), (2,))


def test_recorded_values_outside_of_their_spaces_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(20, observations=gym.spaces.Box(0, 100, (2,), np.float32))
    path = copy_uncompiled("td3_bc", tmp_path)
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        f"learner: {{offline: 'minari:{ID}'}}\n"
        f"algorithm: {{path: '{path}', network: {{layers: [4]}}, batch_size: 8,\n"
        "  updates_at_once: 2, max_global_step: 16}\n"
    )
    assert train(file) == 0
    first, last = (message for message in caplog.messages if message.startswith("observation"))
    assert "observation: 101 is outside of 0 to 100 (component 0)" in first
    # Steps 1 to 6 of the tenth episode, and all of the ten after it; one episode has 5 steps.
    assert f"{100 * (6 + 10 * 7) / (20 * 7 - 2):.3g} % of {20 * 7 - 2} " in last


def collect(random: bool) -> np.ndarray:
    """Records 12 episodes of 24 steps of Taxi-v4, as Minari's collector does with `record_infos`.

    Its collector needs jax.

    Returns:
      The masks of all observations but the last ones.
    """
    env = gym.make("Taxi-v4", max_episode_steps=24)
    env.action_space.seed(0)
    masks, buffers = [], []
    for episode in range(12):
        state, info = env.reset(seed=episode)
        states, actions, rewards, infos, ends = [state], [], [], [info], []
        for _ in range(24):
            actions.append(env.action_space.sample(None if random else infos[-1]["action_mask"]))
            state, reward, terminated, truncated, info = env.step(actions[-1])
            states.append(state)
            rewards.append(float(reward))
            infos.append(info)
            ends.append((terminated, truncated))
        masks += [one["action_mask"] for one in infos[:-1]]
        buffers.append(
            EpisodeBuffer(
                id=episode,
                observations=np.array(states),
                actions=np.array(actions),
                rewards=rewards,
                terminations=[terminated for terminated, _ in ends],
                truncations=[truncated for _, truncated in ends],
                infos={name: np.stack([one[name] for one in infos]) for name in info},
            )
        )
    env.close()
    minari.create_dataset_from_buffers(
        ID, buffers, observation_space=env.observation_space, action_space=env.action_space
    )
    return np.array(masks, np.bool_)


def write_cloning(tmp_path: Path) -> Path:
    path = copy_uncompiled("bc", tmp_path)
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        f"learner: {{offline: 'minari:{ID}'}}\n"
        f"algorithm: {{path: '{path}', network: {{layers: [4]}}, batch_size: 32,\n"
        "  max_global_step: 2304}\n"
    )
    return file


def test_masks_of_infos_are_learned_with(tmp_path: Path) -> None:
    masks = collect(random=False)
    [recording] = find_recordings([f"minari:{ID}"])
    rollout = recording.read()
    np.testing.assert_array_equal(rollout.inputs[MASK][:, 0], masks)
    within = np.arange(len(masks)) % 24 < 23
    np.testing.assert_array_equal(rollout.next_inputs[MASK][within, 0], masks[1:][within[:-1]])
    assert rollout.next_inputs[MASK].any(-1).all()
    assert train(write_cloning(tmp_path)) == 0
    learned = load_experiment(tmp_path / "run" / "config.yaml")
    assert learned.algorithm.masks == {"action": (6,)}
    assert list(learned.algorithm.observation_spaces) == ["observation"]
    policy = relaax_like.load(tmp_path / "run")
    for choice in range(6):
        assert policy.act(np.int64(3), mask=np.arange(6) == choice) == choice
    # Another source, and none.
    [recording] = find_recordings([f"minari:{ID}"], "off")
    assert list(recording.read().inputs) == ["observation"]
    with pytest.raises(ConfigError, match=r"environment.masks is 'legal'.*; name another data set"):
        find_recordings([f"minari:{ID}"], "legal")


def test_illegal_recorded_actions_are_refused(tmp_path: Path) -> None:
    collect(random=True)
    with pytest.raises(ConfigError, match=r"actions action: \d in component 0 .*masks: off"):
        train(write_cloning(tmp_path))


def test_the_mask_of_a_dict_observation_is_no_part_of_it() -> None:
    space = gym.spaces.Dict(place=VECTOR, action_mask=gym.spaces.MultiBinary(2))
    steps, flags = 7, np.tile(np.array([1, 0], np.int8), (8, 1))
    flags[-1] = 0  # nothing follows it
    buffer = EpisodeBuffer(
        id=0,
        observations={"place": np.zeros((steps + 1, 2), np.float32), "action_mask": flags},
        actions=np.zeros(steps, np.int64),
        rewards=[0.0] * steps,
        terminations=[False] * 6 + [True],
        truncations=[False] * steps,
        infos={},
    )
    minari.create_dataset_from_buffers(
        ID, [buffer], observation_space=space, action_space=gym.spaces.Discrete(2)
    )
    spaces = minari_data.read_spaces(ID).observations
    assert {name: one.shape for name, one in spaces.items()} == {"place": (2,), MASK: (2,)}
    [recording] = find_recordings([f"minari:{ID}"])
    rollout = recording.read()
    assert rollout.inputs.keys() == {"place", MASK}
    np.testing.assert_array_equal(rollout.next_inputs[MASK][:, 0], flags[1:])
    assert rollout.inputs[MASK].dtype == np.bool_


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (np.ones((8, 4)), r"infos\[action_mask\]: shape \[8, 4\]"),
        (np.zeros((8, 5)), r"no legal choice in slot 0"),
        (np.ones((7, 5)), r"infos\[action_mask\]: shape \[7, 5\], expected \[8"),
        ((np.eye(8)[:, :2] + 1, np.ones((8, 3))), None),
    ],
    ids=["too few choices", "none is legal", "too few rows", "one for each component"],
)
def test_masks_that_do_not_fit_are_named(flags: Any, words: str | None) -> None:
    buffer = EpisodeBuffer(
        id=0,
        observations=np.zeros((8, 2), np.float32),
        actions=np.zeros((7, 2), np.int64),
        rewards=[0.0] * 7,
        terminations=[False] * 7,
        truncations=[False] * 6 + [True],
        infos={"action_mask": flags},
    )
    minari.create_dataset_from_buffers(
        ID, [buffer], observation_space=VECTOR, action_space=gym.spaces.MultiDiscrete([2, 3])
    )
    [recording] = find_recordings([f"minari:{ID}"])
    if words is None:
        assert recording.read().inputs[MASK].shape == (7, 1, 5)
        return
    with pytest.raises(DamagedFileError, match=words):
        recording.read()
