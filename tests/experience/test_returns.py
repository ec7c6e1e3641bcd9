"""Returns, and the references of those in graphs, against hand-worked numbers and definitions."""

# covers R7, R29, F22, P5

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.returns import compute_lambda_returns, compute_n_step_returns, compute_vtrace

from relaax_like.experience.returns import compute_discounted_returns, compute_gae, normalize

ALIVE, TERMINATED, TRUNCATED = 1.0, 0.0, -1.0


def test_discounted_returns_of_three_steps_worked_out_by_hand():
    # R2 = 4; R1 = 2 + 0.5 * 4 = 4; R0 = 1 + 0.5 * 4 = 3
    returns = compute_discounted_returns(np.array([1.0, 2.0, 4.0]), 0.5)
    np.testing.assert_allclose(returns, [3, 4, 4])


def test_integer_rewards_are_not_truncated():
    returns = compute_discounted_returns(np.array([1, 1, 1]), 0.5)
    np.testing.assert_allclose(returns, [1.75, 1.5, 1.0])
    assert returns.dtype == np.float64


def test_the_rewards_are_left_as_they_were():
    rewards = np.ones(3)
    compute_discounted_returns(rewards, 0.9)
    np.testing.assert_array_equal(rewards, np.ones(3))


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    st.floats(0, 1),
)
def test_returns_equal_the_definitions_sum(rewards, gamma):
    want = [
        sum(gamma ** (j - t) * rewards[j] for j in range(t, len(rewards)))
        for t in range(len(rewards))
    ]
    np.testing.assert_allclose(compute_discounted_returns(rewards, gamma), want, atol=1e-8)


def test_several_slots_are_several_episodes():
    rewards = np.random.default_rng(0).standard_normal((7, 3))
    both = compute_discounted_returns(rewards, 0.9)
    for slot in range(3):
        np.testing.assert_allclose(both[:, slot], compute_discounted_returns(rewards[:, slot], 0.9))


def test_normalised_values_have_mean_zero_and_deviation_one():
    # mean 2, deviation sqrt(2/3)
    np.testing.assert_allclose(normalize(np.array([1, 2, 3])), np.array([-1, 0, 1]) * np.sqrt(1.5))


@pytest.mark.parametrize("values", [[5.0], [0.1, 0.1, 0.1], [0.0, 0.0], [-1e300] * 3], ids=repr)
def test_values_that_do_not_differ_become_zero_and_not_nan(values):
    np.testing.assert_array_equal(normalize(np.array(values)), np.zeros(len(values)))


def test_normalisation_with_an_epsilon_of_its_own():
    # mean 2, deviation 1
    np.testing.assert_allclose(normalize(np.array([1, 3]), epsilon=1.0), [-0.5, 0.5])


class Rollout:
    """A random rollout whose episodes end here and there."""

    def __init__(self, seed, steps=9, slots=4):
        rng = np.random.default_rng(seed)
        shape = (steps, slots)
        self.rewards = rng.standard_normal(shape)
        self.values = rng.standard_normal(shape)
        self.next_alive = rng.choice([ALIVE, TERMINATED, TRUNCATED], shape, p=[0.7, 0.15, 0.15])
        self.log_ratios = rng.standard_normal(shape)
        self.next_values = rng.standard_normal(shape)
        goes_on = self.next_alive[:-1] == ALIVE
        self.next_values[:-1][goes_on] = self.values[1:][goes_on]

    def bootstrap(self, t, k):
        """V(x_{t+1}) as it counts: nothing behind a termination."""
        return 0.0 if self.next_alive[t, k] == TERMINATED else self.next_values[t, k]

    def last_step(self, t, k):
        """The last step that belongs to the episode of step t, within the rollout."""
        while t < len(self.rewards) - 1 and self.next_alive[t, k] == ALIVE:
            t += 1
        return t

    def delta(self, t, k, gamma):
        return self.rewards[t, k] + gamma * self.bootstrap(t, k) - self.values[t, k]

    def n_step_return(self, t, k, gamma, n):
        """Sutton & Barto, equation 7.1."""
        last = min(t + n - 1, self.last_step(t, k))
        rewards = sum(gamma ** (j - t) * self.rewards[j, k] for j in range(t, last + 1))
        return rewards + gamma ** (last + 1 - t) * self.bootstrap(last, k)

    def each(self, function):
        steps, slots = self.rewards.shape
        return [[function(t, k) for k in range(slots)] for t in range(steps)]


