"""Loads the experiment's algorithm and makes its learners."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.base_learner import NO_HOOKS, make_base_learner_config
from relaax_like.config.models import Experiment, LearnerConfig
from relaax_like.config.optimizer import OptimizerConfig, choose_optimizer
from relaax_like.config.places import describe_attribute, describe_function, describe_place
from relaax_like.config.plan import (
    Episodes,
    LearningPlan,
    Offline,
    OnPolicy,
    Replay,
    get_own_plan,
    get_plan,
    get_rollout_steps,
    name_plan,
)
from relaax_like.config.seeds import derive_seed
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.core.roles import ParameterServerClient, Publisher
from relaax_like.experience.collector import Collector, DataHandler
from relaax_like.experience.recordings import Recording
from relaax_like.experience.replay.row_spec import read_available_bytes
from relaax_like.experience.trajectory_files import (
    TRAJECTORY_FOLDER,
    TrajectoryGatherer,
    TrajectoryWriter,
)
from relaax_like.launch.algorithm_code import (
    get_make_algorithms,
    load_model_module,
    locate_errors,
    make_algorithm,
    make_model,
    validate_steps,
)
from relaax_like.launch.online_tester import (
    CloseHook,
    OnlineTester,
    TestHook,
    describe_without_tests,
    require_environment,
)
from relaax_like.launch.recordings import find_recordings
from relaax_like.learn.collected import make_collector
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import RunSpaces, split_masks

if TYPE_CHECKING:  # Most of them import TensorFlow.
    from relaax_like.learn.agent_source import AgentSource
    from relaax_like.learn.base_learner import BaseLearner
    from relaax_like.learn.gradient_learner import GradientLearner
    from relaax_like.learn.learner_loop import LearnerLoop, Source
    from relaax_like.learn.learning_policy import LearningPolicy
    from relaax_like.learn.replayed import Replayed
    from relaax_like.learn.request_queue import RequestQueue
    from relaax_like.learn.tally import Tally
    from relaax_like.learn.updates import CompiledUpdates
    from relaax_like.replay import Table

logger = logging.getLogger(__name__)

MakeClient = Callable[[str], ParameterServerClient]
# Number of rollouts of one slot that can wait if iterations have no fixed size.
_OPEN_CAPACITY = 256
# The same where each agent sends at most one or two rollouts before it waits.
_UNBOUNDED = 1 << 62


def make_learners(
    experiment: Experiment,
    make_client: MakeClient,
    client_id: str,
    *,
    compile_in_background: bool = False,
    on_failure: Callable[[ConfigError], None] = lambda error: None,
) -> dict[str, "GradientLearner"]:
    """Loads TensorFlow, and makes the learner of each Algorithm of a batch-native algorithm.

    Args:
      experiment: names the algorithm's folder.
      make_client: opens a view of the parameter server from a client id.
      client_id: of the only Algorithm; with `make_algorithms`, their names are added.
      compile_in_background: see `CompiledAlgorithm`.
      on_failure: see `GradientLearner`; called at most once by each.

    Raises:
      ConfigError: the algorithm folder lacks what learning needs, its code cannot be loaded, or
        fails; or it does not fit a setting.
      ServerUnavailableError: the parameter server is not available.
      RelaaxError: another error of `make_client`.
    """
    config = experiment.algorithm
    seed = derive_seed(config.seed, "act", client_id)
    with without_native_stderr():
        from relaax_like.learn.gradient_learner import GradientLearner
        from relaax_like.learn.gradients import CompiledGradients
        from relaax_like.learn.named_algorithms import NamedAlgorithms

        algorithm_module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
        model_module = load_model_module(experiment)
    is_joint = experiment.parameter_server.combine.method == "sync"
    if model_module is not None:
        model = make_model(experiment)
        algorithm = make_algorithm(experiment, model, seed)
        _refuse_beside_agents(experiment, algorithm, ONLY_NAME)
        with locate_errors(experiment.algorithm_folder):  # methods of the model are called
            compiled = CompiledGradients(
                algorithm, is_joint=is_joint, compile_in_background=compile_in_background
            )
        client = make_client(client_id)
        learner = GradientLearner(
            compiled,
            _get_agents_plan(config, ONLY_NAME),
            client,
            _make_requests(
                *(experiment, model, not compile_in_background, client_id),
                has_others=bool(experiment.policy),
            ),
            seed=derive_seed(config.seed, "learn"),
            on_failure=on_failure,
            learner=_make_hooked_learner(experiment, client.metrics()),
        )
        return {ONLY_NAME: learner}
    make_algorithms = get_make_algorithms(algorithm_module)
    if is_joint:
        raise ConfigError(
            "relaax-parameter-server.combine.method: sync needs a function make_model in model.py, "
            f"but this algorithm has make_algorithms ({describe_function(make_algorithms)}); set "
            "it to fifo"
        )
    with locate_errors(experiment.algorithm_folder):
        named = NamedAlgorithms(make_algorithms(config, seed))
    for name, algorithm in named.algorithms.items():
        _refuse_beside_agents(experiment, algorithm, name)
    _refuse_for_several(experiment, algorithm_module, len(named.algorithms))
    with locate_errors(experiment.algorithm_folder):
        all_compiled = {
            name: CompiledGradients(
                algorithm, compile_in_background=compile_in_background, name=name
            )
            for name, algorithm in named.algorithms.items()
        }
    return {
        name: GradientLearner(
            all_compiled[name],
            _get_agents_plan(config, name),
            named.make_client(name, make_client(f"{client_id}-{name}")),
            _make_requests(
                *(experiment, algorithm.model, not compile_in_background),
                name=name,
                has_others=len(named.algorithms) > 1,
            ),
            seed=derive_seed(derive_seed(config.seed, "learn"), name),
            curves=f"Optimizer/{name}",
            on_failure=on_failure,
        )
        for name, algorithm in named.algorithms.items()
    }


def _make_requests(
    experiment: Experiment,
    model: Any,
    holds_agents: bool,
    client_id: str = "",
    *,
    name: str = "",
    has_others: bool = False,
) -> "RequestQueue":
    """Makes what takes the requests of agents whose learner is beside them.

    Args:
      experiment: of the run.
      model: of the Algorithm.
      holds_agents: see `RequestQueue`.
      client_id: of the learner, for the names of trajectory files.
      name: of one of several Algorithms; "": the only one.
      has_others: whether clients have other Algorithms or policies, too. Then no agent waits for an
        incomplete iteration: one that waits for one of them would delay the others.
    """
    from relaax_like.learn.collected import Collected
    from relaax_like.learn.request_queue import RequestQueue
    from relaax_like.learn.tally import Tally

    plan = _get_agents_plan(experiment.algorithm, name or ONLY_NAME)
    data_handler = _make_data_handler(experiment)
    if isinstance(plan, Replay):
        table = _make_replayed(experiment, plan, model, Tally(), data_handler, name=name)
        return RequestQueue(table, holds_agents=holds_agents)
    writer = _make_trajectory_writer(experiment, client_id)
    source = Collected(
        make_collector(plan, _UNBOUNDED, data_handler),
        Tally(),
        trajectories=None if writer is None else TrajectoryGatherer(writer),
    )
    waits = isinstance(plan, OnPolicy) and not has_others
    return RequestQueue(source, waits, max_lag=experiment.learner.max_lag)


def _get_agents_plan(config: AlgorithmConfig, name: str) -> OnPolicy | Episodes | Replay:
    """Returns the plan of a learner beside its agents; without one, each batch is one gradient.

    Raises:
      ConfigError: see `validate_steps`.
    """
    validate_steps(config)
    plan = get_own_plan(config, name)
    if plan is None:
        return OnPolicy(rollout_steps=get_rollout_steps(config, name), update_norm=True)
    assert isinstance(plan, OnPolicy | Episodes | Replay), (
        "the loader refuses all others beside agents"
    )
    return plan


def make_iteration_learners(
    experiment: Experiment, publisher: Publisher, *, keeps_experience: bool = False
) -> "dict[str, LearnerLoop[AgentSource]]":
    """Loads TensorFlow, and makes the learner of each Algorithm of a run whose learner publishes.

    It publishes from the parameter server's process or, with placement standalone, from its own.

    Args:
      experiment: to train.
      publisher: of the values.
      keeps_experience: whether replay tables keep their experience on disk.

    Returns:
      Name -> its learner. The learners of several Algorithms share the run's lease, and can run in
      different threads.

    Raises:
      ConfigError: the algorithm cannot learn there, or its code cannot be loaded, or fails.
    """
    plans = require_plans(experiment)
    if not isinstance(get_plan(experiment.algorithm), Mapping):
        return {ONLY_NAME: make_iteration_learner(experiment, publisher, keeps_experience)}
    made = make_updates_by_name(experiment)
    with without_native_stderr():
        from relaax_like.algorithm.model import find_sharing, get_variables
        from relaax_like.learn.algorithm_publishers import AlgorithmPublishers
        from relaax_like.learn.learning_policy import LearningPolicy

    publishers = AlgorithmPublishers(
        publisher,
        {name: make_manifest(get_variables(model)) for name, (_, model) in made.items()},
        find_sharing({name: model for name, (_, model) in made.items()}),
    )
    seed = derive_seed(experiment.algorithm.seed, "learn")
    loops = {}
    for name, (compiled, model) in made.items():
        policy = LearningPolicy(compiled, plans[name], derive_seed(seed, name), experiment.run_dir)
        loops[name] = _make_collecting_loop(
            *(experiment, plans[name], policy, model, publishers.make_publisher(name)),
            keeps_experience,
            name,
        )
    return loops


def make_iteration_learner(
    experiment: Experiment, publisher: Publisher, keeps_experience: bool = False
) -> "LearnerLoop[AgentSource]":
    """Makes the only Algorithm's learner; see `make_iteration_learners`, also for the errors."""
    plan = require_plan(experiment)
    policy, model = _make_policy(experiment, plan)
    return _make_collecting_loop(experiment, plan, policy, model, publisher, keeps_experience)


