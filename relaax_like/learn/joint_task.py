"""JointTask: one learner's part of the gradients of a batch that several learners share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.parts import Parts, flatten, make_batch, unflatten
from relaax_like.algorithm.phases import Phase
from relaax_like.algorithm.tracing import Traced
from relaax_like.config.places import describe_place
from relaax_like.core.prediction import TASK
from relaax_like.learn.computation_task import CHOSEN, ComputationTask, to_int64
from relaax_like.learn.gradients import find_phases
from relaax_like.learn.reductions import MAX_SUMS, Reductions
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError

# Minibatches of one shape after which it is compiled for that shape, which takes seconds.
_WORTH_COMPILING = 20
# Makes sums over all learners of this learner's sums, `[n] float64`.
Reduce = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class JointGradient:
    """One learner's part of a gradient.

    Attributes:
      groups: variable groups to which it belongs, in manifest order.
      flat: `[n] float32`; the sum over all learners is the gradient of the joint batch, before
        clipping.
      sums: `[n] float64`, sums over this learner's rows; with those of all learners,
        `compute_numbers` returns costs and metrics.
      rows: results of each row by name.
      compute_numbers: returns costs and metrics of the joint batch by name, and whether the
        algorithm skips the remaining updates of the batch, as far as this phase shows.
    """

    groups: tuple[str, ...]
    flat: np.ndarray
    sums: np.ndarray
    rows: dict[str, np.ndarray]
    compute_numbers: Callable[[np.ndarray], tuple[dict[str, float], bool]]


class JointTask(ComputationTask):
    """A ComputationTask for one of several learners, each of which has some rows of a batch.

        task = JointTask(algorithm)
        prepared = task.prepare(batch, learners=2, number=7, global_t=4096, reduce=group.reduce)
        gradient = task.compute(prepared, 0, count=64, learners=2, number=7, ...)

    All learners call the same methods in the same order; `reduce` then sums up over all of them.

    Attributes:
      wants_rows: whether gradients include the results of each row.
      on_compile: called before a function is traced and compiled, which takes seconds.

    Args:
      algorithm: what to learn.
      task: see `ComputationTask`.

    Raises:
      ConfigError: the model has no trainable variables, or phases or frozen groups do not fit its
        groups; see `ComputationTask` for other causes.
    """

    def __init__(self, algorithm: Algorithm, *, task: str = TASK):
        super().__init__(algorithm, clips=False, task=task)
        self.wants_rows = False
        self.on_compile: Callable[[], None] = lambda: None
        self._phases = find_phases(algorithm, list(self._group_variables()))
        self._common = [
            *self._gradient_specs,
            tf.TensorSpec([MAX_SUMS], tf.float64),  # known
            tf.TensorSpec([], tf.float32),  # learners
            tf.TensorSpec([], tf.float32),  # count
        ]

    @property
    def clip(self) -> dict[str, float]:
        """Variable group -> largest norm of its gradient; "": of the gradient of all groups.

        {}: gradients are not clipped.
        """
        clip = self._algorithm.max_gradient_norm
        if clip is None:
            return {}
        if not isinstance(clip, Mapping):
            return {"": float(clip)}
        return {group: float(norm) for group, norm in clip.items() if norm is not None}

    def find_due(self, number: int) -> list[int]:
        """Returns the indices of the phases that are due in the update of this number."""
        return [i for i, phase in enumerate(self._phases) if number % phase.every == 0]

    def find_waiting(self, number: int) -> set[str]:
        """Returns the variable groups that the update of this number does not change."""
        due = {g for i in self.find_due(number) for g in self._phases[i].groups}
        return {g for phase in self._phases for g in phase.groups if g not in due}

    def make_parts(self, **batch: Any) -> Parts:
        """Returns the tensors of a batch; see `compute_gradients` for its arguments.

        Raises:
          InvalidInputError: an array is missing, or has a shape other than its spec.
        """
        return self._make_batch(**batch)

    def count_leading_axes(self, parts: Parts) -> int:
        """Returns 1 for a batch `[B, ...]`, 2 for rollouts `[T, k, ...]`."""
        return self._count_leading_axes(parts)

    def prepare(
        self, parts: Parts, learners: int, number: int, global_t: int, reduce: Reduce
    ) -> Parts:
        """Calls the algorithm's `prepare` for this learner's part of a batch.

        Args:
          parts: of `make_parts`.
          learners: number of learners that have rows.
          number: of the first update of the batch, which determines random numbers.
          global_t: environment steps of the whole run, for schedules.
          reduce: makes sums over all learners.

        Raises:
          ConfigError: the algorithm's code fails, or uses sums that learners cannot share; the
            error names the line.
          Exception: an error of `reduce` or `on_compile`.
        """
        call = self._get("prepare", parts, self._compile_prepare)
        numbers = self._make_numbers(global_t, number, learners, 0.0)
        known = _exchange_rounds(call, numbers, parts, reduce)
        return call.compute(numbers(known), parts)

    def compute_first_sums(self, parts: Parts, number: int, global_t: int) -> np.ndarray:
        """Computes the sums that depend on no other sum, if none of them depends on a variable.

        Such sums of many minibatches can be added up over all learners at once, in advance.

        Args:
          parts: see `compute`.
          number: of the update, which determines random numbers.
          global_t: see `prepare`.

        Returns:
          `[n] float64`; n is 0 if there are no such sums, one of them depends on a variable, or the
          algorithm has phases.

        Raises:
          ConfigError, Exception: see `compute`.
        """
        if self._algorithm.phases:
            return np.zeros(0)
        call = self._get(self._name_form(parts, 0), parts, self._make_compile(self._phases[0]))
        if not call.has_first_sums:
            return np.zeros(0)
        numbers = self._make_numbers(global_t, number, 1, 0.0)
        (own,) = call.rounds[0](*numbers(np.zeros(MAX_SUMS)), *flatten(parts))
        return np.asarray(own.numpy())

    def compute(
        self,
        parts: Parts,
        phase: int,
        *,
        count: float,
        learners: int,
        number: int,
        global_t: int,
        reduce: Reduce,
        first_sums: np.ndarray,
    ) -> JointGradient:
        """Computes this learner's part of the gradient of one phase.

        Args:
          parts: from `prepare`; with a part `CHOSEN`, only the rows that it names are used.
          phase: index of the phase.
          count: number of valid rows of all learners.
          number: of the update, which determines random numbers.
          learners, global_t, reduce: see `prepare`.
          first_sums: of `compute_first_sums`, over all learners.

        Raises:
          ConfigError: the algorithm's code fails, or computes costs that learners cannot share; the
            error names the line.
          Exception: an error of `reduce` or `on_compile`.
        """
        form = self._name_form(parts, phase)
        call = self._get(form, parts, self._make_compile(self._phases[phase]))
        numbers = self._make_numbers(global_t, number, learners, count)
        known = _exchange_rounds(call, numbers, parts, reduce, first_sums)
        flat, sums, rows = call.compute(numbers(known), parts)

        def compute_numbers(joint: np.ndarray) -> tuple[dict[str, float], bool]:
            return call.compute_numbers(numbers(_fill(joint)))

        groups = tuple(g for g in self._group_variables() if g in self._phases[phase].groups)
        return JointGradient(groups, flat / np.float32(learners), sums, rows, compute_numbers)

    def stops_after_phases(self, numbers: Mapping[str, float], global_t: int) -> bool:
        """Returns whether an algorithm with phases skips the remaining updates of this batch.

        Raises:
          ConfigError: its `stop` fails; the error names the line.
        """
        if not self._algorithm.phases or type(self._algorithm).stop is Algorithm.stop:
            return False
        return self._call_stop(numbers, global_t)

    def _name_form(self, parts: Parts, phase: int) -> str:
        what = f"{next(iter(parts[CHOSEN]))} of phase" if CHOSEN in parts else "phase"
        return f"{what} {phase}"

    def _get(self, form: str, parts: Parts, compile_form: Any) -> Any:
        def compile_and_note(*arguments: Any) -> Any:
            self.on_compile()
            return compile_form(*arguments)

        return self._get_compiled(form, parts, compile_and_note, _WORTH_COMPILING)

    def _make_numbers(
        self, global_t: int, number: int, learners: int, count: float
    ) -> Callable[[np.ndarray], list[tf.Tensor]]:
        before = [to_int64(global_t), self._setting_values, to_int64(number)]
        after = [tf.constant(float(learners)), tf.constant(float(count))]
        return lambda known: [*before, tf.constant(known), *after]

    def _compile_prepare(
        self, batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool
    ) -> "_Prepare":
        names: dict[str, list[str]] = {}
        depth = [0]

        def flat(wants: str, *arguments: tf.Tensor) -> list[tf.Tensor]:
            global_t, settings, number, known, learners, count, *tensors = arguments
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                reductions = Reductions(known, learners, None, count, self._place("prepare"))
                parts = self._prepare(unflatten(batch, tensors), traced, number, reductions)
            names.update({part: list(tensors) for part, tensors in parts.items()})
            if wants.isdigit():
                return [_stack(reductions.get_round(int(wants), flatten(parts)))]
            depth[0] = reductions.find_level(flatten(parts))
            return flatten(parts)

        results = self._compile_part(flat, "parts", specs, xla)
        rounds = [self._compile_part(flat, str(i), specs, False) for i in range(depth[0])]
        return _Prepare(rounds, results, names)

    def _make_compile(self, phase: Phase) -> Any:
        return lambda batch, specs, xla: self._compile_phase(batch, specs, xla, phase)

    def _compile_phase(
        self, batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool, phase: Phase
    ) -> "_Phase":
        groups = [group for group in self._group_variables() if group in phase.groups]
        series = "+".join(phase.groups)
        names: list[str] = []
        names_of_rows: list[str] = []
        depth, has_first_sums = [0], [False]
        has_stop = not self._algorithm.phases  # else it needs the numbers of several phases

        def flat(wants: str, *arguments: tf.Tensor) -> list[tf.Tensor]:
            global_t, settings, number, known, learners, count, *tensors = arguments
            if wants == "numbers":  # only sums decide them
                tensors = [_make_zeros(spec) for spec in specs]
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                parts = unflatten(batch, tensors)
                if CHOSEN in parts:
                    parts = self._take_chosen(parts)
                traced.draw_for(series, number)
                reductions = Reductions(known, learners, None, count, self._place("learn"))
                made = make_batch(parts, traced.discount, reductions)
                reductions.note_count(made.valid, count)
                if wants != "numbers":  # what is not returned is not computed
                    gradients, losses = self._trace_gradients(made, groups)
                else:
                    losses = self._algorithm.compute_losses(made)
                numbers = {**losses.costs, **losses.metrics}
                stop = self._algorithm.stop(numbers) if has_stop else False
            shown = [tf.cast(n, tf.float32) for n in (*numbers.values(), stop)]
            if wants == "numbers":
                names[:] = numbers
                return [tf.stack(shown)]
            if not reductions.sums:
                raise ConfigError(
                    f"{self._place('learn')}: learn never calls batch.sum, batch.mean or "
                    "batch.normalize, without which several learners "
                    "(relaax-parameter-server.combine.method: sync) cannot share a batch; compute "
                    "means over rows with batch.mean"
                )
            rows = losses.rows if self.wants_rows else {}
            names_of_rows[:] = rows
            vector = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0)
            needing = [vector, *rows.values()]
            if wants.isdigit():
                return [_stack(reductions.get_round(int(wants), needing))]
            depth[0] = reductions.find_level([*needing, *reductions.sums])
            if reductions.depends(shown, tensors):
                raise ConfigError(
                    f"{self._place('learn')}: {_find_direct(reductions, numbers, tensors)} uses "
                    "rows of the batch directly, so each learner would compute a different value "
                    "(relaax-parameter-server.combine.method: sync); use batch.sum, batch.mean or "
                    "batch.normalize instead"
                )
            first = reductions.get_round(0, needing) if depth[0] else []
            has_first_sums[0] = bool(first) and not reductions.reads_variables(first)
            return [vector, _stack(reductions.sums), *rows.values()]

        results = self._compile_part(flat, "gradient", specs, xla)
        rounds = [self._compile_part(flat, str(i), specs, False) for i in range(depth[0])]
        numbers = self._compile_part(flat, "numbers", [], False)
        return _Phase(rounds, has_first_sums[0], results, numbers, names, names_of_rows)

    def _compile_part(
        self,
        flat: Callable[..., list[tf.Tensor]],
        wants: str,
        specs: Sequence[tf.TensorSpec],
        xla: bool,
    ) -> Any:
        """Returns the compiled function that only computes some of the results of `flat`."""

        def part(*arguments: tf.Tensor) -> list[tf.Tensor]:
            return flat(wants, *arguments)

        return _FirstCall(
            self._compile_function(part, [*self._common, *specs], xla, self._explain_compiling),
            lambda: self.on_compile(),
        )

    def _place(self, method: str) -> str:
        return describe_place(type(self._algorithm), method)


class _FirstCall:
    """A function whose first call, which compiles it, is announced.

    Args:
      function: to be called.
      on_compile: called before the first call.
    """

    def __init__(self, function: Callable[..., Any], on_compile: Callable[[], None]):
        self._function = function
        self._on_compile = on_compile
        self._called = False

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function."""
        if not self._called:
            self._on_compile()
            self._called = True
        return self._function(*arguments)


