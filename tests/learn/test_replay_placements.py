"""Minibatches of a replay table: the same gradients and values beside agents and in a server.

covers F6, F24
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.batch import load

from relaax_like.algorithm.model import get_trainable_variables, get_variables
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.core.manifest import find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.pushing import Pushing
from relaax_like.learn.replayed import PRIORITY, ReplayIteration
from relaax_like.learn.tally import Tally
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.module import get_name
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.replay import TransitionBatch

UPDATES, ROWS = 2, 8
NETWORK = {"network": {"layers": (16,)}, "batch_size": ROWS, "updates_at_once": UPDATES}
PRIORITIES = {"priority_exponent": 0.6}
CASES: dict[str, dict[str, Any]] = {
    "dqn": {"state_size": 3, "num_actions": 3, "target_every": 3, **PRIORITIES},
    **{
        name: {"state_size": 3, "action_size": 2, "action_low": -2.0, "action_high": 2.0}
        for name in ("sac", "td3", "ddpg")
    },
    "dqn, noisy quantiles": {
        **{"state_size": 3, "num_actions": 3, "target_every": 3, **PRIORITIES},
        **{"dueling": True, "noisy": True},
        "distribution": {"kind": "quantile", "atoms": 11},
    },
    "sac, many updates": {
        **{"state_size": 3, "action_size": 2, "action_low": -2.0, "action_high": 2.0},
        **{"critic_layer_norm": True, "critic_dropout": 0.1, "actor_every": 2},
        **{"target_critics": 1, "actor_value": "mean"},
    },
    "xqc, batch norms": {
        **{"state_size": 3, "action_size": 2, "action_low": -2.0, "action_high": 2.0},
        **{"atoms": 11, "critics": 1, "actor_every": 2, "normalize_rewards": False, **PRIORITIES},
    },
}
# A batch norm cancels them, so that they move by rounding alone: the bias of a dense layer before
# it, the shift of the norm before that layer, and the mean of what the norm sees.
CANCELLED = re.compile(r"(target/)?(actor|critic1)\.(0\.b|norm\.shift|norm0\.mean)")


def make_algorithm(case: str) -> Any:
    name = case.split(",")[0]
    config = load("config", name).Config.model_validate({**NETWORK, **CASES[case]})
    model = load("model", name).make_model(config, 0)
    model.xla = False  # compiling takes longer than all else here
    return load("algorithm", name).make_algorithm(config, model, 0)


def make_iteration(algorithm: Any, seed: int) -> ReplayIteration:
    random, shape = np.random.default_rng(seed), (UPDATES, ROWS)

    def draw(*more: int) -> np.ndarray:
        return random.standard_normal((*shape, *more)).astype(np.float32)

    ((_, spec),) = algorithm.model.get_action_specs()
    is_discrete = spec.get("dtype") == "int64"
    batch = TransitionBatch(
        ids=np.arange(UPDATES * ROWS).reshape(shape),
        weights=random.uniform(0.5, 1.0, shape).astype(np.float32),
        observations={"observation": draw(3)},
        actions={"action": random.integers(3, size=shape) if is_discrete else np.tanh(draw(2))},
        returns=draw(1),
        discounts=random.choice([0.0, 0.9], shape).astype(np.float32),
        next_observations={"observation": draw(3)},
        log_prob=draw(),
        versions=np.zeros(shape, np.int64),
        extras={},
        steps=np.ones(shape, np.int64),
        ages=np.ones(shape, np.int64),
        keys=np.zeros((*shape, 3), np.int64),
    )
    return ReplayIteration(batch, ROWS, (), 0.0)


def make_server(algorithm: Any) -> ParameterServer:
    variables = get_variables(algorithm.model)
    manifest = make_manifest(variables)
    flat = manifest.pack([variable.value for variable in variables])
    store = Store(manifest, flat, algorithm.config.optimizers, find_follows(variables))
    return ParameterServer(store, metrics=NullMetrics())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "sac", "td3", "ddpg"])
def test_gradients_of_a_hundred_minibatches_are_those_of_the_compiled_update(name: str) -> None:
    """Each at the values of a run: to 1e-5 of the norm of its variable group."""
    walking = make_algorithm(name)
    walk = LearningPolicy(
        CompiledUpdates(walking, walking.config.optimizers), walking.config.plan, 0
    )
    inside, beside = make_algorithm(name), make_algorithm(name)
    rates = {g: replace_optimizer(o) for g, o in inside.config.optimizers.items()}
    whole, compiled = CompiledUpdates(inside, rates), CompiledGradients(beside)
    variables = [variable.name for variable in get_variables(inside.model)]
    trainable = [get_name(variable) for variable in get_trainable_variables(inside.model)]
    places = [variables.index(trained) for trained in trainable]
    compared = 0
    for number in range(100 // UPDATES):
        iteration = make_iteration(inside, number)
        arguments = walk.data_preprocess(iteration)
        first = take_first(arguments)
        values = walk.get_values()
        whole.set_values(values)
        state = whole.export_optimizers()
        whole.import_optimizers(replace(state, steps=dict.fromkeys(state.steps, number)))
        whole.update(Draw(batch_size=ROWS), **first)
        want = [before - after for before, after in zip(values, whole.get_values(), strict=True)]
        compiled.set_values(values)
        compiled.num_gradients = number
        for gradient in compiled.compute_updates(Draw(batch_size=ROWS), **first):
            groups = gradient.groups or tuple(inside.trained_groups)
            own = [
                place
                for place, trained in zip(places, trainable, strict=True)
                if inside.model.get_group(trained) in groups
            ]
            assert len(own) == len(gradient.arrays)
            for group in groups:
                pairs = [
                    (array.ravel(), want[place].ravel())
                    for array, place in zip(gradient.arrays, own, strict=True)
                    if inside.model.get_group(variables[place]) == group
                ]
                mine, theirs = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
                assert np.linalg.norm(mine - theirs) <= 1e-5 * np.linalg.norm(theirs), group
            for array, place in zip(gradient.arrays, own, strict=True):
                values[place] = values[place] - array
            compiled.set_values(values)
        compared += 1
        walk.forward(arguments)
    assert compared == 100 // UPDATES


def replace_optimizer(optimizer: Any) -> Any:
    """Returns one that subtracts the gradient."""
    return optimizer.model_copy(update={"name": "sgd", "learning_rate": 1.0})


def take_first(arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the first minibatch."""
    return {
        part: {name: array[:ROWS] for name, array in arrays.items()}
        for part, arrays in arguments.items()
    }


