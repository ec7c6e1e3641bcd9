"""Hosts of agents that learn: in this process, a child, a parameter server or a learner."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.model import find_sharing, get_acting_names, get_variables
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.control import BridgeControl, Link
from relaax_like.bridge.errors import LEARNER, PARAMETER_SERVER
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.core.manifest import Manifest, make_manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.roles import Learner, ParameterServerClient, Publisher
from relaax_like.launch.algorithm_code import (
    is_batch_native,
    load_agent_class,
    load_model_module,
    make_actors,
    validate_steps,
)
from relaax_like.launch.learners import (
    make_iteration_learners,
    make_learners,
    refuse_keys_of_one_learner,
    require_plans,
)
from relaax_like.learn.child_learner import ChildLearner
from relaax_like.learn.remote_learner import RemoteLearner
from relaax_like.learn.remote_learners import RemoteLearners
from relaax_like.rlx_server.hosting import AgentHost, BatchHost, PlainHost
from relaax_like.runs.processes.process import EXIT_USAGE, Shutdown, without_native_stderr
from relaax_like.wire.errors import ConfigError, RelaaxError, ServerUnavailableError
from relaax_like.wire.security import ClientSecurity

if TYPE_CHECKING:  # They import TensorFlow.
    from relaax_like.algorithm.acting import Actor

logger = logging.getLogger(__name__)

MakeClient = Callable[[str], ParameterServerClient]


class LearnerFinder:
    """Links to the learner's process of a run, whose address the parameter server knows.

    Args:
      link: to the parameter server.
      security: of clients.
    """

    def __init__(self, link: Link, security: ClientSecurity | None):
        self._stub = link.publisher_stub()
        self._security = security
        self._lock = threading.Lock()  # guards the newest link
        self._newest: Link | None = None

    def __call__(self) -> Link:
        """Returns a link to the newest learner.

        Raises:
          ServerUnavailableError: the parameter server does not answer, or knows no learner yet.
          NotAllowedError: the parameter server does not accept the token.
          ProtocolError: another server listens at the parameter server's address.
          ConfigError: a file of `security` cannot be used.
        """
        address = self._stub.find_learner()
        if not address:
            raise ServerUnavailableError(
                "this run has no learner yet (learner.placement: standalone); start "
                "relaax-learner, and the parameter server with the same placement"
            )
        with self._lock:
            if self._newest is None or self._newest.address != address:
                logger.info("the learner is at %s", address)
                self._newest = BridgeControl().connect(address, self._security, LEARNER)
            return self._newest


def make_remote_learners(
    link: Link,
    client_id: str,
    wait_sec: float,
    shutdown: Shutdown,
    get_sampling_sec: Callable[[], float] = lambda: 0.0,
    find_link: Callable[[], Link] | None = None,
) -> RemoteLearners:
    """Makes the links to the run's learners, one per Algorithm, without starting them.

    Args:
      link: to the parameter server.
      client_id: of this process; with several Algorithms, their names are added.
      wait_sec: how long a stream waits for its server: the learner's process, or the parameter
        server.
      shutdown: is requested when a retry would be useless.
      get_sampling_sec: see `RemoteLearner`.
      find_link: returns the link to the learner's process; None: the parameter server learns.
    """

    failing = threading.Lock()

    def fail(error: RelaaxError) -> None:
        if failing.acquire(blocking=False):  # it is never released: one Algorithm reports it
            logger.error("%s", error)
            shutdown.request(EXIT_USAGE)

    def make_learner(algorithm: str, manifest: Manifest | None) -> RemoteLearner:
        name = f"{client_id}-{algorithm}" if algorithm else client_id
        return RemoteLearner(
            lambda: (find_link() if find_link else link).collect_stream(name, wait_sec, algorithm),
            name,
            on_global_t=link.note_global_t,
            on_failure=fail,
            get_sampling_sec=get_sampling_sec,
            server=PARAMETER_SERVER if find_link is None else LEARNER,
        )

    return RemoteLearners(make_learner)


def make_agent_host(
    experiment: Experiment, make_client: MakeClient, client_id: str = ""
) -> AgentHost:
    """Makes the host of agents that learn in this process, and wait while they do.

    The folder's `agent.py` decides: an `Agent` that derives from `BatchAgent` is batch-native and
    learns by `algorithm.py`, as are agents of a folder without `agent.py`; any other `Agent` is a
    plain one.

    Args:
      experiment: names the folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the view that batch-native agents share; by default a unique one.

    Raises:
      ConfigError: the folder's code cannot be loaded, or fails; or its plain Agent lacks a method,
        or does not support a setting.
    """
    agent_class = load_agent_class(experiment)
    if not is_batch_native(agent_class):
        return _make_plain_host(experiment, agent_class, make_client)
    client_id = client_id or make_client_id("rlx")
    _load_learning_code(experiment)
    validate_steps(experiment.algorithm)
    actors = make_actors(experiment, client_id, agent_class)
    processors: dict[str, ComputationDataProcessor] = {}

    def fail(error: ConfigError) -> None:
        for processor in processors.values():
            processor.fail(error)

    def make_processors() -> dict[str, ComputationDataProcessor]:
        learners = make_learners(experiment, make_client, client_id, on_failure=fail)
        for algorithm, learner in learners.items():
            processors[algorithm] = ComputationDataProcessor(
                actors[algorithm], learner, learner.metrics(), f"{client_id}-{algorithm}"
            )
        return processors

    return BatchHost(experiment.algorithm, make_processors, agent_class)


def make_serial_host(
    experiment: Experiment, make_client: MakeClient, publisher: Publisher, client_id: str
) -> AgentHost:
    """Makes the host of agents whose parameter server, in this process, learns.

    Args:
      experiment: has `learner.placement: server`.
      make_client: opens a view of the parameter server, for plain agents, which are then refused.
      publisher: the parameter server.
      client_id: of the agents; the seed of their random numbers depends on it.

    Raises:
      ConfigError: the algorithm cannot learn there; or its folder cannot be loaded, or fails.
    """
    agent_class = load_agent_class(experiment)
    if not is_batch_native(agent_class):
        return _make_plain_host(experiment, agent_class, make_client)
    _load_learning_code(experiment)
    require_plans(experiment)
    actors = make_actors(experiment, client_id, agent_class)
    return BatchHost(
        experiment.algorithm,
        lambda: _make_serial_processors(experiment, publisher, actors, client_id),
        agent_class,
    )


def make_linked_host(
    experiment: Experiment,
    make_client: MakeClient,
    link: RemoteLearners,
    metrics: Metrics,
    client_id: str = "",
) -> AgentHost:
    """Makes the host of agents whose learner runs in another process.

    Args:
      experiment: names the folder.
      make_client: opens a view of the parameter server, for plain agents.
      link: to the process where batch-native agents learn, while they keep acting: a child of this
        one, which is started, the parameter server, or relaax-learner.
      metrics: the agents' recorder.
      client_id: of the agents; by default a unique one.

    Raises:
      ConfigError: the algorithm folder cannot be loaded, or fails; or its agents cannot learn
        there.
    """
    agent_class = load_agent_class(experiment)
    if not is_batch_native(agent_class):
        return _make_plain_host(experiment, agent_class, make_client)
    client_id = client_id or make_client_id("rlx")
    validate_steps(experiment.algorithm)
    if isinstance(link, ChildLearner):
        link.start()  # first, because it takes the longest to start
    actors = make_actors(experiment, client_id, agent_class)
    # A worker that is restarted has the client id of its predecessor, but other slots.
    name = make_client_id(client_id)
    processors = {
        algorithm: ComputationDataProcessor(
            actor, _connect(experiment, link, algorithm, actors), metrics, f"{name}-{algorithm}"
        )
        for algorithm, actor in actors.items()
    }
    return BatchHost(
        experiment.algorithm,
        lambda: processors,
        agent_class,
        experiment.learner.max_rollouts_ahead or 0,
        experiment.learner.max_segment_sec,
    )


def _make_plain_host(
    experiment: Experiment, agent_class: Any, make_client: MakeClient
) -> PlainHost:
    """Makes the host of agents that learn by themselves; refuses settings that they ignore."""
    learner = experiment.learner
    if learner.publishes:
        raise ConfigError(
            f"{experiment.algorithm_folder / 'agent.py'}: a plain Agent sends gradients, but "
            f"agents send experience with learner.placement: {learner.placement}; set it to agent, "
            "or derive Agent from BatchAgent"
        )
    if experiment.parameter_server.combine.method == "sync":
        raise ConfigError(
            f"{experiment.algorithm_folder / 'agent.py'}: a plain Agent sends gradients by itself, "
            "but learners of this run make each update together "
            "(relaax-parameter-server.combine.method: sync); set it to fifo, or derive Agent from "
            "BatchAgent"
        )
    refuse_keys_of_one_learner(experiment, "a learner, but a plain Agent learns by itself")
    if learner.max_lag is not None:
        raise ConfigError(
            f"learner.max_lag: {learner.max_lag}, but a plain Agent learns by itself; set it to "
            "null"
        )
    return PlainHost(experiment.algorithm, agent_class, make_client)


def _load_learning_code(experiment: Experiment) -> None:
    with without_native_stderr():
        from relaax_like.nn import runtime  # noqa: F401 - faster than importing TensorFlow

        load_algorithm_module(experiment.algorithm_folder, "algorithm")


def _connect(
    experiment: Experiment, link: RemoteLearners, algorithm: str, actors: "Mapping[str, Actor]"
) -> Learner:
    """Connects agents to the learner of an Algorithm, from which they receive the acting values."""
    model = actors[algorithm].model
    names, variables = get_acting_names(model), get_variables(model)
    if isinstance(link, ChildLearner):
        return link.learner(algorithm, make_manifest(variables), names)
    if load_model_module(experiment) is not None:
        return link.learner("", names=names)
    # This Algorithm's variables, under their names in the run.
    owner = find_sharing({name: actor.model for name, actor in actors.items()})[algorithm][0]
    own = [f"{owner}/{variable.name}" for variable in variables]
    needed = own if names is None else [f"{owner}/{name}" for name in names]
    return link.learner(algorithm, names=needed, variables=own)


def _make_serial_processors(
    experiment: Experiment, publisher: Publisher, actors: "Mapping[str, Actor]", name: str
) -> dict[str, ComputationDataProcessor]:
    learners = make_iteration_learners(experiment, publisher)
    from relaax_like.learn.serial_learner import SerialLearner

    return {
        algorithm: ComputationDataProcessor(
            actors[algorithm],
            SerialLearner(learner),
            publisher.metrics(),
            name if len(learners) == 1 else f"{name}-{algorithm}",
        )
        for algorithm, learner in learners.items()
    }
