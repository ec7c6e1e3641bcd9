"""The border between NumPy and TensorFlow: Model, Algorithm, ComputationTask."""

from relaax_like.computation.algorithm import Algorithm
from relaax_like.computation.computation_task import ComputationTask
from relaax_like.computation.model import Model, Specs

__all__ = ["Algorithm", "ComputationTask", "Model", "Specs"]
