"""Runs that learn from recorded batches: what they compute is compared with files, and commits.

    python tests/golden/cases.py FOLDER          # writes FOLDER/CASE-SEED.npz for all cases
    python tests/golden/cases.py FOLDER ppo a2c  # for these

The shipped algorithms, each in the form in which it learns: gradients that a parameter server's
store applies, whole iterations of a learner in the server, files.
"""

import argparse
import importlib
import os
import queue
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import TrajectoryWriter
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.recordings import find_recordings
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots, read_latest
from relaax_like.parameter_server.store import Store

BATCHES = Path(__file__).parent / "batches"
# Newest place first: these runs are also made with the packages of older commits.
_MAKE_MANIFEST = ("core.manifest:make_manifest", "bridge.manifest:make_manifest")
_NULL_METRICS = ("core.metrics:NullMetrics", "bridge.service:NullMetrics")
_REQUEST = ("core.records:LearnRequest", "computation.learning:Work")
_LOG_PROB = ("core.prediction:LOG_PROB", "computation.prediction:LOG_PROB")
_TASK = (
    "learn.computation_task:ComputationTask",
    "computation.computation_task:ComputationTask",
)
# Updates, or iterations of several, after which the state is looked at.
CHECKPOINTS = (1, 10)
SEEDS = (0, 1)
# By name: "initial/...", "cost/...", "gradient/...", and "1/..." and "10/..." after so many.
Result = dict[str, np.ndarray]
Snapshot = Callable[[], Result]


@dataclass(frozen=True)
class Case:
    """One algorithm with settings.

    Attributes:
      batches: name of the file that it learns from.
      algorithm: its section of the experiment.
      learn: goes through the batches; yields after each update or iteration.
      learner: the section of that name; FILES stands for the folder of recorded files.
      seeds: that are run.
    """

    batches: str
    algorithm: str
    learn: Callable[[Experiment, ParameterServer, list[Rollout]], Iterator[None]]
    learner: str = "{}"
    seeds: tuple[int, ...] = SEEDS


def _find(*places: str) -> Any:
    """Returns what is at the first of some places, MODULE:NAME, whose module exists."""
    for place in places:
        name, _, attribute = place.partition(":")
        try:
            return getattr(importlib.import_module(f"relaax_like.{name}"), attribute)
        except ModuleNotFoundError:
            continue
    raise ImportError(f"none of {', '.join(places)}")


def learn_by_gradients(
    experiment: Experiment, server: ParameterServer, rollouts: list[Rollout]
) -> Iterator[None]:
    """As a learner beside its agents does."""
    from relaax_like.launch.learners import make_learners

    learners = make_learners(experiment, lambda name: InProcessClient(server, name), "golden")
    (learner,) = learners.values()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    learner.start(answers.put)
    try:
        answers.get(timeout=60)
        for number, rollout in enumerate(rollouts):
            learner.submit(_find(*_REQUEST)(number, rollout, env_steps=rollout.env_steps))
            answers.get(timeout=60)
            yield
    finally:
        learner.stop()


def learn_iterations(
    experiment: Experiment, server: ParameterServer, rollouts: list[Rollout]
) -> Iterator[None]:
    """As a learner in the parameter server's process does."""
    from relaax_like.launch.learners import make_iteration_learner

    learner = make_iteration_learner(experiment, server)
    learner.load()
    source = getattr(learner, "source", learner)  # in older commits the learner itself
    for rollout in rollouts:
        source.add(rollout, ())
        assert learner.learn() is not None
        yield
    learner.close()


def learn_offline(
    experiment: Experiment, server: ParameterServer, rollouts: list[Rollout]
) -> Iterator[None]:
    """From files."""
    from relaax_like.launch.learners import make_offline_learner

    assert experiment.learner.offline is not None
    files = find_recordings(experiment.learner.offline)
    learner = make_offline_learner(experiment, server, files)
    learner.load()
    for _ in rollouts:
        learner.learn()
        yield
    learner.close()


