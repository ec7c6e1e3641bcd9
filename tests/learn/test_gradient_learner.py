"""GradientLearner: the order in which it learns, what it skips, and what ends it. covers F11"""

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.batch import load, make_config, serve_a2c
from support.requests import make_requests
from support.rollouts import make_rollout
from support.threads import WAIT_SEC, Caller, wait_until

from relaax_like.algorithm import Losses
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.plan import OnPolicy
from relaax_like.core.records import LearnerUpdate, LearnRequest, Push, Reply
from relaax_like.learn import gradient_learner
from relaax_like.learn.gradient_learner import GradientLearner
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.wire.errors import ConfigError, ServerUnavailableError

CONFIG = make_config(layers=(8,))
SLOTS, STEPS = 3, 5
A2C: Any = load("algorithm").A2C


class GatedGradients(CompiledGradients):
    """Computes gradients while a gate is open, and records the rollouts' slots."""

    def __init__(self, algorithm: Any):
        super().__init__(algorithm)
        self.slots: list[int] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def compute_updates(self, *draw: Any, **batch: Any) -> Any:
        self.begun.set()
        assert self.gate.wait(WAIT_SEC)
        self.slots.append(batch["rewards"]["reward"].shape[1])
        yield from super().compute_updates(*draw, **batch)


class Client(InProcessClient):
    """A view of a parameter server that can be away."""

    away = False

    def _call_push_pull(self, push: Push, want_values: bool, have_version: int) -> Reply:
        if self.away:
            raise ServerUnavailableError("the parameter server is away")
        return super()._call_push_pull(push, want_values, have_version)


class Run:
    """A learner on a parameter server.

    Attributes:
      events: failures, and answers to requests, in order.
    """

    def __init__(self, server: ParameterServer, compiled: CompiledGradients):
        self.server = server
        self.client = Client(server)
        self.events: list[ConfigError | LearnerUpdate] = []
        plan = OnPolicy(rollout_steps=STEPS)
        self.compiled = compiled
        self.learner = GradientLearner(
            compiled, plan, self.client, make_requests(plan), on_failure=self.events.append
        )
        self.learner.start(self._take)

    def _take(self, update: LearnerUpdate) -> None:
        if update.numbers:
            self.events.append(update)

    def submit(self, number: int, slots: int = SLOTS, reward: float = 0.0) -> None:
        rollout = make_rollout(slots, number, STEPS)
        rollout.rewards[0, 0] += reward
        self.learner.submit(LearnRequest(number, rollout, (), rollout.env_steps))

    def answered(self) -> list[int]:
        updates = [event for event in self.events if isinstance(event, LearnerUpdate)]
        return [number for update in updates for number in update.numbers]

    def make_worth_compiling(self) -> None:
        """Makes the next rollout of a known size the one for which a gradient is compiled."""
        self.compiled.set_seen([[key, 1_000_000] for key, _ in self.compiled.get_seen()])

    def learn(self, number: int, reward: float = 0.0) -> LearnerUpdate:
        self.submit(number, reward=reward)
        wait_until(lambda: number in self.answered(), f"the answer to {number}")
        update = self.events[-1]
        assert isinstance(update, LearnerUpdate)
        return update


@contextlib.contextmanager
def running(
    algorithm_class: Any = A2C, make_compiled: Callable[..., CompiledGradients] = CompiledGradients
) -> Iterator[Run]:
    model = load("model").make_model(CONFIG, 0)
    with serve_a2c(CONFIG) as server:
        run = Run(server, make_compiled(algorithm_class(model, CONFIG)))
        yield run
        run.learner.stop()


# Order.


def test_rollouts_that_wait_are_learned_from_together_before_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_learner, "_STOP_SEC", WAIT_SEC)
    made: list[GatedGradients] = []

    def make_compiled(algorithm: Any) -> GatedGradients:
        made.append(GatedGradients(algorithm))
        return made[0]

    with running(make_compiled=make_compiled) as run:
        run.submit(1)
        assert made[0].begun.wait(WAIT_SEC)
        run.submit(2, slots=8)
        run.submit(3)
        run.learner.submit(LearnRequest(4, None))
        run.submit(5)
        run.submit(6)
        stopping = Caller(run.learner.stop)
        wait_until(lambda: run.learner._queue.waiting == 6, "the end marker")
        made[0].gate.set()
        stopping.get()
        assert run.answered() == [1, 4, 2, 3, 5, 6]  # 4 has nothing to learn from
        assert made[0].slots == [SLOTS, 8 + 3 * SLOTS]


