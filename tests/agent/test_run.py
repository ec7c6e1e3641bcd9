"""The loop of scripts: FLARE's order, hooks, success; and several Algorithms in one agent."""

# covers F10, F12, F13, F14, F15, F16, F17, F22, F31

import numpy as np
import pytest
from support.episodes import list_ended
from support.hierarchy import load, make_host, make_store, serve

from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import ONLY_NAME, Prediction
from relaax_like.core.records import Episode
from relaax_like.parameter_server.parameter_server import ParameterServer

CONFIG = load("config").Config()


class Recorder(Metrics):
    def __init__(self):
        self.points = []

    def scalar(self, name, y, x=None):
        self.points.append((name, y))


class CountingProcessor:
    keeps_requests = False

    """Answers with the number of the prediction; keeps what is submitted, and lets nobody wait."""

    name = "processor"
    input_shapes = {"observation": (1,)}  # noqa: RUF012
    finished = ""

    def __init__(self, state_shapes=None):
        self.state_shapes = state_shapes or {}
        self.submitted = []
        self.predictions = 0
        self.recorder = Recorder()

    def metrics(self):
        return self.recorder

    def predict(self, requests):
        (request,) = requests
        self.predictions += 1
        memory = {k: v + 1 for k, v in request.states.items()}
        return [
            Prediction({"action": np.array([self.predictions])}, memory, np.zeros(1, np.float32), 0)
        ]

    def submit(self, rollout, episodes, on_done, env_steps, agent="", is_urgent=False):
        self.submitted.append((rollout, list_ended(episodes), env_steps))
        on_done()

    def name_agent(self):
        return "agent"

    def leave(self, agent):
        pass

    def report(self, episodes, env_steps):
        assert list_ended(episodes) == []

    def refresh_soon(self):
        pass


class Countdown:
    """Observes 10, 11, ... in the same array, and ends after so many steps."""

    def __init__(self, length, end="terminated", success=None, calls=None):
        self.length, self.end, self.success = length, end, success
        self.calls = [] if calls is None else calls
        self.actions = []
        self.seen = np.zeros(1, np.float32)

    def reset(self):
        self.calls.append("reset")
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.calls.append("step")
        self.actions.append(int(action))
        self.t += 1
        ended = self.t == self.length
        terminated, truncated = (
            ended and self.end != "truncated",
            ended and self.end != "terminated",
        )
        info = {"success": self.success} if ended and self.success is not None else {}
        return self.observe(), float(self.t), terminated, truncated, info

    def observe(self):
        self.seen[:] = 10 + self.t
        return self.seen


class TracedAgent(SimpleRLAgent):
    """Writes down which hook is called with what."""

    calls: list

    def _get_init_states(self):
        states = super()._get_init_states()
        if hasattr(self, "calls"):
            self.calls.append("init states")
        return states

    def _cts_predict(self, observations, states):
        memory = [a.item() for a in states[ONLY_NAME].values()]
        self.calls.append(("predict", observations["observation"].item(), *memory))
        return (yield from super()._cts_predict(observations, states))

    def _cts_store_data(self, asked, rewards, next_alive, next_observations, finals):
        request, prediction = asked[ONLY_NAME]
        self.calls.append(
            (
                "store",
                request.inputs["observation"].item(),
                prediction.actions["action"].item(),
                rewards.item(),
                next_alive.item(),
            )
        )
        super()._cts_store_data(asked, rewards, next_alive, next_observations, finals)


def make_agent(processor, steps=9, agent_class=SimpleRLAgent, slots=1, **options):
    agent = agent_class({ONLY_NAME: OnlineHelper(processor, slots, steps)}, slots, **options)
    agent.calls = []
    return agent


def test_the_order_is_flare_s_and_the_last_prediction_sees_the_final_observation_and_the_memory():
    agent = make_agent(CountingProcessor({"h": (1,)}), agent_class=TracedAgent)
    env = Countdown(2, calls=agent.calls)
    assert agent.run(env, 2) == [3.0, 3.0]
    first = [
        "reset",
        "init states",
        ("predict", 10, 0),
        "step",
        ("store", 10, 1, 1, 1),
        ("predict", 11, 1),
        "step",
        ("store", 11, 2, 2, 0),
        ("predict", 12, 2),
    ]
    assert agent.calls[: len(first)] == first
    second = agent.calls[len(first) :]
    assert second[2] == ("predict", 10, 0), "memory begins anew"
    assert [c for c in second if c == "step" or c[0] == "store"][1] == ("store", 10, 4, 1, 1)
    assert env.actions == [1, 2, 4, 5], "what was chosen at the final observation is not done"


