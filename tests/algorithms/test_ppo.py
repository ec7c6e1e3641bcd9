"""ppo: its costs against a slow reference, early stop, masks, a known answer."""

# covers F6, P5, P9, P10, P11, P12, P13, P14, P19

import numpy as np
import pytest
from support.batch import add_state_size, load
from support.cluster import ROOT

from relaax_like.algorithm.acting import make_actor
from relaax_like.client.values import SpaceValues
from relaax_like.config.loader import dump_experiment, load_experiment
from relaax_like.core.prediction import LOG_PROB
from relaax_like.launch.local import open_slots
from relaax_like.learn.draw import Draw
from relaax_like.learn.updates import CompiledUpdates, NotFiniteError
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.spaces import ACTION, OBSERVATION

ppo_config = load("config", "ppo")
ppo_model = load("model", "ppo")
ppo_algorithm = load("algorithm", "ppo")


def make_config(layers=(8,), **settings):
    settings = {"num_actions": 2, "num_steps": 18, "rollout_steps": 6, "batch_size": 18, **settings}
    return ppo_config.Config(network={"layers": tuple(layers)}, **add_state_size(settings))


def make_compiled(config, seed=0):
    model = ppo_model.make_model(config, seed)
    model.xla = False  # compiling takes longer than all else here
    return CompiledUpdates(ppo_algorithm.make_algorithm(config, model, seed), config.optimizers)


_SHARED = {}


def share_compiled(**settings):
    """Returns one object for all tests that ask for these settings, as it was when it was new.

    What an update of it has traced, the next one calls.
    """
    key = repr(sorted(settings.items()))
    if key not in _SHARED:
        compiled = make_compiled(make_config(**settings))
        _SHARED[key] = compiled, compiled.get_values(), compiled.export_optimizers()
    compiled, values, optimizers = _SHARED[key]
    compiled.set_values(values)
    compiled.import_optimizers(optimizers)
    return compiled


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
                delta = rewards[s, slot] + config.gamma * goes_on * next_v[s, slot] - v[s, slot]
                advantages[t, slot] += factor * delta
                if alive[s, slot] != 1:
                    break
                factor *= config.gamma * config.gae_lambda
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
        "actor": -np.mean(gains) - config.entropy_coefficient * np.mean(entropy),
        "critic": config.value_coefficient * np.mean(error),
        "entropy": np.mean(entropy),
        "KL": 0.0,
    }


def values_of(compiled):
    return {variable.name: variable.value for variable in compiled.get_variables()}


def test_costs_of_the_first_update_equal_the_papers_formulas():
    settings = {"entropy_coefficient": 0.02}
    compiled, batch = share_compiled(**settings), make_batch()
    want = compute_reference(make_config(**settings), values_of(compiled), batch)
    costs = compiled.update(**batch).costs
    assert {name: costs[name] for name in want} == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_the_weight_of_the_entropy_falls_with_the_budget():
    batch, costs = make_batch(), {}
    for name, at in (("constant", 700), ("linear", 0), ("linear", 700), ("linear", 2000)):
        settings = {"entropy_schedule": name, "max_global_step": 1000}
        compiled = make_compiled(make_config(entropy_coefficient=0.5, **settings))
        costs[name, at] = compiled.update(**batch, global_t=at).costs
    whole, entropy = costs["constant", 700]["actor"], costs["constant", 700]["entropy"]
    for at, left in ((0, 1.0), (700, 0.3), (2000, 0.0)):
        want = whole + 0.5 * (1 - left) * entropy
        assert costs["linear", at]["actor"] == pytest.approx(want, rel=1e-4)


def test_each_network_is_moved_by_its_own_optimizer_alone():
    before = values_of(make_compiled(make_config()))
    compiled = make_compiled(make_config(learning_rate=0.0))
    compiled.update(**make_batch())
    moved = {name for name, value in values_of(compiled).items() if (value != before[name]).any()}
    assert moved == {name for name in before if name.startswith("value.")}


