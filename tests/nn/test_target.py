"""Targets: copies that their source does not share, under names of their own."""

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm.model import Model, get_variables
from relaax_like.config.network import NetworkConfig
from relaax_like.nn.module import Module, get_name
from relaax_like.nn.networks import make_network
from relaax_like.nn.normalization import Normalizer
from relaax_like.nn.target import Target


class Critic(Module):
    def __init__(self):
        super().__init__()
        self.normalizer = Normalizer("observation", (3,))
        self.net = make_network("q", NetworkConfig(layers=(4,)), (3,), 2, seed=1)
        self.scale = tf.Variable(2.0, name="scale")

    def __call__(self, x):
        return self.scale * self.net(self.normalizer(x))


class DQNModel(Model):
    def __init__(self):
        super().__init__()
        self.critic = Critic()
        self.target = Target(self.critic, every=3)

    def get_input_specs(self):
        return [("observation", {"shape": [3]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory):
        raise NotImplementedError


def test_a_target_computes_what_its_source_did_when_it_was_copied():
    critic = Critic()
    target = Target(critic, tau=0.5)
    x = tf.constant(np.random.default_rng(0).random((5, 3)), tf.float32)
    before = critic(x).numpy()
    np.testing.assert_array_equal(target.module(x), before)
    for variable in critic.trainable_variables:
        variable.assign(variable + 1.0)
    np.testing.assert_array_equal(target.module(x), before)
    assert (critic(x).numpy() != before).any()


def test_a_target_hides_its_source_and_shares_its_normalizers():
    critic = Critic()
    target = Target(critic, every=1)
    assert target.module.normalizer is critic.normalizer
    names = {get_name(v) for v in target.find_variables()}
    own = {n for n in names if n.startswith("target/")}
    assert own == {
        "target/q.0.W",
        "target/q.0.b",
        "target/q.out.W",
        "target/q.out.b",
        "target/scale",
    }
    assert names - own == {"observation.count", "observation.mean", "observation.m2"}
    pairs = zip(target.sources, target.copies, strict=True)
    assert all(get_name(c) == f"target/{get_name(s)}" for s, c in pairs)
    assert not any(v.trainable for v in target.find_variables())


def test_a_model_s_variables_are_each_found_once():
    names = [variable.name for variable in get_variables(DQNModel())]
    assert len(names) == len(set(names))
    assert sum(name.startswith("target/") for name in names) == 5


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "set every"),
        ({"every": 0}, "every is 0"),
        ({"tau": 1.5}, "tau is 1.5"),
        ({"every": 0, "tau": 0.5}, "every is 0"),
    ],
)
def test_a_target_says_how_it_follows(how, words):
    with pytest.raises(ValueError, match=words):
        Target(Critic(), **how)
