"""What an algorithm's folder provides: its agent class, models and actors.

Errors of its code are reported with file and line.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.algorithm.model import Model, find_sharing, validate_model
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.config.places import describe_error, describe_function, describe_place
from relaax_like.config.plan import get_plan
from relaax_like.config.seeds import derive_seed
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import ConfigError, RelaaxError

if TYPE_CHECKING:  # They import TensorFlow.
    from relaax_like.algorithm.acting import Actor
    from relaax_like.algorithm.algorithm import Algorithm


@contextlib.contextmanager
def locate_errors(folder: Path) -> Iterator[None]:
    """Converts an error of the code in a folder to a ConfigError with its file and line.

        with locate_errors(experiment.algorithm_folder):
            model = module.make_model(config, seed)

    Raises:
      ConfigError: the code raised an error; the text names its line. A `RelaaxError` of the code
        passes unchanged.
    """
    try:
        yield
    except RelaaxError:
        raise
    except Exception as error:
        raise ConfigError(describe_error(error, folder, str(folder))) from error


def load_model_module(experiment: Experiment) -> Any | None:
    """Returns `model.py` of an algorithm; None: there is no make_model in it.

    A folder without make_model has several Algorithms, or agents with a policy of their own.

    Raises:
      ConfigError: `model.py` cannot be loaded.
    """
    folder = experiment.algorithm_folder
    if not (folder / "model.py").is_file():
        return None
    module = load_algorithm_module(folder, "model")
    return module if hasattr(module, "make_model") else None


def make_model(experiment: Experiment) -> Any:
    """Builds the Model of a folder with one Algorithm.

    Raises:
      ConfigError: the model cannot be built, or is not a valid one; the error names the line of
        the folder's code.
    """
    config, module = experiment.algorithm, load_model_module(experiment)
    assert module is not None, "the folder has one Algorithm"
    with locate_errors(experiment.algorithm_folder):
        model = module.make_model(config, config.seed)
        _validate_kind(model, Model, module.make_model)
        model.masks = config.masks
        validate_model(model)
    return model


def make_algorithm(experiment: Experiment, model: Any, seed: int) -> "Algorithm":
    """Loads TensorFlow, and makes the Algorithm of a folder with one Algorithm.

    Args:
      experiment: names the folder.
      model: from `make_model`.
      seed: of the algorithm's random numbers.

    Raises:
      ConfigError: `algorithm.py` cannot be loaded, its function fails, or returns something else;
        the error names the line.
    """
    with without_native_stderr():
        from relaax_like.algorithm.algorithm import Algorithm

        module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    with locate_errors(experiment.algorithm_folder):
        algorithm: Algorithm = module.make_algorithm(experiment.algorithm, model, seed)
    _validate_kind(algorithm, Algorithm, module.make_algorithm)
    return algorithm


def _validate_kind(value: object, kind: type, make: Any) -> None:
    if not isinstance(value, kind):
        raise ConfigError(
            f"{describe_function(make)}: {make.__name__} returned {value!r:.200}, expected an "
            f"object of a class that derives from {kind.__name__}; return one"
        )


def validate_steps(config: AlgorithmConfig) -> None:
    """Checks that an algorithm with batch-native agents says how many steps they send at once.

    Raises:
      ConfigError: there is neither a plan nor the key `rollout_steps`; the error names the line.
      Exception: see `get_plan`.
    """
    if get_plan(config) is None and getattr(config, "rollout_steps", None) is None:
        own = any("plan" in vars(kind) for kind in type(config).__mro__)
        what = "plan returns None" if own else "there is no plan"
        raise ConfigError(
            f"{describe_place(type(config), 'plan')}: {what}, but agents that learn by "
            "algorithm.py need one, because it contains the number of steps that they send at "
            "once; return a plan such as OnPolicy (see relaax_like.config.plan), or, if each batch "
            "is one gradient, define the key rollout_steps"
        )


def get_make_algorithms(algorithm_module: Any) -> Any:
    """Returns the function that makes several Algorithms.

    Raises:
      ConfigError: there is no such function.
    """
    if not hasattr(algorithm_module, "make_algorithms"):
        raise ConfigError(
            f"{algorithm_module.__file__}: no function make_algorithms found, and no make_model in "
            "model.py; define one of them"
        )
    return algorithm_module.make_algorithms


def load_agent_class(experiment: Experiment) -> Any:
    """Loads the class of the algorithm's agents, `SimpleRLAgent` if the folder has no `agent.py`.

    Raises:
      ConfigError: `agent.py` cannot be loaded, or has no class `Agent`.
    """
    folder = experiment.algorithm_folder
    if not (folder / "agent.py").is_file():
        return SimpleRLAgent
    with without_native_stderr():
        module = load_algorithm_module(folder, "agent")
    if not hasattr(module, "Agent"):
        raise ConfigError(
            f"{folder / 'agent.py'}: no class Agent found; define one that derives from "
            "relaax_like.agent.BatchAgent, or, if model.py has make_model, remove agent.py"
        )
    return module.Agent


def is_batch_native(agent_class: Any) -> bool:
    """Returns whether agents of a class learn by `algorithm.py`; plain ones learn by themselves."""
    return isinstance(agent_class, type) and issubclass(agent_class, BatchAgent)


def has_plain_agents(experiment: Experiment) -> bool:
    """Returns whether the algorithm's agents are plain ones, which learn by themselves.

    Raises:
      ConfigError: see `load_agent_class`.
    """
    return not is_batch_native(load_agent_class(experiment))


def make_actors(
    experiment: Experiment, client_id: str, agent_class: type[BatchAgent]
) -> "dict[str, Actor]":
    """Makes the actor of each Algorithm, with its own model, because a learner changes its model.

    Algorithms that share a model share its actor, so that each sees what the other one learns.

    Args:
      experiment: names the algorithm.
      client_id: of the agents; the seed of their random numbers depends on it.
      agent_class: from `load_agent_class`.

    Raises:
      ConfigError: the folder's code fails, or lacks what several Algorithms need.
    """
    folder, config = experiment.algorithm_folder, experiment.algorithm
    seed = derive_seed(config.seed, "act", client_id)
    with without_native_stderr():
        from relaax_like.algorithm.acting import make_actor

        if load_model_module(experiment) is not None:
            model = make_model(experiment)
            with locate_errors(folder):  # the policy is called, to find out how it can run
                return {ONLY_NAME: make_actor(model, seed, config)}
        make_algorithms = get_make_algorithms(load_algorithm_module(folder, "algorithm"))
    with locate_errors(folder):
        algorithms = make_algorithms(config, seed)
        for algorithm in algorithms.values():
            validate_model(algorithm.model)
        sharing = find_sharing({name: algorithm.model for name, algorithm in algorithms.items()})
    if agent_class is SimpleRLAgent and len(set(sharing.values())) > 1:
        raise ConfigError(
            f"{folder}: make_algorithms makes several Models, but SimpleRLAgent asks only one; "
            "define a class Agent(BatchAgent) in agent.py that decides when each Algorithm is asked"
        )
    with locate_errors(folder):
        actors: dict[str, Actor] = {}
        for name, algorithm in algorithms.items():
            actors[name] = actors.get(sharing[name][0]) or make_actor(
                algorithm.model, derive_seed(seed, name), algorithm.config
            )
        return actors