def _make_collecting_loop(
    experiment: Experiment,
    plan: LearningPlan,
    policy: "LearningPolicy",
    model: Any,
    publisher: Publisher,
    keeps_experience: bool,
    name: str = "",
) -> "LearnerLoop[AgentSource]":
    """Makes a learner of agents' rollouts; `name` is its name, if there are several."""
    assert not isinstance(plan, Offline), "what learns from files has another learner"
    from relaax_like.learn.collected import Collected
    from relaax_like.learn.rollout_layout import RolloutLayout
    from relaax_like.learn.tally import Tally

    tally = Tally()
    source: AgentSource
    if isinstance(plan, Replay):
        handler = _make_data_handler(experiment)
        source = _make_replayed(experiment, plan, model, tally, handler, keeps_experience, name)
    else:
        layout = RolloutLayout(model, plan.rollout_steps, experiment.algorithm.action_spaces)
        collector = _make_collector(experiment, plan)
        source = Collected(collector, tally, layout, _make_trajectory_writer(experiment))
    return _make_publishing_loop(experiment, source, policy, publisher, tally, name)


def _make_replayed(
    experiment: Experiment,
    plan: Replay,
    model: Any,
    tally: "Tally",
    data_handler: DataHandler | None,
    keeps_experience: bool = False,
    name: str = "",
) -> "Replayed":
    """Makes a replay table that agents' steps go to.

    Raises:
      ConfigError: the model or a setting does not fit a plan Replay; the error names it.
    """
    from relaax_like.algorithm.model import get_normalizers
    from relaax_like.learn.replay_log import ReplayLog, name_replay_folder
    from relaax_like.learn.replayed import Replayed, make_table
    from relaax_like.learn.rollout_layout import RolloutLayout

    config, learner = experiment.algorithm, experiment.learner
    if plan.sequence_steps is None and model.get_state_specs():
        raise ConfigError(
            f"{describe_place(type(config), 'plan')}: plan is Replay of single steps, but the "
            f"model has a memory ({model.get_state_specs()[0][0]!r} in get_state_specs); set "
            "sequence_steps of Replay, or remove the memory"
        )
    if learner.collect_traj:
        raise ConfigError(
            "learner.collect_traj: true, but a replay table writes no trajectory files; set it to "
            "false"
        )
    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    number = config.observation_history
    inputs, _ = split_masks(dict(model.get_input_specs()))
    history = dict.fromkeys(inputs, number) if number > 1 else {}
    seed = derive_seed(derive_seed(config.seed, "learn"), "replay", name)
    compute_rewards = getattr(module, "compute_rewards", None)
    if compute_rewards is not None:
        compute_rewards = locate_errors(experiment.algorithm_folder)(compute_rewards)
    prior = None
    if plan.has_prior:
        prior = _make_prior(experiment, plan, model, history, data_handler, name)
    table = make_table(plan, model, history, seed, compute_rewards)
    if prior is not None:
        table.mix(prior, plan.prior_size)
    log = None
    if keeps_experience:
        settings = experiment.parameter_server
        log = ReplayLog(
            settings.checkpoint_dir / name_replay_folder(name),
            lambda: table.rows,
            strict=settings.journal_strict,
        )
    layout = RolloutLayout(model, plan.rollout_steps, config.action_spaces)
    return Replayed(
        table,
        tally,
        layout,
        plan,
        log,
        get_normalizers(model),
        data_handler,
    )