def test_actor_and_critic_are_clipped_each_to_its_own_norm():
    # With momentum-free steps of rate 1 a change of the weights is the clipped gradient.
    config = make_config(max_gradient_norm=0.01)
    compiled, batch = make_compiled(config), make_batch()
    gradients, costs = compiled.compute_gradients(**batch)
    names = list(values_of(compiled))
    for group, prefix in (("actor", "policy."), ("critic", "value.")):
        own = [g for g, n in zip(gradients, names, strict=True) if n.startswith(prefix)]
        assert np.sqrt(sum((g**2).sum() for g in own)) == pytest.approx(0.01, rel=1e-4)
        assert costs[f"gradient norm {group}"] > 0.01


def test_the_divergence_of_a_minibatch_above_kl_skips_all_later_ones():
    batch = make_batch()
    free = share_compiled(learning_rate=0.1)
    learned = free.update(Draw(batch_size=6, epochs=5, seed=1), **batch)
    assert learned.updates == 15
    assert learned.costs["KL"] > 0.001
    bound = make_compiled(make_config(learning_rate=0.1, epochs=5, kl=0.001))
    updates = bound.update(Draw(batch_size=6, epochs=5, seed=1), **batch).updates
    assert 1 < updates < 15  # the first sees the policy that the iteration began with
    # What was done until then is what the free one had done.
    short = share_compiled(learning_rate=0.1)
    for name, value in values_of(bound).items():
        assert np.isfinite(value).all(), name
    assert updates <= short.update(Draw(batch_size=6, epochs=5, seed=1), **batch).updates


def compute_divergence(before, after, observations):
    """Mean over all steps of KL(pi_0, pi) = sum_a pi_0(a) (log pi_0(a) - log pi(a)), float64."""
    log_probs = []
    for values in (before, after):
        values = {name: value.astype(np.float64) for name, value in values.items()}
        logits = run_network(values, "policy", observations.astype(np.float64))
        log_probs.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    return (np.exp(log_probs[0]) * (log_probs[0] - log_probs[1])).sum(-1).mean()


def test_the_update_that_sees_a_larger_divergence_is_the_last_one_worked_out_in_numpy():
    """Each epoch is one minibatch of all steps: what an update does, no draw decides."""
    batch, settings = make_batch(), {"learning_rate": 0.02, "clip": 0.9}
    free = [values_of(share_compiled(**settings))]
    for epochs in range(1, 7):
        compiled = share_compiled(**settings)
        compiled.update(Draw(batch_size=18, epochs=epochs, seed=1), **batch)
        free.append(values_of(compiled))
    seen = batch["inputs"]["observation"]
    divergences = [compute_divergence(free[0], values, seen) for values in free]
    assert divergences == sorted(divergences)
    assert divergences[0] == 0
    # Update number n + 1 sees the policy after n. The bound lies between those after 2 and 3.
    kl = (divergences[2] + divergences[3]) / 2
    bound = make_compiled(make_config(kl=kl, **settings))
    learned = bound.update(Draw(batch_size=18, epochs=6, seed=1), **batch)
    costs, updates = learned.costs, learned.updates
    assert updates == 4
    assert costs["KL"] == pytest.approx(np.mean(divergences[:4]), rel=1e-3)
    for name, value in free[4].items():
        np.testing.assert_allclose(values_of(bound)[name], value, atol=1e-6)


def test_padding_that_is_masked_changes_nothing_of_a_batchs_moments():
    """With the shipped settings, check-algorithm says so."""
    settings = {"entropy_coefficient": 0.02, "normalize_advantage": "batch"}
    batch = make_batch()
    padded = {
        part: {name: _pad(array) for name, array in arrays.items()}
        for part, arrays in batch.items()
    }
    mask = np.concatenate([np.ones((6, 3)), np.zeros((4, 3))]).astype(np.float32)
    # The last real step ends its piece, as a trajectory's does.
    batch["next_alive"]["alive"][-1] = -1.0
    padded["next_alive"]["alive"][5] = -1.0
    compiled = share_compiled(**settings)
    want = compiled.update(**batch).costs
    plain = values_of(compiled)
    masked = share_compiled(**settings)
    got = masked.update(**padded, extras={"mask": mask}).costs
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)
    for name, value in plain.items():
        np.testing.assert_allclose(values_of(masked)[name], value, atol=1e-6)


