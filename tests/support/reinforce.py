"""The minimal algorithm of the documentation, with another plan: complete episodes. No XLA."""

import shutil
from pathlib import Path

from support.cluster import ROOT
from support.uncompiled import UNCOMPILED

_MINIMAL = ROOT / "docs" / "examples" / "minimal"
_PLAN = "OnPolicy(rollout_steps=64, rollouts=8, discount=self.gamma)"


def write_reinforce(folder: Path, plan: str) -> Path:
    """Writes its folder, with the code of a plan, such as `Episodes(episodes=4)`; returns it."""
    path = folder / "reinforce"
    shutil.copytree(_MINIMAL, path, ignore=shutil.ignore_patterns("__pycache__"))
    config = path / "config.py"
    text = config.read_text()
    assert _PLAN in text
    text = text.replace(_PLAN, plan).replace("-> OnPolicy", "-> Episodes")
    model = path / "model.py"
    model.write_text(model.read_text() + UNCOMPILED)
    config.write_text(text.replace("AlgorithmConfig, OnPolicy", "AlgorithmConfig, Episodes"))
    return path
