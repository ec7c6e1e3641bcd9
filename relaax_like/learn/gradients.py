"""CompiledGradients: the gradients of updates whose optimizers run in a parameter server."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.algorithm.algorithm import Algorithm
from relaax_like.algorithm.parts import MASK, Parts, flatten, unflatten
from relaax_like.algorithm.phases import Phase
from relaax_like.algorithm.tracing import Traced
from relaax_like.config.places import describe_attribute, describe_place
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.learn.compiled_algorithm import (
    CHOSEN,
    CompiledAlgorithm,
    Gradient,
    concatenate,
    find_nearest,
    to_int64,
)
from relaax_like.learn.draw import Draw
from relaax_like.learn.minibatches import Cut, find_first, fit_draw, shuffle
from relaax_like.learn.reductions import MAX_SUMS, Reductions
from relaax_like.nn.runtime import tf
from relaax_like.wire.errors import ConfigError

if TYPE_CHECKING:
    from relaax_like.learn.joint_pushing import JointPushing

# Minibatches of one shape after which it is compiled for that shape, which takes a second, or, in
# the form for several learners, seconds.
_WORTH_COMPILING, _WORTH_COMPILING_JOINT = 100, 20
# Makes sums over all learners of this learner's sums, `[n] float64`.
Reduce = Callable[[np.ndarray], np.ndarray]
# A minibatch: its tensors, and the rows or slots of the batch that it consists of.
Minibatch = tuple[Parts, np.ndarray]


@dataclass(frozen=True)
class Shared:
    """What is known of all learners that share a batch.

    Attributes:
      learners: number of learners that have rows.
      reduce: makes sums over all learners.
      count: number of valid rows of the minibatch of all learners.
      first_sums: the sums that depend on no other sum; (): they are not known.
    """

    learners: int
    reduce: Reduce
    count: float = 0.0
    first_sums: Sequence[float] = ()


class CompiledGradients(CompiledAlgorithm):
    """A CompiledAlgorithm that computes one gradient for each phase of each update.

        compiled = CompiledGradients(algorithm)
        for gradient in compiled.compute_updates(**batch, global_t=4096):
            compiled.set_values(parameter_server.push_pull(gradient.arrays, gradient.groups))

    Attributes:
      wants_rows: whether gradients include the results of each row.
      is_joint: see the argument.
      on_compile: called before a function is traced and compiled, which takes seconds, if
        `is_joint`.

    Args:
      algorithm: what to learn.
      is_joint: whether several learners make each update together, each of which has some rows of
        the batch; `compute_updates` then needs their group.
      compile_in_background, clips, name: see `CompiledAlgorithm`. If `is_joint`, gradients are not
        clipped, and never compiled in the background.

    Raises:
      ConfigError: the model has no trainable variables, or buffers although `is_joint`, or phases
        or frozen groups do not fit its groups; see `CompiledAlgorithm` for other causes.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        is_joint: bool = False,
        compile_in_background: bool = False,
        clips: bool = True,
        name: str = ONLY_NAME,
    ):
        super().__init__(
            algorithm,
            compile_in_background=compile_in_background and not is_joint,
            clips=clips and not is_joint,
            name=name,
        )
        self.wants_rows = False
        self.is_joint = is_joint
        self.on_compile: Callable[[], None] = lambda: None
        self._phases = find_phases(algorithm, list(self._group_variables()))
        self._inputs = [*self._gradient_specs]
        if is_joint:
            if self._buffers:
                names = ", ".join(name for own in self._buffers.values() for name in own)
                raise ConfigError(
                    f"{describe_place(type(algorithm.model), '__init__')}: the model has buffers "
                    f"({names}), whose new values several learners cannot compute together "
                    "(relaax-parameter-server.combine.method: sync); use another method, such as "
                    "fifo, or learner.placement: server"
                )
            number = tf.TensorSpec([], tf.float32)
            # The known sums, the number of learners, and the number of rows.
            self._inputs += [tf.TensorSpec([MAX_SUMS], tf.float64), number, number]

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

    def compute_updates(
        self,
        draw: Draw | None = None,
        *,
        global_t: int = 0,
        group: "JointPushing | None" = None,
        **batch: Any,
    ) -> Iterator[Gradient]:
        """Yields the gradients of each minibatch, for the same updates as those of CompiledUpdates.

        Each one is computed on demand, with the values at that time. `prepare` is called once,
        before the first one; for minibatches in the order of the batch, once for each of them. Each
        minibatch has one gradient for each phase that is due; a phase with `every=n` is due in
        every n-th minibatch, and the costs of its groups are left out in the others. The gradients
        end early after a minibatch for which the algorithm's `stop` returns True.

        Args:
          draw: as for `CompiledUpdates.update`, which draws the same minibatches.
          global_t: environment steps of the whole run, for schedules.
          group: the learners that make each update together. It has applied a gradient when it is
            yielded; all learners must ask for the same gradients in the same order.
          batch: as for `compute_gradients`.

        Raises:
          ConfigError: the algorithm's code fails while it is compiled, or its `stop` fails, or it
            computes sums or costs that learners cannot share; the error names the line.
          InvalidInputError: an array is missing or has another shape than its spec, or see
            `fit_draw`.
          Exception: an error of the group, or of `on_compile`.
        """
        parts = self._make_batch(**batch)
        axes = self._count_leading_axes(parts)
        made, cut, length = fit_draw(draw, parts, axes)
        updates, minibatches = self._draw(parts, made, cut, length, global_t, group)
        if group is not None:
            minibatches = self._look_ahead(minibatches, cut, global_t, group)
        rows: dict[str, np.ndarray] = {}
        for index, (one, chosen) in enumerate(minibatches):
            is_end = index == updates - 1
            for gradient in self._compute_update(one, index, is_end, global_t, group):
                for name, results in gradient.rows.items():
                    if name not in rows:
                        leading = parts["next_alive"]["alive"].shape[:axes]
                        rows[name] = np.full(leading, np.nan, results.dtype)
                    cut.put_array(rows[name], chosen, results)
                yield replace(gradient, rows=rows) if rows else gradient
            if gradient.is_last:
                return

    def _draw(
        self,
        parts: Parts,
        draw: Draw,
        cut: Cut,
        length: int,
        global_t: int,
        group: "JointPushing | None",
    ) -> tuple[int, Iterator[Minibatch]]:
        """Returns the number of minibatches, and these.

        Those in the order of the batch are not prepared yet. Others are the prepared batch, with
        the indices of their rows as its part `CHOSEN`.
        """
        size, unit = draw.batch_size, draw.minibatch_of
        count = draw.count or length
        minibatches = draw.minibatches or count // size
        updates, seed = draw.epochs * minibatches, draw.seed
        if group is None and draw.epochs == 1 and size == length and not cut.rows:
            seed = None  # one call prepares the batch and computes its gradient
        if seed is None and size == length:
            return 1, iter([(parts, np.arange(length))])
        first = None if seed is None else find_first(parts, unit, length, count)
        drawn = draw_minibatches(length, minibatches * size, size, seed, first)
        drawn = itertools.islice(drawn, updates)
        if seed is None:
            tensors = flatten(parts)
            return updates, ((unflatten(parts, cut.take(tensors, one)), one) for one in drawn)
        prepared = self._prepare_batch(parts, self.num_gradients + 1, global_t, group)
        return updates, (({**prepared, CHOSEN: {unit: tf.constant(one)}}, one) for one in drawn)

    def _look_ahead(
        self,
        minibatches: Iterable[Minibatch],
        cut: Cut,
        global_t: int,
        group: "JointPushing",
    ) -> Iterator[Minibatch]:
        """Prepares all minibatches, and sums over all learners what is known before any update."""
        first = self.num_gradients + 1
        prepared = [
            (one if CHOSEN in one else self._prepare_batch(one, first, global_t, group), chosen)
            for one, chosen in minibatches
        ]
        sums = [
            self._compute_first_sums(one, first + index, global_t)
            for index, (one, _) in enumerate(prepared)
        ]
        counts = [_count_valid(one, cut, chosen) for one, chosen in prepared]
        group.look_ahead(np.column_stack([counts, np.stack(sums)]))
        return iter(prepared)

    def _compute_update(
        self,
        parts: Parts,
        index: int,
        is_end: bool,
        global_t: int,
        group: "JointPushing | None",
    ) -> Iterator[Gradient]:
        """Yields the gradient of each phase that is due in one update.

        Args:
          parts: a minibatch.
          index: its number in the batch.
          is_end: whether no other update of the batch follows.
          global_t: environment steps of the whole run.
          group: see `compute_updates`.
        """
        self.num_gradients += 1
        number = self.num_gradients
        is_prepared = group is not None or CHOSEN in parts
        if not is_prepared and self._algorithm.phases:
            parts, is_prepared = self._prepare_batch(parts, number, global_t, None), True
        due = [i for i, phase in enumerate(self._phases) if number % phase.every == 0]
        groups_due = {name for i in due for name in self._phases[i].groups}
        waiting = {g for phase in self._phases for g in phase.groups if g not in groups_due}
        numbers: dict[str, float] = {}
        for phase in due:

            def compute(shared: Shared | None = None, phase: int = phase) -> Gradient:
                return self._compute_phase(parts, phase, is_prepared, global_t, shared)

            gradient = compute() if group is None else group.step(compute, index, phase)
            own = {name: y for name, y in gradient.numbers.items() if name not in waiting}
            numbers = merge_numbers(numbers, own, gradient.groups)
            ends_update = phase == due[-1]
            # As in a compiled update, numbers of phases that are not due are zeros.
            seen = {**self._zeros, **dict.fromkeys(waiting, 0.0), **numbers}
            is_last = ends_update and (is_end or self._stops(seen, global_t))
            rows = gradient.rows if phase == due[0] else {}
            yield replace(
                gradient, numbers=own, rows=rows, is_last=is_last, ends_update=ends_update
            )

    def _stops(self, numbers: Mapping[str, float], global_t: int) -> bool:
        """Returns whether the algorithm skips the remaining updates of this batch."""
        if type(self._algorithm).stop is Algorithm.stop:
            return False
        return self._call_stop(numbers, global_t)

    # Calls of compiled functions.

    def _prepare_batch(
        self, parts: Parts, number: int, global_t: int, group: "JointPushing | None"
    ) -> Parts:
        """Calls the algorithm's `prepare`; the update's number determines random numbers."""

        def prepare(shared: Shared | None = None) -> Parts:
            form = self._get("prepare", parts, self._compile_prepare)
            inputs = self._make_inputs(global_t, number, shared)
            known = None if shared is None else _exchange_rounds(form, inputs, parts, shared)
            prepared: Parts = form([*inputs(known), *flatten(parts)])
            return prepared

        return prepare() if group is None else group.prepare(prepare)

    def _compute_phase(
        self, parts: Parts, phase: int, is_prepared: bool, global_t: int, shared: Shared | None
    ) -> Gradient:
        form = self._get_phase(parts, phase, is_prepared)
        inputs = self._make_inputs(global_t, self.num_gradients, shared)
        known = None if shared is None else _exchange_rounds(form, inputs, parts, shared)
        gradient: Gradient = form([*inputs(known), *flatten(parts)])
        if shared is None:
            return gradient
        return replace(
            gradient,
            flat=gradient.flat / np.float32(shared.learners),
            compute_numbers=lambda joint: form.numbers(inputs(_fill(joint))),
        )

    def _compute_first_sums(self, parts: Parts, number: int, global_t: int) -> np.ndarray:
        """Computes the sums that depend on no other sum, if none of them depends on a variable.

        Such sums of many minibatches can be added up over all learners at once, in advance.

        Returns:
          `[n] float64`; n is 0 if there are no such sums, one of them depends on a variable, or the
          algorithm has phases.
        """
        if self._algorithm.phases:
            return np.zeros(0)
        form = self._get_phase(parts, 0, True)
        if not form.has_first_sums:
            return np.zeros(0)
        inputs = self._make_inputs(global_t, number, Shared(1, np.copy))
        (own,) = form.rounds[0](*inputs(np.zeros(MAX_SUMS)), *flatten(parts))
        return np.asarray(own.numpy())

    def _make_inputs(
        self, global_t: int, number: int, shared: Shared | None
    ) -> Callable[[np.ndarray | None], list[tf.Tensor]]:
        """Returns the inputs before the batch, as a function of the known sums of all learners."""
        before = [to_int64(global_t), self._setting_values, to_int64(number)]
        if shared is None:
            return lambda known: before
        after = [tf.constant(float(shared.learners)), tf.constant(float(shared.count))]
        return lambda known: [*before, tf.constant(known), *after]

    def _get_phase(self, parts: Parts, index: int, is_prepared: bool) -> Any:
        what = f"{next(iter(parts[CHOSEN]))} of phase" if CHOSEN in parts else "phase"
        form = f"{what} {index}" if is_prepared else "gradients"
        phase = self._phases[index]

        def compile_phase(batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool) -> Any:
            if self.is_joint:
                return self._compile_joint_phase(batch, specs, xla, phase)
            has_all = not self._algorithm.phases and not self._algorithm.frozen
            groups = None if has_all else self._order(phase)
            return self._compile_gradients(batch, specs, xla, groups, is_prepared, self.wants_rows)

        return self._get(form, parts, compile_phase)

    def _get(self, form: str, parts: Parts, compile_form: Any) -> Any:
        def compile_and_note(*arguments: Any) -> Any:
            self.on_compile()
            return compile_form(*arguments)

        worth = _WORTH_COMPILING_JOINT if self.is_joint else _WORTH_COMPILING
        return self._get_compiled(form, parts, compile_and_note, worth)

    # Compiled functions.

    def _compile_prepare(
        self, batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool
    ) -> "_Compiled":
        names: dict[str, list[str]] = {}
        depth = [0]

        def flat(wants: str, *arguments: tf.Tensor) -> list[tf.Tensor]:
            global_t, settings, number, *rest = arguments
            reductions, tensors = self._split(rest, "prepare")
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                parts = self._prepare(unflatten(batch, tensors), traced, number, reductions)
            names.update({part: list(tensors) for part, tensors in parts.items()})
            results = flatten(parts)
            if reductions is None:
                return results
            if wants.isdigit():
                return [_stack(reductions.get_round(int(wants), results))]
            depth[0] = reductions.find_level(results)
            return results

        def name(results: Sequence[tf.Tensor]) -> Parts:
            rest = iter(results)
            return {part: {name: next(rest) for name in own} for part, own in names.items()}

        return self._compile_form(flat, specs, xla, depth, name)

    def _compile_joint_phase(
        self, batch: Parts, specs: Sequence[tf.TensorSpec], xla: bool, phase: Phase
    ) -> "_Compiled":
        groups, series = self._order(phase), "+".join(phase.groups)
        names, names_of_rows = list[str](), list[str]()
        depth, has_first_sums = [0], [False]

        def flat(wants: str, *arguments: tf.Tensor) -> list[tf.Tensor]:
            global_t, settings, number, *rest = arguments
            if wants == "numbers":  # only sums decide them
                rest += [_make_zeros(spec) for spec in specs]
            reductions, tensors = self._split(rest, "learn")
            assert reductions is not None
            with Traced(self._algorithm, self._settings, settings, global_t) as traced:
                parts = unflatten(batch, tensors)
                made = self._make_minibatch(parts, traced, series, number, reductions)
                reductions.note_count(made.valid, rest[2])
                if wants != "numbers":  # what is not returned is not computed
                    gradients, losses = self._trace_gradients(made, groups)
                else:
                    losses = self._algorithm.compute_losses(made)
            numbers = {**losses.costs, **losses.list_metrics(groups)}
            if wants == "numbers":
                names[:] = numbers
                return [tf.stack([tf.cast(number, tf.float32) for number in numbers.values()])]
            rows = losses.rows if self.wants_rows else {}
            names_of_rows[:] = rows
            needing = [concatenate(gradients), *rows.values()]
            if wants.isdigit():
                return [_stack(reductions.get_round(int(wants), needing))]
            self._validate_shared(reductions, numbers, tensors)
            depth[0] = reductions.find_level([*needing, *reductions.sums])
            first = reductions.get_round(0, needing) if depth[0] else []
            has_first_sums[0] = bool(first) and not reductions.reads_variables(first)
            return [_stack(reductions.sums), *needing]

        shapes = self._find_shapes(groups)

        def name(results: Sequence[tf.Tensor]) -> Gradient:
            sums, vector, *rows = (result.numpy() for result in results)
            named = dict(zip(names_of_rows, rows, strict=True))
            return Gradient(tuple(groups), vector, shapes, {}, named, sums=sums)

        form = self._compile_form(flat, specs, xla, depth, name)
        compute = self._compile_part(flat, "numbers", [], False)

        def name_numbers(inputs: Sequence[tf.Tensor]) -> dict[str, float]:
            return dict(zip(names, compute(*inputs)[0].numpy().tolist(), strict=True))

        return replace(form, has_first_sums=has_first_sums[0], numbers=name_numbers)

    def _validate_shared(
        self,
        reductions: Reductions,
        numbers: Mapping[str, tf.Tensor],
        tensors: Sequence[tf.Tensor],
    ) -> None:
        """Checks that learners can share a batch.

        Raises:
          ConfigError: `learn` makes no sums, or costs or metrics are not made of sums only.
        """
        place = describe_place(type(self._algorithm), "learn")
        if not reductions.sums:
            raise ConfigError(
                f"{place}: learn never calls batch.sum, batch.mean or batch.normalize, without "
                "which several learners (relaax-parameter-server.combine.method: sync) cannot "
                "share a batch; compute means over rows with batch.mean"
            )
        for name, number in numbers.items():
            if reductions.depends([tf.cast(number, tf.float32)], tensors):
                raise ConfigError(
                    f"{place}: the cost or metric {name!r} uses rows of the batch directly, so "
                    "each learner would compute a different value "
                    "(relaax-parameter-server.combine.method: sync); use batch.sum, batch.mean or "
                    "batch.normalize instead"
                )

    def _compile_form(
        self,
        flat: Callable[..., list[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        xla: bool,
        depth: list[int],
        name: Callable[[Sequence[tf.Tensor]], Any],
    ) -> "_Compiled":
        results = self._compile_part(flat, "results", specs, xla)
        rounds = [self._compile_part(flat, str(i), specs, False) for i in range(depth[0])]
        return _Compiled(lambda inputs: name(results(*inputs)), rounds)

    def _compile_part(
        self,
        flat: Callable[..., list[tf.Tensor]],
        wants: str,
        specs: Sequence[tf.TensorSpec],
        xla: bool,
    ) -> Callable[..., list[tf.Tensor]]:
        """Returns the compiled function that only computes some of the results of `flat`."""

        def part(*arguments: tf.Tensor) -> list[tf.Tensor]:
            return flat(wants, *arguments)

        function = self._compile_function(
            part, [*self._inputs, *specs], xla, self._explain_compiling
        )
        called: list[bool] = []

        def call(*arguments: tf.Tensor) -> list[tf.Tensor]:
            if not called:  # it is compiled now
                self.on_compile()
                called.append(True)
            results: list[tf.Tensor] = function(*arguments)
            return results

        return call

    def _split(
        self, rest: list[tf.Tensor], method: str
    ) -> tuple[Reductions | None, list[tf.Tensor]]:
        """Returns what makes sums with other learners in a method, and the tensors of the batch."""
        if not self.is_joint:
            return None, rest
        known, learners, count, *tensors = rest
        place = describe_place(type(self._algorithm), method)
        return Reductions(known, learners, None, count, place), tensors

    def _order(self, phase: Phase) -> list[str]:
        """Returns the groups of a phase in manifest order."""
        return [group for group in self._group_variables() if group in phase.groups]


@dataclass(frozen=True)
class _Compiled:
    """The compiled functions of `prepare` or of a phase, for one shape.

    Attributes:
      results: computes the results, from all inputs.
      rounds: each returns the sums that depend on those of the previous rounds.
      has_first_sums: whether there are sums in the first round, none of which depends on variables.
      numbers: returns costs and metrics, from the inputs before the batch.
    """

    results: Callable[[list[tf.Tensor]], Any]
    rounds: Sequence[Callable[..., list[tf.Tensor]]]
    has_first_sums: bool = False
    numbers: Callable[[Sequence[tf.Tensor]], dict[str, float]] | None = None

    def __call__(self, inputs: list[tf.Tensor]) -> Any:
        return self.results(inputs)


def _exchange_rounds(
    form: _Compiled,
    inputs: Callable[[np.ndarray], list[tf.Tensor]],
    parts: Parts,
    shared: Shared,
) -> np.ndarray:
    """Returns the sums over all learners that others depend on, `[MAX_SUMS] float64`.

    Args:
      form: the compiled functions that compute this learner's sums.
      inputs, parts: inputs of these functions.
      shared: of all learners.
    """
    known, rounds = np.zeros(MAX_SUMS), form.rounds
    if len(shared.first_sums):
        known, rounds = _fill(shared.first_sums), rounds[1:]
    for compute in rounds:
        (own,) = compute(*inputs(known), *flatten(parts))
        known = known + _fill(shared.reduce(own.numpy()))
    return known


def _count_valid(minibatch: Parts, cut: Cut, chosen: np.ndarray) -> float:
    """Returns the number of valid rows of a prepared minibatch."""
    alive = minibatch["next_alive"]["alive"]
    mask = minibatch.get("extras", {}).get(MASK)
    rows = np.ones(alive.shape) if mask is None else mask.numpy()
    if CHOSEN not in minibatch:
        return float(rows.sum())
    if cut.rows:
        return float(rows.reshape(-1)[chosen].sum())
    return float((rows[chosen] if cut.axes[0] == 0 else rows[:, chosen]).sum())


def _make_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 1 for size in spec.shape.as_list()], spec.dtype)