def _pad(array):
    random = np.random.default_rng(5)
    garbage = random.uniform(-3, 3, (4, *array.shape[1:])).astype(array.dtype)
    if array.dtype == np.int64:
        garbage = np.abs(garbage) % 2
    return np.concatenate([array, garbage])


def test_a_gradient_that_is_not_finite_is_not_applied_and_is_told():
    compiled, batch = share_compiled(learning_rate=0.1), make_batch()
    before, optimizers = values_of(compiled), compiled.export_optimizers()
    batch["rewards"]["reward"][2, 1] = np.inf
    with pytest.raises(NotFiniteError, match="critic"):
        compiled.update(Draw(batch_size=6, epochs=2, seed=0), **batch)
    for name, value in values_of(compiled).items():
        np.testing.assert_array_equal(value, before[name])
    assert compiled.export_optimizers().steps == optimizers.steps
    assert set(optimizers.steps.values()) == {0}


def test_values_count_only_as_far_as_clip_value():
    near, far = make_compiled(make_config(clip_value=0.1)), share_compiled()
    batch = make_batch()
    # In the first update no value has moved, and the two are the same; later they are not.
    for seed in range(3):
        first = near.update(Draw(batch_size=18, epochs=1, seed=seed), **batch).costs
        second = far.update(Draw(batch_size=18, epochs=1, seed=seed), **batch).costs
        assert first["critic"] == pytest.approx(second["critic"], rel=1e-5)
    near.update(Draw(batch_size=18, epochs=50, seed=9), **batch)
    far.update(Draw(batch_size=18, epochs=50, seed=9), **batch)
    moved = [
        np.abs(run_network(values_of(compiled), "value", batch["inputs"]["observation"])).max()
        for compiled in (near, far)
    ]
    assert moved[0] < moved[1]


def test_rows_and_whole_rollouts_give_the_same_update():
    """One minibatch of all there is, in whatever order: the same update, 1e-5."""
    batch, compiled = make_batch(), share_compiled()
    first = compiled.update(Draw(batch_size=18, epochs=1, seed=3), **batch).costs
    rows, slots = values_of(compiled), share_compiled()
    learned = slots.update(Draw(batch_size=3, minibatch_of="rollouts", epochs=1, seed=4), **batch)
    second = learned.costs
    assert first == pytest.approx(second, rel=1e-4, abs=1e-6)
    for name, value in rows.items():
        np.testing.assert_allclose(values_of(slots)[name], value, atol=1e-5)


def test_settings_that_cannot_be_are_refused_by_name():
    for settings, words in (
        ({"num_steps": 20, "rollout_steps": 6}, "num_steps: 20 is not a multiple"),
        ({"batch_size": 19}, "batch_size: 19 is more"),
        ({"batch_size": 4, "layers": [{"lstm": 4}]}, "batch_size: 4 is more"),
        ({"normalize_observations": True}, "prenorm .* or update_norm"),
    ):
        with pytest.raises(ValueError, match=words):
            make_config(**settings)


ACTIONS = {
    "discrete": {},
    "several choices": {"num_actions": (3, 2)},
    "continuous": {"num_actions": None, "action_size": 2},
    "bounded": {
        "num_actions": None,
        "action_size": 2,
        "bounded": True,
        "action_low": -1.0,
        "action_high": (1.0, 3.0),
    },
}


def act(compiled, observations, seed=3):
    """Lets the policy answer `[T, k, ...]` observations in NumPy; returns the batch's actions."""
    actor = make_actor(compiled._algorithm.model, seed)
    actor.set_values(compiled.get_values(), 0)
    predictions = [actor.act({"observation": x}, {}) for x in observations]
    return {
        "action": np.stack([prediction.actions["action"] for prediction in predictions]),
        LOG_PROB: np.stack([prediction.log_prob for prediction in predictions]),
    }


