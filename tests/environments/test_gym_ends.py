"""What the end of an episode is worth, for environments that report a limit in different ways."""

from pathlib import Path

import pytest
from support.uncompiled import copy_uncompiled

import relaax_like
from relaax_like.parameter_server.snapshots import read_latest

LIMIT = 12
GAMMA = 0.9
FOREVER = 1 / (1 - GAMMA)
# Each step gives 1, whatever is done; 0 is what is seen, and 1 an empty last frame.
ENVIRONMENT = f"""
import gymnasium as gym

class Ending(gym.Env):
    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self, flags="", empty=False):
        self.flags, self.empty = flags, empty

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return 0, {{}}

    def step(self, action):
        self.t += 1
        at_limit = self.t == {LIMIT}
        ends = [at_limit and flag in self.flags for flag in ("terminated", "truncated")]
        return int(self.empty and at_limit), 1.0, *ends, {{}}

gym.register("Ending-v0", Ending)
gym.register("Limited-v0", Ending, max_episode_steps={LIMIT})
"""


@pytest.mark.parametrize(
    ("kind", "env", "args", "limit", "is_cut"),
    [
        ("gymnasium's limit", "Limited-v0", "{}", None, True),
        ("a death at the limit", "Limited-v0", "{flags: terminated}", None, False),
        ("both flags", "Ending-v0", "{flags: terminated truncated}", None, False),
        ("both flags", "Ending-v0", "{flags: terminated truncated, empty: true}", LIMIT - 1, True),
    ],
)
def test_the_value_is_that_of_an_endless_episode_only_if_it_was_cut_off(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    env: str,
    args: str,
    limit: int | None,
    is_cut: bool,
) -> None:
    (tmp_path / "endings.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"run_dir: {tmp_path / 'run'}\n"
        f"algorithm: {{path: '{copy_uncompiled('q_learning', tmp_path)}', gamma: {GAMMA}, "
        "learning_rate: 0.5, updates_at_once: 2, max_global_step: 600}\n"
        f"environment: {{program: OpenAI_Gym, env: 'endings:{env}', slots: 2, args: {args}, "
        f"max_episode_steps: {'null' if limit is None else limit}}}\n"
    )
    relaax_like.train(file)
    state = read_latest(tmp_path / "run" / "checkpoints")
    assert state is not None
    value = max(array.ravel()[0] for array in state.manifest.unpack(state.values))
    if is_cut:
        assert value == pytest.approx(FOREVER, rel=0.01)
    else:
        assert value < 0.9 * FOREVER
