"""Packing many agents into one call: each gets its own rows, and the mean gradient is right."""

# covers F11

import threading

import numpy as np
import pytest
from support.batch import make_algorithm, make_config, make_processor, serve_a2c
from support.rollouts import make_rollout

from relaax_like.core.prediction import LOG_PROB, Request
from relaax_like.core.records import Episode
from relaax_like.experience.rollout import concatenate
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm

CONFIG = make_config(layers=(8,), rollout_steps=5, learning_rate=0.0, max_gradient_norm=None)


def compute_gradients(compiled, rollout):
    return compiled.compute_gradients(
        inputs=rollout.inputs,
        next_inputs=rollout.next_inputs,
        next_alive={"alive": rollout.next_alive},
        rewards={"reward": rollout.rewards},
        actions={**rollout.actions, LOG_PROB: rollout.log_prob},
    )[0]


def test_the_gradient_on_many_agents_rows_is_the_mean_of_their_own():
    compiled = CompiledAlgorithm(make_algorithm(CONFIG))
    rollouts = [make_rollout(3, seed) for seed in range(4)]
    own = [compute_gradients(compiled, rollout) for rollout in rollouts]
    together = compute_gradients(compiled, concatenate(rollouts))
    for index, gradient in enumerate(together):
        mean = np.mean([gradients[index] for gradients in own], axis=0)
        np.testing.assert_allclose(gradient, mean, atol=1e-6)


def test_each_agent_gets_the_rows_of_its_own_inputs():
    with serve_a2c(CONFIG) as server:
        processor = make_processor(CONFIG, server)
        processor.start()
        random = np.random.default_rng(0)
        requests = [
            Request(
                {"observation": 5 * random.standard_normal((k, 4)).astype(np.float32)}, {}, True
            )
            for k in (1, 3, 2)
        ]
        together = processor.predict(requests)
        for request, prediction in zip(requests, together, strict=True):
            (alone,) = processor.predict([request])
            np.testing.assert_array_equal(prediction.actions["action"], alone.actions["action"])
            np.testing.assert_allclose(prediction.log_prob, alone.log_prob, atol=1e-6)
        processor.stop()


def test_acting_and_exploiting_agents_are_kept_apart():
    with serve_a2c(CONFIG) as server:
        processor = make_processor(CONFIG, server)
        processor.start()
        observations = {"observation": np.ones((400, 4), np.float32)}
        acting, best = processor.predict(
            [Request(observations, {}, False), Request(observations, {}, True)]
        )
        assert set(acting.actions["action"]) == {0, 1}
        assert len(set(best.actions["action"])) == 1
        processor.stop()


def test_a_rollout_becomes_one_version_with_its_steps_and_episodes():
    with serve_a2c(make_config(layers=(8,), rollout_steps=5)) as server:
        processor = make_processor(make_config(layers=(8,), rollout_steps=5), server)
        processor.start()
        done = threading.Event()
        processor.submit(make_rollout(3, 0), [Episode(7.0, 4)], done.set)
        assert done.wait(30)
        assert (server.version, server.global_t) == (1, 15)
        assert server.status().mean_return == 7.0
        (prediction,) = processor.predict([Request({"observation": np.ones((1, 4))}, {})])
        assert prediction.version == 1
        processor.stop()


def test_rollouts_that_wait_together_become_one_gradient():
    with serve_a2c(make_config(layers=(8,), rollout_steps=5)) as server:
        processor = make_processor(make_config(layers=(8,), rollout_steps=5), server)
        done = [threading.Event() for _ in range(4)]
        for seed, event in enumerate(done):
            processor.submit(make_rollout(2, seed), (), event.set)
        processor.start()
        assert all(event.wait(30) for event in done)
        assert (server.version, server.global_t) == (1, 40)
        processor.stop()


def test_reports_that_wait_together_are_told_in_one_call():
    with serve_a2c(make_config(layers=(8,), rollout_steps=5)) as server:
        processor = make_processor(make_config(layers=(8,), rollout_steps=5), server)
        for steps in range(5):
            processor.report([Episode(1.0, 2)], steps)
        done = threading.Event()
        processor.submit(make_rollout(2, 0), (), done.set)
        processor.start()
        assert done.wait(30)
        assert (server.version, server.global_t, server.status().episodes) == (1, 20, 5)
        assert server._applier.records == 2  # the reports, and the gradient
        processor.stop()


def test_a_poisoned_rollout_is_dropped_and_learning_goes_on():
    config = make_config(layers=(8,), rollout_steps=5)
    with serve_a2c(config) as server:
        processor = make_processor(config, server)
        processor.start()
        bad = make_rollout(1, 0)
        bad.rewards[0] = np.nan
        done = [threading.Event(), threading.Event()]
        for rollout, event in zip((bad, make_rollout(1, 1)), done, strict=True):
            processor.submit(rollout, (), event.set)
            assert event.wait(30)
        assert server.version == 1
        processor.stop()


def test_refresh_fetches_what_others_have_pushed():
    config = make_config(layers=(8,), rollout_steps=5)
    with serve_a2c(config) as server:
        processor, other = make_processor(config, server), make_processor(config, server)
        processor.start()
        other.start()
        done = threading.Event()
        other.submit(make_rollout(1, 0), (), done.set)
        assert done.wait(30)
        done.clear()
        processor.refresh(done.set)
        assert done.wait(30)
        (prediction,) = processor.predict([Request({"observation": np.ones((1, 4))}, {})])
        assert prediction.version == 1
        processor.stop()
        other.stop()


@pytest.mark.parametrize("times", [1, 2])
def test_stop_ends_the_thread_and_may_be_repeated(times):
    with serve_a2c(CONFIG) as server:
        processor = make_processor(CONFIG, server)
        processor.start()
        for _ in range(times):
            processor.stop()
    assert not [t for t in threading.enumerate() if t.name == "training"]


def test_a_form_compiled_in_the_background_gives_the_same_numbers_and_is_waited_for_at_the_end():
    compiled = CompiledAlgorithm(make_algorithm(CONFIG), compile_in_background=True)
    rollout = make_rollout(3, seed=0)
    first = compute_gradients(compiled, rollout)
    for _ in range(110):  # often enough to be worth compiling
        compute_gradients(compiled, rollout)
    compilers = [t for t in threading.enumerate() if t.name == "compiling"]
    assert compilers
    compilers[0].join()
    for before, after in zip(first, compute_gradients(compiled, rollout), strict=True):
        np.testing.assert_allclose(before, after, atol=1e-6)
    compiled.close()
    assert not [t for t in threading.enumerate() if t.name == "compiling"]
