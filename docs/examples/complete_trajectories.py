"""PPO on complete trajectories: `python complete_trajectories.py [ITERATIONS [WHERE]]`.

WHERE is inline, processes, ray:local or ray:HOST:PORT.
"""

import sys

from relaax_like.addons.sampling.ppo import PPO
from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.config.loader import load_experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.experience.buffer import Buffer
from relaax_like.launch.learners import make_compiled_updates, require_plan
from relaax_like.launch.local import ask_environment
from relaax_like.launch.samplers import open_samplers

MAX_TRAJ_LEN = 500


def main(iterations: int, where: str = "inline") -> list[float]:
    """Trains the shipped ppo on CartPole-v1; returns the mean return of each iteration."""
    # Batches are filled up to multiples of a quarter of num_steps, and compiled for each.
    sets = ["environment.slots=2", "algorithm.num_steps=2048"]
    experiment, _ = ask_environment(load_experiment("ppo", sets))  # what it observes and does
    plan = require_plan(experiment)
    assert isinstance(plan, OnPolicy)
    compiled, _ = make_compiled_updates(experiment)
    optim = PPOOptim(compiled, plan, seed=1, max_traj_len=MAX_TRAJ_LEN)
    means = []
    with open_samplers(experiment, 2, where) as samplers:
        trainer = PPO(samplers, optim)
        for iteration in range(1, iterations + 1):
            buffer, timing, costs = trainer.iterate()
            means.append(compute_mean_return(buffer))
            print(
                f"{iteration}: mean return {means[-1]:.1f}, {timing.env_steps} steps in "
                f"{timing.sample_sec:.2f} s, actor {costs['actor']:.3f}"
            )
        buffer, _ = trainer.evaluate(num_trajectories=16)
        print(f"best actions: mean return {compute_mean_return(buffer):.1f}")
    return means


def compute_mean_return(buffer: Buffer) -> float:
    """Returns the mean sum of rewards of a trajectory."""
    return float(buffer.rows().rewards.sum()) / len(buffer.terminal_values)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30, *sys.argv[2:])