def _make_prior(
    experiment: Experiment,
    plan: Replay,
    model: Any,
    history: Mapping[str, int],
    data_handler: DataHandler | None,
    name: str,
) -> "Table":
    """Makes the table of the recorded steps that are a part of each minibatch.

    Raises:
      ConfigError: there are several Algorithms; the recordings cannot be found, cannot be read, do
        not fit the model, or are not those that the run began with; or they do not fit into memory.
    """
    from relaax_like.learn.prior import keep_prior, make_prior, read_prior

    if plan.prior is None:  # it has overridden steps alone
        return make_prior([], plan, model, history, data_handler)
    sources = ", ".join(plan.prior)
    if name:
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: prior of {name!r} is {sources}, expected None: recordings have what one "
            "Algorithm sees, and this folder has several by name; remove prior, or define "
            "make_model in model.py"
        )
    masks = experiment.environment.masks if experiment.environment else "auto"
    files = find_recordings(plan.prior, masks, "algorithm.prior")
    try:
        rollouts, checksum = read_prior(files, model, experiment.algorithm.action_spaces)
        steps = sum(rollout.env_steps for rollout in rollouts)
        keep_prior(experiment.parameter_server.checkpoint_dir, plan.prior, steps, checksum)
        table = make_prior(rollouts, plan, model, history, data_handler)
    except InvalidInputError as error:
        raise ConfigError(f"algorithm.prior: {error}") from error
    logger.info("%s recorded steps from %s", f"{steps:,}", sources)
    return table


