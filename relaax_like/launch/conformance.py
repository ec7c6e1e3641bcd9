"""Conformance: the requirements on every algorithm folder, checked on the folder itself.

    for result in check_algorithm(find_folder_experiment("my_algorithm")):
        print(result.outcome, result.name, result.reason)

Only a temporary folder is written to. `relaax check-algorithm` prints the results.
"""

import contextlib
import functools
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.client.interactor import Interactor
from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment, LearnerConfig
from relaax_like.config.optimizer import OptimizerConfig, choose_optimizer
from relaax_like.config.places import describe_error, describe_place
from relaax_like.config.plan import (
    Episodes,
    LearningPlan,
    Offline,
    OnPolicy,
    Replay,
    get_plan,
    has_fixed_size,
    name_plan,
)
from relaax_like.core.manifest import TRAINABLE, find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.algorithm_code import load_model_module, make_model
from relaax_like.launch.bandit import EPISODE_STEPS, BanditSlots
from relaax_like.launch.base_trainer import BaseTrainer
from relaax_like.launch.local import ask_environment, open_slots
from relaax_like.learn.tally import Tally
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.supervision.process import Shutdown, without_native_stderr
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.spaces import (
    ACTION,
    OBSERVATION,
)

if TYPE_CHECKING:  # They import TensorFlow.
    from relaax_like.algorithm.acting import Actor
    from relaax_like.learn.learning_policy import LearningPolicy
    from relaax_like.learn.replayed import ReplayIteration

Outcome = Literal["passed", "failed", "not applicable"]

# An experiment of the folder: the task that its algorithm must learn in time.
TASK_NAME = "check.yaml"
LEARN_SEC = 30.0
_SLOTS, _OPEN_COLUMNS, _OPEN_STEPS = 5, 4, 8
# Slots of the bandit, and the fraction of its best return that must be reached.
_BANDIT_SLOTS, _BANDIT_EPISODES, _PASSES_AT = 8, 100, 0.8
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6
# Number of rows that are not valid at the end of each column.
_PADDING = 3
# Tolerance between two compiled forms of an update in single precision, relative to the change.
_UPDATE_TOLERANCE = 1e-3
_KEEP = "keep all that an update changes in the model's variables, as nothing else is saved"


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
      name: of the check.
      outcome: whether the folder passes it.
      reason: why it fails, or why the check does not apply; "" if it passed.
      seconds: duration of the check.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


class _NotApplicable(Exception):
    """A check does not apply to this folder; the text says why."""


class _Failed(Exception):
    """The folder fails a check; the text says why."""


def find_folder_experiment(name: str, sets: Sequence[str] = ()) -> Experiment:
    """Loads the experiment with which a folder is checked.

    Args:
      name: of a shipped algorithm, or the path of a folder or of an experiment's file. In a folder,
        the file is `check.yaml`, or the one named after the folder, or the only one.
      sets: overrides, "section.key=value".

    Raises:
      ConfigError: there is no such experiment, or it is not valid.
    """
    experiment = load_experiment(_find_file(name), sets)
    return ask_environment(experiment)[0]


