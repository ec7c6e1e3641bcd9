"""Runs that learn in their parameter server: a small ppo, and a policy that learns in NumPy.

Iterations are of five steps and four columns.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.algorithm.model import Model, Specs, Tensors, get_variables
from relaax_like.bridge.control import BridgeControl
from relaax_like.config.base_learner import NO_HOOKS
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.records import Experience, Lease
from relaax_like.core.roles import ExperienceSink
from relaax_like.experience.collector import Collector, TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.algorithm_code import load_model_module
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.collected import Collected
from relaax_like.learn.experience_service import ExperienceService
from relaax_like.learn.learner_loop import LearnerLoop
from relaax_like.learn.publishing import Publishing
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.rollout_messages import rollout_to_bytes
from relaax_like.learn.tally import Tally
from relaax_like.learn.updates import OptimizerState
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.wire.security import ServerSecurity
from relaax_like.wire.spaces import Discrete
from support.rollouts import make_rollout
from support.threads import WAIT_SEC
from support.uncompiled import copy_uncompiled

STEPS, COLUMNS = 5, 4
ENV_STEPS = STEPS * COLUMNS  # of an iteration


def make_experiment(folder: Path, *sets: str, code: str = "") -> Experiment:
    """Loads one with a small ppo without XLA, which is in the folder.

    Args:
      folder: to write to.
      sets: overrides, "key=value".
      code: to add to its `algorithm.py`.
    """
    path = folder / "learning.yaml"
    if not path.exists():
        copy_uncompiled("ppo", folder, code)
    path.write_text(
        f"run_dir: {folder / 'run'}\n"
        "learner: {placement: server}\n"
        "algorithm:\n"
        f"  path: {folder / 'ppo'}\n"
        "  network: {layers: [8]}\n"
        "  state_size: 4\n"
        "  num_actions: 2\n"
        f"  num_steps: {ENV_STEPS}\n"
        f"  rollout_steps: {STEPS}\n"
        "  batch_size: 10\n"
        "  epochs: 2\n"
    )
    return load_experiment(path, sets)


def make_server(
    experiment: Experiment, metrics: Metrics | None = None, **options: Any
) -> ParameterServer:
    """Makes a parameter server of the experiment's model, without a folder unless there is one."""
    config = experiment.algorithm
    module = load_model_module(experiment)
    assert module is not None
    variables = get_variables(module.make_model(config, config.seed))
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    store = Store(manifest, flat, experiment.optimizers)
    return ParameterServer(store, metrics=metrics or NullMetrics(), **options)


def unpack(server: ParameterServer) -> list[np.ndarray]:
    """Returns a server's newest values."""
    values = server.pull().values
    assert values is not None
    return server.manifest.unpack(values.flat)


def assert_equal(values: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    """Fails unless all arrays are the same, bit by bit."""
    for value, other in zip(values, want, strict=True):
        np.testing.assert_array_equal(value, other)


@contextlib.contextmanager
def serve(
    server: ParameterServer,
    service: ExperienceSink | None,
    address: str = "127.0.0.1:0",
    security: ServerSecurity | None = None,
) -> Iterator[str]:
    """Serves a run over gRPC, and its learner; gives the address."""
    grpc_server, port = BridgeControl().create_server(address, server, security, service)
    grpc_server.start()
    if isinstance(service, ExperienceService):
        service.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        if isinstance(service, ExperienceService):
            service.stop()
        grpc_server.stop(grace=None).wait()


class PlainModel(Model):
    """Says what rollouts look like: four numbers seen, two actions."""

    def get_input_specs(self) -> Specs:
        return [("observation", {"shape": [4]})]

    def get_action_specs(self) -> Specs:
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs: Tensors, states: Tensors) -> Any:
        raise NotImplementedError


class PlainPolicy:
    """Learns in NumPy, at once: x becomes 0.5 x + the iteration's rewards. Their order matters.

    Attributes:
      rewards: of each iteration, `[T, columns]`.
      gate: an iteration continues when it is set.
      begun: set while an iteration waits for that.
      error: raised instead of learning.
    """

    def __init__(self) -> None:
        self.rewards: list[np.ndarray] = []
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.rows: dict[str, np.ndarray] = {}

    def load(self, lease: Lease) -> None:
        self.flat = lease.values.copy()
        self.values = lease.manifest.unpack(self.flat)
        self.slots = {group: np.array(slots) for group, slots in lease.slots.items()}
        self.slot_names = lease.slot_names
        self.updates = max(lease.steps.values())

    def data_preprocess(self, data: TrainingData) -> TrainingData:
        return data

    def forward(self, data: TrainingData) -> dict[str, Any]:
        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        self.begun.clear()
        if self.error is not None:
            raise self.error
        rewards = data.rollout.rewards[..., 0]
        self.rewards.append(rewards)
        for value in self.values:
            value[...] = 0.5 * value + rewards.sum()
        for slots in self.slots.values():
            slots[...] += 1.0
        self.updates += 1
        return {"loss": float(rewards.mean())}

    def get_values(self) -> list[np.ndarray]:
        return [value.copy() for value in self.values]

    def get_flat(self) -> np.ndarray:
        return self.flat.copy()

    def get_optimizers(self) -> OptimizerState:
        slots = {group: slots.copy() for group, slots in self.slots.items()}
        return OptimizerState(dict.fromkeys(slots, self.updates), slots, self.slot_names)