def _validate_names(
    experiment: Experiment, plans: Mapping[str, LearningPlan], algorithms: Mapping[str, Any]
) -> None:
    """Checks that there is a plan for each Algorithm, and no others.

    Raises:
      ConfigError: an Algorithm has no plan, or a plan no Algorithm; the error names the line.
    """
    if plans.keys() != algorithms.keys():
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: plan has the Algorithms {', '.join(plans)}, but make_algorithms makes "
            f"{', '.join(algorithms)}; expected one plan for each"
        )


def _choose_optimizers(
    experiment: Experiment, sharing: Sequence[str], model: Any
) -> dict[str, OptimizerConfig]:
    """Returns the optimizer of each variable group of a model, as chosen by the store."""
    from relaax_like.algorithm.model import get_groups

    optimizers, label = experiment.optimizers, "+".join(sharing)
    return {
        group: optimizers[choose_optimizer(f"{label}/{group}", optimizers)]
        for group in get_groups(model)
    }


def _refuse_for_several(experiment: Experiment, module: Any, count: int) -> None:
    """Refuses what only works with `make_model`, for an algorithm with `make_algorithms`.

    Raises:
      ConfigError: the error names the line of code, or the key.
    """
    if hasattr(module, "make_data_handler"):
        raise ConfigError(
            f"{describe_function(module.make_data_handler)}: make_data_handler needs make_model in "
            f"model.py, but make_algorithms makes {count} Algorithm(s); remove it"
        )
    learner = experiment.learner
    what = "the learner of an algorithm with make_model, but this algorithm has make_algorithms"
    refuse_keys_of_one_learner(experiment, what)
    if learner.save_freq > 0 and learner.publishes:
        raise ConfigError(
            f"learner.save_freq: {learner.save_freq}, but with placement {learner.placement}, "
            "copies in RUN/ckpt are only written for an algorithm with make_model, and this one "
            "has make_algorithms; set it to -1"
        )
    if learner.eval_freq:
        raise ConfigError(
            f"learner.eval_freq: {learner.eval_freq}, but evaluations during training need "
            f"make_model in model.py, and make_algorithms makes {count} Algorithm(s); set "
            f"{describe_without_tests(experiment)}"
        )


