"""The batch-native agent against a processor that records what it gets."""

# covers F12, F13, F15, F16, F18, F22

import time

import numpy as np
import pytest
from support.episodes import list_ended

from relaax_like.agent.batch_agent import SimpleRLAgent
from relaax_like.agent.history import ObservationHistory
from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.config.plan import Plan
from relaax_like.core.prediction import ONLY_NAME, Prediction
from relaax_like.core.records import Episode, Playing
from relaax_like.experience.rollout import Executed
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.slots import SlotSpec
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.wire.spaces import Discrete

SLOTS = 2


class RecordingProcessor:
    """Keeps what is submitted; the test says when it has been learned from."""

    keeps_requests = False

    name = "processor"

    def __init__(self, state_shapes=None):
        self.submitted = []
        self.counted = []  # steps of each that was submitted
        self.reported = []
        self.unlearned = []  # steps of each report of a player
        self.refreshes = 0
        self.state_shapes = state_shapes or {}
        self.reward_columns = {"reward": slice(0, 1)}
        self.input_shapes = {"observation": (1,)}

    def submit(self, rollout, episodes, on_done, env_steps, agent="", is_urgent=False):
        self.submitted.append((rollout, list_ended(episodes), on_done))
        self.counted.append(env_steps)

    def name_agent(self):
        return "agent"

    def leave(self, agent):
        pass

    def report(self, episodes, env_steps):
        self.reported.append((list_ended(episodes), env_steps))
        self.unlearned += [r.unlearned_steps for r in episodes if isinstance(r, Playing)]

    def refresh_soon(self):
        self.refreshes += 1


def make_agent(
    processor, steps, learning=True, reward_shaping_f=None, on_learned=lambda: None, **options
):
    helper = OnlineHelper(processor, SLOTS, steps, **options)
    helper.on_learned = on_learned
    return SimpleRLAgent(
        {ONLY_NAME: helper}, SLOTS, learning=learning, reward_shaping_f=reward_shaping_f
    )


def observe(value):
    return {"x": np.full((SLOTS, 1), value, np.float32)}


def predict(agent, action):
    request = agent.request()
    memory = {k: v + 1 for k, v in request.states.items()}
    actions = {"action": np.full(SLOTS, action)}
    return agent.take(Prediction(actions, memory, np.zeros(SLOTS, np.float32), 3))


def end(terminated=(0, 0), truncated=(0, 0)):
    alive = 1.0 - np.array(terminated) - 2.0 * np.array(truncated)
    return {"rewards": np.ones((SLOTS, 1)), "next_alive": None if all(alive == 1) else alive}


def test_a_rollout_is_submitted_after_t_steps_and_the_agent_waits_for_it():
    processor, woken = RecordingProcessor(), []
    agent = make_agent(processor, 2, on_learned=lambda: woken.append(1))
    agent.observe(observe(0))
    for step in (1, 2):
        assert not agent.waiting
        predict(agent, step)
        agent.observe(observe(step), **end())
    assert agent.waiting
    ((rollout, episodes, on_done),) = processor.submitted
    np.testing.assert_array_equal(rollout.actions["action"], [[1, 1], [2, 2]])
    np.testing.assert_array_equal(rollout.inputs["x"][:, 0, 0], [0, 1])
    np.testing.assert_array_equal(rollout.versions, [3, 3])
    assert episodes == []
    on_done()
    assert not agent.waiting
    assert woken == [1]


def test_termination_truncation_and_going_on_are_told_apart():
    processor = RecordingProcessor()
    agent = make_agent(processor, 2)
    agent.observe(observe(0))
    predict(agent, 1)
    agent.observe(observe(1), **end(terminated=(1, 0)), episodes=[Episode(4.0, 9)])
    predict(agent, 1)
    agent.observe(observe(2), **end(truncated=(0, 1)), final_observations=observe(-7))
    ((rollout, episodes, _),) = processor.submitted
    np.testing.assert_array_equal(rollout.next_alive, [[0, 1], [1, -1]])
    assert rollout.next_inputs["x"][1, 1, 0] == -7
    assert episodes == [Episode(4.0, 9)]


def test_a_step_without_a_next_observation_ends_the_episode_as_in_reward_and_reset():
    processor = RecordingProcessor()
    agent = make_agent(processor, 2)
    agent.observe(observe(0))
    predict(agent, 1)
    agent.observe(None, **end(terminated=(1, 1)))
    agent.observe(observe(5))
    predict(agent, 2)
    agent.observe(observe(6), **end())
    rollout = processor.submitted[0][0]
    np.testing.assert_array_equal(rollout.inputs["x"][:, 0, 0], [0, 5])


def test_memory_begins_anew_where_an_episode_ended_and_nowhere_else():
    agent = make_agent(RecordingProcessor({"h": (1,)}), 9)
    agent.observe(observe(0))
    np.testing.assert_array_equal(agent.request().states["h"], [[0], [0]])
    predict(agent, 0)
    agent.observe(observe(1), **end(terminated=(0, 1)))
    np.testing.assert_array_equal(agent.request().states["h"], [[1], [0]])