@pytest.mark.parametrize("settings", ACTIONS.values(), ids=ACTIONS)
def test_in_the_first_update_all_ratios_are_1_whatever_the_actions(settings):
    compiled, batch = (
        make_compiled(make_config(clip=1e-4, entropy_coefficient=0.01, **settings)),
        make_batch(),
    )
    batch["actions"] = act(compiled, batch["inputs"]["observation"])
    costs = compiled.update(**batch).costs
    assert costs["KL"] == pytest.approx(0, abs=1e-6)
    assert costs["clip fraction"] == 0
    assert compiled.update(**batch).costs["clip fraction"] > 0  # and then no more


# The mirror.

LINEAR = {"layers": (), "state_size": 2, "num_actions": None, "action_size": 1}
SIGN = {"mirror_observation": (-0.1, 1.0), "mirror_action": (-0.1,)}


def make_mirror_batch(observations, actions):
    """One rollout of one slot."""
    steps = len(observations)
    x = np.array(observations, np.float32)[:, None]
    return {
        "inputs": {"observation": x},
        "next_inputs": {"observation": x},
        "next_alive": {"alive": np.ones((steps, 1), np.float32)},
        "rewards": {"reward": np.zeros((steps, 1, 1), np.float32)},
        "actions": {"action": np.array(actions)[:, None], LOG_PROB: np.zeros((steps, 1))},
    }


def set_values(compiled, **wanted):
    names = list(values_of(compiled))
    values = [
        wanted.get(name.replace(".", "_"), compiled.get_values()[i]) for i, name in enumerate(names)
    ]
    compiled.set_values([np.asarray(value, np.float32) for value in values])


def compute_gradient_of_mirror(batch, weight, values, **settings):
    """The gradient with the mirror loss minus that without it, by name; and the costs with it."""
    found = []
    for mirror in (weight, 0.0):
        compiled = make_compiled(make_config(mirror=mirror, max_gradient_norm=None, **settings))
        set_values(compiled, **values)
        gradients, costs = compiled.compute_gradients(**batch)
        found.append((gradients, costs))
    (with_it, costs), (without, _) = found
    return {n: a - b for n, a, b in zip(values_of(compiled), with_it, without, strict=True)}, costs


def test_the_mirror_loss_of_a_linear_policy_worked_by_hand():
    """a(x) = x0 + 2 x1 + 0.5. Both branches have a gradient."""
    # a(1, 2) = 5.5, in the mirror a(-1, 2) = 3.5, whose image is -3.5: 9 apart, of 9.
    # a(3, 0) = 3.5, in the mirror a(-3, 0) = -2.5, whose image is 2.5: 1 apart, of 6.
    batch = make_mirror_batch([[1, 2], [3, 0]], np.zeros((2, 1), np.float32))
    values = {"policy_out_W": [[1], [2]], "policy_out_b": [0.5]}
    moved, costs = compute_gradient_of_mirror(batch, 0.1, values, **LINEAR, **SIGN)
    assert costs["mirror"] == pytest.approx((81 + 1) / 2)
    assert costs["asymmetry"] == pytest.approx((9 + 1) / (9 + 6))
    # d(a - a')/db = 2 in both steps; d(a - a')/dw0 = x0 - x0 = 0, d/dw1 = 2 x1.
    db = 0.1 * (2 * 9 * 2 + 2 * 1 * 2) / 2
    dw1 = 0.1 * (2 * 9 * 4) / 2
    np.testing.assert_allclose(moved["policy.out.b"], [db], rtol=1e-4)
    np.testing.assert_allclose(moved["policy.out.W"], [[0], [dw1]], rtol=1e-4, atol=1e-4)
    assert all((moved[name] == 0).all() for name in moved if name.startswith("value."))


