"""Loads the experiment's algorithm and makes the host of its agents, and its learners."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.service import Metrics, ParameterServerClient, Publisher
from relaax_like.computation.data_processor import ComputationDataProcessor
from relaax_like.computation.prediction import TASK
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.experience.collector import Collector
from relaax_like.launch.process import without_native_stderr
from relaax_like.learner.learner_process import LearnerProcess
from relaax_like.rlx_server.hosting import AgentHost, BatchHost, PlainHost
from relaax_like.wire.errors import ConfigError

if TYPE_CHECKING:  # They import TensorFlow.
    from relaax_like.computation.acting import Actor
    from relaax_like.learner.gradient_learner import GradientLearner
    from relaax_like.learner.iteration_learner import IterationLearner

MakeClient = Callable[[str], ParameterServerClient]
# Over the network an agent acts on while one rollout is learned from, one version apart.
_ROLLOUTS_AHEAD = 1


@dataclass(frozen=True)
class BesideLearner:
    """Agents whose learner runs in a process of its own.

    Attributes:
      process: not started yet.
      metrics: the agents' recorder.
    """

    process: LearnerProcess
    metrics: Metrics


def make_agent_host(
    experiment: Experiment,
    make_client: MakeClient,
    client_id: str = "",
    beside: BesideLearner | None = None,
    publisher: Publisher | None = None,
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
        learns; None: agents of such a run only act.

    Raises:
      ConfigError: the algorithm folder has neither, or they cannot be loaded.
    """
    folder, config = experiment.algorithm_folder, experiment.algorithm
    agent_class: Any = SimpleRLAgent
    if (folder / "agent.py").is_file():
        with without_native_stderr():
            agent_class = load_algorithm_module(folder, "agent").Agent
        if not (isinstance(agent_class, type) and issubclass(agent_class, BatchAgent)):
            return PlainHost(config, agent_class, make_client)
    client_id = client_id or make_client_id("rlx")
    if beside is None:
        with without_native_stderr():
            load_algorithm_module(folder, "algorithm")
        actors = _make_actors(experiment, client_id, agent_class)

        def make_processors() -> dict[str, ComputationDataProcessor]:
            if publisher is not None:
                return {TASK: _make_serial_processor(experiment, publisher, actors[TASK])}
            learners = make_learners(experiment, make_client, client_id)
            return {
                task: ComputationDataProcessor(actors[task], learner, learner.metrics())
                for task, learner in learners.items()
            }

        return BatchHost(config, make_processors, agent_class)
    beside.process.start()  # first: it takes the longest to come up
    processors = {
        task: ComputationDataProcessor(actor, beside.process.learner(task), beside.metrics)
        for task, actor in _make_actors(experiment, client_id, agent_class).items()
    }
    return BatchHost(config, lambda: processors, agent_class, _ROLLOUTS_AHEAD)


def make_learners(
    experiment: Experiment,
    make_client: MakeClient,
    client_id: str,
    *,
    compile_in_background: bool = False,
) -> dict[str, "GradientLearner"]:
    """Loads TensorFlow, and makes the learner of each task of a batch-native algorithm.

    Args:
      experiment: names the algorithm's folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the only task; with several, their names are added.
      compile_in_background: see `ComputationTask`.

    Raises:
      ConfigError: the algorithm folder lacks what learning needs, or it cannot be loaded.
      ServerUnavailableError: there is no parameter server.
    """
    config = experiment.algorithm
    seed = derive_seed(config.seed, "act", client_id)
    with without_native_stderr():
        from relaax_like.computation.computation_task import ComputationTask
        from relaax_like.computation.tasks import Tasks
        from relaax_like.learner.gradient_learner import GradientLearner

        algorithm_module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
        model_module = _load_model_module(experiment)
    if model_module is not None:
        model = model_module.make_model(config, config.seed)
        algorithm = algorithm_module.make_algorithm(config, model, seed)
        task = ComputationTask(algorithm, compile_in_background=compile_in_background)
        return {TASK: GradientLearner(task, make_client(client_id))}
    tasks = Tasks(_get_make_algorithms(algorithm_module)(config, seed))
    return {
        name: GradientLearner(
            ComputationTask(algorithm, compile_in_background=compile_in_background),
            tasks.make_client(name, make_client(f"{client_id}-{name}")),
            curves=f"Optimizer/{name}",
        )
        for name, algorithm in tasks.algorithms.items()
    }