def test_slots_that_begin_anew_remember_nothing():
    """As when a tester plays once more: whatever was under way does not count."""
    processor = RecordingProcessor({"h": (1,)})
    slots = BatchSlots(
        make_agent(processor, 9, learning=False),
        processor,
        SlotSpec({}, {"action": Discrete(n=2)}, SLOTS, "one", exploit=True),
        Plan(),
        history=ObservationHistory(2, SLOTS),
    )
    for value in (1, 2, 7):
        begins = value != 2
        rewards = None if begins else np.ones((SLOTS, 1))
        slots.observe(ReceivedStep(observations=observe(value), rewards=rewards))
        request = slots.request()
        before = [value if begins else 1, value]
        np.testing.assert_array_equal(request.inputs["x"], [before] * SLOTS)
        np.testing.assert_array_equal(request.states["h"], [[0 if begins else 1]] * SLOTS)
        memory = {"h": request.states["h"] + 1}
        actions = {"action": np.zeros(SLOTS, np.int64)}
        slots.decide(Prediction(actions, memory, np.zeros(SLOTS, np.float32), 3))


def test_reward_shaping_comes_before_storing():
    processor = RecordingProcessor()
    agent = make_agent(processor, 1, reward_shaping_f=lambda r: 10 * r - 1)
    agent.observe(observe(0))
    predict(agent, 0)
    agent.observe(observe(1), **end())
    np.testing.assert_array_equal(processor.submitted[0][0].rewards, np.full((1, SLOTS, 1), 9))


def test_without_learning_nothing_is_stored_and_the_best_actions_are_asked_for():
    processor = RecordingProcessor()
    agent = make_agent(processor, 1, learning=False)
    agent.observe(observe(0))
    assert agent.request().exploit
    predict(agent, 0)
    agent.observe(observe(1), **end())
    assert processor.submitted == []
    assert not agent.waiting


def test_without_learning_newer_values_are_asked_for_at_each_episodes_end_and_not_waited_for():
    processor = RecordingProcessor()
    agent = make_agent(processor, 1, learning=False)
    agent.observe(observe(0))
    predict(agent, 0)
    agent.observe(observe(1), **end(terminated=(1, 0)), episodes=[Episode(1.0, 1)])
    assert processor.refreshes == 1
    assert not agent.waiting


def test_an_agent_may_act_on_for_as_many_rollouts_as_it_was_told():
    processor = RecordingProcessor()
    agent = make_agent(processor, 1, ahead=1)
    agent.observe(observe(0))
    predict(agent, 0)
    agent.observe(observe(1), **end())
    assert not agent.waiting
    predict(agent, 1)
    agent.observe(observe(2), **end())
    assert agent.waiting
    processor.submitted[0][2]()
    assert not agent.waiting
    assert agent.discarded_rollouts == 0


def test_refused_rollouts_of_all_agents_cause_one_line_per_second_at_most(caplog, monkeypatch):
    monkeypatch.setattr(OnlineHelper, "_next_refused_line", 0.0)
    for _ in range(5):
        agent = make_agent(RecordingProcessor(), 1, ahead=9)
        agent.observe(observe(0))
        for step in range(6):
            predict(agent, step)
            rewards = np.full((SLOTS, 1), 1e18 if step % 2 else 1.0)
            agent.observe(observe(step), **{**end(), "rewards": rewards})
        assert agent.helpers[ONLY_NAME].refused_rollouts == 3
    assert 1 <= caplog.text.count("discarding a rollout") <= 2


@pytest.mark.parametrize("steps", [1, 4])
def test_unfinished_steps_are_counted(steps):
    agent = make_agent(RecordingProcessor(), 9)
    agent.observe(observe(0))
    for step in range(steps):
        predict(agent, 0)
        agent.observe(observe(step), **end())
    assert agent.helpers[ONLY_NAME].unfinished_steps == steps * SLOTS


def test_a_hanging_server_is_waited_for_a_while_only_and_rollouts_are_discarded_until_it_is_back():
    processor = RecordingProcessor()
    agent = make_agent(processor, 1, max_wait_sec=0.0)
    agent.observe(observe(0))
    for step in range(3):
        predict(agent, step)
        agent.observe(observe(step), **end())
        assert not agent.waiting
    assert len(processor.submitted) == 1
    assert agent.discarded_rollouts == 2
    assert processor.reported == []  # nothing more for a learner that is behind
    processor.submitted[0][2]()
    predict(agent, 3)
    agent.observe(observe(4), **end())
    assert len(processor.submitted) == 2
    # The steps of the discarded rollouts go with the next one.
    assert processor.counted == [SLOTS, 3 * SLOTS]


def test_unfinished_and_discarded_steps_are_reported_at_the_end_once():
    processor = RecordingProcessor()
    agent = make_agent(processor, 2, max_wait_sec=0.0)
    agent.observe(observe(0))
    for step in range(5):  # a rollout, one that is discarded, and half of one
        predict(agent, step)
        agent.observe(observe(step), **end())
    agent.close()
    assert processor.counted == [2 * SLOTS]
    assert processor.reported == [([], 3 * SLOTS)]
    agent.close()
    assert len(processor.reported) == 1


