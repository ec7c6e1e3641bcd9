"""What algorithms are given, and what is refused."""

# covers F4, F6, F9

import inspect

import numpy as np
import pytest
import tensorflow as tf
from support.batch import load

from relaax_like.algorithm import (
    Algorithm,
    AlgorithmConfig,
    FlareAlgorithm,
    Linear,
    Model,
    Schedule,
    make_epsilon_greedy,
)
from relaax_like.algorithm.acting import CompiledActor, NumpyActor
from relaax_like.algorithm.parts import add_next_actions, make_batch
from relaax_like.config.loader import load_experiment
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.core.prediction import make_ranks
from relaax_like.launch.learners import _refuse_own_predict
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.nn.layers import Dense, take
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import ConfigError

ALIVE = np.float32([[1, 1], [0, 1], [-1, 1], [1, 1]])


def make_parts(**others):
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    return {
        "inputs": {"x": tf.constant(x)},
        "next_inputs": {"x": tf.constant(x)},
        "states": {},
        "next_states": {},
        "next_alive": {"alive": tf.constant(ALIVE)},
        "actions": {"action": tf.constant(x), "log_prob": tf.constant(-x)},
        "next_actions": {},
        "rewards": {"reward": tf.constant(x[..., None])},
        **others,
    }


@pytest.mark.parametrize("missing", ["get_input_specs", "get_action_specs", "policy"])
def test_a_model_without_its_specs_or_policy_cannot_be_made(missing):
    # covers F2
    methods = {
        name: lambda self, *args: [] for name in ("get_input_specs", "get_action_specs", "policy")
    }
    assert type("Complete", (Model,), dict(methods))().get_state_specs() == []
    del methods[missing]
    with pytest.raises(TypeError, match=f"abstract method '?{missing}"):
        type("Incomplete", (Model,), methods)()


def test_a_batch_says_where_episodes_end_and_what_is_worth_bootstrapping():
    batch = make_batch(make_parts(), tf.constant(0.9))
    np.testing.assert_allclose(batch.discount, 0.9 * np.abs(ALIVE))
    np.testing.assert_array_equal(batch.continues, ALIVE > 0)
    assert batch.begins.numpy().tolist() == [[False] * 2, [False] * 2, [True, False], [True, False]]
    np.testing.assert_array_equal(batch.returns, np.arange(8).reshape(4, 2))
    assert list(batch.actions) == ["action"]
    np.testing.assert_array_equal(batch.log_prob, -np.arange(8.0).reshape(4, 2))


def test_several_rewards_come_by_name():
    rewards = {"speed": tf.ones((4, 2, 1)), "energy": tf.zeros((4, 2, 3))}
    batch = make_batch(make_parts(rewards=rewards), tf.constant(0.9))
    assert {name: tuple(r.shape) for name, r in batch.rewards.items()} == {
        "speed": (4, 2, 1),
        "energy": (4, 2, 3),
    }
    assert batch.returns is None


def test_next_actions_are_of_the_next_row_or_the_row_does_not_count():
    batch = make_batch(add_next_actions(make_parts()), tf.constant(0.9))
    # After the truncation at t = 2 of slot 0, and after the last row, none is known.
    np.testing.assert_array_equal(batch.valid, [[1, 1], [1, 1], [0, 1], [0, 0]])
    got = batch.next_actions["action"].numpy()
    np.testing.assert_array_equal(got[0], [2, 3])
    np.testing.assert_array_equal(got[2, 1], 7)
    assert list(batch.next_actions) == ["action"]


class ValueModel(Model):
    """Values of two actions."""

    def __init__(self):
        super().__init__()
        self.layer = Dense("q", 2, 2, seed=1)

    def get_input_specs(self):
        return [("x", {"shape": [2]})]

    def get_action_specs(self):
        return [("action", {"shape": [], "dtype": "int64"})]

    def policy(self, inputs, memory, explore):
        epsilon = explore["epsilon"] * (1 - explore["rank"])
        return {"action": make_epsilon_greedy(self.layer(inputs["x"]), epsilon)}, memory


class ValueConfig(AlgorithmConfig):
    epsilon: Schedule = Linear(1.0, 0.0, steps=100)


