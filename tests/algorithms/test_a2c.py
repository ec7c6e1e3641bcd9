"""a2c: its costs against a slow reference, problems with known answers.

XLA compiles none of it, which would take longer than all else: tests/golden computes with XLA.
"""

# covers F6, F7, F9, F13, F22, F26

import threading

import numpy as np
import pytest
import tensorflow as tf
from support.batch import load, make_algorithm, make_config, make_processor, serve_a2c
from support.rollouts import make_rollout

from relaax_like.agent.batch_agent import SimpleRLAgent
from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.core.prediction import LOG_PROB, ONLY_NAME
from relaax_like.learn.collected import make_collector
from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
from relaax_like.wire.errors import InvalidInputError
from relaax_like.wire.spaces import Box, Discrete


def make_batch(steps=6, slots=3, seed=0):
    random = np.random.default_rng(seed)
    observations = random.standard_normal((steps + 1, slots, 4)).astype(np.float32)
    alive = random.choice([1.0, 1.0, 0.0, -1.0], (steps, slots)).astype(np.float32)
    rewards = random.standard_normal((steps, slots)).astype(np.float32)
    return observations[:-1], observations[1:], alive, rewards, random


def run_network(weights, x):
    for index in range(0, len(weights) - 2, 2):
        x = np.tanh(x @ weights[index] + weights[index + 1])
    return x @ weights[-2] + weights[-1]


def compute_log_probs(values, inputs):
    policy = [values[n].astype(np.float64) for n in values if n.startswith("policy")]
    logits = run_network(policy, inputs)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def compute_costs(config, values, inputs, next_inputs, alive, rewards, actions, log_mu=None):
    """The papers' sums, slot by slot and step by step, in float64."""
    values = {name: value.astype(np.float64) for name, value in values.items()}
    critic = [values[n] for n in values if n.startswith("value")]
    steps, slots = alive.shape
    total_policy = total_value = total_entropy = 0.0
    for slot in range(slots):
        v = run_network(critic, inputs[:, slot])[:, 0]
        next_v = run_network(critic, next_inputs[:, slot])[:, 0]
        log_probs = compute_log_probs(values, inputs[:, slot])
        weights = np.ones(steps)
        if log_mu is not None:
            log_pi = log_probs[np.arange(steps), actions[:, slot]]
            weights = np.minimum(1.0, np.exp(log_pi - log_mu[:, slot]))
        for t in range(steps):
            advantage, factor = 0.0, 1.0
            for s in range(t, steps):
                delta = rewards[s, slot] + config.gamma * abs(alive[s, slot]) * next_v[s] - v[s]
                factor *= weights[s]
                advantage += factor * delta
                if alive[s, slot] != 1:
                    break
                factor *= config.gamma * config.gae_lambda
            total_policy -= log_probs[t, actions[t, slot]] * advantage
            total_value += advantage**2
            total_entropy -= (np.exp(log_probs[t]) * log_probs[t]).sum()
    count = steps * slots
    return {
        "actor": (total_policy - config.entropy_coefficient * total_entropy) / count,
        "critic": config.value_coefficient * total_value / count,
        "entropy": total_entropy / count,
    }


def compute(config, inputs, next_inputs, alive, rewards, actions, log_mu=None):
    compiled = CompiledAlgorithm(make_algorithm(config, xla=False))
    if log_mu is None:  # the policy that acted is the one that learns
        values = {v.name: v.value for v in compiled.get_variables()}
        log_probs = compute_log_probs(values, inputs)
        log_mu = np.take_along_axis(log_probs, actions[..., None], -1)[..., 0]
    gradients, costs = compiled.compute_gradients(
        inputs={"observation": inputs},
        next_inputs={"observation": next_inputs},
        next_alive={"alive": alive},
        rewards={"reward": rewards[..., None]},
        actions={"action": actions, LOG_PROB: log_mu},
    )
    return compiled, gradients, costs


