"""`python -m ...`: measures how long an update of a run takes with so many threads.

Its arguments are the run's config.yaml and the number of threads. The last line that it prints is
the seconds of one minibatch. TensorFlow's threads can be set once only, so each number needs a
process of its own.
"""

import math
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.core.prediction import LOG_PROB
from relaax_like.experience.buffer import Buffer
from relaax_like.launch.learners import make_learning_task, require_plan
from relaax_like.launch.process import run_main, setup_logging, without_native_stderr
from relaax_like.nn.threads import set_threads

_RUNS = 3


def main() -> int:
    """Prints the seconds."""
    file, threads = sys.argv[1:]
    setup_logging("WARNING")
    set_threads(int(threads))
    print(measure(load_experiment(file)))
    return 0


def measure(experiment: Experiment) -> float:
    """Returns the seconds of one minibatch, of the quickest of three iterations."""
    # What is measured is an iteration that learns.
    plan = require_plan(experiment)
    assert isinstance(plan, OnPolicy), "an experiment with workers has one"
    plan = replace(plan, prenormalize_steps=0)
    learner = experiment.learner
    length = min(learner.max_traj_len if learner.workers else plan.rollout_steps, plan.env_steps)
    task, model = make_learning_task(experiment)
    with without_native_stderr():
        from relaax_like.sampling.ppo_optim import PPOOptim
    optim = PPOOptim(task, plan, 0, length)
    buffer = make_fake_buffer(model, math.ceil(plan.env_steps / length), length)
    optim.optimize(buffer)  # compiles
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        updates = optim.optimize(buffer)["updates"]
        seconds.append((time.perf_counter() - began) / updates)
    return min(seconds)


def make_fake_buffer(model: Any, trajectories: int, length: int) -> Buffer:
    """Makes a buffer of drawn observations, what the policy does then, and drawn rewards."""
    from relaax_like.algorithm.acting import make_actor
    from relaax_like.algorithm.model import get_learning_specs

    random = np.random.default_rng(0)
    actor = make_actor(model, 0)
    buffer = Buffer(0.99, 0.95)
    inputs = {
        name: random.uniform(0, 1, (length, *p["shape"])).astype(p.get("dtype", "float32"))
        for name, p in get_learning_specs(model)
    }
    states = {
        name: np.zeros((length, *p["shape"]), np.float32) for name, p in model.get_state_specs()
    }
    prediction = actor.act(inputs, states)
    for _ in range(trajectories):
        buffer.push_trajectory(
            inputs,
            prediction.actions,
            random.standard_normal(length),
            np.zeros(length),
            extras={LOG_PROB: prediction.log_prob},
        )
    return buffer


if __name__ == "__main__":
    run_main(main)
