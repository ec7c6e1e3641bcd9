"""Rollouts cut at the ends of episodes."""

# covers P5, P7, P26, F22, F23

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.rollouts import make_rollout

from relaax_like.experience.buffer import Buffer
from relaax_like.experience.returns import compute_gae
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Rollout
from relaax_like.experience.trajectories import TrajectoryEnd, split_trajectories

A, D, C = ALIVE, TERMINATED, TRUNCATED


def make_numbered(next_alive: list[list[float]]) -> Rollout:
    """A rollout of `[T, k]`, in which step t of slot s is 10 s + t."""
    alive = np.array(next_alive, np.float32)
    numbers = np.arange(len(alive))[:, None] + 10 * np.arange(alive.shape[1])
    return Rollout(
        inputs={"x": numbers},
        next_inputs={"x": numbers + 0.5},
        next_alive=alive,
        rewards=numbers[..., None].astype(np.float32),
        actions={"action": -numbers},
        log_prob=numbers.astype(np.float32),
        states={"memory": 100 + numbers[0][:, None]},
        versions=np.arange(len(alive)),
    )


def test_columns_are_cut_where_episodes_end() -> None:
    rollout = make_numbered([[A, D], [C, A], [A, A], [A, C]])
    got = [
        (t.slot, t.start, t.inputs["x"].tolist(), t.end, float(t.final_inputs["x"]))
        for t in split_trajectories(rollout)
    ]
    assert got == [
        (0, 0, [0, 1], TrajectoryEnd.TRUNCATED, 1.5),
        (0, 2, [2, 3], TrajectoryEnd.ROLLOUT_END, 3.5),
        (1, 0, [10], TrajectoryEnd.TERMINATED, 10.5),
        (1, 1, [11, 12, 13], TrajectoryEnd.TRUNCATED, 13.5),
    ]


def test_all_arrays_are_cut_alike() -> None:
    last = split_trajectories(make_numbered([[A, D], [C, A], [A, A], [A, C]]))[-1]
    np.testing.assert_array_equal(last.actions["action"], [-11, -12, -13])
    np.testing.assert_array_equal(last.rewards, [[11], [12], [13]])
    np.testing.assert_array_equal(last.log_prob, [11, 12, 13])
    np.testing.assert_array_equal(last.versions, [1, 2, 3])
    assert len(last) == 3


def test_memory_is_the_rollouts_at_its_first_step_and_zero_in_a_new_episode() -> None:
    trajectories = split_trajectories(make_numbered([[A, D], [C, A], [A, A]]))
    assert [t.states["memory"].tolist() for t in trajectories] == [[100], [0], [110], [0]]


def test_an_episode_that_ends_with_the_rollout_leaves_nothing_behind() -> None:
    assert [t.end for t in split_trajectories(make_numbered([[A, A], [D, C]]))] == [
        TrajectoryEnd.TERMINATED,
        TrajectoryEnd.TRUNCATED,
    ]


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 10_000))
def test_every_step_is_in_one_trajectory_and_its_returns_are_the_rollouts(
    steps: int, slots: int, seed: int
) -> None:
    rollout = make_rollout(slots, seed, steps)
    discount, gae_lambda = 0.9, 0.7

    def value(observations: np.ndarray) -> np.ndarray:
        return observations.sum(-1)

    buffer, places = Buffer(discount, gae_lambda), []
    for t in split_trajectories(rollout):
        terminated = t.end is TrajectoryEnd.TERMINATED
        buffer.push_trajectory(
            t.inputs,
            t.actions,
            t.rewards[:, 0],
            value(t.inputs["observation"]),
            0.0 if terminated else value(t.final_inputs["observation"]),
            {"log_prob": t.log_prob},
        )
        places += [(t.start + i, t.slot) for i in range(len(t))]
    assert sorted(places) == [(t, slot) for t in range(steps) for slot in range(slots)]

    values = value(rollout.inputs["observation"])
    next_values = value(rollout.next_inputs["observation"])
    rewards = rollout.rewards[..., 0]
    advantages = compute_gae(rewards, values, next_values, rollout.next_alive, discount, gae_lambda)
    batch = buffer.pad()
    is_step = batch.mask.T == 1  # trajectories lie one behind the other, as `places`
    t, slot = np.array(places).T
    np.testing.assert_allclose(
        batch.returns.T[is_step], (advantages + values)[t, slot], rtol=1e-4, atol=1e-4
    )
    np.testing.assert_array_equal(batch.extras["log_prob"].T[is_step], rollout.log_prob[t, slot])
    assert isinstance(batch.actions, dict)
    np.testing.assert_array_equal(
        batch.actions["action"].T[is_step], rollout.actions["action"][t, slot]
    )
