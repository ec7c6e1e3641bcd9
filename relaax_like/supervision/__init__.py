"""The processes of a run: which there are, their starts and restarts, and how they end."""