def _stack(sums: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.stack(list(sums)) if sums else tf.zeros([0], tf.float64)


def _fill(sums: Sequence[float] | np.ndarray) -> np.ndarray:
    known = np.zeros(MAX_SUMS)
    known[: len(sums)] = sums
    return known


def merge_numbers(
    numbers: Mapping[str, float], own: Mapping[str, float], groups: Sequence[str]
) -> dict[str, float]:
    """Adds the numbers of a phase to those of the previous phases.

    Costs come from the groups' own phases, all other numbers from the first phase that has them.

    Args:
      numbers: of the previous phases.
      own: numbers of the phase.
      groups: variable groups that the phase updates.
    """
    costs = {name: number for name, number in own.items() if name in groups}
    return {**own, **numbers, **costs}


def draw_minibatches(
    length: int, count: int, batch_size: int, seed: int | None, first: tf.Tensor | None
) -> Iterator[np.ndarray]:
    """Yields the rows or slots of one minibatch after another, epoch after epoch, indefinitely.

    Args:
      length: number of rows or slots.
      count: how many of them are drawn in each epoch, at least `batch_size`; those that do not fill
        a minibatch are left out.
      batch_size: number of rows or slots in a minibatch.
      seed: of the orders; None: in the order of the batch.
      first: `[length] bool`, the `count` rows or slots that are drawn; see `find_first`. Without a
        seed it is not used.

    Yields:
      Indices, `[batch_size] int32`.
    """
    for epoch in itertools.count():
        order = np.arange(length, dtype=np.int32)
        if (
            seed is not None and batch_size < length
        ):  # all of them stay in order, as in a compiled update
            drawn = tf.stack([to_int64(seed), to_int64(epoch)])
            order = shuffle(tf.constant(length), drawn, first).numpy()
        for start in range(0, count // batch_size * batch_size, batch_size):
            yield order[start : start + batch_size]


def find_phases(algorithm: Algorithm, groups: Sequence[str]) -> Sequence[Phase]:
    """Returns the phases of an update.

    Raises:
      ConfigError: the phases do not update each trained group exactly once, or none of them runs in
        every update, or `frozen` names an unknown group, or all groups, or there are no groups; the
        error names the line.
    """
    if not groups:
        place = describe_place(type(algorithm.model), "__init__")
        raise ConfigError(f"{place}: the model has no trainable variables; add a layer to it")
    known = ", ".join(groups)
    for group in algorithm.frozen:
        if group not in groups:
            place = describe_attribute(algorithm, "frozen")
            raise ConfigError(
                f"{place}: frozen: {group!r} is not a variable group{find_nearest(group, groups)}; "
                f"the groups are {known}"
            )
    trained = algorithm.trained_groups
    if not trained:
        place = describe_attribute(algorithm, "frozen")
        raise ConfigError(
            f"{place}: frozen: it lists all variable groups ({known}), so nothing would be "
            "trained; remove at least one of them"
        )
    if not algorithm.phases:
        return [Phase(*trained)]
    _validate_phases(algorithm, trained)
    return algorithm.phases


def _validate_phases(algorithm: Algorithm, trained: Sequence[str]) -> None:
    """Checks that the phases update each trained group exactly once; see `find_phases`."""
    place = describe_attribute(algorithm, "phases")
    stepped = [group for phase in algorithm.phases for group in phase.groups]
    for group in stepped:
        if group not in trained:
            raise ConfigError(
                f"{place}: phases: {group!r} is not a variable group that is trained"
                f"{find_nearest(group, trained)}; the trained groups are {', '.join(trained)}"
            )
    for group in trained:
        number = stepped.count(group)
        if number != 1:
            cure = "remove it from all but one" if number else "add it to one, or list it in frozen"
            raise ConfigError(
                f"{place}: phases: the variable group {group!r} is in {number} phases, expected "
                f"one; {cure}"
            )
    if all(phase.every > 1 for phase in algorithm.phases):
        numbers = ", ".join(str(phase.every) for phase in algorithm.phases)
        raise ConfigError(
            f"{place}: phases: every is {numbers}, so no phase runs in every update; set every=1 "
            "in one of them"
        )
