"""`relaax check-algorithm`: the requirements on an algorithm's folder, one line per check."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from relaax_like.launch.conformance import check_algorithm, find_folder_experiment

_COLORS = {"passed": "green", "failed": "red", "not applicable": "yellow"}


def show_checks(name: str, sets: Sequence[str], learn_sec: float, only: Sequence[str] = ()) -> int:
    """Prints the result of each check; returns 1 if one has failed, else 0.

    Args:
      name: see `find_folder_experiment`.
      sets: overrides of keys.
      learn_sec: longest time for the check that it learns.
      only: names of the checks to make; (): all.

    Raises:
      ConfigError: see `find_folder_experiment`; or `only` names a check that does not exist.
      Exception: see `find_folder_experiment`.
    """
    experiment = find_folder_experiment(name, sets)
    console = Console(soft_wrap=True, highlight=False)
    failed = 0
    for result in check_algorithm(experiment, learn_sec, only):
        failed += result.outcome == "failed"
        color, reason = _COLORS[result.outcome], f": {result.reason}" if result.reason else ""
        text = f"{result.name}{reason} ({result.seconds:.1f} s)"
        console.print(f"[{color}]{result.outcome:14}[/] {escape(text)}")
    console.print(
        f"{experiment.algorithm_folder} "
        + (f"fails {failed} of the checks" if failed else "passes all checks")
        + f" that apply, with {experiment.file.name}"
    )
    return 1 if failed else 0
