"""The folder of a run: run_dir, or a new folder LOGDIR/ENVIRONMENT/RUN-NAME/TIMESTAMP."""

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax_like.config.models import METRICS_SERVER, PARAMETER_SERVER
from relaax_like.config.yaml_document import quote_text, read_yaml
from relaax_like.wire.errors import ConfigError

CONFIG_NAME = "config.yaml"
# Keys that determine where a run is stored and how it is monitored, not what is learned.
PLACES = {
    "seed",
    "run_dir",
    "compile_cache",
    *(f"{PARAMETER_SERVER}.{key}" for key in ("bind", "checkpoint_dir", "metrics_dir")),
    *(f"{PARAMETER_SERVER}.{key}" for key in ("mirror_url", "prometheus_bind", "log_level")),
    f"{PARAMETER_SERVER}.progress_interval_sec",
    *(f"relaax-rlx-server.{key}" for key in ("bind", "parameter_server", "score_lines")),
    "relaax-rlx-server.log_level",
    *(f"{METRICS_SERVER}.{key}" for key in ("bind", "metrics_dir", "log_level")),
    *(f"learner.{key}" for key in ("bind", "advertise")),
    *(f"wandb.{key}" for key in ("project", "group", "name")),
}
_HASH_DIGITS = 8
_DEFAULTS = {"checkpoint_dir": "checkpoints", "metrics_dir": "metrics"}
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
    """Returns HASH-seedSEED; the hash does not depend on the keys in `PLACES`.

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
    """Returns a run's folder under a logdir, without creating it.

    Args:
      logdir: folder of all runs.
      run_name: the run's; None: `make_run_name`.
      data: the resolved settings of the experiment.
      new_run: return a folder that does not exist yet, named by the time; False: the newest one.

    Raises:
      ConfigError: there is no run, and `new_run` is False.
    """
    parent = logdir / _name_environment(data) / (run_name or make_run_name(data))
    if new_run:
        now = time.strftime("%Y%m%d-%H%M%S")
        names = [now, *(f"{now}-{number}" for number in range(2, 1000))]
        # Unlike Path's, it does not raise if a name is too long or a permission is missing.
        return next(parent / name for name in names if not os.path.exists(parent / name))
    found = parent.glob(f"*/{CONFIG_NAME}") if os.path.isdir(parent) else ()
    runs = sorted(path.parent for path in found)
    if not runs:
        raise ConfigError(
            f"logdir: {parent} contains no run; start one with `relaax train` or `relaax run`, or "
            "pass the folder of a run, if it had other settings. Servers that are started "
            "individually need run_dir instead of logdir"
        )
    return runs[-1]


def fix_run_dir(run_dir: Path) -> list[str]:
    """Returns the overrides with which every process of a run finds the same folder."""
    return [f"run_dir={quote_text(str(run_dir))}", "logdir=null", "run_name=null"]


def _name_environment(data: Mapping[str, Any]) -> str:
    environment = data.get("environment")
    if environment is None:
        return "no-environment"
    path = environment.get("path")
    name = environment.get("env") or environment.get("program") or Path(path).parent.name
    return _NOT_IN_NAMES.sub("-", name).lstrip(".-") or "environment"


def find_config(path: Path) -> Path:
    """Returns the config.yaml of a run, given the run's folder or that file.

    Raises:
      ConfigError: there is no such file, or no access to it.
    """
    is_folder = os.path.isdir(path)
    config = path / CONFIG_NAME if is_folder else path
    if config.name == CONFIG_NAME and os.path.isfile(config):
        return config
    what = f"has no {CONFIG_NAME}" if is_folder else "no such folder"
    what = "a file" if os.path.isfile(path) else f"{what}, or no access to it"
    raise ConfigError(
        f"{path}: {what}; expected the folder of a run (run_dir of its YAML file), or its "
        f"{CONFIG_NAME}"
    )


def find_experiment(path: Path) -> tuple[Path, list[str]]:
    """Finds the file from which to load an experiment.

    Args:
      path: a YAML file, or a run's folder, which might have been moved after the run.

    Returns:
      The YAML file, and the overrides that make the experiment's folders those of the run.

    Raises:
      ConfigError: the folder is not that of a run, or its config.yaml cannot be read.
    """
    if not os.path.isdir(path):
        return path, []
    config = find_config(path)
    data = read_yaml(config).data
    places = {"run_dir": path}
    for section, key in (
        (PARAMETER_SERVER, "checkpoint_dir"),
        (PARAMETER_SERVER, "metrics_dir"),
        (METRICS_SERVER, "metrics_dir"),
    ):
        if _get(data, section, key) is not None:
            places[f"{section}.{key}"] = find_folder(data, section, key, path)
    return config, [f"{key}={quote_text(str(place))}" for key, place in places.items()]


def find_folder(data: dict[str, Any], section: str, key: str, folder: Path) -> Path:
    """Returns where a run's folder of checkpoints or metrics is now.

    A folder inside run_dir is looked up in `folder`, because the run might have been moved; any
    other one is returned as named. Without the key, it is the default one in `folder`.

    Args:
      data: the content of the run's config.yaml.
      section: name of the section.
      key: name of the key, `checkpoint_dir` or `metrics_dir`.
      folder: where the run's folder is now.
    """
    given, run_dir = _get(data, section, key), data.get("run_dir")
    if given is None:
        return folder / _DEFAULTS[key]
    place = Path(str(given))  # YAML reads `run_dir: 7` as a number
    if run_dir is not None and place.is_relative_to(str(run_dir)):
        return folder / place.relative_to(str(run_dir))
    return place


def _get(data: dict[str, Any], section: str, key: str) -> Any:
    keys = data.get(section)
    return keys.get(key) if isinstance(keys, dict) else None