@dataclass(frozen=True)
class _Prepare:
    """The compiled functions of `prepare`, for one shape.

    Attributes:
      rounds: each returns the sums that depend on those of the previous rounds.
      results: returns the prepared tensors.
      names: part -> names of its tensors.
    """

    rounds: Sequence[Any]
    results: Any
    names: Mapping[str, Sequence[str]]

    def compute(self, numbers: Sequence[tf.Tensor], parts: Parts) -> Parts:
        """Returns the prepared parts."""
        rest = iter(self.results(*numbers, *flatten(parts)))
        return {part: {name: next(rest) for name in own} for part, own in self.names.items()}


@dataclass(frozen=True)
class _Phase:
    """The compiled functions of a phase, for one shape; see `_Prepare`.

    Attributes:
      has_first_sums: whether there are sums in the first round, none of which depends on variables.
      numbers: returns costs and metrics, and whether to stop.
      names: of costs and metrics.
      names_of_rows: of the results of each row.
    """

    rounds: Sequence[Any]
    has_first_sums: bool
    results: Any
    numbers: Any
    names: Sequence[str]
    names_of_rows: Sequence[str]

    def compute(
        self, numbers: Sequence[tf.Tensor], parts: Parts
    ) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Returns gradient, sums, and results of each row."""
        vector, sums, *rows = self.results(*numbers, *flatten(parts))
        named = zip(self.names_of_rows, rows, strict=True)
        return vector.numpy(), sums.numpy(), {name: row.numpy() for name, row in named}

    def compute_numbers(self, numbers: Sequence[tf.Tensor]) -> tuple[dict[str, float], bool]:
        """Returns costs and metrics by name, and whether to stop."""
        (vector,) = self.numbers(*numbers)
        *values, stop = vector.numpy().tolist()
        return dict(zip(self.names, values, strict=True)), stop > 0


def _exchange_rounds(
    call: _Prepare | _Phase,
    numbers: Callable[[np.ndarray], list[tf.Tensor]],
    parts: Parts,
    reduce: Reduce,
    first_sums: np.ndarray | None = None,
) -> np.ndarray:
    """Returns the sums over all learners that others depend on, `[MAX_SUMS] float64`.

    Args:
      call: the compiled functions that compute this learner's sums.
      numbers, parts: inputs of `call`.
      reduce: makes sums over all learners.
      first_sums: sums of the first round, if they are known already; None or empty: unknown.
    """
    known, rounds = np.zeros(MAX_SUMS), call.rounds
    if first_sums is not None and first_sums.size:
        known, rounds = _fill(first_sums), rounds[1:]
    for compute in rounds:
        (own,) = compute(*numbers(known), *flatten(parts))
        known = known + _fill(reduce(own.numpy()))
    return known


@tf.autograph.experimental.do_not_convert
def _find_direct(
    reductions: Reductions, numbers: Mapping[str, tf.Tensor], tensors: Sequence[tf.Tensor]
) -> str:
    """Returns which number is computed from tensors without a sum, for an error."""
    for name, number in numbers.items():
        if reductions.depends([tf.cast(number, tf.float32)], tensors):
            return f"the cost or metric {name!r}"
    return "stop"


def _make_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 1 for size in spec.shape.as_list()], spec.dtype)


def _stack(sums: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.stack(list(sums)) if sums else tf.zeros([0], tf.float64)


def _fill(sums: np.ndarray) -> np.ndarray:
    known = np.zeros(MAX_SUMS)
    known[: len(sums)] = sums
    return known
