"""Plans: how an algorithm uses experience.

An algorithm declares one, unless its agents learn by themselves, or a learner beside them pushes
one gradient per batch.

| plan | what an update learns from |
|---|---|
| `OnPolicy` | rollouts of the newest policies, used for some epochs, then dropped |
| `Episodes` | complete episodes, padded to one length |
| `Offline` | recordings |
| `Replay` | minibatches drawn from a table of past steps |

A folder with several Algorithms can declare a plan for each: a mapping from name to plan.
"""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from relaax_like.config.hindsight import HindsightConfig
from relaax_like.config.places import describe_place
from relaax_like.wire.errors import ConfigError

# Name of the running statistic of discounted sums of rewards, if the plan has a `reward_discount`.
RETURN_STATISTIC = "return"
# What a minibatch consists of: steps, or rollouts of one slot with all their steps in order.
Unit = Literal["steps", "rollouts"]
Placement = Literal["agent", "server", "standalone"]
Overload = Literal["slip", "drop"]
OverriddenUse = Literal["cut", "only", "keep", "mark"]


class Plan:
    """What the plans have in common, as far as agents and settings ask.

    Attributes:
      rollout_steps: T, steps of each rollout.
      discount: see `OnPolicy`, as for the next three.
      next_actions: see `OnPolicy`.
      overlap: see `OnPolicy`.
      overridden: see `OnPolicy`.
      has_fixed_size: whether each iteration has the same size, or is a recording or minibatches.
      has_table: whether minibatches are drawn from a table of what all agents play.
      takes_gaps: whether it can learn from steps with gaps between them.
      takes_executed: whether it can learn from steps whose action was overridden.
      replaces_goals: whether goals are replaced by those that were achieved.
      slips: whether a table exceeds its rate limit for agents that cannot wait.
      offline: whether the algorithm can learn from recorded files.
    """

    rollout_steps: int
    discount: float
    next_actions: bool = False
    overlap: bool = False
    overridden: OverriddenUse = "cut"
    has_fixed_size: bool = False
    has_table: bool = False
    takes_gaps: bool = False
    takes_executed: bool = False
    replaces_goals: bool = False
    slips: bool = False
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class OnPolicy(Plan):
    """An iteration is `rollouts` rollouts of one slot each, or whatever arrives together.

    Attributes:
      rollout_steps: T, steps of each rollout.
      rollouts: of one iteration; None: as many as have arrived, for algorithms that make one update
        of each batch.
      min_rollouts, max_rollouts: minimum and maximum number of rollouts of an iteration if
        `rollouts` is None. Only an agent that sends more at once can exceed the maximum.
      epochs: passes over an iteration.
      batch_size: steps or rollouts of one update; 0: all of the iteration, `[T, B, ...]`, the
        only choice if `rollouts` is None.
      minibatch_of: which of the two; "rollouts" if `batch_size` is 0.
      discount: per step, of `Batch.discount`.
      next_actions: whether the algorithm reads `Batch.next_actions`; the last step of a rollout or
        of a truncated episode, whose next action is not known, is then not valid, unless it
        terminated an episode.
      overlap: whether the last step of each rollout is also the first one of the next, so that all
        steps of an episode have their successor in some rollout; `rollout_steps` - 1 steps of each
        are then new. The first row of a slot's first rollout is not a step: it is marked as
        terminated.
      prenormalize_steps: environment steps at the start of a run that only feed the running
        statistics of the inputs; nothing is learned from them.
      update_norm: whether each iteration also feeds those statistics, after its updates.
      reward_discount: rewards are divided by the running standard deviation of their sums with this
        discount, and clipped to +-10; None: they are used unchanged.
      offline: whether the algorithm can also learn from recorded files (`learner.offline`).
      overridden: what happens to steps where something other than the policy decided (`executed` of
        the rlx protocol): "cut": they are not learned from, and the trace ends there as at a time
        limit; "only": only they are learned from, as in behaviour cloning. "keep" is only for
        other plans.

    Raises:
      ValueError: an attribute is out of its range, or attributes contradict each other.
    """

    rollout_steps: int
    rollouts: int | None = None
    min_rollouts: int = 1
    max_rollouts: int = 1024
    epochs: int = 1
    batch_size: int = 0
    minibatch_of: Unit = "steps"
    discount: float = 0.99
    next_actions: bool = False
    overlap: bool = False
    prenormalize_steps: int = 0
    update_norm: bool = False
    reward_discount: float | None = None
    offline: bool = False
    overridden: OverriddenUse = "cut"

    def __post_init__(self) -> None:
        _validate_least(
            self, rollout_steps=1, rollouts=1, epochs=1, batch_size=0, prenormalize_steps=0
        )
        _validate_shares(self, "discount", "reward_discount")
        if not self.batch_size:
            object.__setattr__(self, "minibatch_of", "rollouts")
        if self.rollouts is None and self.batch_size:
            raise ValueError(
                f"OnPolicy: batch_size is {self.batch_size}, but without rollouts the size "
                "of an iteration is not known; set rollouts, or batch_size=0"
            )
        if not 1 <= self.min_rollouts <= self.max_rollouts:
            raise ValueError(
                f"OnPolicy: min_rollouts is {self.min_rollouts} and max_rollouts "
                f"{self.max_rollouts}; expected 1 <= min_rollouts <= max_rollouts"
            )
        if self.overlap and self.rollout_steps < 2:
            raise ValueError(
                f"OnPolicy: rollout_steps is {self.rollout_steps}, expected 2 or more: with "
                "overlap, one of them belongs to the rollout before"
            )
        if self.rollouts is not None and self.min_rollouts != 1:
            raise ValueError(
                f"OnPolicy: rollouts is {self.rollouts} and min_rollouts {self.min_rollouts}; set "
                "only one of them"
            )

    @property
    def has_fixed_size(self) -> bool:  # type: ignore[override]
        """See `Plan`."""
        return self.rollouts is not None

    @property
    def takes_gaps(self) -> bool:  # type: ignore[override]
        """See `Plan`, as for `takes_executed`."""
        return not self.overlap

    takes_executed = takes_gaps

    @property
    def columns(self) -> int:
        """Minimum number of columns of one iteration."""
        return self.min_rollouts if self.rollouts is None else self.rollouts

    @property
    def max_columns(self) -> int | None:
        """Maximum number of columns of one iteration; None: it has exactly `columns`.

        Only an agent that sends more at once can exceed it.
        """
        return self.max_rollouts if self.rollouts is None else None

    @property
    def env_steps(self) -> int:
        """Number of steps in the minimum number of complete rollouts of one iteration."""
        return self.rollout_steps * self.columns


