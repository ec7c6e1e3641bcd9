"""GradientLearner: the order in which it learns. covers F11"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.batch import load, make_config, serve_a2c
from support.rollouts import make_rollout
from support.threads import WAIT_SEC, Caller, wait_until

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.core.records import LearnerUpdate, LearnRequest
from relaax_like.learn import gradient_learner
from relaax_like.learn.computation_task import ComputationTask
from relaax_like.learn.gradient_learner import GradientLearner
from relaax_like.parameter_server.parameter_server import ParameterServer

CONFIG = make_config(layers=(8,))
SLOTS, STEPS = 3, 5
A2C: Any = load("algorithm").A2C


class GatedTask(ComputationTask):
    """Computes gradients while a gate is open, and records the rollouts' slots."""

    def __init__(self, algorithm: Any):
        super().__init__(algorithm)
        self.slots: list[int] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def compute_gradients(self, **batch: Any) -> Any:
        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        self.slots.append(batch["rewards"]["reward"].shape[1])
        return super().compute_gradients(**batch)


class Run:
    """A learner on a parameter server.

    Attributes:
      events: answers to requests, in order.
    """

    def __init__(self, server: ParameterServer, task: ComputationTask):
        self.server = server
        self.client = InProcessClient(server)
        self.events: list[LearnerUpdate] = []
        self.learner = GradientLearner(task, self.client)
        self.learner.start(self._take)

    def _take(self, update: LearnerUpdate) -> None:
        if update.numbers:
            self.events.append(update)

    def submit(self, number: int, slots: int = SLOTS) -> None:
        rollout = make_rollout(slots, number, STEPS)
        self.learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))

    def answered(self) -> list[int]:
        return [number for update in self.events for number in update.numbers]


@contextlib.contextmanager
def running(
    make_task: Callable[..., ComputationTask] = ComputationTask,
) -> Iterator[Run]:
    model = load("model").make_model(CONFIG, 0)
    with serve_a2c(CONFIG) as server:
        run = Run(server, make_task(A2C(model, CONFIG)))
        yield run
        run.learner.stop()


def test_rollouts_behind_one_of_another_size_keep_their_place_and_are_learned_before_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_learner, "_STOP_SEC", WAIT_SEC)
    tasks: list[GatedTask] = []

    def make_task(algorithm: Any) -> GatedTask:
        tasks.append(GatedTask(algorithm))
        return tasks[0]

    with running(make_task=make_task) as run:
        run.submit(1)
        assert tasks[0].begun.wait(WAIT_SEC)
        run.submit(2, slots=8)
        run.submit(3)
        run.learner.submit(LearnRequest(4, None))
        run.submit(5)
        run.submit(6)
        stopping = Caller(run.learner.stop)
        wait_until(lambda: run.learner._queue.qsize() == 6, "the end marker")
        tasks[0].gate.set()
        stopping.get()
        assert run.answered() == [1, 2, 3, 4, 5, 6]
        assert tasks[0].slots == [SLOTS, 8, SLOTS, 2 * SLOTS]
