"""What agents hand to a learner and hear from it: plain data, wherever the learner runs."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax_like.bridge.service import Episode
from relaax_like.experience.rollout import Rollout


@dataclass(frozen=True)
class Work:
    """A rollout to learn from; or (None) only counts, and a wish for the newest values.

    Attributes:
      number: named in the answer; no other work under way has it.
      rollout: its arrays are not copied.
      episodes: that ended meanwhile.
      env_steps: to be counted with it.
      agent: who played it, of the agents of this process.
      leaves: the agent submits nothing more; see `Learner.leave`.
    """

    number: int
    rollout: Rollout | None
    episodes: Sequence[Episode] = ()
    env_steps: int = 0
    agent: str = ""
    leaves: bool = False


@dataclass(frozen=True)
class Learned:
    """A learner's answer to one or several works.

    Attributes:
      numbers: of the works, which were learned from or could not be used.
      version: of the newest known values.
      global_t: newest known environment steps of all agents of the run.
      finished: what ended the training, or "".
      values: of all variables, in manifest order, read-only; None: no newer ones.
    """

    numbers: Sequence[int]
    version: int
    global_t: int
    finished: str
    values: Sequence[np.ndarray] | None


OnLearned = Callable[[Learned], None]


class Learner(abc.ABC):
    """Turns rollouts into new values; in this process or in another."""

    @abc.abstractmethod
    def start(self, on_learned: OnLearned) -> None:
        """Calls `on_learned` with the first values, then, from another thread, with each answer.

        Raises:
          ServerUnavailableError: there are no values to be had; try again later.
        """

    @abc.abstractmethod
    def submit(self, work: Work) -> None:
        """Hands work over without waiting; each is answered, unless the learner is stopped."""

    def leave(self, agent: str) -> None:  # noqa: B027 - optional
        """Hears that an agent submits nothing more: nobody needs to wait for it."""

    def get_state(self) -> dict[str, Any]:
        """Returns what it holds that no parameter server does; while no work is under way."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Goes on from what `get_state` returned; before the first work."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends after the work at hand; may be called twice."""
