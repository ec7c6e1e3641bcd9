"""The processes of a run: their starts and restarts, here or on a Ray cluster, and their end."""
