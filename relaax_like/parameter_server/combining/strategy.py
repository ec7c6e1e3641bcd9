"""The role of a combining strategy, and the state that all strategies share."""

import abc
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from relaax_like.config.combine import CombineConfig
from relaax_like.core.manifest import BUFFER, Manifest
from relaax_like.core.records import Outcome, Push, Values

Groups = tuple[str, ...]


@dataclass(frozen=True)
class Pending:
    """Gradients that are held back, for one choice of variable groups.

    Attributes:
      total: `[n]` float32, the sum of the gradients, added in the order of arrival; never modified.
      count: number of the gradients.
      since: seconds of the clock when the first gradient arrived, or was restored.
    """

    total: np.ndarray
    count: int
    since: float


@dataclass(frozen=True, kw_only=True)
class PushPlan:
    """What to do with one push.

    Attributes:
      outcome: what happens to the gradient of the push.
      gradient: `[n]` float32, the gradient as the journal keeps it, already compensated; None: the
        journal keeps no gradient.
      effective: `[n]` float32, the gradient that the optimizer applies now; None: it applies none.
      takes_pending: `effective` is the mean of the gradient and all held-back ones of its groups.
      pending: what is held back afterwards for the push's groups; None: nothing if
        `takes_pending`, otherwise the same as before.
      reason: why the gradient is dropped; "" if it is not.
    """

    outcome: Outcome
    gradient: np.ndarray | None = None
    effective: np.ndarray | None = None
    takes_pending: bool = False
    pending: Pending | None = None
    reason: str = ""


@dataclass
class CombineCounts:
    """Numbers of gradients since the start, by what happened to them.

    Attributes:
      compensated: corrected for changes of the weights, or computed with the current weights.
      not_compensated: applied without a correction that was due: the weights of their version were
        no longer kept, or the result would have been too large.
      held_back: held back until others arrived.
      dropped: not used.
    """

    compensated: int = 0
    not_compensated: int = 0
    held_back: int = 0
    dropped: int = 0


class HeldBack:
    """Gradients that are held back until others arrive, by variable groups.

    Args:
      clock: returns monotonic seconds.

    Attributes:
      pending: groups of pushes -> the gradients.
    """

    def __init__(self, clock: Callable[[], float]):
        self.pending: dict[Groups, Pending] = {}
        self._clock = clock

    def begin(self, pending: Mapping[Groups, tuple[np.ndarray, int]]) -> None:
        """Replaces what is held back: groups -> sum `[n]` float32 and number of the gradients."""
        now = self._clock()
        self.pending = {
            groups: Pending(total, count, now) for groups, (total, count) in pending.items()
        }

    def count_with(self, groups: Groups) -> int:
        """Returns the number of held-back gradients of these groups, plus one for a new one."""
        held = self.pending.get(groups)
        return 1 if held is None else held.count + 1

    def get_waited_sec(self, groups: Groups) -> float:
        """Returns how long the first gradient of these groups has waited; 0.0: there is none."""
        held = self.pending.get(groups)
        return 0.0 if held is None else self._clock() - held.since

    def plan_applying(self, groups: Groups, gradient: np.ndarray) -> PushPlan:
        """Returns the plan to apply the mean of a gradient and the held-back ones."""
        held = self.pending.get(groups)
        mean = gradient
        if held is not None:
            mean = (held.total + gradient) / np.float32(held.count + 1)
        return PushPlan(outcome="applied", gradient=gradient, effective=mean, takes_pending=True)

    def plan_holding(self, groups: Groups, gradient: np.ndarray) -> PushPlan:
        """Returns the plan to hold back one more gradient."""
        held = self.pending.get(groups)
        if held is None:
            # A copy: the memory of the gradient belongs to its client, or to a message.
            pending = Pending(gradient.copy(), 1, self._clock())
        else:
            pending = Pending(held.total + gradient, held.count + 1, held.since)
        return PushPlan(outcome="pending", gradient=gradient, pending=pending)

    def note(self, plan: PushPlan, groups: Groups) -> None:
        """Notes an executed plan. Allocates nothing large."""
        if plan.pending is not None:
            self.pending[groups] = plan.pending
        elif plan.takes_pending:
            self.pending.pop(groups, None)