@dataclass(frozen=True, kw_only=True)
class Episodes(Plan):
    """An update uses complete episodes, as they end; each is used once.

    Agents do not wait for one another: an episode that takes longer than the others has been played
    by several policies, the oldest of which is that of its first step.

    Attributes:
      episodes: number of episodes of one update.
      rollout_steps: number of steps that an agent sends at once.
      max_steps: a longer episode is cut off at the end of a rollout, as if it were truncated there;
        the rest counts as another episode.
      discount: per step, of `Batch.discount`.
      next_actions: whether the algorithm reads `Batch.next_actions`.
      update_norm: whether each update's episodes feed the running statistics of the inputs.

    Raises:
      ValueError: an attribute is out of its range.
    """

    episodes: int = 1
    rollout_steps: int = 32
    max_steps: int = 10_000
    discount: float = 0.99
    next_actions: bool = False
    update_norm: bool = False
    has_fixed_size: ClassVar[bool] = True  # type: ignore[misc]
    # An update is one step of the optimizer, on all its episodes in the order of their arrival.
    epochs: ClassVar[int] = 1
    max_columns: ClassVar[int | None] = None
    minibatch_of: ClassVar[Unit] = "rollouts"
    prenormalize_steps: ClassVar[int] = 0
    reward_discount: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        _validate_least(self, episodes=1, rollout_steps=1, max_steps=1)
        _validate_shares(self, "discount")

    @property
    def columns(self) -> int:
        """Number of columns of one update's batch."""
        return self.episodes

    @property
    def batch_size(self) -> int:
        """Number of rollouts of a minibatch: all episodes of an update."""
        return self.episodes


