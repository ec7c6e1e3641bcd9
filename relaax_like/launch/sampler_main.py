"""`python -m ...`: a process that samples whole trajectories.

Its arguments are the run's config.yaml, its own name, and the number of the socket that the run
holds the other end of. It ends with it.
"""

import signal
import socket
import sys

from relaax_like.client.interactor import EnvironmentSlots
from relaax_like.client.values import SpaceValues
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.config.seeds import derive_seed
from relaax_like.launch.learners import load_model_module, require_plan
from relaax_like.launch.local import open_slots
from relaax_like.launch.process import run_main, setup_logging
from relaax_like.learn.channel import Channel
from relaax_like.sampling.algo_sampler import AlgoSampler
from relaax_like.sampling.sampler_service import SamplerService
from relaax_like.v1 import sampling_pb2
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, OBSERVATION


def main() -> int:
    """Serves the run until it has gone."""
    # The run is asked to end, and closes the socket.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file, name, number = sys.argv[1:]
    service = SamplerService(
        Channel(socket.socket(fileno=int(number)), sampling_pb2.SamplerRequest)
    )
    experiment = load_experiment(file)
    setup_logging(experiment.parameter_server.log_level)
    with open_slots(experiment, f"worker {name}") as slots:
        try:
            service.serve(make_sampler(experiment, slots, name))
        except InvalidInputError as error:  # a wrong value of the environment ends the run
            raise ConfigError(str(error)) from error
    return 0


def make_sampler(experiment: Experiment, slots: EnvironmentSlots, name: str) -> AlgoSampler:
    """Makes the sampler of a run's policy, with the values that a run starts from.

    Args:
      experiment: names algorithm and environment.
      slots: the environments.
      name: of the worker; each has draws of its own.

    Raises:
      ConfigError: the algorithm cannot use the spaces, or does not act in NumPy.
    """
    config, environment = experiment.algorithm, experiment.environment
    plan, model_module = require_plan(experiment), load_model_module(experiment)
    assert environment is not None
    assert model_module is not None
    assert isinstance(plan, OnPolicy), "an experiment with workers has one"
    try:
        config.validate_spaces(
            SpaceValues(slots.observation_space, OBSERVATION).spaces,
            SpaceValues(slots.action_space, ACTION).spaces,
        )
    except InvalidInputError as error:
        raise ConfigError(str(error)) from error
    return AlgoSampler(
        model_module.make_model(config, config.seed),
        slots,
        discount=plan.discount,
        gae_lambda=plan.gae_lambda,
        seed=derive_seed(config.seed, "act", "worker", name),
        observation_history=config.observation_history,
        rnd=environment.rnd,
        limit=environment.limit,
    )


if __name__ == "__main__":
    run_main(main)
