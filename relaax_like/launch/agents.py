"""Loads the experiment's algorithm and makes the host of its agents."""

from collections.abc import Callable
from typing import Any

from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.service import ParameterServerClient
from relaax_like.computation.data_processor import ComputationDataProcessor
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.launch.process import without_native_stderr
from relaax_like.rlx_server.hosting import AgentHost, BatchHost, PlainHost


def make_agent_host(
    experiment: Experiment,
    make_client: Callable[[str], ParameterServerClient],
    client_id: str = "",
    rollouts_ahead: int = 0,
) -> AgentHost:
    """Loads the algorithm, TensorFlow included: `agent.py`, or `model.py` and `algorithm.py`.

    Args:
      experiment: names the folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the view that batch-native agents share; by default one that no other has.
      rollouts_ahead: that batch-native agents act on for, while others are learned from.

    Raises:
      ConfigError: the algorithm folder has neither, or they cannot be loaded.
    """
    folder, config = experiment.algorithm_folder, experiment.algorithm
    if (folder / "agent.py").is_file():
        with without_native_stderr():
            agent_class = load_algorithm_module(folder, "agent").Agent
        return PlainHost(config, agent_class, make_client)
    with without_native_stderr():
        model_module = load_algorithm_module(folder, "model")
        algorithm_module = load_algorithm_module(folder, "algorithm")
    client_id = client_id or make_client_id("rlx")
    return BatchHost(
        config,
        lambda: _make_processor(config, model_module, algorithm_module, make_client(client_id)),
        rollouts_ahead,
    )


def _make_processor(
    config: Any, model_module: Any, algorithm_module: Any, client: ParameterServerClient
) -> ComputationDataProcessor:
    # Here and not above: they import TensorFlow, which has been greeted by now.
    from relaax_like.computation.acting import make_actor
    from relaax_like.computation.computation_task import ComputationTask

    seed = derive_seed(config.seed, "act", getattr(client, "client_id", ""))
    model = model_module.make_model(config, config.seed)
    algorithm = algorithm_module.make_algorithm(config, model, seed)
    return ComputationDataProcessor(ComputationTask(algorithm), make_actor(algorithm, seed), client)
