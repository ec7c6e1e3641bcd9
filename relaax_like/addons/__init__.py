"""The queue of jobs and its slaves; complete trajectories for scripts."""
