"""Loads the experiment's algorithm and makes its learners."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.base_learner import NO_HOOKS, make_base_learner_config
from relaax_like.config.models import Experiment, LearnerConfig
from relaax_like.config.places import describe_function, describe_place
from relaax_like.config.plan import Episodes, Offline, OnPolicy, Replay, RolloutPlan, get_plan
from relaax_like.config.seeds import derive_seed
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import TASK
from relaax_like.core.roles import ParameterServerClient, Publisher
from relaax_like.experience.collector import Collector, DataHandler
from relaax_like.experience.episodes import EpisodeCollector
from relaax_like.experience.trajectory_files import (
    TRAJECTORY_FOLDER,
    TrajectoryGatherer,
    TrajectoryWriter,
)
from relaax_like.launch.algorithm_code import naming_place
from relaax_like.launch.process import without_native_stderr
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, Space

if TYPE_CHECKING:  # Most of them import TensorFlow.
    from relaax_like.learn.base_learner import BaseLearner
    from relaax_like.learn.collected import Collected
    from relaax_like.learn.gradient_learner import GradientLearner
    from relaax_like.learn.learner_loop import LearnerLoop
    from relaax_like.learn.learning_policy import LearningPolicy
    from relaax_like.learn.recorded_files import RecordedFiles
    from relaax_like.learn.tally import Tally
    from relaax_like.learn.updates import LearningTask

logger = logging.getLogger(__name__)

MakeClient = Callable[[str], ParameterServerClient]


def make_learners(
    experiment: Experiment,
    make_client: MakeClient,
    client_id: str,
    *,
    compile_in_background: bool = False,
    on_failure: Callable[[ConfigError], None] = lambda error: None,
) -> dict[str, "GradientLearner"]:
    """Loads TensorFlow, and makes the learner of each task of a batch-native algorithm.

    Args:
      experiment: names the algorithm's folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the only task; with several, their names are added.
      compile_in_background: see `ComputationTask`.
      on_failure: see `GradientLearner`; called once by each.

    Raises:
      ConfigError: the algorithm folder lacks what learning needs, or it cannot be loaded.
      ServerUnavailableError: there is no parameter server.
    """
    config = experiment.algorithm
    seed = derive_seed(config.seed, "act", client_id)
    with without_native_stderr():
        from relaax_like.learn.gradient_learner import GradientLearner
        from relaax_like.learn.gradients import GradientTask
        from relaax_like.learn.tasks import Tasks

        algorithm_module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
        model_module = load_model_module(experiment)
    if model_module is not None:
        model = make_model(experiment)
        with naming_place(experiment.algorithm_folder):
            algorithm = algorithm_module.make_algorithm(config, model, seed)
        _refuse_beside_agents(experiment, algorithm)
        client = make_client(client_id)
        writer = _make_trajectory_writer(experiment, client_id)
        learner = GradientLearner(
            GradientTask(algorithm, compile_in_background=compile_in_background),
            client,
            on_failure=on_failure,
            learner=_make_hooked_learner(experiment, client.metrics()),
            data_handler=_make_data_handler(experiment),
            trajectories=None if writer is None else TrajectoryGatherer(writer),
        )
        return {TASK: learner}
    make_algorithms = get_make_algorithms(algorithm_module)
    with naming_place(experiment.algorithm_folder):
        tasks = Tasks(make_algorithms(config, seed))
    for algorithm in tasks.algorithms.values():
        _refuse_beside_agents(experiment, algorithm)
    if hasattr(algorithm_module, "make_data_handler"):
        raise ConfigError(
            f"{describe_function(algorithm_module.make_data_handler)}: make_data_handler changes "
            f"the rollouts of one task, but make_algorithms makes {len(tasks.algorithms)}"
        )
    what = f"one learner, but make_algorithms makes {len(tasks.algorithms)}"
    refuse_keys_of_one_learner(experiment, what)
    return {
        name: GradientLearner(
            GradientTask(algorithm, compile_in_background=compile_in_background),
            tasks.make_client(name, make_client(f"{client_id}-{name}")),
            curves=f"Optimizer/{name}",
            on_failure=on_failure,
        )
        for name, algorithm in tasks.algorithms.items()
    }


def make_iteration_learner(
    experiment: Experiment, publisher: Publisher
) -> "LearnerLoop[Collected]":
    """Loads TensorFlow, and makes the learner of a run that learns in its parameter server.

    Raises:
      ConfigError: the algorithm cannot learn there.
    """
    plan = require_plan(experiment)
    assert not isinstance(plan, Offline), "what learns from files has another learner"
    with without_native_stderr():
        from relaax_like.learn.collected import Collected
        from relaax_like.learn.rollout_layout import RolloutLayout
        from relaax_like.learn.tally import Tally

    policy, model = _make_policy(experiment, plan)
    collector = _make_collector(experiment, plan)
    layout = RolloutLayout(model, plan.rollout_steps, _find_action_spaces(experiment))
    tally = Tally()
    source = Collected(collector, tally, layout, _make_trajectory_writer(experiment))
    return _make_publishing_loop(experiment, source, policy, publisher, tally)


def _make_collector(experiment: Experiment, plan: OnPolicy | Episodes) -> Collector:
    # Any client's rollout finds room as soon as all whole iterations have been taken.
    largest = plan.columns + experiment.rlx_server.max_slots_per_client
    capacity = max(4 * plan.columns, largest)
    handler = _make_data_handler(experiment)
    steps, columns = plan.rollout_steps, plan.columns
    if isinstance(plan, OnPolicy):
        return Collector(steps, columns, capacity=capacity, data_handler=handler)
    return EpisodeCollector(
        steps, columns, capacity=capacity, max_steps=plan.max_steps, data_handler=handler
    )


def make_offline_learner(
    experiment: Experiment, publisher: Publisher, files: Sequence[Path]
) -> "LearnerLoop[RecordedFiles]":
    """Loads TensorFlow, and makes the learner of a run that learns from files of trajectories.

    Raises:
      ConfigError: the algorithm cannot learn from them.
    """
    plan = require_plan(experiment)
    with without_native_stderr():
        from relaax_like.learn.recorded_files import RecordedFiles
        from relaax_like.learn.tally import Tally

    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    if hasattr(module, "make_data_handler"):
        raise ConfigError(
            f"{describe_function(module.make_data_handler)}: make_data_handler changes what agents "
            "collect; a run that learns from files (learner.offline) has no agents"
        )
    policy, model = _make_policy(experiment, plan)
    seed = derive_seed(experiment.algorithm.seed, "learn")
    tally = Tally()
    source = RecordedFiles(files, tally, model, _find_action_spaces(experiment), seed)
    return _make_publishing_loop(experiment, source, policy, publisher, tally)


def _make_policy(experiment: Experiment, plan: RolloutPlan) -> tuple["LearningPolicy", Any]:
    """Returns what is updated, and its model."""
    with without_native_stderr():
        from relaax_like.learn.learning_policy import LearningPolicy

    task, model = make_learning_task(experiment)
    seed = derive_seed(experiment.algorithm.seed, "learn")
    return LearningPolicy(task, plan, seed, experiment.run_dir), model


def _make_publishing_loop(
    experiment: Experiment,
    source: Any,
    policy: "LearningPolicy",
    publisher: Publisher,
    tally: "Tally",
) -> Any:
    from relaax_like.learn.learner_loop import LearnerLoop
    from relaax_like.learn.publishing import Publishing

    learner = _make_base_learner(experiment, publisher.metrics())
    learner.policy = policy
    if experiment.learner.eval_freq:
        _add_tests(experiment, learner, policy, publisher)
    sink = Publishing(publisher, policy, tally)
    return LearnerLoop(source, learner, sink, publisher.metrics())


def validate_recordings(experiment: Experiment, files: Sequence[Path]) -> None:
    """Reads all files that a run is to learn from, and compares them with its settings.

    Raises:
      ConfigError: see `validate_files`; or the algorithm cannot learn from files.
    """
    plan = require_plan(experiment)
    with without_native_stderr():
        from relaax_like.learn.recorded_files import validate_files

    size = sum(path.stat().st_size for path in files)
    logger.info("checking %d trajectory files, %.1f MB", len(files), size / 1e6)
    try:
        validate_files(files, make_model(experiment), _find_action_spaces(experiment), plan)
    except InvalidInputError as error:
        raise ConfigError(f"learner.offline: {error}") from error


def require_plan(experiment: Experiment) -> RolloutPlan:
    """Returns how the algorithm makes its own updates.

    Raises:
      ConfigError: it makes none.
    """
    plan = get_plan(experiment.algorithm)
    if plan is not None and load_model_module(experiment) is None:
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: plan is {type(plan).__name__}, whose updates are made of one task, but the "
            "algorithm has several; define make_model in model.py for one, or return "
            "OnPolicy(rollout_steps=...) without rollouts, which learns beside the agents"
        )
    if plan is None or isinstance(plan, Replay):
        raise ConfigError(
            f"learner.placement: server, but the algorithm {experiment.algorithm_folder.name} "
            "does not compute updates itself; set placement: agent"
        )
    return plan


def make_learning_task(experiment: Experiment) -> tuple["LearningTask", Any]:
    """Loads TensorFlow, and returns the task that makes an algorithm's own updates; and its model.

    Args:
      experiment: of which `require_plan` returns a plan.
    """
    config, folder = experiment.algorithm, experiment.algorithm_folder
    with without_native_stderr():
        from relaax_like.learn.updates import LearningTask

        algorithm_module = load_algorithm_module(folder, "algorithm")
    model = make_model(experiment)
    seed = derive_seed(config.seed, "learn")
    with naming_place(folder):
        algorithm = algorithm_module.make_algorithm(config, model, seed)
    _refuse_own_predict(algorithm)
    return LearningTask(algorithm, experiment.optimizers), model


def _refuse_beside_agents(experiment: Experiment, algorithm: Any) -> None:
    """Refuses what learners beside their agents cannot honour.

    Raises:
      ConfigError: names the line.
    """
    from relaax_like.algorithm import Algorithm

    _refuse_own_predict(algorithm)
    own = type(algorithm)
    if own.stop is not Algorithm.stop:
        place = describe_place(own, "stop")
        raise ConfigError(
            f"{place}: stop ends the epochs of an iteration; learners beside their agents "
            "(learner.placement: agent) have none"
        )
    combine = experiment.parameter_server.combine
    if algorithm.phases and combine.method == "avg":
        place = describe_place(own, "phases")
        raise ConfigError(
            f"{place}: phases meet the values that the phases before them left, but "
            "relaax-parameter-server.combine.method: avg holds gradients back; set it to fifo"
        )


def _refuse_own_predict(algorithm: Any) -> None:
    """Refuses an algorithm that predicts in another way than its model's policy.

    Raises:
      ConfigError: names the line.
    """
    from relaax_like.algorithm import FlareAlgorithm

    for name in ("predict", "exploit"):
        own = getattr(type(algorithm), name, None)
        if own is not None and own is not getattr(FlareAlgorithm, name):
            raise ConfigError(
                f"{describe_place(type(algorithm), name)}: {name} is overridden, but batch-native "
                "agents act by Model.policy; explore there (policy(inputs, memory, explore)), or "
                "write an agent.py with a ComputationTask of its own"
            )


def _find_action_spaces(experiment: Experiment) -> Mapping[str, Space]:
    """Not all algorithms know their actions' range; those with networks of ours do."""
    space = getattr(experiment.algorithm, "action_space", None)
    return {} if space is None else {ACTION: space}


