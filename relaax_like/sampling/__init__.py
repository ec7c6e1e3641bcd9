"""Whole trajectories: workers that sample them, and the update that learns from them."""
