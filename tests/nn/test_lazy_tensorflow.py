"""What needs no TensorFlow does not import it; what does finds it set up. covers F4, F8"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.cluster import ROOT

# One program: numbers of several models without TensorFlow, and then with it.
ACT = """
import sys
import numpy as np
from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.actor_critic import ActorCritic
from relaax_like.algorithm.model import get_variables
from relaax_like.config.actor_critic import ActorCriticConfig
from relaax_like.config.network import NetworkConfig

def act(layers):
    config = ActorCriticConfig(
        max_global_step=1,
        state_size=3,
        num_actions=2,
        network=NetworkConfig.model_validate({"layers": layers}),
        normalize_observations=True,
    )
    model = ActorCritic(config, seed=1)
    described = get_variables(model)
    actor = make_actor(model, 0)
    random = np.random.default_rng(0)
    values = [v.value + random.random(v.value.shape).astype(v.value.dtype) for v in described]
    values[-3] = np.float64(5)  # observations seen
    actor.set_values(values, 7)
    inputs = {"observation": random.standard_normal((5, 3)).astype(np.float32)}
    states = {name: np.zeros((5, *p["shape"]), np.float32) for name, p in model.get_state_specs()}
    prediction = actor.act(inputs, states, exploit=True)
    assert isinstance(actor, NumpyActor)
    assert [v.kind for v in described[-3:]] == ["statistic"] * 3
    assert prediction.version == 7
    assert "tensorflow" not in sys.modules
    return model, described, values, inputs, states, prediction

acted = [act(layers) for layers in [(8,), (8, {"lstm": 4}), ({"gru": 4},)]]

config = ActorCriticConfig.model_validate({
    "max_global_step": 1,
    "image": (9, 9, 1),
    "num_actions": 2,
    "network": {"layers": ({"conv": {"filters": 2, "kernel": 3, "stride": 2}}, 4)},
})
convolutional = ActorCritic(config, seed=1)
assert len(get_variables(convolutional)) == 12
assert "tensorflow" not in sys.modules
"""
LEARN = """
from relaax_like.algorithm import Algorithm, Losses
assert "tensorflow" not in sys.modules
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
import tensorflow as tf
tf.constant(1.0) + 1.0
{settings}

class Imitate(Algorithm):
    def learn(self, batch):
        distributions, _ = self.model.policy(batch.inputs, batch.memory)
        log_prob = distributions["action"].log_prob(batch.actions["action"])
        return Losses({{"default": -batch.mean(log_prob)}})

def learn(model, described, values, inputs, states, prediction):
    model.xla = False  # compiling takes longer than all else here
    compiled = CompiledAlgorithm(Imitate(model))
    for one, other in zip(described, compiled.get_variables(), strict=True):
        assert (one.name, one.group, one.kind) == (other.name, other.group, other.kind)
        np.testing.assert_array_equal(one.value, other.value)
    compiled.set_values(values)
    actions, next_states = compiled.predict(inputs, states, exploit=True)
    np.testing.assert_array_equal(actions["action"], prediction.actions["action"])
    for name, array in prediction.next_states.items():
        np.testing.assert_allclose(next_states[name], array, atol=1e-5)
    alive, rewards = {{"alive": np.ones((5, 1))}}, {{"reward": np.ones((5, 1))}}
    gradients, costs = compiled.compute_gradients(
        inputs=inputs,
        next_inputs=inputs,
        next_alive=alive,
        rewards=rewards,
        actions=actions,
        states=states,
    )
    np.testing.assert_allclose(costs["default"], -prediction.log_prob.mean(), rtol=1e-4)
    assert sum(np.abs(g).max() > 0 for g in gradients) >= 4

for arguments in acted:
    learn(*arguments)

actor = make_actor(convolutional, 0)
assert isinstance(actor, CompiledActor)
actor.act({{"observation": np.zeros((2, 9, 9, 1), np.uint8)}}, {{}})
"""
SETTINGS = """
assert tf.config.threading.get_intra_op_parallelism_threads() == 1
assert tf.config.threading.get_inter_op_parallelism_threads() == 1
"""


def run(program: str, *arguments: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_models_act_without_tensorflow_and_learn_with_it() -> None:
    """Also one with convolutions, which is described without it and acts with it.

    What loads TensorFlow first here is a CompiledAlgorithm: it has made the settings.
    """
    run(ACT + LEARN.format(settings=SETTINGS))


def test_initial_values_are_computed_without_tensorflow(tmp_path: Path) -> None:
    program = """
    import sys
    from relaax_like.launch.initial_values_main import main
    files = sys.argv[1:]
    sizes = ["algorithm.state_size=4", "algorithm.num_actions=2"]
    for i in range(0, len(files), 2):
        sys.argv[1:] = [files[i], *sizes, files[i + 1]]
        assert main() == 0
        assert "tensorflow" not in sys.modules
    """
    arguments: list[Path] = []
    for name in ("a2c", "policy_gradient"):
        arguments += [ROOT / "algorithms" / name / f"{name}.yaml", tmp_path / f"{name}.npz"]
    run(program, *arguments)
    for path in arguments[1::2]:
        assert path.stat().st_size > 100, path


# Whatever comes first: the settings are made before anything is computed. A CompiledAlgorithm
# comes first above.
FIRST = {
    "our tensorflow": """
import sys
from relaax_like.nn.lazy_tensorflow import tf
assert "tensorflow" not in sys.modules
assert (tf.constant(1.0) + 1.0).numpy() == 2.0
assert tf.constant is sys.modules["tensorflow"].constant
import relaax_like.learn.updates
# Keras is imported only by an algorithm that uses it.
assert not [name for name in sys.modules if name.startswith("keras")]
assert tf.keras.optimizers.Adam(0.5).learning_rate.numpy() == 0.5
""",
    # Two processes that are forked off one which has only imported TensorFlow, in seconds.
    "a variable, or a model with variables of its own": """
from support.forks import import_tensorflow, run_forked

def variable():
    from relaax_like.nn.layers import Dense
    Dense("0", 1, 1, seed=0).W.assign_add([[1.0]])
    check()

def model():
    from relaax_like.nn.module import Module
    import tensorflow as tf
    class Own(Module):
        def __init__(self):
            super().__init__()
            self.w = tf.Variable(1.0) + 1.0
    Own()
    check()

def check():
    import tensorflow as tf
    assert tf.config.threading.get_intra_op_parallelism_threads() == 1
    assert tf.config.threading.get_inter_op_parallelism_threads() == 1

import_tensorflow()
assert [run_forked(variable), run_forked(model)] == [0, 0]
from relaax_like.nn.runtime import tf
""",
}


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST.keys())
def test_the_settings_are_made_whatever_comes_first(first: str) -> None:
    run(first + SETTINGS)