def _make_collector(experiment: Experiment, plan: OnPolicy | Episodes) -> Collector:
    capacity = max(4 * plan.columns, plan.columns + 64, _OPEN_CAPACITY if plan.max_columns else 0)
    return make_collector(plan, capacity, _make_data_handler(experiment))


def make_offline_learner(
    experiment: Experiment, publisher: Publisher, files: Sequence[Recording]
) -> "LearnerLoop[Source]":
    """Loads TensorFlow, and makes the learner of a run that learns from recordings.

    Raises:
      ConfigError: the algorithm cannot learn from recordings, or its code cannot be loaded, or
        fails.
    """
    plan = require_plan(experiment)
    with without_native_stderr():
        from relaax_like.learn.recorded_files import RecordedFiles, RecordedSteps
        from relaax_like.learn.tally import Tally

    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    if hasattr(module, "make_data_handler"):
        raise ConfigError(
            f"{describe_function(module.make_data_handler)}: make_data_handler changes what agents "
            "collect, but a run that learns from files (learner.offline) has no agents; remove the "
            "function"
        )
    policy, model = _make_policy(experiment, plan)
    seed = derive_seed(experiment.algorithm.seed, "learn")
    tally = Tally()
    spaces = experiment.algorithm.action_spaces
    source: Source
    if isinstance(plan, Offline) and plan.updates_at_once is not None:
        source = RecordedSteps(files, tally, model, spaces, plan, seed)
    else:
        source = RecordedFiles(files, tally, model, spaces, seed)
    return _make_publishing_loop(experiment, source, policy, publisher, tally)


def _make_policy(experiment: Experiment, plan: LearningPlan) -> tuple["LearningPolicy", Any]:
    """Returns the policy to update, and its model."""
    from relaax_like.learn.learning_policy import LearningPolicy

    compiled, model = make_compiled_updates(experiment)
    seed = derive_seed(experiment.algorithm.seed, "learn")
    return LearningPolicy(compiled, plan, seed, experiment.run_dir), model