@dataclass(frozen=True, kw_only=True)
class Offline(Plan):
    """Recordings: learned from one after another, or mixed.

    Without `updates_at_once`, each recording is read once per pass over all of them, in a new order
    each time, so a minibatch consists of steps of one recording.

    Attributes:
      batch_size: steps, or rollouts of one slot, of one update.
      minibatch_of: which of the two.
      epochs: passes over a recording each time it is read.
      updates_at_once: number of updates that are made in one call, from minibatches whose steps are
        drawn from all recordings, with replacement; all recordings are then kept in memory. None:
        recordings are learned from one after another.
      discount: per step, of `Batch.discount`.
      next_actions: whether the algorithm reads `Batch.next_actions`.
      update_norm: whether each recording feeds the running statistics of the inputs.
      prenormalize: whether the running statistics of the inputs are computed from the steps of all
        recordings before the first update; only with `updates_at_once`.

    Raises:
      ValueError: an attribute is out of its range, or attributes contradict each other.
    """

    batch_size: int
    minibatch_of: Unit = "steps"
    epochs: int = 1
    updates_at_once: int | None = None
    discount: float = 0.99
    next_actions: bool = False
    update_norm: bool = False
    prenormalize: bool = False
    has_fixed_size: ClassVar[bool] = True  # type: ignore[misc]
    offline: ClassVar[bool] = True  # type: ignore[misc]
    # Attributes that only a plan with agents sets otherwise.
    reward_discount: ClassVar[float | None] = None
    rollout_steps: ClassVar[int] = 1  # type: ignore[misc]

    def __post_init__(self) -> None:
        _validate_least(self, batch_size=1, epochs=1, updates_at_once=1)
        _validate_shares(self, "discount")
        if self.updates_at_once is None:
            if self.prenormalize:
                raise ValueError(
                    "Offline: prenormalize is True, but recordings are read one after another; set "
                    "updates_at_once, or use update_norm"
                )
            return
        fixed = {"minibatch_of": "steps", "epochs": 1, "next_actions": False, "update_norm": False}
        for name, expected in fixed.items():
            if getattr(self, name) != expected:
                raise ValueError(
                    f"Offline: {name} is {getattr(self, name)!r}, expected {expected!r}: with "
                    "updates_at_once, minibatches consist of single steps of all recordings"
                )

    @property
    def prenormalize_steps(self) -> int:
        """1 if the statistics are computed before the first update, else 0; see `OnPolicy`."""
        return int(self.prenormalize)