def learn_episodes(
    experiment: Experiment, server: ParameterServer, rollouts: list[Rollout]
) -> Iterator[None]:
    """As an agent of its own does: the first slot of each batch is an episode."""
    module = load_algorithm_module(experiment.algorithm_folder, "agent")
    agent = module.Agent(experiment.algorithm, InProcessClient(server, "golden"))
    for rollout in rollouts:
        states, rewards = rollout.inputs["observation"][:, 0], rollout.rewards[:, 0, 0].tolist()
        agent.act(states[0])
        for reward, state in zip(rewards[:-1], states[1:], strict=True):
            agent.reward_and_act(reward, state)
        agent.reward_and_reset(rewards[-1])
        yield


_SMALL = "network: {layers: [16, 8]}"
_LSTM = "network: {layers: [{lstm: 8}]}"
_CARTPOLE = "state_size: 4, num_actions: 2"
_PENDULUM = "state_size: 3, action_size: 1"
_SERVER = "{placement: server}"
CASES = {
    "policy_gradient_tutorial": Case(
        "cartpole", "{name: policy_gradient_tutorial, hidden_layer_size: 10}", learn_episodes
    ),
    "policy_gradient": Case("cartpole", "{name: policy_gradient}", learn_episodes),
    "a2c": Case(
        "cartpole",
        f"{{name: a2c, {_CARTPOLE}, {_SMALL}, rollout_steps: 16, entropy_coefficient: 0.01}}",
        learn_by_gradients,
    ),
    "a2c-lstm": Case(
        "pendulum",
        f"{{name: a2c, {_PENDULUM}, {_LSTM}, rollout_steps: 16, normalize_observations: true, "
        "normalize_advantage: true, reward_scale: 0.1, learning_rate_end: 0.0, "
        "max_global_step: 1000}",
        learn_by_gradients,
        seeds=(0,),
    ),
    # One update in each iteration.
    "ppo": Case(
        "cartpole",
        f"{{name: ppo, {_CARTPOLE}, {_SMALL}, num_steps: 64, rollout_steps: 16, epochs: 1, "
        "batch_size: 64, entropy_coeff: 0.01}",
        learn_iterations,
        _SERVER,
    ),
    "ppo-epochs": Case(
        "cartpole",
        f"{{name: ppo, {_CARTPOLE}, {_SMALL}, num_steps: 64, rollout_steps: 16, epochs: 3, "
        "batch_size: 16, prenorm: true, update_norm: true, normalize_rewards: true, kl: 0.001, "
        "clip_schedule: linear, lr_schedule: linear, max_global_step: 1000, clip_value: 0.2, "
        "normalize_advantage: batch, shared_network: true}",
        learn_iterations,
        _SERVER,
    ),
    "ppo-lstm": Case(
        "pendulum",
        f"{{name: ppo, {_PENDULUM}, {_LSTM}, num_steps: 64, rollout_steps: 16, epochs: 2, "
        "batch_size: 2, mirror: 0.5, mirror_observation: [0.1, -1, -2], mirror_action: [-0.1]}",
        learn_iterations,
        _SERVER,
        seeds=(0,),
    ),
    "bc": Case(
        "cartpole",
        f"{{name: bc, {_CARTPOLE}, {_SMALL}, batch_size: 64}}",
        learn_offline,
        "{placement: server, offline: FILES}",
    ),
    "bc-lstm": Case(
        "pendulum",
        f"{{name: bc, {_PENDULUM}, {_LSTM}, batch_size: 2, normalize_observations: true, "
        "shared_network: true}",
        learn_offline,
        "{placement: server, offline: FILES}",
        seeds=(0,),
    ),
}


def run_case(name: str, seed: int, folder: Path) -> Result:
    """Learns from all batches.

    Args:
      name: of `CASES`.
      seed: of the experiment.
      folder: for its files; empty.
    """
    case = CASES[name]
    rollouts = read_rollouts(case.batches)
    writer = TrajectoryWriter(folder / "files", 1e9)
    for number, rollout in enumerate(rollouts):
        writer.write(number, rollout)
    learner = case.learner.replace("FILES", f"{folder / 'files'}")
    file = folder / "experiment.yaml"
    file.write_text(
        f"seed: {seed}\nrun_dir: {folder / 'run'}\nlearner: {learner}\n"
        f"algorithm: {case.algorithm}\n"
    )
    experiment = load_experiment(file)
    server = _make_server(experiment, folder / "checkpoints")
    rollouts = [_add_memory(experiment, rollout) for rollout in rollouts]
    result = _read_state(server, folder, "initial")
    result.update(_compute_gradients(experiment, rollouts[0]))
    for number, _ in enumerate(case.learn(experiment, server, rollouts), 1):
        if number in CHECKPOINTS:
            result.update(_read_state(server, folder, str(number)))
    server.close(save=False)
    return result


