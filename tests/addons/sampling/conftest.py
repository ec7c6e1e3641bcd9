"""Environments whose episodes are known beforehand, and samplers in them."""

import numpy as np
from support.batch import load

from relaax_like.addons.sampling.algo_sampler import AlgoSampler
from relaax_like.client.interactor import Transition
from relaax_like.wire.spaces import Box, Discrete

SIZE = 3


class CountingSlots:
    """Slot i ends each episode after `lengths[i]` steps; the reward is the number of the step.

    Observations are drawn, and all are different. `cut` slots are cut off there, others terminate.
    """

    def __init__(self, lengths, cut=(), seed=0, image=None):
        self.slots = len(lengths)
        self._image = image
        self.observation_space = Box(dtype="float32", shape=(SIZE,))
        if image is not None:
            self.observation_space = Box(dtype="uint8", shape=image)
        self.action_space = Discrete(n=2)
        self._ends = np.array(lengths)
        self._cut = np.isin(np.arange(self.slots), cut)
        self._random = np.random.default_rng(seed)
        self._steps = np.zeros(self.slots, np.int64)
        self._now = np.zeros_like(self._observe())

    def reset(self, mask=None):
        mask = np.ones(self.slots, np.bool_) if mask is None else mask
        self._steps[mask] = 0
        wide = mask.reshape(-1, *[1] * (self._now.ndim - 1))
        self._now = np.where(wide, self._observe(), self._now)
        return self._now

    def step(self, actions):
        assert actions.shape == (self.slots,)
        self._steps += 1
        rewards, ended, final = self._steps.astype(float), self._steps >= self._ends, None
        self._now = self._observe()
        if ended.any():
            final = self._now
            self.reset(ended)
        return Transition(
            observations=self._now,
            rewards=rewards,
            terminated=ended & ~self._cut,
            truncated=ended & self._cut,
            final_observations=final,
        )

    def _observe(self):
        if self._image is not None:
            return self._random.integers(0, 256, (self.slots, *self._image), np.uint8)
        return self._random.normal([2.0, 0.0, -1.0], 1.0, (self.slots, SIZE)).astype(np.float32)


def make_config(layers=(8,), **settings):
    settings = {"num_steps": 24, "rollout_steps": 4, "batch_size": 4, **settings}
    if "image" not in settings:
        settings["state_size"] = SIZE
    return load("config", "ppo").Config(
        network={"layers": tuple(layers)}, num_actions=2, **settings
    )


def make_model(config, seed=0):
    return load("model", "ppo").make_model(config, seed)


def make_sampler(slots, config=None, **options):
    config = config or make_config()
    options = {"discount": 0.5, "gae_lambda": 0.5, "seed": 1, **options}
    return AlgoSampler(make_model(config), slots, **options)