@dataclass(frozen=True, kw_only=True)
class Replay(Plan):
    """Minibatches drawn from a table of past steps.

    Attributes:
      capacity: number of steps that the table holds; the last observation of an episode takes the
        room of one step, too.
      batch_size: number of steps, or of sequences, in one update.
      updates_per_step: updates per environment step.
      warm_up_steps: number of steps in the table before the first update.
      updates_at_once: number of updates that are made in one call, from minibatches that are drawn
        together; their values are then published.
      rollout_steps: number of steps of each slot that an agent sends at once.
      priority_exponent: alpha of Schaul et al. 2016, with which minibatches prefer steps whose
        `rows["priority"]` is large; None: all steps are equally likely.
      weight_exponent: beta, with which `Batch.weights` correct that preference in the first
        minibatch; it rises by 0.001 with each one, to 1.
      n_step: number of rewards that `Batch.returns` sums.
      sequence_steps: steps of one sequence, `[T, B]` in `Batch`; None: minibatches consist of
        single steps, `[B]`.
      burn_in_steps: number of first steps of each sequence that only fill the network's memory,
        which is empty before them; they are not valid.
      discount: per step; `Batch.discount` is its n-th power for n summed rewards.
      on_overload: what happens to rollouts of clients with a time limit (`max_wait_ms`) while the
        learner is behind. "slip": the table takes them, and the updates are made later, as far as
        the learner catches up; "drop": they are discarded, and their steps only counted.
      hindsight: how goals are replaced in the steps that are drawn; None: they are not.
      balance_rewards: whether half of each minibatch are steps with a reward that is not 0, or
        sequences whose last step has one, and the other half are others. As long as there are none
        of a kind no update becomes due; a half that needs more than there are is drawn with
        replacement.
      reward_discount: factor per step of sums of each slot's rewards, whose moments are a running
        statistic of the model, `Normalizer("return", ())`, with which the algorithm can scale
        rewards; None: they are not measured.
      prior: recordings from which a part of each minibatch is drawn, see `LearnerConfig.offline`;
        None: minibatches have only steps of the run.
      prior_fraction: that part; see `prior_size`.
      prior_overridden: whether that part is also drawn from steps of the run where something other
        than the policy decided; see `OnPolicy`. They are in the run's own table, too.

    Raises:
      ValueError: an attribute is out of its range, or attributes contradict each other.
    """

    capacity: int
    batch_size: int
    updates_per_step: float = 1.0
    warm_up_steps: int = 0
    updates_at_once: int = 1
    rollout_steps: int = 1
    priority_exponent: float | None = None
    weight_exponent: float = 0.4
    n_step: int = 1
    sequence_steps: int | None = None
    burn_in_steps: int = 0
    discount: float = 0.99
    on_overload: Overload = "slip"
    hindsight: HindsightConfig | None = None
    balance_rewards: bool = False
    reward_discount: float | None = None
    prior: tuple[str, ...] | None = None
    prior_fraction: float = 0.5
    prior_overridden: bool = False
    has_table: ClassVar[bool] = True  # type: ignore[misc]
    takes_executed: ClassVar[bool] = True  # type: ignore[misc]
    # What other plans let one choose.
    next_actions: ClassVar[bool] = False  # type: ignore[misc]
    columns: ClassVar[int] = 1
    epochs: ClassVar[int] = 1
    prenormalize_steps: ClassVar[int] = 0
    update_norm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate_least(
            self,
            capacity=2,
            batch_size=1,
            warm_up_steps=0,
            updates_at_once=1,
            rollout_steps=1,
            n_step=1,
        )
        shares = ("priority_exponent", "weight_exponent", "discount", "reward_discount")
        _validate_shares(self, *shares)
        if not 0 < self.updates_per_step < math.inf:
            raise ValueError(
                f"Replay: updates_per_step is {self.updates_per_step}, expected a number above 0"
            )
        self._validate_balance()
        self._validate_prior()
        steps, burn_in = self.sequence_steps, self.burn_in_steps
        if steps is None:
            if burn_in:
                raise ValueError(
                    f"Replay: burn_in_steps is {burn_in}, but minibatches consist of single steps; "
                    "set sequence_steps, or burn_in_steps=0"
                )
            if self.hindsight is not None and self.n_step > 1:
                raise ValueError(
                    f"Replay: hindsight works with n_step=1, got {self.n_step}, because the "
                    "rewards of other steps belong to other goals; set n_step=1, or hindsight=None"
                )
            return
        if not 0 <= burn_in < steps:
            raise ValueError(
                f"Replay: sequence_steps is {steps} and burn_in_steps {burn_in}; expected "
                "0 <= burn_in_steps < sequence_steps"
            )
        others = [f"n_step={self.n_step}"] if self.n_step > 1 else []
        others += ["hindsight"] if self.hindsight is not None else []
        if others:
            raise ValueError(
                f"Replay: sequence_steps is {steps}, which cannot be combined with "
                f"{' and '.join(others)}; remove sequence_steps, or {' and '.join(others)}"
            )

    def _validate_balance(self) -> None:
        """Raises ValueError if minibatches are to be balanced, but cannot be."""
        if not self.balance_rewards:
            return
        if self.batch_size % 2:
            raise ValueError(
                f"Replay: batch_size is {self.batch_size}, but balance_rewards needs two halves; "
                "set an even batch_size"
            )
        others = {
            "priority_exponent": self.priority_exponent is not None,
            "n_step": self.n_step > 1,
            "hindsight": self.hindsight is not None,
        }
        for name in (name for name, is_set in others.items() if is_set):
            raise ValueError(
                f"Replay: balance_rewards chooses steps by their own rewards, and cannot be "
                f"combined with {name}={getattr(self, name)}; remove one of them"
            )

    def _validate_prior(self) -> None:
        """Raises ValueError if a part of each minibatch is to be recorded, but cannot be."""
        if not self.has_prior:
            return
        named = "true" if self.prior is None else ", ".join(self.prior)
        key = "prior_overridden" if self.prior is None else "prior"
        parts = {
            "priority_exponent": self.priority_exponent is not None,
            "sequence_steps": self.sequence_steps is not None,
            "hindsight": self.hindsight is not None,
            "balance_rewards": self.balance_rewards,
        }
        for name in (name for name, is_set in parts.items() if is_set):
            raise ValueError(
                f"Replay: {key} is {named}, which cannot be combined with {name}: such steps are "
                f"drawn uniformly, one by one; remove {key}, or {name}"
            )
        if not 0 < self.prior_size < self.batch_size:
            raise ValueError(
                f"Replay: prior_fraction is {self.prior_fraction}, which makes {self.prior_size} "
                f"of the {self.batch_size} steps of a minibatch recorded ones, expected 1 to "
                f"{self.batch_size - 1}; set prior_fraction closer to 0.5, or raise batch_size"
            )

    @property
    def overridden(self) -> OverriddenUse:  # type: ignore[override]
        """See `OnPolicy`."""
        return "mark" if self.prior_overridden else "keep"

    @property
    def has_prior(self) -> bool:
        """Whether a part of each minibatch can come from a prior."""
        return self.prior is not None or self.prior_overridden

    @property
    def prior_size(self) -> int:
        """Number of recorded steps in a minibatch with a prior; halves are rounded to even."""
        return round(self.prior_fraction * self.batch_size)

    @property
    def replaces_goals(self) -> bool:  # type: ignore[override]
        """See `Plan`."""
        return self.hindsight is not None

    @property
    def slips(self) -> bool:  # type: ignore[override]
        """See `Plan`."""
        return self.on_overload == "slip"

    @property
    def minibatch_of(self) -> Unit:
        """What a minibatch consists of: single steps, or sequences ("rollouts")."""
        return "steps" if self.sequence_steps is None else "rollouts"