def _make_publishing_loop(
    experiment: Experiment,
    source: Any,
    policy: "LearningPolicy",
    publisher: Publisher,
    tally: "Tally",
    name: str = "",
) -> Any:
    from relaax_like.learn.learner_loop import LearnerLoop
    from relaax_like.learn.publishing import Publishing

    learner = _make_base_learner(experiment, publisher.metrics())
    learner.policy = policy
    if experiment.learner.eval_freq:
        _add_tests(experiment, learner, policy, publisher)
    sink = Publishing(publisher, policy, tally, policy.lock)
    return LearnerLoop(
        source,
        learner,
        sink,
        publisher.metrics(),
        curves=f"Optimizer/{name}" if name else "Optimizer",
        records_times=not name,  # each Algorithm has a part of the steps
    )


def validate_recordings(
    experiment: Experiment, files: Sequence[Recording], spaces: RunSpaces | None = None
) -> None:
    """Reads all recordings that a run will learn from, and compares them with its settings.

    Values outside of their boxes are reported.

    Args:
      experiment: the settings.
      files: the recordings.
      spaces: of the recordings; None: not known.

    Raises:
      ConfigError: a recording does not fit the settings (see `validate_files`); the algorithm
        cannot learn from recordings, or its model cannot be built; or it mixes the recordings, and
        they do not fit into memory.
    """
    plan = require_plan(experiment)
    assert not isinstance(plan, Replay), "it does not learn from files"
    with without_native_stderr():
        from relaax_like.learn.recorded_files import validate_files

    size = sum(file.bytes for file in files)
    logger.info("checking %d recordings, %.1f MB", len(files), size / 1e6)
    if isinstance(plan, Offline) and plan.updates_at_once is not None:
        _validate_memory(size * experiment.algorithm.observation_history)
    actions = experiment.algorithm.action_spaces
    try:
        steps = validate_files(files, make_model(experiment), actions, plan, spaces)
    except InvalidInputError as error:
        raise ConfigError(f"learner.offline: {error}") from error
    passes = experiment.algorithm.max_global_step / max(steps, 1)
    logger.info("%s recorded steps: the budget is %.3g passes over them", f"{steps:,}", passes)


def _validate_memory(size: int) -> None:
    """Refuses recordings that do not fit into memory, for a plan that mixes the steps of all.

    Args:
      size: bytes of all steps; while they are joined, twice as many are needed.

    Raises:
      ConfigError: the recordings do not fit; the error names the needed and the available memory.
    """
    available = read_available_bytes()
    if available is not None and 2 * size > available:
        raise ConfigError(
            f"learner.offline: this algorithm keeps all recordings in memory, which takes up to "
            f"{2e-9 * size:.2f} GB of memory, but only {1e-9 * available:.2f} GB are available; "
            "name fewer or smaller recordings, or free memory"
        )


def require_plan(experiment: Experiment) -> LearningPlan:
    """Returns the plan by which a folder with one Algorithm makes its own updates.

    Raises:
      ConfigError: the folder has several Algorithms; or see `require_plans`.
    """
    plans = require_plans(experiment)
    if isinstance(get_plan(experiment.algorithm), Mapping):
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: plan is by name ({', '.join(plans)}), but learner.offline needs one plan; "
            "learn from live environments (learner.offline: null), or return one plan and define "
            "make_model in model.py"
        )
    return plans[ONLY_NAME]


