"""Loads the experiment's algorithm and makes the host of its agents."""

from collections.abc import Callable
from typing import Any

from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.service import ParameterServerClient
from relaax_like.computation.data_processor import ComputationDataProcessor
from relaax_like.computation.prediction import TASK
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.launch.process import without_native_stderr
from relaax_like.rlx_server.hosting import AgentHost, BatchHost, PlainHost
from relaax_like.wire.errors import ConfigError


def make_agent_host(
    experiment: Experiment,
    make_client: Callable[[str], ParameterServerClient],
    client_id: str = "",
    rollouts_ahead: int = 0,
) -> AgentHost:
    """Loads the algorithm, TensorFlow included.

    The folder's `agent.py` decides: an `Agent` that derives from `BatchAgent`, or none at all, is
    batch-native and learns by `algorithm.py`; any other `Agent` is a plain one.

    Args:
      experiment: names the folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the view that batch-native agents share; by default one that no other has.
      rollouts_ahead: that batch-native agents act on for, while others are learned from.

    Raises:
      ConfigError: the algorithm folder has neither, or they cannot be loaded.
    """
    folder, config = experiment.algorithm_folder, experiment.algorithm
    agent_class: Any = SimpleRLAgent
    with without_native_stderr():
        if (folder / "agent.py").is_file():
            agent_class = load_algorithm_module(folder, "agent").Agent
            if not (isinstance(agent_class, type) and issubclass(agent_class, BatchAgent)):
                return PlainHost(config, agent_class, make_client)
        algorithm_module = load_algorithm_module(folder, "algorithm")
        several = hasattr(algorithm_module, "make_algorithms")
        model_module = None if several else load_algorithm_module(folder, "model")
    if several and agent_class is SimpleRLAgent:
        raise ConfigError(
            f"{folder}: algorithm.py exports make_algorithms, but there is no agent.py; write one "
            "with a class Agent(BatchAgent), which says when each task is asked"
        )
    client_id = client_id or make_client_id("rlx")
    in_background = rollouts_ahead > 0  # where agents do not wait for gradients, nor for compiling

    def make_processors() -> dict[str, ComputationDataProcessor]:
        if model_module is None:
            return _make_task_processors(
                config, algorithm_module, make_client, client_id, in_background
            )
        client = make_client(client_id)
        processor = _make_processor(config, model_module, algorithm_module, client, in_background)
        return {TASK: processor}

    return BatchHost(config, make_processors, agent_class, rollouts_ahead)


def _make_processor(
    config: Any,
    model_module: Any,
    algorithm_module: Any,
    client: ParameterServerClient,
    in_background: bool,
) -> ComputationDataProcessor:
    # Here and not above: they import TensorFlow, which has been greeted by now.
    from relaax_like.computation.acting import make_actor
    from relaax_like.computation.computation_task import ComputationTask

    seed = derive_seed(config.seed, "act", getattr(client, "client_id", ""))
    model = model_module.make_model(config, config.seed)
    algorithm = algorithm_module.make_algorithm(config, model, seed)
    task = ComputationTask(algorithm, compile_in_background=in_background)
    return ComputationDataProcessor(task, make_actor(model, seed), client)


def _make_task_processors(
    config: Any,
    algorithm_module: Any,
    make_client: Callable[[str], ParameterServerClient],
    client_id: str,
    in_background: bool,
) -> dict[str, ComputationDataProcessor]:
    from relaax_like.computation.acting import make_actor
    from relaax_like.computation.computation_task import ComputationTask
    from relaax_like.computation.tasks import Tasks

    seed = derive_seed(config.seed, "act", client_id)
    tasks = Tasks(algorithm_module.make_algorithms(config, seed))
    return {
        task: ComputationDataProcessor(
            ComputationTask(algorithm, compile_in_background=in_background),
            make_actor(algorithm.model, derive_seed(seed, task)),
            tasks.make_client(task, make_client(f"{client_id}-{task}")),
            curves=f"Optimizer/{task}",
        )
        for task, algorithm in tasks.algorithms.items()
    }