def test_costs_of_an_older_policys_actions_are_weighted_as_in_vtrace():
    config = make_config(layers=(8, 6), max_gradient_norm=None)
    inputs, next_inputs, alive, rewards, random = make_batch()
    actions = random.integers(2, size=alive.shape)
    log_mu = np.log(random.uniform(0.1, 0.9, alive.shape))
    batch = inputs, next_inputs, alive, rewards, actions, log_mu
    compiled, _, costs = compute(config, *batch)
    values = {v.name: v.value for v in compiled.get_variables()}
    assert costs == pytest.approx(compute_costs(config, values, *batch), rel=1e-4)


def test_costs_equal_the_papers_sums():
    config = make_config(layers=(8, 6), entropy_coefficient=0.02, max_gradient_norm=None)
    inputs, next_inputs, alive, rewards, random = make_batch()
    actions = random.integers(2, size=alive.shape)
    compiled, _, costs = compute(config, inputs, next_inputs, alive, rewards, actions)
    values = {v.name: v.value for v in compiled.get_variables()}
    want = compute_costs(config, values, inputs, next_inputs, alive, rewards, actions)
    assert costs == pytest.approx(want, rel=1e-4)


def test_what_shares_layers_has_one_cost():
    inputs, next_inputs, alive, rewards, random = make_batch()
    actions = random.integers(2, size=alive.shape)
    log_mu = np.full(alive.shape, np.log(0.5))
    _, _, costs = compute(
        make_config(layers=(8,), shared_network=True),
        *(inputs, next_inputs, alive, rewards, actions, log_mu),
    )
    assert costs["default"] == pytest.approx(costs["actor"] + costs["critic"])


def test_the_gradients_of_actor_and_critic_are_clipped_by_themselves():
    settings = {"layers": (8,), "max_gradient_norm": 1e-3}
    inputs, next_inputs, alive, rewards, random = make_batch()
    actions = random.integers(2, size=alive.shape)
    compiled, gradients, costs = compute(
        make_config(**settings), inputs, next_inputs, alive, 100 * rewards, actions
    )
    squares = {"policy": 0.0, "value": 0.0}
    for variable, gradient in zip(compiled.get_variables(), gradients, strict=True):
        squares[variable.name.split(".")[0]] += (gradient.astype(np.float64) ** 2).sum()
    assert np.sqrt(list(squares.values())) == pytest.approx(1e-3, rel=1e-3)
    assert costs["gradient norm actor"] > 1
    assert costs["gradient norm critic"] > 1


def test_normalised_advantages_do_not_depend_on_the_rewards_scale():
    config = make_config(layers=(8,), normalize_advantage=True, gae_lambda=1.0)
    inputs, next_inputs, _, rewards, random = make_batch()
    alive = np.zeros(rewards.shape, np.float32)
    actions = random.integers(2, size=alive.shape)
    one = compute(config, inputs, next_inputs, alive, 1e4 * rewards, actions)[2]
    ten = compute(config, inputs, next_inputs, alive, 1e5 * rewards, actions)[2]
    assert one["actor"] == pytest.approx(ten["actor"], rel=1e-3)


class Chooser:
    """Drives an agent through a problem that is a function of state and action."""

    def __init__(self, config, slots, **options):
        self.config = config
        self.slots = slots
        self.server = serve_a2c(config, **options)
        self.processor = make_processor(config, self.server, xla=False)
        self.ready = threading.Event()
        self.processor.start()
        helper = OnlineHelper(self.processor, slots, config.rollout_steps)
        helper.on_learned = self.ready.set
        self.agent = SimpleRLAgent({ONLY_NAME: helper}, slots)

    def step(self, observations, terminated=None, truncated=None, **outcome):
        self.ready.clear()
        if outcome:
            alive = 1.0 - terminated - 2.0 * truncated
            outcome["next_alive"] = None if np.all(alive == 1) else alive
        self.agent.observe({"observation": observations}, **outcome)
        while self.agent.waiting:
            self.ready.wait(0.1)
        return self.agent.take(self.processor.predict([self.agent.request()])[0])["action"]

    def value(self, observations):
        algorithm = make_algorithm(self.config)
        CompiledAlgorithm(algorithm).set_values(self.server.get_values())
        return algorithm.model.value({"observation": tf.constant(observations)}, {}).numpy()

    def close(self):
        self.processor.stop()
        self.server.close(save=False)


