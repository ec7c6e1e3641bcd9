"""Layers and distributions, in TensorFlow and, where acting needs it, in NumPy."""
