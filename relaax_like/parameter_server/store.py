"""The store: values and optimizer slots of a run, and the step from one version to the next.

Pulls are consistent without copying: each version has buffers of its own, which readers see as
read-only arrays (see `core.buffers`). A buffer is never written to while its array, or any view of
it, is alive. Usually two buffers alternate; while a slow reader keeps an old version, one more is
allocated. A version that a learner has published is in arrays of the learner's.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaax_like.config.optimizer import OptimizerConfig, choose_optimizer
from relaax_like.core.buffers import BufferPool
from relaax_like.core.manifest import BUFFER, Follow, Manifest
from relaax_like.core.moments import Moments
from relaax_like.core.records import Publication, Values
from relaax_like.parameter_server.kernels import (
    Step,
    choose_form,
    compute_coefficients,
    make_late_step,
    make_step,
)
from relaax_like.parameter_server.schedules import compute_learning_rate
from relaax_like.parameter_server.snapshot_format import State
from relaax_like.parameter_server.targets import (
    GroupStep,
    find_unfollowed,
    make_group_steps,
    mix,
)
from relaax_like.wire.errors import ConfigError, InvalidInputError, SnapshotError
from relaax_like.wire.ndarray import is_finite

# Where a user configures optimizers.
_PLACES = "relaax-parameter-server.optimizers, or optimizers of the algorithm's Config"


@dataclass(frozen=True)
class _Group:
    """The constants of one variable group."""

    name: str
    elements: slice  # trainable ones, of float32, in the gradient
    buffers: slice  # elements that a gradient sets, behind them
    config: GroupStep
    step: Step
    slots: tuple[str, ...]
    first_slot: int  # where its slots begin in the slot buffer, in float32 elements

    @property
    def size(self) -> int:
        return self.elements.stop - self.elements.start

    def view_slots(self, slots: np.ndarray) -> np.ndarray:
        """Returns this group's slots, [s, size], as a view of the slot buffer."""
        part = slots[self.first_slot : self.first_slot + len(self.slots) * self.size]
        return part.reshape(len(self.slots), self.size)


@dataclass(frozen=True)
class PreparedVersion:
    """The result of a push, a publication or counts, before it takes effect.

    Attributes:
      state: for `Store.commit`.
      learning_rates: each group -> its rate for this step; empty without a gradient.
      optimizers: each group -> its settings for this step; empty without a gradient, or if they are
        the same as at the previous step.
    """

    state: State
    learning_rates: Mapping[str, float]
    optimizers: Mapping[str, GroupStep]

    @property
    def version(self) -> int:
        """Version of the values afterwards."""
        return self.state.version

    @property
    def global_t(self) -> int:
        """Environment steps afterwards."""
        return self.state.global_t


