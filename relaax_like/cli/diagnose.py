"""`relaax diagnose`: finds the cause of an update that was not finite, from training_error.npz."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.core.manifest import PUSHED, TRAINABLE
from relaax_like.core.prediction import ONLY_NAME
from relaax_like.launch.algorithm_code import get_make_algorithms, load_model_module, make_model
from relaax_like.learn.training_error import (
    count_leading_axes,
    describe_place,
    find_not_finite,
    load_training_error,
)
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import RelaaxError

# Prefix of an array's name -> usual cause if it is not finite; the first match is used.
_CAUSES = {
    "batch/inputs/": "The environment sent it: check the environment at the step given above.",
    "batch/next_inputs/": "The environment sent it: check the environment at the step given above.",
    "batch/rewards/": "The environment sent it: check it for a division by zero or a log of 0.",
    "batch/actions/": "The acting policy had diverged: a standard deviation near 0, or weights "
    "that are not finite. Lower the learning rates, or raise entropy_coefficient.",
    "value/": "An earlier update made the weights non-finite: lower the learning rates, or set "
    "max_gradient_norm, if the algorithm has this key.",
    "slots/": "An earlier gradient was too large for the optimizer: set max_gradient_norm, if the "
    "algorithm has this key, or lower the learning rates.",
    "batch/": "The acting policy had computed it from weights that had diverged: lower the "
    "learning rates, or set max_gradient_norm, if the algorithm has this key.",
}
# An array with larger numbers is reported although it is finite.
_LARGE_INPUT, _LARGE_REWARD, _LARGE_WEIGHT = 1e3, 1e3, 1e3
_SMALL_LOG_STD = -6.0
_OF_STATISTICS = (".count", ".mean", ".m2")


def show_diagnosis(path: Path) -> int:
    """Prints what is not finite and where, ranges of the other arrays, gradients and usual causes.

    Args:
      path: a run's folder, or the file in it.

    Raises:
      ConfigError: there is no such file, or it cannot be read, is damaged or is of another kind.
    """
    arrays = load_training_error(path)
    found = find_not_finite(arrays)
    algorithm = str(arrays.get("algorithm", ONLY_NAME))
    if algorithm != ONLY_NAME:
        print(f"algorithm {algorithm}")
    print(f"after {int(arrays['updates']):,} updates and {int(arrays['global_t']):,} steps")
    for name, array in arrays.items():
        if name.startswith("cost/"):
            print(f"{name.removeprefix('cost/')}: {float(array):g}")
    _print_not_finite(arrays, found)
    _print_ranges(arrays, found)
    _print_gradients(arrays)
    for line in find_causes(arrays):
        print(f"- {line}")
    return 0


def find_causes(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Returns usual causes of numbers that are not finite, or are too large; one line or more.

    Args:
      arrays: of a training_error.npz, by name; see `learn.training_error`.
    """
    found = [name for name in find_not_finite(arrays) if not name.startswith("cost/")]
    lines = [text for start, text in _CAUSES.items() if found and found[0].startswith(start)][:1]
    for name, array in arrays.items():
        if array.dtype.kind != "f" or not array.size or name in found:
            continue
        largest = float(np.abs(array).max())
        if name.startswith("batch/inputs/") and largest > _LARGE_INPUT:
            lines.append(
                f"{name} reaches {largest:g}: set update_norm or normalize_observations, "
                "whichever key the algorithm has, or scale it yourself."
            )
        elif name.startswith("batch/rewards/") and largest > _LARGE_REWARD:
            lines.append(
                f"{name} reaches {largest:g}: set normalize_rewards, if the algorithm has this "
                "key, or scale it yourself."
            )
        elif name == "value/log_std" and array.min() < _SMALL_LOG_STD:
            lines.append(
                f"log_std is down to {array.min():g}: the policy hardly explores, and "
                "probability ratios overflow; raise entropy_coefficient, or lower "
                "learning_rate."
            )
        elif (
            name.startswith("value/")
            and not name.endswith(_OF_STATISTICS)
            and largest > _LARGE_WEIGHT
        ):
            lines.append(f"{name} reaches {largest:g}: lower the learning rates.")
    if not lines and (costs := _find_costs(arrays)):
        lines.append(_describe_costs(costs, int(arrays["updates"])))
    elif not lines:
        lines.append(
            "All inputs are finite and of ordinary size, so the update itself overflowed: "
            "lower the learning rates, or, if the algorithm has these keys, set max_gradient_norm, "
            "or kl, which ends an iteration early."
        )
    return lines


