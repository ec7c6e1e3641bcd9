"""GradientLearner with gradients in NumPy: counting, phases, data handlers and hooks."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from support.bridge import make_backend
from support.learning import STEPS, make_gradient, make_rewarded
from support.requests import make_requests
from support.threads import WAIT_SEC, Caller, wait_until

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.base_learner import NO_HOOKS
from relaax_like.config.plan import OnPolicy
from relaax_like.core.records import Episode, LearnerUpdate, LearnRequest
from relaax_like.experience.collector import Collector, TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.compiled_algorithm import Gradient
from relaax_like.learn.gradient_learner import GradientLearner
from relaax_like.learn.hooks import POSITIONS, LearnerHook
from relaax_like.parameter_server.stop_condition import StopCondition

PLAN = OnPolicy(rollout_steps=STEPS)


class Gated:
    """Fails at the reward 1, and makes a gradient of NaN at the reward 2; waits for its gate."""

    statistics: tuple[str, ...] = ()
    wants_rows = is_joint = False

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.calls = 0

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        self._shapes = [value.shape for value in values]

    def make_arguments(self, rollout: Rollout, next_alive: np.ndarray) -> dict[str, np.ndarray]:
        return {"rewards": rollout.rewards, "next_alive": {"alive": next_alive}}

    def compute_updates(
        self, draw: object, *, rewards: np.ndarray, **_: object
    ) -> Iterator[Gradient]:
        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        self.calls += 1
        if (rewards == 1).any():
            raise ValueError("failed")
        value = np.nan if (rewards == 2).any() else 1.0
        arrays = [np.full(shape, value, np.float32) for shape in self._shapes]
        yield make_gradient(arrays, {"cost": 3.0}, {"error": 2 * rewards[..., 0]})

    def review(self, numbers: Mapping[str, Any], updates: int) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("reward", [1.0, 2.0])
def test_an_iteration_that_fails_is_skipped_and_its_steps_are_counted_once(reward: float) -> None:
    compiled, answers = Gated(), list[LearnerUpdate]()
    with make_backend() as backend:
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        learner.start(answers.append)
        # The first by itself, as it is being learned from; then four together, and the last one.
        for number, one in enumerate([reward, 0.0, reward, 0.0, 0.0, 0.0], 1):
            rollout = make_rewarded(1, one)
            if number == 6:
                compiled.gate.set()
                wait_until(lambda: sum(len(one.numbers) for one in answers) == 5, "the answers")
                assert backend.version == 0
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            assert compiled.begun.wait(WAIT_SEC)
        wait_until(lambda: sum(len(one.numbers) for one in answers) == 6, "all answers")
        learner.stop()
        assert compiled.calls == 3
        assert backend.version == 1
        assert backend.global_t == 6 * STEPS


def test_episodes_of_an_iteration_whose_gradient_is_refused_are_counted_once() -> None:
    compiled, answers = Gated(), list[LearnerUpdate]()
    with make_backend() as backend:
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        learner.start(answers.append)
        # The first by itself; then two together, whose push is refused.
        for number, reward in enumerate([0.0, 0.0, 2.0], 1):
            rollout, episode = make_rewarded(1, reward), Episode(float(number), 1)
            learner.submit(LearnRequest(number, rollout, (episode,), rollout.env_steps))
            assert compiled.begun.wait(WAIT_SEC)
        compiled.gate.set()
        wait_until(lambda: sum(len(one.numbers) for one in answers) == 3, "all answers")
        learner.stop()
        assert (backend.version, backend.global_t) == (1, 3 * STEPS)
        assert (backend.status().episodes, backend.status().mean_return) == (3, 2.0)


class TwoPhases(Gated):
    """The second gradient fails at the reward 3, and is otherwise twice the values."""

    def compute_updates(
        self, draw: object, *, rewards: np.ndarray, **_: object
    ) -> Iterator[Gradient]:
        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        ones = [np.ones(shape, np.float32) for shape in self._shapes]
        yield make_gradient(ones, {"cost": 1.0}, ends_update=False, is_last=False)
        self.calls += 1
        if (rewards == 3).any():
            raise ValueError("failed")
        yield make_gradient([2 * value for value in self.values], {"cost": 2.0})

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        super().set_values(values)
        self.values = values


def test_a_phase_meets_the_values_that_the_one_before_has_led_to() -> None:
    compiled, answers = TwoPhases(), list[LearnerUpdate]()
    compiled.gate.set()
    with make_backend(stop=StopCondition(STEPS)) as backend:
        before = backend.get_values()
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        learner.start(answers.append)
        rollout = make_rewarded(1, 0.0)
        learner.submit(LearnRequest(1, rollout, (), rollout.env_steps))
        wait_until(lambda: 1 in answers[-1].numbers, "the answer")
        learner.stop()
        # The steps end the training, but not before the second phase.
        assert (backend.version, backend.finished != "") == (2, True)
        for old, new in zip(before, backend.get_values(), strict=True):
            between = old - 1.0  # plain gradient descent with rate 1
            np.testing.assert_allclose(new, between - 2 * between, rtol=1e-5)


def test_an_update_whose_second_phase_fails_is_not_made_again() -> None:
    compiled, answers = TwoPhases(), list[LearnerUpdate]()
    with make_backend() as backend:
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        learner.start(answers.append)
        for number, reward in enumerate([0.0, 3.0, 0.0], 1):  # the last two together
            rollout = make_rewarded(1, reward)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            assert compiled.begun.wait(WAIT_SEC)
        compiled.gate.set()
        wait_until(lambda: sum(len(one.numbers) for one in answers) == 3, "all answers")
        learner.stop()
        assert (compiled.calls, backend.version, backend.global_t) == (2, 3, 3 * STEPS)


def test_an_iteration_that_is_too_old_is_dropped_and_its_steps_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compiled, answers = Gated(), list[LearnerUpdate]()
    compiled.gate.set()
    with make_backend() as backend:
        learner = GradientLearner(
            compiled, PLAN, InProcessClient(backend), make_requests(PLAN, max_lag=1)
        )  # type: ignore[arg-type]
        learner.start(answers.append)
        for number in range(1, 5):  # all are of version 0, which has two successors by the third
            rollout = make_rewarded(1, 0.0)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            wait_until(lambda n=number: n in answers[-1].numbers, "the answer")  # type: ignore[misc]
        learner.stop()
        assert (compiled.calls, backend.version, backend.global_t) == (2, 2, 4 * STEPS)
    assert "its oldest step is 2 version(s) old, but learner.max_lag is 1" in caplog.text


def test_an_iteration_that_cannot_be_put_together_is_answered_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled, answers = Gated(), list[LearnerUpdate]()
    compiled.gate.set()
    with make_backend() as backend:
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        take, failures = Collector.get_training_data, [MemoryError("no room")]

        def fail_once(collector: Collector, timeout_sec: float | None = 0.0) -> object:
            data = take(collector, timeout_sec)  # which is lost
            if data is not None and failures:
                raise failures.pop()
            return data

        monkeypatch.setattr(Collector, "get_training_data", fail_once)
        learner.start(answers.append)
        for number in (1, 2):
            rollout = make_rewarded(1, 0.0)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            wait_until(lambda n=number: n in answers[-1].numbers, "the answer")  # type: ignore[misc]
        learner.stop()
        assert (backend.version, backend.global_t) == (1, 2 * STEPS)
    assert "could not learn from an iteration (1 so far): MemoryError('no room')" in caplog.text


class ThreeUpdates(Gated):
    """An iteration of three updates."""

    def compute_updates(
        self, draw: object, *, rewards: np.ndarray, **_: object
    ) -> Iterator[Gradient]:
        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        for index in range(3):
            self.calls += 1
            ones = [np.ones(shape, np.float32) for shape in self._shapes]
            yield make_gradient(ones, {"cost": 1.0}, is_last=index == 2)


def test_a_stop_ends_an_iteration_after_the_update_at_hand_and_counts_its_steps() -> None:
    compiled, answers = ThreeUpdates(), list[LearnerUpdate]()
    with make_backend() as backend:
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        learner.start(answers.append)
        rollout = make_rewarded(1, 0.0)
        learner.submit(LearnRequest(1, rollout, (), rollout.env_steps))
        assert compiled.begun.wait(WAIT_SEC)
        stopping = Caller(learner.stop)
        wait_until(lambda: learner._sink.is_ending, "the stop")
        compiled.gate.set()
        stopping.get()
        assert (compiled.calls, backend.version, backend.global_t) == (1, 1, STEPS)


def test_after_the_end_requests_are_counted_without_a_gradient() -> None:
    compiled, answers = Gated(), list[LearnerUpdate]()
    compiled.gate.set()
    with make_backend(stop=StopCondition(STEPS)) as backend:
        learner = GradientLearner(compiled, PLAN, InProcessClient(backend), make_requests(PLAN))  # type: ignore[arg-type]
        learner.start(answers.append)
        for number in (1, 2):
            rollout = make_rewarded(1, 0.0)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            wait_until(lambda n=number: n in answers[-1].numbers, "the answer")  # type: ignore[misc]
        learner.submit(LearnRequest(3, None, (), 2))
        learner.stop()
        assert (compiled.calls, backend.version, backend.global_t) == (1, 1, 2 * STEPS + 2)


class FiveOfOne:
    def __init__(self) -> None:
        self.after: list[tuple[TrainingData, Mapping[str, np.ndarray]]] = []

    def after_interact(self, rollout: Rollout) -> list[Rollout]:
        return [rollout] * 5

    def after_learn(self, data: TrainingData, results: Mapping[str, np.ndarray]) -> None:
        self.after.append((data, results))


def test_what_a_data_handler_makes_of_a_rollout_does_not_multiply_its_steps() -> None:
    # covers J5, J7
    compiled, handler, answers = Gated(), FiveOfOne(), list[LearnerUpdate]()
    compiled.gate.set()
    with make_backend() as backend:
        learner = GradientLearner(
            compiled, PLAN, InProcessClient(backend), make_requests(PLAN, handler)
        )  # type: ignore[arg-type]
        learner.start(answers.append)
        rollout = make_rewarded(2, 0.5)
        learner.submit(LearnRequest(7, rollout, (), rollout.env_steps))
        wait_until(lambda: bool(handler.after), "the data handler")
        learner.stop()
        assert (backend.version, backend.global_t) == (1, 2 * STEPS)
    ((data, results),) = handler.after
    assert data.rollout.slots == 10
    assert data.keys[:, 1].tolist() == list(range(10))
    np.testing.assert_array_equal(results["error"], 2 * data.rollout.rewards[..., 0])
    assert results["cost"] == 3.0


@pytest.mark.parametrize("method", ["after_interact", "after_learn"])
def test_a_data_handler_that_fails_ends_the_learning(method: str) -> None:
    def fail(*_: object) -> None:
        raise ValueError("wrong")

    handler = type("Failing", (FiveOfOne,), {method: fail})()
    compiled, failures, answers = Gated(), list[Exception](), list[LearnerUpdate]()
    compiled.gate.set()
    with make_backend() as backend:
        learner = GradientLearner(
            compiled,  # type: ignore[arg-type]
            PLAN,
            InProcessClient(backend),
            make_requests(PLAN, handler),
            on_failure=failures.append,
        )
        learner.start(answers.append)
        for number in (1, 2):
            rollout = make_rewarded(1, 0.0)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            wait_until(lambda n=number: n in answers[-1].numbers, "the answer")  # type: ignore[misc]
        learner.stop()
    (failure,) = failures
    place = f"{__file__}:{fail.__code__.co_firstlineno + 1}"
    assert str(failure) == f"{place}: ValueError: wrong"


class NoteHook(LearnerHook):
    def __init__(self, notes: list[tuple[str, int]], position: str):
        super().__init__("note", 20, position=position)
        self._notes = notes

    def __call__(self, engine: BaseLearner) -> None:
        self._notes.append((self.position, engine.updates))


def test_hooks_are_called_around_each_gradient() -> None:
    # covers D10
    compiled, notes, answers = Gated(), list[tuple[str, int]](), list[LearnerUpdate]()
    compiled.gate.set()
    base = BaseLearner({"hook": NO_HOOKS}, exp_dir="unused")
    for position in POSITIONS:
        base.register_hook(NoteHook(notes, position))
    with make_backend() as backend:
        learner = GradientLearner(
            compiled, PLAN, InProcessClient(backend), make_requests(PLAN), learner=base
        )  # type: ignore[arg-type]
        learner.start(answers.append)
        for number in (1, 2):
            rollout = make_rewarded(1, 0.0)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            wait_until(lambda n=number: n in answers[-1].numbers, "the answer")  # type: ignore[misc]
        learner.stop()
        learner.stop()
    iterations = [("before_iter", 0), ("after_iter", 1), ("before_iter", 1), ("after_iter", 2)]
    assert notes == [("before_run", 0), *iterations, ("after_run", 2)]
