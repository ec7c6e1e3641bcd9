"""The variables of a model: what is in the manifest, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
from support.buffers.config import Config
from support.buffers.model import MovingModel

from relaax_like.algorithm.model import (
    Model,
    get_buffers,
    get_variables,
    order_variables,
    validate_model,
)
from relaax_like.core.manifest import make_manifest
from relaax_like.nn import Dense, Parameter, Target, declare
from relaax_like.wire.errors import ConfigError


class Plain(Model):
    """A trained layer, and another attribute."""

    groups = {"net": ("net",)}  # noqa: RUF012

    def __init__(self, other):
        super().__init__()
        self.net = Dense("net", 2, 1, seed=0)
        self.other = other

    def get_input_specs(self):
        return [("x", {"shape": [2]})]

    def get_action_specs(self):
        return [("action", {"shape": [1]})]

    def policy(self, inputs, memory):
        raise NotImplementedError


def make_fixed(value=3.0, name="fixed"):
    return tf.Variable(value, trainable=False, name=name)


@pytest.mark.parametrize("use", [validate_model, get_variables, order_variables])
def test_a_variable_of_which_nothing_is_declared_is_refused(use):
    with pytest.raises(ConfigError, match=r"test_model.py:\d+: the variable 'fixed' .*'constant'"):
        use(Plain(make_fixed()))


def test_a_constant_is_in_the_manifest_so_that_it_is_restored():
    for constant in (declare(make_fixed(), "constant"), Parameter("fixed", 3.0, "constant")):
        variables = get_variables(Plain(constant))
        assert [(one.name, one.kind) for one in variables][2:] == [("fixed", "constant")]
        assert variables[-1].value == 3.0


def test_manifest_and_model_have_the_same_order_and_buffers_are_in_groups():
    model = MovingModel(Config(), 0)
    variables = get_variables(model)
    names = [(one.name, one.kind) for one in variables]
    assert names == [
        ("actor.out.W", "trainable"),
        ("actor.out.b", "trainable"),
        ("mean", "buffer"),
        ("variance", "buffer"),
        ("critic.out.W", "trainable"),
        ("critic.out.b", "trainable"),
        ("critic.steps", "buffer"),
        ("target/critic.out.W", "target"),
        ("target/critic.out.b", "target"),
        ("target/critic.steps", "target"),
        ("critic.scale", "constant"),
    ]
    assert [one.name for one in make_manifest(variables).segments] == [name for name, _ in names]
    groups = {group: list(own) for group, own in get_buffers(model).items()}
    assert groups == {"actor": ["mean", "variance"], "critic": ["critic.steps"]}
    assert model.slow.module.scale is not model.critic.scale
    assert model.slow.module.scale.variable is model.critic.scale.variable


def test_a_buffer_of_a_group_that_nothing_trains_is_refused():
    with pytest.raises(ConfigError, match="'fixed' is in the variable group 'default', which has"):
        validate_model(Plain(Parameter("fixed", np.zeros(2, np.float32), "buffer")))


@pytest.mark.parametrize(("trainable", "kind"), [(True, "buffer"), (False, "statistic")])
def test_what_cannot_be_declared_is_an_error(trainable, kind):
    with pytest.raises(ValueError, match=f"trainable={trainable} and kind '{kind}'; expected"):
        declare(tf.Variable(1.0, trainable=trainable), kind)


def test_copies_of_tensorflow_variables_need_no_declaration():
    class Scaled(Dense):
        def __init__(self):
            super().__init__("other", 2, 1, seed=1)
            self.scale = tf.Variable(2.0, name="scale")
            self.fixed = declare(make_fixed(), "constant")

    scaled = Scaled()
    variables = get_variables(Plain([scaled, Target(scaled, every=1)]))
    kinds = [(one.name, one.kind) for one in variables if "scale" in one.name]
    assert kinds == [("scale", "trainable"), ("target/scale", "target")]
    assert [one.name for one in variables if one.kind == "constant"] == ["fixed"]
