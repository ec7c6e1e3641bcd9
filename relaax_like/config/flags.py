"""Keys of an experiment as flags: `--kl 0.02` is `--set algorithm.kl=0.02`."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from relaax_like.config.algorithm_folder import find_algorithm, load_config_class
from relaax_like.config.aliases import get_aliases, get_key
from relaax_like.config.base import Settings
from relaax_like.config.models import EnvironmentConfig, LearnerConfig, TopConfig, WandbConfig
from relaax_like.config.yaml_document import read_yaml
from relaax_like.shipped import find_experiment_file
from relaax_like.wire.errors import ConfigError

# The keys of these sections are flags for every file; "" stands for the keys outside of sections.
# The keys of the file's algorithm are flags, too; they have priority if two sections have the same
# key.
FLAG_SECTIONS: dict[str, type[Settings]] = {
    "": TopConfig,
    "environment": EnvironmentConfig,
    "learner": LearnerConfig,
    "wandb": WandbConfig,
}

# What other programs call the network, and how it is written here.
_LAYERS = {"layers": "'[64, 64]'", "arch": "'[64, {lstm: 64}]'"}


def flags_to_overrides(file: Path, arguments: Sequence[str]) -> list[str]:
    """Converts flags that a command does not define itself to overrides of the file.

    `--KEY VALUE` or `--KEY=VALUE`, with dashes for underscores; `--KEY` without a value is
    `--KEY true`. The key is looked up in the sections algorithm, learner and environment, then
    among the top-level keys. Those of the section wandb are `--wandb-KEY`.

    Args:
      file: the experiment's YAML file, or the name of a shipped experiment.
      arguments: of the command line.

    Returns:
      "section.key=value" for each flag.

    Raises:
      ConfigError: an argument is not a flag, there is no such key (the error names a similar key,
        if there is one), a key is set under two spellings, or the file or its algorithm cannot be
        loaded.
    """
    if not arguments:
        return []
    known = _find_keys(file)
    overrides = []
    used: dict[str, str] = {}
    for flag, value in _pair(arguments):
        name = flag.removeprefix("--").replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean --{near[0].replace('_', '-')}?" if near else ""
            if name in _LAYERS:
                hint = f"; for the network, use --set algorithm.network.layers={_LAYERS[name]}"
            raise ConfigError(
                f"{flag}: neither an option of this command, nor a top-level key, nor a key of the "
                "sections algorithm, learner or environment, nor --wandb-KEY (`relaax keys CONFIG` "
                "lists all keys; for keys of other sections, use --set SECTION.KEY=VALUE)"
                f"{hint}"
            )
        if used.setdefault(known[name], name) != name:
            first = used[known[name]].replace("_", "-")
            raise ConfigError(
                f"{flag}: another spelling of --{first}, which is also set; keep one of them"
            )
        overrides.append(f"{known[name]}={value}")
    return overrides


def _pair(arguments: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise ConfigError(f"{flag!r}: unexpected argument; expected --KEY VALUE")
        flag, equals, value = flag.partition("=")
        if not equals:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
        pairs.append((flag, value))
    return pairs


def get_flag(section: str, key: str) -> str:
    """Returns how a key of `FLAG_SECTIONS` is written as a flag."""
    prefix = "wandb-" if section == "wandb" else ""
    return f"--{prefix}{key.replace('_', '-')}"


def _find_keys(file: Path) -> dict[str, str]:
    """Maps all possible names of flags to the key with its section."""
    keys = {}
    for section, model in {**FLAG_SECTIONS, "algorithm": find_config_class(file)}.items():
        for name, field in model.model_fields.items():
            key = get_key(name, field)
            for spelling in (key, *get_aliases(name, field)):
                flag = get_flag(section, spelling).removeprefix("--").replace("-", "_")
                keys[flag] = f"{section}.{key}".removeprefix(".")
    return keys


def find_config_class(file: Path) -> type[Settings]:
    """Returns the `Config` class of the algorithm that an experiment's file names.

    Args:
      file: the YAML file, or the name of a shipped experiment.

    Raises:
      ConfigError: the file cannot be read, or it names no algorithm that can be loaded.
    """
    file = find_experiment_file(file)
    section: Any = read_yaml(file).data.get("algorithm")
    section = section if isinstance(section, dict) else {}
    name, path = section.get("name"), section.get("path")
    if not name and not path:
        raise ConfigError(
            f"{file}: algorithm: neither name nor path is set in the file, which `relaax keys` and "
            "all flags that are keys of the file need; set either name (a folder in algorithms/) "
            "or path (your own) there, or write --set KEY=VALUE instead of such flags"
        )
    return load_config_class(find_algorithm(name or Path(str(path)), file.parent))