def _find_file(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    folder = path if "/" in name or path.is_dir() else find_algorithm(name, Path())
    if not folder.is_dir():
        raise ConfigError(f"{name}: no such folder; expected an algorithm's folder, or its name")
    for file in (folder / TASK_NAME, folder / f"{folder.resolve().name}.yaml"):
        if file.is_file():
            return file
    files = sorted(folder.glob("*.yaml"))
    if len(files) != 1:
        raise ConfigError(
            f"{folder}: {len(files)} YAML files, none of which is named after the folder; pass "
            f"the file to check with, or add {TASK_NAME}"
        )
    return files[0]


def check_algorithm(
    experiment: Experiment, learn_sec: float = LEARN_SEC, only: Sequence[str] = ()
) -> Iterator[CheckResult]:
    """Checks an algorithm's folder; yields each result as soon as it is known.

    Args:
      experiment: names the folder, and the settings with which it is checked.
      learn_sec: longest time for the check that it learns.
      only: names of the checks to run; (): all.

    Raises:
      ConfigError: there is no check with such a name.
    """
    with without_native_stderr():
        import relaax_like.nn.runtime  # noqa: F401  # TensorFlow greets
    subject = _Subject(experiment)
    checks: dict[str, Callable[[_Subject], None]] = {
        "specs": _check_specs,
        "numpy equals tensorflow": _check_numpy,
        "together equals alone": _check_batches,
        "padding changes nothing": _check_padding,
        "resume": _check_resume,
        "placements agree": _check_placements,
        "declarations": _check_declarations,
        "export": _check_export,
        "learns": lambda subject: _check_learning(subject, learn_sec),
    }
    if unknown := [name for name in only if name not in checks]:
        raise ConfigError(f"unknown check {unknown[0]!r} (known: {', '.join(checks)})")
    for name, check in checks.items():
        if not only or name in only:
            yield _try(name, check, subject)


def _try(name: str, check: "Callable[[_Subject], None]", subject: "_Subject") -> CheckResult:
    began = time.perf_counter()
    outcome: Outcome = "passed"
    reason = ""
    try:
        check(subject)
    except _NotApplicable as why:
        outcome, reason = "not applicable", str(why)
    except (_Failed, RelaaxError) as why:
        outcome, reason = "failed", str(why)
    except Exception as error:  # of the folder's code
        logging.getLogger(__name__).debug("the traceback", exc_info=error)
        outcome, reason = "failed", describe_error(error, subject.folder, str(subject.folder))
    return CheckResult(name, outcome, reason, time.perf_counter() - began)


class _Subject:
    """Makes a folder's parts for each check separately, with the same values each time.

    Only `learned` is shared, because tracing an update is slow.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.folder = experiment.algorithm_folder
        self.config = experiment.algorithm

    def make_model(self) -> Any:
        if load_model_module(self.experiment) is None:
            raise _NotApplicable("there is no make_model in model.py, so its agents act themselves")
        with without_native_stderr():
            return make_model(self.experiment)

    def make_algorithm(self, xla: bool = False) -> Any:
        """Makes the algorithm; compiling without XLA takes a tenth of the time."""
        model = self.make_model()
        model.xla = xla and model.xla
        if not (self.folder / "algorithm.py").is_file():
            raise _NotApplicable("there is no algorithm.py, so its agents learn by themselves")
        module = load_algorithm_module(self.folder, "algorithm")
        if not hasattr(module, "make_algorithm"):
            raise _NotApplicable("there is no make_algorithm in algorithm.py")
        return module.make_algorithm(self.config, model, self.config.seed)

    @property
    def plan(self) -> LearningPlan:
        plan = get_plan(self.config)
        if isinstance(plan, LearningPlan):
            return plan
        what = "no plan" if plan is None else f"the plan {name_plan(plan)}"
        raise _NotApplicable(f"its Config has {what}, so its agents learn by themselves")

    def make_actor(self, model: Any) -> "Actor":
        from relaax_like.algorithm.acting import make_actor

        return make_actor(model, 0, self.config)

    def draw(self, specs: Sequence[tuple[str, Mapping[str, Any]]], *axes: int, seed: int) -> Any:
        """Draws arrays by name, `[*axes, ...]`."""
        random = np.random.default_rng(seed)
        return {name: _draw(random, (*axes, *p["shape"]), p) for name, p in specs}

    def make_data(self, model: Any, seed: int, padding: int = 0) -> Any:
        """Returns an iteration of the plan: actions of the initial policy for random observations.

        Args:
          model: determines the specs.
          seed: for observations, rewards and the ends of episodes.
          padding: number of rows at the end of each column that are not valid.
        """
        from relaax_like.algorithm.model import get_learning_specs, get_reward_columns

        steps, columns = self._find_size()
        specs = get_learning_specs(model)
        inputs = self.draw(specs, steps + padding + 1, columns, seed=seed)
        actor = self.make_actor(model)
        states = _make_zeros(model.get_state_specs(), columns)
        actions: dict[str, list[np.ndarray]] = {}
        log_probs = []
        random = np.random.default_rng(seed)
        alive = random.choice([1.0, 1.0, 1.0, 0.0, -1.0], (steps + padding, columns))
        alive = alive.astype(np.float32)
        if isinstance(self.plan, Episodes):
            alive[:] = 1.0
            alive[steps - 1] = 0.0
        first, memory = dict(states), states
        for step in range(steps + padding):
            seen = {name: inputs[name][step] for name, _ in model.get_input_specs()}
            prediction = actor.act(seen, memory)
            for name, action in prediction.actions.items():
                actions.setdefault(name, []).append(np.asarray(action))
            log_probs.append(np.asarray(prediction.log_prob, np.float32))
            goes_on = alive[step] > 0
            memory = {
                name: np.where(_widen(goes_on, array.ndim), array, 0).astype(array.dtype)
                for name, array in prediction.next_states.items()
            }
        width = max(part.stop for part in get_reward_columns(model).values())
        valid = None
        if padding:
            valid = np.ones(alive.shape, np.bool_)
            valid[steps:] = False
        rollout = Rollout(
            inputs={name: array[:-1] for name, array in inputs.items()},
            next_inputs={name: array[1:] for name, array in inputs.items()},
            next_alive=alive,
            rewards=random.standard_normal((*alive.shape, width)).astype(np.float32),
            actions={name: np.stack(all_) for name, all_ in actions.items()},
            log_prob=np.stack(log_probs),
            states=first,
            versions=np.zeros(len(alive), np.int64),
            valid=valid,
        )
        if isinstance(self.plan, Replay):
            return self._replay(model, self.plan, rollout)
        keys = np.stack([np.ones(columns, np.int64), np.arange(columns)], 1)
        return TrainingData(
            rollout=rollout, tickets=(1,), env_steps=rollout.env_steps, mean_version=0.0, keys=keys
        )

    def _replay(self, model: Any, plan: Replay, rollout: Rollout) -> "ReplayIteration":
        """Returns minibatches of a rollout's steps."""
        from relaax_like.learn.replayed import ReplayIteration, make_table

        number = rollout.next_alive.size
        plan = replace(plan, capacity=4 * number, warm_up_steps=0, updates_per_step=1.0)
        agents = np.arange(rollout.slots, dtype=np.int64)
        starts = np.stack([agents, np.zeros_like(agents), np.zeros_like(agents)], 1)
        table = make_table(plan, model, {}, number, 0)
        table.insert(replace(rollout, starts=starts))
        minibatches = table.sample(plan.updates_at_once, timeout_sec=0.0)
        assert minibatches is not None, "there are enough steps"
        return ReplayIteration(minibatches, number, (1,), 0.0)

    def _find_size(self) -> tuple[int, int]:
        plan = self.plan
        if isinstance(plan, Replay):
            needed = 2 * plan.minibatch_size * plan.updates_at_once + plan.n_step
            return _OPEN_STEPS, -(-needed // _OPEN_STEPS) + _OPEN_COLUMNS
        if isinstance(plan, Offline):
            needed = plan.minibatch_size
            if plan.minibatch_of == "rollouts":
                return _OPEN_STEPS, 2 * needed
            return _OPEN_STEPS, -(-2 * needed // _OPEN_STEPS)
        columns = plan.columns if has_fixed_size(plan) else max(plan.columns, _OPEN_COLUMNS)
        return plan.rollout_steps, columns

    def make_learning(
        self, optimizers: Mapping[str, OptimizerConfig], plan: Any = None, xla: bool = False
    ) -> "LearningPolicy":
        """Returns complete updates of a new algorithm, with its own plan or another one."""
        from relaax_like.learn.learning_policy import LearningPolicy
        from relaax_like.learn.updates import LearningTask

        task = LearningTask(self.make_algorithm(xla), optimizers)
        plan = plan or self.plan
        if isinstance(plan, Replay):
            from relaax_like.learn.replay_policy import ReplayPolicy

            return ReplayPolicy(task, plan, seed=7)
        return LearningPolicy(task, plan, seed=7)

    @functools.cached_property
    def learned(self) -> "LearningPolicy":
        """Complete updates with the folder's optimizers, after two or more iterations."""
        policy = self.make_learning(self.optimizers, xla=self.compiles)
        model = self.make_model()
        for seed in (6, 7):
            policy.forward(policy.data_preprocess(self.make_data(model, seed)))
        return policy

    @property
    def compiles(self) -> bool:
        """Whether complete updates are also compiled with XLA, as no training check does it."""
        is_offline = isinstance(get_plan(self.config), Offline)
        return is_offline or self.experiment.learner.placement == "agent"

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """The optimizer of each variable group."""
        from relaax_like.algorithm.model import get_groups

        own = self.experiment.optimizers
        return {group: own[choose_optimizer(group, own)] for group in get_groups(self.make_model())}


# The checks.


def _check_specs(subject: _Subject) -> None:
    """Checks that the policy matches the specs, and each variable group has an optimizer."""
    model = subject.make_model()
    inputs = subject.draw(model.get_input_specs(), _SLOTS, seed=0)
    states = _make_zeros(model.get_state_specs(), _SLOTS)
    prediction = subject.make_actor(model).act(inputs, states)
    for what, specs, arrays in (
        ("action", model.get_action_specs(), prediction.actions),
        ("state", model.get_state_specs(), prediction.next_states),
    ):
        expected = {name: (_SLOTS, *properties["shape"]) for name, properties in specs}
        found = {name: np.shape(array) for name, array in arrays.items()}
        if found != expected:
            place = describe_place(type(model), "policy")
            raise _Failed(
                f"{place}: {what}s of {_SLOTS} rows have the shapes {found}; expected {expected}, "
                f"as in get_{what}_specs"
            )
    _ = subject.optimizers
    if get_plan(subject.config) is not None:
        algorithm = subject.make_algorithm()
        if not algorithm.trained_groups:
            raise _Failed(
                f"{subject.folder}: all variable groups are frozen, so nothing is learned; remove "
                "one from frozen"
            )


def _check_numpy(subject: _Subject) -> None:
    """Checks that the policy is the same function in NumPy and in TensorFlow."""
    from relaax_like.algorithm.acting import NumpyActor
    from relaax_like.nn.runtime import tf

    model = subject.make_model()
    actor = subject.make_actor(model)
    if not isinstance(actor, NumpyActor):
        raise _NotApplicable("the model does not act in NumPy; it is compiled by TensorFlow")
    inputs = subject.draw(model.get_input_specs(), _SLOTS, seed=1)
    states = subject.draw(model.get_state_specs(), _SLOTS, seed=2)
    explore = actor._exploration.compute(0, _SLOTS, None) if actor._exploration.names else None
    actor.act(inputs, states)  # binds the values
    arguments = [] if explore is None else [explore]
    distributions, memory = model.policy(inputs, states, *arguments)
    # The inputs' type determines which one computes; both have the initial values.
    other = subject.make_model()
    tensors = [
        {name: tf.constant(array) for name, array in part.items()}
        for part in (inputs, states, *arguments)
    ]
    others, other_memory = other.policy(*tensors)
    for name, distribution in distributions.items():
        for part, array in _find_arrays(distribution).items():
            _compare(f"{name}: {part}", array, _find_arrays(others[name])[part])
    for name, array in memory.items():
        _compare(f"memory {name}", array, other_memory[name])


def _check_batches(subject: _Subject) -> None:
    """Checks that a row has the same result by itself and together with others."""
    model = subject.make_model()
    actor = subject.make_actor(model)
    inputs = subject.draw(model.get_input_specs(), _SLOTS, seed=3)
    states = subject.draw(model.get_state_specs(), _SLOTS, seed=4)
    together = actor.act(inputs, states, exploit=True)
    for row in range(_SLOTS):
        own = [
            {name: array[row : row + 1] for name, array in part.items()}
            for part in (inputs, states)
        ]
        alone = actor.act(own[0], own[1], exploit=True)
        for what, all_, one in (
            ("action", together.actions, alone.actions),
            ("memory", together.next_states, alone.next_states),
        ):
            for name, array in all_.items():
                _compare(f"{what} {name} of row {row}", np.asarray(array)[row], one[name][0])


def _check_padding(subject: _Subject) -> None:
    """Checks that rows that are not valid change neither costs nor gradients."""
    if isinstance(subject.plan, Replay):
        raise _NotApplicable("the plan is Replay, whose minibatches have no padding")
    if isinstance(subject.plan, OnPolicy) and subject.plan.overlap:
        raise _NotApplicable("rollouts of a plan with overlap have no rows that are not valid")
    results = []
    padded = subject.make_data(subject.make_model(), 5, _PADDING)
    for data in (_cut_padding(padded), padded):
        policy = subject.make_learning(_make_plain(subject), _make_one_update(subject.plan))
        costs = policy.forward(policy.data_preprocess(data))
        results.append((costs, policy.get_values()))
    (costs, values), (other_costs, other_values) = results
    start = [variable.value for variable in _get_variables(subject.make_model())]
    for name, number in costs.items():
        if not np.isclose(number, other_costs[name], rtol=1e-4, atol=1e-5):
            raise _Failed(
                f"{subject.folder}: {name} is {number:g}, but {other_costs[name]:g} with "
                "additional rows that are not valid; use batch.mean instead of a mean of all rows"
            )
    _compare_changes(subject, start, values, other_values, "with rows that are not valid")


def _check_resume(subject: _Subject) -> None:
    """Checks that an update after a restored state is bit-identical to one without interruption."""
    first = subject.learned
    second = subject.make_learning(subject.optimizers, xla=subject.compiles)
    second.load_state_dict(first.state_dict())
    second.set_sums(first.get_sums())
    data = subject.make_data(subject.make_model(), 8)
    results = [policy.forward(policy.data_preprocess(data)) for policy in (first, second)]
    if results[0] != results[1]:
        raise _Failed(
            f"{subject.folder}: costs after a resume are {results[1]}, not {results[0]}; {_KEEP}"
        )
    restored = second.state_dict()
    for name, array in first.state_dict().items():
        if array.tobytes() != restored[name].tobytes():
            raise _Failed(
                f"{subject.folder}: {name} differs after a resume and one more update; {_KEEP}"
            )


def _check_placements(subject: _Subject) -> None:
    """Checks that gradients pushed to a parameter server have the same result as full updates."""
    from relaax_like.learn.gradient_policy import GradientPolicy
    from relaax_like.learn.gradients import GradientTask
    from relaax_like.learn.pushing import Pushing

    plan = subject.plan
    if isinstance(plan, Offline | Replay):
        raise _NotApplicable(f"the plan is {name_plan(plan)}, whose iterations are not rollouts")
    optimizers = _make_plain(subject)
    whole = subject.make_learning(optimizers)
    algorithm = subject.make_algorithm()
    variables = _get_variables(algorithm.model)
    manifest = make_manifest(variables)
    start = [variable.value for variable in variables]
    store = Store(manifest, manifest.pack(start), optimizers, find_follows(variables))
    tally = Tally()
    with (
        ParameterServer(store, metrics=NullMetrics()) as server,
        InProcessClient(server, "check") as client,
    ):
        task = GradientTask(algorithm)
        sink = Pushing(client, task, tally)
        policy = GradientPolicy(task, plan, 7, sink)
        sink.load()
        model = subject.make_model()
        for seed in (9, 10):
            data = subject.make_data(model, seed)
            wanted = whole.forward(whole.data_preprocess(data))
            tally.add(data.env_steps)
            found = policy.forward(policy.data_preprocess(data))
            task.set_values(sink.values)
            for name, number in wanted.items():
                if not np.isclose(number, found[name], rtol=1e-3, atol=1e-4):
                    raise _Failed(
                        f"{subject.folder}: {name} is {number:g} with placement server, but "
                        f"{found[name]:g} with placement agent; compute costs only from the batch, "
                        "the model's variables and self.random"
                    )
        _compare_changes(subject, start, whole.get_values(), list(sink.values), "beside agents")


def _check_declarations(subject: _Subject) -> None:
    """Checks that an update changes every variable group except frozen ones."""
    algorithm = subject.make_algorithm()
    model = algorithm.model
    policy = subject.learned
    rounds = max((phase.every for phase in algorithm.phases), default=1)
    for seed in range(rounds - 2):
        policy.forward(policy.data_preprocess(subject.make_data(model, 11 + seed)))
    variables = _get_variables(model)
    changed: dict[str, bool] = {}
    for variable, value in zip(variables, policy.get_values(), strict=True):
        if variable.kind == TRAINABLE:
            moved = changed.get(variable.group, False) or bool((value != variable.value).any())
            changed[variable.group] = moved
    for group, moved in changed.items():
        if moved == (group in algorithm.frozen):
            place = describe_place(type(algorithm), "frozen" if moved else "learn")
            what = (
                "is frozen, but an update has changed it; remove it from frozen"
                if moved
                else "has not changed in any update; return a cost for it that depends on its "
                "variables, or list it in frozen"
            )
            raise _Failed(f"{place}: the variable group {group!r} {what}")


def _check_export(subject: _Subject) -> None:
    """Checks that the exported policy computes the same as agents."""
    from relaax_like.launch.export import import_libraries, write_compared

    model = subject.make_model()
    try:
        with without_native_stderr():
            import_libraries()
    except ModuleNotFoundError as error:
        raise _NotApplicable(
            f"{error.name} is not installed; pip install 'relaax_like[export]'"
        ) from None
    from relaax_like.algorithm.greedy import GreedyPolicy

    values = [variable.value for variable in _get_variables(model)]
    actor = subject.make_actor(model)
    actor.set_values(values, 0)
    policy = GreedyPolicy(model, values, subject.config)
    inputs = policy.make_random_inputs(100, 12)
    with tempfile.TemporaryDirectory() as folder, without_native_stderr():
        wanted = policy.run_actor(actor, inputs)
        write_compared(policy, Path(folder) / "export", {}, inputs, wanted)


def _check_learning(subject: _Subject, learn_sec: float) -> None:
    """Checks that it learns a contextual bandit with its own spaces, or the task of check.yaml."""
    experiment = subject.experiment
    if isinstance(get_plan(experiment.algorithm), Offline):
        raise _NotApplicable("the plan is Offline, so it does not play")
    own_task = experiment.file.name == TASK_NAME and experiment.environment is not None
    make_slots: Callable[[], Any] | None = None
    if own_task:
        if experiment.learner.target_return is None:
            raise ConfigError(
                f"{experiment.file}: learner.target_return is missing; set it to the mean return "
                f"that the task must reach within {learn_sec:g} s"
            )
        learner = experiment.learner
    else:
        observations, actions = _find_spaces(subject.config)
        make_slots = lambda: BanditSlots(observations, actions, _BANDIT_SLOTS, 0)  # noqa: E731
        learner = LearnerConfig(
            placement=experiment.learner.placement,
            max_rollouts_ahead=experiment.learner.max_rollouts_ahead,
            target_return=_PASSES_AT * EPISODE_STEPS,
            target_episodes=_BANDIT_EPISODES,
        )
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        settings = experiment.parameter_server.model_copy(
            update={
                "checkpoint_dir": run_dir / "checkpoints",
                "metrics_dir": run_dir / "metrics",
                "mirror_url": None,
                "progress_interval_sec": 1e9,
            }
        )
        trainer = _TaskTrainer(
            replace(experiment, run_dir=run_dir, learner=learner, parameter_server=settings),
            make_slots,
            learn_sec,
        )
        with _quiet():
            trainer.run(Shutdown())
        status = trainer.status
    assert status is not None
    if "reached the target" not in status.finished:
        mean = "no episode" if status.mean_return is None else f"{status.mean_return:.3g}"
        raise _Failed(
            f"{subject.folder}: after {learn_sec:g} s and {status.global_t:,} steps the mean "
            f"return is {mean}, expected {learner.target_return:g} or more; choose other "
            f"settings with --set, or define a task in {TASK_NAME}"
        )


class _TaskTrainer(BaseTrainer):
    """Trains on environments in this process for a limited time."""

    def __init__(
        self, experiment: Experiment, make_slots: Callable[[], Any] | None, learn_sec: float
    ):
        super().__init__(experiment)
        self._make_slots = make_slots
        self._learn_sec = learn_sec

    def train(self, server: ParameterServer, stop: threading.Event) -> None:

        over = threading.Event()
        with contextlib.ExitStack() as ends:
            if self._make_slots is None:
                slots: Any = ends.enter_context(open_slots(self.experiment, "train"))
            else:
                slots = self._make_slots()
            agents = self.make_agents(slots, server, over)
            ends.callback(agents.close)
            timer = threading.Timer(self._learn_sec, over.set)
            timer.daemon = True
            timer.start()
            ends.callback(timer.cancel)
            Interactor(slots, agents, stop=over).run()


def _find_spaces(config: AlgorithmConfig) -> tuple[Any, Any]:
    """Returns the spaces of observations and actions that the folder's settings define."""
    found: list[Any] = []
    for name, spaces in (
        (OBSERVATION, config.observation_spaces),
        (ACTION, config.action_spaces),
    ):
        if not spaces:
            raise _NotApplicable(
                f"its Config has no {name}_spaces, so the environment is not known; define them, "
                f"or a task in {TASK_NAME}"
            )
        found.append(spaces[name] if spaces.keys() == {name} else spaces)
    return found[0], found[1]


# Helpers.


def _cut_padding(data: TrainingData) -> TrainingData:
    """Returns the iteration without the rows at its end that are not valid."""
    rollout = data.rollout

    def cut(arrays: Any) -> Any:
        if isinstance(arrays, Mapping):
            return {name: cut(array) for name, array in arrays.items()}
        return arrays[:-_PADDING]

    names = ("inputs", "next_inputs", "next_alive", "rewards", "actions", "log_prob", "versions")
    parts = {name: cut(getattr(rollout, name)) for name in names}
    return replace(data, rollout=replace(rollout, **parts, valid=None))


def _make_one_update(plan: Any) -> Any:
    """Returns a plan with one update per iteration, on all of it."""
    if isinstance(plan, OnPolicy):
        return replace(plan, minibatch_size=0, epochs=1)
    return plan


def _make_plain(subject: _Subject) -> dict[str, OptimizerConfig]:
    """Returns plain gradient descent for each group: its steps are as accurate as gradients."""
    return dict.fromkeys(subject.optimizers, OptimizerConfig(name="sgd", learning_rate=0.01))


def _get_variables(model: Any) -> Any:
    from relaax_like.algorithm.model import get_variables

    return get_variables(model)


def _compare_changes(
    subject: _Subject,
    start: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    where: str,
) -> None:
    """Compares the changes of two updates, for each variable relative to its change."""
    variables = _get_variables(subject.make_model())
    for variable, before, one, other in zip(variables, start, values, others, strict=True):
        change = np.linalg.norm((one - before).astype(np.float64))
        difference = np.linalg.norm((one - other).astype(np.float64))
        if difference > _UPDATE_TOLERANCE * change + 1e-5:
            raise _Failed(
                f"{subject.folder}: {variable.name} changes by {change:.3g} in an update, but the "
                f"change {where} differs by {difference:.3g}; expected the same change"
            )


def _compare(what: str, one: Any, other: Any) -> None:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        raise _Failed(
            f"{what}: shapes {list(one.shape)} and {list(other.shape)}, expected the same"
        )
    if not np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True):
        difference = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
        raise _Failed(f"{what}: differs by {difference:.3g}, expected the same up to rounding")


def _find_arrays(distribution: Any) -> dict[str, Any]:
    """Returns the parameters of a distribution by name."""
    found = {}
    for name, value in vars(distribution).items():
        if hasattr(value, "shape") and np.ndim(value):
            found[name] = value
        elif type(value).__module__.startswith("relaax_like.nn"):
            found |= {f"{name}.{part}": array for part, array in _find_arrays(value).items()}
    return found


def _draw(random: np.random.Generator, shape: tuple[int, ...], properties: Any) -> np.ndarray:
    dtype = np.dtype(properties.get("dtype", "float32"))
    if dtype == np.uint8:
        return random.integers(256, size=shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return random.integers(2, size=shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _make_zeros(specs: Any, rows: int) -> dict[str, np.ndarray]:
    return {k: np.zeros((rows, *p["shape"]), p.get("dtype", "float32")) for k, p in specs}


def _widen(mask: np.ndarray, axes: int) -> np.ndarray:
    return mask.reshape(-1, *[1] * (axes - 1))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the log lines of a training run."""
    logger = logging.getLogger("relaax_like")
    before, logger.disabled = logger.level, False
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