def read_rollouts(name: str) -> list[Rollout]:
    """Reads the recorded batches."""
    with np.load(BATCHES / f"{name}.npz", allow_pickle=False) as arrays:
        recorded = dict(arrays)
    return [
        Rollout(
            inputs={"observation": recorded["observation"][i]},
            next_inputs={"observation": recorded["next_observation"][i]},
            next_alive=recorded["next_alive"][i],
            rewards=recorded["reward"][i][..., None],
            actions={"action": recorded["action"][i]},
            log_prob=recorded["log_prob"][i],
            states={},
            versions=np.zeros(len(recorded["reward"][i]), np.int64),
        )
        for i in range(len(recorded["reward"]))
    ]


def _make_server(experiment: Experiment, folder: Path) -> ParameterServer:
    variables = make_initial_values(experiment)
    manifest = _find(*_MAKE_MANIFEST)(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    store = Store(manifest, flat, experiment.optimizers)
    return ParameterServer(
        store,
        snapshots=Snapshots(folder),
        metrics=_find(*_NULL_METRICS)(),
        max_global_step=experiment.algorithm.max_global_step,
    )


def _add_memory(experiment: Experiment, rollout: Rollout) -> Rollout:
    """Gives the slots some memory, where the model has one."""
    import dataclasses

    from relaax_like.launch.algorithm_code import load_model_module, make_model

    if load_model_module(experiment) is None:
        return rollout
    random = np.random.default_rng(7)
    states = {
        name: random.uniform(-0.5, 0.5, (rollout.slots, *properties["shape"])).astype(np.float32)
        for name, properties in make_model(experiment).get_state_specs()
    }
    return dataclasses.replace(rollout, states=states)


def _read_state(server: ParameterServer, folder: Path, prefix: str) -> Result:
    server.save_checkpoint()
    state = read_latest(folder / "checkpoints")
    assert state is not None
    names = [segment.name for segment in state.manifest.segments]
    values = state.manifest.unpack(state.values)
    return {
        **{f"{prefix}/value/{n}": np.array(v) for n, v in zip(names, values, strict=True)},
        **{f"{prefix}/slots/{group}": np.array(slots) for group, slots in state.slots.items()},
        **{f"{prefix}/steps/{group}": np.array(n) for group, n in state.steps.items()},
    }


def _compute_gradients(experiment: Experiment, rollout: Rollout) -> Result:
    """Returns costs and gradients of one batch at the initial values; {} for plain agents."""
    from relaax_like.launch.algorithm_code import load_model_module, make_model

    if load_model_module(experiment) is None:
        return {}
    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    if not hasattr(module, "make_algorithm"):  # the agent makes it
        return {}
    algorithm = module.make_algorithm(experiment.algorithm, make_model(experiment), 0)
    task = _find(*_TASK)(algorithm)
    gradients, costs = task.compute_gradients(
        inputs=rollout.inputs,
        next_inputs=rollout.next_inputs,
        next_alive={"alive": rollout.next_alive},
        rewards={"reward": rollout.rewards},
        actions={**rollout.actions, _find(*_LOG_PROB): rollout.log_prob},
        states=rollout.states,
    )
    names = [v.name for v in task.get_variables()]
    return {
        **{f"cost/{name}": np.float32(cost) for name, cost in costs.items()},
        **{f"gradient/{n}": g for n, g in zip(names, gradients, strict=False)},
    }


def main() -> None:
    """Writes the results of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help="default: all")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in arguments.cases or CASES:
        for seed in CASES[name].seeds:
            with tempfile.TemporaryDirectory() as folder:
                result = run_case(name, seed, Path(folder))
            np.savez_compressed(arguments.folder / f"{name}-{seed}.npz", **result)
            print(f"{name} seed {seed}: {len(result)} arrays", flush=True)


if __name__ == "__main__":
    main()
