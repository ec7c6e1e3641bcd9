"""PPO: several samplers and one PPOOptim."""

import time
from collections.abc import Sequence
from typing import Any

from relaax_like.addons.sampling.algo_sampler import AlgoSampler, SampleTiming
from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.addons.sampling.remote_sampler import RemoteSampler
from relaax_like.experience.buffer import Buffer
from relaax_like.wire.errors import ConfigError


class PPO:
    """Holds samplers, in this process or in others, and an optimiser.

        with open_samplers(experiment, 4, "processes") as samplers:   # launch.samplers
            trainer = PPO(samplers, optim)
            for _ in range(100):
                buffer, timing, metrics = trainer.iterate()
            buffer, timing = trainer.evaluate(num_trajectories=20)

    Samplers play in rounds: all of them begin together, and a round ends with the last one. A
    buffer has the trajectories of complete rounds, sampler after sampler, so it does not depend on
    which one is faster, and no trajectory is left over for a later iteration. It is bit-identical
    to `Buffer.join` of what the same samplers return one after the other, without PPO; with one
    sampler and one round, to what this one returns.

    After an error, the round is lost; the next call begins a new one.

    Args:
      samplers: at least one; each has its own environments and seeds.
      optim: owns the values.

    Raises:
      ConfigError: there is no sampler.
    """

    def __init__(self, samplers: Sequence[AlgoSampler | RemoteSampler], optim: PPOOptim):
        if not samplers:
            raise ConfigError("PPO: samplers is empty, expected one or more")
        self._samplers = list(samplers)
        self._optim = optim
        self._syncs = 0

    def sync_policy(self) -> None:
        """Gives all samplers the optimiser's values, with its running statistics."""
        self._syncs += 1
        values = self._optim.get_values()
        for sampler in self._samplers:
            sampler.sync_policy(values, self._syncs)

    def sample_traj(
        self, num_steps: int, update_normalization_param: bool = False
    ) -> tuple[Buffer, SampleTiming]:
        """Plays rounds with the newest values until there are `num_steps` steps.

        Args:
          num_steps: 1 or more.
          update_normalization_param: add all observations to the optimiser's running statistics,
            at the end; all samplers get these with the next values. `optimize` does the same if the
            plan has `update_norm` or `prenormalize_steps`: use one or the other.

        Returns:
          The trajectories of all rounds; size and duration of the sample.

        Raises:
          ConfigError: `num_steps` is out of range.
          ConfigError, InvalidInputError, RelaaxError: see the samplers' `sample_traj`.
        """
        buffer, timing = self._play(num_steps, 0)
        if update_normalization_param:
            states = buffer.rows().states
            assert isinstance(states, dict)
            self._optim.add_to_statistics(states)
        return buffer, timing

    def iterate(self) -> tuple[Buffer, SampleTiming, dict[str, Any]]:
        """Makes one iteration: samples the plan's number of steps or more, and learns from them.

        Returns:
          What `sample_traj` returns, and what `PPOOptim.optimize` returns.

        Raises:
          ConfigError, InvalidInputError, RelaaxError: see `sample_traj` and `PPOOptim.optimize`.
        """
        buffer, timing = self._play(self._optim.num_steps, 0)
        return buffer, timing, self._optim.optimize(buffer)

    def evaluate(self, num_trajectories: int) -> tuple[Buffer, SampleTiming]:
        """Plays rounds with the best actions until there are `num_trajectories`; learns nothing.

        Environments continue after it from where it ends, so what is sampled later differs from
        what would have been sampled without it.

        Args:
          num_trajectories: 1 or more; those of complete rounds can be more.

        Raises:
          ConfigError: `num_trajectories` is out of range.
          ConfigError, InvalidInputError, RelaaxError: see the samplers' `sample_traj`.
        """
        return self._play(0, num_trajectories, do_eval=True)

    def _play(
        self, num_steps: int, num_trajectories: int, do_eval: bool = False
    ) -> tuple[Buffer, SampleTiming]:
        if num_steps < 1 and num_trajectories < 1:
            field = "num_trajectories" if do_eval else "num_steps"
            raise ConfigError(f"{field}: {num_steps or num_trajectories}, expected 1 or more")
        began = time.perf_counter()
        self.sync_policy()
        buffers: list[Buffer] = []
        steps = trajectories = 0
        while steps < num_steps or trajectories < num_trajectories:
            started = [
                sampler.start_traj(self._optim.max_traj_len, do_eval) for sampler in self._samplers
            ]
            played = [finish()[0] for finish in started]
            steps += sum(map(len, played))
            trajectories += sum(len(buffer.terminal_values) for buffer in played)
            buffers += played
        seconds = time.perf_counter() - began
        return Buffer.join(buffers), SampleTiming(env_steps=steps, sample_sec=seconds)
