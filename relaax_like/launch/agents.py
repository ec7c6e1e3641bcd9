"""Loads the experiment's algorithm and makes the host of its agents."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.model import get_acting_names, get_variables
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.control import Link
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import Metrics, NullMetrics
from relaax_like.core.prediction import TASK
from relaax_like.core.roles import Learner, ParameterServerClient, Publisher
from relaax_like.launch.algorithm_code import locate_errors
from relaax_like.launch.learners import (
    get_make_algorithms,
    load_model_module,
    make_iteration_learners,
    make_learners,
    make_model,
    refuse_keys_of_one_learner,
    require_plans,
)
from relaax_like.launch.process import EXIT_USAGE, Shutdown, without_native_stderr
from relaax_like.learn.child_learner import ChildLearner
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.learn.remote_learner import RemoteLearner
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.rlx_server.hosting import AgentHost, BatchHost, PlainHost
from relaax_like.wire.errors import ConfigError, RelaaxError, SnapshotError

if TYPE_CHECKING:  # They import TensorFlow.
    from relaax_like.algorithm.acting import Actor

logger = logging.getLogger(__name__)

MakeClient = Callable[[str], ParameterServerClient]


@dataclass(frozen=True)
class LearnerLink:
    """Agents whose learner runs in another process: a child of this one, or the parameter server.

    Attributes:
      link: to the learner; not started yet.
      metrics: the agents' recorder.
      ahead: rollouts that an agent can be ahead of the learner.
      max_segment_sec: see `OnlineHelper`.
    """

    link: ChildLearner | RemoteLearners
    metrics: Metrics
    ahead: int
    max_segment_sec: float | None = None


def make_remote_learners(
    link: Link,
    client_id: str,
    wait_sec: float,
    shutdown: Shutdown,
    get_sampling_sec: Callable[[], float] = lambda: 0.0,
) -> RemoteLearners:
    """Makes the links to the learners in the parameter server, one per task; none is started.

    Args:
      link: to the parameter server.
      client_id: of this process; with several tasks, their names are added.
      wait_sec: how long a stream waits for the parameter server.
      shutdown: is requested when there is no use in trying again.
      get_sampling_sec: see `RemoteLearner`.
    """

    failing = threading.Lock()

    def fail(error: RelaaxError) -> None:
        if failing.acquire(blocking=False):  # it is never released: one task reports it
            logger.error("%s", error)
            shutdown.request(EXIT_USAGE)

    def make_learner(task: str) -> RemoteLearner:
        name = f"{client_id}-{task}" if task else client_id
        return RemoteLearner(
            lambda: link.collect_stream(name, wait_sec, task),
            name,
            on_global_t=link.note_global_t,
            on_failure=fail,
            get_sampling_sec=get_sampling_sec,
        )

    return RemoteLearners(make_learner)


def make_beside_learner(
    experiment: Experiment, link: ChildLearner | RemoteLearners, metrics: Metrics
) -> LearnerLink:
    """Returns what agents need of a learner in another process, as the settings say."""
    learner = experiment.learner
    return LearnerLink(link, metrics, learner.max_rollouts_ahead or 0, learner.max_segment_sec)


def make_agent_host(
    experiment: Experiment,
    make_client: MakeClient,
    client_id: str = "",
    beside: LearnerLink | None = None,
    publisher: Publisher | None = None,
    fixed: FrozenPolicy | None = None,
) -> AgentHost:
    """Loads the algorithm.

    The folder's `agent.py` decides: an `Agent` that derives from `BatchAgent`, or none at all, is
    batch-native and learns by `algorithm.py`; any other `Agent` is a plain one.

    Args:
      experiment: names the folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the view that batch-native agents share; by default one that no other has.
      beside: batch-native agents learn in its process, which is started, and act on meanwhile;
        None: in this one, and they wait.
      publisher: the parameter server in this process, where a run with `learner.placement: server`
        learns; None: it learns elsewhere.
      fixed: values that batch-native agents with one task only play with; those with several play
        with the values of `make_client`. None: they learn.

    Raises:
      ConfigError: the algorithm folder has neither, or they cannot be loaded.
    """
    folder, config = experiment.algorithm_folder, experiment.algorithm
    agent_class: Any = SimpleRLAgent
    if (folder / "agent.py").is_file():
        with without_native_stderr():
            agent_class = load_algorithm_module(folder, "agent").Agent
        if not _is_batch_native(agent_class):
            if experiment.learner.placement == "server":
                raise ConfigError(
                    f"{folder / 'agent.py'}: a plain Agent sends gradients, but this run "
                    "learns in its parameter server; derive Agent from BatchAgent, or remove "
                    "agent.py"
                )
            refuse_keys_of_one_learner(experiment, "a learner, but a plain Agent learns by itself")
            if experiment.learner.max_lag is not None:
                raise ConfigError(
                    f"learner.max_lag: {experiment.learner.max_lag}, but a plain Agent learns by "
                    "itself; set it to null"
                )
            return PlainHost(config, agent_class, make_client)
    client_id = client_id or make_client_id("rlx")
    if fixed is not None and load_model_module(experiment) is not None:
        actor = _make_actors(experiment, client_id, agent_class)[TASK]
        validate_values(experiment, actor.model, fixed.values)
        processor = ComputationDataProcessor(actor, fixed, NullMetrics(), client_id)
        return BatchHost(config, lambda: {TASK: processor}, agent_class)
    if beside is None:
        with without_native_stderr():
            from relaax_like.nn import runtime  # noqa: F401 - quicker than TensorFlow alone

            load_algorithm_module(folder, "algorithm")
        if publisher is not None:
            require_plans(experiment)
        actors = _make_actors(experiment, client_id, agent_class)

        processors: dict[str, ComputationDataProcessor] = {}

        def fail(error: ConfigError) -> None:
            for processor in processors.values():
                processor.fail(error)

        def make_processors() -> dict[str, ComputationDataProcessor]:
            if publisher is not None:
                return _make_serial_processors(experiment, publisher, actors, client_id)
            learners = make_learners(
                experiment,
                make_client,
                client_id,
                on_failure=fail,
                only_plays=fixed is not None,
            )
            for task, learner in learners.items():
                processors[task] = ComputationDataProcessor(
                    actors[task], learner, learner.metrics(), f"{client_id}-{task}"
                )
            return processors

        return BatchHost(config, make_processors, agent_class)
    link = beside.link
    if isinstance(link, ChildLearner):
        link.start()  # first: it takes the longest to come up
    actors = _make_actors(experiment, client_id, agent_class)
    # A worker that is restarted has the client id of the one before it, but its slots are others.
    name = make_client_id(client_id)
    beside_processors = {
        task: ComputationDataProcessor(
            actor, _connect(experiment, link, task, actor), beside.metrics, f"{name}-{task}"
        )
        for task, actor in actors.items()
    }
    return BatchHost(
        config, lambda: beside_processors, agent_class, beside.ahead, beside.max_segment_sec
    )


def validate_values(experiment: Experiment, model: Any, values: Sequence[np.ndarray]) -> None:
    """Checks that a snapshot's values match the model that will act with them.

    Raises:
      SnapshotError: they are of another model.
    """
    wanted = [(variable.name, variable.value.shape) for variable in get_variables(model)]
    found = [value.shape for value in values]
    what = f"{len(found)} variables, but the model has {len(wanted)}"
    if len(found) == len(wanted):
        pairs = zip(wanted, found, strict=True)
        what = next(
            (
                f"shape {list(shape)} for variable {name}, but the model has {list(own)}"
                for (name, own), shape in pairs
                if own != shape
            ),
            "",
        )
    if what:
        raise SnapshotError(
            f"{experiment.parameter_server.checkpoint_dir}: the snapshot has {what}; use the "
            "settings and the algorithm's code of its run"
        )


def has_plain_agents(experiment: Experiment) -> bool:
    """Returns whether the algorithm's agents are plain ones, which learn by themselves."""
    folder = experiment.algorithm_folder
    if not (folder / "agent.py").is_file():
        return False
    with without_native_stderr():
        return not _is_batch_native(load_algorithm_module(folder, "agent").Agent)


