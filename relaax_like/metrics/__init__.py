"""Curves for TensorBoard: recorded in this process, or sent to another one that records them."""
