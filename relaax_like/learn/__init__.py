"""Learners: they compute updates from experience."""
