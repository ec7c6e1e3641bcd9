"""What modules are made of is found as `tf.Module` finds it. covers F7"""

import threading

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.nn.layers import Dense, Layer, Parameter
from relaax_like.nn.module import LayerVariable, Module, get_name

NAMES = ["a", "b", "B", "W", "_hidden", "layers", "name_of", "z"]


def make_variable(random, label):
    trainable = bool(random.integers(3))
    return tf.Variable(np.float32(0), trainable=trainable, name=label)


def make_value(make_module, random, known, label):
    """A variable, a module, something else, or a list, tuple or dict of those; also known ones."""
    kind = random.integers(8)
    if kind == 0 and known:
        return known[random.integers(len(known))]
    if kind <= 2:
        known.append(make_variable(random, label))
        return known[-1]
    if kind == 3:
        return [None, 3, "text", np.zeros(2), b"bytes", {}, ()][random.integers(7)]
    if kind == 4:
        return make_module(random, known, label)
    parts = [
        make_value(make_module, random, known, f"{label}.{i}") for i in range(random.integers(4))
    ]
    if kind == 5:
        return parts
    if kind == 6:
        return tuple(parts)
    keys = random.permutation(["x", "a", "Z", "m"])
    return {str(key): part for key, part in zip(keys, parts, strict=False)}


def make_tf_module(random, known, label):
    module = tf.Module(name=label.replace(".", "_"))
    known.append(module)  # so that there are cycles
    for name in random.permutation(NAMES)[: random.integers(1, 6)]:
        setattr(module, name, make_value(make_tf_module, random, known, f"{label}.{name}"))
    return module


def make_layer(random, known, label):
    """The same with a Layer, which declares the variables that are its own and nobody else's."""
    layer = Layer()
    layer.name = label.replace(".", "_")
    known.append(layer)
    for name in random.permutation(NAMES)[: random.integers(1, 6)]:
        count = len(known)
        value = make_value(make_layer, random, known, f"{label}.{name}")
        if isinstance(value, tf.Variable) and len(known) > count:
            layer._declare(
                name, get_name(value), value.numpy(), "trainable" if value.trainable else "constant"
            )
            known[-1] = layer._declared[name].tf_variable
        else:
            setattr(layer, name, value)
    return layer


def names(found):
    return [item.name for item in found]


@pytest.mark.parametrize("seed", range(60))
def test_variables_and_modules_come_in_the_order_of_tf_module(seed):
    ours = make_layer(np.random.default_rng(seed), [], "m")
    theirs = make_tf_module(np.random.default_rng(seed), [], "m")
    assert names(ours.variables) == names(theirs.variables)
    assert names(ours.trainable_variables) == names(theirs.trainable_variables)
    assert names(ours.submodules) == names(theirs.submodules)
    assert [get_name(v) for v in ours.find_variables()] == [get_name(v) for v in theirs.variables]


def test_the_random_modules_have_enough_in_them():
    sizes = [len(make_layer(np.random.default_rng(s), [], "m").variables) for s in range(60)]
    assert max(sizes) > 20
    assert sum(size > 2 for size in sizes) > 20


class Part(Module):
    def __init__(self, label):
        super().__init__(label)
        self.variable = tf.Variable(1.0, name=label)


class TheirPart(tf.Module):
    def __init__(self, label):
        super().__init__(label)
        self.layer = Dense(f"{label}.dense", 1, 1, seed=0)
        self.variable = tf.Variable(1.0, name=label)
        self.parts = [Part(f"{label}.part")]


def test_the_order_by_hand_with_modules_of_both_kinds():
    whole = Part("own")
    whole.x = {"2": Part("second"), "1": TheirPart("first")}
    whole.again = whole.x["2"]
    whole.whole = [whole]
    assert [get_name(v) for v in whole.find_variables()] == [
        "own",  # its own before those of its modules, of which `again` is the first
        "second",
        "first",
        "first.dense.W",
        "first.dense.b",
        "first.part",
    ]
    assert names(whole.submodules) == ["second", "first", "Dense", "first.part"]


