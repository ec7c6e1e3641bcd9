"""Runs `relaax gym` in a simulator's environment, and writes down what the simulator does.

`python recorded.py FILE --env NAME ...`: the arguments after FILE are those of `relaax gym`. All
that `gymnasium.make` makes is wrapped. Each line of FILE is a JSON list: "reset" or "step", reward,
"terminated", "truncated" or "" (not the end), and the checksums of the observation's leaves.
"""

import json
import runpy
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from relaax_like.shipped import get_shipped_folder


class Recorder(gym.Wrapper):
    """Writes each result of an environment, before the product sees it."""

    file: Path

    def reset(self, **options: Any) -> Any:
        """Resets the environment, and writes the observation."""
        result = self.env.reset(**options)
        self._write("reset", None, "", result[0])
        return result

    def step(self, action: Any) -> Any:
        """Steps the environment, and writes reward, ending and observation."""
        result = self.env.step(action)
        seen, reward, terminated, truncated, _ = result
        # Where both are set, the limit coincides with a real end.
        ending = "terminated" if terminated else "truncated" if truncated else ""
        self._write("step", float(reward), ending, seen)
        return result

    def _write(self, kind: str, reward: float | None, ending: str, seen: Any) -> None:
        leaves = list(_find_leaves(seen))
        sums = sorted(zlib.crc32(leaf.tobytes()) for leaf in leaves)
        is_empty = not any(leaf.any() for leaf in leaves)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, reward, ending, sums, is_empty]) + "\n")


def _find_leaves(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, Mapping | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _find_leaves(part)
    else:
        yield np.asarray(value, np.float32)


def main() -> None:
    """Wraps `gymnasium.make`, and runs the program."""
    Recorder.file = Path(sys.argv[1])
    make = gym.make

    def make_recorded(*args: Any, **options: Any) -> gym.Env:
        gym.make = make  # also for what a module's own environment makes
        try:
            return Recorder(make(*args, **options))
        finally:
            gym.make = make_recorded

    gym.make = make_recorded
    # What `relaax gym` starts, which would be another process.
    program = get_shipped_folder("environments") / "OpenAI_Gym" / "main"
    sys.argv = [str(program), *sys.argv[2:]]
    runpy.run_path(str(program), run_name="__main__")


if __name__ == "__main__":
    main()
