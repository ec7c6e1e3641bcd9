"""PPO on complete trajectories, in one loop: `python complete_trajectories.py [ITERATIONS]`."""

import sys

from relaax_like.addons.sampling.algo_sampler import AlgoSampler
from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.config.loader import load_experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.launch.algorithm_code import make_model
from relaax_like.launch.learners import make_learning_task, require_plan
from relaax_like.launch.local import ask_environment, open_slots

MAX_TRAJ_LEN = 500


def main(iterations: int) -> list[float]:
    """Trains the shipped ppo on CartPole-v1; returns the mean return of each iteration."""
    # Batches are filled up to multiples of a quarter of num_steps, and compiled for each.
    sets = ["environment.slots=16", "algorithm.num_steps=8192"]
    experiment, _ = ask_environment(load_experiment("ppo", sets))  # what it observes and does
    plan = require_plan(experiment)
    assert isinstance(plan, OnPolicy)
    task, _ = make_learning_task(experiment)
    optim = PPOOptim(task, plan, seed=1, max_traj_len=MAX_TRAJ_LEN)
    means = []
    with open_slots(experiment, "train") as slots:
        model = make_model(experiment)
        sampler = AlgoSampler(model, slots, discount=plan.discount, gae_lambda=0.95, seed=1)
        for iteration in range(1, iterations + 1):
            sampler.sync_policy(optim.get_values(), version=iteration)
            buffer, timing = sampler.sample_traj(MAX_TRAJ_LEN)
            costs = optim.optimize(buffer)
            trajectories = len(buffer.traj_idx) - 1
            means.append(float(buffer.rows().rewards.sum()) / trajectories)
            print(
                f"{iteration}: mean return {means[-1]:.1f}, {timing.env_steps} steps in "
                f"{timing.sample_sec:.2f} s, actor {costs['actor']:.3f}"
            )
    return means


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
