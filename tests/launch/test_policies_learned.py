"""What several policies learn together, against results derived by hand. covers PE20"""

from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT
from support.serial import train
from support.uncompiled import copy_uncompiled

from relaax_like.parameter_server.snapshots import read_latest

SUPPORT = ROOT / "tests" / "support"


def write(folder: Path, game: str, algorithm: str, policies: str, more: str, slots: int) -> Path:
    """Writes an experiment on a game of tests/support, of as many games as `slots`."""
    name = algorithm.partition(",")[0]
    path = copy_uncompiled(name, folder)
    file = folder / "experiment.yaml"
    file.write_text(
        f"run_dir: {folder / 'run'}\n"
        f"algorithm: {{path: '{path}'{algorithm.removeprefix(name)}}}\n"
        f"policies: {policies}\n"
        f"environment: {{path: '{SUPPORT / game}', slots: {slots}, "
        f"args: {{file: '{folder / 'choices.npy'}'}}}}\n"
        f"relaax-parameter-server: {{progress_interval_sec: 1000, {more}}}\n"
    )
    return file


def read_values(folder: Path, policy: str) -> dict[str, np.ndarray]:
    """Returns the values that a policy has learned, by name."""
    state = read_latest(folder / "run" / "policies" / policy / "checkpoints")
    assert state is not None
    names = [one.name for one in state.manifest.segments]
    return dict(zip(names, state.manifest.unpack(state.values), strict=True))


def test_two_policies_orbit_the_equilibrium(tmp_path: Path) -> None:
    """The averages of simultaneous gradient play are the equilibrium; the play itself never is.

    The row player gets 3 for (0, 0), -1 for (0, 1) and (1, 0), 1/3 for (1, 1). Let p and q be the
    probabilities of action 0. The row player gains by its action 0 instead of 1

        3q - (1-q) - (-q + (1-q)/3) = 16/3 (q - 1/4),

    and the column player, whose payoffs are the negative ones, -16/3 (p - 1/4). Both are 0, so both
    mix, only for p = q = 1/4; no pure pair is an equilibrium, as the signs show. The gradient of p
    is g(p) (q - 1/4) with g(p) > 0. The integral of dp / g(p) over an orbit, which ends where it
    began, is 0, so the average of q over an orbit is 1/4; that of p as well. Here a third of the
    training is an orbit, nearly. It begins at p = q = 1/2.
    """
    games, steps = 128, 600
    sgd = "{name: sgd, learning_rate: 0.06}"
    file = write(
        tmp_path,
        "matrix_game",
        "a2c, network: {layers: []}, rollout_steps: 1, gae_lambda: 1, max_gradient_norm: null, "
        f"num_steps: {games}, max_global_step: {games * steps}",
        "{rows: {agents: [row]}, columns: {agents: [column]}}",
        f"optimizers: {{actor: {sgd}, critic: {sgd}}}",
        slots=games,
    )
    assert train(file) == 0
    choices = np.load(tmp_path / "choices.npy", allow_pickle=False) / games  # [steps, 2]
    assert len(choices) == steps
    np.testing.assert_allclose(choices[: steps // 60].mean(0), 0.5, atol=0.15)
    np.testing.assert_allclose(choices[-steps // 3 :].mean(0), 0.25, atol=0.05)
    smooth = choices.reshape(60, -1, 2).mean(1)
    assert (np.ptp(smooth, axis=0) > 0.4).all()  # of at least 0.2, whatever the draws
    assert (np.ptp(smooth[-20:], axis=0) > 0.4).all()


# Seats move in the order a, b, b, a, b. A reward belongs to the last own move, even if it comes
# with one of the other seat; the discount of 0.9 is per own move. With the better choices:
#   a, move 3: 0 + 3 with b's move                      = 3
#   a, move 0: 0.25 + 1 + 2 with b's moves + 0.9 * 3     = 5.95; 4.95 for the other choice
#   b, move 4: 0.125
#   b, move 2: 0 + 1 with a's move + 0.9 * 0.125         = 1.1125; 0.1125 for the other choice
#   b, move 1: 0.5 + 0.9 * 1.1125                        = 1.50125
# The reward of 7 comes before b's first move: it is part of the score only.
Q = np.array([[4.95, 5.95], [1.50125, 1.50125], [1.1125, 0.1125], [3.0, 0.0], [0.125, 0.125]])
MOVES = {"a": [0, 3], "b": [1, 2, 4]}
SEPARATE = {"first": ["a"], "second": ["b"]}
TOGETHER = {"all": ["a", "b"]}


def describe(policies: dict[str, list[str]]) -> str:
    """Returns the key `policies`."""
    return "{" + ", ".join(f"{name}: {{agents: {own}}}" for name, own in policies.items()) + "}"


def find_moves(agents: list[str]) -> list[int]:
    """Returns the moves of the agents of a policy."""
    return [move for agent in agents for move in MOVES[agent]]


@pytest.mark.parametrize("policies", [SEPARATE, TOGETHER], ids=["separate", "together"])
def test_rewards_of_the_others_turn_are_learned_by_q_learning(tmp_path, policies) -> None:
    file = write(
        tmp_path,
        "turns",
        "q_learning, gamma: 0.9, epsilon: 0.5, learning_rate: 0.5, updates_at_once: 4, "
        "max_global_step: 600",
        describe(policies),
        "",
        slots=4,
    )
    assert train(file) == 0
    for policy, agents in policies.items():
        (values,) = read_values(tmp_path, policy).values()
        moves = find_moves(agents)
        np.testing.assert_allclose(values[moves], Q[moves], atol=1e-3)


@pytest.mark.parametrize("policies", [SEPARATE, TOGETHER], ids=["separate", "together"])
def test_rewards_of_the_others_turn_are_learned_by_a_critic(tmp_path, policies) -> None:
    file = write(
        tmp_path,
        "turns",
        "a2c, gamma: 0.9, network: {layers: []}, rollout_steps: 4, num_steps: 16, "
        "max_gradient_norm: null, max_global_step: 1920",
        describe(policies),
        "optimizers: {actor: {learning_rate: 0.2}, critic: {name: sgd, learning_rate: 0.5}}",
        slots=4,
    )
    assert train(file) == 0
    for policy, agents in policies.items():
        learned = read_values(tmp_path, policy)
        values = learned["value.out.W"][:, 0] + learned["value.out.b"]
        moves = find_moves(agents)
        np.testing.assert_allclose(values[moves], Q[moves].max(1), atol=1e-3)
