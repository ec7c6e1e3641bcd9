"""Schedules, and how they are written."""

import pytest

from relaax_like.config.algorithm import AlgorithmConfig
from relaax_like.config.schedule import Constant, Exponential, Linear, Schedule, Tunable


class Config(AlgorithmConfig):
    epsilon: Schedule = Linear(1.0, 0.1, steps=100)
    clip: Tunable = 0.2


@pytest.mark.parametrize(
    ("schedule", "step", "want"),
    [
        (Linear(1.0, 0.2, steps=100), 0, 1.0),
        (Linear(1.0, 0.2, steps=100), 25, 0.8),
        (Linear(1.0, 0.2, steps=100), 100, 0.2),
        (Linear(1.0, 0.2, steps=100), 10**9, 0.2),
        (Exponential(1.0, 0.01, steps=100), 50, 0.1),
        (Exponential(-1e-200, -1e-210, steps=100), 100, -1e-210),
        (Constant(3.0), 0, 3.0),
        (Constant(3.0), 7, 3.0),
    ],
)
def test_a_schedule_goes_from_start_to_end(schedule, step, want):
    assert schedule.compute(step) == pytest.approx(want)


@pytest.mark.parametrize(
    ("written", "want"),
    [
        (0.5, Constant(0.5)),
        (1, Constant(1.0)),
        ({"start": 1, "end": 0, "steps": 1e4}, Linear(1.0, 0.0, steps=10_000)),
        (
            {"kind": "exponential", "start": 1.0, "end": 0.1, "steps": 5},
            Exponential(1.0, 0.1, steps=5),
        ),
    ],
)
def test_a_schedule_is_a_number_or_a_mapping(written, want):
    config = Config.model_validate({"epsilon": written})
    assert config.epsilon == want
    assert Config.model_validate(config.model_dump()) == config


@pytest.mark.parametrize(
    "written",
    [
        "fast",
        True,
        {"start": 1.0},
        {"start": 1.0, "end": 0.5},
        {"start": 1.0, "end": True, "steps": 5},
        {"start": 1.0, "end": 0.5, "steps": 5, "stop": 3},
        {"start": 1.0, "end": 0.5, "steps": 0.5},
        {"start": 1.0, "end": 0.5, "steps": float("inf")},
        10**400,
        {"start": 10**400, "end": 0.5, "steps": 5},
        {"start": 1.0, "end": 0.5, "steps": 10**400},
    ],
)
def test_other_forms_are_refused_with_the_ones_expected(written):
    with pytest.raises(ValueError, match=r"expected a number, or \{kind: linear or exponential"):
        Config.model_validate({"epsilon": written})


@pytest.mark.parametrize("written", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_refused_as_it_was_written(written):
    with pytest.raises(ValueError, match=f"expected a finite number, got {written}"):
        Config.model_validate({"epsilon": written})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("linear", 1.0, 0.0, 0), "steps: 0, expected 1 or more"),
        (("linear", float("nan"), 0.0, 1), "expected finite numbers"),
        (("exponential", 1.0, 0.0, 1), "use kind: linear"),
        (("exponential", -1.0, 1.0, 1), "use kind: linear"),
        (("cosine", 1.0, 0.0, 1), "expected linear or exponential"),
    ],
)
def test_a_schedule_that_cannot_be_computed_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Schedule(*arguments)
