"""Learners: what turns experience into updates."""
