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
    """The scene as a vector of environments: each agent of the behavior has a slot.

    Agents are known by their ids only: rows come in any order, an agent that has not asked for a
    decision has none, and one that begins a new episode has a new id, for which it gets the slot of
    the one that ended. A step lasts until each slot has a new observation; an agent that asks
    again meanwhile repeats its action, and its rewards are summed.
    """

    slots = AGENTS
    observation_space: UserSpace = Box(dtype="float32", shape=(OBSERVATIONS,))
    action_space: UserSpace = Discrete(n=BRANCH)

    def __init__(self, scene: Scene):
        self._scene = scene
        self._slots: dict[int, int] = {}  # of an agent, by its id
        self._asking: list[int] = []  # slots of the newest decision steps, in their order
        self._observations = np.zeros((AGENTS, OBSERVATIONS), np.float32)

    def reset(self, mask: np.ndarray | None = None) -> np.ndarray:
        if mask is None:
            self._scene.reset()
            self._slots = {}
            seen = self._read_decisions(self._scene.get_steps()[0])
            while len(seen) < AGENTS:  # some ask for their first decision later
                seen |= self._read_decisions(self._advance(np.zeros(AGENTS, np.int64))[0])
        return self._observations.copy()

    def step(self, actions: np.ndarray) -> Transition:
        rewards = np.zeros(AGENTS, np.float32)
        ended, interrupted = np.zeros(AGENTS, np.bool_), np.zeros(AGENTS, np.bool_)
        final = np.zeros_like(self._observations)
        seen: set[int] = set()
        while len(seen) < AGENTS:
            decision, terminal = self._advance(actions)
            for row, agent in enumerate(terminal.agent_id):
                slot = self._slots.pop(agent)
                if not ended[slot]:
                    ended[slot], interrupted[slot] = True, terminal.interrupted[row]
                    rewards[slot] += terminal.reward[row]
                    final[slot] = terminal.obs[row]
                seen.discard(slot)
            seen |= self._read_decisions(decision)
            for row, slot in enumerate(self._asking):
                if not ended[slot]:
                    rewards[slot] += decision.reward[row]
        return Transition(
            observations=self._observations.copy(),
            rewards=rewards,
            terminated=ended & ~interrupted,
            truncated=interrupted,
            final_observations=final if ended.any() else None,
        )

    def _advance(self, actions: np.ndarray) -> tuple[Steps, Steps]:
        """Gives the agents that ask their slots' actions, and returns who asks or ends next."""
        self._scene.set_actions(actions[self._asking])
        self._scene.step()
        return self._scene.get_steps()

    def _read_decisions(self, decision: Steps) -> set[int]:
        """Keeps the observations of those that ask; returns their slots."""
        for agent in decision.agent_id:
            if agent not in self._slots:
                free = set(range(AGENTS)) - set(self._slots.values())
                assert free, f"agent {agent}: more than {AGENTS} agents at a time"
                self._slots[agent] = min(free)
        self._asking = [self._slots[agent] for agent in decision.agent_id]
        self._observations[self._asking] = decision.obs
        return set(self._asking)

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