seeds = st.integers(0, 10_000)
lambdas = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@given(seeds, st.integers(1, 12))
def test_n_step_returns_equal_the_definitions_sum(seed, n):
    r = Rollout(seed)
    want = r.each(lambda t, k: r.n_step_return(t, k, 0.9, n))
    got = compute_n_step_returns(r.rewards, r.next_values, r.next_alive, 0.9, n)
    np.testing.assert_allclose(got, want, atol=1e-12)


@given(seeds, lambdas)
def test_gae_equals_equation_16(seed, lam):
    r = Rollout(seed)

    def advantage(t, k):
        steps = range(t, r.last_step(t, k) + 1)
        return sum((0.9 * lam) ** (j - t) * r.delta(j, k, 0.9) for j in steps)

    got = compute_gae(r.rewards, r.values, r.next_values, r.next_alive, 0.9, lam)
    np.testing.assert_allclose(got, r.each(advantage), atol=1e-12)


@given(seeds, lambdas)
def test_lambda_returns_are_the_weighted_mean_of_the_n_step_returns(seed, lam):
    r = Rollout(seed)

    def truncated_lambda_return(t, k):
        """Sutton & Barto, equation 12.9, with the horizon at the episode's or the rollout's end."""
        longest = r.last_step(t, k) + 1 - t
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, longest)] + [lam ** (longest - 1)]
        returns = [r.n_step_return(t, k, 0.9, n) for n in range(1, longest + 1)]
        return np.dot(weights, returns)

    got = compute_lambda_returns(r.rewards, r.next_values, r.next_alive, 0.9, lam)
    np.testing.assert_allclose(got, r.each(truncated_lambda_return), atol=1e-12)


@given(seeds, lambdas, st.sampled_from([0.8, 1.0, 2.0, math.inf]), st.sampled_from([0.0, 0.7, 1.0]))
def test_vtrace_equals_equation_1(seed, lam, rho_bar, c_bar):
    r = Rollout(seed)
    ratios = np.exp(r.log_ratios)

    def target(t, k):
        total = r.values[t, k]
        for s in range(t, r.last_step(t, k) + 1):
            product = math.prod(lam * min(c_bar, ratios[i, k]) for i in range(t, s))
            total += 0.9 ** (s - t) * product * min(rho_bar, ratios[s, k]) * r.delta(s, k, 0.9)
        return total

    def advantage(t, k):
        """Section 4.2, with equation 1 for v_{t+1}."""
        v_next = r.bootstrap(t, k) if t == r.last_step(t, k) else target(t + 1, k)
        return min(rho_bar, ratios[t, k]) * (r.rewards[t, k] + 0.9 * v_next - r.values[t, k])

    got = compute_vtrace(
        *(r.log_ratios, r.rewards, r.values, r.next_values, r.next_alive),
        *(0.9, rho_bar, c_bar, lam),
    )
    np.testing.assert_allclose(got.targets, r.each(target), atol=1e-12)
    np.testing.assert_allclose(got.advantages, r.each(advantage), atol=1e-12)


# r = 1, 2, 4 and V = 10, 20, 30, then 40; gamma = 0.5.
REWARDS = np.array([[1.0], [2.0], [4.0]])
VALUES = np.array([[10.0], [20.0], [30.0]])
NEXT_VALUES = np.array([[20.0], [30.0], [40.0]])


@pytest.mark.parametrize(
    ("alive", "n", "want"),
    [
        # r + V'/2
        ((ALIVE, ALIVE, ALIVE), 1, (11, 17, 24)),
        # 1 + 2/2 + 30/4; 2 + 4/2 + 40/4; the rollout ends
        ((ALIVE, ALIVE, ALIVE), 2, (9.5, 14, 24)),
        # 1 + 2/2 + 4/4 + 40/8
        ((ALIVE, ALIVE, ALIVE), 3, (8, 14, 24)),
        ((ALIVE, ALIVE, ALIVE), 9, (8, 14, 24)),
        # 1 + 2/2 + 4/4
        ((ALIVE, ALIVE, TERMINATED), 3, (3, 4, 4)),
        # 1 + 2/2; 2
        ((ALIVE, TERMINATED, ALIVE), 3, (2, 2, 24)),
        # 1 + 2/2 + 30/4; 2 + 30/2
        ((ALIVE, TRUNCATED, ALIVE), 3, (9.5, 17, 24)),
    ],
)
def test_n_step_returns_by_hand(alive, n, want):
    next_alive = np.array(alive)[:, None]
    got = compute_n_step_returns(REWARDS, NEXT_VALUES, next_alive, 0.5, n)
    np.testing.assert_allclose(got[:, 0], want)


