"""Encoders without an actor-critic: the forms of a pass, memory, statistics, targets."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from support.batch import add_state_size

from relaax_like.algorithm import Encoder, Model
from relaax_like.algorithm.acting import NumpyActor, make_actor
from relaax_like.algorithm.model import get_variables
from relaax_like.config import EncoderConfig
from relaax_like.nn import Dense, Target, make_policy
from relaax_like.nn.layers import Layer
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete

STEPS, SLOTS = 5, 3
CONV = {"conv": {"filters": 4, "kernel": 3, "stride": 2}}
VECTORS = {"goal": {"size": 3}, "arm/joints": {"size": 4, "layers": (6,)}}
IMAGE = {"camera": {"image": (9, 8, 2), "layers": (CONV, 5)}, "goal": {"size": 3}}
VARIANTS = {
    "vector": {"layers": (8, 5)},
    "lstm": {"layers": ({"lstm": 5},), "observation_history": 2},
    "stacked": {"layers": ({"lstm": 5}, 6, {"gru": 4}), "normalize_observations": True},
    "leaves": {"observations": VECTORS, "layers": ({"gru": 4},), "normalize_observations": True},
    "no layers": {"observations": VECTORS, "layers": ()},
    "image": {"observations": IMAGE, "layers": ({"lstm": 4},)},
}
BEGINS = np.zeros((STEPS, SLOTS), bool)
BEGINS[2, 1] = BEGINS[4, 0] = True


def make_config(layers=(8,), **settings):
    return EncoderConfig.model_validate(add_state_size({"network": {"layers": layers}, **settings}))


def make_encoder(**settings):
    encoder = Encoder(make_config(**settings), seed=1)
    random = np.random.default_rng(0)
    for normalizer in encoder.normalizers.values():
        normalizer.count.assign(10.0)
        normalizer.mean.assign(random.standard_normal(normalizer.mean.shape))
        normalizer.m2.assign(random.uniform(1, 40, normalizer.m2.shape))
    bind(encoder)
    return encoder


def bind(module):
    for layer in module.submodules:
        if isinstance(layer, Layer):
            layer.arrays = {k: v.numpy() for k, v in layer.get_variables().items()}


def make_inputs(encoder):
    random = np.random.default_rng(1)
    return {
        name: random.integers(256, size=(STEPS, SLOTS, *spec["shape"])).astype(spec["dtype"])
        if spec["dtype"] == "uint8"
        else random.standard_normal((STEPS, SLOTS, *spec["shape"])).astype(np.float32)
        for name, spec in encoder.get_input_specs()
    }


def make_memory(encoder):
    random = np.random.default_rng(2)
    return {
        name: random.uniform(-1, 1, (SLOTS, *spec["shape"])).astype(np.float32)
        for name, spec in encoder.get_state_specs()
    }


def at(arrays, t):
    return {name: array[t] for name, array in arrays.items()}


def to_tensors(arrays):
    return {name: tf.constant(array) for name, array in arrays.items()}


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "image"])
def test_numpy_and_tensorflow_agree(name):
    encoder = make_encoder(**VARIANTS[name])
    inputs, memory = at(make_inputs(encoder), 0), make_memory(encoder)
    features, after = encoder(inputs, memory)
    assert isinstance(features, np.ndarray)
    assert features.shape == (SLOTS, encoder.features)
    want, want_after = encoder(to_tensors(inputs), to_tensors(memory))
    np.testing.assert_allclose(features, want, atol=1e-5)
    assert after.keys() == want_after.keys() == memory.keys()
    for key in after:
        np.testing.assert_allclose(after[key], want_after[key], atol=1e-5)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS)
def test_a_rollout_gives_what_single_steps_give(settings):
    encoder = make_encoder(**settings)
    inputs, memory = make_inputs(encoder), to_tensors(make_memory(encoder))
    features, memories = encoder(to_tensors(inputs), memory, tf.constant(BEGINS))
    for t in range(STEPS):
        keep = 1.0 - BEGINS[t].astype(np.float32)[:, None]
        memory = {name: array * keep for name, array in memory.items()}
        want, memory = encoder(to_tensors(at(inputs, t)), memory)
        np.testing.assert_allclose(features[t], want, atol=1e-5)
        for name, array in memory.items():
            np.testing.assert_allclose(memories[name][t], array, atol=1e-5)


def test_only_its_own_inputs_and_memory_are_read():
    encoder = make_encoder(**VARIANTS["lstm"])
    inputs, memory = at(make_inputs(encoder), 0), make_memory(encoder)
    features, after = encoder(inputs, memory)
    again, after_again = encoder({**inputs, "wind": None}, {**memory, "of the agent": None})
    np.testing.assert_array_equal(features, again)
    assert list(after) == list(after_again) == ["encoder"]


class Pair(Model):
    """An actor and a critic with encoders of their own, and a slow copy of the critic."""

    def __init__(self, config):
        super().__init__()
        self.encoder = Encoder(config, seed=1, name="actor")
        self.critic = Encoder(config, seed=2, name="critic", normalizers=self.encoder.normalizers)
        self.head = Dense("actor.head", self.encoder.features, 2, seed=3)
        self.target = Target(self.critic, tau=0.1)

    def get_input_specs(self):
        return self.encoder.get_input_specs()

    def get_state_specs(self):
        return [*self.encoder.get_state_specs(), *self.critic.get_state_specs()]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory):
        features, after = self.encoder(inputs, memory)
        _, critics = self.critic(inputs, memory)
        return {"action": make_policy(Discrete(n=2), self.head(features))}, {**after, **critics}


def test_two_encoders_and_a_target_share_statistics_and_act_in_numpy():
    model = Pair(make_config(**VARIANTS["stacked"]))
    variables = {variable.name: variable.kind for variable in get_variables(model)}
    assert len(variables) == len(get_variables(model))
    assert [name for name, kind in variables.items() if kind == "statistic"] == [
        "observation.count",
        "observation.mean",
        "observation.m2",
    ]
    assert variables["actor.lstm.W"] == variables["critic.gru.2.W"] == "trainable"
    assert variables["target/critic.gru.2.W"] == "target"
    assert model.target.module.normalizers == model.encoder.normalizers
    actor = make_actor(model, seed=0)
    assert isinstance(actor, NumpyActor)
    inputs = at(make_inputs(model.encoder), 0)
    memory = {
        name: np.zeros((SLOTS, *spec["shape"]), np.float32)
        for name, spec in model.get_state_specs()
    }
    prediction = actor.act(inputs, memory)
    assert list(prediction.next_states) == ["actor", "critic"]
    assert prediction.next_states["critic"].any()
    model.target.module(to_tensors(inputs), to_tensors(memory))


def test_spaces_that_do_not_fit_are_refused():
    config = make_config(observations=VECTORS)
    joints, goal = (Box(dtype="float32", shape=(size,)) for size in (4, 3))
    config.validate_spaces({"goal": goal, "arm/joints": joints}, {"action": Discrete(n=2)})
    with pytest.raises(InvalidInputError, match=r"algorithm\.observations names 'arm/joints'"):
        config.validate_spaces({"goal": goal}, {"action": Discrete(n=2)})


_ACT = """
import sys
import numpy as np
from relaax_like.algorithm import Encoder
from relaax_like.config import EncoderConfig
settings = {"state_size": 4, "network": {"layers": (4, {"lstm": 3})}}
encoder = Encoder(EncoderConfig.model_validate(settings), seed=0)
print([v.numpy().shape for v in encoder.find_variables()][0], "tensorflow" in sys.modules)
"""


def test_building_one_needs_no_tensorflow():
    done = subprocess.run([sys.executable, "-c", _ACT], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith(" False\n"), done.stderr
