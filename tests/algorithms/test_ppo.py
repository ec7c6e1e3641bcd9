"""ppo: its costs against a slow reference, early stop, masks, and a task with a known answer."""

# covers F6, P5, P9, P10, P11, P12

import numpy as np
import pytest
from support.batch import load

from relaax_like.computation.prediction import LOG_PROB
from relaax_like.computation.updates import LearningTask, NotFiniteError

ppo_config = load("config", "ppo")
ppo_model = load("model", "ppo")
ppo_algorithm = load("algorithm", "ppo")


def make_config(layers=(8,), **settings):
    settings = {"num_actions": 2, "num_steps": 18, "rollout_steps": 6, "batch_size": 18, **settings}
    return ppo_config.Config(network={"layers": tuple(layers)}, **settings)


def make_task(config, seed=0):
    model = ppo_model.make_model(config, seed)
    return LearningTask(ppo_algorithm.make_algorithm(config, model, seed), config.optimizers)


def make_batch(steps=6, slots=3, seed=0):
    random = np.random.default_rng(seed)
    observations = random.standard_normal((steps + 1, slots, 4)).astype(np.float32)
    return {
        "inputs": {"observation": observations[:-1]},
        "next_inputs": {"observation": observations[1:]},
        "next_alive": {
            "alive": random.choice([1.0, 1.0, 0.0, -1.0], (steps, slots)).astype(np.float32)
        },
        "rewards": {"reward": random.standard_normal((steps, slots, 1)).astype(np.float32)},
        "actions": {
            "action": random.integers(2, size=(steps, slots)),
            LOG_PROB: np.log(random.uniform(0.2, 0.9, (steps, slots))).astype(np.float32),
        },
    }


def run_network(values, name, x):
    x = np.tanh(x @ values[f"{name}.0.W"] + values[f"{name}.0.b"])
    return x @ values[f"{name}.out.W"] + values[f"{name}.out.b"]


