"""The parameter server: owns the weights, the optimizer step, `global_t` and the snapshots.

Light on purpose: NumPy and one fused kernel per optimizer, and never TensorFlow.
"""
