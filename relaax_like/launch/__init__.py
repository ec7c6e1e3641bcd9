"""Puts an experiment's roles together: as processes (Manager) or in one process (Trainer)."""
