"""One PPO update at a time, in torch; run by `benchmarks.peers.updates` with the peers' own Python.

    .venv-peers/bin/python -m benchmarks.peers.torch_updates CASE

Prints "ready". Then it reads names of `FORMS`, a line each, makes one whole update of that form,
and prints the seconds that it took.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3  # type: ignore[import-not-found]
import torch  # type: ignore[import-not-found]
from sb3_contrib import RecurrentPPO  # type: ignore[import-not-found]
from sb3_contrib.common.recurrent.type_aliases import RNNStates  # type: ignore[import-not-found]
from stable_baselines3.common import logger  # type: ignore[import-not-found]
from torch import nn

from benchmarks.peers.update_cases import (
    ACTION,
    CASES,
    CLIP,
    DISCOUNT,
    EPOCHS,
    EPSILON,
    GAE_LAMBDA,
    GRAD_CLIP,
    LEARNING_RATE,
    OBSERVATION,
    UNITS,
    VALUE_COEFF,
    Case,
    Iteration,
    draw,
)

Update = Callable[[], None]


class Memory(nn.Module):
    """An LSTM over `[T, k, ...]`, from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(OBSERVATION, UNITS)

    def forward(self, x: Any) -> Any:
        """Returns what it puts out at each step."""
        return self.lstm(x)[0]


def make_trunk(recurrent: bool) -> Any:
    """Returns two dense layers, or an LSTM."""
    if recurrent:
        return Memory()
    return nn.Sequential(
        nn.Linear(OBSERVATION, UNITS), nn.Tanh(), nn.Linear(UNITS, UNITS), nn.Tanh()
    )


class Networks(nn.Module):
    """Actor and critic, apart."""

    def __init__(self, recurrent: bool):
        super().__init__()
        self.actor, self.critic = make_trunk(recurrent), make_trunk(recurrent)
        self.mean, self.value = nn.Linear(UNITS, ACTION), nn.Linear(UNITS, 1)
        self.log_std = nn.Parameter(torch.zeros(ACTION))

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Returns the distribution of actions and the values."""
        policy = torch.distributions.Normal(self.mean(self.actor(x)), self.log_std.exp())
        return policy, self.value(self.critic(x))[..., 0]


def make_plain(case: Case, iteration: Iteration) -> Update:
    """Makes the update as one writes it down: no library but torch, Adam in one kernel.

    Advantages and returns are there before; it only learns from them.
    """
    networks = Networks(case.recurrent)
    optimizer = torch.optim.Adam(networks.parameters(), LEARNING_RATE, eps=EPSILON, fused=True)
    random = torch.Generator().manual_seed(0)
    batch = [
        torch.from_numpy(array)
        for array in (
            iteration.observations[:-1],
            iteration.actions,
            iteration.log_probs,
            iteration.rewards,  # as good as advantages
            iteration.rewards,  # and returns
        )
    ]
    if not case.recurrent:
        batch = [tensor.flatten(0, 1) for tensor in batch]
    axis = 1 if case.recurrent else 0

    def update() -> None:
        for _ in range(EPOCHS):
            order = torch.randperm(batch[0].shape[axis], generator=random)
            for chosen in order.split(case.minibatch):
                optimizer.zero_grad()
                parts = [tensor.index_select(axis, chosen) for tensor in batch]
                compute_cost(networks, *parts).backward()
                nn.utils.clip_grad_norm_(networks.parameters(), GRAD_CLIP)
                optimizer.step()

    return update


def compute_cost(
    networks: Networks, x: Any, actions: Any, log_probs: Any, advantages: Any, returns: Any
) -> Any:
    """Returns PPO's cost of a minibatch."""
    policy, values = networks(x)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratios = (policy.log_prob(actions).sum(-1) - log_probs).exp()
    clipped = ratios.clamp(1 - CLIP, 1 + CLIP)
    gains = torch.min(ratios * advantages, clipped * advantages)
    return VALUE_COEFF * ((returns - values) ** 2).mean() - gains.mean()


class Spaces(gymnasium.Env):
    """Provides the spaces of the iteration's environment, which nobody steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)


def make_sb3(case: Case, iteration: Iteration, begins: bool) -> Update:
    """Makes Stable-Baselines3's `PPO.train()`, or sb3-contrib's `RecurrentPPO.train()`.

    Args:
      case: sizes.
      iteration: is put into its buffer, with returns, before.
      begins: whether the rollouts begin with their episodes. RecurrentPPO goes through an update
        step by step in Python if an episode begins in it, and else in one call of torch's LSTM.
    """
    algorithm = RecurrentPPO if case.recurrent else stable_baselines3.PPO
    policy: dict[str, Any] = {"net_arch": [] if case.recurrent else [UNITS, UNITS]}
    if case.recurrent:
        policy["lstm_hidden_size"] = UNITS
    model = algorithm(
        "MlpLstmPolicy" if case.recurrent else "MlpPolicy",
        stable_baselines3.common.vec_env.DummyVecEnv([Spaces] * case.slots),
        n_steps=case.steps,
        batch_size=case.minibatch * (case.steps if case.recurrent else 1),
        n_epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        gamma=DISCOUNT,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        vf_coef=VALUE_COEFF,
        max_grad_norm=GRAD_CLIP,
        policy_kwargs={**policy, "optimizer_kwargs": {"eps": EPSILON}},
        device="cpu",
        seed=0,
    )
    model.set_logger(logger.configure(None, []))
    fill(model.rollout_buffer, case, iteration, begins)
    return model.train


def fill(buffer: Any, case: Case, iteration: Iteration, begins: bool) -> None:
    """Puts an iteration into a buffer; the values of all observations are 0."""
    values = torch.zeros(case.slots)
    states: dict[str, Any] = {}
    if case.recurrent:
        memory = (torch.zeros(1, case.slots, UNITS), torch.zeros(1, case.slots, UNITS))
        states["lstm_states"] = RNNStates(memory, memory)
    for step in range(case.steps):
        buffer.add(
            iteration.observations[step],
            iteration.actions[step],
            iteration.rewards[step],
            np.full(case.slots, float(begins and step == 0), np.float32),
            values,
            torch.from_numpy(iteration.log_probs[step]),
            **states,
        )
    buffer.compute_returns_and_advantage(values, np.zeros(case.slots))


def make_forms(case: Case) -> dict[str, Update]:
    """Makes all forms of a case's update."""
    iteration = draw(case)
    forms = {"torch": make_plain(case, iteration), "sb3": make_sb3(case, iteration, begins=True)}
    if case.recurrent:
        forms["sb3, in one call"] = make_sb3(case, iteration, begins=False)
    return forms


def main() -> None:
    """Makes updates, as it is asked to."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    forms = make_forms(CASES[sys.argv[1]])
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        forms[line.strip()]()
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main()