@pytest.mark.parametrize(
    ("alive", "want"),
    [
        # delta = 1 + 10 - 10, 2 + 15 - 20, 4 + 20 - 30 = 1, -3, -6; gamma lambda = 1/4
        ((ALIVE, ALIVE, ALIVE), (1 - 3 / 4 - 6 / 16, -3 - 6 / 4, -6)),
        # delta_2 = 4 - 30
        ((ALIVE, ALIVE, TERMINATED), (1 - 3 / 4 - 26 / 16, -3 - 26 / 4, -26)),
        ((ALIVE, ALIVE, TRUNCATED), (1 - 3 / 4 - 6 / 16, -3 - 6 / 4, -6)),
        # delta_1 = 2 - 20
        ((ALIVE, TERMINATED, ALIVE), (1 - 18 / 4, -18, -6)),
        ((ALIVE, TRUNCATED, ALIVE), (1 - 3 / 4, -3, -6)),
    ],
)
def test_gae_and_lambda_returns_by_hand(alive, want):
    next_alive = np.array(alive)[:, None]
    advantages = compute_gae(REWARDS, VALUES, NEXT_VALUES, next_alive, 0.5, 0.5)
    np.testing.assert_allclose(advantages[:, 0], want)
    returns = compute_lambda_returns(REWARDS, NEXT_VALUES, next_alive, 0.5, 0.5)
    np.testing.assert_allclose(returns, advantages + VALUES)


def test_vtrace_by_hand():
    # Ratios 2, 1/2, 1/4 with both bounds 1: rho = c = 1, 1/2, 1/4; deltas as above without rho.
    log_ratios = np.log(np.array([[2.0], [0.5], [0.25]]))
    got = compute_vtrace(log_ratios, REWARDS, VALUES, NEXT_VALUES, np.ones((3, 1)), 0.5)
    # v2 = 30 - 6/4; v1 = 20 - 3/2 - 1/2 * 1/2 * 6/4; v0 = 10 + 1 + 1/2 * (v1 - 20)
    np.testing.assert_allclose(got.targets[:, 0], [11 - 1.875 / 2, 18.125, 28.5])
    # 1 + v1/2 - 10; (2 + v2/2 - 20)/2; (4 + 40/2 - 30)/4
    np.testing.assert_allclose(got.advantages[:, 0], [0.0625, -1.875, -1.5])


def test_returns_of_a_whole_episode_are_its_discounted_sums():
    next_alive = np.array([[ALIVE], [ALIVE], [TERMINATED]])
    got = compute_lambda_returns(REWARDS, NEXT_VALUES, next_alive, 0.9, 1.0)
    np.testing.assert_allclose(got, compute_discounted_returns(REWARDS, 0.9))


def test_vtrace_on_policy_is_the_n_step_return_and_with_lambda_the_lambda_return():
    r = Rollout(1)
    on_policy = (np.zeros_like(r.rewards), r.rewards, r.values, r.next_values, r.next_alive)
    n_step = compute_n_step_returns(r.rewards, r.next_values, r.next_alive, 0.9, len(r.rewards))
    np.testing.assert_allclose(compute_vtrace(*on_policy, 0.9).targets, n_step)
    # The n-step advantage as well: the return beyond V.
    np.testing.assert_allclose(compute_vtrace(*on_policy, 0.9).advantages, n_step - r.values)
    with_lambda = compute_lambda_returns(r.rewards, r.next_values, r.next_alive, 0.9, 0.8)
    got = compute_vtrace(*on_policy, 0.9, gae_lambda=0.8).targets
    np.testing.assert_allclose(got, with_lambda)