@pytest.mark.parametrize(
    ("end", "alive"),
    [("terminated", 0), ("truncated", -1), ("both", 0)],
)
def test_what_is_stored_says_how_it_ended_and_carries_the_final_observation(end, alive):
    processor = CountingProcessor()
    agent = make_agent(processor, steps=2)
    agent.run(Countdown(2, end), 2)
    (rollout, episodes, env_steps), _ = processor.submitted
    np.testing.assert_array_equal(rollout.inputs["observation"][:, 0, 0], [10, 11])
    np.testing.assert_array_equal(rollout.next_alive[:, 0], [1, alive])
    np.testing.assert_array_equal(rollout.rewards[:, 0, 0], [1, 2])
    assert rollout.next_inputs["observation"][0, 0, 0] == 11
    if alive == -1:
        assert rollout.next_inputs["observation"][1, 0, 0] == 12
    assert episodes == [Episode(3.0, 2)]
    assert env_steps == 2


def test_an_action_is_repeated_its_rewards_added_up_and_it_counts_as_one_step():
    processor = CountingProcessor()
    agent = make_agent(processor, steps=2)
    env = Countdown(5)
    assert agent.run(env, 1, action_repeat=3) == [15.0]
    assert env.actions == [1, 1, 1, 2, 2]
    ((rollout, episodes, env_steps),) = processor.submitted
    np.testing.assert_array_equal(rollout.rewards[:, 0, 0], [6, 9])
    assert (episodes, env_steps) == ([Episode(15.0, 2)], 2)


def test_shaping_changes_what_is_stored_and_not_what_is_reported():
    processor = CountingProcessor()
    agent = make_agent(processor, steps=2, reward_shaping_f=lambda r: -10 * r)
    assert agent.run(Countdown(2), 1) == [3.0]
    ((rollout, episodes, _),) = processor.submitted
    np.testing.assert_array_equal(rollout.rewards[:, 0, 0], [-10, -20])
    assert episodes == [Episode(3.0, 2)]


def test_without_learning_it_plays_and_stores_nothing():
    processor = CountingProcessor()
    agent = make_agent(processor, steps=1, agent_class=TracedAgent, learning=False)
    assert agent.run(Countdown(3, success=1), 2) == [6.0, 6.0]
    assert processor.submitted == []
    assert processor.predictions == 8
    assert "store" not in {call[0] for call in agent.calls}
    assert processor.recorder.points == []


@pytest.mark.parametrize(
    ("success", "points"),
    [
        (1, [("success", 1.0)]),
        (True, [("success", 1.0)]),
        (-1, [("success", 0.0)]),
        (0, [("success", 0.0)]),
        (None, []),
    ],
)
def test_success_is_recorded_as_one_for_plus_one_only(success, points):
    processor = CountingProcessor()
    make_agent(processor).run(Countdown(1, success=success), 1)
    assert processor.recorder.points == points


def test_named_observations_and_several_actions_keep_their_names():
    class Two(SimpleRLAgent):
        def _cts_predict(self, observations, states):
            prediction = yield self._ask(ONLY_NAME, observations, states[ONLY_NAME])
            assert observations["a"].shape == (1, 2)
            return {"x": prediction.actions["action"], "y": np.ones((1, 3))}, {ONLY_NAME: {}}

    class Named:
        def reset(self):
            return {"a": np.zeros(2), "b": np.zeros(1)}, {}

        def step(self, action):
            assert action["x"] == 1
            assert action["y"].shape == (3,)
            return self.reset()[0], 1.0, True, False, {}

    assert make_agent(CountingProcessor(), agent_class=Two).run(Named(), 1) == [1.0]


def test_it_stops_when_the_training_has_finished():
    processor = CountingProcessor()
    processor.finished = "budget used up"
    assert make_agent(processor).run(Countdown(1), 5) == []
    assert make_agent(processor, learning=False).run(Countdown(1), 5) == [1.0] * 5


def test_an_agent_of_several_slots_cannot_play_one_environment():
    with pytest.raises(ValueError, match="the agent has 2 slots"):
        make_agent(CountingProcessor(), slots=2).run(Countdown(1), 1)


