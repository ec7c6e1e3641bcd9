"""AlgoWorker and AlgoSampler: whole trajectories, by hand and against TensorFlow."""

# covers J18, P1, P2, P4, P5, P6, P16, P26

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from support.batch import load, make_rollout
from support.cluster import ROOT

from relaax_like.addons.sampling.algo_sampler import AlgoSampler
from relaax_like.addons.sampling.algo_worker import AlgoWorker
from relaax_like.algorithm.model import get_variables
from relaax_like.config.algorithm_folder import load_folder_module
from relaax_like.core.moments import Moments
from relaax_like.wire.errors import ConfigError

from .conftest import CountingSlots, make_config, make_model, make_sampler

LSTM = (8, {"lstm": 4})
CONV = {"conv": {"filters": 2, "kernel": 3, "stride": 1}}


def draw_values(model, seed):
    random = np.random.default_rng(seed)
    return [
        variable.value + random.normal(0, 0.3, variable.value.shape).astype(variable.value.dtype)
        for variable in get_variables(model)
    ]


def unroll(config, values, observations):
    """What TensorFlow makes of one trajectory `[L, ...]` from its beginning: values, log_probs."""
    model = make_model(config)
    for variable, value in zip(get_variables(model), values, strict=True):
        (found,) = [v for v in model.find_variables() if v.name.split(":")[0] == variable.name]
        found.tf_variable.assign(value)
    states = {n: tf.zeros([1, *p["shape"]]) for n, p in model.get_state_specs()}
    begins = np.zeros((len(observations), 1), np.bool_)
    inputs = {"observation": tf.constant(observations[:, None])}
    seen = model.evaluate(make_rollout(inputs, states, begins))
    return seen.values.numpy()[:, 0], model.make_distribution(seen.parameters[:, 0])


def split(buffer):
    rows = buffer.rows()
    for start, stop in itertools.pairwise(buffer.traj_idx):
        yield slice(start, stop), rows


def test_trajectories_by_hand_one_of_each_slot_from_reset_to_end():
    sampler = make_sampler(CountingSlots([2, 3]))
    buffer, timing = sampler.sample_traj(max_traj_len=10)
    assert buffer.traj_idx == [0, 2, 5]
    assert buffer.terminal_values == [0, 0]
    rows = buffer.rows()
    np.testing.assert_array_equal(rows.rewards, [1, 2, 1, 2, 3])
    # Slot 0: delta1 = 2 - V1, delta0 = 1 + V1 / 2 - V0; A0 = delta0 + delta1 / 4.
    second = rows.values[1]
    want = [1 + second / 2 + (2 - second) / 4, 2]
    np.testing.assert_allclose(rows.returns[:2], want, rtol=1e-6)
    assert timing.env_steps == 5
    assert timing.sample_sec > 0


def test_what_is_longer_is_cut_off_and_ends_with_the_value_of_what_came_last():
    slots = CountingSlots([2, 9])
    seen = []
    step = slots.step
    slots.step = lambda actions: seen.append(slots._now) or step(actions)
    sampler = make_sampler(slots)
    reset = slots.reset
    slots.reset = lambda mask=None: seen.append(slots._now) or reset(mask)
    buffer, _ = sampler.sample_traj(max_traj_len=4)
    assert buffer.traj_idx == [0, 2, 6]
    seen = [rows[1] for rows in seen]
    # The first is of before all, the last one of before the reset that the cut needs.
    (value,) = sampler.compute_values({"observation": seen[-1][None]}, {})
    assert buffer.terminal_values == [0, pytest.approx(value)]
    rows = buffer.rows()
    np.testing.assert_array_equal(rows.rewards[2:], [1, 2, 3, 4])
    assert rows.returns[-1] == pytest.approx(4 + 0.5 * value)
    own = [row for i, row in enumerate(seen[1:-1]) if i != 2]  # slot 0 was reset then
    np.testing.assert_array_equal(rows.states["observation"][2:], own[:4])