@pytest.mark.parametrize("actor_class", [NumpyActor, CompiledActor])
def test_a_policy_explores_by_its_schedules_and_its_rank(actor_class):
    actor = actor_class(ValueModel(), 0, ValueConfig())
    x, none = {"x": np.tile(np.float32([[1.0, 0.5]]), (2000, 1))}, {}
    best = actor.act(x, none, exploit=True).actions["action"][0]
    share = []
    for actor.global_t in (0, 50, 100):
        share.append(np.mean(actor.act(x, none).actions["action"] != best))
    # Half of the random actions are the best one; five standard deviations of 2000 draws.
    np.testing.assert_allclose(share, [0.5, 0.25, 0.0], atol=0.056)
    actor.global_t = 0
    ranks = np.repeat(np.float32([0.0, 1.0]), 1000)
    other = actor.act(x, none, ranks=ranks).actions["action"] != best
    assert other[:1000].any()
    assert not other[1000:].any()


def test_an_algorithm_of_an_agent_of_its_own_explores_too():
    compiled = CompiledAlgorithm(Algorithm(ValueModel(), ValueConfig()))
    x = {"x": np.tile(np.float32([[1.0, 0.5]]), (500, 1))}
    assert len(set(compiled.predict(x, global_t=100)[0]["action"])) == 1
    assert len(set(compiled.predict(x)[0]["action"])) == 2


def test_ranks_are_those_of_client_and_slot():
    ranks = make_ranks("robot", 3)
    assert ((ranks >= 0) & (ranks < 1)).all()
    assert len({*ranks, *make_ranks("other", 3)}) == 6
    np.testing.assert_array_equal(make_ranks("robot", 5)[:3], ranks)


class PlainValues(ValueModel):
    def get_state_specs(self):
        return [("steps", {"shape": [1]})]

    def policy(self, inputs, memory):
        values = make_epsilon_greedy(self.layer(inputs["x"]), 0.0)
        return {"action": values}, {"steps": memory["steps"] + 1.0}


class SimpleQ(FlareAlgorithm):
    """FLARE's own example: epsilon-greedy in `predict`, a one-step target in `learn`."""

    def predict(self, inputs, states):
        values = self.model.layer(inputs["x"])
        policy = make_epsilon_greedy(values, 0.3)
        return {"action": policy.sample(self.random)}, {"steps": states["steps"] + 1.0}

    def learn(
        self, inputs, next_inputs, states, next_states, next_alive, actions, next_actions, rewards
    ):
        value = take(self.model.layer(inputs["x"]), actions["action"])[:, None]
        following = tf.reduce_max(self.model.layer(next_inputs["x"]), -1, keepdims=True)
        goal = rewards["reward"] + 0.5 * tf.abs(next_alive["alive"]) * following
        return {"cost": (tf.stop_gradient(goal) - value) ** 2}


# covers F2, F25
def test_flares_simple_q_learns_a_bandit_through_a_store():
    compiled = CompiledAlgorithm(SimpleQ(PlainValues(), AlgorithmConfig(), seed=3))
    variables = compiled.get_variables()
    manifest = make_manifest(variables)
    optimizers = {"default": OptimizerConfig(learning_rate=0.05)}
    store = Store(manifest, manifest.pack([v.value for v in variables]), optimizers)
    random = np.random.default_rng(0)
    for _ in range(200):
        best = random.integers(2, size=32)
        x, memory = np.eye(2, dtype=np.float32)[best], {"steps": np.zeros((32, 1))}
        actions, after = compiled.predict({"x": x}, memory)
        gradients, costs = compiled.compute_gradients(
            inputs={"x": x},
            next_inputs={"x": x},
            next_alive={"alive": np.zeros((32, 1))},
            rewards={"reward": (actions["action"] == best)[:, None]},
            actions=actions,
            states=memory,
            next_states=after,
        )
        store.apply(manifest.pack(gradients, gradient=True))
        compiled.set_values(manifest.unpack(store.values.flat))
    states = {"steps": np.zeros((2, 1))}
    greedy, _ = compiled.predict({"x": np.eye(2, dtype=np.float32)}, states, exploit=True)
    np.testing.assert_array_equal(greedy["action"], [0, 1])
    assert costs["cost"] < 0.05


