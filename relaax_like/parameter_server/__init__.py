"""The parameter server: owns the weights, the optimizer step, `global_t` and the snapshots.

Deliberately lightweight: NumPy and one fused kernel per optimizer, but never TensorFlow.
"""