def test_the_mirror_loss_of_discrete_actions_compares_probabilities():
    """Left and right change places. Logits (x0 + 1, -x0 - 1)."""
    settings = {"layers": (), "state_size": 1, "num_actions": 2}
    mirror = {"mirror_observation": (-0.1,), "mirror_action": (1, 0.1)}
    batch = make_mirror_batch([[0.5]], np.zeros(1, np.int64))
    values = {"policy_out_W": [[1, -1]], "policy_out_b": [1, -1]}
    _, costs = compute_gradient_of_mirror(batch, 1.0, values, **settings, **mirror)
    p, q = 1 / (1 + np.exp(-3.0)), 1 / (1 + np.exp(-1.0))  # of the first at 0.5 and at -0.5
    assert costs["mirror"] == pytest.approx((p - (1 - q)) ** 2, rel=1e-5)
    assert costs["asymmetry"] == pytest.approx(p - (1 - q), rel=1e-5)


def test_the_mirror_loss_is_not_what_padding_says():
    """With a recurrent network, whole rollouts, the second half of which does not count."""
    config = make_config(
        layers=[{"gru": 4}],
        shared_network=True,
        batch_size=3,
        mirror=1.0,
        mirror_action=(1, 0.1),
        mirror_observation=(-0.1, -1, 3, 2),
    )
    batch = make_batch()
    compiled = make_compiled(config)
    values, optimizers = compiled.get_values(), compiled.export_optimizers()
    specs = compiled._algorithm.model.get_state_specs()
    states = {name: np.ones((3, *spec["shape"]), np.float32) for name, spec in specs}
    assert states
    batch["next_alive"]["alive"][-1] = -1.0
    padded = {
        part: {n: _pad(array) for n, array in arrays.items()} for part, arrays in batch.items()
    }
    mask = np.concatenate([np.ones((6, 3)), np.zeros((4, 3))]).astype(np.float32)
    want = compiled.update(**batch, states=states).costs
    assert want["mirror"] > 0
    compiled.set_values(values)
    compiled.import_optimizers(optimizers)
    got = compiled.update(**padded, states=states, extras={"mask": mask}).costs
    assert got == pytest.approx(want, rel=1e-4, abs=1e-6)


def test_each_observation_of_a_history_is_mirrored():
    config = make_config(
        observation_history=2, mirror_observation=(-0.1, 1, -3, -2), mirror_action=(1, 0.1)
    )
    mirror = config.observation_mirror
    assert mirror.indices == (0, 1, 3, 2, 4, 5, 7, 6)
    assert mirror.signs == (-1, 1, -1, -1) * 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"mirror": 1.0, "mirror_action": (0.1,)},
            "mirror_action is set without mirror_observation; set both",
        ),
        ({"mirror_observation": (float("inf"), 1), "mirror_action": (0.1,)}, "finite number"),
        (
            {"mirror_observation": (-0.1, 1)},
            "mirror_observation is set without mirror_action; set both",
        ),
        ({"mirror_observation": (-0.1,), "mirror_action": (0.1,)}, "1 number, expected 2"),
        ({"mirror_observation": (0.0, 1), "mirror_action": (0.1,)}, "0 at position 0.*0.1 or -0.1"),
        ({"mirror_observation": (0.1, 1.5), "mirror_action": (0.1,)}, "1.5 at position 1"),
        ({"mirror_observation": (2, 0.1), "mirror_action": (0.1,)}, "largest index is 1"),
        ({"mirror_observation": (1, 1), "mirror_action": (0.1,)}, "its own inverse"),
        ({"mirror_observation": (1, -0.1), "mirror_action": (0.1,)}, "its own inverse"),
        (
            {**SIGN, "bounded": True, "action_low": -1.0, "action_high": 2.0},
            "the mirrored bounds of component 0 are",
        ),
        (
            {
                "mirror_observation": (0.1, 1),
                "mirror_action": (-0.1, -1),
                "action_size": None,
                "num_actions": 2,
            },
            "-0.1 at position 0, but probabilities of choices cannot be negated; remove all",
        ),
        (
            {
                "mirror_observation": (0.1, 1),
                "mirror_action": (0.1, 2, 1, 3),
                "action_size": None,
                "num_actions": (2, 2),
            },
            "the positions of choice 0 have indices of the choices 0, 1, expected",
        ),
    ],
)
def test_mirrors_that_are_none_are_refused_by_name(settings, words):
    with pytest.raises(ValueError, match=words):
        make_config(**{**LINEAR, **settings})