def test_a_variable_is_the_same_each_time_and_knows_its_name_wherever_it_is_asked_for():
    layer = Dense("net.0", 2, 3, seed=1)
    initial = layer.get_variables()["W"].numpy()

    @tf.function
    def trace(x, use=True):
        with tf.name_scope("scope"):
            return x @ layer.W if use else x

    x = tf.ones((1, 2))
    trace(x, use=False)  # from the second trace on a tf.function must not make a variable itself
    np.testing.assert_allclose(trace(x), initial.sum(0, keepdims=True), rtol=1e-6)
    assert isinstance(layer.W, tf.Variable)
    assert layer.W is layer.W
    assert layer.W.name == "net.0.W:0"
    layer.W.assign(tf.ones((2, 3)))
    np.testing.assert_array_equal(trace(x), [[2, 2, 2]])
    np.testing.assert_array_equal(layer.get_variables()["W"].numpy(), np.ones((2, 3)))


def test_a_variable_that_is_first_asked_for_under_a_tape_has_a_gradient():
    layer = Dense("net.0", 2, 1, seed=1)

    @tf.function(jit_compile=True)
    def differentiate(x):
        with tf.GradientTape() as tape:
            cost = tf.reduce_sum(layer(x))
        return tape.gradient(cost, [layer.W, layer.b])

    d_W, d_b = differentiate(tf.constant([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(d_W, [[4], [6]])
    np.testing.assert_array_equal(d_b, [2])


def test_values_that_were_read_do_not_change_with_the_variable():
    initial = np.zeros(64, np.float32)
    variable = LayerVariable("x", initial)
    initial += 1
    read = variable.numpy()
    read += 3
    before = variable.numpy()
    variable.tf_variable.assign_add(np.full(64, 2, np.float32))
    after = variable.numpy()
    after += 1
    np.testing.assert_array_equal(before, np.zeros(64))
    np.testing.assert_array_equal(variable.numpy(), np.full(64, 2))


def test_threads_that_ask_at_once_get_one_variable():
    for _ in range(20):
        variable, got, start = LayerVariable("x", np.zeros(3)), [], threading.Barrier(4)

        def ask(variable=variable, got=got, start=start):
            start.wait(10)
            got.append(variable.tf_variable)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(got) == 4
        assert len({id(variable) for variable in got}) == 1


def test_dtype_and_whether_it_is_learned_are_the_declared_ones():
    layer = Layer()
    layer._declare("count", "n.count", np.float64(3), "statistic")
    assert (layer.count.dtype, layer.count.trainable) == (tf.float64, False)
    assert layer.trainable_variables == ()
    assert layer.variables == (layer.count,)
    assert Parameter("log_std", np.zeros(2, np.float32)).variable.dtype == tf.float32


def test_without_a_bias_there_is_none():
    layer = Dense("net.0", 2, 3, seed=1, use_bias=False)
    assert layer.b is None
    assert [get_name(v) for v in layer.find_variables()] == ["net.0.W"]
    layer.arrays = {"W": layer.W.numpy()}
    x = np.ones((1, 2), np.float32)
    np.testing.assert_allclose(layer(x), layer(tf.constant(x)), rtol=1e-6)


def test_a_variable_that_is_assigned_takes_the_place_of_the_declared_one():
    one, other = Dense("one", 2, 2, seed=1), Dense("other", 2, 2, seed=2)
    one.W = other.W
    assert [get_name(v) for v in one.find_variables()] == ["other.W", "one.b"]
    np.testing.assert_array_equal(one(tf.eye(2)), other(tf.eye(2)))
    assert [get_name(v) for v in one.get_variables().values()] == ["other.W", "one.b"]


def test_what_nobody_declared_is_no_attribute():
    layer = Dense("net.0", 2, 3, seed=1)
    assert not hasattr(layer, "V")
    with pytest.raises(AttributeError, match="Dense has no attribute 'V'"):
        layer.V  # noqa: B018
    assert not hasattr(Layer.__new__(Layer), "W")  # before __init__
