"""`relaax export`: a run's greedy policy as ONNX and SavedModel, compared with the run's agents."""

import importlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like import __version__
from relaax_like.config.models import Experiment
from relaax_like.config.run_spaces import find_run_spaces
from relaax_like.config.seeds import derive_seed
from relaax_like.launch.algorithm_code import load_model_module, locate_errors, make_model
from relaax_like.launch.frozen_agents import validate_values
from relaax_like.launch.saved_policy import LATEST, read_snapshot
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.errors import ConfigError, RelaaxError
from relaax_like.wire.spaces import ACTION, OBSERVATION, RunSpaces

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.algorithm.greedy import GreedyPolicy

ONNX_FILE, SAVED_MODEL = "policy.onnx", "saved_model"
# In the SavedModel; TensorFlow reserves this folder for files that it does not read.
METADATA = "assets.extra/policy.json"
_ROWS = 1_000
# Largest difference, relative to the largest number of its row if that is above 1; and largest
# share of different actions, which occur if two are equally good except for rounding.
_TOLERANCE = 1e-5
_OTHER_ACTIONS = 1e-3

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Export:
    """The result of an export.

    Attributes:
      global_t: environment steps of the exported weights.
      version: of the weights.
      files: kind of the file -> its path.
      inputs: name, shape and dtype of each; B is the number of rows.
      outputs: the same for outputs.
      compared: number of random inputs.
      errors: name of the format -> largest difference from the numbers of the run's own agents,
        relative to the largest number of its row if that is above 1.
    """

    global_t: int
    version: int
    files: dict[str, Path]
    inputs: list[str]
    outputs: list[str]
    compared: int
    errors: dict[str, float]


def export_policy(
    experiment: Experiment, version: str = LATEST, folder: Path | None = None
) -> Export:
    """Writes the policy of a snapshot, and compares it with what the run's own agents compute.

    The files are moved to their place after the comparison.

    Args:
      experiment: of the run.
      version: see `read_snapshot`.
      folder: to write to; None: `export/VERSION` in the run's folder.

    Raises:
      ConfigError: the algorithm's folder has no model to export, or fails; `version` is wrong; the
        folder to write to is not empty; the model uses an operation that ONNX Runtime does not
        support, or an observation has the name of an output; or a library of the extra `export` is
        not installed.
      RelaaxError: the exported policy computes different results, or the folder cannot be read or
        written to.
      SnapshotError: see `read_snapshot`; or the snapshot belongs to another model.
    """
    if load_model_module(experiment) is None:
        raise ConfigError(
            f"{experiment.algorithm_folder}: cannot be exported, because no make_model(config, "
            "seed) in model.py returns the Model that acts; define it, or use relaax serve"
        )
    state = read_snapshot(experiment, version)
    folder = folder or experiment.run_dir / "export" / str(state.version)
    _require_free(folder)
    with without_native_stderr():
        import_libraries()
        from relaax_like.algorithm.acting import make_actor
        from relaax_like.algorithm.greedy import GreedyPolicy

        config, spaces = experiment.algorithm, find_run_spaces(experiment)
        model = make_model(experiment)
        values = state.manifest.unpack(state.values)
        validate_values(experiment, model, values)
        with locate_errors(experiment.algorithm_folder):  # the policy is called
            actor = make_actor(model, config.seed, config)
            actor.global_t = state.global_t
            actor.set_values(values, state.version)
            policy = GreedyPolicy(model, values, config, state.global_t, spaces)
        inputs = policy.make_random_inputs(_ROWS, derive_seed(experiment.seed, "export"))
        wanted = policy.run_actor(actor, inputs)
        facts = _describe_run(experiment, state.global_t, state.version)
        facts |= _describe_spaces(spaces, policy.keys)
        facts["normalization"] = policy.describe_normalization()
        try:
            errors = write_compared(policy, folder, facts, inputs, wanted)
        except OSError as error:
            raise RelaaxError(
                f"{folder}: cannot be written: {error}; choose another folder with --to"
            ) from error
    return Export(
        global_t=state.global_t,
        version=state.version,
        files={"ONNX": folder / ONNX_FILE, "TensorFlow SavedModel": folder / SAVED_MODEL},
        inputs=_describe_arrays(inputs, policy.keys),
        outputs=_describe_arrays(wanted, policy.keys),
        compared=_ROWS,
        errors=errors,
    )


def import_libraries() -> None:
    """Imports the libraries of the export, so that a missing one is reported before it starts.

    Raises:
      ModuleNotFoundError: a library is not installed.
    """
    # Our settings of TensorFlow must be made before tf2onnx imports it.
    for module in ("onnxruntime", "relaax_like.nn.runtime", "tf2onnx"):
        importlib.import_module(module)