def _make_data_handler(experiment: Experiment) -> DataHandler | None:
    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    make = getattr(module, "make_data_handler", None)
    with naming_place(experiment.algorithm_folder):
        return None if make is None else make(experiment.algorithm)


def _make_trajectory_writer(experiment: Experiment, client_id: str = "") -> TrajectoryWriter | None:
    """Returns what writes the trajectories of a learner; None: they are not kept."""
    config = experiment.learner
    if not config.collect_traj:
        return None
    return TrajectoryWriter(
        experiment.run_dir / TRAJECTORY_FOLDER, 1e6 * config.collect_traj_max_mb, client_id
    )


def _make_base_learner(experiment: Experiment, metrics: Metrics | None = None) -> "BaseLearner":
    from relaax_like.learn.base_learner import BaseLearner

    hooks = {"hook": _make_hooks(experiment.learner)}
    return BaseLearner(hooks, exp_dir=experiment.run_dir, metrics=metrics)


def _make_hooked_learner(experiment: Experiment, metrics: Metrics) -> "BaseLearner":
    """Makes the learner of agents in the same process, or in the rlx server.

    Raises:
      ConfigError: it is to write or load checkpoints, which the parameter server does.
    """
    hooks = make_base_learner_config({"hook": _make_hooks(experiment.learner)}).hook
    for name, hook in hooks.items():
        if hook is not None and hook.type in ("save_ckpt", "load_ckpt"):
            raise ConfigError(
                f"learner.hook.{name}: {hook.type}, but with placement agent the parameter server "
                "keeps weights and optimizers; remove it"
            )
    return _make_base_learner(experiment, metrics)


