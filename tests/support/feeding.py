"""`python -m support.feeding RUN ...`: learners, one after the other, are fed recorded rollouts.

A RUN is FOLDER or FOLDER:before:N or FOLDER:after:N, of a folder with an experiment.yaml. Each is a
process of its own, forked off when TensorFlow has been imported, which takes seconds. It publishes
to a parameter server in its process, and writes the policy's state to its folder: when it has been
loaded, and after each publication. It kills itself before or after publication N. The exit statuses
are printed.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

from relaax_like.config.loader import load_experiment
from relaax_like.core.metrics import NullMetrics
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.learners import make_iteration_learner
from relaax_like.launch.parameter_server import make_parameter_server, make_run_dir
from relaax_like.nn.compiling import use_compile_cache
from support.forks import import_tensorflow, run_forked
from support.rollouts import make_rollout

ITERATIONS = 4


def main() -> None:
    import_tensorflow()
    print(*(run_forked(lambda run=run: feed(*run.split(":"))) for run in sys.argv[1:]))


def feed(folder: str, *kill: str) -> None:
    """Makes one run."""
    experiment = load_experiment(Path(folder) / "experiment.yaml")
    use_compile_cache(experiment.compile_cache)
    make_run_dir(experiment)
    server = make_parameter_server(
        experiment, (), NullMetrics(), lambda: make_initial_values(experiment)
    )
    publish = server.publish

    def publish_or_die(publication):  # type: ignore[no-untyped-def]
        if kill == ("before", str(publication.number)):
            os.kill(os.getpid(), signal.SIGKILL)
        reply = publish(publication)
        if kill == ("after", str(publication.number)):
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    server.publish = publish_or_die  # type: ignore[method-assign]
    learner = make_iteration_learner(experiment, server)
    learner.load()
    first = learner.iteration
    for number in range(first, ITERATIONS + 1):
        if number > first:
            learner.source.add(make_rollout(8, seed=number, steps=16), ())
            assert learner.learn() is not None
        name = f"loaded-{number}" if number == first else f"published-{number}"
        np.savez(Path(folder) / f"{name}.npz", **learner._learner.policy.state_dict())
    server.close(save=True)


if __name__ == "__main__":
    main()