class Store:
    """Values, optimizer slots, version and `global_t`.

        store = Store(manifest, flat, {"default": OptimizerConfig()})
        store.apply(gradient, env_steps=5)
        store.values.flat

    One thread applies and restores; any thread can read `values`, `version`, `global_t` and
    `export_state()`, and each of these reads sees one complete version. Memory: twice the values
    and slots, plus once the values (for an exported state, also the slots) for each older version
    that a reader holds.

    It starts at version 0.

    Args:
      manifest: the layout.
      initial_flat: [total_bytes] uint8, copied.
      optimizers: variable group -> optimizer, for each group of the manifest. The group
        ALGORITHM/NAME of an Algorithm can also use the optimizer of NAME or, failing that,
        "default", which several groups can share.
      follows: target variable -> what it follows; other targets change only with publications.
        None: no target follows anything.
      expects_gradients: False: kernels are compiled at the first gradient, if there is one.

    Raises:
      ConfigError: nothing is trainable, a group has no optimizer, an optimizer has no group, a
        target follows a variable that is not trainable or has another shape, or how it follows
        is out of range.
      InvalidInputError: `initial_flat` has a wrong shape or dtype, a trainable variable in it
        is not finite, or a running statistic in it is out of range.
    """

    def __init__(
        self,
        manifest: Manifest,
        initial_flat: np.ndarray,
        optimizers: Mapping[str, OptimizerConfig],
        follows: Mapping[str, Follow] | None = None,
        expects_gradients: bool = True,
    ):
        self.manifest = manifest
        chosen = _assign_optimizers(manifest, optimizers)
        steps = make_group_steps(manifest, chosen, follows or {})
        self._groups = _make_groups(manifest, steps, expects_gradients)
        self._segments = {segment.name: segment for segment in manifest.segments}
        self._unfollowed = find_unfollowed(manifest, steps)
        self._optimizers = {group.name: group.config for group in self._groups}
        self._pool = BufferPool(manifest.total_bytes)
        slot_elements = sum(len(group.slots) * group.size for group in self._groups)
        self._slot_pool = BufferPool(max(4 * slot_elements, 1))
        self._num_slot_bytes = 4 * slot_elements
        slots = self._slot_pool.take()
        slots[...] = 0
        # One complete version. Replaced, never modified: readers see all of it, or nothing.
        self._current = State(
            manifest=manifest,
            version=0,
            global_t=0,
            values=self._copy_values(initial_flat),
            slots=self._publish_slots(slots),
            slot_names={group.name: group.slots for group in self._groups},
            steps={group.name: 0 for group in self._groups},
            # Used for the newest gradient; the next one uses those that are configured.
            optimizers=self._optimizers,
        )

    @property
    def values(self) -> Values:
        """The newest values, immutable; can be kept indefinitely."""
        return self.read()[0]

    @property
    def version(self) -> int:
        """0 for the initial values, +1 for each push or publication that changes the values."""
        return self._current.version

    @property
    def global_t(self) -> int:
        """Environment steps of all clients together."""
        return self._current.global_t

    def read(self) -> tuple[Values, int]:
        """Returns values and `global_t`, read at the same moment."""
        current = self._current
        return Values(version=current.version, flat=current.values), current.global_t

    def compute_learning_rates(self) -> dict[str, float]:
        """Returns the learning rate for the next gradient, by group."""
        global_t = self.global_t
        return {g.name: compute_learning_rate(g.config, global_t) for g in self._groups}

    def describe_changed_optimizers(self) -> str:
        """Returns the settings that change with the next gradient, old and new; "": no changes."""
        changes = []
        for group in self._groups:
            old = self._current.optimizers[group.name].model_dump()
            for key, value in group.config.model_dump().items():
                if value != old[key]:
                    changes.append(f"{group.name}.{key} {old[key]} -> {value}")
        return ", ".join(changes)

    def apply(
        self,
        gradient: np.ndarray | bytes | None,
        env_steps: int = 0,
        statistics: Mapping[str, Moments] | None = None,
        groups: Sequence[str] = (),
    ) -> int:
        """Takes one optimizer step, merges statistics and counts environment steps, atomically.

        Buffers get the values that the gradient has in their place.

        The learning rate is that of `global_t` before `env_steps` are counted. If `groups` are
        named, all others keep exactly their weights, slots and step numbers: with Adam, a zero
        gradient would change them.

        Arguments and exceptions are those of `prepare`; returns the version afterwards.
        """
        prepared = self.prepare(gradient, env_steps, statistics, groups)
        self.commit(prepared)
        return prepared.version

    def prepare(
        self,
        gradient: np.ndarray | bytes | None,
        env_steps: int = 0,
        statistics: Mapping[str, Moments] | None = None,
        groups: Sequence[str] = (),
        learning_rates: Mapping[str, float] | None = None,
        optimizers: Mapping[str, GroupStep] | None = None,
    ) -> PreparedVersion:
        """Computes the result of `apply`, without anything taking effect.

        Args:
          gradient: [gradient_bytes] uint8, its float32 view, or bytes; None: no optimizer step.
          env_steps: 0 or more.
          statistics: moments to merge into running statistics, by name, checked by
            `Manifest.validate_moments`; None: nothing.
          groups: groups that the gradient is for, laid out by `Manifest.select_groups`; empty: all.
          learning_rates: group -> rate, instead of the configured one.
          optimizers: for a replay: group -> settings, instead of the configured ones; missing
            groups use those of the previous gradient.

        Raises:
          InvalidInputError: the gradient has a wrong shape or dtype, there is no such group or it
            is named twice; or, without `optimizers`, there is a gradient, and the run has a target
            variable that follows nothing, which only a publication can change.
        """
        current = self._current
        rates = self.compute_learning_rates() | dict(learning_rates or {})
        used = self._optimizers if optimizers is None else {**current.optimizers, **optimizers}
        if gradient is not None:
            if self._unfollowed and optimizers is None:
                raise InvalidInputError(
                    f"{self._unfollowed}: this target variable follows no trainable variable, so a "
                    "pushed gradient would not update it; make it with Target (or set follow of "
                    "its Variable), or, if the algorithm declares a plan, use learner.placement: "
                    "server or standalone (and relaax-parameter-server.combine.method: fifo)"
                )
            gradient = view_gradient(gradient, self.manifest.select_groups(groups))
        changes: dict[str, Any] = {}
        if gradient is not None or statistics:
            changes = self._step(current, gradient, statistics or {}, groups, rates, used)
        state = replace(current, global_t=current.global_t + int(env_steps), **changes)
        if gradient is None:
            return PreparedVersion(state, {}, {})
        return PreparedVersion(state, rates, {} if used == current.optimizers else used)

    def prepare_publish(self, publish: Publication) -> PreparedVersion:
        """Computes the result of a publication, without anything taking effect.

        Raises:
          InvalidInputError: values or slots have a wrong shape, a trainable variable or the slots
            are not finite, a group's number of steps is missing or negative, or a running statistic
            is out of range; the error names the group or variable.
        """
        current = self._current
        slots = {group.name: _freeze(self._get_slots(publish, group)) for group in self._groups}
        self._validate_values(
            publish.values,
            "that was published",
            "lower the learning rate, or clip gradients",
            "check the numbers that the statistic is measured from",
        )
        return PreparedVersion(
            replace(
                current,
                version=current.version + 1,
                global_t=current.global_t + publish.env_steps,
                values=_freeze(publish.values),
                slots=slots,
                steps={group.name: int(publish.steps[group.name]) for group in self._groups},
                optimizers=self._optimizers,
            ),
            {},
            {},
        )

    def _get_slots(self, publish: Publication, group: _Group) -> np.ndarray:
        """Checks the slots and steps of a group in a publication, and returns the slots."""
        slots, shape = publish.slots.get(group.name), [len(group.slots), group.size]
        if slots is None or list(slots.shape) != shape:
            came = "missing" if slots is None else list(slots.shape)
            raise InvalidInputError(
                f"slots of group {group.name}: {came}, expected {shape}; start learner and "
                "parameter server with the same optimizers",
                group.name,
            )
        if publish.steps.get(group.name, -1) < 0:
            steps = publish.steps.get(group.name, "missing")
            raise InvalidInputError(
                f"steps of group {group.name}: {steps}, expected the number of its optimizer "
                "steps, 0 or more",
                group.name,
            )
        if not is_finite(slots):
            raise InvalidInputError(
                f"slots of group {group.name}: the optimizer state contains "
                f"{get_not_finite(slots)}, expected finite numbers; lower the learning rate, or "
                "clip gradients",
                group.name,
            )
        return slots

    def commit(self, prepared: PreparedVersion) -> None:
        """Makes the result of the newest `prepare` or `prepare_publish` take effect."""
        # Readers see the old version until this one assignment.
        self._current = prepared.state

    def export_state(self) -> State:
        """Returns one complete version, for a snapshot. Copies nothing; immutable."""
        return self._current

    def import_state(self, state: State, place: str = "the snapshot") -> None:
        """Restores the state of a snapshot or publication.

        With the same settings, the next gradient has the effect that it would have had then.

        Args:
          state: to restore.
          place: names the snapshot or publication, for errors.

        Raises:
          SnapshotError: the state has another layout, or slots of another optimizer; nothing has
            changed.
          InvalidInputError: a trainable variable is not finite, or a running statistic is out of
            range; nothing has changed.
        """
        if state.manifest.fingerprint != self.manifest.fingerprint:
            raise SnapshotError(
                f"{place}: the layout has fingerprint {state.manifest.fingerprint:#x}, but this "
                f"run's has {self.manifest.fingerprint:#x}; use the settings and the algorithm's "
                "code of the run that wrote it, or another checkpoint_dir (and mirror_url, if it "
                "is set)"
            )
        for group in self._groups:
            names = tuple(state.slot_names.get(group.name, ()))
            if names != group.slots or group.name not in state.steps:
                raise SnapshotError(
                    f"{place}: group {group.name} has the optimizer slots {list(names)}, but "
                    f"optimizer {group.config.name} needs {list(group.slots)}; configure the "
                    f"optimizer of the run that wrote it ({_PLACES}), or use another "
                    "checkpoint_dir (and mirror_url, if it is set)"
                )
        slots = self._slot_pool.take()
        for group in self._groups:
            part = group.view_slots(slots[: self._num_slot_bytes].view(np.float32))
            part[...] = state.slots[group.name]
        values = self._copy_values(
            state.values,
            f"in {place}",
            "move this snapshot (or publication) to another folder to resume from an older one",
        )
        self._current = replace(
            self._current,
            version=state.version,
            global_t=state.global_t,
            values=values,
            slots=self._publish_slots(slots),
            steps={group.name: state.steps[group.name] for group in self._groups},
            optimizers={**self._optimizers, **state.optimizers},
        )

    def _copy_values(self, flat: np.ndarray, *texts: str) -> np.ndarray:
        """Checks values, and returns a copy as a read-only array; see `_validate_values`."""
        self._validate_values(flat, *texts)
        buffer = self._pool.take()
        buffer[...] = flat
        return self._pool.publish(buffer)

    def _validate_values(
        self,
        flat: np.ndarray,
        what: str = "to start from",
        cure: str = "correct the initial values",
        statistic_cure: str = "",
    ) -> None:
        """Checks values.

        Args:
          flat: the values.
          what: follows "the value" in the error.
          cure: what the user can do, for the error.
          statistic_cure: the same, if the error is in a running statistic; "": `cure`.

        Raises:
          InvalidInputError: the shape or dtype is wrong, a trainable variable is not finite, or a
            running statistic is out of range.
        """
        total, trainable = self.manifest.total_bytes, self.manifest.gradient_bytes
        if flat.dtype != np.uint8 or flat.shape != (total,):
            raise InvalidInputError(
                f"values: {flat.dtype} {list(flat.shape)}, expected uint8 [{total}] as in the "
                "manifest of this run"
            )
        bad = find_not_finite(flat[:trainable], self.manifest)
        if bad:
            wrong = get_not_finite(flat[:trainable].view(np.float32))
            raise InvalidInputError(
                f"{bad}: the value {what} contains {wrong}, expected finite numbers; {cure}"
            )
        self.manifest.validate_statistics(flat, statistic_cure or cure)

    def _publish_slots(self, buffer: np.ndarray) -> dict[str, np.ndarray]:
        slots = self._slot_pool.publish(buffer)[: self._num_slot_bytes].view(np.float32)
        return {group.name: group.view_slots(slots) for group in self._groups}

    def _step(
        self,
        current: State,
        gradient: np.ndarray | None,
        statistics: Mapping[str, Moments],
        groups: Sequence[str],
        learning_rates: Mapping[str, float],
        optimizers: Mapping[str, GroupStep],
    ) -> dict[str, Any]:
        """Computes what changes with the next version, in buffers that no reader can see yet."""
        changes: dict[str, Any] = {"version": current.version + 1}
        values = self._pool.take()
        trainable = self.manifest.gradient_bytes
        if gradient is None:
            values[...] = current.values
        else:
            values[trainable:] = current.values[trainable:]
            new = values[:trainable].view(np.float32)
            changes |= self._optimize(current, gradient, new, groups, learning_rates, optimizers)
            for group, step in changes["steps"].items():
                if step > current.steps[group]:
                    mix(values, self._segments, optimizers[group].targets, step)
        self._merge_statistics(values, statistics)
        return {**changes, "values": self._pool.publish(values)}

    def _merge_statistics(self, values: np.ndarray, statistics: Mapping[str, Moments]) -> None:
        for name, delta in statistics.items():
            count, mean, m2 = self.manifest.view_statistic(values, name)
            merged = Moments(float(count), mean, m2).merge(delta)
            count[...], mean[...], m2[...] = merged.count, merged.mean, merged.m2

    def _optimize(
        self,
        current: State,
        gradient: np.ndarray,
        new: np.ndarray,
        groups: Sequence[str],
        learning_rates: Mapping[str, float],
        optimizers: Mapping[str, GroupStep],
    ) -> dict[str, Any]:
        """Writes the weights after one optimizer step to `new`; returns what else changes."""
        slots = self._slot_pool.take()
        old = current.values[: self.manifest.gradient_bytes].view(np.float32)
        new_slots = slots[: self._num_slot_bytes].view(np.float32)
        steps = dict(current.steps)
        start = 0  # of the group's part in the gradient
        for group in self._groups:
            if groups and group.name not in groups:
                new[group.elements], new[group.buffers] = old[group.elements], old[group.buffers]
                group.view_slots(new_slots)[...] = current.slots[group.name]
                continue
            steps[group.name] += 1
            rate = learning_rates[group.name]
            group.step(
                old[group.elements],
                gradient[start : start + group.size],
                current.slots[group.name],
                new[group.elements],
                group.view_slots(new_slots),
                compute_coefficients(optimizers[group.name], rate, steps[group.name]),
            )
            start += group.size
            new[group.buffers] = gradient[start : start + group.buffers.stop - group.buffers.start]
            start += group.buffers.stop - group.buffers.start
        return {"slots": self._publish_slots(slots), "steps": steps, "optimizers": optimizers}


