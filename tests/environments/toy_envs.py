"""Deterministic environments, registered as Toy-v0 and friends when this module is imported."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Toy(gym.Env):
    """An observation is (slot's name, episode, steps in it, last action).

    Episode e ends after 2 + (name + e) % 3 steps: terminated when e is even, truncated when odd.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1000}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    action_space = spaces.Discrete(3)

    def __init__(self, name: int = 0, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.name = name
        self.episode = -1
        self.seeds: list[int | None] = []

    def _look(self, action: int) -> np.ndarray:
        return np.array([self.name, self.episode, self.steps, action], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode += 1
        self.steps = 0
        return self._look(-1), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        self.steps += 1
        over = self.steps >= 2 + (self.name + self.episode) % 3
        even = self.episode % 2 == 0
        info = {"is_success": self.name == 1} if over and even else {}
        return self._look(int(action)), 10.0 * self.episode + self.steps, over and even, over, info

    def render(self) -> np.ndarray:
        return np.full((40, 60, 3), 200, np.uint8)


class ToyVector(VectorEnv):
    """k toys in a vector environment of our own, which ignores `reset_mask` unless DISABLED."""

    def __init__(
        self,
        num_envs: int = 1,
        mode: str = "NextStep",
        max_episode_steps: int | None = None,
        first_name: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.mode = AutoresetMode(mode)
        self.metadata = {"autoreset_mode": self.mode, "render_fps": 1000}
        self.num_envs = num_envs
        self.toys = [Toy(first_name + i) for i in range(num_envs)]
        self.single_observation_space = Toy.observation_space
        self.single_action_space = Toy.action_space
        self.observation_space = batch_space(Toy.observation_space, num_envs)
        self.action_space = batch_space(Toy.action_space, num_envs)
        self.ended = np.zeros(num_envs, np.bool_)
        self.now = np.zeros((num_envs, 4))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict]:
        mask = np.ones(self.num_envs, np.bool_)
        if self.mode is AutoresetMode.DISABLED and options:
            mask = options["reset_mask"]
        for i in np.flatnonzero(mask):
            self.now[i] = self.toys[i].reset()[0]
        self.ended &= ~mask
        return self.now.copy(), {}

    def step(self, actions: np.ndarray) -> Any:
        n = self.num_envs
        rewards, terminated, truncated = np.zeros(n), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        infos: dict[str, Any] = {}
        for i, toy in enumerate(self.toys):
            if self.ended[i]:
                assert self.mode is AutoresetMode.NEXT_STEP
                self.now[i] = toy.reset()[0]
                continue
            self.now[i], rewards[i], terminated[i], truncated[i], info = toy.step(actions[i])
            infos = self._add_info(infos, info, i)
        self.ended = terminated | truncated
        if self.mode is AutoresetMode.SAME_STEP and self.ended.any():
            infos = {"final_obs": self.now.copy(), "final_info": infos}
            for i in np.flatnonzero(self.ended):
                self.now[i] = self.toys[i].reset()[0]
            self.ended[:] = False
        return self.now.copy(), rewards, terminated, truncated, infos


class Reusing(Toy):
    """A toy that returns one array and one dict again and again, by default those of all toys."""

    shared = np.zeros(4)
    info: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, name: int = 0, buffer: np.ndarray = shared) -> None:
        super().__init__(name)
        self.buffer = buffer

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        self.info.clear()
        self.buffer[:] = super().reset(**options)[0]
        return self.buffer, self.info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.buffer[:], reward, terminated, truncated, info = super().step(action)
        self.info.clear()
        self.info.update(info)
        return self.buffer, reward, terminated, truncated, self.info


class ReusingVector(ToyVector):
    """The same for all that a vector environment returns."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.result: Any = None

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        super().reset(**options)
        if self.result is not None:
            self.clear()
        return self.now, {}

    def step(self, actions: np.ndarray) -> Any:
        _, *outcome, infos = super().step(actions)
        if self.result is None:
            self.result = *(array.copy() for array in outcome), {}
        self.clear()
        for own, new in zip(self.result[:3], outcome, strict=True):
            own[:] = new
        self.result[3].update(infos)
        return self.now, *self.result

    def clear(self) -> None:
        for array in self.result[:3]:
            array[:] = 0
        self.result[3].clear()


NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 3), np.uint8),
        "arm": spaces.Dict({"joints": spaces.Box(-1, 1, (2,), np.float64)}),
        "tools": spaces.Tuple((spaces.Discrete(3, start=4), spaces.MultiBinary(2))),
        "dials": spaces.MultiDiscrete([3, 4], start=[1, -1]),
    }
)


class Nested(gym.Env):
    """Observes a random value of a nested space; refuses an action outside of the same space."""

    observation_space = NESTED
    action_space = NESTED

    def __init__(self, render_mode: str | None = None) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if not self.action_space.contains(action):
            raise RuntimeError(f"{action} is not in {self.action_space}")
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 4, False, {}


class Unsendable(gym.Env):
    """Observes text, which the wire does not carry."""

    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        pass


class Odd(gym.Env):
    """Returns or raises what its argument names."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0
    RESULTS: dict[str, Any] = {  # noqa: RUF012
        "four values": (np.zeros(2), 0.0, False, {}),
        "six values": (np.zeros(2), 0.0, 0.0, False, False, {}),
        "no info": (np.zeros(2), 0.0, np.array([True]), np.uint8(0), None),
        "two flags": (np.zeros(2), 0.0, np.array([True, False]), False, {}),
        "two rewards": (np.zeros(2), np.array([1.0, 2.0], np.float32), False, False, {}),
    }

    def __init__(self, kind: str) -> None:
        self.kind = kind
        if kind == "one per process" and Odd.made:
            raise RuntimeError("one emulator per process")
        Odd.made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2) if self.kind == "bare reset" else (np.zeros(2), {})

    def step(self, action: Any) -> Any:
        if self.kind == "assertion":
            assert action is None
        if self.kind == "error":
            raise KeyError("arm")
        if self.kind == "exit":
            raise SystemExit(0)
        return self.RESULTS.get(self.kind, (np.zeros(2), 1.0, False, False, {}))

    def close(self) -> None:
        Odd.made -= 1


class Paying(Odd):
    """Declares two rewards."""

    reward_space = spaces.Box(-1, 1, (2,))

    def __init__(self) -> None:
        super().__init__("two rewards")


class Added(gym.Wrapper):
    """Adds them up."""

    def step(self, action: Any) -> Any:
        seen, rewards, *more = self.env.step(action)
        return seen, rewards.sum(), *more


class Silent(ToyVector):
    """Does not state its autoreset mode."""

    def __init__(self, num_envs: int = 1) -> None:
        super().__init__(num_envs)
        self.metadata = {}

    def close(self, **unused: Any) -> None:
        print("closed")


gym.register("Toy-v0", Toy)
gym.register("VectorOnly-v0", vector_entry_point=ToyVector, kwargs={"mode": "Disabled"})
gym.register("Silent-v0", Toy, vector_entry_point=Silent)
gym.register("Odd-v0", Odd)
gym.register("Paying-v0", Paying)
gym.register("Added-v0", lambda: Added(Paying()))
gym.register("ToyVector-v0", Toy, vector_entry_point=ToyVector)
gym.register("Nested-v0", Nested)
gym.register("Unsendable-v0", Unsendable)
