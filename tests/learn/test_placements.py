"""Placement is a choice: the same iterations lead to the same values, costs and statistics."""

# covers F6

from typing import Any

import numpy as np
import pytest
from support.batch import load

from relaax_like.algorithm import Phase
from relaax_like.algorithm.model import get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.tally import Tally
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store

STEPS, SLOTS = 6, 4
PPO = {
    "num_steps": STEPS * SLOTS,
    "rollout_steps": STEPS,
    "batch_size": 8,
    "epochs": 3,
    "clip_schedule": "linear",
    "max_global_step": 1000,
}


def make_algorithm(name: str, settings: dict[str, Any], phases: Any = ()) -> Any:
    settings = {"network": {"layers": (5,)}, **settings}
    config = load("config", name).Config(state_size=3, num_actions=2, **settings)
    model = load("model", name).make_model(config, 0)
    model.xla = False  # compiling takes longer than all else here
    algorithm = load("algorithm", name).make_algorithm(config, model, 0)
    if phases:
        algorithm.phases = phases
    return algorithm


def make_data(algorithm: Any, seed: int, has_holes: bool) -> TrainingData:
    random, shape = np.random.default_rng(seed), (STEPS, SLOTS)
    observations = random.normal(1.0, 2.0, (STEPS + 1, SLOTS, 3)).astype(np.float32)
    states = {
        name: random.standard_normal((SLOTS, *p["shape"])).astype(np.float32)
        for name, p in algorithm.model.get_state_specs()
    }
    rollout = Rollout(
        inputs={"observation": observations[:-1]},
        next_inputs={"observation": observations[1:]},
        next_alive=random.choice([1.0, 1.0, 0.0, -1.0], shape).astype(np.float32),
        rewards=random.standard_normal((*shape, 1)).astype(np.float32),
        actions={"action": random.integers(2, size=shape)},
        log_prob=np.log(random.uniform(0.3, 0.7, shape)).astype(np.float32),
        states=states,
        versions=np.zeros(STEPS, np.int64),
        valid=random.uniform(size=shape) > 0.2 if has_holes else None,
    )
    keys = np.stack([np.ones(SLOTS, np.int64), np.arange(SLOTS)], 1)
    return TrainingData(
        rollout=rollout, tickets=(1,), env_steps=rollout.env_steps, mean_version=0.0, keys=keys
    )


def make_server(algorithm: Any) -> ParameterServer:
    variables = get_variables(algorithm.model)
    manifest = make_manifest(variables)
    store = Store(manifest, manifest.pack([v.value for v in variables]), make_optimizers(algorithm))
    return ParameterServer(store, metrics=NullMetrics())


def make_optimizers(algorithm: Any) -> dict[str, OptimizerConfig]:
    return {
        group: OptimizerConfig(name="sgd", learning_rate=0.05) for group in algorithm.trained_groups
    }


CASES: dict[str, tuple[str, dict[str, Any], Any, bool]] = {
    "stop": ("ppo", {**PPO, "kl": 1e-3, "learning_rate": 1.0}, (), False),
    "statistics": (
        "ppo",
        {**PPO, "prenorm": True, "prenormalize_steps": STEPS * SLOTS, "update_norm": True},
        (),
        False,
    ),
    "both in one, scaled rewards": (
        "ppo",
        {**PPO, "shared_network": True, "normalize_rewards": True},
        (),
        False,
    ),
    "holes and memory": (
        "ppo",
        {**PPO, "network": {"layers": ({"lstm": 4},)}, "shared_network": True, "batch_size": 2},
        (),
        True,
    ),
    "phases": ("ppo", {**PPO, "batch_size": 12}, (Phase("critic"), Phase("actor", every=2)), False),
    "a2c, holes": ("a2c", {"rollout_steps": STEPS, "normalize_observations": True}, (), True),
}


@pytest.mark.parametrize(("name", "settings", "phases", "has_holes"), CASES.values(), ids=CASES)
def test_iterations_lead_to_the_same_beside_agents_and_in_the_server(
    name: str, settings: dict[str, Any], phases: Any, has_holes: bool
) -> None:
    inside = make_algorithm(name, settings, phases)
    beside = make_algorithm(name, settings, phases)
    plan, tally = inside.config.plan, Tally()
    with make_server(inside) as home, make_server(beside) as server:
        whole = LearningPolicy(CompiledUpdates(inside, make_optimizers(inside)), plan, seed=7)
        whole.load(home.lease())
        compiled = CompiledGradients(beside)
        with InProcessClient(server) as client:
            sink = policy = Pushing(client, compiled, tally, plan, 7)
            sink.load()
            before = whole.get_values()
            for seed in range(4):
                data = make_data(inside, seed, has_holes)
                want = whole.forward(whole.data_preprocess(data))
                tally.add(data.env_steps)
                came = policy.forward(policy.data_preprocess(data))
                compiled.set_values(sink.values)
                assert came == pytest.approx(want, rel=1e-4, abs=1e-5)
                assert server.global_t == whole.global_t
                for own, others in zip(sink.values, whole.get_values(), strict=True):
                    np.testing.assert_allclose(own, others, rtol=1e-5, atol=1e-5)
            changed = [(one != two).any() for one, two in zip(before, sink.values, strict=True)]
            assert all(changed[: len(beside.model.trainable_variables)])