def _freeze(array: np.ndarray) -> np.ndarray:
    """Returns what nobody changes any more: the array if it is read-only, otherwise a copy."""
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def view_gradient(gradient: np.ndarray | bytes, manifest: Manifest) -> np.ndarray:
    """Returns a gradient as aligned float32, [gradient_bytes / 4]; copies only if necessary.

    Raises:
      InvalidInputError: the shape or dtype is wrong.
    """
    if isinstance(gradient, bytes):
        gradient = np.frombuffer(gradient, np.uint8)
    if gradient.dtype not in (np.uint8, np.float32) or gradient.ndim != 1:
        raise InvalidInputError(
            f"gradient: {gradient.dtype} of shape {list(gradient.shape)}, expected the manifest's "
            "trainable part as uint8 or float32 with one axis"
        )
    if gradient.nbytes != manifest.gradient_bytes:
        raise InvalidInputError(
            f"gradient: {gradient.nbytes} bytes, expected {manifest.gradient_bytes} for the "
            f"trainable variables of the group(s) {', '.join(manifest.groups())}"
        )
    return np.require(np.ascontiguousarray(gradient).view(np.float32), requirements=["A", "C"])


def find_not_finite(flat: np.ndarray, manifest: Manifest) -> str:
    """Returns the first trainable variable or buffer that contains NaN or infinity, or "".

    Args:
      flat: the part of a gradient: [gradient_bytes] uint8, or its float32 view.
      manifest: its layout.
    """
    if is_finite(flat.view(np.float32)):
        return ""
    for segment, array in zip(
        manifest.pushed, manifest.unpack(flat.view(np.uint8), gradient=True), strict=True
    ):
        if not np.isfinite(array).all():
            return segment.name
    return ""


