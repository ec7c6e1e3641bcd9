"""Rewards are divided by the deviation of their discounted sums, per slot, over rollouts."""

import numpy as np
import pytest

from relaax_like.config.plan import OnPolicy
from relaax_like.core.moments import Moments
from relaax_like.learn.reward_scale import RewardScale, scale_rewards
from relaax_like.learn.update_policy import UpdatePolicy
from relaax_like.wire.errors import InvalidInputError


def make_keys(*tickets):
    """Returns the keys of tickets, each given as (number, indices)."""
    return np.array([(number, index) for number, indices in tickets for index in indices])


def test_sums_are_discounted_and_begin_anew_behind_each_end():
    scale = RewardScale(discount=0.5)
    rewards = np.array([[1.0, 4.0], [1.0, 4.0], [1.0, 4.0]])
    alive = np.array([[1, 0], [1, 1], [-1, 1]])
    sums = scale.add(rewards, alive, make_keys((1, [0, 1])))
    np.testing.assert_array_equal(sums, [[1, 4], [1.5, 4], [1.75, 6]])
    # Slot 0 was truncated: it restarts. Slot 1 continues from 6.
    sums = scale.add(rewards, alive, make_keys((2, [0, 1])))
    np.testing.assert_array_equal(sums, [[1, 7], [1.5, 4], [1.75, 6]])


def test_sums_go_on_from_rollout_to_rollout_of_one_batch():
    """Two slots, and two rollouts of each in a batch: columns 2 and 3 follow 0 and 1."""
    scale = RewardScale(discount=0.5)
    rewards, alive = np.array([[1.0, 2.0, 3.0, 4.0]]), np.ones((1, 4))
    sums = scale.add(rewards, alive, make_keys((1, [0, 1]), (2, [0, 1])))
    np.testing.assert_array_equal(sums, [[1, 2, 3.5, 5]])
    # A ticket that is cut into two batches: slot 1 of ticket 3 follows slot 1 of ticket 2.
    sums = scale.add(rewards[:, :1], alive[:, :1], make_keys((3, [1])))
    np.testing.assert_array_equal(sums, [[1 + 2.5]])


def test_rewards_are_divided_by_the_deviation_and_clipped():
    # Of 1, 5: mean 3, variance 4, deviation 2.
    moments = Moments.of(np.array([1.0, 5.0]))
    scaled = scale_rewards(np.array([1.0, -3.0, 30.0, -30.0]), moments)
    assert scaled == pytest.approx([0.5, -1.5, 10.0, -10.0])
    assert scaled.dtype == np.float32


def test_sums_that_are_all_alike_do_not_divide_by_zero():
    assert (scale_rewards(np.zeros(3), Moments.of(np.zeros(3))) == 0).all()


class ScalingCompiled:
    statistics = ("return",)

    def validate_one_reward(self, need):
        pass

    def get_statistic(self, name):
        return Moments.of(np.zeros(0))


class RefusingPolicy(UpdatePolicy):
    global_t = 0
    refuses = False

    def _add_statistic(self, name, moments):
        if self.refuses:
            raise InvalidInputError("not finite")


def test_an_iteration_that_is_refused_leaves_the_sums_as_they_were():
    policy = RefusingPolicy(ScalingCompiled(), OnPolicy(rollout_steps=1, reward_discount=0.5), 0)
    keys, alive = make_keys((1, [0, 1])), np.ones((1, 2))
    policy._scale_rewards(np.ones((1, 2, 1)), alive, keys)
    policy.refuses = True
    with pytest.raises(InvalidInputError, match="not finite"):
        policy._scale_rewards(np.full((1, 2, 1), np.nan), alive, keys)
    np.testing.assert_array_equal(policy.get_sums(), [1.0, 1.0])
