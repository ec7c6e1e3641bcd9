"""UpdatePlan: what a learner in the parameter server's process does with experience."""

from dataclasses import dataclass
from typing import Literal

# The running statistic of discounted sums of rewards, of models whose plan has a `reward_discount`.
RETURN_STATISTIC = "return"
# What a minibatch is made of: rows, or slots with all their steps.
Axis = Literal["rows", "slots"]


@dataclass(frozen=True, kw_only=True)
class UpdatePlan:
    """One iteration: so many rollouts of one slot each, gone through so often.

    Attributes:
      steps: T of each rollout.
      columns: rollouts of one slot.
      epochs: times that an iteration goes through them.
      minibatch: rows, or rollouts, in one update.
      axis: which of the two.
      prenormalize_steps: environment steps at the start of the run that are not learned from: they
        only feed the running statistics of the inputs.
      update_norm: feed those statistics after each iteration, too.
      reward_discount: rewards are divided by the running deviation of their sums with this
        discount; None: they are taken as they are.
      discount: of the returns of whole trajectories; None: the algorithm does not learn from them.
      gae_lambda: of the same.
    """

    steps: int
    columns: int
    epochs: int
    minibatch: int
    axis: Axis = "rows"
    prenormalize_steps: int = 0
    update_norm: bool = False
    reward_discount: float | None = None
    discount: float | None = None
    gae_lambda: float = 1.0

    @property
    def env_steps(self) -> int:
        """Of one iteration."""
        return self.steps * self.columns