def test_flares_form_gets_the_memory_of_each_step_of_a_rollout():
    seen = {}

    class Look(SimpleQ):
        def learn(self, inputs, next_inputs, states, next_states, next_alive, actions, *rest):
            seen.update(states=states["steps"], next_states=next_states["steps"])
            numbers = {"before": states["steps"], "after": next_states["steps"]}
            total = {f"{name}{i}": value[i] for name, value in numbers.items() for i in range(8)}
            alive = {f"alive{i}": next_alive["alive"][i, 0] for i in range(8)}
            zero = 0.0 * tf.reduce_sum(self.model.layer(inputs["x"]))
            return {"cost": zero, **{k: tf.reduce_sum(v) for k, v in (total | alive).items()}}

    compiled = CompiledAlgorithm(Look(PlainValues(), AlgorithmConfig()))
    x = np.zeros((4, 2, 2), np.float32)
    _, costs = compiled.compute_gradients(
        inputs={"x": x},
        next_inputs={"x": x},
        next_alive={"alive": ALIVE},
        rewards={"reward": np.zeros((4, 2, 1))},
        actions={"action": np.zeros((4, 2), np.int64)},
        states={"steps": np.float32([[10.0], [20.0]])},
    )
    before = [costs[f"before{i}"] for i in range(8)]
    # Slot 0 restarts after t = 1 and t = 2; rows are in order of time.
    assert before == [10, 20, 11, 21, 0, 22, 0, 23]
    assert [costs[f"after{i}"] for i in range(8)] == [b + 1 for b in before]
    assert [costs[f"alive{i}"] for i in range(8)] == ALIVE.ravel().tolist()


# covers F2, F6
def test_flares_form_gets_several_rewards_next_actions_and_the_agents_memory():
    class TwoRewards(PlainValues):
        def get_reward_specs(self):
            return [("speed", {"shape": [1]}), ("costs", {"shape": [2]})]

    class Look(SimpleQ):
        def learn(
            self,
            inputs,
            next_inputs,
            states,
            next_states,
            next_alive,
            actions,
            next_actions,
            rewards,
        ):
            zero = 0.0 * tf.reduce_sum(self.model.layer(inputs["x"]))
            followed = tf.cast(next_actions["action"] - actions["action"], tf.float32)
            return {
                "cost": zero,
                "speed": rewards["speed"],
                "more": rewards["costs"][:, 1],
                "after": next_states["steps"] - states["steps"],
                "followed": followed,
            }

    compiled = CompiledAlgorithm(Look(TwoRewards(), AlgorithmConfig()))
    x = np.zeros((3, 2), np.float32)
    _, costs = compiled.compute_gradients(
        inputs={"x": x},
        next_inputs={"x": x},
        next_alive={"alive": np.ones((3, 1))},
        rewards={"speed": np.full((3, 1), 4.0), "costs": np.tile([7.0, 9.0], (3, 1))},
        actions={"action": np.array([0, 0, 1])},
        next_actions={"action": np.array([1, 1, 1])},
        states={"steps": np.full((3, 1), 10.0)},
        next_states={"steps": np.full((3, 1), 15.0)},  # the policy would say 11
    )
    seen = {name: costs[name] for name in ("speed", "more", "after", "followed")}
    assert seen == pytest.approx({"speed": 4.0, "more": 9.0, "after": 5.0, "followed": 2 / 3})


def find_line(what):
    return inspect.getsourcelines(what)[1]


def test_an_overridden_predict_is_refused_where_agents_act_by_the_policy():
    line = find_line(SimpleQ.predict)
    with pytest.raises(ConfigError, match=rf"test_contract.py:{line}: predict is overridden"):
        _refuse_own_predict(SimpleQ(PlainValues()))

    class NoPredict(SimpleQ):
        predict = FlareAlgorithm.predict

    _refuse_own_predict(NoPredict(PlainValues()))


def test_a_plan_that_cannot_be_carried_out_is_refused_with_file_and_line(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.py").write_text(
        "from relaax_like.algorithm import AlgorithmConfig, Offline\n\n\n"
        "class Config(AlgorithmConfig):\n"
        "    plan: Offline = Offline(batch_size=2)\n"
    )
    file = tmp_path / "mine.yaml"
    file.write_text("run_dir: run\nlearner: {placement: agent}\nalgorithm: {path: ./mine}\n")
    with pytest.raises(ConfigError, match=r"because .*mine/config.py:5: plan is Offline; set"):
        load_experiment(file)


@pytest.mark.parametrize(
    "name", ["a2c", "bc", "cql", "ddpg", "dqn", "impala", "ppo", "q_learning", "sac", "td3_bc"]
)
def test_a_model_without_spaces_is_refused(name):
    make_model, config = load("model", name).make_model, load("config", name).Config()
    with pytest.raises(ConfigError, match="the observations are not defined; set state_size or"):
        make_model(config, 1)
    config = type(config)(state_size=4)
    with pytest.raises(ConfigError, match=r"the actions are not defined; set .*(size|num)"):
        make_model(config, 1)