# Two Algorithms.


class Two(BatchAgent):
    """Asks both at each step and stores by the default hook."""

    def _cts_predict(self, observations, states):
        first = yield self._ask("first", observations, states["first"])
        inputs = {**observations, "hint": first.actions["action"]}
        second = yield self._ask("second", inputs, states["second"])
        next_states = {"first": first.next_states, "second": second.next_states}
        return second.actions, next_states


class SecondIsMain(Two):
    main_algorithm = "second"


def make_two(agent_class, steps=(2, 3)):
    processors = {"first": CountingProcessor({"m": (1,)}), "second": CountingProcessor()}
    helpers = {
        name: OnlineHelper(processor, 1, length)
        for (name, processor), length in zip(processors.items(), steps, strict=True)
    }
    return agent_class(helpers, 1), processors


def test_each_algorithm_has_its_own_buffer_schedule_and_memory():
    agent, processors = make_two(Two)
    agent.run(Countdown(6), 1)
    first, second = (processors[name].submitted for name in ("first", "second"))
    assert [rollout.env_steps for rollout, _, _ in first] == [2, 2, 2]
    assert [rollout.env_steps for rollout, _, _ in second] == [3, 3]
    assert [rollout.states["m"].item() for rollout, _, _ in first] == [0, 2, 4]
    hints = [list(rollout.inputs["hint"][:, 0]) for rollout, _, _ in second]
    assert hints == [[1, 2, 3], [4, 5, 6]]


def test_inputs_that_are_no_observations_stay_as_they_were_behind_the_last_step():
    agent, processors = make_two(Two)
    agent.run(Countdown(3, "truncated"), 1)
    ((rollout, _, _),) = processors["second"].submitted
    np.testing.assert_array_equal(rollout.next_inputs["hint"][:, 0], [2, 3, 3])
    np.testing.assert_array_equal(rollout.next_inputs["observation"][:, 0, 0], [11, 12, 13])


@pytest.mark.parametrize(("agent_class", "main"), [(Two, "first"), (SecondIsMain, "second")])
def test_one_algorithm_counts_steps_and_episodes_for_all(agent_class, main):
    agent, processors = make_two(agent_class, (3, 3))
    agent.run(Countdown(3), 1)
    for name, processor in processors.items():
        ((_, episodes, env_steps),) = processor.submitted
        assert (episodes, env_steps) == (([Episode(6.0, 3)], 3) if name == main else ([], 0))


def test_the_agent_waits_for_every_algorithm():
    agent, processors = make_two(Two, (1, 9))
    done = []
    processors["first"].submit = lambda rollout, episodes, on_done, *rest: done.append(on_done)
    agent.observe({"observation": np.zeros((1, 1))})
    actions = None
    while actions is None:
        request = agent.request()
        actions = agent.take(agent.helpers[request.algorithm].answer(request))
    agent.observe({"observation": np.zeros((1, 1))}, np.ones((1, 1)))
    assert agent.waiting
    done[0]()
    assert not agent.waiting