def test_steps_of_an_agent_that_leaves_are_not_learned_from_if_the_learner_keeps_requests():
    processor = RecordingProcessor()
    processor.keeps_requests = True
    agent = make_agent(processor, 2)
    agent.observe(observe(0))
    for step in range(3):
        predict(agent, step)
        ended = {"episodes": [Episode(1.0, 3)]} if step == 2 else {}
        agent.observe(observe(step), **end((ended != {}, 0)), **ended)
        if step == 1:
            processor.submitted[0][2]()
    agent.close()
    assert processor.counted == [2 * SLOTS]
    assert processor.reported == [([], 0)]
    assert [report for report in processor.unlearned if report] == [SLOTS]


def test_of_the_episodes_of_discarded_rollouts_the_newest_are_reported(monkeypatch):
    monkeypatch.setattr("relaax_like.agent.online_helper.MAX_EPISODES", 3)
    processor = RecordingProcessor()
    agent = make_agent(processor, 1, max_wait_sec=0.0)
    agent.observe(observe(0))
    for step in range(5):
        predict(agent, step)
        agent.observe(observe(step), **end((1, 0)), episodes=[Episode(float(step), 1)])
    processor.submitted[0][2]()
    predict(agent, 5)
    agent.observe(observe(6), **end((1, 0)), episodes=[Episode(9.0, 1)])
    assert [episode.episode_return for episode in processor.submitted[1][1]] == [2, 3, 4, 9]


# Slots that are absent, or that something else decides for.


FIRST = np.array([True, False])


def make_with_memory(overridden="cut", **options):
    processor = RecordingProcessor({"m": (1,)})
    plan = Plan()
    plan.overridden = overridden
    return make_agent(processor, 4, plan=plan, **options), processor


def predict_memory(agent):
    """Answers a request; returns the memory that it came with, of both slots."""
    request = agent.request()
    memory = {name: array + 1 for name, array in request.states.items()}
    actions = {"action": np.zeros(SLOTS, np.int64)}
    agent.take(Prediction(actions, memory, np.zeros(SLOTS, np.float32), 3))
    return request.states["m"][:, 0].tolist()


def test_the_memory_of_an_absent_slot_does_not_advance():
    agent, _ = make_with_memory()
    agent.observe(observe(0))
    assert predict_memory(agent) == [0, 0]
    agent.observe(observe(1), **end(), absent=FIRST)
    assert predict_memory(agent) == [1, 1]
    agent.observe(observe(2), **end(), absent=FIRST)
    assert predict_memory(agent) == [1, 2]
    agent.observe(observe(3), **end())
    assert predict_memory(agent) == [1, 3]
    agent.observe(observe(4), **end())
    assert predict_memory(agent) == [2, 4]


@pytest.mark.parametrize(
    ("overridden", "learning", "memory"),
    [("cut", True, [0, 1]), ("only", True, [1, 1]), ("cut", False, [1, 1])],
)
def test_memory_begins_anew_where_a_trace_is_cut(overridden, learning, memory):
    agent, _ = make_with_memory(overridden, learning=learning)
    agent.observe(observe(0))
    predict_memory(agent)
    executed = Executed({"action": np.ones(SLOTS, np.int64)}, FIRST)
    agent.observe(observe(1), **end(), executed=executed)
    assert predict_memory(agent) == memory


def test_steps_are_counted_as_they_were_taken():
    agent, processor = make_with_memory()
    agent.observe(observe(0))
    for step in range(1, 5):
        predict_memory(agent)
        absent = FIRST if step in (1, 2) else None
        executed = Executed({"action": np.ones(SLOTS, np.int64)}, FIRST) if step == 4 else None
        agent.observe(observe(step), **end(), absent=absent, executed=executed)
    ((rollout, _, _),) = processor.submitted
    assert rollout.valid.tolist() == [[True, True], [False, True], [False, True], [False, True]]
    assert processor.counted == [6]
    predict_memory(agent)
    agent.observe(observe(5), **end())
    agent.close()
    assert processor.reported == [([], 2)]


def test_a_rollout_without_anything_to_learn_from_is_only_counted():
    agent, processor = make_with_memory("only")
    agent.observe(observe(0))
    for step in range(4):
        predict_memory(agent)
        agent.observe(observe(step), **end())
    assert processor.submitted == []
    assert processor.reported == [([], 4 * SLOTS)]
    assert not agent.waiting


def test_a_slow_environments_steps_are_submitted_in_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    processor = RecordingProcessor()
    agent = make_agent(processor, 8, ahead=9, max_segment_sec=3.0)
    agent.observe(observe(0))
    for step in range(1, 9):
        predict(agent, 1)
        now[0] += 1.0
        agent.observe(observe(step), **end())
    assert processor.counted == [4 * SLOTS, 4 * SLOTS]
    assert [rollout.env_steps for rollout, *_ in processor.submitted] == processor.counted
