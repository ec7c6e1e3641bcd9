"""a2c's pieces on a parameter server in the process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.encoder import OBSERVATION_KEYS
from relaax_like.core.manifest import find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.learn.gradient_learner import GradientLearner
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.request_queue import RequestQueue
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.rlx_server.admission import Admission
from relaax_like.rlx_server.hosting import AgentHost, BatchHost
from relaax_like.rlx_server.server import RlxServer
from relaax_like.rlx_server.session import Session

from .requests import make_requests
from .rlx import ServerThread


def load(module: str, algorithm: str = "a2c") -> Any:
    """Loads a module of an algorithm's folder."""
    return load_algorithm_module(find_algorithm(algorithm, Path()), module)


def make_config(layers: Any = (64, 64), algorithm: str = "a2c", **settings: Any) -> Any:
    """Makes an algorithm's config, by default a2c's for four numbers and two actions."""
    settings["network"] = {"layers": tuple(layers)}
    if "action_size" not in settings:
        settings.setdefault("num_actions", 2)
    return load("config", algorithm).Config(**add_state_size(settings))


def make_rollout(inputs: Any, memory: Any, begins: Any) -> Any:
    """Returns the fields of a batch that `ActorCritic.evaluate` reads."""
    return SimpleNamespace(inputs=inputs, memory=memory, begins=begins)


def add_state_size(settings: dict[str, Any]) -> dict[str, Any]:
    """Adds a state_size of 4, unless the settings say what is observed."""
    return settings if settings.keys() & set(OBSERVATION_KEYS) else {"state_size": 4, **settings}


def make_algorithm(config: Any, seed: int = 0, xla: bool = True, algorithm: str = "a2c") -> Any:
    """Makes an algorithm with its model."""
    model = load("model", algorithm).make_model(config, seed)
    model.xla = xla and model.xla
    model.masks = config.masks
    return load("algorithm", algorithm).make_algorithm(config, model, seed)


def serve_a2c(config: Any, algorithm: str = "a2c", **options: Any) -> ParameterServer:
    """Makes a parameter server with the variables of a2c, or of another algorithm."""
    variables = get_variables(load("model", algorithm).make_model(config, 0))
    manifest = make_manifest(variables)
    flat = manifest.pack([v.value for v in variables])
    store = Store(manifest, flat, config.optimizers, find_follows(variables))
    return ParameterServer(store, metrics=NullMetrics(), **options)


def make_processor(
    config: Any,
    server: ParameterServer,
    xla: bool = True,
    algorithm: str = "a2c",
    requests: RequestQueue | None = None,
    **options: Any,
) -> Any:
    """Makes a processor on the server; not started."""
    client = InProcessClient(server, "processor")
    compiled = CompiledGradients(make_algorithm(config, xla=xla, algorithm=algorithm))
    requests = requests or make_requests(config.plan)
    learner = GradientLearner(compiled, config.plan, client, requests, **options)
    actor = make_actor(make_algorithm(config, algorithm=algorithm).model, 0, config)
    return ComputationDataProcessor(actor, learner, client.metrics())


@contextlib.contextmanager
def serve_batch(server: ParameterServer, config: Any, rollouts: Any = None) -> Iterator[int]:
    """Serves a2c, and yields the port; each submitted rollout is put into `rollouts`, too."""

    def make() -> Any:
        processor = make_processor(config, server)
        submit = processor.submit
        if rollouts is not None:
            processor.submit = lambda rollout, *rest: (
                rollouts.append(rollout),
                submit(rollout, *rest),
            )
        return processor

    with serve_host(BatchHost(config, lambda: {ONLY_NAME: make()})) as port:
        yield port


@contextlib.contextmanager
def serve_host(host: AgentHost, max_slots: int = 8) -> Iterator[int]:
    """Serves the agents of a host, and yields the port."""

    def make_session(name: str) -> Session:
        options: dict[str, Any] = {
            "max_slots": max_slots,
            "max_message_bytes": 1 << 20,
            "score_lines": False,
        }
        return Session(name, host.make_agents, NullMetrics(), **options)

    rlx = RlxServer(
        make_session,
        Admission(16, 0),
        max_message_bytes=1 << 20,
        hello_timeout_sec=10,
        idle_timeout_sec=60,
        predict=host.predict,
    )
    host.on_ready = rlx.wake
    with ServerThread(rlx, "127.0.0.1", 0) as running:
        yield running.port
    host.close()