def refuse_keys_of_one_learner(experiment: Experiment, what: str) -> None:
    """Refuses hooks and recordings where there is no learner of ours, or more than one.

    Raises:
      ConfigError: the experiment has them.
    """
    if experiment.learner.hook:
        raise ConfigError(f"learner.hook: hooks are called by {what}; set it to {{}}")
    if experiment.learner.collect_traj:
        raise ConfigError(f"learner.collect_traj: files are written by {what}; set it to false")


def _make_hooks(config: LearnerConfig) -> dict[str, Any]:
    """Returns the learner's hooks; those of the YAML file come last."""
    save_freq = config.save_freq if config.save_freq > 0 else None
    return {**NO_HOOKS, "save_ckpt_after_iter": save_freq, **config.hook}


def _add_tests(experiment: Experiment, base: Any, policy: Any, publisher: Publisher) -> None:
    from relaax_like.launch.online_tester import (
        CloseHook,
        OnlineTester,
        TestHook,
        require_environment,
    )

    config = experiment.learner
    require_environment(experiment)
    tester = OnlineTester(experiment)
    base.register_hook(TestHook(tester, policy, publisher, config.eval_freq, config.num_eval_eps))
    base.register_hook(CloseHook(tester))


def load_model_module(experiment: Experiment) -> Any | None:
    """Returns `model.py` of an algorithm with one task; None: `make_algorithms` makes several."""
    folder = experiment.algorithm_folder
    if not (folder / "model.py").is_file():
        return None
    module = load_algorithm_module(folder, "model")
    return module if hasattr(module, "make_model") else None


def make_model(experiment: Experiment) -> Any:
    """Builds the Model of an algorithm with one task.

    Raises:
      ConfigError: it cannot be built; names the line of the folder's code.
    """
    config, module = experiment.algorithm, load_model_module(experiment)
    assert module is not None, "the algorithm has one task"
    with naming_place(experiment.algorithm_folder):
        return module.make_model(config, config.seed)


def get_make_algorithms(algorithm_module: Any) -> Any:
    """Returns what makes the Algorithms of several tasks.

    Raises:
      ConfigError: there is no such function.
    """
    if not hasattr(algorithm_module, "make_algorithms"):
        raise ConfigError(
            f"{algorithm_module.__file__}: nothing to learn with; define make_algorithms here, "
            "or make_model in model.py"
        )
    return algorithm_module.make_algorithms