def get_not_finite(numbers: np.ndarray) -> float:
    """Returns the first number that is NaN or infinite; there must be one."""
    return float(numbers[~np.isfinite(numbers)][0])


def _make_groups(
    manifest: Manifest, optimizers: Mapping[str, GroupStep], expects_gradients: bool
) -> tuple[_Group, ...]:
    groups, first_slot = [], 0
    make = make_step if expects_gradients else make_late_step
    for name, elements in manifest.groups().items():
        config = optimizers[name]
        slots = config.slot_names
        step = make(config.rule, choose_form(elements.stop - elements.start))
        sizes = [s.size for s in manifest.pushed if (s.group, s.kind) == (name, BUFFER)]
        buffers = slice(elements.stop, elements.stop + sum(sizes))
        groups.append(_Group(name, elements, buffers, config, step, slots, first_slot))
        first_slot += len(slots) * groups[-1].size
    return tuple(groups)


def _assign_optimizers(
    manifest: Manifest, optimizers: Mapping[str, OptimizerConfig]
) -> dict[str, OptimizerConfig]:
    """Returns the optimizer of each group.

    Raises:
      ConfigError: see `Store`.
    """
    groups = manifest.groups()
    if not manifest.gradient_bytes:
        raise ConfigError(
            "no trainable variable; define at least one in the algorithm's model, or in the file "
            "of initial values"
        )
    chosen = {}
    for group in groups:
        chosen[group] = choose_optimizer(group, optimizers)
        if not chosen[group]:
            raise ConfigError(
                f"variable group {group!r} has no optimizer{_nearest(group, optimizers)}; "
                f"configure one for it ({_PLACES}). Groups with an optimizer: "
                f"{', '.join(optimizers) or 'none'}"
            )
    for name in optimizers.keys() - set(chosen.values()):
        raise ConfigError(
            f"optimizer for {name!r}, but no variable is in that "
            f"group{_nearest(name, groups)}; rename or remove it ({_PLACES}). Variable groups of "
            f"this run: {', '.join(groups)}"
        )
    return {group: optimizers[name] for group, name in chosen.items()}


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