# Errors that end it.


class Misspelt(A2C):
    def learn(self, batch: Any) -> Losses:
        return batch.returs


class Mismatched(A2C):
    def learn(self, batch: Any) -> Losses:
        return Losses({"default": add(tf.zeros(2), tf.zeros(3))})


def add(x: Any, y: Any) -> Any:
    return tf.reduce_mean(x + y)


class Unknown(A2C):
    def learn(self, batch: Any) -> Losses:
        return Losses({"polcy": batch.mean(batch.returns)})


def find_line(function: Callable[..., Any], offset: int) -> int:
    return function.__code__.co_firstlineno + offset


MISTAKES = {
    "no such attribute": (
        Misspelt,
        find_line(Misspelt.learn, 1),
        r"AttributeError: 'Batch' object has no attribute 'returs'",
    ),
    "wrong shape": (Mismatched, find_line(add, 1), r"ValueError: Dimensions must be equal"),
    "unknown group": (
        Unknown,
        find_line(Unknown.learn, 0),
        r"a cost for 'polcy', which is not a variable group",
    ),
}


@pytest.mark.parametrize("autograph", [False, True], ids=["plain", "autograph"])
@pytest.mark.parametrize(("wrong", "line", "text"), MISTAKES.values(), ids=MISTAKES.keys())
def test_an_error_while_learn_is_traced_ends_the_learning(
    wrong: Any, line: int, text: str, autograph: bool, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm_class = type(wrong.__name__, (wrong,), {"autograph": autograph})
    algorithm_class.__module__ = wrong.__module__
    with running(algorithm_class) as run:
        for number in range(1, 5):
            assert run.learn(number).values is None
        assert run.server.global_t == 0
        assert run.answered() == [1, 2, 3, 4]
        # The owner is notified before the agents, and once.
        failure, *others = run.events
        assert isinstance(failure, ConfigError)
        assert str(failure).startswith(f"{__file__}:{line}: ")
        assert re.search(text, str(failure))
        assert not [event for event in others if not isinstance(event, LearnerUpdate)]
    assert not [record for record in caplog.records if record.levelno > logging.DEBUG]


class Uncompilable(A2C):
    """Its cost uses an operation that XLA does not support."""

    def learn(self, batch: Any) -> Losses:
        losses = super().learn(batch)
        number = tf.numpy_function(lambda: np.float32(1), [], tf.float32)
        return Losses(losses.costs, metrics={"number": tf.ensure_shape(number, [])})


def test_a_gradient_that_xla_cannot_compile_ends_the_learning() -> None:
    line = find_line(Uncompilable.learn, 0)
    with running(Uncompilable) as run:
        assert run.learn(1).version == 1
        run.make_worth_compiling()
        assert run.learn(2).values is None
        failure = run.events[1]
        assert isinstance(failure, ConfigError)
        assert str(failure).startswith(f"{__file__}:{line}: XLA cannot compile learn or prepare: ")
        cure = "or set self.xla = False at the end of __init__ of class ActorCritic"
        assert str(failure).endswith(cure)


def test_a_gradient_that_xla_cannot_compile_in_the_background_stays_uncompiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make_compiled(algorithm: Any) -> CompiledGradients:
        return CompiledGradients(algorithm, compile_in_background=True)

    with running(Uncompilable, make_compiled) as run:
        assert run.learn(1).version == 1
        run.make_worth_compiling()
        assert run.learn(2).version == 2
        wait_until(lambda: "the slower form of a gradient" in caplog.text, "the warning")
        assert run.learn(3).version == 3
        assert "could not learn" not in caplog.text


# Errors that do not.


def test_a_rollout_that_is_not_finite_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    with running() as run:
        assert run.learn(1, reward=np.nan).values is None
        assert run.learn(2).version == 1
        assert "could not learn from an iteration (1 so far)" in caplog.text
        assert run.server.global_t == 2 * SLOTS * STEPS  # the steps were taken all the same


def test_a_parameter_server_that_is_away_does_not_end_the_learning() -> None:
    with running() as run:
        assert run.learn(1).version == 1
        run.client.away = True
        run.learn(2)
        run.client.away = False
        assert run.learn(3).version == 2
