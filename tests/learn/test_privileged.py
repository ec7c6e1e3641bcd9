"""Privileged observations: learned from on every road, and not needed to act."""

# covers P3

from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT, TRACE, Cluster
from support.privileged.slots import ONE_HOT, SLOTS, STEPS, AskingSlots

import relaax_like
from relaax_like.client import Interactor, RlxClient
from relaax_like.experience.trajectory_files import TRAJECTORY_FOLDER
from relaax_like.wire.errors import ProtocolError

FOLDER = ROOT / "tests" / "support" / "privileged"


def write_experiment(folder: Path, placement: str) -> Path:
    rollouts = "null" if placement == "agent" else "4"
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"learner: {{placement: {placement}, target_episodes: 20}}\n"
        f"algorithm: {{path: {FOLDER}, max_global_step: 4000, rollouts: {rollouts}}}\n"
        f"environment: {{path: {FOLDER}, slots: {SLOTS}}}\n"
    )
    return file


@pytest.mark.parametrize(
    ("placement", "sets"),
    [
        ("agent", []),
        ("server", []),
        # The other two learn the same, and `launch/test_workers.py` learns with workers.
        pytest.param("server", ["learner.workers=2"], marks=pytest.mark.slow),
    ],
    ids=["agent", "server", "workers"],
)
def test_the_policy_learns_what_it_does_not_see(
    placement: str, sets: list[str], tmp_path: Path
) -> None:
    """By chance it would be right three times of nine."""
    result = relaax_like.train(write_experiment(tmp_path, placement), sets)
    assert result.mean_return is not None
    assert result.mean_return > 0.9 * STEPS


def test_it_learns_from_files(tmp_path: Path) -> None:
    file = write_experiment(tmp_path, "server")
    relaax_like.train(file, ["learner.collect_traj=true", "algorithm.max_global_step=600"])
    recorded = tmp_path / "run" / TRAJECTORY_FOLDER
    copies = [f"run_dir={tmp_path / 'copy'}", f"learner.offline={recorded}"]
    result = relaax_like.train(file, [*copies, "algorithm.max_global_step=2000"])
    assert result.global_t >= 2000


def test_clients_that_train_send_it_and_those_that_act_need_not(tmp_path: Path) -> None:
    sets = ("learner.placement=server", "learner.target_episodes=20")
    with Cluster(tmp_path, FOLDER, *sets, "algorithm.max_global_step=1000000") as cluster:
        ps, rlx = cluster.start_both_servers()
        address = f"localhost:{cluster.rlx_port}"
        blind = AskingSlots(tells=False)
        spaces = (blind.observation_space, blind.action_space)
        wanted = "observation_spaces: 'answer' is missing, but the model learns from it"
        with (
            pytest.raises(ProtocolError, match=wanted),
            RlxClient(address, *spaces, retry=None) as client,
        ):
            client.act({"question": ONE_HOT[0]})
        slots = AskingSlots()
        with RlxClient(address, slots.observation_space, slots.action_space, slots=SLOTS) as client:
            Interactor(slots, client, max_episodes=300).run()
        with RlxClient(address, *spaces, slots=3, exploit=True, retry=None) as client:
            chosen = client.step({"question": ONE_HOT}).actions
        np.testing.assert_array_equal(chosen, [1, 2, 0])
        assert TRACE not in ps.output + rlx.output
