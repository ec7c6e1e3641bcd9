"""PPOOptim: buffers of whole trajectories become the updates that they should."""

# covers P5, P9, P12, P15, P16, P25, P26

from dataclasses import replace

import numpy as np
import pytest
from support.batch import load

from relaax_like.addons.sampling.ppo_optim import PPOOptim
from relaax_like.algorithm.parts import make_batch
from relaax_like.algorithm.tracing import Traced
from relaax_like.core.prediction import LOG_PROB
from relaax_like.experience.buffer import Buffer
from relaax_like.experience.rollout import ALIVE, TERMINATED
from relaax_like.learn.draw import Draw
from relaax_like.learn.learning_policy import LearningPolicy
from relaax_like.learn.updates import CompiledUpdates, NotFiniteError
from relaax_like.wire.errors import InvalidInputError

from .conftest import SIZE, CountingSlots, make_config, make_model, make_sampler

LSTM = (8, {"lstm": 4})
NETWORKS = pytest.mark.parametrize("layers", [(8,), LSTM], ids=["feed-forward", "lstm"])


def make_compiled(config):
    model = make_model(config)
    model.xla = False  # which takes longer to compile than all else here
    algorithm = load("algorithm", "ppo").make_algorithm(config, model, 0)
    return CompiledUpdates(algorithm, config.optimizers)


def make_optim(config, max_traj_len=10, **changes):
    plan = replace(config.plan, **changes)
    return PPOOptim(make_compiled(config), plan, seed=3, max_traj_len=max_traj_len)


def sample(config, lengths=(3, 7, 5), cut=(1,)):
    """Plays one trajectory of each length with the values that every run starts from."""
    sampler = make_sampler(
        CountingSlots(lengths, cut), config, discount=config.gamma, gae_lambda=config.gae_lambda
    )
    return sampler.sample_traj(100)[0]


def make_arguments(buffer, trajectories):
    """Some trajectories of a buffer as arguments of an update, without any padding of ours."""
    padded = buffer.pad(trajectories)
    alive = np.where(padded.mask > 0, ALIVE, TERMINATED).astype(np.float32)
    rewards = padded.rewards.copy()
    for column, number in enumerate(trajectories):
        last = int(padded.mask[:, column].sum()) - 1
        alive[last, column] = TERMINATED
        rewards[last, column] += buffer.discount * buffer.terminal_values[number]
    observations = padded.states["observation"]
    return {
        "inputs": {"observation": observations},
        "next_inputs": {"observation": np.roll(observations, -1, axis=0)},
        "next_alive": {"alive": alive},
        "rewards": {"reward": rewards[..., None]},
        "actions": {
            "action": padded.actions["action"],
            LOG_PROB: padded.extras[LOG_PROB],
        },
        "states": {},
        "extras": {"mask": padded.mask},
    }


@NETWORKS
def test_returns_and_advantages_are_those_of_the_buffer(layers):
    config = make_config(layers, batch_size=2, normalize_advantage="none")
    buffer, optim = sample(config), make_optim(config)
    compiled = optim._compiled
    arguments = optim.data_preprocess(buffer)
    with Traced(compiled._algorithm, compiled._settings, compiled._setting_values, 0) as traced:
        parts = compiled._make_batch(**arguments)
        prepared = compiled._algorithm.prepare(make_batch(parts, traced.discount))
    rows = buffer.rows()
    # Column by column: the order of the buffer.
    is_step = arguments["extras"]["mask"].T > 0
    assert is_step.sum() == len(buffer) == 15
    for name, want in (
        ("values", rows.values),
        ("returns", rows.returns),
        ("advantages", rows.returns - rows.values),
    ):
        np.testing.assert_allclose(prepared[name].numpy().T[is_step], want, atol=1e-5)


