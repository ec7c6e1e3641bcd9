"""Where a run lies: in run_dir, or in a new folder LOGDIR/ENVIRONMENT/RUN-NAME/TIMESTAMP."""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax_like.wire.errors import ConfigError

CONFIG_NAME = "config.yaml"
_PARAMETER_SERVER = "relaax-parameter-server"
_METRICS_SERVER = "relaax-metrics-server"
# What says where a run lies and how it is watched, not what is learned.
PLACES = {
    "seed",
    "run_dir",
    "compile_cache",
    *(f"{_PARAMETER_SERVER}.{key}" for key in ("bind", "checkpoint_dir", "metrics_dir")),
    *(f"{_PARAMETER_SERVER}.{key}" for key in ("mirror_url", "prometheus_bind", "log_level")),
    f"{_PARAMETER_SERVER}.progress_interval_sec",
    *(f"relaax-rlx-server.{key}" for key in ("bind", "parameter_server", "score_lines")),
    "relaax-rlx-server.log_level",
    *(f"{_METRICS_SERVER}.{key}" for key in ("bind", "metrics_dir", "log_level")),
    *(f"wandb.{key}" for key in ("project", "group", "name")),
}
_HASH_DIGITS = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def flatten_settings(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns "section.key" -> value of nested settings."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat.update(flatten_settings(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def make_run_name(data: Mapping[str, Any]) -> str:
    """Returns HASH-seedSEED; the hash is the same for settings that differ in seed and places only.

    Args:
      data: the resolved settings of an experiment.
    """
    settings = {k: v for k, v in flatten_settings(data).items() if k not in PLACES}
    text = json.dumps(settings, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{digest}-seed{data.get('seed', 0)}"


def find_run_dir(
    logdir: Path, run_name: str | None, data: Mapping[str, Any], new_run: bool
) -> Path:
    """Returns a run's folder under a logdir; makes nothing.

    Args:
      logdir: where all runs lie.
      run_name: the run's; None: `make_run_name`.
      data: the resolved settings of the experiment.
      new_run: a folder that is not there yet, named by the time; False: the newest one.

    Raises:
      ConfigError: there is none, and no new one is to be.
    """
    parent = logdir / _name_environment(data) / (run_name or make_run_name(data))
    if new_run:
        now = time.strftime("%Y%m%d-%H%M%S")
        names = [now, *(f"{now}-{number}" for number in range(2, 1000))]
        return next(parent / name for name in names if not (parent / name).exists())
    runs = sorted(path.parent for path in parent.glob(f"*/{CONFIG_NAME}"))
    if not runs:
        raise ConfigError(
            f"logdir: {parent} contains no run; start one with `relaax train` or `relaax run`. "
            "Servers that are started individually need run_dir instead of logdir"
        )
    return runs[-1]


def fix_run_dir(run_dir: Path) -> list[str]:
    """Returns the overrides with which every process of a run finds the same folder."""
    # JSON's quotes are YAML's, too.
    return [f"run_dir={json.dumps(str(run_dir))}", "logdir=null", "run_name=null"]


def _name_environment(data: Mapping[str, Any]) -> str:
    environment = data.get("environment")
    if environment is None:
        return "no-environment"
    path = environment.get("path")
    name = environment.get("env") or environment.get("program") or Path(path).parent.name
    return _NOT_IN_NAMES.sub("-", name).lstrip(".-") or "environment"
