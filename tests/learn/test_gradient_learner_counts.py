"""GradientLearner counts the steps of each request once, whatever becomes of its gradient."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from support.bridge import make_backend
from support.learning import STEPS, make_rewarded
from support.threads import WAIT_SEC, wait_until

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.gradient_learner import GradientLearner


class Task:
    """Fails at the reward 1, and makes a gradient of NaN at the reward 2; waits for its gate."""

    statistics: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.calls = 0

    def set_values(self, values: Sequence[np.ndarray]) -> None:
        self._shapes = [value.shape for value in values]

    def make_arguments(self, rollout: Rollout, next_alive: np.ndarray) -> dict[str, np.ndarray]:
        return {"rewards": rollout.rewards}

    def compute_gradients(
        self, *, rewards: np.ndarray, **_: object
    ) -> tuple[list[np.ndarray], dict[str, float]]:
        assert self.gate.wait(WAIT_SEC)
        self.calls += 1
        if (rewards == 1).any():
            raise ValueError("failed")
        value = np.nan if (rewards == 2).any() else 1.0
        return [np.full(shape, value, np.float32) for shape in self._shapes], {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("reward", [1.0, 2.0])
def test_a_request_that_fails_alone_or_with_others_is_counted_once(reward: float) -> None:
    task, answers = Task(), list[LearnerUpdate]()
    with make_backend() as backend:
        learner = GradientLearner(task, InProcessClient(backend))  # type: ignore[arg-type]
        learner.start(answers.append)
        # The first by itself, as it is being learned from; then four together, which fail as such.
        for number, one in enumerate([reward, 0.0, reward, 0.0, 0.0], 1):
            rollout = make_rewarded(1, one)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
        task.gate.set()
        wait_until(lambda: sum(len(one.numbers) for one in answers) == 5, "all answers")
        learner.stop()
        assert backend.version == 3
        assert backend.global_t == 5 * STEPS


def test_after_the_end_requests_are_counted_without_a_gradient() -> None:
    task, answers = Task(), list[LearnerUpdate]()
    task.gate.set()
    with make_backend(max_global_step=STEPS) as backend:
        learner = GradientLearner(task, InProcessClient(backend))  # type: ignore[arg-type]
        learner.start(answers.append)
        for number in (1, 2):
            rollout = make_rewarded(1, 0.0)
            learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))
            wait_until(lambda n=number: n in answers[-1].numbers, "the answer")  # type: ignore[misc]
        learner.submit(LearnRequest(3, None, (), 2))
        learner.stop()
        assert (task.calls, backend.version, backend.global_t) == (1, 1, 2 * STEPS + 2)
