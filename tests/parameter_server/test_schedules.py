"""Learning-rate schedules. covers R2"""

import pytest

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.parameter_server.schedules import compute_learning_rate

LINEAR = OptimizerConfig(
    learning_rate=1.0, schedule="linear", learning_rate_end=0.2, schedule_env_steps=100
)


@pytest.mark.parametrize(
    ("global_t", "want"),
    [(0, 1.0), (25, 0.8), (50, 0.6), (99, 0.208), (100, 0.2), (101, 0.2), (10**18, 0.2)],
)
def test_linear_goes_down_and_stays_at_its_end(global_t: int, want: float) -> None:
    assert compute_learning_rate(LINEAR, global_t) == pytest.approx(want, rel=1e-12)


def test_linear_ends_at_exactly_its_end() -> None:
    assert compute_learning_rate(LINEAR, 100) == 0.2


@pytest.mark.parametrize("global_t", [0, 7, 10**18])
def test_constant_stays(global_t: int) -> None:
    assert compute_learning_rate(OptimizerConfig(learning_rate=0.3), global_t) == 0.3
