"""A Unity scene's loop of decision and terminal steps, with the batched step of a client.

`Scene` has the methods of ML-Agents' `UnityEnvironment` that the loop needs; replace it by one.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from relaax_like.client import Interactor, Retry, RlxClient
from relaax_like.client.interactor import Transition
from relaax_like.client.values import UserSpace
from relaax_like.wire import Box, Discrete

AGENTS, OBSERVATIONS, BRANCH = 4, 3, 2


@dataclass
class Steps:
    """`DecisionSteps` or `TerminalSteps`: one row per agent."""

    obs: np.ndarray
    reward: np.ndarray
    agent_id: np.ndarray
    interrupted: np.ndarray


class Scene:
    """Agents that are rewarded for the choice 1 where their first observation is positive."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._ticks = 0

    def reset(self) -> None:
        self._ticks = 0
        self._obs = self._draw()
        self._reward = np.zeros(AGENTS, np.float32)

    def get_steps(self) -> tuple[Steps, Steps]:
        """Returns who is to decide, and whose episode has ended; as `UnityEnvironment` does."""
        everybody, nobody = np.arange(AGENTS), np.zeros(0, np.int64)
        ended = everybody if self._ticks and self._ticks % 20 == 0 else nobody
        interrupted = np.ones(len(ended), np.bool_)  # at the limit of 20 ticks
        terminal = Steps(self._obs[ended], self._reward[ended], ended, interrupted)
        if len(ended):
            self._obs = self._draw()
        return Steps(self._obs, self._reward, everybody, np.zeros(0, np.bool_)), terminal

    def set_actions(self, actions: np.ndarray) -> None:
        """Takes the choice of each agent."""
        self._reward = (actions == (self._obs[:, 0] > 0)).astype(np.float32)

    def step(self) -> None:
        """Advances the simulation to the next decision."""
        self._ticks += 1
        self._obs = self._draw()

    def _draw(self) -> np.ndarray:
        return self._random.uniform(-1, 1, (AGENTS, OBSERVATIONS)).astype(np.float32)


class SceneSlots:
    """The scene as a vector of environments, one slot per agent of the behavior."""

    slots = AGENTS
    observation_space: UserSpace = Box(dtype="float32", shape=(OBSERVATIONS,))
    action_space: UserSpace = Discrete(n=BRANCH)

    def __init__(self, scene: Scene):
        self._scene = scene

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        if mask is None:
            self._scene.reset()
        return self._scene.get_steps()[0].obs

    def step(self, actions: np.ndarray) -> Transition:
        self._scene.set_actions(actions)
        self._scene.step()
        decision, terminal = self._scene.get_steps()
        ended, rewards = np.zeros(AGENTS, np.bool_), decision.reward.copy()
        final = np.zeros_like(decision.obs)
        ended[terminal.agent_id] = True
        rewards[terminal.agent_id] = terminal.reward
        final[terminal.agent_id] = terminal.obs
        interrupted = np.zeros(AGENTS, np.bool_)
        interrupted[terminal.agent_id] = terminal.interrupted
        return Transition(
            observations=decision.obs,
            rewards=rewards,
            terminated=ended & ~interrupted,
            truncated=interrupted,
            final_observations=final if ended.any() else None,
        )

    def close(self) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rlx-server", default="localhost:7001")
    options = parser.parse_args()
    slots = SceneSlots(Scene())
    spaces = slots.observation_space, slots.action_space
    with RlxClient(
        options.rlx_server, *spaces, slots=AGENTS, name="scene", retry=Retry()
    ) as client:
        Interactor(slots, client).run()
    print(f"finished: {client.finished}")