# The one with priorities, that with phases and random draws, and that with buffers and weights of
# unit norm: tests/golden has the others.
@pytest.mark.parametrize("name", ["dqn, noisy quantiles", "sac, many updates", "xqc, batch norms"])
def test_ten_updates_lead_to_the_same_values_beside_agents_and_in_the_server(name: str) -> None:
    inside, beside = make_algorithm(name), make_algorithm(name)
    plan, tally = inside.config.plan, Tally()
    with make_server(inside) as home, make_server(beside) as server:
        whole: LearningPolicy = LearningPolicy(
            CompiledUpdates(inside, inside.config.optimizers), plan, 0
        )
        whole.load(home.lease())
        compiled = CompiledGradients(beside)
        with InProcessClient(server) as client:
            sink = policy = Pushing(client, compiled, tally, plan, 0)
            sink.load()
            before = whole.get_values()
            for seed in range(10 // UPDATES):
                iteration = make_iteration(inside, seed)
                want = whole.forward(whole.data_preprocess(iteration))
                tally.add(ROWS)
                came = policy.forward(policy.data_preprocess(iteration))
                compiled.set_values(sink.values)
                assert came == pytest.approx(want, rel=1e-3, abs=1e-4)
                assert set(policy.rows) <= {PRIORITY}
                for rows, results in policy.rows.items():
                    np.testing.assert_allclose(results, whole.rows[rows], rtol=1e-3, atol=1e-4)
            assert bool(policy.rows) == (plan.priority_exponent is not None)
            assert server.global_t == ROWS * (10 // UPDATES)
            names = [variable.name for variable in get_variables(inside.model)]
            for variable, old, own, others in zip(
                names, before, sink.values, whole.get_values(), strict=True
            ):
                if CANCELLED.fullmatch(variable):
                    np.testing.assert_allclose(own, others, atol=1e-3)
                    continue
                moved = np.linalg.norm(others - old)
                assert moved > 0, variable
                assert np.linalg.norm(own - others) <= 1e-3 * moved, variable
