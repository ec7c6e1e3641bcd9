"""Collected: agents' rollouts as a source of iterations; and the collector of a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from relaax_like.config.plan import Episodes, OnPolicy
from relaax_like.experience.collector import Collector, DataHandler, TrainingData
from relaax_like.experience.episodes import EpisodeCollector
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import TrajectoryGatherer, TrajectoryWriter
from relaax_like.learn.agent_source import AgentSource
from relaax_like.learn.data_handlers import locate_handler_errors
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.tally import Tally


class Collected(AgentSource):
    """Collects rollouts until they make an iteration.

        source = Collected(collector, tally, layout)
        ticket = source.add(rollout, episodes)
        iteration = source.get(done=0, timeout_sec=1.0)

    Args:
      collector: makes iterations.
      tally: counts steps and episodes.
      layout: see `AgentSource`.
      trajectories: writes what was learned from; None: nothing is written.
    """

    def __init__(
        self,
        collector: Collector,
        tally: Tally,
        layout: RolloutLayout | None = None,
        trajectories: TrajectoryWriter | TrajectoryGatherer | None = None,
    ):
        super().__init__(tally, layout, collector.data_handler)
        self._collector = collector
        self._trajectories = trajectories

    @property
    def waiting_columns(self) -> int:
        """Number of columns that are not in an iteration yet; see `AgentSource`."""
        return self._collector.waiting_columns

    @property
    def added_columns(self) -> int:
        """Number of columns that were ever added; see `AgentSource`."""
        return self._collector.num_added

    @property
    def taken_columns(self) -> int:
        """Number of columns that were used in iterations; see `AgentSource`."""
        return self._collector.num_taken

    @property
    def missing_columns(self) -> int:
        """Number of columns that the next iteration lacks; see `AgentSource`."""
        return self._collector.columns - self._collector.waiting_columns

    @property
    def has_iteration(self) -> bool:
        """Whether there is a complete iteration."""
        return self._collector.has_batch

    def forget(self, agents: Sequence[int]) -> None:
        """Forgets slots that will send nothing more; see `Collector.forget`."""
        self._collector.forget(agents)

    def get(self, done: int, timeout_sec: float) -> TrainingData | None:
        """Waits for the next iteration; see `Source`."""
        return self._collector.get_training_data(timeout_sec)

    def note_learned(
        self, number: int, iteration: TrainingData, results: Mapping[str, Any]
    ) -> None:
        """Passes the results to the data handler, and writes the iteration; see `Source`.

        Raises:
          ConfigError: the data handler has failed; the error names the line.
        """
        with locate_handler_errors(self._collector.data_handler, "after_learn"):
            self._collector.handle_data_after_learn(results)
        if self._trajectories is not None:
            self._trajectories.write(number, iteration.rollout)

    def take_state(self) -> dict[str, Any]:
        """Returns the waiting rollouts, and removes the counts from this source; see `Source`."""
        return {**super().take_state(), "collector": self._collector.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; see `Source`."""
        self._collector.set_state(state["collector"])
        super().set_state(state)

    def close(self) -> None:
        """Stops accepting rollouts, and writes the steps that are not in a file yet."""
        self._collector.close()
        if self._trajectories is not None:
            self._trajectories.flush()

    def _take(self, rollout: Rollout, is_urgent: bool) -> int:
        with locate_handler_errors(self._collector.data_handler, "after_interact"):
            return self._collector.add(rollout)


def make_collector(
    plan: OnPolicy | Episodes, capacity: int, data_handler: DataHandler | None = None
) -> Collector:
    """Returns a collector of the iterations of a plan.

    Args:
      plan: of an iteration.
      capacity: number of columns that can wait; see `Collector`.
      data_handler: applies a user's changes; None: no changes.

    Raises:
      ConfigError: `capacity` is less than the columns of an iteration.
    """
    steps, columns = plan.rollout_steps, plan.columns
    if isinstance(plan, OnPolicy):
        return Collector(
            steps,
            columns,
            capacity=capacity,
            max_columns=plan.max_columns,
            data_handler=data_handler,
            overlap=plan.overlap,
        )
    return EpisodeCollector(
        steps, columns, capacity=capacity, max_steps=plan.max_steps, data_handler=data_handler
    )