@pytest.mark.parametrize("layers", [(8,), LSTM], ids=["feed-forward", "lstm"])
def test_values_and_log_probs_are_tensorflows_from_no_memory_on(layers):
    """Also of the second trajectory of a slot, which must not remember the first one."""
    config = make_config(layers)
    sampler = make_sampler(CountingSlots([3, 5], cut=[1]), config)
    values = draw_values(sampler.model, 3)
    sampler.sync_policy(values, 7)
    assert sampler.version == 7
    for _ in range(2):
        buffer, _ = sampler.sample_traj(50)
        assert buffer.traj_idx == [0, 3, 8]
        for steps, rows in split(buffer):
            want, distribution = unroll(config, values, rows.states["observation"][steps])
            np.testing.assert_allclose(rows.values[steps], want, atol=1e-5)
            log_prob = distribution.log_prob(rows.actions["action"][steps]).numpy()
            np.testing.assert_allclose(rows.extras["log_prob"][steps], log_prob, atol=1e-5)


def test_final_observations_count_only_where_a_trajectory_was_cut():
    slots = CountingSlots([2, 3], cut=[0])
    step = slots.step

    def spoil(actions):
        transition = step(actions)
        if transition.final_observations is None:
            return transition
        final = transition.final_observations.copy()
        final[~transition.truncated] = np.nan
        return dataclasses.replace(transition, final_observations=final)

    slots.step = spoil
    buffer, _ = make_sampler(slots).sample_traj(10)
    assert buffer.traj_idx == [0, 2, 5]
    assert np.isfinite(buffer.terminal_values).all()


def test_the_end_of_a_cut_trajectory_is_valued_with_what_is_remembered_of_it():
    config = make_config(LSTM)
    slots = CountingSlots([4], cut=[0])
    finals = []
    step = slots.step

    def note(actions):
        transition = step(actions)
        if transition.final_observations is not None:
            finals.append(transition.final_observations[0])
        return transition

    slots.step = note
    sampler = make_sampler(slots, config)
    values = draw_values(sampler.model, 4)
    sampler.sync_policy(values, 1)
    buffer, _ = sampler.sample_traj(50)
    seen = np.concatenate([buffer.rows().states["observation"], finals[0][None]])
    want, _ = unroll(config, values, seen)
    assert buffer.terminal_values == [pytest.approx(want[-1], abs=1e-5)]


def test_an_environments_own_time_limit_cuts_trajectories_off_that_begin_differently():
    """MountainCar ends after 200 steps: the car does not come up the hill by chance."""
    config = load("config", "ppo").Config(
        network={"layers": (4,)},
        state_size=2,
        num_actions=3,
        num_steps=8,
        rollout_steps=4,
        batch_size=4,
    )
    gym = load_folder_module(ROOT / "environments" / "OpenAI_Gym", "gym_make")
    slots = gym.make_slots("MountainCar-v0", 2, seed=1)
    sampler = make_sampler(slots, config)
    buffers = [sampler.sample_traj(max_traj_len=1000)[0] for _ in range(2)]
    starts = []
    for buffer in buffers:
        assert buffer.traj_idx == [0, 200, 400]
        rows = buffer.rows()
        for (slice_, _), terminal_value in zip(split(buffer), buffer.terminal_values, strict=True):
            starts.append(rows.states["observation"][slice_][0].tolist())
            # It is worth what comes behind it, and so is the last step.
            assert terminal_value != 0
            assert rows.returns[slice_][-1] == pytest.approx(-1 + 0.5 * terminal_value)
    assert len(np.unique(starts, axis=0)) == 4
    slots.close()


def test_do_eval_takes_the_best_actions():
    config = make_config()
    sampler = make_sampler(CountingSlots([40]), config)
    values = draw_values(sampler.model, 5)
    sampler.sync_policy(values, 1)
    rows = sampler.sample_traj(50, do_eval=True)[0].rows()
    _, distribution = unroll(config, values, rows.states["observation"])
    best = distribution.mode().numpy()
    np.testing.assert_array_equal(rows.actions["action"], best)
    rows = sampler.sample_traj(50)[0].rows()
    _, distribution = unroll(config, values, rows.states["observation"])
    assert (rows.actions["action"] != distribution.mode().numpy()).any()


