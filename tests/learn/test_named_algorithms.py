"""Several Algorithms on one parameter server: whose variables are whose. covers F2, F3, F10, F11"""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from support.hierarchy import FOLDER, load, make_host, make_store, serve
from support.requests import make_requests

from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.algorithm.acting import make_actor
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.loader import load_experiment
from relaax_like.config.plan import OnPolicy
from relaax_like.core.manifest import STATISTIC
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.prediction import Request
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learners import make_learners
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.learn.gradient_learner import GradientLearner
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.named_algorithms import NamedAlgorithms
from relaax_like.nn.layers import Dense
from relaax_like.nn.normalization import Normalizer
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.errors import ConfigError

CONFIG = load("config").Config()
PLAN = OnPolicy(rollout_steps=5, update_norm=True)
Reinforce, LinearPolicy = load("algorithm").Reinforce, load("algorithm").LinearPolicy


class PartlyShared(LinearPolicy):
    """Puts a trunk and a normaliser, its own or another's, before its layer."""

    def __init__(self, trunk, normalizer=None, seed=0):
        super().__init__("observation", "action", seed)
        self.trunk = trunk
        self.normalizer = normalizer

    def policy(self, inputs, states):
        x = inputs["observation"]
        x = x if self.normalizer is None else self.normalizer(x)
        return super().policy({"observation": self.trunk(x)}, states)


def make_rollout(sees="observation", chooses="action", slots=3, seed=0, steps=5):
    random = np.random.default_rng(seed)
    rows = random.standard_normal((steps + 1, slots, 2)).astype(np.float32)
    return Rollout(
        inputs={sees: rows[:-1]},
        next_inputs={sees: rows[1:]},
        next_alive=np.ones((steps, slots), np.float32),
        rewards=random.standard_normal((steps, slots, 1)).astype(np.float32),
        actions={chooses: random.integers(2, size=(steps, slots))},
        log_prob=np.zeros((steps, slots), np.float32),
        states={},
        versions=np.zeros(steps, np.int64),
    )


def learn(processor, rollout, **options):
    done = threading.Event()
    processor.submit(rollout, (), done.set, **options)
    assert done.wait(30)


def read(store):
    """Each group's weights and Adam slots."""
    state, groups = store.export_state(), store.manifest.groups()
    weights = state.values[: store.manifest.gradient_bytes].view(np.float32)
    return {g: np.append(weights[part], state.slots[g]) for g, part in groups.items()}


def make_processors(algorithms, server):
    named = NamedAlgorithms(algorithms)
    return {
        name: ComputationDataProcessor(
            make_actor(algorithm.model, 0),
            GradientLearner(
                CompiledGradients(algorithm),
                PLAN,
                named.make_client(name, InProcessClient(server, name)),
                make_requests(PLAN),
            ),
            NullMetrics(),
        )
        for name, algorithm in algorithms.items()
    }


def run(algorithms):
    """Starts processors on a server with the Algorithms' variables; gives them and the store."""
    store = make_store(algorithms)
    server = ParameterServer(store, metrics=NullMetrics())
    processors = make_processors(algorithms, server)
    for processor in processors.values():
        processor.start()
    return store, server, processors


def close(server, processors):
    for processor in processors.values():
        processor.stop()
    server.close()


def test_what_one_algorithm_learns_leaves_the_other_s_weights_and_adam_slots_bit_by_bit():
    store, server, processors = run(load("algorithm").make_algorithms(CONFIG, 0))
    start = read(store)
    assert list(start) == ["goal/default", "control/default"]
    for seed in range(3):  # slots have moved by then: Adam would move on without a gradient
        before = read(store)
        learn(processors["goal"], make_rollout("observation", "goal", seed=seed))
        after = read(store)
        np.testing.assert_array_equal(after["control/default"], before["control/default"])
        assert (after["goal/default"] != before["goal/default"]).all()
        learn(processors["control"], make_rollout("goal", "action", seed=seed))
        last = read(store)
        np.testing.assert_array_equal(last["goal/default"], after["goal/default"])
        assert (last["control/default"] != after["control/default"]).all()
    assert store.export_state().steps == {"goal/default": 3, "control/default": 3}
    close(server, processors)


def test_a_run_of_other_algorithms_is_refused_like_other_settings():
    store = make_store({"one": Reinforce(LinearPolicy("observation", "action", 0))})
    server = ParameterServer(store, metrics=NullMetrics())
    named = NamedAlgorithms({"two": Reinforce(LinearPolicy("observation", "action", 0))})
    with pytest.raises(ConfigError, match=r"two/logits\.W: the run has no such variable"):
        named.make_client("two", InProcessClient(server, "two"))
    server.close()


