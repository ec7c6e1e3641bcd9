"""Folders of runs that were never trained: a configuration, and snapshots of drawn weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.client.values import SpaceValues
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.core.manifest import STATISTIC, Variable, make_manifest
from relaax_like.launch.frozen_agents import make_frozen_host
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.local import LocalAgents
from relaax_like.launch.saved_policy import open_server, read_snapshot
from relaax_like.learn.frozen_policy import FrozenPolicy
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store
from relaax_like.wire.spaces import ACTION, OBSERVATION

_CONV = "{conv: {filters: 4, kernel: 3, stride: 2}}"
# Name -> the settings of an algorithm.
ALGORITHMS = {
    "ppo, normalised": "name: ppo, state_size: 4, num_actions: 3, network: {layers: [8]}, "
    "update_norm: true",
    "ppo, bounded": "name: ppo, state_size: 3, action_size: 2, bounded: true, action_low: -1, "
    "action_high: [1, 3], network: {layers: [8], activation: relu}",
    "a2c, lstm, several choices": "name: a2c, state_size: 3, num_actions: [2, 4], "
    "network: {layers: [6, {lstm: 5}]}, normalize_observations: true",
    "a2c, gru, shared, history": "name: a2c, state_size: 3, action_size: 2, shared_network: true, "
    "network: {layers: [{gru: 5}]}, observation_history: 2",
    "a2c, images, history": "name: a2c, image: [8, 9, 1], num_actions: 4, "
    f"observation_history: 2, network: {{layers: [{_CONV}, 8]}}",
    "a2c, impala": "name: a2c, image: [9, 8, 3], num_actions: 2, network: {layers: [impala]}",
    "a2c, several leaves": "name: a2c, num_actions: 4, normalize_observations: true, "
    f"observations: {{camera: {{image: [8, 8, 1], layers: [{_CONV}, 4]}}, arm/joints: {{size: 3, "
    "layers: [4]}, goal: {size: 2}}, network: {layers: [6, {gru: 4}]}",
    "ppo, integers, history": "name: ppo, num_states: [3, 3, 4], num_actions: 3, "
    "network: {layers: [8]}, observation_history: 2",
    "bc": "name: bc, state_size: 4, num_actions: 3, network: {layers: [8]}",
    "policy_gradient": "name: policy_gradient, state_size: 4, num_actions: 3",
    "policy_gradient_tutorial": "name: policy_gradient_tutorial, hidden_layer_size: 4",
}
SETTINGS = {"bc": ("learner: {offline: recorded}",)}


def write_run(folder: Path, algorithm: str, *settings: str, versions: Sequence[int] = (3,)) -> Path:
    """Writes a run's folder; the snapshot of version n has 100 n steps and the score -n.

    Args:
      folder: created.
      algorithm: its section's keys.
      settings: lines of the YAML file.
      versions: of the snapshots, whose weights differ.
    """
    folder.mkdir(parents=True)
    file = folder / "config.yaml"
    lines = [f"run_dir: '{folder}'", f"algorithm: {{{algorithm}}}", *settings]
    file.write_text("\n".join(lines))
    experiment = load_experiment(file)
    variables = make_initial_values(experiment)
    directory = experiment.parameter_server.checkpoint_dir
    with Snapshots(directory, keep=len(versions)) as snapshots:
        for version in versions:
            drawn = _draw(variables, version)
            manifest = make_manifest(variables)
            flat = manifest.pack([drawn[segment.name] for segment in manifest.segments])
            state = Store(manifest, flat, experiment.optimizers).export_state()
            state = replace(state, version=version, global_t=100 * version)
            snapshots.save(state, score=-float(version))
    return folder


def write_case(folder: Path, name: str) -> Experiment:
    """Writes the run of a name of `ALGORITHMS`."""
    write_run(folder, ALGORITHMS[name], *SETTINGS.get(name, ()))
    return load_experiment(folder / "config.yaml")


def find_spaces(experiment: Experiment) -> tuple[Any, Any]:
    """Returns the environment's spaces, as the settings say."""
    algorithm = experiment.algorithm
    observations, actions = algorithm.observation_spaces, algorithm.action_spaces
    return (
        observations[OBSERVATION] if observations.keys() == {OBSERVATION} else observations,
        actions[ACTION] if actions.keys() == {ACTION} else actions,
    )


def draw_observations(experiment: Experiment, steps: int, slots: int) -> list[Any]:
    """Returns what k environments send in each step, `[k, ...]`."""
    random = np.random.default_rng(7)
    values = SpaceValues(find_spaces(experiment)[0], OBSERVATION)
    return [_darken(values.sample(slots, random), random) for _ in range(steps)]


def draw_ends(steps: int, slots: int) -> np.ndarray:
    """Returns which episodes begin with each step but the first, `[T, k] bool`."""
    ends = np.zeros((steps, slots), np.bool_)
    ends[2, 0] = True
    ends[steps - 2] = True
    return ends


def play_greedily(
    experiment: Experiment, observations: Sequence[Any], ends: np.ndarray, *spaces: Any
) -> list[np.ndarray]:
    """Returns what the run's own agents do, as `relaax eval` makes them, `[k, ...]` each."""
    observation_space, action_space = spaces or find_spaces(experiment)
    slots: Any = SimpleNamespace(
        slots=ends.shape[1], observation_space=observation_space, action_space=action_space
    )
    state = read_snapshot(experiment)
    with open_server(experiment, state) as server:
        fixed = FrozenPolicy(server.get_values(), server.version)
        host = make_frozen_host(
            experiment, lambda name: InProcessClient(server, name), fixed, "local"
        )
        agents = LocalAgents(slots, host, exploit=True)
        try:
            return play(agents.step, observations, ends)
        finally:
            agents.close()


def play(step: Any, observations: Sequence[Any], ends: np.ndarray) -> list[np.ndarray]:
    """Plays by the `step` of an `RlxClient`, or what is like it; returns all actions."""
    actions = [step(observations[0]).actions]
    nowhere = np.zeros(ends.shape[1], np.bool_)
    for observation, ended in zip(observations[1:], ends[1:], strict=True):
        rewards = np.ones(ends.shape[1])
        actions.append(step(observation, rewards, ended, nowhere).actions)
    return actions


def _darken(values: Any, random: np.random.Generator) -> Any:
    """Gives each image a brightness of its own: noise looks alike to a network."""
    if isinstance(values, dict):
        return {name: _darken(array, random) for name, array in values.items()}
    if values.dtype != np.uint8:
        return values
    brightness = random.random((len(values), 1, 1, 1)) ** 3
    return (values * brightness).astype(np.uint8)


def _draw(variables: Sequence[Variable], version: int) -> Mapping[str, np.ndarray]:
    random = np.random.default_rng(version)
    drawn = {}
    for variable in variables:
        shape, dtype = variable.value.shape, variable.value.dtype
        if variable.kind != STATISTIC:
            scale = 2 / math.sqrt(math.prod(shape[:-1])) if len(shape) > 1 else 0.1
            value = random.normal(scale=scale, size=shape)
        elif variable.name.endswith(".mean"):
            value = random.normal(size=shape)
        else:  # the count, and the sum of squares of so many
            value = np.full(shape, 50.0)
        drawn[variable.name] = np.asarray(value, dtype)
    return drawn
