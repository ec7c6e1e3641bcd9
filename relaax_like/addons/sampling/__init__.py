"""Complete trajectories for scripts: sampling them, and learning from them."""
