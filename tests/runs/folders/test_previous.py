"""What a start with other settings or another run's weights changes at once is reported."""

import logging
from pathlib import Path

import pytest
from support.cluster import ROOT

from relaax_like.config.loader import load_experiment
from relaax_like.runs.folders.previous import tell_jumps_at_resume
from relaax_like.runs.folders.run_folder import write_config

PPO_LINEAR = ("lr_schedule=linear", "clip_schedule=linear", "entropy_schedule=linear")
PPO = ("clip=0.2", "entropy_coefficient=0.02", "learning_rate=1e-3", "critic_learning_rate=1e-3")


@pytest.mark.parametrize(
    ("name", "before", "now", "global_t", "jumps"),
    [
        (
            "ppo",
            (*PPO, *PPO_LINEAR, "max_global_step=1024"),
            (*PPO, *PPO_LINEAR, "max_global_step=4096"),
            1024,
            {
                "algorithm.clip jumps: 0 -> 0.15",
                "algorithm.entropy_coefficient jumps: 0 -> 0.015",
                "learning rate of actor jumps: 0 -> 0.00075",
                "learning rate of critic jumps: 0 -> 0.00075",
            },
        ),
        ("a2c", ("max_global_step=1024",), ("max_global_step=4096",), 1024, set()),
        (
            "dqn",
            ("epsilon={start: 1, end: 0, steps: 100}",),
            ("epsilon={start: 1, end: 0, steps: 200}", "max_global_step=999"),
            100,
            {"algorithm.epsilon jumps: 0 -> 0.5"},
        ),
        (
            "impala",
            ("learning_rate=1e-3", "max_global_step=1000"),
            ("learning_rate=1e-3", "max_global_step=2000"),
            1000,
            {
                "learning rate of actor jumps: 0 -> 0.0005",
                "learning rate of critic jumps: 0 -> 0.0005",
            },
        ),
    ],
)
def test_a_schedule_that_jumps_at_a_resume_is_reported(
    name: str,
    before: tuple[str, ...],
    now: tuple[str, ...],
    global_t: int,
    jumps: set[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load(sets: tuple[str, ...]):
        file = ROOT / "algorithms" / name / f"{name}.yaml"
        return load_experiment(file, [f"run_dir={tmp_path}", *(f"algorithm.{one}" for one in sets)])

    caplog.set_level(logging.INFO)
    tell_jumps_at_resume(load(now), global_t)  # there is no earlier start
    assert caplog.messages == []
    write_config(load(before))
    tell_jumps_at_resume(load(now), global_t)
    assert set(caplog.messages) == jumps
