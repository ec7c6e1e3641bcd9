"""PPO: rounds of several samplers, statistics of all of them, evaluation."""

# covers P2, P15, P16, P17, P26, P27

import numpy as np
import pytest

from relaax_like.addons.sampling.ppo import PPO
from relaax_like.core.moments import Moments
from relaax_like.wire.errors import ConfigError

from .conftest import CountingSlots, make_config, make_sampler
from .test_ppo_optim import make_optim

LENGTHS = ([2, 3], [4])


def make_ppo(config, lengths=LENGTHS):
    samplers = [
        make_sampler(
            CountingSlots(own, seed=seed), config, seed=seed, discount=config.gamma, gae_lambda=0.9
        )
        for seed, own in enumerate(lengths)
    ]
    optim = make_optim(config)
    return PPO(samplers, optim), optim, samplers


def test_a_buffer_has_whole_rounds_in_the_order_of_the_samplers():
    ppo, _, samplers = make_ppo(make_config())
    for steps, rounds in ((9, 1), (10, 2)):
        buffer, timing = ppo.sample_traj(steps)
        assert np.diff(buffer.traj_idx).tolist() == [2, 3, 4] * rounds
        assert timing.env_steps == len(buffer) == 9 * rounds
    assert [sampler.version for sampler in samplers] == [2, 2]


def test_an_iteration_has_the_plan_s_steps_or_more_and_changes_what_samplers_act_with():
    ppo, optim, samplers = make_ppo(make_config())
    before = optim.get_values()
    buffer, _, metrics = ppo.iterate()
    assert len(buffer) == 27  # num_steps is 24
    assert metrics["updates"] > 0
    after = optim.get_values()
    assert any((old != new).any() for old, new in zip(before, after, strict=True))
    ppo.sync_policy()
    row = {"observation": buffer.rows().states["observation"][:1]}
    first, second = (sampler.act(row, {}, do_eval=True).log_prob for sampler in samplers)
    assert first == second


def test_an_evaluation_takes_the_best_actions_and_learns_nothing():
    ppo, optim, samplers = make_ppo(make_config(update_norm=True))
    before = optim.state_dict()
    buffer, _ = ppo.evaluate(num_trajectories=4)
    assert len(buffer.terminal_values) == 6
    rows = buffer.rows()
    best = samplers[0].act(rows.states, {}, do_eval=True).actions["action"]
    np.testing.assert_array_equal(rows.actions["action"], best)
    for name, array in optim.state_dict().items():
        np.testing.assert_array_equal(array, before[name])


def test_statistics_of_all_samplers_become_the_optimiser_s_and_then_theirs():
    config = make_config(prenorm=True, prenormalize_steps=5)
    ppo, optim, samplers = make_ppo(config)
    buffer, _ = ppo.sample_traj(10, update_normalization_param=True)
    want = Moments.of(buffer.rows().states["observation"])
    state = optim.state_dict()
    for part in ("count", "mean", "m2"):
        np.testing.assert_array_equal(state[f"value/observation.{part}"], getattr(want, part))
    assert samplers[0].get_statistic("observation").count == 0  # one policy for all rounds
    buffer, _, metrics = ppo.iterate()
    assert metrics["updates"] > 0  # there are statistics: nothing more is played for them
    for sampler in samplers:
        np.testing.assert_array_equal(sampler.get_statistic("observation").mean, want.mean)


def test_with_one_sampler_statistics_are_those_of_the_sampler():
    config = make_config(update_norm=True)
    ppo, optim, _ = make_ppo(config, [[2, 3]])
    alone = make_sampler(CountingSlots([2, 3]), config, seed=0)
    alone.sync_policy(optim.get_values(), 1)
    alone.sample_traj(10, update_normalization_param=True)
    ppo.sample_traj(1, update_normalization_param=True)
    want = alone.get_statistic("observation")
    for part in ("count", "mean", "m2"):
        found = optim.state_dict()[f"value/observation.{part}"]
        np.testing.assert_array_equal(found, getattr(want, part))


def test_what_is_out_of_range_is_refused():
    ppo, optim, _ = make_ppo(make_config())
    with pytest.raises(ConfigError, match="num_steps: 0"):
        ppo.sample_traj(0)
    with pytest.raises(ConfigError, match="num_trajectories: 0"):
        ppo.evaluate(0)
    with pytest.raises(ConfigError, match="samplers is empty"):
        PPO([], optim)