def test_mirrors_of_several_choices_and_of_bounds_that_fit_are_taken():
    make_config(**{**LINEAR, **SIGN}, bounded=True, action_low=-1.0, action_high=1.0)
    settings = {"action_size": None, "num_actions": (2, 1, 2), "mirror_action": (3, 4, 2, 0.1, 1)}
    with pytest.raises(ValueError, match="own inverse"):  # 3 takes 0, so 0 must take 3
        make_config(
            **{
                **LINEAR,
                **settings,
                "mirror_action": (4, 3, 2, 0.1, 1),
                "mirror_observation": (0.1, 1),
            }
        )
    make_config(**{**LINEAR, **settings, "mirror_observation": (0.1, 1)})


def train_on_the_point(mirror, seed, iterations=15):
    """A point in the plane is pushed to the origin: reward -|x + u|^2, episodes of one step.

    It is only ever seen on the right half.

    Returns:
      The asymmetry of what is done on average, and the mean reward of that on the left half.
    """
    config = make_config(
        layers=(16,),
        state_size=2,
        num_actions=None,
        action_size=2,
        num_steps=256,
        rollout_steps=256,
        batch_size=64,
        learning_rate=3e-3,
        log_std_init=-1.0,
        mirror=mirror,
        mirror_observation=(-0.1, 1),
        mirror_action=(-0.1, 1),
    )
    compiled, random = make_compiled(config, seed), np.random.default_rng(seed)
    for iteration in range(iterations):
        x = random.uniform((0, -1), (1, 1), (256, 1, 2)).astype(np.float32)
        actions = act(compiled, x.swapaxes(0, 1), seed=iteration)
        u = actions["action"].swapaxes(0, 1)
        batch = {
            "inputs": {"observation": x},
            "next_inputs": {"observation": x},
            "next_alive": {"alive": np.zeros((256, 1), np.float32)},
            "rewards": {"reward": -((x + u) ** 2).sum(-1, keepdims=True)},
            "actions": {"action": u, LOG_PROB: actions[LOG_PROB].T},
        }
        compiled.update(Draw(batch_size=64, epochs=5, seed=iteration), **batch)
    values, x = values_of(compiled), random.uniform((-1, -1), (0, 1), (500, 2))
    u = run_network(values, "policy", x)
    image = run_network(values, "policy", x * [-1, 1]) * [-1, 1]
    asymmetry = np.abs(u - image).sum() / (np.abs(u) + np.abs(image)).sum()
    return asymmetry, -((x + u) ** 2).sum(-1).mean()


def test_a_policy_that_is_trained_with_the_mirror_loss_is_more_symmetric():
    """To do nothing costs 2/3. The left half is learned from its image alone."""
    plain, mirrored = train_on_the_point(0.0, seed=0), train_on_the_point(4.0, seed=0)
    assert mirrored[0] < 0.5 * plain[0]
    assert mirrored[1] > 0.5 * plain[1]


# A web page plays that of `browser`: tests/environments/test_browser.py.
EXPERIMENTS = [f for f in (ROOT / "algorithms" / "ppo").glob("*.yaml") if f.stem != "browser"]


@pytest.mark.parametrize("file", sorted(EXPERIMENTS), ids=lambda file: file.stem)
def test_the_experiments_fit_their_environments_and_can_be_saved(file, tmp_path):
    experiment = load_experiment(file)
    (tmp_path / "config.yaml").write_text(dump_experiment(experiment))
    assert load_experiment(tmp_path / "config.yaml").algorithm == experiment.algorithm
    try:
        with open_slots(experiment, "train") as slots:
            observations = SpaceValues(slots.observation_space, OBSERVATION).spaces
            actions = SpaceValues(slots.action_space, ACTION).spaces
            experiment.algorithm.validate_spaces(observations, actions)
            assert experiment.algorithm.plan.rollouts % slots.slots == 0
    except ConfigError as error:
        if "install" not in str(error):
            raise
        pytest.skip(str(error))  # a simulator is missing
