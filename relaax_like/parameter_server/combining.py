"""Combining: a gradient that comes is applied, compensated, held back for others, or dropped."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import Manifest
from relaax_like.core.records import Push, Values

# alone: applied by itself (or there is none). pending: held back. with_pending: applied as the mean
# of itself and all that were held back. dropped: not used.
Action = Literal["alone", "pending", "with_pending", "dropped"]
# A client that has pushed no gradient for so long is not waited for.
_LIVE_SEC = 10.0


@dataclass(frozen=True)
class Plan:
    """What is to be done with one push.

    Attributes:
      action: with its gradient.
      gradient: float32, what the journal keeps of it: compensated already; None: nothing.
      effective: float32, what the optimizer gets now; None: nothing.
      pending: what is held back afterwards, of the push's groups; None: nothing, or as before.
      reason: why it was dropped.
    """

    action: Action
    gradient: np.ndarray | None
    effective: np.ndarray | None
    pending: "Pending | None" = None
    reason: str = ""


@dataclass(frozen=True)
class Pending:
    """Gradients that are held back, of one choice of variable groups.

    Attributes:
      total: their sum, float32, in the order in which they came. Not to be written to.
      count: how many.
      since: seconds of the clock when the first one came.
    """

    total: np.ndarray
    count: int
    since: float


@dataclass
class Counts:
    """Gradients since the start, by what became of them."""

    compensated: int = 0
    # Though they should have been: their version was no longer kept, or they were too large for it.
    not_compensated: int = 0
    held_back: int = 0
    dropped: int = 0


class Combiner:
    """Decides what becomes of gradients. Used by whoever has the turn at the store.

        plan = combiner.plan(push, store.values)
        ...                                     # apply plan.effective
        combiner.note(plan, push.groups, store.values)

    A record of the journal says what was decided; `replan` finds the same again.
    """

    def __init__(
        self,
        config: CombineConfig,
        manifest: Manifest,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.counts = Counts()
        self.pending: dict[tuple[str, ...], Pending] = {}
        self._config = config
        self._manifest = manifest
        self._clock = clock
        self._compensates = config.method == "dc" or (
            config.max_staleness is not None and config.when_stale == "compensate"
        )
        # Newest versions at which the weights changed: enough of them to tell what is too stale.
        self._changes: deque[int] = deque(maxlen=max(config.max_staleness or 0, 0) + 1)
        self._history: deque[Values] = deque(maxlen=config.dc_history if self._compensates else 1)
        self._last_push: dict[str, float] = {}

    def begin(
        self, values: Values, pending: Mapping[tuple[str, ...], tuple[np.ndarray, int]]
    ) -> None:
        """Takes the state to begin with: values, and per groups the sum and count held back."""
        now = self._clock()
        self.pending = {
            groups: Pending(total, count, now) for groups, (total, count) in pending.items()
        }
        self._changes.clear()
        self._changes.append(values.version)
        self._history.clear()
        self._history.append(values)

    def drop_strangers(self) -> int:
        """Forgets what is held back where the method holds nothing back; returns how many."""
        if self._config.method == "avg":
            return 0
        count = sum(pending.count for pending in self.pending.values())
        self.pending.clear()
        return count

    def plan(self, push: Push, values: Values) -> Plan:
        """Returns what is to be done with a push, whose gradient is float32 or None."""
        gradient = push.gradient
        if gradient is None:
            return Plan("alone", None, None)
        config = self._config
        staleness = self._count_changes_after(push.gradient_version)
        too_stale = config.max_staleness is not None and staleness > config.max_staleness
        if config.method == "avg" and staleness:
            return self._drop("the weights have changed since; avg only accepts fresh gradients")
        if too_stale and config.when_stale == "drop":
            return self._drop(
                f"the weights have changed more than {config.max_staleness} times since "
                "(combine.max_staleness)"
            )
        if config.method == "dc" or (too_stale and config.when_stale == "compensate"):
            gradient = self._compensate(push, gradient, values)
        if config.method == "avg":
            self._last_push[push.client_id] = self._clock()
            return self._plan_mean(push.groups, gradient)
        return Plan("alone", gradient, gradient)

    def replan(self, action: Action, push: Push, reason: str) -> Plan:
        """Returns the plan that led to a record of the journal."""
        gradient = push.gradient
        if action == "with_pending":
            assert gradient is not None
            return Plan(action, gradient, self._add(push.groups, gradient)[0])
        if action == "pending":
            assert gradient is not None
            return self._plan_holding(push.groups, gradient)
        return Plan(action, gradient, gradient if action == "alone" else None, reason=reason)

    def note(self, plan: Plan, groups: tuple[str, ...], values: Values) -> None:
        """Takes what has been done, and the values afterwards. Allocates nothing large."""
        if plan.pending is not None:
            self.pending[groups] = plan.pending
        elif plan.action == "with_pending":
            self.pending.pop(groups, None)
        if plan.effective is not None:
            self._changes.append(values.version)
            self._history.append(values)

    def _count_changes_after(self, version: int) -> int:
        """Returns the staleness, as far as it matters."""
        count = 0
        for changed in reversed(self._changes):
            if changed <= version:
                break
            count += 1
        return count

    def _plan_mean(self, groups: tuple[str, ...], gradient: np.ndarray) -> Plan:
        mean, count = self._add(groups, gradient)
        held = self.pending.get(groups)
        waited = 0.0 if held is None else self._clock() - held.since
        if count >= self._count_wanted() or waited > self._config.max_wait_sec:
            return Plan("with_pending", gradient, mean)
        self.counts.held_back += 1
        return self._plan_holding(groups, gradient)

    def _plan_holding(self, groups: tuple[str, ...], gradient: np.ndarray) -> Plan:
        held = self.pending.get(groups)
        if held is None:
            # A copy: the memory of a gradient is its client's, or of a message.
            pending = Pending(gradient.copy(), 1, self._clock())
        else:
            pending = Pending(held.total + gradient, held.count + 1, held.since)
        return Plan("pending", gradient, None, pending)

    def _add(self, groups: tuple[str, ...], gradient: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns the mean of a gradient and those that are held back, and their number."""
        held = self.pending.get(groups)
        if held is None:
            return gradient, 1
        count = held.count + 1
        return (held.total + gradient) / np.float32(count), count

    def _count_wanted(self) -> int:
        """Never more than clients push gradients: they would wait for one that has gone."""
        oldest = self._clock() - max(_LIVE_SEC, 2 * self._config.max_wait_sec)
        self._last_push = {name: at for name, at in self._last_push.items() if at >= oldest}
        return min(self._config.num_gradients, len(self._last_push))

    def _compensate(self, push: Push, gradient: np.ndarray, values: Values) -> np.ndarray:
        """Returns g + lambda g*g*(w_now - w_then): equation 10 of arXiv 1609.08326."""
        then = self._find(push.gradient_version)
        if then is None:
            self.counts.not_compensated += 1
            return gradient
        if then is values:
            self.counts.compensated += 1
            return gradient
        moved = self._get_weights(values, push.groups) - self._get_weights(then, push.groups)
        with np.errstate(all="ignore"):
            scale = np.float32(self._config.dc_lambda)
            compensated = gradient + scale * gradient * gradient * moved
            # The square of a large gradient may be more than any optimizer survives.
            if not math.isfinite(np.dot(compensated, compensated)):
                self.counts.not_compensated += 1
                return gradient
        self.counts.compensated += 1
        return compensated

    def _find(self, version: int) -> Values | None:
        """Returns the values with the weights of a version; None: they are no longer kept."""
        for values in reversed(self._history):
            if values.version <= version:
                return values
        return None

    def _get_weights(self, values: Values, groups: Sequence[str]) -> np.ndarray:
        """Returns what a gradient of these groups is laid out as, `[n]` float32."""
        weights = values.flat[: self._manifest.gradient_bytes].view(np.float32)
        if not groups:
            return weights
        parts = [
            weights[segment.offset // 4 : segment.offset // 4 + segment.size]
            for segment in self._manifest.trainable
            if segment.group in groups
        ]
        return np.concatenate(parts)

    def _drop(self, reason: str) -> Plan:
        self.counts.dropped += 1
        return Plan("dropped", None, None, reason=reason)
