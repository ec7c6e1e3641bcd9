"""`python -m ...`: measures how long an update of a run takes with a number of threads.

Its arguments are the run's config.yaml and the number of threads. The last line that it prints is
the seconds of one minibatch. TensorFlow's threads can only be set once, so each number needs its
own process.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.plan import Episodes, LearningPlan, OnPolicy
from relaax_like.experience.collector import Collector
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.algorithm_code import locate_errors
from relaax_like.launch.learners import make_updates_by_name, require_plans
from relaax_like.nn.threads import set_threads
from relaax_like.runs.processes.process import run_main, setup_logging, without_native_stderr

_RUNS = 3


def main() -> int:
    """Prints the seconds of one minibatch; returns the exit status."""
    file, threads = sys.argv[1:]
    setup_logging("WARNING")
    set_threads(int(threads))
    experiment = load_experiment(file)
    with locate_errors(experiment.algorithm_folder):  # in one line, for `backprop`
        seconds = measure(experiment)
    print(seconds)
    return 0


def measure(experiment: Experiment) -> float:
    """Returns the seconds per minibatch in the fastest of three iterations, of all Algorithms.

    Args:
      experiment: whose plans are OnPolicy or Episodes; `set_backprop_workers` refuses all others.

    Raises:
      ConfigError: see `require_plans` and `make_updates_by_name`.
    """
    plans = require_plans(experiment)
    seconds = 0.0
    for name, (compiled, model) in make_updates_by_name(experiment).items():
        seconds += _measure_updates(compiled, model, plans[name], experiment.algorithm)
    return seconds


def _measure_updates(compiled: Any, model: Any, plan: LearningPlan, config: Any) -> float:
    assert isinstance(plan, OnPolicy | Episodes), "others are not measured"
    if isinstance(plan, OnPolicy):  # what is measured is an iteration that learns
        plan = replace(plan, prenormalize_steps=0)
    with without_native_stderr():
        from relaax_like.learn.learning_policy import LearningPolicy
    policy = LearningPolicy(compiled, plan, 0)
    collector = Collector(plan.rollout_steps, plan.columns, capacity=plan.columns)
    collector.add(make_fake_rollout(model, plan, config))
    data = collector.get_training_data()
    assert data is not None, "the rollout is an iteration"
    policy.forward(policy.data_preprocess(data))  # compiles
    seconds = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        updates = policy.forward(policy.data_preprocess(data))["updates"]
        seconds.append((time.perf_counter() - began) / updates)
    return min(seconds)


def make_fake_rollout(model: Any, plan: OnPolicy | Episodes, config: Any = None) -> Rollout:
    """Returns an iteration of random observations, the policy's actions, and random rewards.

    Args:
      model: whose policy acts.
      plan: of the iteration.
      config: of the algorithm; its schedules control exploration. None: no schedules.
    """
    from relaax_like.algorithm.acting import make_actor
    from relaax_like.algorithm.model import get_learning_specs, get_reward_columns

    random = np.random.default_rng(0)
    steps, slots = plan.rollout_steps, plan.columns
    inputs = {
        name: random.uniform(0, 1, (steps + 1, slots, *p["shape"])).astype(
            p.get("dtype", "float32")
        )
        for name, p in get_learning_specs(model)
    }
    states = {
        name: np.zeros((slots, *p["shape"]), np.float32) for name, p in model.get_state_specs()
    }
    first = {name: array[0] for name, array in inputs.items()}
    prediction = make_actor(model, 0, config).act(first, states)
    rewards = max(part.stop for part in get_reward_columns(model).values())
    return Rollout(
        inputs={name: array[:-1] for name, array in inputs.items()},
        next_inputs={name: array[1:] for name, array in inputs.items()},
        next_alive=np.ones((steps, slots), np.float32),
        rewards=random.standard_normal((steps, slots, rewards)).astype(np.float32),
        actions={name: np.stack([array] * steps) for name, array in prediction.actions.items()},
        log_prob=np.stack([prediction.log_prob] * steps),
        states=states,
        versions=np.zeros(steps, np.int64),
    )


if __name__ == "__main__":
    run_main(main)
