"""Settings of hindsight: goals that are replaced when steps are drawn from a replay table."""

from typing import Annotated, Literal

from pydantic import Field

from relaax_like.config.base import IN_JOBS, Settings


class HindsightConfig(Settings):
    """Hindsight experience replay: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495.

    An observation has two leaves for goals: the goal that was achieved, and the desired one.
    """

    strategy: Literal["future", "final", "episode"] = "future"
    """Which step's achieved goal replaces the desired goal: future, a later step of the episode;
    final, its last step; episode, any of its steps."""
    goals: int = Field(default=4, ge=1)
    """k: on average, k of k + 1 drawn steps get another goal."""
    achieved: Annotated[str, IN_JOBS] = "achieved_goal"
    """Name of the observation that says which goal has been achieved."""
    desired: Annotated[str, IN_JOBS] = "desired_goal"
    """Name of the observation that says which goal is desired."""
    tolerance: float = Field(default=0.05, ge=0)
    """Largest Euclidean distance at which a goal counts as achieved. The reward is 0 if it is
    achieved, else -1; the folder's `compute_rewards` can define other rewards."""
    ends_at_goal: bool = False
    """Whether the environment terminates an episode when it achieves the desired goal. It must not
    terminate otherwise; a time limit is not a termination."""
