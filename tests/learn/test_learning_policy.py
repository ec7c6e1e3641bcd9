"""LearningPolicy: normalisation, reward scaling, going on from what was saved, bad numbers."""

# covers P15, P16, P19, P25

from dataclasses import replace

import numpy as np
import pytest
from support.batch import load

from relaax_like.algorithm.model import get_variables
from relaax_like.core.manifest import make_manifest
from relaax_like.core.records import Lease
from relaax_like.experience.collector import Collector
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.training_error import load_training_error
from relaax_like.learn.updates import CompiledUpdates, NotFiniteError
from relaax_like.wire.errors import ConfigError, InvalidInputError

STEPS, SLOTS = 4, 2


def make_policy(run_dir=None, **settings):
    config = load("config", "ppo").Config(
        network={"layers": (4,)},
        state_size=3,
        num_actions=2,
        num_steps=STEPS * SLOTS,
        rollout_steps=STEPS,
        batch_size=4,
        epochs=2,
        **settings,
    )
    model = load("model", "ppo").make_model(config, 0)
    model.xla = False  # compiling takes longer than all else here
    algorithm = load("algorithm", "ppo").make_algorithm(config, model, 0)
    compiled = CompiledUpdates(algorithm, config.optimizers)
    return LearningPolicy(compiled, config.plan, seed=1, run_dir=run_dir)


def make_data(seed, rewards=None):
    random = np.random.default_rng(seed)
    observations = random.normal([5.0, -1.0, 0.0], [1.0, 2.0, 9.0], (STEPS + 1, SLOTS, 3))
    observations = observations.astype(np.float32)
    shape = (STEPS, SLOTS)
    if rewards is None:
        rewards = random.standard_normal(shape)
    rollout = Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=np.ones(shape, np.float32),
        rewards=rewards[..., None].astype(np.float32),
        actions={"action": random.integers(2, size=shape)},
        log_prob=np.full(shape, np.log(0.5), np.float32),
        states={},
        versions=np.zeros(STEPS, np.int64),
    )
    collector = Collector(STEPS, SLOTS, capacity=SLOTS)
    collector.add(rollout)
    return collector.get_training_data()


def learn(policy, data):
    return policy.forward(policy.data_preprocess(data))


def get_rows(*batches):
    return np.concatenate([b.rollout.inputs["observation"].reshape(-1, 3) for b in batches])


def get_statistic(policy, name="observation"):
    state = policy.state_dict()
    return tuple(state[f"value/{name}.{part}"] for part in ("count", "mean", "m2"))


def assert_statistic_is_of(policy, rows):
    count, mean, m2 = get_statistic(policy)
    assert count == len(rows)
    np.testing.assert_allclose(mean, rows.mean(0, np.float64), rtol=1e-6)
    np.testing.assert_allclose(m2 / count, rows.var(0, dtype=np.float64), rtol=1e-6)


def get_weights(policy):
    return policy.state_dict()["value/policy.out.W"]


def test_prenormalisation_measures_first_learns_nothing_from_it_and_then_stays():
    policy = make_policy(prenorm=True, prenormalize_steps=10)  # 8 steps in an iteration
    before, batches = get_weights(policy), [make_data(seed) for seed in range(3)]
    for batch in batches[:2]:
        assert learn(policy, batch) == {"updates": 0}
        np.testing.assert_array_equal(get_weights(policy), before)
    assert policy.global_t == 16
    assert_statistic_is_of(policy, get_rows(*batches[:2]))
    assert learn(policy, batches[2])["updates"] == 4
    assert (get_weights(policy) != before).any()
    assert_statistic_is_of(policy, get_rows(*batches[:2]))


@pytest.mark.parametrize(
    ("setting", "want"),
    [
        ({"prenormalize_steps": 8}, "plan: prenormalize_steps is 8, but the model has no running"),
        ({"reward_discount": 0.9}, r"add Normalizer\('return', \(\)\) to the model, or set reward"),
    ],
)
def test_a_plan_that_needs_statistics_refuses_a_model_without_them(setting, want):
    policy = make_policy()
    with pytest.raises(ConfigError, match=want):
        LearningPolicy(policy._compiled, replace(policy._plan, **setting), seed=1)


def test_update_norm_moves_the_statistics_after_each_iteration():
    policy = make_policy(update_norm=True)
    batches = [make_data(seed) for seed in range(2)]
    for number in (1, 2):
        assert learn(policy, batches[number - 1])["updates"] == 4
        assert_statistic_is_of(policy, get_rows(*batches[:number]))


def test_an_iteration_sees_the_statistics_that_were_in_force_when_it_was_acted():
    """Its first update equals that of a policy whose statistics never move."""
    settings = {"prenorm": True, "prenormalize_steps": 8}
    moving, fixed = make_policy(update_norm=True, **settings), make_policy(**settings)
    for seed in range(2):
        first, second = learn(moving, make_data(seed)), learn(fixed, make_data(seed))
    assert first == second
    assert get_statistic(moving)[0] == 16
    assert get_statistic(fixed)[0] == 8
    # From then on they differ.
    assert learn(moving, make_data(2)) != learn(fixed, make_data(2))


def make_lease(policy, global_t, updates, count):
    manifest = make_manifest(get_variables(policy._compiled._algorithm.model))
    values = policy.get_values()
    values[-3:] = [np.array(float(count)), np.ones(3), np.full(3, 4.0 * max(count, 1))]
    optimizers = policy.get_optimizers()
    return Lease(
        number=0,
        manifest=manifest,
        values=manifest.pack(values),
        slots=optimizers.slots,
        slot_names=optimizers.slot_names,
        steps=dict.fromkeys(optimizers.steps, updates),
        version=0,
        global_t=global_t,
        finished="",
    )


