"""Acting: NumPy and compiled forms give the same numbers, alone and batched."""

# covers F4, F8

import numpy as np
import pytest
import tensorflow as tf

from relaax_like.algorithm.acting import CompiledActor, NumpyActor, make_actor
from relaax_like.algorithm.model import (
    Model,
    get_acting_names,
    get_variables,
    order_variables,
)
from relaax_like.config.network import NetworkConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.nn.action_heads import (
    make_action_spec,
    make_epsilon_greedy,
    make_policy,
    num_parameters,
)
from relaax_like.nn.layers import Parameter
from relaax_like.nn.networks import make_network
from relaax_like.nn.normalization import Normalizer
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete

SPACES = {
    "discrete": Discrete(n=3),
    "multi discrete": MultiDiscrete(n=(2, 3), shape=(2,)),
    "multi binary": MultiBinary(shape=(3,)),
    "box": Box(dtype="float32", shape=(2,)),
}


class PolicyModel(Model):
    """A small policy with a memory that counts."""

    def __init__(self, space):
        super().__init__(name="policy")
        self.space = space
        outputs = num_parameters(space, separate_log_std=True)
        self.net = make_network("net", NetworkConfig(layers=(16, 16)), (4,), outputs, seed=1)
        self.log_std = Parameter("log_std", np.array([-0.5, 0.3], np.float32))

    def get_input_specs(self):
        return [("observation", {"shape": [4]})]

    def get_state_specs(self):
        return [("count", {"shape": [1]})]

    def get_action_specs(self):
        return [("action", make_action_spec(self.space))]

    def policy(self, inputs, states):
        observation = inputs["observation"]
        log_std = self.log_std(observation) if isinstance(self.space, Box) else None
        parameters = self.net(observation, None)[0]
        return {"action": make_policy(self.space, parameters, log_std)}, {
            "count": states["count"] + 1.0
        }


class RawModel(PolicyModel):
    """The same with a call of TensorFlow in it, which NumPy cannot follow."""

    def policy(self, inputs, states):
        return super().policy({"observation": tf.identity(inputs["observation"])}, states)


def make_values(model, seed=3):
    random = np.random.default_rng(seed)
    return [random.standard_normal(v.shape).astype(np.float32) for v in order_variables(model)]


def make_inputs(rows, seed=0):
    observations = np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)
    return {"observation": observations}, {"count": np.arange(rows, dtype=np.float32)[:, None]}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_both_forms_agree_on_the_best_action_and_its_log_probability(space):
    model = PolicyModel(space)
    actors = [NumpyActor(model, 0), CompiledActor(model, 0)]
    predictions = []
    for actor in actors:
        actor.set_values(make_values(model), 7)
        predictions.append(actor.act(*make_inputs(5), exploit=True))
    one, other = predictions
    np.testing.assert_allclose(one.actions["action"], other.actions["action"], atol=1e-5)
    np.testing.assert_allclose(one.log_prob, other.log_prob, atol=1e-5)
    np.testing.assert_array_equal(one.next_states["count"], other.next_states["count"])
    assert one.version == other.version == 7
    assert one.actions["action"].dtype == other.actions["action"].dtype


@pytest.mark.parametrize("form", [NumpyActor, CompiledActor])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
def test_the_log_probability_is_that_of_the_drawn_action(form, space):
    model = PolicyModel(space)
    actor = form(model, 0)
    values = make_values(model)
    actor.set_values(values, 1)
    inputs, states = make_inputs(6)
    prediction = actor.act(inputs, states)
    for variable, value in zip(order_variables(model), values, strict=True):
        variable.assign(value)
    tensors = {"observation": tf.constant(inputs["observation"])}
    distributions, _ = model.policy(tensors, {"count": tf.constant(states["count"])})
    want = distributions["action"].log_prob(tf.constant(prediction.actions["action"]))
    np.testing.assert_allclose(prediction.log_prob, want, atol=1e-4)


@pytest.mark.parametrize("form", [NumpyActor, CompiledActor])
def test_predictions_are_the_same_alone_and_batched(form):
    actor = form(PolicyModel(SPACES["box"]), 0)
    inputs, states = make_inputs(5)
    together = actor.act(inputs, states, exploit=True)
    for row in range(5):
        part = slice(row, row + 1)
        alone = actor.act(
            {"observation": inputs["observation"][part]},
            {"count": states["count"][part]},
            exploit=True,
        )
        np.testing.assert_allclose(
            alone.actions["action"][0], together.actions["action"][row], atol=1e-6
        )
        np.testing.assert_array_equal(alone.next_states["count"][0], [row + 1])


def test_a_model_of_our_layers_acts_in_numpy_and_any_other_is_compiled():
    assert isinstance(make_actor(PolicyModel(Discrete(n=2)), 0), NumpyActor)
    assert isinstance(make_actor(RawModel(Discrete(n=2)), 0), CompiledActor)


