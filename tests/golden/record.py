"""Records the batches that the golden tests learn from: `python tests/golden/record.py`.

Each file holds the arrays of `BATCHES` rollouts of a policy that acts at random, `[n, T, k, ...]`.
They are committed; recording them again changes all expected results.
"""

from pathlib import Path

import gymnasium
import numpy as np

BATCHES, STEPS, SLOTS = 10, 16, 4
FOLDER = Path(__file__).parent / "batches"
# Episodes end both ways: by the environment, and by a time limit.
ENVIRONMENTS = {"cartpole": ("CartPole-v1", 30), "pendulum": ("Pendulum-v1", 23)}


def record(env_id: str, max_episode_steps: int) -> dict[str, np.ndarray]:
    """Plays with a policy that draws all actions alike."""
    envs = [gymnasium.make(env_id, max_episode_steps=max_episode_steps) for _ in range(SLOTS)]
    observations = []
    for seed, env in enumerate(envs):
        env.action_space.seed(seed)
        observations.append(env.reset(seed=seed)[0])
    total = BATCHES * STEPS
    rows = [[_step(env, k, observations) for k, env in enumerate(envs)] for _ in range(total)]
    names = ("observation", "next_observation", "next_alive", "reward", "action", "log_prob")
    arrays = {}
    for index, name in enumerate(names):
        array = np.array([[row[index] for row in step] for step in rows])
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        arrays[name] = array.reshape(BATCHES, STEPS, *array.shape[1:])
    return arrays


def _step(env: gymnasium.Env, slot: int, observations: list) -> tuple:
    space = env.action_space
    action = space.sample()
    before = observations[slot]
    after, reward, terminated, truncated, _ = env.step(action)
    alive = 0.0 if terminated else -1.0 if truncated else 1.0
    observations[slot] = after if alive == 1.0 else env.reset()[0]
    if isinstance(space, gymnasium.spaces.Discrete):
        log_prob = -np.log(float(space.n))
    else:
        log_prob = -float(np.sum(np.log(space.high - space.low)))
    return before, after, alive, float(reward), action, log_prob


def main() -> None:
    """Writes all files."""
    for name, arguments in ENVIRONMENTS.items():
        np.savez_compressed(FOLDER / f"{name}.npz", **record(*arguments))


if __name__ == "__main__":
    main()
