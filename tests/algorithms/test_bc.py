"""bc: its gradient against numbers worked out by hand, all kinds of actions, and CartPole."""

# covers J11

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.batch import load
from support.cluster import ROOT
from support.recordings import record
from support.serial import train

from relaax_like.algorithm.model import get_variables
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.core.manifest import make_manifest
from relaax_like.launch.evaluation import evaluate_policies
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.nn.module import get_name
from relaax_like.wire.errors import ConfigError

bc_config = load("config", "bc")
bc_model = load("model", "bc")
bc_algorithm = load("algorithm", "bc")
FILE = ROOT / "algorithms" / "bc" / "bc.yaml"


def make_compiled(layers: Any = (), **settings: Any) -> CompiledUpdates:
    config = bc_config.Config(network={"layers": tuple(layers)}, **settings)
    model = bc_model.make_model(config, 0)
    model.xla = False  # compiling takes longer than all else here
    return CompiledUpdates(bc_algorithm.make_algorithm(config, model, 0), config.optimizers)


def set_values(compiled: CompiledUpdates, **values: Any) -> None:
    """Sets variables, with _ for the dots of their names; all others to zero."""
    zeros = {v.name: np.zeros_like(v.value) for v in compiled.get_variables()}
    given = {name: values.get(name.replace(".", "_"), zeros[name]) for name in zeros}
    compiled.set_values([np.asarray(value, np.float32) for value in given.values()])


def make_rows(observations: Any, actions: Any) -> dict[str, Any]:
    inputs = {"observation": np.asarray(observations, np.float32)}
    rows = len(inputs["observation"])
    return {
        "inputs": inputs,
        "next_inputs": inputs,
        "next_alive": {"alive": np.ones(rows, np.float32)},
        "rewards": {"reward": np.zeros((rows, 1), np.float32)},
        "actions": {"action": np.asarray(actions)},
    }


