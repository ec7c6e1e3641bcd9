"""Combines an experiment's roles: as processes (Manager) or in one process (Trainer).

Also evaluates, records, serves and exports policies, and checks algorithms' folders.
"""
