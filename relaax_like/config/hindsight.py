"""Settings of hindsight: goals that are replaced when steps are drawn from a replay table."""

from typing import Annotated, Literal

from pydantic import Field

from relaax_like.config.base import IN_JOBS, Settings


class HindsightConfig(Settings):
    """Hindsight experience replay: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495.

    An observation has two leaves for goals: the goal that was achieved, and the desired one.
    """

    strategy: Literal["future", "final", "episode"] = "future"
    """Step of the episode whose achieved goal replaces the desired one: future, the drawn step or a
    later one; final, the last one so far; episode, any of them."""
    goals: int = Field(default=4, ge=1)
    """k: on average, k of k + 1 drawn steps get another goal."""
    achieved: Annotated[str, IN_JOBS] = "achieved_goal"
    """Name of the observation that says which goal has been achieved."""
    desired: Annotated[str, IN_JOBS] = "desired_goal"
    """Name of the observation that says which goal is desired."""
    tolerance: float = Field(default=0.05, ge=0)
    """Largest Euclidean distance at which a replaced goal counts as achieved. The reward is then 0,
    else -1; a function `compute_rewards` in the algorithm folder can define other rewards."""
    ends_at_goal: bool = False
    """Whether the environment terminates an episode when it achieves the desired goal. It must not
    terminate otherwise; a time limit is not a termination."""
