"""When a training made its updates, and what follows from that; the same for all programs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from relaax_like.runs.folders.trace import find_trace_folder, load_traces

_UPDATE = "update"


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Beginning and end of each update, in the order of time.

    Attributes:
      begins: [n] float64, seconds since the program's start.
      ends: [n] float64, the same.
    """

    begins: np.ndarray
    ends: np.ndarray

    @property
    def compile_sec(self) -> float:
        """What the first update took longer than they usually take."""
        took = self.ends - self.begins
        return float(took[0] - np.median(took))

    def split(self, ended_sec: float, wall_sec: float) -> dict[str, float]:
        """Splits the time of a program.

        Args:
          ended_sec: when the training was over, seconds since the program's start.
          wall_sec: the program's end.

        Returns:
          `start_sec`, until the first update begins; `compile_sec`; `learn_sec`, the rest until the
          training was over; `finish_sec`, what came after it.
        """
        start_sec = float(self.begins[0])
        return {
            "start_sec": start_sec,
            "compile_sec": self.compile_sec,
            "learn_sec": ended_sec - start_sec - self.compile_sec,
            "finish_sec": wall_sec - ended_sec,
        }

    def compute_rate(self, env_steps: int, skip: int) -> float:
        """Returns environment steps per second, from the end of an early update to the last one's.

        Args:
          env_steps: of one update.
          skip: updates that are left out at the start, 1 or more.
        """
        counted = len(self.ends) - skip
        if not 0 < counted < len(self.ends):
            raise ValueError(f"skip: {skip}, but there were {len(self.ends)} updates")
        return float(env_steps * counted / (self.ends[-1] - self.ends[skip - 1]))


def make_moments(updates: Sequence[tuple[float, float]]) -> Moments:
    """Makes them of pairs of beginning and end."""
    pairs = np.array(updates, np.float64).reshape(-1, 2)
    return Moments(begins=pairs[:, 0], ends=pairs[:, 1])


def read_moments(run_dir: Path, started: float) -> Moments:
    """Reads them from the traces of a run of ours, made with `--trace`.

    Args:
      run_dir: the run's folder.
      started: monotonic time of the command's start.
    """
    began_ns = time.time_ns() - int((time.monotonic() - started) * 1e9)
    updates = []
    for trace in load_traces(find_trace_folder(run_dir))[0]:
        if _UPDATE in trace.names:
            spans = trace.spans[trace.spans["name"] == trace.names.index(_UPDATE)]
            updates += [((s["start"] - began_ns) / 1e9, (s["end"] - began_ns) / 1e9) for s in spans]
    return make_moments(sorted(updates))
