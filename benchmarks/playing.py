"""Games that a learned policy plays, the same for each program that is compared.

This module needs only NumPy, PettingZoo and mpe2, so that peers can use it in their own
environment; see `benchmarks.games`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpe2 import simple_spread_v3
from pettingzoo.classic import connect_four_v3, tictactoe_v3

_GAMES = 1000
# Seed of the first game that is played after a training; no game of a training has it.
_FIRST_SEED = 1_000_000

# Chooses a move from what PettingZoo shows an agent.
Player = Callable[[Any], int]


def play_random(policy: Player, seed: int) -> dict[str, Any]:
    """Plays connect four against random legal moves; returns the results of both seats."""
    rng = np.random.default_rng(seed)

    def draw(seen: Any) -> int:
        return int(rng.choice(np.flatnonzero(seen["action_mask"])))

    won = drawn = 0
    env = connect_four_v3.env()
    for number in range(_GAMES):
        seat = number % 2
        env.reset()
        players: list[Player] = [draw, draw]
        players[seat] = policy
        rewards = _finish(env, dict(zip(env.possible_agents, players, strict=True)))
        won += rewards[seat] > 0
        drawn += rewards[seat] == 0
    return {"won": won, "drawn": drawn, "games": _GAMES}


def _finish(env: Any, players: dict[str, Player]) -> list[float]:
    """Plays a game to its end; returns the reward of each seat."""
    while not all(env.terminations.values()):
        agent = env.agent_selection
        env.step(players[agent](env.observe(agent)))
    return [env.rewards[agent] for agent in env.possible_agents]


def play_tree(policy: Player) -> dict[str, Any]:
    """Plays each line of tic-tac-toe that the policy allows; returns how many of them it loses."""
    lost = lines = 0
    env = tictactoe_v3.env()
    answers: dict[bytes, int] = {}

    def answer(seen: Any) -> int:
        key = seen["observation"].tobytes() + seen["action_mask"].tobytes()
        if key not in answers:
            answers[key] = policy(seen)
        return answers[key]

    for seat in (0, 1):
        pending: list[list[int]] = [[]]
        while pending:
            moves = pending.pop()
            env.reset()
            for move in moves:
                env.step(move)
            own = env.possible_agents[seat]
            while env.agent_selection == own and not all(env.terminations.values()):
                moves = [*moves, answer(env.observe(own))]
                env.step(moves[-1])
            if all(env.terminations.values()):
                lines += 1
                lost += env.rewards[own] < 0
                continue
            seen = env.observe(env.agent_selection)
            pending += [[*moves, int(move)] for move in np.flatnonzero(seen["action_mask"])]
    return {"lost": lost, "lines": lines}


def play_spread(policy: Player) -> dict[str, Any]:
    """Plays simple_spread with all agents; the games start the same for each policy.

    Returns:
      The mean of what an agent earns in a game, half of its 95 % interval, and the games.
    """
    env = simple_spread_v3.parallel_env()
    returns = []
    for seed in range(_FIRST_SEED, _FIRST_SEED + _GAMES):
        seen, _ = env.reset(seed=seed)
        earned = 0.0
        while env.agents:
            moves = {agent: policy(seen[agent]) for agent in env.agents}
            seen, rewards, *_ = env.step(moves)
            earned += sum(rewards.values())
        returns.append(earned / env.max_num_agents)
    half = 1.96 * np.std(returns, ddof=1) / len(returns) ** 0.5
    return {
        "greedy_mean": round(float(np.mean(returns)), 3),
        "greedy_half_95": round(float(half), 3),
        "games": _GAMES,
    }


# Plays what is measured of each game; takes the policy, and the seed of its training.
PLAYS: dict[str, Callable[[Player, int], dict[str, Any]]] = {
    "connect_four": play_random,
    "tictactoe": lambda policy, _: play_tree(policy),
    "simple_spread": lambda policy, _: play_spread(policy),
}
