"""td3: its updates against a slow reference, and each of its settings."""

from dataclasses import replace

import numpy as np
import pytest
from support.batch import load
from support.deterministic import (
    compute_losses,
    draw_batches,
    draw_noise,
    make,
    make_reference,
    update_all,
)

from relaax_like.config.loader import load_experiment
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import Box, Discrete


def add_noise(batches, deviation=0.2, largest=0.5):
    return [
        replace(batch, noise=np.clip(deviation * draw_noise(update), -largest, largest))
        for update, batch in enumerate(batches, 1)
    ]


@pytest.mark.parametrize(("deviation", "largest"), [(0.2, 0.5), (3.0, 0.5), (3.0, 9.0), (0.0, 0.5)])
def test_the_costs_are_those_of_the_paper(deviation, largest):
    _, model, algorithm = make("td3", target_noise=deviation, target_noise_clip=largest)
    [batch, *_] = add_noise(draw_batches(), deviation, largest)
    slow = make_reference(model, critics=2, delay=2)
    losses, want = compute_losses(algorithm, batch), slow.compute_costs(slow.values, batch)
    for name in ("critic", "actor"):
        np.testing.assert_allclose(losses.costs[name], want[name], rtol=1e-5)
    errors = np.abs(slow.compute_errors(slow.values, batch)).mean(0)
    np.testing.assert_allclose(losses.rows["priority"], errors, rtol=1e-4)


def test_noise_and_its_limit_change_the_cost_of_the_critics():
    """The test above could not fail if the noise did nothing."""
    costs = [
        float(compute_losses(make("td3", **settings)[2], draw_batches()[0]).costs["critic"])
        for settings in (
            {},
            {"target_noise": 3.0},
            {"target_noise": 3.0, "target_noise_clip": 9.0},
            {"target_noise": 0.0},
        )
    ]
    assert np.diff(sorted(costs)).min() > 1e-3 * max(costs)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_a_sequence_of_updates_is_that_of_the_paper(delay):
    config, model, algorithm = make("td3", policy_delay=delay)
    slow = make_reference(model, critics=2, delay=delay)
    start = dict(slow.values)
    for batch in add_noise(draw_batches()):
        slow.update(batch)
    found = update_all(config, algorithm, draw_batches())
    assert found.keys() == slow.values.keys()
    for name, want in slow.values.items():
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.abs(want - start[name]).max() > 1e-3, name


def test_spaces_come_from_the_environment():
    config = load("config", "td3").Config(name="td3")
    observations = {"observation": Box(dtype="float32", shape=(4,))}
    low, high = np.array([-2.0, -2.0], np.float32), np.array([2.0, 2.0], np.float32)
    action = Box(dtype="float32", shape=(2,), low=low, high=high)
    keys = config.describe_spaces(observations, {"action": action})
    bounds = {"action_low": [-2.0, -2.0], "action_high": [2.0, 2.0]}
    assert keys == {"state_size": 4, "action_size": 2, **bounds}
    with pytest.raises(InvalidInputError, match="td3 needs one continuous action"):
        config.describe_spaces(observations, {"action": Discrete(n=2)})


@pytest.mark.parametrize(
    ("sets", "want"),
    [
        (["algorithm.num_states=4"], "num_states: td3 observes vectors"),
        (
            ["algorithm.observations={a: {size: 2}, b: {size: 3, layers: [4]}}"],
            r"observations\.b\.layers: td3 observes vectors without layers of their own",
        ),
        (["algorithm.image=[8, 8, 3]"], "image: td3 observes vectors"),
        (["algorithm.network={layers: [nature]}"], "convolution, but td3 observes vectors; use d"),
        (["algorithm.policy_delay=0"], "policy_delay"),
        (["algorithm.target_noise=-1"], "target_noise"),
        (["algorithm.exploration_noise=0"], "exploration_noise: 0, expected more than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(sets, want):
    with pytest.raises(ConfigError, match=want):
        load_experiment("td3", sets)
