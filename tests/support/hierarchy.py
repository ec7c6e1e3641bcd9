"""The hierarchical algorithm's pieces on a parameter server in the process, and its game."""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relaax_like.algorithm import Algorithm
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch import agents
from relaax_like.learn.named_algorithms import NamedAlgorithms
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.rlx_server.hosting import BatchHost

FOLDER = Path(__file__).parent / "hierarchical_algorithm"


def load(module: str) -> Any:
    """Loads a module of the folder."""
    return load_algorithm_module(FOLDER, module)


def make_store(
    algorithms: Mapping[str, Algorithm], optimizers: Mapping[str, OptimizerConfig] | None = None
) -> Store:
    """Makes a store of the Algorithms' variables."""
    variables = NamedAlgorithms(algorithms).get_variables()
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    return Store(manifest, flat, optimizers or {"default": OptimizerConfig(learning_rate=0.05)})


def serve(config: Any, metrics: Metrics | None = None, **options: Any) -> ParameterServer:
    """Makes a parameter server with the variables of both Algorithms."""
    store = make_store(load("algorithm").make_algorithms(config, 0), config.optimizers)
    return ParameterServer(store, metrics=metrics or NullMetrics(), **options)


def make_host(
    config: Any,
    server: ParameterServer,
    make_client: Callable[[str], ParameterServerClient] | None = None,
) -> BatchHost:
    """Makes a host of agents, as the rlx server does."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_text(f"algorithm: {{path: {FOLDER}}}\n")
        experiment = dataclasses.replace(load_experiment(file), algorithm=config)
    make_client = make_client or (lambda name: InProcessClient(server, name))
    host = agents.make_agent_host(experiment, make_client, "test")
    assert isinstance(host, BatchHost)
    return host