@pytest.mark.parametrize("bootstraps", [True, False], ids=["truncated", "terminated"])
def test_an_endless_task_has_its_known_value_only_when_truncation_bootstraps(bootstraps):
    """Reward 1 forever, gamma 0.9: V = 10. Cut off every 5 steps, and taken for dead, V is less.

    With death after each 5th step, and states that do not tell the time, the mean of
    1 + 0.9 + ... over what is left of five steps is (5 + 4*0.9 + 3*0.81 + 2*0.729 + 0.6561) / 5.
    """
    config = make_config(layers=(), gamma=0.9, gae_lambda=0.9, rollout_steps=10, learning_rate=0.05)
    chooser = Chooser(config, slots=4)
    observations = np.ones((4, 4), np.float32)
    rewards, zeros = np.ones((4, 1)), np.zeros(4, bool)
    chooser.step(observations)
    for step in range(1, 1601):
        end = np.full(4, step % 5 == 0)
        chooser.step(
            observations,
            rewards=rewards,
            terminated=zeros if bootstraps else end,
            truncated=end if bootstraps else zeros,
            final_observations={"observation": observations},
        )
    value = chooser.value(observations)[0]
    chooser.close()
    died = (5 + 4 * 0.9 + 3 * 0.81 + 2 * 0.729 + 0.6561) / 5
    assert value == pytest.approx(10.0 if bootstraps else died, abs=0.15)


def test_it_learns_which_of_two_actions_the_state_asks_for():
    """Best mean reward 1, chance 0.5; 8 slots, 1 500 steps each, seed 0, last 500 steps."""
    config = make_config(layers=(16,), rollout_steps=8, learning_rate=5e-3, gamma=0.5)
    chooser, random = Chooser(config, slots=8), np.random.default_rng(0)
    signs = random.choice([-1.0, 1.0], 8)
    actions = chooser.step((signs[:, None] * np.ones((8, 4))).astype(np.float32))
    hits = []
    for _ in range(1500):
        right = actions == (signs > 0)
        hits.append(right.mean())
        signs = random.choice([-1.0, 1.0], 8)
        actions = chooser.step(
            (signs[:, None] * np.ones((8, 4))).astype(np.float32),
            rewards=right[:, None].astype(np.float64),
            terminated=np.zeros(8, bool),
            truncated=np.zeros(8, bool),
        )
    chooser.close()
    assert np.mean(hits[-500:]) >= 0.95


def test_it_learns_several_choices_at_once():
    """One of three and one of two, which the state asks for: chance 1/2 together, best 1."""
    config = make_config(
        layers=(16,), num_actions=(3, 2), rollout_steps=8, learning_rate=1e-2, gamma=0.0
    )
    chooser, random = Chooser(config, slots=8), np.random.default_rng(0)
    asked = random.integers((3, 2), size=(8, 2))
    # 0, 1, 2 become -1, 0, 1; 0, 1 become -1, 1.
    actions = chooser.step(np.tile(asked * [1, 2] - 1, 2).astype(np.float32))
    hits = []
    for _ in range(1500):
        right = (actions == asked).mean(axis=1)
        hits.append(right.mean())
        asked = random.integers((3, 2), size=(8, 2))
        actions = chooser.step(
            np.tile(asked * [1, 2] - 1, 2).astype(np.float32),
            rewards=right[:, None],
            terminated=np.zeros(8, bool),
            truncated=np.zeros(8, bool),
        )
    chooser.close()
    assert np.mean(hits[:50]) < 0.6
    assert np.mean(hits[-300:]) >= 0.95


def test_it_learns_a_continuous_action_that_follows_the_state():
    """Reward -(action - state)^2: begins below -0.4; the noise that is left costs the rest."""
    config = make_config(
        action_size=1,
        layers=(16,),
        rollout_steps=8,
        learning_rate=1e-2,
        gamma=0.0,
        log_std_init=-0.5,
    )
    chooser, random = Chooser(config, slots=16), np.random.default_rng(0)
    targets = random.uniform(-1, 1, 16)
    actions = chooser.step((targets[:, None] * np.ones((16, 4))).astype(np.float32))
    rewards = []
    for _ in range(1500):
        reward = -((actions[:, 0] - targets) ** 2)
        rewards.append(reward.mean())
        targets = random.uniform(-1, 1, 16)
        actions = chooser.step(
            (targets[:, None] * np.ones((16, 4))).astype(np.float32),
            rewards=reward[:, None],
            terminated=np.zeros(16, bool),
            truncated=np.zeros(16, bool),
        )
    chooser.close()
    assert np.mean(rewards[:50]) < -0.4
    assert np.mean(rewards[-300:]) > -0.1