# Plans whose updates use the available rollouts.
RolloutPlan = OnPolicy | Episodes | Offline
# Plans of learners that make their own updates.
LearningPlan = OnPolicy | Episodes | Offline | Replay


def get_plan(config: Any) -> Plan | Mapping[str, Plan] | None:
    """Returns an algorithm's plan.

    Returns:
      A plan for the only Algorithm or for all; a mapping from name to plan; or None: the
      algorithm's agents learn by themselves, or their learner, which is beside them, needs no plan.

    Raises:
      Exception: raised by the algorithm's code, if `plan` is a property.
    """
    # An AttributeError within a property would look as if there were none.
    has_plan = inspect.getattr_static(config, "plan", None) is not None
    return cast("Plan | Mapping[str, Plan] | None", config.plan) if has_plan else None


def get_own_plan(config: Any, name: str) -> Plan | None:
    """Returns the plan of one Algorithm; None: the config declares none.

    Args:
      config: the algorithm's.
      name: of the Algorithm; without a mapping, all Algorithms have the same plan.

    Raises:
      ConfigError: the config has plans by name, but none for this one; the error names the line.
      Exception: see `get_plan`.
    """
    plan = get_plan(config)
    if not isinstance(plan, Mapping):
        return plan
    if name not in plan:
        raise ConfigError(
            f"{describe_place(type(config), 'plan')}: no plan for the Algorithm {name!r}, only for "
            f"{', '.join(map(str, plan))}; add one"
        )
    return plan[name]


def name_plan(plan: Plan | Mapping[str, Plan] | None) -> str | dict[str, str] | None:
    """Returns the name of a plan's type; for several plans, a mapping; None without a plan."""
    if isinstance(plan, Mapping):
        return {name: type(one).__name__ for name, one in plan.items()}
    return None if plan is None else type(plan).__name__


def find_placement(plan: Plan | Mapping[str, Plan] | None) -> Placement:
    """Returns where a learner runs if the settings do not define it.

    It runs in the server if the iterations of any Algorithm have a fixed size, or if a table holds
    what all agents play. Otherwise it runs beside the agents.

    Args:
      plan: as from `get_plan`.
    """
    return "server" if any(p.has_fixed_size or p.has_table for p in list_plans(plan)) else "agent"


def list_plans(plan: Plan | Mapping[str, Plan] | None) -> list[Plan]:
    """Returns the plans of all Algorithms; []: there is none."""
    if isinstance(plan, Mapping):
        return list(plan.values())
    return [] if plan is None else [plan]


def get_rollout_steps(config: Any, name: str) -> int:
    """Returns the number of steps that an agent sends at once for an Algorithm.

    Raises:
      ConfigError: the config has plans or numbers by name, but none for this one.
      Exception: see `get_plan`.
    """
    plan = get_own_plan(config, name)
    steps = config.rollout_steps if plan is None else plan.rollout_steps
    if not isinstance(steps, Mapping):
        return steps
    if name not in steps:
        raise ConfigError(
            f"algorithm.rollout_steps: no number for the Algorithm {name!r}, only for "
            f"{', '.join(map(str, steps))}; add one"
        )
    return steps[name]


def _validate_least(plan: Plan, **numbers: int) -> None:
    """Raises ValueError if an attribute of a plan, other than None, is below its least number."""
    for name, least in numbers.items():
        value = getattr(plan, name)
        if value is not None and value < least:
            raise ValueError(f"{type(plan).__name__}: {name} is {value}, expected {least} or more")


def _validate_shares(plan: Plan, *names: str) -> None:
    """Raises ValueError if an attribute of a plan, other than None, is not from 0 to 1."""
    for name in names:
        value = getattr(plan, name)
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"{type(plan).__name__}: {name} is {value}, expected 0 to 1")
