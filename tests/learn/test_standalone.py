"""Placement standalone: the same experience leads to the same publications as in the server.

covers N1
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.uncompiled import copy_uncompiled

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.plan import Replay, get_plan
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Episode, Publication, Reply
from relaax_like.core.roles import Publisher
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import TrajectoryWriter
from relaax_like.launch.learners import make_iteration_learner
from relaax_like.launch.parameter_server import make_parameter_server
from relaax_like.learn.remote_publisher import RemotePublisher
from relaax_like.parameter_server.parameter_server import ParameterServer

DISCRETE = {"state_size": 3, "num_actions": 2}
CONTINUOUS = {"state_size": 3, "action_size": 1, "action_low": -2.0, "action_high": 2.0}
REPLAY = {"batch_size": 8, "warm_up_steps": 16, "updates_at_once": 2, "capacity": 256}
SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {**DISCRETE, "num_steps": 32, "rollout_steps": 8},
    "ppo": {**DISCRETE, "num_steps": 64, "rollout_steps": 8, "batch_size": 16, "epochs": 2},
    "dqn": {**DISCRETE, **REPLAY, "target_every": 3, "priority_exponent": 0.6},
    "dqn, prior": {**DISCRETE, **REPLAY, "target_every": 3},
    "sac": {**CONTINUOUS, **REPLAY},
}


# An optimizer without slots.
PLAIN = "relaax-parameter-server: {optimizers: {actor: {name: sgd}, critic: {name: sgd}}}\n"


def make_experiment(folder: Path, name: str, placement: str, more: str = "") -> Experiment:
    algorithm = name.split(",")[0]
    if not (folder / algorithm).exists():
        copy_uncompiled(algorithm, folder)
    settings = dict(SETTINGS[name])
    if "prior" in name:
        settings["prior"] = folder / "recorded"
        TrajectoryWriter(folder / "recorded", 1e6).write(1, make_rollout(algorithm, 1000))
    run = folder / placement
    run.mkdir()
    file = run / "experiment.yaml"
    lines = [f"  {key}: {value}" for key, value in settings.items()]
    file.write_text(
        f"run_dir: {run / 'run'}\nlearner: {{placement: {placement}}}\n"
        f"{more}algorithm:\n  path: {folder / algorithm}\n  network: {{layers: [8]}}\n"
        + "\n".join(lines)
    )
    return load_experiment(file)


def make_rollout(name: str, number: int) -> Rollout:
    """Draws what eight steps of four slots have led to; the same for the same number."""
    random = np.random.default_rng(number)
    steps, slots = 8, 4
    observations = random.standard_normal((steps + 1, slots, 3)).astype(np.float32)
    if "num_actions" in SETTINGS[name]:
        action = random.integers(2, size=(steps, slots))
    else:
        action = random.uniform(-1.9, 1.9, (steps, slots, 1)).astype(np.float32)
    return Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=random.choice([1.0, 1.0, 0.0, -1.0], (steps, slots)).astype(np.float32),
        rewards=random.standard_normal((steps, slots, 1)).astype(np.float32),
        actions={"action": action},
        log_prob=np.log(random.uniform(0.2, 0.9, (steps, slots))).astype(np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
        starts=np.stack([np.arange(slots), np.full(slots, number), np.zeros(slots, int)], 1),
    )


@contextmanager
def publishing(experiment: Experiment) -> Iterator[tuple[ParameterServer, Publisher]]:
    """A parameter server, and what the learner of the placement publishes to."""
    with ExitStack() as ends:
        server = make_parameter_server(experiment, (), NullMetrics())
        ends.callback(server.close, save=False)
        if experiment.learner.placement == "server":
            yield server, server
            return
        grpc_server, port = BridgeControl().create_server("127.0.0.1:0", server, publisher=server)
        grpc_server.start()
        ends.callback(lambda: grpc_server.stop(grace=None).wait())
        link = ends.enter_context(BridgeControl().connect(f"127.0.0.1:{port}"))
        publisher = RemotePublisher(
            link.publisher_stub(),
            "learner",
            server.manifest,
            NullMetrics(),
            publishes_ahead=isinstance(get_plan(experiment.algorithm), Replay),
        )
        publisher.address = "localhost:1"
        ends.callback(publisher.close)
        yield server, publisher


def learn(experiment: Experiment, iterations: int) -> list[tuple[Any, ...]]:
    """Returns the state of the run after each publication."""
    published: list[tuple[Any, ...]] = []
    with publishing(experiment) as (server, publisher):
        publish = server.publish

        def note(publication: Publication) -> Reply:
            reply = publish(publication)
            state = server._store.export_state()
            slots = {group: array.tobytes() for group, array in state.slots.items()}
            counts = (state.version, state.global_t, server.status().episodes)
            published.append((*counts, state.values.tobytes(), slots, dict(state.steps)))
            return reply

        server.publish = note  # type: ignore[method-assign]
        loop = make_iteration_learner(experiment, publisher)
        loop.load()
        number = learned = 0
        while learned < iterations:
            rollout = make_rollout(experiment.algorithm_folder.name, number)
            loop.source.add(rollout, [Episode(float(number), 8)])
            number += 1
            while loop.source.has_iteration and learned < iterations:
                loop.learn()
                learned += 1
        loop.close()
    return published


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("a2c", PLAIN),
        ("ppo", ""),
        ("dqn", ""),
        ("dqn, prior", ""),
        pytest.param("sac", "", marks=pytest.mark.slow),  # a replay table, as dqn
    ],
    ids=str,
)
def test_the_same_experience_leads_to_the_same_publications(
    name: str, more: str, tmp_path: Path
) -> None:
    runs = [
        learn(make_experiment(tmp_path, name, placement, more), 6)
        for placement in ("server", "standalone")
    ]
    assert len({values for *_, values, _, _ in runs[0]}) == 6  # it learns
    assert runs[0] == runs[1]
