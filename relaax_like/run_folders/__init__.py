"""A run's folder: what lies in it, earlier runs, recorders, numbered copies."""
