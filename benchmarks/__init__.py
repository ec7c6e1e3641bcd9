"""Benchmarks of the hot paths; `make bench` runs them all."""
