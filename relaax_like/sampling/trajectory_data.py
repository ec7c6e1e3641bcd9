"""TrajectoryData: an iteration of whole trajectories."""

from dataclasses import dataclass

from relaax_like.experience.buffer import Buffer


@dataclass(frozen=True)
class TrajectoryData:
    """What a learner trains on at once.

    Attributes:
      buffer: with named states and actions, and the extra `log_prob`.
      tickets: none; it has come by no collector.
    """

    buffer: Buffer
    tickets: tuple[int, ...] = ()

    @property
    def env_steps(self) -> int:
        """In the buffer."""
        return len(self.buffer)
