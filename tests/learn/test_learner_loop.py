"""LearnerLoop and SerialLearner: iterations in, numbered publishes out. covers J3, J4, J8"""

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.learning import (
    COLUMNS,
    ENV_STEPS,
    STEPS,
    PlainPolicy,
    assert_equal,
    make_experiment,
    make_plain_learner,
    make_plain_server,
    make_rewarded,
    make_server,
    unpack,
)
from support.rollouts import make_rollout
from support.threads import Caller

from relaax_like.core.metrics import Metrics
from relaax_like.core.records import Episode, LearnerUpdate, LearnRequest, Origin, Received
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.learners import make_iteration_learner
from relaax_like.learn import agent_source, tally
from relaax_like.learn.means import Means
from relaax_like.learn.serial_learner import SerialLearner
from relaax_like.learn.updates import NotFiniteError
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.wire.errors import (
    CollectorClosedError,
    CollectorFullError,
    ConfigError,
    InvalidInputError,
    LeasedError,
    ServerUnavailableError,
)


class ListMetrics(Metrics):
    def __init__(self) -> None:
        self.points: list[tuple[str, float]] = []

    def scalar(self, name: str, y: float, x: float | None = None) -> None:
        self.points.append((name, y))


@pytest.fixture
def server() -> Iterator[ParameterServer]:
    with make_plain_server() as server:
        yield server


# With ppo.


@pytest.fixture(scope="module")
def ppo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of ppo and its learner, loaded; they have learned from one iteration."""
    experiment = make_experiment(tmp_path_factory.mktemp("learned"))
    with make_server(experiment) as server:
        learner = make_iteration_learner(experiment, server)
        learner.load()
        learner.source.add(make_rollout(COLUMNS, 0, STEPS), ())
        assert learner.learn() is not None
        yield server, learner
        learner.close()


def test_a_publish_is_what_the_algorithm_has_come_to(ppo: Any) -> None:
    server, learner = ppo
    before, lease = unpack(server), server.lease()
    learner.source.add(make_rollout(3, 1, STEPS), ())
    assert learner.learn() is None
    learner.source.add(make_rollout(2, 2, STEPS), ())  # one column more than the iteration needs
    learned = learner.learn()
    after = server.lease()
    assert (after.number, learned.version, server.version) == (lease.number + 1,) + 2 * (
        lease.version + 1,
    )
    # 20 steps make two minibatches of ten; twice through.
    assert after.steps == {group: steps + 4 for group, steps in lease.steps.items()}
    assert_equal(unpack(server), learner._learner.policy.get_values())
    assert_equal(learned.values, unpack(server))
    assert any((new != old).any() for new, old in zip(unpack(server), before, strict=True))
    optimizers = learner._learner.policy.get_optimizers()
    for group, slots in after.slots.items():
        np.testing.assert_array_equal(slots, optimizers.slots[group])
        assert slots.any()
    assert learner.source.waiting_columns == 1


def test_without_settings_there_are_no_hooks(ppo: Any) -> None:
    _, learner = ppo
    assert not any(learner._learner._hooks.values())


def test_a_rollout_of_another_layout_is_refused(ppo: Any) -> None:
    _, learner = ppo
    rollout = make_rollout(2, 1, STEPS)
    assert learner.source.conform(rollout).slots == 2
    rollout.actions["action"][3, 1] = 2
    with pytest.raises(InvalidInputError, match=r"actions action: .* outside 0\.\.1"):
        learner.source.conform(rollout)


def test_an_iteration_that_is_not_finite_is_not_published(ppo: Any) -> None:
    server, learner = ppo
    before = unpack(server)
    while learner.source.waiting_columns:
        learner.source.add(make_rollout(COLUMNS - learner.source.waiting_columns, 0, STEPS), ())
        before = learner.learn().values
    version = server.version
    learner.source.add(make_rewarded(COLUMNS, float("nan")), ())
    with pytest.raises(NotFiniteError, match=r"NaN or infinity|not finite"):
        learner.learn()
    assert server.version == version
    assert_equal(unpack(server), before)


HANDLER = """

