"""The checks of conformance without a training run.

Each raises `Failed` or `NotApplicable`, unless the folder passes.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.algorithm.acting import NumpyActor
from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.config.places import describe_attribute, describe_place
from relaax_like.config.plan import Offline, OnPolicy, Replay, get_plan, name_plan
from relaax_like.core.manifest import TRAINABLE, find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.experience.collector import TrainingData
from relaax_like.launch.algorithm_code import has_plain_agents, validate_steps
from relaax_like.launch.conformance_subject import Failed, NotApplicable, Subject, make_zeros
from relaax_like.learn.tally import Tally
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import ConfigError

_SLOTS = 5
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6
# Number of rows that are not valid at the end of each column.
_PADDING = 3
# Tolerance between two compiled forms of an update in single precision, relative to the change.
_UPDATE_TOLERANCE = 1e-3
_KEEP = (
    "keep all that an update changes in the model's variables, as nothing else is saved, and draw "
    "random numbers from self.random"
)
_VALID = (
    "compute costs from valid rows only: use batch.mean for means, and batch.valid for other "
    "computations over rows"
)
_FROM_BATCH = "compute costs only from the batch, the model's variables and self.random"


def check_specs(subject: Subject) -> None:
    """Checks that the policy matches the specs, and that the variable groups can be trained.

    Agents that learn by algorithm.py must have a plan, or a number of steps.
    Each group must have an optimizer and, with a plan, at least one must not be frozen.
    """
    model = subject.make_model()
    inputs = subject.draw(model.get_input_specs(), _SLOTS, seed=0)
    states = make_zeros(model.get_state_specs(), _SLOTS)
    prediction = subject.make_actor(model).act(inputs, states)
    for what, specs, arrays in (
        ("action", model.get_action_specs(), prediction.actions),
        ("state", model.get_state_specs(), prediction.next_states),
    ):
        expected = {name: (_SLOTS, *properties["shape"]) for name, properties in specs}
        found = {name: np.shape(array) for name, array in arrays.items()}
        if found != expected:
            place = describe_place(type(model), "policy")
            raise Failed(
                f"{place}: {what}s of {_SLOTS} rows have the shapes {found}; expected {expected}, "
                f"as in get_{what}_specs"
            )
    _ = subject.optimizers
    if not has_plain_agents(subject.experiment):
        validate_steps(subject.config)
    if get_plan(subject.config) is not None:
        algorithm = subject.make_algorithm()
        if not algorithm.trained_groups:
            what = "the model has no trainable variables, so nothing is learned; add a layer to it"
            if algorithm.frozen:
                what = (
                    f"frozen lists all variable groups ({', '.join(algorithm.frozen)}), so nothing "
                    "is learned; remove at least one of them"
                )
            raise Failed(f"{subject.folder}: {what}")


def check_numpy(subject: Subject) -> None:
    """Checks that the policy is the same function in NumPy and in TensorFlow."""
    from relaax_like.nn.runtime import tf

    model = subject.make_model()
    actor = subject.make_actor(model)
    if not isinstance(actor, NumpyActor):
        raise NotApplicable("the model does not act in NumPy; it is compiled by TensorFlow")
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
    where = "in NumPy", "in TensorFlow"
    cure = "use operations in Model.policy that compute the same from NumPy arrays and tensors"
    for name, distribution in distributions.items():
        for part, array in _find_arrays(distribution).items():
            found = _find_arrays(others[name])[part]
            _compare(f"{part} of action {name}", array, found, where, cure)
    for name, array in memory.items():
        _compare(f"memory {name}", array, other_memory[name], where, cure)


def check_batches(subject: Subject) -> None:
    """Checks that a row has the same result by itself and together with others."""
    model = subject.make_model()
    actor = subject.make_actor(model)
    inputs = subject.draw(model.get_input_specs(), _SLOTS, seed=3)
    states = subject.draw(model.get_state_specs(), _SLOTS, seed=4)
    together = actor.act(inputs, states, exploit=True)
    where = "together with other rows", "alone"
    cure = "compute each row of Model.policy from its own inputs and memory only"
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
                own_row = np.asarray(array)[row]
                _compare(f"{what} {name} of row {row}", own_row, one[name][0], where, cure)


def check_padding(subject: Subject) -> None:
    """Checks that rows that are not valid change neither costs nor gradients."""
    if isinstance(subject.plan, Replay):
        raise NotApplicable("the plan is Replay, whose minibatches have no padding")
    if isinstance(subject.plan, OnPolicy) and subject.plan.overlap:
        raise NotApplicable("rollouts of a plan with overlap have no rows that are not valid")
    results = []
    padded = subject.make_data(subject.make_model(), 5, _PADDING)
    for data in (_cut_padding(padded), padded):
        policy = subject.make_learning(_make_plain(subject), _make_one_update(subject.plan))
        costs = policy.forward(policy.data_preprocess(data))
        results.append((costs, policy.get_values()))
    (costs, values), (other_costs, other_values) = results
    start = [variable.value for variable in get_variables(subject.make_model())]
    for name, number in costs.items():
        if not np.isclose(number, other_costs[name], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise Failed(
                f"{subject.folder}: {name} is {number:g}, but {other_costs[name]:g} with "
                f"additional rows that are not valid; {_VALID}"
            )
    _compare_changes(subject, start, values, other_values, "with rows that are not valid", _VALID)


def check_resume(subject: Subject) -> None:
    """Checks that an update after a restored state is bit-identical to one without interruption."""
    first = subject.learned
    second = subject.make_learning(subject.optimizers, xla=subject.compiles)
    second.load_state_dict(first.state_dict())
    second.set_sums(first.get_sums())
    data = subject.make_data(subject.make_model(), 8)
    results = [policy.forward(policy.data_preprocess(data)) for policy in (first, second)]
    for name, number in results[0].items():
        if not np.array_equal(number, results[1][name], equal_nan=True):
            raise Failed(
                f"{subject.folder}: {name} is {float(results[1][name])!r} after a resume, expected "
                f"{float(number)!r} as without one; {_KEEP}"
            )
    restored = second.state_dict()
    for name, array in first.state_dict().items():
        if array.tobytes() != restored[name].tobytes():
            raise Failed(
                f"{subject.folder}: {name} differs after a resume and one more update; {_KEEP}"
            )


def check_placements(subject: Subject) -> None:
    """Checks that gradients pushed to a parameter server have the same result as full updates."""
    from relaax_like.learn.gradients import CompiledGradients
    from relaax_like.learn.pushing import Pushing

    plan = subject.plan
    if isinstance(plan, Offline | Replay):
        raise NotApplicable(f"the plan is {name_plan(plan)}, whose iterations are not rollouts")
    optimizers = _make_plain(subject)
    whole = subject.make_learning(optimizers)
    algorithm = subject.make_algorithm()
    variables = get_variables(algorithm.model)
    manifest = make_manifest(variables)
    start = [variable.value for variable in variables]
    store = Store(manifest, manifest.pack(start), optimizers, find_follows(variables))
    tally = Tally()
    with (
        ParameterServer(store, metrics=NullMetrics()) as server,
        InProcessClient(server, "check") as client,
    ):
        compiled = CompiledGradients(algorithm)
        policy = Pushing(client, compiled, tally, plan, 7)
        policy.load()
        model = subject.make_model()
        for seed in (9, 10):
            data = subject.make_data(model, seed)
            wanted = whole.forward(whole.data_preprocess(data))
            tally.add(data.env_steps)
            found = policy.forward(policy.data_preprocess(data))
            compiled.set_values(policy.values)
            for name, number in wanted.items():
                if not np.isclose(number, found[name], rtol=1e-3, atol=1e-4, equal_nan=True):
                    raise Failed(
                        f"{subject.folder}: {name} is {number:g} with placement server, but "
                        f"{found[name]:g} with placement agent; {_FROM_BATCH}"
                    )
        values, where = list(policy.values), "with placement agent"
        _compare_changes(subject, start, whole.get_values(), values, where, _FROM_BATCH)


def check_declarations(subject: Subject) -> None:
    """Checks that updates change every variable group except frozen ones."""
    algorithm = subject.make_algorithm()
    model = algorithm.model
    policy = subject.learned
    rounds = max((phase.every for phase in algorithm.phases), default=1)
    for seed in range(rounds - 2):
        policy.forward(policy.data_preprocess(subject.make_data(model, 11 + seed)))
    variables = get_variables(model)
    changed: dict[str, bool] = {}
    for variable, value in zip(variables, policy.get_values(), strict=True):
        if variable.kind == TRAINABLE:
            moved = changed.get(variable.group, False) or bool((value != variable.value).any())
            changed[variable.group] = moved
    for group, moved in changed.items():
        if moved == (group in algorithm.frozen):
            place = describe_attribute(algorithm, "frozen" if moved else "learn")
            what = (
                "is frozen, but an update has changed it; remove it from frozen"
                if moved
                else "has not changed in any update; return a cost for it that depends on its "
                "variables, set a learning rate above 0, or list it in frozen"
            )
            raise Failed(f"{place}: the variable group {group!r} {what}")


def check_export(subject: Subject) -> None:
    """Checks that the exported policy computes the same as agents."""
    from relaax_like.launch.export import import_libraries, write_compared

    model = subject.make_model()
    try:
        with without_native_stderr():
            import_libraries()
    except ConfigError as error:  # of `without_native_stderr`: a library is not installed
        raise NotApplicable(str(error)) from None
    from relaax_like.algorithm.greedy import GreedyPolicy

    values = [variable.value for variable in get_variables(model)]
    actor = subject.make_actor(model)
    actor.set_values(values, 0)
    policy = GreedyPolicy(model, values, subject.config)
    inputs = policy.make_random_inputs(100, 12)
    with tempfile.TemporaryDirectory() as folder, without_native_stderr():
        wanted = policy.run_actor(actor, inputs)
        write_compared(policy, Path(folder) / "export", {}, inputs, wanted)


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
    """Returns an OnPolicy plan with one update of each iteration, others unchanged."""
    if isinstance(plan, OnPolicy):
        return replace(plan, batch_size=0, epochs=1)
    return plan


def _make_plain(subject: Subject) -> dict[str, OptimizerConfig]:
    """Returns plain gradient descent for each group: its steps are as accurate as gradients."""
    return dict.fromkeys(subject.optimizers, OptimizerConfig(name="sgd", learning_rate=0.01))


def _compare_changes(
    subject: Subject,
    start: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    where: str,
    cure: str,
) -> None:
    """Compares the changes of two updates, for each variable relative to its change."""
    variables = get_variables(subject.make_model())
    for variable, before, one, other in zip(variables, start, values, others, strict=True):
        change = np.linalg.norm((one - before).astype(np.float64))
        difference = np.linalg.norm((one - other).astype(np.float64))
        # NaN is no difference only if both have it.
        is_same = difference <= _UPDATE_TOLERANCE * change + 1e-5
        if not is_same and not np.array_equal(one, other, equal_nan=True):
            raise Failed(
                f"{subject.folder}: {variable.name} changes by {change:.3g}, but the change "
                f"{where} differs by {difference:.3g}; expected the same change; {cure}"
            )


def _compare(what: str, one: Any, other: Any, where: tuple[str, str], cure: str) -> None:
    """Compares two results; `where` says how each of them was computed."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        raise Failed(
            f"{what}: shape {list(one.shape)} {where[0]}, but {list(other.shape)} {where[1]}; "
            f"expected the same; {cure}"
        )
    wrong = np.argwhere(~np.isclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    if len(wrong):
        index = tuple(map(int, wrong[0]))
        raise Failed(
            f"{what}: {float(one[index]):.8g} {where[0]}, but {float(other[index]):.8g} "
            f"{where[1]}, at {list(index)}; expected the same up to rounding; {cure}"
        )


def _find_arrays(distribution: Any) -> dict[str, Any]:
    """Returns the parameters of a distribution by name."""
    found = {}
    for name, value in vars(distribution).items():
        if hasattr(value, "shape") and np.ndim(value):
            found[name] = value
        elif type(value).__module__.startswith("relaax_like.nn"):
            found |= {f"{name}.{part}": array for part, array in _find_arrays(value).items()}
    return found
