"""What is learned: as a2c does."""

from relaax_like.config.algorithm_folder import load_algorithm_module

from .config import A2C

make_algorithm = load_algorithm_module(A2C, "algorithm").make_algorithm