def test_new_values_are_taken_up_whole_at_the_next_call():
    model = PolicyModel(SPACES["box"])
    actor = NumpyActor(model, 0)
    zeros = [np.zeros(v.shape, np.float32) for v in order_variables(model)]
    actor.set_values(zeros, 5)
    prediction = actor.act(*make_inputs(2), exploit=True)
    np.testing.assert_array_equal(prediction.actions["action"], np.zeros((2, 2)))
    assert prediction.version == 5


def test_rows_gives_an_agent_its_part():
    prediction = NumpyActor(PolicyModel(Discrete(n=3)), 0).act(*make_inputs(5))
    part = prediction.rows(2, 4)
    np.testing.assert_array_equal(part.actions["action"], prediction.actions["action"][2:4])
    np.testing.assert_array_equal(part.next_states["count"], [[3], [4]])
    np.testing.assert_array_equal(part.log_prob, prediction.log_prob[2:4])


@pytest.mark.parametrize("form", [NumpyActor, CompiledActor])
def test_draws_go_on_from_a_state(form):
    first, second = (form(PolicyModel(SPACES["box"]), seed) for seed in (0, 1))
    values, inputs = make_values(first.model), make_inputs(3)
    for actor in (first, second):
        actor.set_values(values, 1)
        actor.act(*inputs)
    second.set_state(first.get_state())
    for _ in range(2):
        one, other = first.act(*inputs), second.act(*inputs)
        np.testing.assert_array_equal(one.actions["action"], other.actions["action"])
        np.testing.assert_array_equal(one.log_prob, other.log_prob)


class FiveNetworks(Model):
    """Five networks of one size, of which the first acts; or others, too, by mistake."""

    acting = ("networks0", "normalizer")

    def __init__(self, reads=(0,), greedy=False):
        super().__init__()
        self.reads, self.greedy = reads, greedy
        self.normalizer = Normalizer("normalizer", (4,))
        for i in range(5):
            network = make_network(f"networks{i}", NetworkConfig(layers=(32,)), (4,), 3, seed=i)
            setattr(self, f"networks{i}", network)

    def get_input_specs(self):
        return [("observation", {"shape": [4]})]

    def get_action_specs(self):
        return [("action", make_action_spec(Discrete(n=3)))]

    def policy(self, inputs, memory):
        x = self.normalizer(inputs["observation"])
        outputs = sum(getattr(self, f"networks{i}")(x) for i in self.reads)
        if self.greedy:
            return {"action": make_epsilon_greedy(outputs, 0.1)}, memory
        return {"action": make_policy(Discrete(n=3), outputs)}, memory


class OwnLines(FiveNetworks):
    acting = ("networks0", "network7")


class OwnGroups(FiveNetworks):
    def __init__(self):
        super().__init__()
        self.groups = {"critic": ("network7",)}


ACTORS = pytest.mark.parametrize("kind", [NumpyActor, CompiledActor])


def test_the_acting_subset_of_five_networks_is_a_quarter_at_most():
    model = FiveNetworks()
    manifest = make_manifest(get_variables(model))
    names = get_acting_names(model)
    assert {name.split(".")[0] for name in names} == {"networks0", "normalizer"}
    taken = sum(part.stop - part.start for part in manifest.find_ranges(names))
    assert taken <= 0.25 * manifest.total_bytes


@ACTORS
@pytest.mark.parametrize("greedy", [False, True])
def test_a_policy_acts_by_its_subset_alone(kind, greedy):
    model, whole = FiveNetworks(greedy=greedy), FiveNetworks(greedy=greedy)
    whole.acting = ()
    inputs, _ = make_inputs(5)
    values = [np.abs(value) for value in make_values(model)]  # also m2, a sum of squares
    predictions = []
    for one in (model, whole):
        actor = kind(one, 0)
        actor.set_values(values, 1)
        predictions.append(actor.act(inputs, {}, exploit=True))
    got, want = predictions
    np.testing.assert_array_equal(got.actions["action"], want.actions["action"])
    np.testing.assert_array_equal(got.log_prob, want.log_prob)
    assert np.isfinite(got.log_prob).all()


@ACTORS
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("exploit", [False, True])
def test_a_subset_that_lacks_a_network_fails_at_the_first_action(kind, greedy, exploit):
    actor = kind(FiveNetworks(reads=(0, 3), greedy=greedy), 0)
    actor.set_values([np.abs(value) for value in make_values(actor.model)], 1)
    wanted = r"test_acting\.py:\d+: `acting` is \('networks0', 'normalizer'\), but `policy` reads"
    with pytest.raises(ConfigError, match=wanted):
        actor.act(make_inputs(5)[0], {}, exploit=exploit)


def test_a_subset_that_lacks_a_network_is_refused_before_the_first_action():
    with pytest.raises(ConfigError, match="but `policy` reads variables of other attributes"):
        make_actor(FiveNetworks(reads=(0, 3)), 0)