def _make_serial_processor(
    experiment: Experiment, publisher: Publisher, actor: "Actor"
) -> ComputationDataProcessor:
    learner = make_iteration_learner(experiment, publisher)
    from relaax_like.learner.serial_learner import SerialLearner

    return ComputationDataProcessor(actor, SerialLearner(learner), publisher.metrics())


def make_iteration_learner(experiment: Experiment, publisher: Publisher) -> "IterationLearner":
    """Loads TensorFlow, and makes the learner of a run that learns in its parameter server.

    Raises:
      ConfigError: the algorithm cannot learn there.
    """
    config, folder = experiment.algorithm, experiment.algorithm_folder
    plan = config.update_plan
    model_module = _load_model_module(experiment)
    if plan is None or model_module is None:
        raise ConfigError(
            f"learner.placement: server, but the algorithm {folder.name} makes no updates of its "
            "own; use placement: agent"
        )
    with without_native_stderr():
        from relaax_like.computation.updates import LearningTask
        from relaax_like.learner.base_learner import BaseLearner
        from relaax_like.learner.iteration_learner import IterationLearner
        from relaax_like.learner.learning_policy import LearningPolicy

        algorithm_module = load_algorithm_module(folder, "algorithm")
    model = model_module.make_model(config, config.seed)
    algorithm = algorithm_module.make_algorithm(config, model, derive_seed(config.seed, "learn"))
    task = LearningTask(algorithm, experiment.optimizers)
    policy = LearningPolicy(task, plan, derive_seed(config.seed, "learn"))
    hooks = {"save_ckpt_after_run": False, "log_show_after_iter": None, **experiment.learner.hook}
    base = BaseLearner({"hook": hooks}, exp_dir=experiment.run_dir, metrics=publisher.metrics())
    base.policy = policy
    collector = Collector(plan.steps, plan.columns, capacity=4 * plan.columns)
    return IterationLearner(base, policy, collector, publisher)


def _make_actors(
    experiment: Experiment, client_id: str, agent_class: type[BatchAgent]
) -> "dict[str, Actor]":
    """Makes what acts, with models of its own: those of the learner change while it computes."""
    folder, config = experiment.algorithm_folder, experiment.algorithm
    seed = derive_seed(config.seed, "act", client_id)
    with without_native_stderr():
        from relaax_like.computation.acting import make_actor

        model_module = _load_model_module(experiment)
        if model_module is not None:
            return {TASK: make_actor(model_module.make_model(config, config.seed), seed)}
        make_algorithms = _get_make_algorithms(load_algorithm_module(folder, "algorithm"))
    if agent_class is SimpleRLAgent:
        raise ConfigError(
            f"{folder}: algorithm.py exports make_algorithms, but there is no agent.py; write one "
            "with a class Agent(BatchAgent), which says when each task is asked"
        )
    return {
        task: make_actor(algorithm.model, derive_seed(seed, task))
        for task, algorithm in make_algorithms(config, seed).items()
    }


def _load_model_module(experiment: Experiment) -> Any | None:
    """Returns `model.py` of an algorithm with one task; None: `make_algorithms` makes several."""
    folder = experiment.algorithm_folder
    if not (folder / "model.py").is_file():
        return None
    module = load_algorithm_module(folder, "model")
    return module if hasattr(module, "make_model") else None


def _get_make_algorithms(algorithm_module: Any) -> Any:
    if not hasattr(algorithm_module, "make_algorithms"):
        raise ConfigError(
            f"{algorithm_module.__file__}: no make_algorithms, and no make_model in a model.py "
            "beside it: nothing can be learned"
        )
    return algorithm_module.make_algorithms
