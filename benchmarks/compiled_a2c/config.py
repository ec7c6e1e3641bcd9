"""Settings: those of a2c."""

from pathlib import Path

from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module

A2C = find_algorithm("a2c", Path())
Config = load_algorithm_module(A2C, "config").Config