class History:
    """Numbers of the newest versions that changed the weights, and the newest of these weights.

    Args:
      manifest: of the run.
    """

    def __init__(self, manifest: Manifest):
        self._manifest = manifest
        self._changes: deque[int] = deque(maxlen=1)
        self._values: deque[Values] = deque(maxlen=1)

    def keep(self, changes: int, values: int) -> None:
        """Sets how many are kept: numbers of versions (`changes`), and weights (`values`)."""
        self._changes = deque(self._changes, maxlen=changes)
        self._values = deque(self._values, maxlen=values)

    def begin(self, values: Values) -> None:
        """Forgets everything except these values."""
        self._changes.clear()
        self._values.clear()
        self.note(values)

    def note(self, values: Values) -> None:
        """Notes values whose weights are new."""
        self._changes.append(values.version)
        self._values.append(values)

    @property
    def newest(self) -> Values:
        """The values with the current weights."""
        return self._values[-1]

    def compute_staleness(self, version: int) -> int:
        """Returns how many times the weights have changed since a version.

        Changes that are no longer kept are not counted.
        """
        count = 0
        for changed in reversed(self._changes):
            if changed <= version:
                break
            count += 1
        return count

    def find(self, version: int) -> Values | None:
        """Returns the values with the weights of a version; None: they are no longer kept."""
        for values in reversed(self._values):
            if values.version <= version:
                return values
        return None

    def get_weights(self, values: Values, groups: Sequence[str]) -> np.ndarray:
        """Returns the weights of these groups, `[n]` float32, in the order of their gradient.

        In the place of buffers, of which a gradient has the new value, are zeros.

        Args:
          values: the values.
          groups: variable groups; empty: all.
        """
        weights = values.flat[: self._manifest.gradient_bytes].view(np.float32)
        pushed = self._manifest.pushed
        if not groups and all(segment.kind != BUFFER for segment in pushed):
            return weights
        parts = [
            weights[segment.offset // 4 : segment.offset // 4 + segment.size]
            * np.float32(segment.kind != BUFFER)
            for segment in pushed
            if not groups or segment.group in groups
        ]
        return np.concatenate(parts)


class CombiningState:
    """What strategies share: the history, the held-back gradients, and the counts.

    Args:
      manifest: of the run.
      clock: returns monotonic seconds.
    """

    def __init__(self, manifest: Manifest, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self.history = History(manifest)
        self.held_back = HeldBack(clock)
        self.counts = CombineCounts()


class CombiningStrategy(abc.ABC):
    """Decides what happens to each gradient. A new strategy is one class in a file of this folder.

    Args:
      config: the settings.
      state: what strategies share.

    Attributes:
      accepts_stale: gradients of older weights are applied, so a bound on staleness is useful.
      holds_back: gradients are held back, and remain so after a restart.
      kept_values: the number of newest weights that the strategy looks up in the history.
    """

    accepts_stale: ClassVar[bool] = True
    holds_back: ClassVar[bool] = False

    def __init__(self, config: CombineConfig, state: CombiningState):
        self.config = config
        self.state = state

    @property
    def kept_values(self) -> int:
        """See the class."""
        return 1

    @abc.abstractmethod
    def plan(self, push: Push, gradient: np.ndarray, staleness: int) -> PushPlan:
        """Returns the plan for a gradient.

        Only changes counts and the times of clients: `Combiner.note` notes the plan once it has
        been executed.

        Args:
          push: the push with the gradient.
          gradient: `[n]` float32.
          staleness: how many times the weights have changed since the version with which the
            gradient was computed.
        """

    def drop(self, reason: str) -> PushPlan:
        """Returns the plan to drop a gradient, and counts it."""
        self.state.counts.dropped += 1
        return PushPlan(outcome="dropped", reason=reason)
