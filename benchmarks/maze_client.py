"""PointMaze_UMaze-v3 with a script that knows the way; run by `benchmarks.maze`.

    .venv-maze/bin/python -m benchmarks.maze_client record 20
    .venv-maze/bin/python -m benchmarks.maze_client play ADDRESS STEPS SEED SCRIPTED
    .venv-maze/bin/python -m benchmarks.maze_client evaluate ADDRESS EPISODES

`record` writes a Minari data set with so many episodes of the script into the folder that
MINARI_DATASETS_PATH names. `play` first plays the same episodes, instead of the policy, if SCRIPTED
is not 0, and then so many steps of the policy. Both other verbs print a JSON line per episode: the
policy's steps so far, and whether the goal was reached. An episode ends there, with the reward 1;
all other rewards are 0.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from relaax_like.client import RlxClient

DATA_SET = "pointmaze/scripted-v0"
_SCRIPT_SEED, _EVALUATION_SEED = 7_000, 9_000
# Cells of the maze in the order of the way through it, as (row, column).
_WAY = [(1, 1), (1, 2), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1)]
_CENTRES = np.array([[column - 2.0, 2.0 - row] for row, column in _WAY])

Policy = Callable[[dict[str, np.ndarray]], np.ndarray]


class Script:
    """Heads for the middle of the next cell on the way, with noise, and at last for the goal."""

    def __init__(self, seed: int):
        self._random = np.random.default_rng(seed)

    def __call__(self, observation: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the action, `[2] float32`."""
        place, goal = observation["achieved_goal"], observation["desired_goal"]
        here, there = _find_cell(place), _find_cell(goal)
        aim = goal if here == there else _CENTRES[here + np.sign(there - here)]
        push = 5.0 * (aim - place) - observation["observation"][2:]
        noise = self._random.normal(scale=0.3, size=2)
        return np.clip(push + noise, -1.0, 1.0).astype(np.float32)


def _find_cell(place: np.ndarray) -> int:
    return int(np.argmin(np.linalg.norm(_CENTRES - place, axis=1)))


def make() -> gymnasium.Env[Any, Any]:
    """Makes the maze, whose episodes end at the goal."""
    import gymnasium_robotics  # type: ignore[import-not-found]

    gymnasium.register_envs(gymnasium_robotics)
    return gymnasium.make("PointMaze_UMaze-v3", continuing_task=False)


def record(episodes: int) -> None:
    """Writes the script's episodes, and prints how many steps they have."""
    import minari

    env: Any = minari.DataCollector(make())
    steps = sum(_play_alone(env, _SCRIPT_SEED + i) for i in range(episodes))
    env.create_dataset(DATA_SET, algorithm_name="script")
    print(json.dumps({"steps": steps}))


def _play_alone(env: gymnasium.Env[Any, Any], seed: int) -> int:
    observation, _ = env.reset(seed=seed)
    script, steps, ended = Script(seed), 0, False
    while not ended:
        observation, _, terminated, truncated, _ = env.step(script(observation))
        steps, ended = steps + 1, terminated or truncated
    return steps


def play(address: str, steps: int, seed: int, scripted: int, exploit: bool = False) -> None:
    """Plays so many steps of the policy, or with `exploit` so many episodes, after the script's."""
    env = make()
    spaces = env.observation_space, env.action_space
    with RlxClient(address, *spaces, exploit=exploit) as client:
        played = episodes = 0
        script = Script(_SCRIPT_SEED) if scripted else None
        observation: dict[str, Any]
        observation, _ = env.reset(seed=_SCRIPT_SEED if scripted else seed)
        answer = client.step(_line_up(observation))
        while (episodes if exploit else played) < steps and not client.finished:
            actions: Any = answer.actions
            chosen = actions[0] if script is None else script(observation)
            observation, reward, terminated, truncated, info = env.step(chosen)
            played += script is None
            final, ended = observation, terminated or truncated
            if ended:
                episodes += 1
                if script is None:
                    reached = bool(info["success"])
                    print(json.dumps({"steps": played, "reached": reached}), flush=True)
                following = None
                if script is not None:
                    following = _SCRIPT_SEED + episodes if episodes < scripted else seed
                observation, _ = env.reset(seed=following)
            answer = client.step(
                _line_up(observation),
                np.array([reward], np.float32),
                np.array([terminated]),
                np.array([truncated and not terminated]),
                _line_up(final),
                np.array([info["success"] if ended else -1], np.int8),
                executed=None if script is None else chosen[None],
                overridden=None if script is None else np.array([True]),
            )
            if ended and script is not None:
                begins = _SCRIPT_SEED + episodes
                script = Script(begins) if episodes < scripted else None


def _line_up(observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[None].astype(np.float32) for name, array in observation.items()}


def main() -> None:
    """Does what the first argument says."""
    verb, *arguments = sys.argv[1:]
    if verb == "record":
        record(int(arguments[0]))
    elif verb == "play":
        steps, seed, scripted = map(int, arguments[1:])
        play(arguments[0], steps, seed, scripted)
    else:
        play(arguments[0], int(arguments[1]), _EVALUATION_SEED, 0, exploit=True)


if __name__ == "__main__":
    main()