@NETWORKS
def test_the_first_update_begins_with_the_policy_that_acted(layers):
    config = make_config(layers, batch_size=3 if len(layers) > 1 else 15, epochs=1)
    costs = make_optim(config).optimize(sample(config))
    assert costs["updates"] == 1
    assert costs["KL"] == pytest.approx(0, abs=1e-6)
    assert costs["clip fraction"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "changes"),
    [((8,), {}), (LSTM, {}), (LSTM, {"batch_size": 0})],
    ids=["feed-forward", "lstm", "all of the iteration"],
)
def test_padding_changes_no_number(layers, changes):
    """Of one minibatch with all that there is, for several epochs."""
    config = make_config(layers, num_steps=80, batch_size=3 if len(layers) > 1 else 15, epochs=3)
    buffer, optim, plain = sample(config), make_optim(config, 64, **changes), make_compiled(config)
    laid_out = optim.data_preprocess(buffer)
    assert laid_out["extras"]["mask"].size > len(buffer)
    if len(layers) > 1:
        arguments, unit, minibatch = make_arguments(buffer, [0, 1, 2]), "rollouts", 3
        arguments["states"] = {name: array[:3] for name, array in laid_out["states"].items()}
    else:
        rows = {part: dict(arrays) for part, arrays in laid_out.items() if part != "extras"}
        arguments = {
            part: {name: array[: len(buffer)] for name, array in arrays.items()}
            for part, arrays in rows.items()
        }
        unit, minibatch = "steps", 15
    learned = plain.update(
        Draw(batch_size=minibatch, minibatch_of=unit, epochs=3, seed=0), **arguments
    )
    got = optim.optimize(buffer)
    assert got.pop("updates") == learned.updates == 3
    assert got == pytest.approx(learned.costs, rel=1e-4, abs=1e-6)
    for one, other in zip(optim.get_values(), plain.get_values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


class Spy(CompiledUpdates):
    """Notes what it is given."""

    def update(self, draw, **arguments):
        self.given, self.draw = arguments, draw
        return super().update(draw, **arguments)


def test_every_trajectory_is_in_a_minibatch_and_none_is_of_padding_alone():
    config = make_config(LSTM, batch_size=4, epochs=1)
    model = make_model(config)
    model.xla = False
    compiled = Spy(load("algorithm", "ppo").make_algorithm(config, model, 0), config.optimizers)
    optim = PPOOptim(compiled, config.plan, 3, max_traj_len=64)
    costs = optim.optimize(sample(config, [2, 3, 3, 2, 4, 2, 1, 3, 2], cut=[4]))
    # 9 trajectories are three minibatches of 4; there is room for 16.
    assert costs["updates"] == 3
    assert compiled.draw.count == 12
    assert compiled.given["extras"]["mask"].shape == (4, 16)
    assert np.isfinite(list(costs.values())).all()


@pytest.mark.parametrize(
    ("steps", "want"), [(1, 1), (2, 2), (3, 5), (6, 19), (19, 19), (20, 75), (76, 300), (301, 301)]
)
def test_lengths_of_few_kinds(steps, want):
    assert make_optim(make_config(LSTM, batch_size=4), 300)._pad_steps(steps) == want


def test_numbers_of_few_kinds():
    optim = make_optim(make_config(LSTM, batch_size=4))
    assert [optim._pad_columns(n) for n in (1, 4, 5, 16, 17)] == [4, 4, 16, 16, 64]
    optim = make_optim(make_config(num_steps=2000, rollout_steps=100, batch_size=64))
    assert [optim._pad_rows(n) for n in (1, 2000, 2001, 2501)] == [500, 2000, 2500, 3000]


def test_statistics_see_each_step_once_and_no_padding():
    config = make_config(prenorm=True, prenormalize_steps=20, update_norm=True)
    optim, buffers = make_optim(config), [sample(config), sample(config, [4, 6, 8])]
    assert optim.optimize(buffers[0]) == {"updates": 0}
    assert optim.optimize(buffers[1]) == {"updates": 0}
    assert optim.global_t == 15 + 18
    seen = np.concatenate([buffer.rows().states["observation"] for buffer in buffers])
    statistic = optim._compiled.get_statistic("observation")
    assert statistic.count == 33
    np.testing.assert_allclose(statistic.mean, seen.mean(0), rtol=1e-5)
    assert optim.optimize(buffers[0])["updates"] > 0
    assert optim._compiled.get_statistic("observation").count == 48


def test_rewards_are_scaled_by_sums_that_begin_with_each_trajectory():
    config = make_config(normalize_rewards=True, gamma=0.5)
    buffer = Buffer(0.5, 0.95)
    observations = np.zeros((2, SIZE), np.float32)
    for terminal_value in (0.0, 3.0):
        buffer.push_trajectory(
            {"observation": observations},
            {"action": np.zeros(2, np.int64)},
            [2.0, 4.0],
            [0.0, 0.0],
            terminal_value,
            {LOG_PROB: np.zeros(2, np.float32)},
        )
    optim = make_optim(config)
    arguments = optim.data_preprocess(buffer)
    # R = 2, 4 + 2 / 2 = 5 and again: variance 2.25. The value behind the end is scaled already.
    rewards = arguments["rewards"]["reward"][:4, 0, 0]
    np.testing.assert_allclose(rewards, [2 / 1.5, 4 / 1.5, 2 / 1.5, 4 / 1.5 + 1.5], rtol=1e-5)
    assert optim._compiled.get_statistic("return").count == 4


def test_a_buffer_with_nan_changes_nothing_and_says_where(tmp_path):
    config = make_config()
    buffer = sample(config)
    state = {**buffer.get_state(), "rewards": buffer.rows().rewards.copy()}
    state["rewards"][4] = np.nan
    bad = Buffer(buffer.discount, buffer.gae_lambda)
    bad.set_state(state)
    optim = PPOOptim(make_compiled(config), config.plan, 3, 10, tmp_path)
    before = optim.get_values()
    with pytest.raises(NotFiniteError, match=r"batch/rewards/reward at step 4, column 0"):
        optim.optimize(bad)
    assert all((one == other).all() for one, other in zip(before, optim.get_values(), strict=True))
    assert (tmp_path / "training_error.npz").exists()


NAMED = {"observation": np.zeros(SIZE, np.float32)}


@pytest.mark.parametrize(
    ("state", "action", "extras", "problem"),
    [
        (NAMED["observation"], {"action": 0}, {LOG_PROB: 0.0}, "the states are one array without"),
        (NAMED, 0, {LOG_PROB: 0.0}, "push each action as a dict name -> array"),
        (NAMED, {"action": 0}, {}, r"log_prob is missing, expected \[2\], .*push_additional_info"),
        (NAMED, {"action": 0}, {LOG_PROB: [0.0]}, r"log_prob has shape \[2, 1\], expected \[2\]"),
    ],
)
def test_a_buffer_without_names_or_probabilities_is_refused(state, action, extras, problem):
    buffer = Buffer(0.9, 0.9)
    for _ in range(2):
        buffer.push(state, action, reward=1.0, value=0.0)
        buffer.push_additional_info(extras)
    buffer.end_trajectory(0.0)
    with pytest.raises(InvalidInputError, match=problem):
        make_optim(make_config()).optimize(buffer)


def test_it_learns_as_a_policy_of_rollouts_does():
    """One trajectory of each slot is a rollout: the same arrays, seeds and weights."""
    config = make_config(num_steps=8, rollout_steps=4, epochs=2)
    buffer, optim = sample(config, [4, 4], cut=[]), make_optim(config)
    other = LearningPolicy(make_compiled(config), config.plan, 3)
    arguments = make_arguments(buffer, [0, 1])
    del arguments["extras"]
    # Rows of a rollout go step by step, those of a buffer slot by slot.
    arguments = {
        part: {
            name: np.swapaxes(array, 0, 1).reshape(8, 1, *array.shape[2:])
            for name, array in arrays.items()
        }
        for part, arrays in arguments.items()
    }
    assert optim.optimize(buffer) == pytest.approx(other.forward(arguments), rel=1e-4, abs=1e-6)
    assert optim.global_t == other.global_t == 8
