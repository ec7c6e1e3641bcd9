"""AlgoSampler: plays complete trajectories, from a reset to their end."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaax_like.addons.sampling.algo_worker import AlgoWorker
from relaax_like.agent.history import ObservationHistory
from relaax_like.algorithm.acting import Arrays
from relaax_like.algorithm.model import Model, get_learning_specs
from relaax_like.client.client import StepResult
from relaax_like.client.interactor import EnvironmentSlots, Interactor
from relaax_like.client.values import SpaceValues
from relaax_like.core.prediction import LOG_PROB
from relaax_like.experience.buffer import Buffer
from relaax_like.nn.action_heads import actions_to_wire
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, OBSERVATION, split_masks


@dataclass(frozen=True, kw_only=True)
class SampleTiming:
    """Size and duration of a sample.

    Attributes:
      env_steps: number of environment steps in the sample.
      sample_sec: duration of sampling.
    """

    env_steps: int
    sample_sec: float


class AlgoSampler(AlgoWorker):
    """Plays k environments side by side with its copy of the policy: one trajectory in each.

        sampler = AlgoSampler(model, slots, discount=0.99, gae_lambda=0.95, seed=1)
        sampler.sync_policy(values, version)
        buffer, timing = sampler.sample_traj(max_traj_len=300)

    A trajectory begins with a reset and without memory. One that is cut off, by the environment or
    at `max_traj_len`, ends with the value of its last observation; one that terminates, with 0. The
    buffer has the extra `log_prob` for each step, of the action under the policy that acted.

    Args:
      model: see `AlgoWorker`.
      env_slots: the environments.
      discount: of the buffers.
      gae_lambda: of the buffers.
      seed: of the drawn actions and of the random steps.
      observation_history: number of newest observations that the model sees at once.
      random_steps: see `Interactor`.
      max_episode_steps: see `Interactor`.

    Raises:
      ConfigError, Exception: see `AlgoWorker`.
    """

    def __init__(
        self,
        model: Model,
        env_slots: EnvironmentSlots,
        *,
        discount: float,
        gae_lambda: float,
        seed: int,
        observation_history: int = 1,
        random_steps: int = 0,
        max_episode_steps: int | None = None,
    ):
        super().__init__(model, seed)
        self._env_slots = env_slots
        self._discount = discount
        self._gae_lambda = gae_lambda
        self._seeds = np.random.default_rng(seed)
        self._history = observation_history
        self._random_steps = random_steps
        self._max_episode_steps = max_episode_steps

    def sample_traj(
        self, max_traj_len: int, do_eval: bool = False, update_normalization_param: bool = False
    ) -> tuple[Buffer, SampleTiming]:
        """Plays one trajectory in each slot.

        Slots whose trajectory has ended continue to play until the last one ends; their additional
        steps are discarded.

        Args:
          max_traj_len: number of steps after which a trajectory is cut off, unless
            `max_episode_steps` is smaller.
          do_eval: choose the best actions.
          update_normalization_param: add the observations to the copy's running statistics at the
            end.

        Returns:
          The trajectories, in the order of the slots; size and duration of the sample.

        Raises:
          ConfigError: `max_traj_len`, `max_episode_steps` or `random_steps` is out of range, or the
            environments cannot take random actions; see `Interactor`.
          InvalidInputError: the environments return several rewards per slot, or observations that
            do not fit their space.
          RelaaxError: another error of the environments; see `Interactor.run`.
        """
        if max_traj_len < 1:
            raise ConfigError(f"max_traj_len: {max_traj_len}, expected 1 or more steps")
        began = time.perf_counter()
        parts: dict[int, Buffer] = {}
        slots, limit = self._env_slots.slots, self._max_episode_steps
        history, goes_on = self._history, lambda: len(parts) < slots
        player = _TrajectoryPlayer(
            self, self._env_slots, history, parts.setdefault, goes_on, do_eval
        )
        Interactor(
            self._env_slots,
            player,
            random_steps=self._random_steps,
            max_episode_steps=max_traj_len if limit is None else min(max_traj_len, limit),
            seed=int(self._seeds.integers(2**31)),
        ).run()
        buffer = Buffer.join([parts[slot] for slot in range(slots)])
        if update_normalization_param:
            states = buffer.rows().states
            assert isinstance(states, dict)
            self.add_to_statistics(states)
        seconds = time.perf_counter() - began
        return buffer, SampleTiming(env_steps=len(buffer), sample_sec=seconds)

    def start_traj(
        self, max_traj_len: int, *flags: bool
    ) -> Callable[[], tuple[Buffer, SampleTiming]]:
        """Returns a function that calls `sample_traj`; see `RemoteSampler.start_traj`."""
        return functools.partial(self.sample_traj, max_traj_len, *flags)

    def make_buffer(
        self, parts: dict[str, dict[str, np.ndarray]], behind: tuple[Arrays, Arrays] | None
    ) -> Buffer:
        """Makes a buffer of one trajectory.

        Args:
          parts: inputs, states (memory before each step), actions, log_prob and rewards,
            `[L, ...]`.
          behind: inputs and memory after the last step, `[1, ...]`; None: the episode terminated.
        """
        inputs, states = parts["inputs"], parts["states"]
        if behind is not None:
            inputs = {n: np.concatenate([array, behind[0][n]]) for n, array in inputs.items()}
            states = {n: np.concatenate([array, behind[1][n]]) for n, array in states.items()}
        values = self.compute_values(inputs, states)
        length = len(parts["rewards"]["reward"])
        buffer = Buffer(self._discount, self._gae_lambda)
        buffer.push_trajectory(
            parts["inputs"],
            parts["actions"],
            parts["rewards"]["reward"],
            values[:length],
            terminal_value=0.0 if behind is None else values[length],
            extras=parts["log_prob"],
        )
        return buffer


class _TrajectoryPlayer:
    """The agent of an `Interactor`'s environments; passes complete trajectories to `take`."""

    def __init__(
        self,
        sampler: AlgoSampler,
        env_slots: EnvironmentSlots,
        history: int,
        take: Callable[[int, Buffer], Any],
        goes_on: Callable[[], bool],
        do_eval: bool,
    ):
        self._sampler = sampler
        self._slots = env_slots.slots
        self._take = take
        self._goes_on = goes_on
        self._do_eval = do_eval
        self._observations = SpaceValues(env_slots.observation_space, OBSERVATION)
        self._actions = SpaceValues(env_slots.action_space, ACTION)
        self._history = ObservationHistory(history, self._slots) if history > 1 else None
        self._shapes = {name: tuple(p["shape"]) for name, p in get_learning_specs(sampler.model)}
        for name, shape in split_masks(self._shapes)[0].items():
            if history > 1:
                self._shapes[name] = (*shape[:-1], shape[-1] // history)
        # Part -> name -> [k, ...] of each step, and the slots' first steps that are not taken yet.
        self._steps: list[dict[str, dict[str, np.ndarray]]] = []
        self._begins = [0] * self._slots
        self._states: Arrays = {
            name: np.zeros((self._slots, *p["shape"]), np.float32)
            for name, p in sampler.model.get_state_specs()
        }

    def step(
        self,
        observations: Any = None,
        rewards: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        final_observations: Any = None,
        success: Any = None,
    ) -> StepResult:
        """Processes a step of all slots and returns the next actions; see `SteppingAgent`."""
        ended = None
        if rewards is not None:
            self._add_outcome(rewards)
            ended = terminated | truncated
            if ended.any():
                self._end(np.flatnonzero(ended), truncated, final_observations)
        if not self._goes_on():
            return StepResult(actions=None, finished="stopped")
        inputs = self._read(observations)
        if self._history is not None:
            inputs = self._history.add(inputs, ended)
        prediction = self._sampler.act(inputs, self._states, self._do_eval)
        parts: dict[str, Arrays] = {
            "inputs": inputs,
            "states": self._states,
            "actions": prediction.actions,
            "log_prob": {LOG_PROB: prediction.log_prob},
        }
        # Copies: environments can write into the same arrays again.
        self._steps.append({p: {n: a.copy() for n, a in part.items()} for p, part in parts.items()})
        self._states = prediction.next_states
        leaves = {
            name: actions_to_wire(self._actions.spaces[name], array)
            for name, array in prediction.actions.items()
        }
        return StepResult(actions=self._actions.from_leaves(leaves))

    def _add_outcome(self, rewards: Any) -> None:
        rewards = np.asarray(rewards, np.float32)
        if rewards.size != self._slots:
            raise InvalidInputError(
                f"rewards: shape {list(rewards.shape)}, expected [{self._slots}], one number per "
                "slot; if there are several, sum them in the environment"
            )
        self._steps[-1]["rewards"] = {"reward": rewards.reshape(-1).copy()}

    def _end(self, slots: np.ndarray, truncated: np.ndarray, final_observations: Any) -> None:
        finals = self._read(final_observations, truncated) if truncated.any() else {}
        if self._history is not None and finals:
            finals = self._history.join_finals(finals)
        for slot in slots.tolist():
            row, behind = slice(slot, slot + 1), None
            if truncated[slot]:
                memory = {name: array[row] for name, array in self._states.items()}
                behind = {name: array[row] for name, array in finals.items()}, memory
            self._take(slot, self._sampler.make_buffer(self._take_steps(slot), behind))
        self._states = {name: array.copy() for name, array in self._states.items()}
        for array in self._states.values():
            array[slots] = 0.0

    def _take_steps(self, slot: int) -> dict[str, dict[str, np.ndarray]]:
        """Returns the steps of a slot that are not taken yet: part -> name -> `[L, ...]`."""
        steps, self._begins[slot] = self._steps[self._begins[slot] :], len(self._steps)
        return {
            part: {name: np.array([step[part][name][slot] for step in steps]) for name in arrays}
            for part, arrays in steps[0].items()
        }

    def _read(self, observations: Any, chosen: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Converts observations to the model's inputs; `chosen` as in `SpaceValues.to_leaves`."""
        leaves = self._observations.to_leaves(observations, self._slots, "observations", chosen)
        return {
            name: leaves[name].reshape(self._slots, *shape) for name, shape in self._shapes.items()
        }