def compute_reference(config, values, batch, clip_value=None, old_values=None):
    """The papers' formulas, step by step, in float64; a whole batch is one minibatch."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    inputs, alive = batch["inputs"]["observation"], batch["next_alive"]["alive"]
    rewards = batch["rewards"]["reward"][..., 0]
    v = run_network(values, "value", inputs)[..., 0]
    next_v = run_network(values, "value", batch["next_inputs"]["observation"])[..., 0]
    logits = run_network(values, "policy", inputs)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    steps, slots = alive.shape
    advantages = np.zeros((steps, slots))
    for slot in range(slots):
        for t in range(steps):
            factor = 1.0
            for s in range(t, steps):
                goes_on = abs(alive[s, slot])
                delta = rewards[s, slot] + config.discount * goes_on * next_v[s, slot] - v[s, slot]
                advantages[t, slot] += factor * delta
                if alive[s, slot] != 1:
                    break
                factor *= config.discount * config.gae_lambda
    returns = advantages + v
    normalised = (advantages - advantages.mean()) / advantages.std()
    gains, entropy, error = [], [], []
    for index in np.ndindex(steps, slots):
        action = batch["actions"]["action"][index]
        ratio = np.exp(log_probs[index][action] - batch["actions"][LOG_PROB][index])
        near = min(max(ratio, 1 - config.clip), 1 + config.clip)
        gains.append(min(ratio * normalised[index], near * normalised[index]))
        entropy.append(-(np.exp(log_probs[index]) * log_probs[index]).sum())
        error.append((returns[index] - v[index]) ** 2)
    return {
        "actor": -np.mean(gains) - config.entropy_coeff * np.mean(entropy),
        "critic": config.value_coeff * np.mean(error),
        "entropy": np.mean(entropy),
        "KL": 0.0,
    }


def values_of(task):
    return {variable.name: variable.value for variable in task.get_variables()}


def test_costs_of_the_first_update_equal_the_papers_formulas():
    config = make_config(entropy_coeff=0.02, grad_clip=None)
    task, batch = make_task(config), make_batch()
    want = compute_reference(config, values_of(task), batch)
    costs = task.update(**batch)
    assert {name: costs[name] for name in want} == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_each_network_is_moved_by_its_own_optimizer_alone():
    before = values_of(make_task(make_config()))
    task = make_task(make_config(a_lr=0.0))
    task.update(**make_batch())
    moved = {name for name, value in values_of(task).items() if (value != before[name]).any()}
    assert moved == {name for name in before if name.startswith("value.")}


def test_actor_and_critic_are_clipped_each_to_its_own_norm():
    # With momentum-free steps of rate 1 a change of the weights is the clipped gradient.
    config = make_config(grad_clip=0.01)
    task, batch = make_task(config), make_batch()
    gradients, costs = task.compute_gradients(**batch)
    names = [name for name in values_of(task)]
    for group, prefix in (("actor", "policy."), ("critic", "value.")):
        own = [g for g, n in zip(gradients, names, strict=True) if n.startswith(prefix)]
        assert np.sqrt(sum((g**2).sum() for g in own)) == pytest.approx(0.01, rel=1e-4)
        assert costs[f"gradient norm {group}"] > 0.01


def test_the_divergence_of_a_minibatch_above_kl_skips_all_later_ones():
    batch = make_batch()
    free = make_task(make_config(a_lr=0.1, epochs=5))
    costs, updates = free.update_epochs(epochs=5, minibatch=6, seed=1, **batch)
    assert updates == 15
    assert costs["KL"] > 0.001
    bound = make_task(make_config(a_lr=0.1, epochs=5, kl=0.001))
    _, updates = bound.update_epochs(epochs=5, minibatch=6, seed=1, **batch)
    assert 1 < updates < 15  # the first sees the policy that the iteration began with
    # What was done until then is what the free one had done.
    short = make_task(make_config(a_lr=0.1))
    for name, value in values_of(bound).items():
        assert np.isfinite(value).all(), name
    assert updates <= short.update_epochs(epochs=5, minibatch=6, seed=1, **batch)[1]


@pytest.mark.parametrize("settings", [{}, {"normalize_advantage": "batch"}], ids=str)
def test_padding_that_is_masked_changes_nothing(settings):
    config = make_config(entropy_coeff=0.01, **settings)
    batch = make_batch()
    padded = {
        part: {name: _pad(array) for name, array in arrays.items()}
        for part, arrays in batch.items()
    }
    mask = np.concatenate([np.ones((6, 3)), np.zeros((4, 3))]).astype(np.float32)
    # The last real step ends its piece, as a trajectory's does.
    batch["next_alive"]["alive"][-1] = -1.0
    padded["next_alive"]["alive"][5] = -1.0
    plain, masked = make_task(config), make_task(config)
    want = plain.update(**batch)
    assert masked.update(**padded, extras={"mask": mask}) == pytest.approx(want, rel=1e-4, abs=1e-6)
    for name, value in values_of(plain).items():
        np.testing.assert_allclose(values_of(masked)[name], value, atol=1e-6)


def _pad(array):
    random = np.random.default_rng(5)
    garbage = random.uniform(-3, 3, (4, *array.shape[1:])).astype(array.dtype)
    if array.dtype == np.int64:
        garbage = np.abs(garbage) % 2
    return np.concatenate([array, garbage])


def test_a_gradient_that_is_not_finite_is_not_applied_and_is_told():
    config = make_config()
    task, batch = make_task(config), make_batch()
    before, optimizers = values_of(task), task.export_optimizers()
    batch["rewards"]["reward"][2, 1] = np.inf
    with pytest.raises(NotFiniteError, match="critic"):
        task.update_epochs(epochs=2, minibatch=6, seed=0, **batch)
    for name, value in values_of(task).items():
        np.testing.assert_array_equal(value, before[name])
    assert task.export_optimizers().updates == optimizers.updates == 0


def test_values_count_only_as_far_as_clip_value():
    config = make_config(clip_value=0.1, epochs=1)
    near, far = make_task(config), make_task(make_config(epochs=1))
    batch = make_batch()
    # In the first update no value has moved, and the two are the same; later they are not.
    for seed in range(3):
        first = near.update_epochs(epochs=1, minibatch=18, seed=seed, **batch)[0]
        second = far.update_epochs(epochs=1, minibatch=18, seed=seed, **batch)[0]
        assert first["critic"] == pytest.approx(second["critic"], rel=1e-5)
    near.update_epochs(epochs=50, minibatch=18, seed=9, **batch)
    far.update_epochs(epochs=50, minibatch=18, seed=9, **batch)
    moved = [
        np.abs(run_network(values_of(task), "value", batch["inputs"]["observation"])).max()
        for task in (near, far)
    ]
    assert moved[0] < moved[1]


def test_rows_and_whole_rollouts_give_the_same_update():
    """One minibatch of all there is, in whatever order: the same update, 1e-5."""
    rows, slots = make_task(make_config()), make_task(make_config())
    batch = make_batch()
    first, _ = rows.update_epochs(epochs=1, minibatch=18, seed=3, axis="rows", **batch)
    second, _ = slots.update_epochs(epochs=1, minibatch=3, seed=4, axis="slots", **batch)
    assert first == pytest.approx(second, rel=1e-4, abs=1e-6)
    for name, value in values_of(rows).items():
        np.testing.assert_allclose(values_of(slots)[name], value, atol=1e-5)


def test_settings_that_cannot_be_are_refused_by_name():
    for settings, words in (
        ({"learning_rate": 1e-3}, "a_lr"),
        ({"num_steps": 20, "rollout_steps": 6}, "num_steps: 20 is no multiple"),
        ({"batch_size": 19}, "batch_size: 19 is more"),
        ({"batch_size": 4, "layers": [{"lstm": 4}]}, "batch_size: 4 is more"),
    ):
        with pytest.raises(ValueError, match=words):
            make_config(**settings)