def test_a_model_that_two_algorithms_share_is_moved_by_both_and_seen_by_both():
    model = LinearPolicy("observation", "action", 0)
    store, server, processors = run({"one": Reinforce(model), "two": Reinforce(model)})
    assert [s.name for s in store.manifest.segments] == ["one/logits.W", "one/logits.b"]
    assert list(read(store)) == ["one+two/default"]
    for step, name in enumerate(("one", "two", "two"), 1):
        before = read(store)["one+two/default"]
        learn(processors[name], make_rollout(seed=step))
        assert (read(store)["one+two/default"] != before).all()
        assert store.export_state().steps == {"one+two/default": step}
    # What `two` has learned reaches `one` with its next pull.
    done = threading.Event()
    processors["one"].refresh(done.set)
    assert done.wait(30)
    request = Request({"observation": np.eye(2, dtype=np.float32)}, {}, exploit=True)
    answers = [processors[name].predict([request])[0] for name in ("one", "two")]
    np.testing.assert_array_equal(answers[0].log_prob, answers[1].log_prob)
    assert answers[0].version == 3
    close(server, processors)


def test_two_models_with_one_layer_in_common_share_that_layer_only():
    trunk = Dense("trunk", 2, 2, seed=5, activation="tanh")
    algorithms = {
        "one": Reinforce(PartlyShared(trunk, seed=1)),
        "two": Reinforce(PartlyShared(trunk, seed=2)),
    }
    store, server, processors = run(algorithms)
    assert {s.name: s.group for s in store.manifest.segments} == {
        "one/trunk.W": "one+two/default",
        "one/trunk.b": "one+two/default",
        "one/logits.W": "one/default",
        "one/logits.b": "one/default",
        "two/logits.W": "two/default",
        "two/logits.b": "two/default",
    }
    before = read(store)
    learn(processors["two"], make_rollout())
    after = read(store)
    np.testing.assert_array_equal(after["one/default"], before["one/default"])
    for group in ("two/default", "one+two/default"):
        assert (after[group] != before[group]).any()
    close(server, processors)


def test_the_gradient_that_arrives_is_the_algorithm_s_own_variable_by_variable():
    # The order in which it names its variables is not that of the run.
    trunk = Dense("trunk", 2, 2, seed=5)
    algorithms = {
        "one": Reinforce(LinearPolicy("observation", "action", 3)),
        "two": Reinforce(PartlyShared(trunk, seed=1)),
        "three": Reinforce(PartlyShared(trunk, seed=2)),
    }
    store, server, processors = run(algorithms)
    compiled = CompiledAlgorithm(algorithms["three"])
    rollout = make_rollout()
    gradients, _ = compiled.compute_gradients(
        inputs=rollout.inputs,
        next_inputs=rollout.next_inputs,
        next_alive={"alive": rollout.next_alive},
        rewards={"reward": rollout.rewards},
        actions=rollout.actions,
    )
    names = [variable.name for variable in compiled.get_variables()]
    learn(processors["three"], rollout)
    layout = store.manifest.groups()
    slots = store.export_state().slots
    got = {}
    for segment in store.manifest.pushed:
        start = segment.offset // 4 - layout[segment.group].start
        first_moment = slots[segment.group][0, start : start + segment.size]
        got[segment.name] = first_moment.reshape(segment.shape) / 0.1  # 1 - beta1
    for name, gradient in zip(names, gradients, strict=True):
        run_name = f"two/{name}" if name.startswith("trunk") else f"three/{name}"
        np.testing.assert_allclose(got[run_name], gradient, rtol=1e-4, atol=1e-7)
    close(server, processors)


def test_each_algorithm_s_running_statistics_are_its_own():
    algorithms = {
        name: Reinforce(
            PartlyShared(Dense("trunk", 2, 2, seed=5), Normalizer("observation", (2,)), seed=1)
        )
        for name in ("one", "two")
    }
    store, server, processors = run(algorithms)
    kinds = [s.name for s in store.manifest.segments if s.kind == STATISTIC]
    assert kinds == [f"{name}/observation.{part}" for name in ("one", "two") for part in PARTS]
    rollout = make_rollout()
    learn(processors["two"], rollout)
    flat = store.values.flat
    assert store.manifest.view_statistic(flat, "one/observation")[0] == 0
    count, mean, _ = store.manifest.view_statistic(flat, "two/observation")
    assert count == 15
    np.testing.assert_allclose(mean, rollout.inputs["observation"].mean(axis=(0, 1)), atol=1e-6)
    close(server, processors)