def can_play_fixed(experiment: Experiment) -> bool:
    """Returns whether the algorithm's agents can play with fixed values; see `make_agent_host`."""
    return not has_plain_agents(experiment) and load_model_module(experiment) is not None


def _is_batch_native(agent_class: Any) -> bool:
    return isinstance(agent_class, type) and issubclass(agent_class, BatchAgent)


def _connect(
    experiment: Experiment, link: ChildLearner | RemoteLearners, task: str, actor: "Actor"
) -> Learner:
    """Connects a task's agents to their learner; they need the values that act."""
    names, variables = get_acting_names(actor.model), get_variables(actor.model)
    if isinstance(link, ChildLearner):
        return link.learner(task, make_manifest(variables), names)
    if load_model_module(experiment) is not None:
        return link.learner("", names)
    # Of all tasks' variables, those of this one, under their names in the run.
    own = [f"{task}/{variable.name}" for variable in variables]
    return link.learner(task, own if names is None else [f"{task}/{name}" for name in names], own)


def _make_serial_processors(
    experiment: Experiment, publisher: Publisher, actors: "Mapping[str, Actor]", name: str
) -> dict[str, ComputationDataProcessor]:
    learners = make_iteration_learners(experiment, publisher)
    from relaax_like.learn.serial_learner import SerialLearner

    return {
        task: ComputationDataProcessor(
            actors[task],
            SerialLearner(learner),
            publisher.metrics(),
            name if len(learners) == 1 else f"{name}-{task}",
        )
        for task, learner in learners.items()
    }


def _make_actors(
    experiment: Experiment, client_id: str, agent_class: type[BatchAgent]
) -> "dict[str, Actor]":
    """Makes what acts, with models of its own: those of the learner change while it computes."""
    folder, config = experiment.algorithm_folder, experiment.algorithm
    seed = derive_seed(config.seed, "act", client_id)
    with without_native_stderr():
        from relaax_like.algorithm.acting import make_actor

        if load_model_module(experiment) is not None:
            return {TASK: make_actor(make_model(experiment), seed, config)}
        make_algorithms = get_make_algorithms(load_algorithm_module(folder, "algorithm"))
    if agent_class is SimpleRLAgent:
        raise ConfigError(
            f"{folder}: algorithm.py exports make_algorithms, but there is no agent.py; add "
            "one with a class Agent(BatchAgent) that decides when each task is asked"
        )
    with locate_errors(folder):
        algorithms = make_algorithms(config, seed)
    return {
        task: make_actor(algorithm.model, derive_seed(seed, task), algorithm.config)
        for task, algorithm in algorithms.items()
    }