def require_plans(experiment: Experiment) -> dict[str, LearningPlan]:
    """Returns the plan by which each Algorithm of a folder makes its own updates.

    Returns:
      Name -> plan; if there is only one, `ONLY_NAME` -> plan.

    Raises:
      ConfigError: the algorithm declares no plan, its plan and `make_model` disagree about the
        number of Algorithms, or `model.py` cannot be loaded.
    """
    plan = get_plan(experiment.algorithm)
    # The line is only looked for if it is wrong: several threads cannot use Python 3.11's parser.
    has_one = load_model_module(experiment) is not None
    if plan is not None and not isinstance(plan, Mapping) and not has_one:
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: plan is {name_plan(plan)}, the plan of one Algorithm, but there is no "
            "make_model in model.py; return a mapping from name to plan, or define make_model"
        )
    if isinstance(plan, Mapping) and has_one:
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: plan is by name ({', '.join(plan)}), but make_model in model.py makes one "
            "Algorithm; return one plan, or define make_algorithms in algorithm.py instead"
        )
    plans = dict(plan) if isinstance(plan, Mapping) else {ONLY_NAME: plan}
    found = {name: one for name, one in plans.items() if isinstance(one, LearningPlan)}
    if found.keys() != plans.keys():
        raise ConfigError(
            f"learner.placement: {experiment.learner.placement}, but the algorithm "
            f"{experiment.algorithm_folder.name} declares no plan, by which a learner there makes "
            "its updates; set it to agent"
        )
    return found


def make_compiled_updates(experiment: Experiment) -> tuple["CompiledUpdates", Any]:
    """Loads TensorFlow, and returns what makes an algorithm's updates, and its model.

    Args:
      experiment: of a folder with one Algorithm, and a plan.

    Raises:
      ConfigError: the folder's code cannot be loaded, or fails; or its algorithm overrides
        `predict` or `exploit`.
    """
    with without_native_stderr():
        from relaax_like.learn.updates import CompiledUpdates

    model = make_model(experiment)
    algorithm = make_algorithm(experiment, model, derive_seed(experiment.algorithm.seed, "learn"))
    _refuse_own_predict(algorithm)
    with locate_errors(experiment.algorithm_folder):  # methods of the model are called
        return CompiledUpdates(algorithm, experiment.optimizers), model


def make_updates_by_name(experiment: Experiment) -> dict[str, tuple["CompiledUpdates", Any]]:
    """Loads TensorFlow, and returns, by name, what makes the updates, and its model.

    Args:
      experiment: of a folder with a plan for each Algorithm.

    Raises:
      ConfigError: see `require_plans` and `make_compiled_updates`; or the folder has several
        Algorithms, and two Models share variables, they are not those of the plans, or something
        else only works with one Algorithm.
    """
    plans = require_plans(experiment)
    config, folder = experiment.algorithm, experiment.algorithm_folder
    if not isinstance(get_plan(config), Mapping):
        return {ONLY_NAME: make_compiled_updates(experiment)}
    with without_native_stderr():
        from relaax_like.learn.named_algorithms import NamedAlgorithms
        from relaax_like.learn.updates import CompiledUpdates

        module = load_algorithm_module(folder, "algorithm")
    make_algorithms = get_make_algorithms(module)
    with locate_errors(folder):
        named = NamedAlgorithms(make_algorithms(config, derive_seed(config.seed, "learn")))
    _refuse_for_several(experiment, module, len(named.algorithms))
    _validate_names(experiment, plans, named.algorithms)
    named.validate_sharing(describe_function(make_algorithms))
    made: dict[str, tuple[CompiledUpdates, Any]] = {}
    for name, algorithm in named.algorithms.items():
        _refuse_own_predict(algorithm)
        sharing = named.sharing[name]
        other = made[sharing[0]][0] if sharing[0] in made else None
        with locate_errors(folder):
            optimizers = _choose_optimizers(experiment, sharing, algorithm.model)
            others_train = named.find_groups_of_others(name)
            compiled = CompiledUpdates(algorithm, optimizers, name, other, others_train)
            made[name] = compiled, algorithm.model
    return made