PARTS = ("count", "mean", "m2")


def test_steps_are_counted_once_however_many_algorithms_learn_from_them():
    store, server, processors = run(load("algorithm").make_algorithms(CONFIG, 0))
    learn(processors["control"], make_rollout("goal", "action"))
    learn(processors["goal"], make_rollout("observation", "goal"), env_steps=0)
    assert (store.global_t, store.version) == (15, 2)
    close(server, processors)


@pytest.mark.parametrize("shared", [True, False])
def test_models_with_common_variables_have_one_lock(shared):
    models = [LinearPolicy("observation", "action", seed) for seed in range(2)]
    one, two = Reinforce(models[0]), Reinforce(models[0 if shared else 1])
    NamedAlgorithms({"one": one, "two": two})
    assert (one.model.lock is two.model.lock) == shared


@pytest.mark.parametrize(
    ("algorithms", "want"),
    [
        ({}, "no Algorithms"),
        (None, "returned None, expected a dict"),
        ({"a/b": None}, "name 'a/b', expected 1 to 60 characters"),
        ({"a+b": None}, "expected 1 to 60 characters"),
        ({3: None}, "name 3, expected 1 to 60 characters"),
        ({"goal": "what"}, "'goal' is 'what', expected an Algorithm"),
    ],
    ids=["none", "no dict", "slash", "plus", "number", "no algorithm"],
)
def test_what_make_algorithms_got_wrong_is_said(algorithms, want):
    with pytest.raises(ConfigError, match=want):
        NamedAlgorithms(algorithms)


def test_a_model_with_invalid_specs_is_refused_with_its_line():
    class WithoutShape(LinearPolicy):
        def get_action_specs(self):
            return [("action", {"dtype": "int64"})]

    algorithms = {"goal": Reinforce(WithoutShape("observation", "action", 0))}
    with pytest.raises(
        ConfigError, match=r"test_named_algorithms\.py:\d+: get_action_specs returned .*shape"
    ):
        NamedAlgorithms(algorithms)


def test_a_round_of_several_agents_and_algorithms_gives_each_what_it_would_get_alone():
    with serve(CONFIG) as server:
        host = make_host(CONFIG, server)
        host.make_agent().close()  # opens the processors
        random = np.random.default_rng(0)
        requests = []
        for asked, name in [("goal", "observation"), ("control", "goal")] * 4:
            rows = 5 * random.standard_normal((random.integers(1, 5), 2)).astype(np.float32)
            requests.append(Request({name: rows}, {}, exploit=True, algorithm=asked))
        requests = [requests[i] for i in (0, 1, 3, 2, 5, 4, 7, 6)]
        together = host.predict(requests)
        assert len(together) == len(requests)
        for request, got in zip(requests, together, strict=True):
            (want,) = host.predict([request])
            assert got.actions.keys() == want.actions.keys()
            for name, actions in want.actions.items():
                np.testing.assert_array_equal(got.actions[name], actions)
            np.testing.assert_allclose(got.log_prob, want.log_prob, atol=1e-6)
            assert len(want.log_prob) == len(next(iter(request.inputs.values())))
        host.close()


def test_an_unknown_algorithm_is_named():
    with serve(CONFIG) as server:
        host = make_host(CONFIG, server)
        host.make_agent().close()
        with pytest.raises(Exception, match=r"the Algorithm 'plan', but there are goal, control"):
            host.predict([Request({"observation": np.zeros((1, 2))}, {}, algorithm="plan")])
        host.close()


def test_a_data_handler_of_several_algorithms_is_refused_with_file_and_line(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__*"))
    code = (folder / "algorithm.py").read_text()
    more = "\n\ndef make_data_handler(config):\n    return None\n"
    (folder / "algorithm.py").write_text(code + more)
    file = tmp_path / "experiment.yaml"
    file.write_text(f"algorithm: {{path: {folder}}}\n")
    line = len(code.splitlines()) + 3
    words = rf"algorithm.py:{line}: make_data_handler needs make_model .*make_algorithms makes 2"
    with pytest.raises(ConfigError, match=words):
        make_learners(load_experiment(file), InProcessClient, "test")