class SplitAgent(SimpleRLAgent):
    """Stores in its first slot only."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.apart = self._split(ONLY_NAME)

    def _cts_store_data(self, asked, rewards, next_alive, next_observations, finals):
        request, prediction = asked[ONLY_NAME]
        inputs = {name: array[:1] for name, array in request.inputs.items()}
        following = {name: array[:1] for name, array in next_observations.items()}
        self.apart[0].add_actions(inputs, {}, prediction.rows(0, 1))
        self.apart[0].add_outcome(rewards[:1], next_alive[:1], following)


def test_slots_that_store_apart_are_waited_for_and_counted_apart():
    processor = CountingProcessor()
    done = []
    processor.submit = lambda rollout, episodes, on_done, *rest: done.append(rollout)
    helper = OnlineHelper(processor, 2, 1, max_wait_sec=60)
    agent = SplitAgent({ONLY_NAME: helper}, 2)
    observations = {"observation": np.zeros((2, 1))}
    agent.observe(observations)
    for _ in range(2):
        agent.request()
        agent.take(Prediction({"action": np.arange(2)}, {}, np.zeros(2, np.float32), 0))
        agent.observe(observations, np.ones((2, 1)))
        assert agent.waiting
    (rollout,) = done
    assert rollout.actions["action"].shape == (1, 1)
    assert agent.discarded_rollouts == 1


# The hierarchical agent.


class CueEnv:
    """One of two cues for `length` steps; the action that equals it gives 1, the other -1."""

    def __init__(self, length, end="terminated", seed=0):
        self.length, self.end = length, end
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.cue, self.t = int(self.random.integers(2)), 0
        return np.eye(2, dtype=np.float32)[self.cue], {}

    def step(self, action):
        self.t += 1
        ended = self.t == self.length
        observation = np.eye(2, dtype=np.float32)[self.cue] + self.t
        reward = 1.0 if action == self.cue else -1.0
        ends = (ended, False) if self.end == "terminated" else (False, ended)
        return observation, reward, *ends, {}


class SpyHost:
    """A host whose processors keep what they are to learn from."""

    def __init__(self, server, config=CONFIG):
        self.host = make_host(config, server)
        self.host.make_agent().close()
        self.rollouts = {name: [] for name in self.host._processors}
        for name, processor in self.host._processors.items():
            processor.submit = self.keep(name, processor.submit)

    def keep(self, name, submit):
        def spy(rollout, *rest):
            self.rollouts[name].append(rollout)
            submit(rollout, *rest)

        return spy


def test_goals_are_stored_when_they_end_with_the_rewards_summed_until_then():
    config = load("config").Config(rollout_steps={"goal": 4, "control": 10}, learning_rate=0)
    with serve(config) as server:
        spy = SpyHost(server, config)
        (total,) = spy.host.make_agent().run(CueEnv(10, "truncated"), 1)
        second = spy.host.make_agent()
        second.run(CueEnv(2), 4)
        (control,) = spy.rollouts["control"]
        rewards = control.rewards[:, 0, 0]
        assert rewards.sum() == total
        # 4 + 4 + 2 steps in the first episode; the second agent's goals last 2 steps each.
        (goal,) = spy.rollouts["goal"]
        assert goal.rewards.shape == (4, 1, 1)
        assert set(goal.rewards[:, 0, 0]) <= {-2.0, 0.0, 2.0}
        np.testing.assert_array_equal(goal.next_alive[:, 0], [0, 0, 0, 0])
        third = spy.host.make_agent()
        spy.rollouts["control"].clear()
        third.run(CueEnv(10, "truncated"), 2)
        goal = spy.rollouts["goal"][-1]
        one, two = (rollout.rewards[:, 0, 0] for rollout in spy.rollouts["control"])
        want = [one[:4].sum(), one[4:8].sum(), one[8:].sum(), two[:4].sum()]
        np.testing.assert_array_equal(goal.rewards[:, 0, 0], want)
        np.testing.assert_array_equal(goal.next_alive[:, 0], [1, 1, -1, 1])
        seen = spy.rollouts["control"][0].inputs["observation"][:, 0]
        np.testing.assert_array_equal(goal.inputs["observation"][:3, 0], seen[[0, 4, 8]])
        finals = goal.next_inputs["observation"][2, 0]
        np.testing.assert_array_equal(finals, seen[0] + 10)
        # Each step is acted on with the goal that was chosen for it.
        hints = spy.rollouts["control"][0].inputs["goal"][:, 0].argmax(-1)
        chosen = goal.actions["goal"][:3, 0]
        np.testing.assert_array_equal(hints, np.repeat(chosen, [4, 4, 2]))
        spy.host.close()


def test_the_hierarchy_learns_in_a_script_without_servers():
    config = load("config").Config()
    store = make_store(load("algorithm").make_algorithms(config, 0))
    with ParameterServer(store, metrics=Recorder()) as server:
        host = make_host(config, server)
        agent = host.make_agent()
        returns = agent.run(CueEnv(6), 800)
        assert np.mean(returns[:50]) < 3
        assert np.mean(returns[-50:]) > 5
        player = host.make_agent(learning=False)
        version, steps = server.version, server.global_t
        assert player.run(CueEnv(6), 20) == [6.0] * 20
        assert (server.version, server.global_t) == (version, steps)
        host.close()
    assert abs(steps - 4800) < 8 + 6


def test_one_item_is_predicted_without_its_slot_axis():
    with serve(CONFIG) as server:
        host = make_host(CONFIG, server)
        agent = host.make_agent()
        answer = agent.helpers["goal"].predict({"observation": np.ones(2, np.float32)}, {})
        assert answer.actions["goal"].shape == ()
        host.close()