def _find_costs(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the costs that are not finite; each has the name of its variable group."""
    groups = [name.removeprefix("slots/") for name in arrays if name.startswith("slots/")]
    costs = {group: arrays[f"cost/{group}"] for group in groups if f"cost/{group}" in arrays}
    return [group for group, cost in costs.items() if not np.isfinite(cost).all()]


def _describe_costs(costs: Sequence[str], updates: int) -> str:
    """Describes costs that are not finite although all that they are computed from is."""
    line = (
        f"The cost was already not finite ({', '.join(costs)}), with finite inputs and weights: "
        "check the algorithm's `learn` for a division by zero, or a logarithm of 0 or less"
    )
    if updates:  # those before can have led to it
        line += ". If there is none, an exponential overflowed: lower the learning rates"
    return f"{line}."


def _print_not_finite(
    arrays: Mapping[str, np.ndarray], found: Mapping[str, tuple[int, ...]]
) -> None:
    print("not finite (first occurrence in each array):" if found else "all arrays are finite")
    leading_axes = count_leading_axes(arrays)
    for name, index in found.items():
        array = arrays[name]
        nan, infinite = np.isnan(array).sum(), np.isinf(array).sum()
        print(
            f"  {describe_place(name, index, leading_axes)}: {nan:,} NaN, {infinite:,} infinite of "
            f"{array.size:,}"
        )


def _print_ranges(arrays: Mapping[str, np.ndarray], found: Mapping[str, Any]) -> None:
    table = Table(title="finite")
    table.add_column("array", overflow="fold")
    for column in ("shape", "min", "mean", "max"):
        table.add_column(column, justify="right")
    for name, array in arrays.items():
        if name in found or array.dtype.kind not in "fiub" or array.ndim == 0 or not array.size:
            continue
        numbers = (array.min(), array.mean(dtype=np.float64), array.max())
        shape = " x ".join(map(str, array.shape))
        table.add_row(name, shape, *(f"{float(number):.4g}" for number in numbers))
    Console().print(table)


def _print_gradients(arrays: Mapping[str, np.ndarray]) -> None:
    """Prints the norm of each variable's gradient, computed from all rows of the iteration."""
    if "settings" not in arrays:
        print("gradients: not computed, because the file has no settings")
        return
    try:
        norms, costs = compute_gradient_norms(arrays)
    except Exception as error:  # the rest of the diagnosis is useful without it
        kind = "" if isinstance(error, RelaaxError) else f"{type(error).__name__}: "
        print(f"gradients: not computed: {kind}{error}")
        return
    table = Table(title="gradients of the complete iteration")
    table.add_column("variable")
    table.add_column("norm", justify="right")
    for name, norm in norms.items():
        table.add_row(name, f"{norm:.4g}")
    Console().print(table)
    print("costs: " + ", ".join(f"{name} {cost:.4g}" for name, cost in costs.items()))


def compute_gradient_norms(
    arrays: Mapping[str, np.ndarray],
) -> tuple[dict[str, float], dict[str, float]]:
    """Recomputes the gradient with the weights of the file, unclipped.

    Of an algorithm with phases, the gradient of each phase is computed with these weights, so also
    of those that come after the one that failed. Loads TensorFlow, and the algorithm folder that
    the settings name.

    Returns:
      The norm of each trainable variable's gradient, and the costs.

    Raises:
      ConfigError: the settings in the file are not valid here, or the algorithm cannot be loaded.
      Exception: raised by the algorithm's code, or its model is not that of the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(str(arrays["settings"]))
        experiment = load_experiment(file)
    config, folder_of_code = experiment.algorithm, experiment.algorithm_folder
    with without_native_stderr():
        from relaax_like.learn.gradients import CompiledGradients

        name = str(arrays.get("algorithm", ONLY_NAME))
        module = load_algorithm_module(folder_of_code, "algorithm")
        if load_model_module(experiment) is not None:
            model = make_model(experiment)
            algorithm = module.make_algorithm(config, model, config.seed)
        else:
            algorithm = get_make_algorithms(module)(config, config.seed)[name]
        compiled = CompiledGradients(algorithm, clips=False, name=name)
        variables = compiled.get_variables()
        compiled.set_values([arrays[f"value/{variable.name}"] for variable in variables])
        # The next update is one in which all phases are due.
        compiled.num_gradients = math.lcm(*(phase.every for phase in algorithm.phases)) - 1
        pushed = [variable for variable in variables if variable.kind in PUSHED]
        norms: dict[str, float] = {}
        costs: dict[str, float] = {}
        for gradient in compiled.compute_updates(
            **_unpack_batch(arrays), global_t=int(arrays["global_t"])
        ):
            own = [v for v in pushed if v.group in (gradient.groups or (v.group,))]
            for one, array in zip(own, gradient.arrays, strict=True):
                if one.kind == TRAINABLE:
                    norms[one.name] = float(np.linalg.norm(array.astype(np.float64)))
            costs.update(gradient.numbers)
    return norms, costs


def _unpack_batch(arrays: Mapping[str, np.ndarray]) -> Any:
    batch: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        if key.startswith("batch/"):
            _, part, name = key.split("/", 2)
            batch.setdefault(part, {})[name] = array
    return batch