def test_normalisation_moves_only_when_asked_and_until_the_next_sync():
    sampler = make_sampler(CountingSlots([3, 4]), make_config(update_norm=True))
    values = [variable.value for variable in get_variables(sampler.model)]
    sampler.sample_traj(10)
    assert sampler.get_statistic("observation").count == 0
    seen = []
    for count in (7, 14):
        buffer, _ = sampler.sample_traj(10, update_normalization_param=True)
        seen.append(buffer.rows().states["observation"])
        got, want = sampler.get_statistic("observation"), Moments.of(np.concatenate(seen))
        assert got.count == want.count == count
        np.testing.assert_allclose(got.mean, want.mean, rtol=1e-6)
        np.testing.assert_allclose(got.m2, want.m2, rtol=1e-6)
    sampler.sync_policy(values, 1)
    assert sampler.get_statistic("observation").count == 0


def test_a_history_begins_anew_with_each_trajectory():
    sampler = make_sampler(
        CountingSlots([2, 3], cut=[1]), make_config(observation_history=2), observation_history=2
    )
    for slots, rows in split(sampler.sample_traj(10)[0]):
        inputs = rows.states["observation"][slots]
        assert inputs.shape[1:] == (6,)
        np.testing.assert_array_equal(inputs[0, :3], inputs[0, 3:])
        np.testing.assert_array_equal(inputs[1:, :3], inputs[:-1, 3:])


def test_trajectories_longer_than_the_first_room():
    buffer, _ = make_sampler(CountingSlots([200, 3])).sample_traj(150)
    assert buffer.traj_idx == [0, 150, 153]
    np.testing.assert_array_equal(buffer.rows().rewards[:150], np.arange(1, 151))


def test_a_step_limit_out_of_range_is_refused():
    sampler = make_sampler(CountingSlots([2, 3]), max_episode_steps=0)
    with pytest.raises(ConfigError, match="max_episode_steps: 0, expected 1 or more"):
        sampler.sample_traj(10)
    with pytest.raises(ConfigError, match="max_traj_len: 0, expected 1 or more steps"):
        sampler.sample_traj(0)


@pytest.mark.parametrize(
    ("layers", "length"), [([CONV, 4], 300), ([CONV, {"lstm": 4}], 9)], ids=["conv", "conv-lstm"]
)
def test_what_numpy_does_not_compute_is_compiled(layers, length):
    """The critic is no part of `acting`; the longer one has more steps than are valued at once."""
    config = make_config(layers, image=(8, 8, 1))
    sampler = make_sampler(CountingSlots([3, length], cut=[1], image=(8, 8, 1)), config)
    values = draw_values(sampler.model, 3)
    sampler.sync_policy(values, 1)
    buffer, _ = sampler.sample_traj(400)
    assert buffer.traj_idx == [0, 3, 3 + length]
    for steps, rows in split(buffer):
        assert rows.states["observation"].dtype == np.uint8
        want, distribution = unroll(config, values, rows.states["observation"][steps])
        np.testing.assert_allclose(rows.values[steps], want, atol=1e-5)
        log_prob = distribution.log_prob(rows.actions["action"][steps]).numpy()
        np.testing.assert_allclose(rows.extras["log_prob"][steps], log_prob, atol=1e-5)
    assert buffer.terminal_values[1] != 0
    rows = sampler.sample_traj(20, do_eval=True)[0].rows()
    _, distribution = unroll(config, values, rows.states["observation"][3:])
    np.testing.assert_array_equal(rows.actions["action"][3:], distribution.mode().numpy())


def test_an_error_of_value_names_its_line():
    class Wrong(type(make_model(make_config()))):
        def value(self, inputs, states):
            return inputs["nothing"]

    model = Wrong(make_config([CONV, 4], image=(8, 8, 1)), 0)
    slots = CountingSlots([3], image=(8, 8, 1))
    sampler = AlgoSampler(model, slots, discount=0.5, gae_lambda=0.5, seed=1)
    with pytest.raises(ConfigError, match=r"test_algo_sampler\.py:\d+.*KeyError: 'nothing'"):
        sampler.sample_traj(20)


def test_a_policy_that_reads_a_schedule_is_refused():
    class Exploring(type(make_model(make_config()))):
        def policy(self, inputs, states, explore):
            assert explore["rank"].shape == (1,)
            assert explore["epsilon"] is not None
            return super().policy(inputs, states)

    want = "AlgoWorker: Exploring.policy reads 'epsilon', which does not exist. .* no schedules"
    with pytest.raises(ConfigError, match=want):
        AlgoWorker(Exploring(make_config(), 0), 0)
