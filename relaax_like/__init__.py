"""relaax_like: train agents, over the network, on environments that cannot be imported."""

__version__ = "0.1.0"
