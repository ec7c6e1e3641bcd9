"""AgentSource: what `Collected` and `Replayed`, the sources of agents' rollouts, have in common."""

import abc
import time
from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.core.episode_reports import pack_reports, unpack_reports
from relaax_like.core.records import EpisodeReport, Origin, TableStatus
from relaax_like.experience.collector import DataHandler
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.learner_loop import Source
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.tally import Tally


class AgentSource(Source):
    """Takes agents' rollouts, and counts their steps and episodes.

    A column is the rollout of one slot, or, with a plan `Episodes`, an episode. `conform`, `add`,
    `add_counts`, `add_sampling` and `forget` can be called from any thread.

    Attributes:
      holds_agents: whether agents wait until their rollouts have been learned from; False: they
        only wait while the source is full.
      tally, data_handler: the arguments.

    Args:
      tally: counts steps and episodes.
      layout: of the rollouts; None: they are used as they are, as they are from this process.
      data_handler: applies a user's changes to rollouts; None: no changes.
    """

    holds_agents = True

    def __init__(
        self, tally: Tally, layout: RolloutLayout | None, data_handler: DataHandler | None
    ):
        self.tally = tally
        self.data_handler = data_handler
        self._layout = layout
        self._counted_at = 0.0
        # Since _counted_at; guarded by the tally's lock.
        self._came_env_steps = 0
        self._sampling_sec: dict[str, float] = {}  # client id -> seconds

    @property
    def waiting_columns(self) -> int:
        """Number of columns that are not in an iteration yet; 0 with a replay table."""
        return 0

    @property
    def added_columns(self) -> int:
        """Number of columns that were ever added; 0 with a replay table."""
        return 0

    @property
    def taken_columns(self) -> int:
        """Number of columns that were used in iterations; 0 with a replay table."""
        return 0

    @property
    @abc.abstractmethod
    def has_iteration(self) -> bool:
        """Whether there is an iteration to take."""

    @property
    def missing_columns(self) -> int:
        """Number of columns that the next iteration lacks; 0 with a replay table."""
        return 0

    @property
    def table_status(self) -> TableStatus:
        """Status of the replay table, if this is one."""
        return TableStatus()

    def conform(self, rollout: Rollout) -> Rollout:
        """Converts a received rollout to the form that updates read.

        Raises:
          InvalidInputError: the rollout does not fit this run.
        """
        return rollout if self._layout is None else self._layout.conform(rollout)

    def add(
        self,
        rollout: Rollout,
        episodes: Sequence[EpisodeReport],
        env_steps: int | None = None,
        origin: Origin | None = None,
        is_urgent: bool = False,
    ) -> int:
        """Adds a rollout, and the episodes that ended in it; returns its ticket.

        Args:
          rollout: to learn from.
          episodes: those that ended in the rollout.
          env_steps: number of environment steps to count; None: those of the rollout.
          origin: the message that contained it; None: it is from this process.
          is_urgent: whether its agent cannot wait; see `LearnRequest`.

        Raises:
          CollectorFullError: too many rollouts are waiting, the learner or the disk is behind, or a
            replay table is closed; nothing was added.
          CollectorClosedError: the source is closed; nothing was added.
          ConfigError: the data handler has failed; the error names the line.
          InvalidInputError: the rollout does not fit this run, or the data handler returned no
            rollout; nothing was added (with a plan `Episodes` and a data handler, see
            `EpisodeCollector.add_exps_list`).
          ServerUnavailableError: the disk of a replay table's log has failed; nothing was added.
        """
        steps = rollout.env_steps if env_steps is None else env_steps
        with self.tally.lock:  # an iteration with this rollout is published with its steps
            ticket = self._take(rollout, is_urgent)
            self.tally.add(steps, episodes, origin, ticket)
            self._came_env_steps += steps
        return ticket

    @abc.abstractmethod
    def _take(self, rollout: Rollout, is_urgent: bool) -> int:
        """Takes a rollout; returns its ticket. Raises the same as `add`."""

    def add_counts(
        self, env_steps: int, episodes: Sequence[EpisodeReport] = (), origin: Origin | None = None
    ) -> None:
        """Accepts environment steps and episodes, to be counted with the next publication.

        Args:
          env_steps: 0 or more.
          episodes: those that ended within these steps.
          origin: the message that contained them; None: they are from this process.

        Raises:
          CollectorFullError: the disk of a replay table's log is behind; nothing was counted.
          ServerUnavailableError: that disk has failed; nothing was counted.
        """
        self.tally.add(env_steps, episodes, origin)

    def forget(self, agents: Sequence[int]) -> None:
        """Forgets slots that will send nothing more; see `Collector.forget`."""

    def add_sampling(self, client_id: str, seconds: float) -> None:
        """Adds the time that a client has sampled since its last message, excluding waits."""
        with self.tally.lock:
            self._sampling_sec[client_id] = self._sampling_sec.get(client_id, 0.0) + seconds

    def take_curves(self, sample_rate: float) -> Mapping[str, float]:
        """Returns the rates at which steps arrived; see `Source`."""
        now = time.monotonic()
        with self.tally.lock:
            came, self._came_env_steps = self._came_env_steps, 0
            sampling, self._sampling_sec = self._sampling_sec, {}
        seconds, self._counted_at = now - self._counted_at, now
        curves = {"Time/Sampled Timesteps per Second": came / max(seconds, 1e-9)}
        busy_sec = sum(sampling.values())
        if busy_sec > 0:
            # The rate if each client had only sampled.
            ideal = came * len(sampling) / busy_sec
            curves |= {
                "Time/Ideal Sample Rate": ideal,
                "Time/Overhead Loss": ideal - sample_rate,
            }
        return curves

    def take_state(self) -> dict[str, Any]:
        """Removes and returns the steps and episodes that are to be counted; see `Source`."""
        counts = self.tally.take()
        return {
            "env_steps": counts.env_steps,
            "episodes": pack_reports(counts.episodes),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; see `Source`."""
        episodes = unpack_reports(state["episodes"])
        self.tally.add(int(state["env_steps"]), episodes)
