"""Rollouts of four numbers and two actions, as a2c's agents hand them over."""

import numpy as np

from relaax_like.experience.rollout import Rollout


def make_rollout(slots: int, seed: int, steps: int = 5) -> Rollout:
    """Draws a rollout; `next_inputs` are the inputs one step later."""
    random = np.random.default_rng(seed)
    observations = random.standard_normal((steps + 1, slots, 4)).astype(np.float32)
    return Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=random.choice([1.0, 0.0, -1.0], (steps, slots)).astype(np.float32),
        rewards=random.standard_normal((steps, slots, 1)).astype(np.float32),
        actions={"action": random.integers(2, size=(steps, slots))},
        log_prob=np.log(random.uniform(0.2, 0.9, (steps, slots))).astype(np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
    )