VARIABLES = (Variable("w", np.zeros((2, 3), np.float32)), Variable("b", np.zeros(3, np.float32)))


def make_plain_store(variables: Sequence[Variable] = VARIABLES) -> Store:
    """Makes a store with Adam, which has slots."""
    manifest = make_manifest(variables)
    return Store(
        manifest,
        manifest.pack([variable.value for variable in variables]),
        {"default": OptimizerConfig(name="adam", learning_rate=0.1)},
    )


def make_plain_server(
    variables: Sequence[Variable] = VARIABLES, metrics: Metrics | None = None, **options: Any
) -> ParameterServer:
    """Makes a parameter server for a PlainPolicy."""
    return ParameterServer(make_plain_store(variables), metrics=metrics or NullMetrics(), **options)


def make_plain_learner(
    server: ParameterServer,
    policy: PlainPolicy | None = None,
    columns: int = COLUMNS,
    capacity: int = 4 * COLUMNS,
    folder: Path = Path("unused"),
    make_collector: Callable[[], Collector] | None = None,
    records_times: bool = True,
) -> LearnerLoop[Collected]:
    """Makes a learner with a PlainPolicy; it writes nothing to the folder."""
    policy = policy or PlainPolicy()
    base = BaseLearner({"hook": NO_HOOKS}, exp_dir=folder)
    base.policy = policy  # type: ignore[assignment]
    collector = (
        Collector(STEPS, columns, capacity=capacity) if make_collector is None else make_collector()
    )
    spaces = {"action": Discrete(n=2)}
    layout = RolloutLayout(PlainModel(), STEPS, spaces)
    tally = Tally()
    source = Collected(collector, tally, layout)
    sink = Publishing(server, policy, tally)  # type: ignore[arg-type]
    return LearnerLoop(source, base, sink, server.metrics(), records_times=records_times)


def make_plain_service(
    server: ParameterServer, policy: PlainPolicy | None = None, **options: Any
) -> ExperienceService:
    """Makes the service of such a learner, not started."""
    columns = options.pop("columns", COLUMNS)
    capacity = options.pop("capacity", 4 * columns)
    max_bytes = options.pop("max_rollout_bytes", 1 << 24)
    make_collector = options.pop("make_collector", None)

    def make_learner() -> LearnerLoop[Collected]:
        return make_plain_learner(server, policy, columns, capacity, make_collector=make_collector)

    return ExperienceService(make_learner, columns, max_bytes, **options)


def make_rewarded(slots: int, reward: float, seed: int = 0) -> Rollout:
    """Draws a rollout whose rewards are all the same: it can be distinguished from others."""
    rollout = make_rollout(slots, seed, STEPS)
    return dataclasses.replace(rollout, rewards=np.full_like(rollout.rewards, reward))


def make_experience(
    sequence: int,
    rollout: Rollout | None = None,
    client_id: str = "client",
    agent: str = "agent",
    **fields: Any,
) -> Experience:
    """Makes experience of one agent."""
    data = None
    if rollout is not None:
        data = rollout_to_bytes(rollout)
        fields.setdefault("columns", rollout.slots)
        fields.setdefault("env_steps", rollout.env_steps)
    fields.setdefault("incarnation", 1)
    return Experience(client_id=client_id, sequence=sequence, agent=agent, rollout=data, **fields)


def make_gradient(
    arrays: Sequence[np.ndarray], numbers: Any = None, rows: Any = None, **others: Any
) -> Any:
    """Returns the `Gradient` of all variable groups; loads TensorFlow."""
    from relaax_like.learn.compiled_algorithm import Gradient

    flat = np.concatenate([array.ravel() for array in arrays])
    shapes = [array.shape for array in arrays]
    return Gradient((), flat, shapes, numbers or {}, rows or {}, **others)