@pytest.mark.parametrize(
    ("layers", "shared"),
    [(({"lstm": 16},), False), (({"lstm": 12}, {"lstm": 12}), True)],
    ids=["two networks", "one trunk"],
)
def test_a_recurrent_policy_recalls_what_it_saw_two_steps_ago(layers, shared):
    """A cue, a blank, then the answer: chance 1/2 per episode without memory, best 1.

    16 slots, 900 episodes each of three steps, seed 0; mean of the last 100 episodes.
    """
    config = make_config(
        layers=layers,
        shared_network=shared,
        rollout_steps=12,
        learning_rate=3e-3,
        gamma=0.9,
    )
    chooser, random = Chooser(config, slots=16), np.random.default_rng(0)
    go_on, end = np.zeros(16, bool), np.ones(16, bool)
    blank, nothing = np.zeros((16, 4), np.float32), np.zeros((16, 1))
    cues = random.integers(2, size=16)
    chooser.step(np.eye(4, dtype=np.float32)[cues])
    hits = []
    for _ in range(900):
        chooser.step(blank, rewards=nothing, terminated=go_on, truncated=go_on)
        answers = chooser.step(blank, rewards=nothing, terminated=go_on, truncated=go_on)
        right = answers == cues
        hits.append(right.mean())
        cues = random.integers(2, size=16)
        first = np.eye(4, dtype=np.float32)[cues]
        chooser.step(first, rewards=right[:, None] * 1.0, terminated=end, truncated=go_on)
    chooser.close()
    assert np.mean(hits[:20]) < 0.7
    assert np.mean(hits[-100:]) >= 0.95


def test_config_wants_one_kind_of_action():
    with pytest.raises(ValueError, match="set only one of num_actions"):
        load("config").Config(num_actions=2, action_size=1)


def test_spaces_that_do_not_fit_are_refused_with_the_cure():
    observation = {"observation": Box(dtype="float32", shape=(4,))}
    make_config().validate_spaces(observation, {"action": Discrete(n=2)})
    with pytest.raises(InvalidInputError, match="Discrete of 3 values"):
        make_config().validate_spaces(observation, {"action": Discrete(n=3)})
    continuous = make_config(action_size=2)
    continuous.validate_spaces(observation, {"action": Box(dtype="float32", shape=(2,))})
    with pytest.raises(InvalidInputError, match="set it to 1"):
        continuous.validate_spaces(observation, {"action": Box(dtype="float32", shape=(1,))})
    with pytest.raises(InvalidInputError, match="continuous"):
        continuous.validate_spaces(observation, {"action": Discrete(n=2)})


def test_the_rate_falls_to_its_end_over_the_budget():
    config = make_config(learning_rate=1e-3, learning_rate_end=1e-4, max_global_step=1000)
    optimizers = config.optimizers
    assert sorted(optimizers) == ["actor", "critic"]
    for optimizer in optimizers.values():
        assert (optimizer.schedule, optimizer.schedule_env_steps) == ("linear", 1000)


def test_agents_per_batch_is_the_most_rollouts_of_a_gradient_and_what_is_left_is_taken_next():
    config = make_config(rollout_steps=4, num_steps=4, agents_per_batch=3)
    collector = make_collector(config.plan, capacity=16)
    for _ in range(5):
        collector.add(make_rollout(1, 0, 4))
    sizes = []
    while data := collector.get_training_data():
        sizes.append(data.rollout.rewards.shape[1])
    assert sum(sizes) == 5
    assert max(sizes) <= 3

    unlimited = make_collector(make_config(rollout_steps=4, num_steps=4).plan, capacity=16)
    for _ in range(5):
        unlimited.add(make_rollout(1, 0, 4))
    first = unlimited.get_training_data()
    assert first is not None
    assert first.rollout.rewards.shape[1] == 4  # once, twice, four times the fewest
