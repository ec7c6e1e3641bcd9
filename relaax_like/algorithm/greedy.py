"""A model's greedy policy as one TensorFlow function of named arrays: what is exported."""

from __future__ import annotations

import keyword
import math
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.algorithm.acting import Actor, NumpyActor, to_tensor_specs, trace_policy
from relaax_like.algorithm.exploration import Exploration
from relaax_like.algorithm.model import Model, get_normalizers, order_variables
from relaax_like.algorithm.tracing import make_concrete
from relaax_like.nn.action_heads import fit_actions
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.nn.normalization import CLIP, EPSILON, Normalizer
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import RunSpaces

# Prefixes of the names of memory, before and after a step.
MEMORY, NEXT_MEMORY = "memory/", "next_memory/"

# Read by ONNX Runtime 1.12 and newer.
OPSET = 17
_UNKNOWN = RunSpaces({}, {})

Arrays = Mapping[str, np.ndarray]


class GreedyPolicy:
    """Computes a model's greedy actions, for B rows at once.

        policy = GreedyPolicy(model, values, config)
        policy.save(folder)  # a SavedModel
        policy.save_onnx(file, {"version": "844"})

    Inputs are the observations by leaf, and `memory/NAME` for each memory that actions depend on.
    Outputs are the actions by name, `ACTION/logits` and the like, from which the actions are
    computed, and `next_memory/NAME`. Arrays have the shapes of the environment, except observations
    with a history; continuous actions are clipped to its bounds. Integers count from 0.

    Attributes:
      inputs: name -> `[None, ...]` tf.TensorSpec.
      outputs: name -> `[None, ...]` symbolic tensor.
      keys: name -> its name in the files, a Python identifier: `memory_policy` for `memory/policy`.

    Args:
      model: its variables are set to `values`.
      values: of all variables, in manifest order.
      config: its schedules control exploration; None: no schedules.
      global_t: environment steps of the run, for schedules.
      spaces: of the environment, as far as they are known.

    Raises:
      ConfigError: two inputs or outputs have the same name in the files, or the policy cannot be
        traced; see `trace_policy`.
    """

    def __init__(
        self,
        model: Model,
        values: Sequence[np.ndarray],
        config: Any = None,
        global_t: int = 0,
        spaces: RunSpaces = _UNKNOWN,
    ):
        for variable, value in zip(order_variables(model), values, strict=True):
            variable.assign(value)
        self._model = model
        self._spaces = spaces
        self._explore = {
            name: float(array[0])
            for name, array in Exploration(model, config).compute(global_t, 1).items()
        }
        self._trace([name for name, _ in model.get_state_specs()])
        needed = self._find_memory()
        if needed != self.memory:
            self._trace(needed)

    @property
    def memory(self) -> list[str]:
        """Names of the memory that actions depend on."""
        return [name.removeprefix(MEMORY) for name in self.inputs if name.startswith(MEMORY)]

    def save(self, folder: Path) -> None:
        """Writes a SavedModel with the signature `serving_default`.

        Raises:
          OSError: a file cannot be written.
        """
        holder = tf.Module()
        holder.captured = list(self._function.variables)  # other variables are not saved
        signatures = {"serving_default": self._function}
        try:
            tf.saved_model.save(holder, str(folder), signatures=signatures)
        except tf.errors.OpError as error:  # TensorFlow's form of an OSError
            raise OSError(str(error)) from error

    def save_onnx(self, file: Path, metadata: Mapping[str, str]) -> None:
        """Writes an ONNX model.

        Operations that ONNX does not support are logged as errors; then the file cannot be loaded.

        Args:
          file: to write.
          metadata: name -> text, stored in the file.

        Raises:
          ModuleNotFoundError: onnx or tf2onnx is not installed.
          OSError: the file cannot be written.
        """
        import onnx
        import tf2onnx

        # It traces functions by itself, but passes no arguments by name.
        traced = types.SimpleNamespace(get_concrete_function=lambda: self._function)
        model, _ = tf2onnx.convert.from_function(traced, (), opset=OPSET)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
        onnx.helper.set_model_props(model, dict(metadata))
        file.write_bytes(model.SerializeToString())

    def describe_normalization(self) -> dict[str, dict[str, Any]]:
        """Returns observation -> what its normalisation subtracts, divides by and clips to."""
        return {
            normalizer.statistic: {
                "mean": normalizer.mean.numpy().tolist(),
                "deviation": _get_deviation(normalizer).tolist(),
                "clip": CLIP,
            }
            for normalizer in get_normalizers(self._model)
            if normalizer.statistic in self.inputs
        }

    def run_saved(self, folder: Path, inputs: Arrays) -> dict[str, np.ndarray]:
        """Loads a SavedModel that `save` has written; returns its outputs by name, `[B, ...]`."""
        signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        found = signature(**{self.keys[n]: tf.constant(a) for n, a in inputs.items()})
        return {name: found[self.keys[name]].numpy() for name in self.outputs}

    def run_actor(self, actor: Actor, inputs: Arrays) -> dict[str, np.ndarray]:
        """Computes the outputs in the same way as agents do.

        Args:
          actor: of the same model, with the values set.
          inputs: by name, `[B, ...]`; a memory that is missing is zero.

        Returns:
          The outputs by name, `[B, ...]`.
        """
        rows = len(next(iter(inputs.values())))
        observations = {
            name: inputs[name].reshape(rows, *p["shape"])
            for name, p in self._model.get_input_specs()
        }
        memory = {
            name: inputs.get(MEMORY + name, np.zeros((rows, *p["shape"]), np.float32))
            for name, p in self._model.get_state_specs()
        }
        prediction = actor.act(observations, memory, exploit=True)
        explore = {name: np.full(rows, x, np.float32) for name, x in self._explore.items()}
        arguments: list[Any] = [observations, memory, *([explore] if explore else [])]
        if not isinstance(actor, NumpyActor):
            arguments = [{k: tf.constant(a) for k, a in part.items()} for part in arguments]
        distributions, _ = self._model.policy(*arguments)
        found = {**self._fit(prediction.actions), **_get_parameters(distributions)}
        found.update((NEXT_MEMORY + name, prediction.next_states[name]) for name in self.memory)
        return {name: np.asarray(array) for name, array in found.items()}

    def make_random_inputs(self, rows: int, seed: int) -> dict[str, np.ndarray]:
        """Draws inputs `[rows, ...]`, by name, for tests of exported files.

        Inputs that the policy normalises have its running mean and standard deviation.

        Args:
          rows: number of rows.
          seed: of the draws.
        """
        random = np.random.default_rng(seed)
        moments = {n.statistic: n for n in get_normalizers(self._model)}
        shapes = {name: p["shape"] for name, p in self._model.get_input_specs()}
        inputs: dict[str, np.ndarray] = {}
        for name, spec in self.inputs.items():
            shape = (rows, *shapes.get(name, spec.shape[1:]))
            dtype = spec.dtype.as_numpy_dtype
            if np.dtype(dtype).kind != "f":
                inputs[name] = random.integers(256 if dtype == np.uint8 else 2, size=shape)
            elif name.startswith(MEMORY):
                inputs[name] = random.uniform(-1, 1, shape)
            else:
                inputs[name] = random.standard_normal(shape)
                if name in moments:
                    deviation = _get_deviation(moments[name])
                    inputs[name] = moments[name].mean.numpy() + deviation * inputs[name]
            inputs[name] = inputs[name].astype(dtype).reshape(rows, *spec.shape[1:])
        return inputs

    def _trace(self, memory: Sequence[str]) -> None:
        """Makes the function, with only the named memories as inputs and outputs."""
        kept = [(MEMORY + name, p) for name, p in self._model.get_state_specs() if name in memory]
        given = [(name, self._shape(name, p)) for name, p in self._model.get_input_specs()] + kept
        keys = _make_identifiers([name for name, _ in given])
        specs = to_tensor_specs(given)
        out_keys: dict[str, str] = {}

        def act(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = self._compute({name: tensors[keys[name]] for name in specs}, memory)
            named = _make_identifiers([*specs, *outputs])
            out_keys.update((name, named[name]) for name in outputs)
            return {out_keys[name]: tensor for name, tensor in outputs.items()}

        signature = {
            keys[name]: tf.TensorSpec(spec.shape, spec.dtype, keys[name])
            for name, spec in specs.items()
        }
        function = make_concrete(trace_policy(self._model, act), **signature)
        self._function, self.keys, self.inputs = function, {**keys, **out_keys}, specs
        # The function's outputs are sorted by their keys.
        by_key = dict(zip(sorted(out_keys.values()), function.outputs, strict=True))
        self.outputs = {name: by_key[key] for name, key in out_keys.items()}

    def _compute(self, tensors: Mapping[str, tf.Tensor], memory: Sequence[str]) -> dict[str, Any]:
        model = self._model
        observations = {
            name: tf.reshape(tensors[name], [-1, *p["shape"]])
            for name, p in model.get_input_specs()
        }
        rows = tf.shape(next(iter(observations.values())))[0]
        states = {
            name: tensors[MEMORY + name] if name in memory else tf.zeros([rows, *p["shape"]])
            for name, p in model.get_state_specs()
        }
        explore = {name: tf.fill([rows], value) for name, value in self._explore.items()}
        distributions, after = model.policy(observations, states, *([explore] if explore else []))
        outputs = self._fit({name: one.mode() for name, one in distributions.items()})
        outputs.update(_get_parameters(distributions))
        outputs.update((NEXT_MEMORY + name, after[name]) for name in memory)
        return outputs

    def _shape(self, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the spec of an observation as the environment has it; without a history only."""
        space = self._spaces.observations.get(name)
        if space is None or math.prod(space.shape) != math.prod(spec["shape"]):
            return dict(spec)
        return {**spec, "shape": space.shape}

    def _fit(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Gives arrays or tensors of actions the environment's shapes, and clips them."""
        spaces = self._spaces.actions
        return {
            name: fit_actions(spaces[name], array) if name in spaces else array
            for name, array in actions.items()
        }

    def _find_memory(self) -> list[str]:
        """Returns the memory that the actions depend on, now or later."""
        found: list[str] = []
        while True:
            wanted = [
                tensor
                for name, tensor in self.outputs.items()
                if not name.startswith(NEXT_MEMORY) or name.removeprefix(NEXT_MEMORY) in found
            ]
            needed = _find_ancestors(wanted)
            new = [name for name in self.memory if self.keys[MEMORY + name] in needed]
            if new == found:
                return found
            found = new


def _get_deviation(normalizer: Normalizer) -> np.ndarray:
    """Returns the standard deviations by which a layer divides."""
    count = float(normalizer.count.numpy())
    m2 = normalizer.m2.numpy()
    return np.sqrt((m2 / count if count > 0 else np.ones_like(m2)) + EPSILON)


def _find_ancestors(tensors: Iterable[Any]) -> set[str]:
    """Returns the names of all operations of a graph that tensors are computed from."""
    found: set[str] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op.name not in found:
            found.add(op.name)
            waiting += [tensor.op for tensor in op.inputs]
    return found


def _get_parameters(distributions: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{name}/{part}": value
        for name, distribution in distributions.items()
        for part, value in getattr(distribution, "get_parameters", dict)().items()
    }


def _make_identifiers(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> Python identifier.

    Raises:
      ConfigError: two names have the same identifier; the error has both.
    """
    owners: dict[str, str] = {}
    for name in names:
        key = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if not key.isidentifier() or keyword.iskeyword(key):
            key = f"x_{key}"
        if key in owners:
            raise ConfigError(
                f"export: two inputs or outputs, {owners[key]!r} and {name!r}, would both be named "
                f"{key!r}; use relaax serve instead, or rename the observation or action with a "
                "wrapper of the environment, such as gymnasium.wrappers.TransformObservation or "
                "TransformAction (and in the settings or get_input_specs, if it is named there), "
                "and train again"
            )
        owners[key] = name
    return {name: key for key, name in owners.items()}
