"""Combines an experiment's roles: as processes (Manager) or in one process (Trainer)."""
