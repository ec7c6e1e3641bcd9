"""ComputationTask: NumPy in, NumPy out; TensorFlow stays inside."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from relaax_like.bridge.manifest import Variable
from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.model import Specs, get_variables, order_variables
from relaax_like.wire.errors import InvalidInputError

Arrays = Mapping[str, np.ndarray]


class ComputationTask:
    """Runs one Algorithm for agents that know nothing of TensorFlow.

        task = ComputationTask(PolicyGradient(PolicyModel(config)))
        task.set_values(parameter_server.get_values())
        actions, _ = task.predict({"observation": observations})  # [B, 4] -> [B]
        gradients, costs = task.compute_gradients(...)
        task.set_values(parameter_server.push_pull(gradients))

    Not thread-safe; each agent has its own, or they take turns.
    """

    def __init__(self, algorithm: Algorithm):
        self._algorithm = algorithm
        model = algorithm.model
        self._input_specs = _signatures(model.get_input_specs())
        self._state_specs = _signatures(model.get_state_specs())
        self._action_specs = _signatures(model.get_action_specs())
        self._reward_specs = _signatures(model.get_reward_specs())
        self._variables = order_variables(model)
        # Guards the variables: no prediction sees half of a new set of values.
        self._lock = algorithm.lock
        self._compiled: dict[str, Callable[[list[tf.Tensor]], Any]] = {}
        self._gradients = tf.function(self._trace_gradients, reduce_retracing=True)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the model's inputs, without the batch axis."""
        return {name: tuple(spec.shape[1:]) for name, spec in self._input_specs.items()}

    def get_variables(self) -> list[Variable]:
        """Returns the model's trainable variables with their present values, in manifest order."""
        return get_variables(self._algorithm.model)

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        """Sets all trainable variables, in manifest order."""
        with self._lock:
            for variable, value in zip(self._variables, values, strict=True):
                variable.assign(value)

    def predict(
        self, inputs: Arrays, states: Arrays | None = None, exploit: bool = False
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Chooses actions for a batch.

        Args:
          inputs: by name, `[B, ...]`; those that no input spec names are left out.
          states: by name, `[B, ...]`; needed when the model has state specs.
          exploit: the best action instead of a drawn one.

        Returns:
          Actions and next states by name, `[B, ...]`.
        """
        tensors = [
            *_select(inputs, self._input_specs, "inputs").values(),
            *_select(states, self._state_specs, "states").values(),
        ]
        name = "exploit" if exploit else "predict"
        if name not in self._compiled:
            self._compiled[name] = self._compile(getattr(self._algorithm, name))
        with self._lock:
            return self._compiled[name](tensors)

    def compute_gradients(
        self,
        inputs: Arrays,
        next_inputs: Arrays,
        next_alive: Arrays,
        rewards: Arrays,
        actions: Arrays,
        next_actions: Arrays | None = None,
        states: Arrays | None = None,
        next_states: Arrays | None = None,
    ) -> tuple[list[np.ndarray], dict[str, float]]:
        """Computes the gradient of the sum of the costs that `Algorithm.learn` returns.

        Args:
          inputs: observations at t, by name, `[B, ...]`.
          next_inputs: observations at t + 1.
          next_alive: `{"alive": [B, 1] float32}`: 1 goes on, 0 terminated, -1 cut off.
            All arrays but the states may have a time axis before the batch, `[T, B, ...]`, if the
            algorithm wants whole rollouts.
          rewards: by name, `[B, r] float32`.
          actions: by name, `[B, ...]`.
          next_actions: actions at t + 1, where the algorithm uses them.
          states: memory at t, where the model has one.
          next_states: memory at t + 1.

        Returns:
          One float32 array per trainable variable, in manifest order; and the costs by name.
        """
        gradients, costs = self._gradients(
            _select(inputs, self._input_specs, "inputs", any_axes=True),
            _select(next_inputs, self._input_specs, "next_inputs", any_axes=True),
            _select(states, self._state_specs, "states"),
            _select(next_states, self._state_specs, "next_states") if next_states else {},
            {name: tf.constant(array, tf.float32) for name, array in next_alive.items()},
            _select(actions, self._action_specs, "actions", any_axes=True),
            {}
            if next_actions is None
            else _select(next_actions, self._action_specs, "next_actions", any_axes=True),
            _select(rewards, self._reward_specs, "rewards", any_axes=True),
        )
        return [g.numpy() for g in gradients], {k: float(v) for k, v in costs.items()}

    def _compile(self, method: Callable[..., Any]) -> Callable[[list[tf.Tensor]], Any]:
        """Returns one compiled call of `algorithm.predict` or its like, on a flat list of tensors.

        A concrete function takes a third of the time of the `tf.function` that it comes from: there
        is no Python signature to match at each call.
        """
        specs = [*self._input_specs.values(), *self._state_specs.values()]
        names: list[list[str]] = []

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            inputs = dict(zip(self._input_specs, tensors, strict=False))
            states = dict(zip(self._state_specs, tensors[len(inputs) :], strict=True))
            results = method(inputs, states)
            names[:] = [list(result) for result in results]
            return [tensor for result in results for tensor in result.values()]

        function = tf.function(flat, input_signature=specs, jit_compile=True)
        concrete = function.get_concrete_function()

        def call(tensors: list[tf.Tensor]) -> Any:
            arrays = iter(concrete(*tensors))
            return tuple({name: next(arrays).numpy() for name in group} for group in names)

        return call

    def _trace_gradients(self, *batch: Any) -> tuple[list[tf.Tensor], Mapping[str, tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            costs = self._algorithm.learn(*batch)
            total = tf.add_n(list(costs.values()))
        gradients = tape.gradient(total, self._variables, unconnected_gradients="zero")
        clip = self._algorithm.max_gradient_norm
        if clip is not None:
            gradients, norm = tf.clip_by_global_norm(gradients, clip)
            costs = {**costs, "gradient norm": norm}
        return gradients, costs


def _signatures(specs: Specs) -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec([None, *props["shape"]], props.get("dtype", "float32"), name)
        for name, props in specs
    }


def _select(
    arrays: Arrays | None,
    specs: Mapping[str, tf.TensorSpec],
    field: str,
    any_axes: bool = False,
) -> dict[str, tf.Tensor]:
    tensors = {}
    for name, spec in specs.items():
        if arrays is None or name not in arrays:
            raise InvalidInputError(
                f"{field}: {name} is missing, the model's specs name {', '.join(specs)}", name
            )
        array = np.asarray(arrays[name], spec.dtype.as_numpy_dtype)
        tail = array.shape[array.ndim - len(spec.shape) + 1 :] if any_axes else array.shape[1:]
        if array.ndim < len(spec.shape) or tail != tuple(spec.shape[1:]):
            raise InvalidInputError(
                f"{field}[{name}]: shape {list(array.shape)}, the model's specs say {spec.shape}",
                name,
            )
        tensors[name] = tf.constant(array)
    return tensors
