"""Folders as runs leave them, with curves of known numbers, and no training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relaax_like.config.yaml_document import write_yaml
from relaax_like.metrics.names import EPISODES, MEAN_RETURN, RETURN_EPISODES
from relaax_like.metrics.tensorboard_files import Event, RecordWriter, Summary

# Wall times of the tests' points count from here.
START = 1_700_000_000.0
# (seconds after START, step, value).
Points = Sequence[tuple[float, int, float]]


def write_events(path: Path, start_sec: float, curves: Mapping[str, Points]) -> None:
    """Writes an event file that was opened `start_sec` after START; times as the points say."""
    events = [Event(wall_time=START + start_sec, file_version="brain.Event:2")]
    for name, points in curves.items():
        for second, step, value in points:
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            events.append(Event(wall_time=START + second, step=step, summary=summary))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())


def make_run(folder: Path, curves: Mapping[str, Points], seed: int = 0, **algorithm: Any) -> Path:
    """Writes a run's folder: its configuration with keys of `algorithm`, and its curves."""
    data = {
        "seed": seed,
        "run_dir": str(folder),
        "relaax-parameter-server": {
            "bind": f"localhost:{7000 + seed}",
            "checkpoint_dir": str(folder / "checkpoints"),
            "metrics_dir": str(folder / "metrics"),
        },
        "learner": {"target_episodes": 10},
        "algorithm": {"name": "toy", "learning_rate": 0.001, **algorithm},
        "environment": {"program": "OpenAI_Gym", "env": "CartPole-v1"},
    }
    write_events(folder / "metrics" / "events.out.tfevents.1", 0.0, curves)
    (folder / "config.yaml").write_text(write_yaml(data))
    return folder


def make_returns(
    points: Points, episodes_per_point: int = 10, window: int = 10
) -> dict[str, Points]:
    """Returns the curves that a parameter server records, of (second, step, mean return)."""
    counts = [
        (second, step, float(episodes_per_point * number))
        for number, (second, step, _) in enumerate(points, start=1)
    ]
    in_mean = [(second, step, min(count, window)) for second, step, count in counts]
    return {MEAN_RETURN: points, EPISODES: counts, RETURN_EPISODES: in_mean}
