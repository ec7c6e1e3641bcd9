"""Conformance: the requirements on every algorithm folder, checked on the folder itself.

    for result in check_algorithm(find_folder_experiment("my_algorithm")):
        print(result.outcome, result.name, result.reason)

Only a temporary folder is written to. `relaax check-algorithm` prints the results.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relaax_like.config.algorithm_folder import find_algorithm
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.places import describe_error
from relaax_like.launch.conformance_checks import (
    check_batches,
    check_declarations,
    check_export,
    check_numpy,
    check_padding,
    check_placements,
    check_resume,
    check_specs,
)
from relaax_like.launch.conformance_learning import CHECK_NAME, check_learning
from relaax_like.launch.conformance_masks import check_masks
from relaax_like.launch.conformance_subject import Failed, NotApplicable, Subject
from relaax_like.launch.local import ask_environment
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import ConfigError, RelaaxError

Outcome = Literal["passed", "failed", "not applicable"]

LEARN_SEC = 30.0


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
      name: of the check.
      outcome: whether the folder passes it.
      reason: why it fails, why the check does not apply, or what ended "learns"; else "".
      seconds: duration of the check.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


def find_folder_experiment(name: str, sets: Sequence[str] = ()) -> Experiment:
    """Loads the experiment with which a folder is checked.

    Args:
      name: of a shipped algorithm, or the path of a folder or of an experiment's file. In a folder,
        the file is `check.yaml`, or the one named after the folder, or the only one.
      sets: overrides, "section.key=value".

    Raises:
      ConfigError: there is no such experiment, or it is not valid; or see `ask_environment`.
      Exception: see `ask_environment`.
    """
    experiment = load_experiment(_find_file(name), sets)
    return ask_environment(experiment)[0]


def _find_file(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    # Unlike Path's, this function does not raise if a name is too long or a permission is missing.
    folder = path if "/" in name or os.path.isdir(path) else find_algorithm(name, Path())
    if not os.path.isdir(folder):
        raise ConfigError(
            f"{name}: no such folder, or no access to it; expected the name or the folder of an "
            "algorithm, or an experiment's YAML file"
        )
    for file in (folder / CHECK_NAME, folder / f"{folder.resolve().name}.yaml"):
        if file.is_file():
            return file
    files = sorted(folder.glob("*.yaml"))
    if len(files) != 1:
        found = f"{len(files)} YAML files, none of them" if files else "no YAML file that is"
        raise ConfigError(
            f"{folder}: {found} named {folder.resolve().name}.yaml or {CHECK_NAME}; pass the file "
            f"to check with, or add {CHECK_NAME}"
        )
    return files[0]


def check_algorithm(
    experiment: Experiment, learn_sec: float = LEARN_SEC, only: Sequence[str] = ()
) -> Iterator[CheckResult]:
    """Checks an algorithm's folder; yields each result as soon as it is known.

    Args:
      experiment: names the folder, and the settings with which it is checked.
      learn_sec: processor time of the check "learns".
      only: names of the checks to run; (): all.

    Raises:
      ConfigError: `only` names a check that does not exist.
    """
    with without_native_stderr():
        import relaax_like.nn.runtime  # noqa: F401  # TensorFlow greets
    subject = Subject(experiment)
    checks: dict[str, Callable[[Subject], str | None]] = {
        "specs": check_specs,
        "numpy equals tensorflow": check_numpy,
        "together equals alone": check_batches,
        "legal actions": check_masks,
        "padding changes nothing": check_padding,
        "resume": check_resume,
        "placements agree": check_placements,
        "declarations": check_declarations,
        "export": check_export,
        "learns": lambda subject: check_learning(subject, learn_sec),
    }
    if unknown := [name for name in only if name not in checks]:
        raise ConfigError(
            f"--only: unknown check {unknown[0]!r}; expected one of {', '.join(checks)}"
        )
    for name, check in checks.items():
        if not only or name in only:
            yield _try(name, check, subject)


def _try(name: str, check: Callable[[Subject], str | None], subject: Subject) -> CheckResult:
    began = time.perf_counter()
    outcome: Outcome = "passed"
    reason = ""
    try:
        reason = check(subject) or ""
    except NotApplicable as why:
        outcome, reason = "not applicable", str(why)
    except (Failed, RelaaxError) as why:
        outcome, reason = "failed", str(why)
    except Exception as error:  # of the folder's code
        logging.getLogger(__name__).debug("the traceback", exc_info=error)
        outcome, reason = "failed", describe_error(error, subject.folder, str(subject.folder))
    return CheckResult(name, outcome, reason, time.perf_counter() - began)
