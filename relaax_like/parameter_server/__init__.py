"""The parameter server: owns the weights, the optimizer step, `global_t` and the snapshots.

Deliberately lightweight: it computes with NumPy, or with numba if that is installed, but never with
TensorFlow.
"""