class Directions(FiveNetworks):
    """Sees only the direction of an observation; zeros have none."""

    def policy(self, inputs, memory):
        x = inputs["observation"]
        with np.errstate(invalid="ignore"):
            direction = x / (x**2).sum(-1, keepdims=True) ** 0.5
        return super().policy({"observation": direction}, memory)


def test_a_policy_that_has_no_answer_for_zeros_acts_in_numpy():
    actor = make_actor(Directions(), 0)
    assert isinstance(actor, NumpyActor)
    actor.set_values([np.abs(value) for value in make_values(actor.model)], 1)
    assert np.isfinite(actor.act(make_inputs(5)[0], {}).log_prob).all()


def test_a_subset_that_names_no_attribute_is_refused_with_its_line():
    with pytest.raises(ConfigError, match=r"test_acting\.py:\d+: `acting` contains 'network7'"):
        make_actor(OwnLines(), 0)


def test_a_group_that_names_no_attribute_is_refused_with_its_line():
    with pytest.raises(ConfigError, match=r"test_acting\.py:\d+: `groups` contains 'network7'"):
        get_variables(OwnGroups())


def test_a_worker_s_critic_is_not_in_the_subset_but_has_its_values():
    actor = make_actor(FiveNetworks(reads=(0, 3)), 0, whole=True)
    assert np.isfinite(actor.act(make_inputs(5)[0], {}).log_prob).all()


class WrongModel(PolicyModel):
    """A policy whose result is the argument."""

    def __init__(self, result):
        super().__init__(SPACES["discrete"])
        self.result = result

    def policy(self, inputs, states):
        return self.result(*super().policy(inputs, states))


@ACTORS
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda distributions, memory: distributions, "one value, of type dict, expected two"),
        (lambda distributions, memory: (distributions, memory, 0.0), "3 values, expected two"),
        (lambda distributions, memory: (distributions["action"], memory), "a Categorical as dist"),
        (lambda distributions, memory: ({"act": distributions["action"]}, memory), "no 'action'"),
        (lambda distributions, memory: (distributions, {}), "no 'count' in memory"),
        (lambda distributions, memory: ({"action": memory["count"]}, memory), "for 'action', exp"),
    ],
    ids=["one value", "three values", "no names", "another name", "no memory", "no distribution"],
)
def test_a_policy_with_another_result_is_refused_with_its_line(kind, result, words):
    actor = kind(WrongModel(result), 0)
    with pytest.raises(ConfigError, match=rf"test_acting\.py:\d+: policy returned .*{words}"):
        actor.act(*make_inputs(2))


# Name in SPACES -> environment's spaces that a policy for it does not fit.
OTHERS = {
    "discrete": Discrete(n=2),
    "multi discrete": MultiDiscrete(n=(2, 2), shape=(2,)),
    "multi binary": MultiBinary(shape=(2,)),
    "box": Box(dtype="float32", shape=(3,)),
}


@ACTORS
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_outputs_that_the_environment_lacks_are_refused_with_their_line(kind, is_first, name):
    """As soon as both are known."""
    actor = kind(PolicyModel(SPACES[name]), 0)
    words = r"test_acting\.py:\d+: policy computes \d .* for 'action', expected .*; correct the"
    if is_first:
        actor.expect_actions({"action": OTHERS[name]})
        with pytest.raises(ConfigError, match=words):
            actor.act(*make_inputs(2))
    else:
        actor.expect_actions({"action": SPACES[name]})
        actor.act(*make_inputs(2))
        with pytest.raises(ConfigError, match=words):
            actor.expect_actions({"action": OTHERS[name]})


def test_a_policy_can_ignore_some_actions_of_the_environment():
    actor = make_actor(PolicyModel(SPACES["discrete"]), 0)
    actor.expect_actions({"action": Discrete(n=5)})
    actor.act(*make_inputs(2))


class ForkedModel(RawModel):
    """A policy with an `if` that depends on what is observed."""

    def policy(self, inputs, states):
        distributions, states = super().policy(inputs, states)
        count = states["count"]
        if tf.reduce_sum(inputs["observation"]) > 0.0:  # noqa: SIM108 - the `if` is what is tested
            count = count + 10.0
        else:
            count = count - 10.0
        return distributions, {"count": count}


@pytest.mark.parametrize("xla", [False, True])
def test_a_policy_can_decide_by_what_it_observes_unless_autograph_is_off(xla):
    model = ForkedModel(SPACES["discrete"])
    model.xla = xla
    actor = CompiledActor(model, seed=1)
    for sign, count in ((1.0, 11.0), (-1.0, -9.0)):
        inputs = {"observation": np.full((1, 4), sign, np.float32)}
        found = actor.act(inputs, {"count": np.zeros((1, 1), np.float32)})
        assert found.next_states["count"].tolist() == [[count]]
    model.autograph = False
    cure = r"test_acting.py:\d+: an `if`, .* set self.autograph = True at the end of __init__"
    with pytest.raises(ConfigError, match=cure):
        CompiledActor(model, seed=1).act(inputs, {"count": np.zeros((1, 1), np.float32)})