class Handler:
    def __init__(self, config):
        self.config = config
        self.after = []

    def after_interact(self, rollout):
        return dataclasses.replace(rollout, rewards=rollout.rewards + 1.0)

    def after_learn(self, training_data, policy_data):
        self.after.append((training_data, policy_data))


def make_data_handler(config):
    return Handler(config)


class WithRows(PPO):
    def learn(self, batch):
        errors = batch.extras["returns"] - self.model.evaluate(batch).values
        return dataclasses.replace(super().learn(batch), rows={"td_error": errors})


def make_algorithm(config, model, seed):
    return WithRows(model, config, seed)
"""


def test_a_data_handler_of_the_algorithms_folder_changes_what_is_learned_from(
    tmp_path: Path,
) -> None:
    # covers J5, J7
    code = {"mine": "\n\nimport dataclasses\n" + HANDLER, "plain": ""}
    rollout = make_rollout(COLUMNS, 0, STEPS)
    richer = dataclasses.replace(rollout, rewards=rollout.rewards + 1.0)
    learned = {}
    for name, came in (("mine", rollout), ("plain", richer)):
        (tmp_path / name).mkdir()
        experiment = make_experiment(tmp_path / name, code=code[name])
        with make_server(experiment) as server:
            learner = make_iteration_learner(experiment, server)
            learner.load()
            ticket = learner.source.add(came, ())
            assert learner.learn() is not None
            learned[name] = unpack(server)
            handler: Any = learner.source._collector.data_handler
            if name == "mine":
                assert handler.config == experiment.algorithm
                ((data, numbers),) = handler.after
                assert data.keys.tolist() == [[ticket, column] for column in range(COLUMNS)]
                assert numbers["critic"] > 0
                assert numbers["updates"] == 4
                errors = numbers["td_error"]
                assert errors.shape == data.rollout.next_alive.shape
                assert np.isfinite(errors).all()
                assert len(np.unique(errors)) == errors.size
            else:
                assert handler is None
            learner.close()
    assert_equal(learned["mine"], learned["plain"])


# Counting, with a policy that learns in NumPy.


def test_publishes_are_numbered_and_count_steps_and_episodes_once(server: ParameterServer) -> None:
    learner = make_plain_learner(server)
    first = learner.load()
    assert (first.version, first.global_t, first.finished) == (0, 0, "")
    assert_equal(first.values, unpack(server))
    learner.source.add(make_rewarded(2, 1.0), [Episode(5.0, 3)])
    learner.source.add_counts(0, [Episode(7.0, 4)])
    assert learner.learn() is None
    assert (server.version, server.status().episodes) == (0, 0)
    learner.source.add(make_rewarded(2, 2.0), [Episode(9.0, 5)])
    learned = learner.learn()
    assert learned is not None
    assert tuple(learned.numbers) == (1, 2)
    assert (learned.version, learned.global_t) == (1, ENV_STEPS)
    assert (server.status().episodes, server.status().mean_return) == (3, 7.0)
    learner.source.add(make_rewarded(COLUMNS, 0.0), ())
    assert learner.learn() is not None
    assert server.lease().number == 2
    assert (server.global_t, server.status().episodes) == (2 * ENV_STEPS, 3)
    # x -> x / 2 + sum of rewards.
    sums = [STEPS * (2 * 1.0 + 2 * 2.0), 0.0]
    np.testing.assert_array_equal(unpack(server)[0], 0.5 * sums[0] + sums[1])
    assert server.lease().slots["default"].min() == 2.0


def test_what_a_data_handler_makes_of_a_rollout_does_not_multiply_its_steps(
    server: ParameterServer,
) -> None:
    class FiveOfOne:
        def after_interact(self, rollout: Rollout) -> list[Rollout]:
            return [rollout] * 5

        def after_learn(self, training_data: object, policy_data: object) -> None:
            pass

    learner = make_plain_learner(server)
    learner.source._collector.data_handler = FiveOfOne()
    learner.load()
    learner.source.add(make_rewarded(2, 1.0), ())  # ten columns
    updates = [learner.learn() for _ in range(3)]
    assert [update and update.global_t for update in updates] == [10, 10, None]
    assert learner._learner.policy.global_t == 10
    learner.source.add(make_rewarded(1, 1.0), (), env_steps=3)
    learner.close()
    assert (server.version, server.global_t) == (2, 13)


@pytest.mark.parametrize("method", ["after_interact", "after_learn"])
def test_a_data_handler_that_fails_is_named(server: ParameterServer, method: str) -> None:
    def fail(*_: object) -> None:
        raise ValueError("wrong")

    class Unchanged:
        def after_interact(self, rollout: Rollout) -> Rollout:
            return rollout

        def after_learn(self, training_data: object, policy_data: object) -> None:
            pass

    learner = make_plain_learner(server)
    learner.source._collector.data_handler = type("Failing", (Unchanged,), {method: fail})()
    learner.load()

    def use() -> None:
        learner.source.add(make_rewarded(COLUMNS, 1.0), ())
        learner.learn()

    place = f"{__file__}:{fail.__code__.co_firstlineno + 1}"
    with pytest.raises(ConfigError) as caught:
        use()
    assert str(caught.value) == f"{place}: ValueError: wrong"


def test_the_last_counts_are_counted_without_new_values(server: ParameterServer) -> None:
    learner = make_plain_learner(server)
    learner.load()
    learner.source.add_counts(4, [Episode(2.0, 9)])
    before = unpack(server)
    update = learner.count()
    assert update is not None
    assert (update.version, update.global_t, update.values) == (0, 4, None)
    assert learner.count() is None
    learner.source.add(make_rewarded(1, 1.0), (), 5)
    learner.close()
    learner.close()
    assert_equal(unpack(server), before)
    assert server.version == 0
    assert (server.global_t, server.status().episodes) == (9, 1)


def test_a_publication_contains_which_experience_was_counted_and_learned_from(
    server: ParameterServer,
) -> None:
    learner = make_plain_learner(server)
    learner.load()
    for sequence in (1, 2):
        learner.source.add(make_rewarded(3, 1.0), (), 15, Origin("one", 7, sequence))
    learner.source.add_counts(1, (), Origin("other", 3, 4))
    learner.learn()  # all of the first rollout, and a third of the second
    assert server.lease().received == {"one": Received(7, 2, 1), "other": Received(3, 4, 4)}
    learner.source.add(make_rewarded(2, 1.0), (), 10, Origin("other", 3, 5))
    learner.learn()
    assert server.lease().received == {"one": Received(7, 2, 2), "other": Received(3, 5, 5)}
    again = make_plain_learner(server)
    again.load()
    assert again.source.tally.received == server.lease().received


def test_another_learner_goes_on_where_the_first_one_ended(server: ParameterServer) -> None:
    first = make_plain_learner(server)
    first.load()
    for reward in (1.0, 2.0):
        first.source.add(make_rewarded(COLUMNS, reward), ())
        first.learn()
    first.close()
    policy = PlainPolicy()
    second = make_plain_learner(server, policy)
    loaded = second.load()
    assert (loaded.version, loaded.global_t) == (2, 2 * ENV_STEPS)
    assert policy.updates == 2
    second.source.add(make_rewarded(COLUMNS, 3.0), ())
    learned = second.learn()
    assert learned is not None
    assert (learned.version, server.lease().number) == (3, 3)
    want = ENV_STEPS * (0.25 * 1.0 + 0.5 * 2.0 + 3.0)
    np.testing.assert_array_equal(unpack(server)[0], want)


def test_episodes_of_other_threads_are_counted_once(server: ParameterServer) -> None:
    learner = make_plain_learner(server)
    learner.load()
    done = threading.Event()

    def add_counts() -> int:
        count = 0
        while not done.is_set() and count < 30_000:  # a tally keeps 100 000
            learner.source.add_counts(0, [Episode(1.0, 1)])
            count += 1
        return count

    callers = [Caller(add_counts) for _ in range(3)]
    for _ in range(50):
        learner.source.add(make_rewarded(COLUMNS, 0.0), ())
        assert learner.learn() is not None
    done.set()
    added = sum(caller.get() for caller in callers)
    learner.source.add(make_rewarded(COLUMNS, 0.0), ())
    learner.learn()
    assert server.status().episodes == added


def test_episodes_that_are_never_published_do_not_fill_the_memory(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "_MAX_EPISODES", 10)
    learner = make_plain_learner(server)
    learner.load()
    for number in range(25):
        learner.source.add_counts(0, [Episode(float(number), 1)])
    learner.source.add(make_rewarded(COLUMNS, 0.0), ())
    learner.learn()
    assert (server.status().episodes, server.status().mean_return) == (10, 19.5)


def test_curves_say_what_was_learned_and_where_the_time_went() -> None:
    # covers J9
    metrics = ListMetrics()
    with make_plain_server(metrics=metrics) as server:
        learner = make_plain_learner(server)
        learner.load()
        for reward in (9.0, 1.0, 3.0):  # the first one is recorded at once
            learner.source.add(make_rewarded(COLUMNS, reward), ())
            learner.learn()
        learner.close()  # records what has come since the last second
    points = dict(metrics.points)
    assert points["Optimizer/loss"] == 2.0
    assert points["Time/Timesteps per Iteration"] == ENV_STEPS
    assert points["Time/Sample Time"] >= 0.0
    assert points["Time/Optimize Time"] > 0.0
    assert points["Time/Timesteps per Second"] > 0.0


def test_the_lag_is_that_of_all_samples_and_rates_count_what_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # covers J16
    clock = iter([100.0, 102.0, 106.0, 107.0, 109.0])
    monkeypatch.setattr(agent_source, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    points: dict[str, list[float]] = {"Train/Lag": [], "Time/Sampled Timesteps per Second": []}

    def add(means: Means, numbers: Mapping[str, float], x: float | None = None) -> None:
        for name in points.keys() & numbers:
            points[name].append(numbers[name])

    monkeypatch.setattr(Means, "add", add)
    with make_plain_server() as server:
        learner = make_plain_learner(server)
        learner.load()
        for _ in range(3):  # acted with version 0, all of them
            learner.source.add(make_rewarded(COLUMNS, 0.0), ())
        assert all(learner.learn() is not None for _ in range(3))
        # Learned with version 3: one slot acted with 1, 1, 1, 2, 2, the three of another agent
        # with 3: 3 - (7 + 45) / 20.
        learner.source.add(
            dataclasses.replace(make_rewarded(1, 0.0), versions=np.array([1, 1, 1, 2, 2])), ()
        )
        learner.source.add(
            dataclasses.replace(make_rewarded(3, 0.0), versions=np.full(STEPS, 3)), ()
        )
        assert learner.learn() is not None
    assert points["Train/Lag"] == pytest.approx([0.0, 1.0, 2.0, 0.4])
    # 60 steps came in the first two seconds, none in the next five, 20 in the last two.
    assert points["Time/Sampled Timesteps per Second"] == [30.0, 0.0, 0.0, 10.0]


def test_without_curves_of_times_no_sampling_times_pile_up(server: ParameterServer) -> None:
    loop = make_plain_learner(server, records_times=False)
    loop.load()
    for client in range(100):
        loop.source.add_sampling(f"client-{client}", 1.0)
    loop.source.add(make_rewarded(COLUMNS, 1.0), ())
    assert loop.learn() is not None
    assert "Time/Ideal Sample Rate" not in loop.source.take_curves(1.0)


def test_too_many_rollouts_are_refused_and_none_after_the_end(server: ParameterServer) -> None:
    learner = make_plain_learner(server, capacity=2 * COLUMNS)
    learner.load()
    for _ in range(2):
        learner.source.add(make_rewarded(COLUMNS, 1.0), [Episode(1.0, 1)])
    with pytest.raises(CollectorFullError):
        learner.source.add(make_rewarded(1, 1.0), [Episode(1.0, 1)])
    assert learner.learn() is not None
    assert server.status().episodes == 2  # not that of the rollout that was refused
    learner.source.add(make_rewarded(1, 1.0), ())
    learner.close()
    with pytest.raises(CollectorClosedError):
        learner.source.add(make_rewarded(1, 1.0), ())


def test_the_iteration_that_uses_up_the_budget_is_the_last() -> None:
    with make_plain_server(stop=StopCondition(ENV_STEPS + 1)) as server:
        learner = make_plain_learner(server)
        learner.load()
        finished = []
        for _ in range(2):
            learner.source.add(make_rewarded(COLUMNS, 1.0), ())
            learned = learner.learn()
            assert learned is not None
            finished.append(learned.finished)
        assert finished[0] == ""
        assert "budget" in finished[1]
        # A finished run takes no more values, but counts steps.
        learner.source.add(make_rewarded(COLUMNS, 1.0), [Episode(1.0, 1)])
        learned = learner.learn()
        assert learned is not None
        assert "budget" in learned.finished
        assert (server.version, server.global_t) == (2, 3 * ENV_STEPS)
        assert server.status().episodes == 0
        again = make_plain_learner(server)
        assert "budget" in again.load().finished


def test_a_parameter_server_that_closes_takes_no_publish(server: ParameterServer) -> None:
    learner = make_plain_learner(server)
    learner.load()
    learner.source.add(make_rewarded(COLUMNS, 1.0), ())
    server.close()
    with pytest.raises(ServerUnavailableError, match="is closing"):
        learner.learn()


def test_the_hooks_of_the_end_are_called_although_the_rest_cannot_be_counted(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_plain_learner(server)
    learner.load()
    called: list[str] = []

    def lose() -> None:
        raise LeasedError("another one learns")

    monkeypatch.setattr(learner._learner, "call_hook", called.append)
    monkeypatch.setattr(learner._sink, "close", lose)
    with pytest.raises(LeasedError, match="another one learns"):
        learner.close()
    learner.close()
    assert called == ["after_run"]


# In one thread with its agents.


class Agents:
    """Hears what a learner answers."""

    def __init__(self) -> None:
        self.answers: list[LearnerUpdate] = []

    @property
    def newest(self) -> LearnerUpdate:
        return self.answers[-1]


def test_serially_each_work_is_answered_at_once_and_the_last_of_an_iteration_with_values(
    server: ParameterServer, tmp_path: Path
) -> None:
    agents, learner = Agents(), SerialLearner(make_plain_learner(server))
    learner.start(agents.answers.append)
    assert_equal(agents.newest.values or (), unpack(server))
    learner.submit(LearnRequest(1, make_rewarded(3, 1.0), [Episode(2.0, 4)], env_steps=15))
    assert (tuple(agents.newest.numbers), agents.newest.values) == ((1,), None)
    learner.submit(LearnRequest(2, make_rewarded(3, 2.0), env_steps=15))
    assert tuple(agents.newest.numbers) == (2,)
    # All that was accepted is counted, with the two columns that wait.
    assert (agents.newest.version, agents.newest.global_t) == (1, 10 + 20)
    assert_equal(agents.newest.values or (), unpack(server))
    learner.submit(LearnRequest(3, None, [Episode(4.0, 1)], env_steps=3))
    assert (tuple(agents.newest.numbers), agents.newest.values) == ((3,), None)
    assert (server.global_t, server.status().episodes) == (30, 1)
    # Two iterations at once: the values are those of the second.
    learner.submit(LearnRequest(4, make_rewarded(6, 3.0), env_steps=30))
    assert (agents.newest.version, agents.newest.global_t) == (3, 30 + 3 + 30)
    assert_equal(agents.newest.values or (), unpack(server))
    assert server.status().episodes == 2
    learner.submit(LearnRequest(5, make_rewarded(1, 3.0), env_steps=7))
    learner.stop()
    assert (server.version, server.global_t) == (3, 63 + 7)
    learner.stop()
    assert (server.version, server.global_t) == (3, 63 + 7)


def test_serially_rollouts_after_the_end_are_answered_and_not_learned_from() -> None:
    with make_plain_server(stop=StopCondition(ENV_STEPS)) as server:
        agents, learner = Agents(), SerialLearner(make_plain_learner(server))
        learner.start(agents.answers.append)
        for number in (1, 2):
            rollout = make_rewarded(COLUMNS, 1.0)
            learner.submit(LearnRequest(number, rollout, env_steps=rollout.env_steps))
            assert tuple(agents.newest.numbers) == (number,)
            assert "budget" in agents.newest.finished
        assert server.version == 1
        learner.stop()
        assert server.global_t == 2 * ENV_STEPS
