"""impala: its costs against a slow reference, with V-trace and without. covers U14"""

from typing import Any

import numpy as np
import pytest
from support.batch import make_algorithm, make_config

from relaax_like.core.prediction import LOG_PROB
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.wire.errors import InvalidInputError

STEPS, SLOTS = 6, 3


def make_impala(**settings: Any) -> Any:
    return make_config((8,), "impala", shared_network=False, **settings)


def run_network(weights: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    x = np.tanh(x @ weights[0] + weights[1])
    return x @ weights[2] + weights[3]


def compute_slowly(
    config: Any, values: dict[str, np.ndarray], batch: dict[str, np.ndarray]
) -> tuple[float, float]:
    """Returns the actor's and the critic's cost: Espeholt et al. 2018, equation 1 as a sum."""
    policy, critic = (
        [value.astype(np.float64) for name, value in values.items() if name.startswith(part)]
        for part in ("policy", "value")
    )
    actor = squares = entropy = 0.0
    for slot in range(SLOTS):
        logits = run_network(policy, batch["inputs"][:, slot])
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = log_probs[np.arange(STEPS), batch["actions"][:, slot]]
        v = run_network(critic, batch["inputs"][:, slot])[:, 0]
        next_v = run_network(critic, batch["next_inputs"][:, slot])[:, 0]
        alive = batch["alive"][:, slot]
        ratios = np.exp(chosen - batch["log_mu"][:, slot]) if config.vtrace else np.ones(STEPS)
        rho, c = np.minimum(config.rho_bar, ratios), np.minimum(config.c_bar, ratios)
        targets = np.zeros(STEPS)
        for t in range(STEPS):
            factor = 1.0
            targets[t] = v[t]
            for s in range(t, STEPS):
                delta = batch["rewards"][s, slot] + config.gamma * abs(alive[s]) * next_v[s] - v[s]
                targets[t] += factor * rho[s] * delta
                if alive[s] != 1:
                    break
                factor *= config.gamma * c[s]
        for t in range(STEPS):
            goes_on = alive[t] == 1 and t < STEPS - 1
            following = targets[t + 1] if goes_on else next_v[t]
            goal = batch["rewards"][t, slot] + config.gamma * abs(alive[t]) * following
            actor -= rho[t] * (goal - v[t]) * chosen[t]
            squares += (targets[t] - v[t]) ** 2
            entropy -= (np.exp(log_probs[t]) * log_probs[t]).sum()
    rows = STEPS * SLOTS
    return (
        (actor - config.entropy_coefficient * entropy) / rows,
        config.value_coefficient * squares / rows,
    )


def make_batch() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    observations = random.standard_normal((STEPS + 1, SLOTS, 4)).astype(np.float32)
    return {
        "inputs": observations[:-1],
        "next_inputs": observations[1:],
        "alive": random.choice([1.0, 1.0, 0.0, -1.0], (STEPS, SLOTS)).astype(np.float32),
        "rewards": random.standard_normal((STEPS, SLOTS)).astype(np.float32),
        "actions": random.integers(2, size=(STEPS, SLOTS)),
        "log_mu": np.log(random.uniform(0.1, 0.9, (STEPS, SLOTS))).astype(np.float32),
    }


def compute(config: Any) -> tuple[dict[str, float], tuple[float, float]]:
    """Returns the numbers, and what the slow reference says of actor and critic."""
    compiled = CompiledAlgorithm(make_algorithm(config, xla=False, algorithm="impala"))
    batch = make_batch()
    _, numbers = compiled.compute_gradients(
        inputs={"observation": batch["inputs"]},
        next_inputs={"observation": batch["next_inputs"]},
        next_alive={"alive": batch["alive"]},
        rewards={"reward": batch["rewards"][..., None]},
        actions={"action": batch["actions"], LOG_PROB: batch["log_mu"]},
        states={},
    )
    values = {variable.name: variable.value for variable in compiled.get_variables()}
    return numbers, compute_slowly(config, values, batch)


@pytest.mark.parametrize(
    "settings",
    [{}, {"vtrace": False}, {"rho_bar": 2.0, "c_bar": 0.5, "gamma": 0.9}],
    ids=["default", "without", "bounds"],
)
def test_costs_are_those_of_the_paper(settings: dict[str, Any]) -> None:
    numbers, (actor, critic) = compute(make_impala(**settings))
    assert numbers["actor"] == pytest.approx(actor, rel=1e-4)
    assert numbers["critic"] == pytest.approx(critic, rel=1e-4)


def test_each_option_changes_the_costs() -> None:
    plain, _ = compute(make_impala())
    for change in ({"vtrace": False}, {"rho_bar": 3.0}, {"c_bar": 0.1}):
        other, _ = compute(make_impala(**change))
        assert abs(other["critic"] - plain["critic"]) > 1e-3 * plain["critic"], change


def test_with_shared_layers_there_is_one_cost() -> None:
    config = make_config((8,), "impala")
    compiled = CompiledAlgorithm(make_algorithm(config, xla=False, algorithm="impala"))
    assert {variable.group for variable in compiled.get_variables()} <= {"default"}
    assert config.optimizers.keys() == {"default"}
    assert config.optimizers["default"].schedule_env_steps == config.max_global_step


@pytest.mark.parametrize("key", ["rho_bar", "c_bar", "batch_rollouts"])
def test_settings_that_cannot_work_are_refused(key: str) -> None:
    with pytest.raises((ValueError, InvalidInputError), match=key):
        make_impala(**{key: 0})
