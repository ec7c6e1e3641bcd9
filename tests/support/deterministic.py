"""td3 and ddpg beside the slow reference; actions in [-2, 2] and [0, 1]."""

from typing import Any

import numpy as np

from relaax_like.algorithm.model import get_variables, order_variables
from relaax_like.algorithm.parts import DISCOUNT, WEIGHTS
from relaax_like.algorithm.random import StatelessRandom
from relaax_like.core.prediction import LOG_PROB
from relaax_like.learn.draw import Draw
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.runtime import tf
from support.batch import load
from support.replay_batch import make_replay_batch
from support.slow_td3 import Batch, SlowTD3

LOW, HIGH = (-2.0, 0.0), (2.0, 1.0)
ROWS, UPDATES, SEED = 6, 5, 3
RATES, EPSILON, TAU = (0.01, 0.02), 1e-3, 0.2


def make(name: str, **settings: Any) -> tuple[Any, Any, Any]:
    """Returns config, model and algorithm of a folder."""
    options = {
        "name": name,
        "state_size": 2,
        "action_size": 2,
        "action_low": LOW,
        "action_high": HIGH,
        "network": {"layers": (5,), "activation": "relu"},
        "learning_rate": RATES[0],
        "critic_learning_rate": RATES[1],
        "adam_epsilon": EPSILON,
        "tau": TAU,
        **settings,
    }
    config = load("config", name).Config.model_validate(options)
    model = load("model", name).make_model(config, SEED)
    model.xla = False
    _spread(model)
    return config, model, load("algorithm", name).make_algorithm(config, model, SEED)


def draw_batches() -> list[Batch]:
    """Draws minibatches, always the same; their noise is 0."""
    random = np.random.default_rng(1)

    def draw() -> Batch:
        return Batch(
            x=random.standard_normal((ROWS, 2)),
            next_x=random.standard_normal((ROWS, 2)),
            actions=random.uniform(LOW, HIGH, (ROWS, 2)),
            returns=random.standard_normal(ROWS),
            discounts=random.choice([0.0, 0.9, 0.81], ROWS),
            weights=random.uniform(0.2, 1.0, ROWS),
            noise=np.zeros((ROWS, 2)),
        )

    return [draw() for _ in range(UPDATES)]


def make_reference(model: Any, critics: int, delay: int) -> SlowTD3:
    """Returns the reference with a model's values."""
    values = {variable.name: variable.value for variable in get_variables(model)}
    return SlowTD3(values, critics, delay, LOW, HIGH, TAU, RATES, EPSILON)


def compute_losses(algorithm: Any, batch: Batch) -> Any:
    """Calls `learn` with a minibatch; draws are those of the first update."""
    algorithm.random = _draw_for(1)
    return algorithm.learn(
        make_replay_batch(
            batch.x.astype(np.float32),
            batch.next_x.astype(np.float32),
            batch.actions.astype(np.float32),
            batch.returns.astype(np.float32),
            batch.discounts.astype(np.float32),
            batch.weights.astype(np.float32),
        )
    )


def draw_noise(update: int) -> np.ndarray:
    """Returns the normal draws of an update, 1 for the first, `[B, d]`."""
    return _draw_for(update).normal((ROWS, 2)).numpy().astype(np.float64)


def update_all(config: Any, algorithm: Any, batches: list[Batch]) -> dict[str, np.ndarray]:
    """Makes one update of each minibatch, in two calls; returns the values by name."""
    compiled = CompiledUpdates(algorithm, config.optimizers)
    for part in (batches[:2], batches[2:]):

        def join(name: str, part: list[Batch] = part) -> np.ndarray:
            return np.concatenate([getattr(b, name) for b in part]).astype(np.float32)

        compiled.update(
            Draw(batch_size=ROWS),
            inputs={"observation": join("x")},
            next_inputs={"observation": join("next_x")},
            next_alive={"alive": (join("discounts") > 0).astype(np.float32)},
            rewards={"reward": join("returns")[:, None]},
            actions={"action": join("actions"), LOG_PROB: np.zeros(len(join("x")), np.float32)},
            states={},
            extras={DISCOUNT: join("discounts"), WEIGHTS: join("weights")},
        )
    return {variable.name: variable.value for variable in compiled.get_variables()}


def _draw_for(update: int) -> StatelessRandom:
    """Returns the source of an update's draws in the phase of the critics."""
    return StatelessRandom(SEED, "critic", tf.constant(update, tf.int64))


def _spread(model: Any) -> None:
    """Sets random values: targets differ from their sources, and actions come near the bounds."""
    random = np.random.default_rng(0)
    for variable in order_variables(model):
        variable.assign(random.standard_normal(variable.shape).astype(np.float32))