def _refuse_beside_agents(experiment: Experiment, algorithm: Any, name: str) -> None:
    """Refuses what learners beside their agents do not support.

    Raises:
      ConfigError: the error names the line.
    """
    _refuse_own_predict(algorithm)
    method = experiment.parameter_server.combine.method
    if algorithm.phases and method == "avg":
        place = describe_attribute(algorithm, "phases")
        raise ConfigError(
            f"{place}: phases require the values that the previous phases computed, but "
            "relaax-parameter-server.combine.method: avg holds gradients back; set it to fifo"
        )
    plan = get_own_plan(experiment.algorithm, name)
    if (
        method not in ("fifo", "sync")
        and isinstance(plan, OnPolicy)
        and (plan.epochs > 1 or plan.batch_size)
    ):
        place = describe_place(type(experiment.algorithm), "plan")
        raise ConfigError(
            f"{place}: plan makes several updates of each iteration, each from the values of the "
            f"previous one, but relaax-parameter-server.combine.method: {method} changes or holds "
            "back gradients; set it to fifo, or learner.placement to server"
        )


def _refuse_own_predict(algorithm: Any) -> None:
    """Refuses an algorithm that overrides `predict` or `exploit`, which its agents do not call.

    Raises:
      ConfigError: it overrides one; the error names the line.
    """
    from relaax_like.algorithm import FlareAlgorithm

    for name in ("predict", "exploit"):
        own = getattr(type(algorithm), name, None)
        if own is not None and own is not getattr(FlareAlgorithm, name):
            raise ConfigError(
                f"{describe_place(type(algorithm), name)}: {name} is overridden, but batch-native "
                "agents act by Model.policy; remove the override and do the same in Model.policy "
                "(only a plain Agent, which does not derive from BatchAgent, can use "
                f"{name}: with agent.py and learner.placement: agent)"
            )


def _make_data_handler(experiment: Experiment) -> DataHandler | None:
    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    make = getattr(module, "make_data_handler", None)
    with locate_errors(experiment.algorithm_folder):
        return None if make is None else make(experiment.algorithm)


def _make_trajectory_writer(experiment: Experiment, client_id: str = "") -> TrajectoryWriter | None:
    """Returns the writer of a learner's trajectories; None: they are not written."""
    config = experiment.learner
    if not config.collect_traj:
        return None
    return TrajectoryWriter(
        experiment.run_dir / TRAJECTORY_FOLDER, 1e6 * config.collect_traj_max_mb, client_id
    )


def _make_base_learner(experiment: Experiment, metrics: Metrics | None = None) -> "BaseLearner":
    from relaax_like.learn.base_learner import BaseLearner

    hooks = make_base_learner_config({"hook": _make_hooks(experiment.learner)})
    return BaseLearner(hooks, exp_dir=experiment.run_dir, metrics=metrics)


def _make_hooked_learner(experiment: Experiment, metrics: Metrics) -> "BaseLearner":
    """Makes the `BaseLearner` that calls the hooks of a learner beside its agents.

    Raises:
      ConfigError: a hook writes or loads checkpoints, which the parameter server does.
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
    """Refuses hooks and trajectory files, for a run without the one learner that supports them.

    Args:
      experiment: of the run.
      what: which learner supports them, and why the run does not have it, for the error.

    Raises:
      ConfigError: `learner.hook` or `learner.collect_traj` is set.
    """
    if experiment.learner.hook:
        name = next(iter(experiment.learner.hook))
        raise ConfigError(
            f"learner.hook.{name}: hooks are called by {what}; set learner.hook to {{}}"
        )
    if experiment.learner.collect_traj:
        raise ConfigError(f"learner.collect_traj: files are written by {what}; set it to false")


def _make_hooks(config: LearnerConfig) -> dict[str, Any]:
    """Returns the learner's hooks; those of the YAML file come last."""
    in_learner = config.save_freq > 0 and config.publishes
    save_freq = config.save_freq if in_learner else None
    return {**NO_HOOKS, "save_ckpt_after_iter": save_freq, **config.hook}


def _add_tests(experiment: Experiment, base: Any, policy: Any, publisher: Publisher) -> None:
    config = experiment.learner
    require_environment(experiment)
    tester = OnlineTester(experiment, publisher.is_stopping)
    base.register_hook(TestHook(tester, policy, publisher, config.eval_freq, config.num_eval_eps))
    base.register_hook(CloseHook(tester))
