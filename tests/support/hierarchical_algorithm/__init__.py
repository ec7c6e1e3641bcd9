"""Two Algorithms in one agent: one chooses a goal now and then, the other acts on it."""