def write_compared(
    policy: "GreedyPolicy", folder: Path, facts: Mapping[str, Any], inputs: Arrays, wanted: Arrays
) -> dict[str, float]:
    """Writes both files, and compares what they compute; leaves no files if the results differ.

    Args:
      policy: to write.
      folder: to create.
      facts: name -> JSON types, the metadata of both files.
      inputs: by name.
      wanted: outputs of the run's own agents.

    Returns:
      Format -> largest difference; see `Export`.

    Raises:
      OSError: a file cannot be written.
      RelaaxError: the exported policy computes different results, or ONNX Runtime cannot load it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as temporary:
        file, saved = Path(temporary) / ONNX_FILE, Path(temporary) / SAVED_MODEL
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
        policy.save_onnx(file, texts)
        policy.save(saved)
        (saved / METADATA).parent.mkdir()
        (saved / METADATA).write_text(json.dumps(facts, indent=1), encoding="utf-8")
        found = {
            "ONNX": _run_onnx(file, policy, inputs),
            "SavedModel": policy.run_saved(saved, inputs),
        }
        errors = {kind: _compare(kind, found[kind], wanted) for kind in found}
        folder.mkdir(exist_ok=True)
        for path in (file, saved):
            shutil.move(path, folder / path.name)
    return errors


def _require_free(folder: Path) -> None:
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise RelaaxError(
            f"{folder}: cannot be read: {error.strerror}; choose another folder with --to"
        ) from error
    if not is_free:
        raise ConfigError(f"{folder}: not an empty folder; remove it, or pass another with --to")


def _describe_run(experiment: Experiment, global_t: int, version: int) -> dict[str, Any]:
    """Returns the metadata that says where the policy is from."""
    return {
        "run": experiment.run_dir.name,
        "global_t": global_t,
        "version": version,
        "product": f"relaax_like {__version__}",
        "observation_history": experiment.algorithm.observation_history,
    }


def _describe_spaces(spaces: RunSpaces, keys: Mapping[str, str]) -> dict[str, Any]:
    """Returns the metadata of spaces: leaf -> attributes, and the array's name in the files."""
    return {
        f"{kind}_spaces": {
            leaf: {"name": keys.get(leaf), "kind": type(space).__name__}
            | {k: _to_json(v) for k, v in vars(space).items() if k != "mirror"}
            for leaf, space in leaves.items()
        }
        for kind, leaves in ((OBSERVATION, spaces.observations), (ACTION, spaces.actions))
    }


def _to_json(value: Any) -> Any:
    """Converts an attribute of a space: equal bounds become one number, infinite ones null."""
    if not isinstance(value, np.ndarray):
        return value
    numbers = value.astype(np.float64 if value.dtype.kind == "f" else np.int64).astype(object)
    numbers[~np.isfinite(value)] = None
    flat = numbers.ravel().tolist()
    return flat[0] if flat and flat.count(flat[0]) == len(flat) else numbers.tolist()


def _describe_arrays(arrays: Arrays, keys: Mapping[str, str]) -> list[str]:
    return [
        f"{keys[name]} [{', '.join(['B', *map(str, array.shape[1:])])}] {array.dtype}"
        for name, array in arrays.items()
    ]


def _run_onnx(file: Path, policy: "GreedyPolicy", inputs: Arrays) -> dict[str, np.ndarray]:
    """Computes the outputs of an ONNX file.

    Raises:
      ConfigError: ONNX Runtime cannot load the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # they have no common type
        raise ConfigError(
            f"ONNX Runtime cannot load the exported policy: {_get_first_line(error)}. The "
            "model probably uses an operation that ONNX Runtime does not support; replace it"
        ) from error
    known = {one.name for one in session.get_inputs()}
    keys = policy.keys
    feeds = {keys[name]: array for name, array in inputs.items() if keys[name] in known}
    found = session.run([keys[name] for name in policy.outputs], feeds)
    return dict(zip(policy.outputs, found, strict=True))


def _get_first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _compare(kind: str, found: Arrays, wanted: Arrays) -> float:
    """Returns the largest difference between the floats of two results; see `Export`.

    Raises:
      RelaaxError: the results differ by more than rounding.
    """
    largest = 0.0
    for name, own in wanted.items():
        got = found[name]
        if got.shape != own.shape or got.dtype != own.dtype:
            what = f"{got.dtype} {list(got.shape)}, expected {own.dtype} {list(own.shape)}"
        elif own.dtype.kind == "f":
            sizes = np.where(np.isfinite(own), np.abs(own), 0)
            scale = sizes.max(axis=tuple(range(1, own.ndim)), keepdims=True, initial=1.0)
            with np.errstate(invalid="ignore"):  # of infinities, which are equal or not
                errors = np.where(got == own, 0, np.abs(got - own) / scale)
            error = float(errors.max(initial=0.0))
            if error <= _TOLERANCE:
                largest = max(largest, error)
                continue
            what = f"different by {error:.1e}, expected at most {_TOLERANCE:g}"
        else:
            share = float((got != own).mean())
            if share <= _OTHER_ACTIONS:
                continue
            what = f"different for {share:.1%} of the inputs"
        raise RelaaxError(
            f"the exported policy ({kind}) does not compute the same as the agents: {name} is "
            f"{what}; nothing was written. Use relaax serve instead, and report this with the "
            "settings (config.yaml of a run)"
        )
    return largest
