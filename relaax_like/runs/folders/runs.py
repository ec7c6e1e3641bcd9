"""Runs on disk: their settings, their curves, and which of them belong together."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax_like.config.models import METRICS_SERVER, PARAMETER_SERVER
from relaax_like.config.run_folder import (
    CONFIG_NAME,
    PLACES,
    find_config,
    find_folder,
    flatten_settings,
)
from relaax_like.config.yaml_document import read_yaml
from relaax_like.metrics.curves import Curve, read_curves
from relaax_like.runs.folders.versions import read_versions
from relaax_like.wire.errors import ConfigError

_MAX_SEEDS_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run's folder.

    Attributes:
      name: name of the folder; its path if another run has the same name.
      folder: of the run.
      seed: of the run.
      settings: "section.key" -> value, of all keys in its config.yaml.
      checkpoint_dir: folder of its snapshots.
      curves: name -> points.
      versions: package of the environment -> its versions, as clients said.
    """

    name: str
    folder: Path
    seed: int
    settings: dict[str, Any]
    checkpoint_dir: Path
    curves: dict[str, Curve]
    versions: dict[str, list[str]]

    @property
    def environment(self) -> str:
        """The environment: its `env`, `program` or `path`; "-": unknown."""
        for key in ("env", "program", "path"):
            if value := self.settings.get(f"environment.{key}"):
                return str(value)
        return "-"

    @property
    def algorithm(self) -> str:
        """Name of the algorithm, or of its folder; "-": unknown."""
        name = self.settings.get("algorithm.name")
        return str(name or Path(str(self.settings.get("algorithm.path", "-"))).name)

    @property
    def learned_from(self) -> dict[str, Any]:
        """All settings but `PLACES` (seed, where the run is stored and how it is monitored)."""
        return {key: value for key, value in self.settings.items() if key not in PLACES}


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Runs with the same settings, except for their seeds and other `PLACES`.

    Attributes:
      name: the runs' common name without the seeds, or the name of the first run.
      runs: the runs, by seed.
    """

    name: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> str:
        """The seeds as text, at most six of them and the number of the others."""
        shown = ", ".join(str(run.seed) for run in self.runs[:_MAX_SEEDS_SHOWN])
        more = len(self.runs) - _MAX_SEEDS_SHOWN
        return shown if more <= 0 else f"{shown} and {more} more"

    @property
    def label(self) -> str:
        """The name, and the seeds if there are several runs."""
        return self.name if len(self.runs) == 1 else f"{self.name} (seeds {self.seeds})"


def load_runs(paths: Sequence[Path]) -> list[Run]:
    """Reads the settings and curves of runs, given each run's folder or the config.yaml in it.

    Raises:
      ConfigError: a path is not a run, or its config.yaml or an event file of it cannot be read;
        the error names the path.
    """
    folders = [find_config(path).parent for path in paths]
    names = [folder.resolve().name for folder in folders]
    return [
        _load_run(folder, name if names.count(name) == 1 else str(folder))
        for folder, name in zip(folders, names, strict=True)
    ]


def group_runs(runs: Sequence[Run]) -> list[RunGroup]:
    """Groups runs that only differ in `PLACES`, in the order of the first run of each group."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.learned_from, sort_keys=True), []).append(run)
    names = [_name_group(group) for group in groups.values()]
    return [
        RunGroup(
            name=name if names.count(name) == 1 else group[0].name,
            runs=tuple(sorted(group, key=lambda run: run.seed)),
        )
        for name, group in zip(names, groups.values(), strict=True)
    ]


def find_differences(groups: Sequence[RunGroup]) -> dict[str, list[Any]]:
    """Returns the settings that are not the same in all groups: key -> one value per group.

    `PLACES` are left out. The value is None for a group that does not have the setting.
    """
    settings = [group.runs[0].learned_from for group in groups]
    keys = dict.fromkeys(key for one in settings for key in one)
    rows = {key: [one.get(key) for one in settings] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def _load_run(folder: Path, name: str) -> Run:
    data = read_yaml(folder / CONFIG_NAME).data
    section = METRICS_SERVER if METRICS_SERVER in data else PARAMETER_SERVER
    metrics_dir = find_folder(data, section, "metrics_dir", folder)
    try:
        curves = read_curves(metrics_dir)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or metrics_dir}: cannot be read: {error.strerror}; make it readable, "
            "or omit this run"
        ) from None
    return Run(
        name=name,
        folder=folder,
        seed=data.get("seed", 0),
        settings=flatten_settings(data),
        checkpoint_dir=find_folder(data, PARAMETER_SERVER, "checkpoint_dir", folder),
        curves=curves,
        versions=read_versions(folder),
    )


def _name_group(runs: Sequence[Run]) -> str:
    """Returns the runs' common name without the seeds, or the first run's name."""
    if len(runs) == 1:
        return runs[0].name
    names = {re.sub(rf"[-_. ]*(seed|s)?[-_. ]*{run.seed}$", "", run.name) for run in runs}
    return names.pop() if len(names) == 1 and "" not in names else runs[0].name