def test_a_huge_ratio_counts_as_its_bound():
    args = (REWARDS, VALUES, NEXT_VALUES, np.ones((3, 1)), 0.5)
    huge = compute_vtrace(np.full((3, 1), 1e4), *args)
    np.testing.assert_array_equal(huge, compute_vtrace(np.zeros((3, 1)), *args))


# name: returns for the states of a rollout, given its arrays
ESTIMATORS = {
    "n_step 3": lambda r, v, nv, na: compute_n_step_returns(r, nv, na, 0.9, 3),
    "n_step T": lambda r, v, nv, na: compute_n_step_returns(r, nv, na, 0.9, len(r)),
    "gae": lambda r, v, nv, na: compute_gae(r, v, nv, na, 0.9, 0.95) + v,
    "lambda": lambda r, v, nv, na: compute_lambda_returns(r, nv, na, 0.9, 0.95),
    "vtrace": lambda r, v, nv, na: compute_vtrace(np.zeros_like(r), r, v, nv, na, 0.9).targets,
}


def learn_value(estimator, at_time_limit, rounds=200):
    """Learns the one value of an endless task that pays 1 per step and is cut each 5th step."""
    rewards, value = np.ones((10, 2)), 0.0
    next_alive = np.full((10, 2), ALIVE)
    next_alive[4::5] = at_time_limit
    for _ in range(rounds):
        values = np.full((10, 2), value)
        value = ESTIMATORS[estimator](rewards, values, values, next_alive).mean()
    return value


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_value_of_an_endless_task_is_right_when_time_limits_bootstrap(estimator):
    # 1 / (1 - 0.9)
    assert learn_value(estimator, TRUNCATED) == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_value_of_an_endless_task_is_wrong_when_time_limits_count_as_deaths(estimator):
    assert learn_value(estimator, TERMINATED) < 5


def test_value_of_an_endless_task_without_bootstrapping_is_the_mean_of_the_cut_sums():
    # 10 (1 - mean(0.9 ... 0.9^5))
    assert learn_value("n_step T", TERMINATED) == pytest.approx(
        10 * (1 - np.mean(0.9 ** np.arange(1, 6)))
    )


@pytest.mark.parametrize("end", [TERMINATED, TRUNCATED])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nothing_behind_the_end_of_an_episode_reaches_before_it(estimator, end):
    r = Rollout(2)
    r.next_alive[:] = ALIVE
    r.next_alive[4] = end
    before = ESTIMATORS[estimator](r.rewards, r.values, r.next_values, r.next_alive)
    r.rewards[5:] += 100
    r.values[5:] += 100
    r.next_values[5:] += 100
    after = ESTIMATORS[estimator](r.rewards, r.values, r.next_values, r.next_alive)
    np.testing.assert_array_equal(after[:5], before[:5])
    assert (after[5:] != before[5:]).any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_final_observations_value_counts_when_truncated_and_not_when_terminated(estimator):
    r = Rollout(2)
    r.next_alive[4] = [TERMINATED, TRUNCATED, TERMINATED, TRUNCATED]
    before = ESTIMATORS[estimator](r.rewards, r.values, r.next_values, r.next_alive)
    r.next_values[4] += 100
    after = ESTIMATORS[estimator](r.rewards, r.values, r.next_values, r.next_alive)
    np.testing.assert_allclose((after - before)[4], [0, 90, 0, 90])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_several_slots_equal_one_by_one(estimator):
    r = Rollout(3)
    together = ESTIMATORS[estimator](r.rewards, r.values, r.next_values, r.next_alive)
    for k in range(4):
        slot = [a[:, k : k + 1] for a in (r.rewards, r.values, r.next_values, r.next_alive)]
        np.testing.assert_array_equal(ESTIMATORS[estimator](*slot)[:, 0], together[:, k])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_integer_rewards_and_values_are_computed_as_numbers(estimator):
    ones = np.ones((3, 2), np.int64)
    got = ESTIMATORS[estimator](ones, ones, ones, ones)
    np.testing.assert_allclose(got, ESTIMATORS[estimator](*[ones.astype(float)] * 4))
    assert got.dtype == np.float64


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_arrays_are_left_as_they_were(estimator):
    r, untouched = Rollout(4), Rollout(4)
    ESTIMATORS[estimator](r.rewards, r.values, r.next_values, r.next_alive)
    for name, array in vars(untouched).items():
        np.testing.assert_array_equal(getattr(r, name), array)
