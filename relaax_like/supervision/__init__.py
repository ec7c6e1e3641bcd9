"""Processes of ours: signals and ends, restarts, the record of what a run consists of."""
