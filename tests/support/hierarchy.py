"""The hierarchical algorithm's pieces on a parameter server in the process, and its task."""

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.algorithm import Algorithm
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.client.interactor import Transition
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.roles import ParameterServerClient
from relaax_like.launch import agents
from relaax_like.learn.tasks import Tasks
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.rlx_server.hosting import BatchHost
from relaax_like.wire.spaces import Box, Discrete

FOLDER = Path(__file__).parent / "hierarchical_algorithm"


def load(module: str) -> Any:
    """Loads a module of the folder."""
    return load_algorithm_module(FOLDER, module)


def make_store(
    algorithms: Mapping[str, Algorithm], optimizers: Mapping[str, OptimizerConfig] | None = None
) -> Store:
    """Makes a store of the tasks' variables."""
    variables = Tasks(algorithms).get_variables()
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    return Store(manifest, flat, optimizers or {"default": OptimizerConfig(learning_rate=0.05)})


def serve(config: Any, metrics: Metrics | None = None, **options: Any) -> ParameterServer:
    """Makes a parameter server with the variables of both tasks."""
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


class CueSlots:
    """Episodes of 3 to 10 steps: a cue is shown, and each step the action that equals it gives 1.

    Any other gives -1. Every third episode is cut off.
    """

    observation_space = Box(dtype="float32", shape=(2,))
    action_space = Discrete(n=2)

    def __init__(self, slots: int, seed: int):
        self.slots = slots
        self._random = np.random.default_rng(seed)
        self._cues = np.zeros(slots, np.int64)
        self._left = np.zeros(slots, np.int64)

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        """Begins new episodes in the slots of the mask."""
        new = np.ones(self.slots, np.bool_) if mask is None else mask
        self._cues[new] = self._random.integers(2, size=int(new.sum()))
        self._left[new] = self._random.integers(3, 11, size=int(new.sum()))
        return self._observe()

    def step(self, actions: np.ndarray) -> Transition:
        """Rewards the actions."""
        rewards = np.where(actions == self._cues, 1.0, -1.0)
        self._left -= 1
        ended = self._left == 0
        truncated = ended & (self._random.random(self.slots) < 1 / 3)
        finals = self._observe()
        return Transition(
            observations=self.reset(ended),
            rewards=rewards,
            terminated=ended & ~truncated,
            truncated=truncated,
            final_observations=finals if ended.any() else None,
            success=np.where(rewards > 0, 1, 0).astype(np.int8),
        )

    def get_state(self) -> dict[str, Any]:
        """Returns all that decides what comes next."""
        return {
            "cues": self._cues.copy(),
            "left": self._left.copy(),
            "random": self._random.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""
        self._cues, self._left = state["cues"].copy(), state["left"].copy()
        self._random.bit_generator.state = state["random"]

    def close(self) -> None:
        """Holds nothing."""

    def _observe(self) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[self._cues]