@pytest.mark.parametrize(
    ("global_t", "updates", "count", "learns"),
    [
        (0, 0, 0, False),  # a new run
        (0, 0, 5, True),  # one that starts from an older policy, whose statistics it keeps
        (8, 0, 8, False),  # cut off while it measured: it measures on
        (16, 0, 16, True),  # cut off before its first update
        (24, 4, 16, True),  # cut off later
        (24, 4, 5, True),  # the same, from an older policy
    ],
)
def test_a_run_that_goes_on_measures_only_what_is_missing(global_t, updates, count, learns):
    policy = make_policy(prenorm=True, prenormalize_steps=10)
    policy.load(make_lease(policy, global_t, updates, count))
    assert bool(learn(policy, make_data(0))["updates"]) == learns


def test_rewards_are_scaled_by_what_the_run_has_seen_and_a_saved_run_goes_on():
    rewards = np.array([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0], [0.0, 2.0]])
    policy = make_policy(normalize_rewards=True, gamma=0.5)
    arguments = policy.data_preprocess(make_data(0, rewards))
    # R: 1, 0.5, 1.25, 0.625 and 2, 3, 3.5, 3.75.
    sums = [1, 0.5, 1.25, 0.625, 2, 3, 3.5, 3.75]
    want = rewards / np.sqrt(np.var(sums) + 1e-8)
    np.testing.assert_allclose(arguments["rewards"]["reward"][..., 0], want, rtol=1e-6)
    policy.forward(arguments)
    resumed = make_policy(normalize_rewards=True, gamma=0.5)
    resumed.load_state_dict(policy.state_dict())
    assert get_statistic(resumed, "return") == pytest.approx(
        (8, np.mean(sums), 8 * np.var(sums)), rel=1e-6
    )
    # Episodes restart there, as do the sums; what has been seen still counts.
    scaled = resumed.data_preprocess(make_data(1, rewards))["rewards"]["reward"][..., 0]
    np.testing.assert_allclose(scaled, rewards / np.sqrt(np.var(sums * 2)), rtol=1e-6)
    # In the run itself they continue from 0.625 and 3.75.
    more = [1.3125, 0.65625, 1.328125, 0.6640625, 3.875, 3.9375, 3.96875, 3.984375]
    scaled = policy.data_preprocess(make_data(1, rewards))["rewards"]["reward"][..., 0]
    np.testing.assert_allclose(scaled, rewards / np.sqrt(np.var(sums + more)), rtol=1e-6)


def test_a_state_of_another_model_is_refused_by_name_and_changes_nothing():
    policy = make_policy()
    before = policy.state_dict()
    for name in before:
        state = {other: array for other, array in before.items() if other != name}
        if name == "updates":
            continue
        with pytest.raises(InvalidInputError, match=f"^policy state: {name}: missing"):
            policy.load_state_dict({key: array * 0 for key, array in state.items()})
    for name, array in policy.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_rewards_are_what_they_are_without_it():
    policy, data = make_policy(), make_data(0)
    arguments = policy.data_preprocess(data)
    np.testing.assert_array_equal(arguments["rewards"]["reward"], data.rollout.rewards)


# Numbers that are not finite.


def make_infinite(policy, name):
    """Makes a weight infinite."""
    names = policy._names
    values = [value.copy() for value in policy.get_values()]
    values[names.index(name)][0] = np.inf
    policy._compiled.set_values(values)


def test_an_iteration_that_is_not_finite_is_written_down_and_named(tmp_path):
    policy, data = make_policy(tmp_path, normalize_rewards=True), make_data(0)
    data.rollout.rewards[2, 1] = np.nan
    (tmp_path / "config.yaml").write_text("algorithm: {name: ppo}")
    with pytest.raises(NotFiniteError, match="batch/rewards/reward at step 2, column 1") as caught:
        policy.data_preprocess(data)
    assert f"relaax diagnose {tmp_path / 'training_error.npz'}" in str(caught.value)
    arrays = load_training_error(tmp_path)
    np.testing.assert_array_equal(arrays["batch/rewards/reward"], data.rollout.rewards)
    np.testing.assert_array_equal(
        arrays["batch/inputs/observation"], data.rollout.inputs["observation"]
    )
    for name, array in policy.state_dict().items():  # before anything was changed
        np.testing.assert_array_equal(arrays[name], array)
    assert arrays["value/return.count"] == 0
    assert str(arrays["settings"]) == "algorithm: {name: ppo}"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_an_update_that_is_not_finite_is_written_down_with_its_costs(tmp_path):
    policy = make_policy(tmp_path)
    make_infinite(policy, "value.out.b")
    with pytest.raises(NotFiniteError, match=r"critic nan.*value/value.out.b at \[0\]") as caught:
        learn(policy, make_data(0))
    arrays = load_training_error(tmp_path / "training_error.npz")
    assert np.isnan(arrays["cost/critic"])
    assert np.isnan(caught.value.metrics["critic"])
    assert arrays["updates"] == 0
    assert "settings" not in arrays


def test_without_a_folder_and_without_room_it_is_still_told(tmp_path):
    for folder in (None, tmp_path / "file"):
        (tmp_path / "file").touch()
        policy = make_policy(folder)
        make_infinite(policy, "policy.out.b")
        with pytest.raises(NotFiniteError, match=r"policy\.out\.b") as caught:
            learn(policy, make_data(0))
        assert ("the details could not be saved" in str(caught.value)) == (folder is not None)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 nonsense"])
def test_files_that_are_none_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "training_error.npz").write_bytes(content)
    with pytest.raises(ConfigError, match="no such file" if content is None else "damaged"):
        load_training_error(tmp_path)
