"""Iterations of PPO with samplers in several places, and without PPO; or, as a program, digests.

python sampling_roads.py FOLDER WHERE ...

prints, for each place, a digest of what `play` returns; and, for the last one, the error of a
sampler whose process is killed.
"""

import contextlib
import hashlib
import sys
from pathlib import Path
from typing import Any

import psutil

from relaax_like.addons.sampling.ppo import PPO
from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.experience.buffer import Buffer
from relaax_like.launch.learners import make_compiled_updates, require_plan
from relaax_like.launch.samplers import open_sampler, open_samplers
from relaax_like.wire.array_tree import tree_to_bytes
from relaax_like.wire.errors import RelaaxError
from support.uncompiled import copy_uncompiled

SAMPLERS = 2
MAX_TRAJ_LEN = 30
_CONFIG = """
run_dir: run
algorithm:
  {{path: {path}, state_size: 4, num_actions: 2, network: {{layers: [8]}}, num_steps: 128,
    rollout_steps: 16, batch_size: 16, epochs: 2, update_norm: true}}
environment: {{program: OpenAI_Gym, env: {env}, slots: 2}}
security: {{insecure: true}}
"""


def make_experiment(folder: Path, env: str = "CartPole-v1") -> Experiment:
    """Writes an experiment whose iterations have about two rounds of trajectories."""
    path = folder / "ppo"
    if not path.exists():
        copy_uncompiled("ppo", folder)
    file = folder / f"{env.rpartition(':')[2]}.yaml"
    file.write_text(_CONFIG.format(path=path, env=env))
    return load_experiment(file)


def make_optim(experiment: Experiment) -> PPOOptim:
    plan = require_plan(experiment)
    assert isinstance(plan, OnPolicy)
    return PPOOptim(make_compiled_updates(experiment)[0], plan, 3, MAX_TRAJ_LEN)


def play(experiment: Experiment, optim: PPOOptim, where: str) -> list[Any]:
    """Returns buffers and values of an iteration, an evaluation, and another iteration."""
    with open_samplers(experiment, SAMPLERS, where) as samplers:
        ppo = PPO(samplers, optim)
        found = [ppo.iterate()[0].get_state(), optim.state_dict()]
        found += [ppo.evaluate(6)[0].get_state()]
        found += [ppo.iterate()[0].get_state(), optim.state_dict()]
    return found


def play_alone(experiment: Experiment, optim: PPOOptim) -> list[Any]:
    """Returns the same, made by samplers that play one after the other, without PPO."""
    with contextlib.ExitStack() as ends:
        samplers = [
            ends.enter_context(open_sampler(experiment, number + 1)) for number in range(SAMPLERS)
        ]

        def sample(num_steps: int, num_trajectories: int, do_eval: bool = False) -> Buffer:
            parts: list[Buffer] = []
            while (
                sum(map(len, parts)) < num_steps
                or sum(len(part.terminal_values) for part in parts) < num_trajectories
            ):
                for sampler in samplers:
                    sampler.sync_policy(optim.get_values(), 1)
                    parts.append(sampler.sample_traj(MAX_TRAJ_LEN, do_eval)[0])
            return Buffer.join(parts)

        found = []
        for _ in range(2):
            buffer = sample(128, 0)
            optim.optimize(buffer)
            found += [buffer.get_state(), optim.state_dict()]
            if len(found) == 2:
                found += [sample(0, 6, do_eval=True).get_state()]
    return found


def main() -> None:
    folder, *places = sys.argv[1:]
    experiment = make_experiment(Path(folder))
    optim = make_optim(experiment)
    begin = optim.state_dict()
    for where in places:
        optim.load_state_dict(begin)
        found = tree_to_bytes(play(experiment, optim, where), "roads")
        digest = hashlib.sha256(found).hexdigest()
        print(where, digest, flush=True)
    with open_samplers(experiment, 1, places[-1]) as (sampler,):
        _kill_samplers()
        try:
            sampler.sample_traj(MAX_TRAJ_LEN)
        except RelaaxError as error:
            print(error)


def _kill_samplers() -> None:
    """Kills the actors of Ray that are samplers, and run beside this process."""
    killed = [p for p in psutil.process_iter() if p.name().startswith("ray::SamplerHost")]
    for process in killed:
        process.kill()
    assert len(killed) == 1


if __name__ == "__main__":
    main()
