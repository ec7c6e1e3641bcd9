"""Curves for TensorBoard: recorded in this process, or sent to the process that records them."""
