"""Complete trajectories for scripts: what samples them, and the update that learns from them."""
