"""Comparisons with other libraries, each installed into an environment of its own."""