def compute(
    compiled: CompiledUpdates, rows: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Returns the gradients by name, and the costs."""
    gradients, costs = compiled.compute_gradients(**rows)
    trainable = [get_name(variable) for variable in compiled._trainable]
    return dict(zip(trainable, gradients, strict=True)), costs


def test_the_gradient_of_discrete_actions_is_probability_minus_one_for_what_was_done() -> None:
    """A linear policy with logits W x. At W = [[ln 3, 0], [0, 0]]:

    x = (1, 0): p = (3/4, 1/4); action 0 was taken: the cost is ln(4/3), d/dlogits = (-1/4, 1/4);
    x = (0, 2): p = (1/2, 1/2); action 1 was taken: the cost is ln 2, d/dlogits = (1/2, -1/2).
    The mean's gradient by W is half of the sum of x times that: [[-1/8, 1/8], [1/2, -1/2]].
    """
    compiled = make_compiled(state_size=2, num_actions=2)
    set_values(compiled, policy_out_W=[[math.log(3), 0], [0, 0]])
    gradients, costs = compute(compiled, make_rows([[1, 0], [0, 2]], [0, 1]))
    assert costs["cloning"] == pytest.approx((math.log(4 / 3) + math.log(2)) / 2, abs=1e-6)
    np.testing.assert_allclose(
        gradients["policy.out.W"], [[-1 / 8, 1 / 8], [1 / 2, -1 / 2]], atol=1e-6
    )
    np.testing.assert_allclose(gradients["policy.out.b"], [1 / 8, -1 / 8], atol=1e-6)
    # The value function has nothing to learn from.
    assert not any(g.any() for name, g in gradients.items() if name.startswith("value."))


def test_the_gradient_of_continuous_actions_draws_mean_and_deviation_to_what_was_done() -> None:
    """N(0, 1), and 2 and -1 were recorded: -log p is ln(2 pi)/2 + a^2/2.

    d/dmean = mean(mean - a) = -1/2; d/dlog_std = mean(1 - a^2) = 1 - (4 + 1) / 2 = -3/2.
    """
    compiled = make_compiled(state_size=1, action_size=1)
    set_values(compiled)
    gradients, costs = compute(
        compiled, make_rows([[0], [0]], np.array([[2.0], [-1.0]], np.float32))
    )
    assert costs["cloning"] == pytest.approx(math.log(2 * math.pi) / 2 + 5 / 4, abs=1e-6)
    np.testing.assert_allclose(gradients["policy.out.b"], [-1 / 2], atol=1e-6)
    np.testing.assert_allclose(gradients["log_std"], [-3 / 2], atol=1e-6)


def test_of_several_choices_the_costs_add_up() -> None:
    """Uniform over 2 and over 3: ln 2 + ln 3 whatever was chosen."""
    compiled = make_compiled(state_size=1, num_actions=(2, 3))
    set_values(compiled)
    gradients, costs = compute(compiled, make_rows([[0]], [[1, 0]]))
    assert costs["cloning"] == pytest.approx(math.log(6), abs=1e-6)
    want = [1 / 2, -1 / 2, -2 / 3, 1 / 3, 1 / 3]
    np.testing.assert_allclose(gradients["policy.out.b"], want, atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_rows_and_rollouts_have_one_cost_and_a_memory_begins_anew_with_an_episode(
    shared: bool,
) -> None:
    """Two episodes in a row, and the same two as columns: the memory must not tell them apart."""
    compiled = make_compiled([{"gru": 3}], state_size=1, num_actions=2, shared_network=shared)
    observations = np.linspace(-1, 1, 6, dtype=np.float32)[:, None, None]
    actions = np.array([0, 1, 1, 0, 0, 1])[:, None]

    def compute_cost(columns: int, ends: list[float]) -> float:
        def lay_out(array: Any) -> Any:
            return array.reshape(columns, -1, *array.shape[2:]).swapaxes(0, 1)

        steps = 6 // columns
        alive = np.array(ends, np.float32).reshape(columns, steps).T
        states = {
            name: np.zeros((columns, *s), np.float32) for name, s in compiled.state_shapes.items()
        }
        _, costs = compiled.compute_gradients(
            inputs={"observation": lay_out(observations)},
            next_inputs={"observation": lay_out(observations)},
            next_alive={"alive": alive},
            rewards={"reward": np.zeros((steps, columns, 1), np.float32)},
            actions={"action": lay_out(actions)},
            states=states,
        )
        return costs["cloning"]

    one_column = compute_cost(1, [1, 1, 0, 1, 1, -1])
    assert one_column == pytest.approx(compute_cost(2, [1, 1, 0, 1, 1, -1]), abs=1e-6)
    # It does remember within an episode.
    assert compute_cost(1, [1, 1, 1, 1, 1, 1]) != pytest.approx(one_column, abs=1e-6)


def test_cartpole_is_learned_from_the_actions_of_a_controller(tmp_path: Path) -> None:
    sets = (
        *(f"run_dir={tmp_path / 'run'}", f"learner.offline={tmp_path / 'trajectories'}"),
        *("learner.eval_freq=0", "algorithm.max_global_step=60000"),
        "relaax-parameter-server.progress_interval_sec=1000",
    )
    experiment = load_experiment(FILE, sets)
    record(experiment, tmp_path / "trajectories")
    assert train(FILE, *sets) == 0
    played = evaluate_policies(experiment, 24)[""]
    assert played.returns.mean() >= 475, played.returns
    assert played.global_t >= 60_000


def test_weights_of_ppo_and_bc_are_laid_out_alike() -> None:
    """So that a run of ppo can start from a clone (`learner.previous`)."""
    for settings in ({"num_actions": 2}, {"action_size": 3, "shared_network": True}):
        settings["state_size"] = 4
        ours = bc_model.make_model(bc_config.Config(**settings), 0)
        theirs = load("model", "ppo").make_model(load("config", "ppo").Config(**settings), 0)

        one, other = (make_manifest(get_variables(model)) for model in (ours, theirs))
        assert one.fingerprint == other.fingerprint


def test_its_file_is_valid_and_comes_back_from_the_saved_form(tmp_path: Path) -> None:
    experiment = load_experiment(FILE)
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    again = load_experiment(tmp_path / "config.yaml")
    assert again.algorithm == experiment.algorithm
    assert again.learner == experiment.learner


def test_without_files_it_says_what_to_name() -> None:
    with pytest.raises(ConfigError, match=r"learner\.offline: missing, .* name a folder of them"):
        load_experiment(FILE, ["learner.offline=null"])
