"""The update of one PPO iteration, alone: ours, plain torch, Stable-Baselines3 and sb3-contrib.

    python -m benchmarks.peers.updates [--case mlp|lstm-32|lstm-8] [--rounds 15]

All learn four epochs from the same experience, on one thread, in turns: one update each, again and
again. `ours` is `CompiledUpdates.update`, from NumPy arrays to the last optimizer step, values
of all observations and advantages included; the others find advantages and returns ready. `torch`
is the update written down straight, with `nn.LSTM` and Adam as one kernel; `sb3` is `PPO.train()`,
or `RecurrentPPO.train()` of sb3-contrib, whose minibatches have as many steps as ours but can cut
rollouts in two. That goes through a minibatch step by step where an episode begins in it, as here
at the start of each rollout; `sb3, in one call` is the same without such a beginning.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.peer import install, start_peer
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
    draw,
)
from benchmarks.report import report
from relaax_like.config.algorithm_folder import find_algorithm, load_algorithm_module
from relaax_like.core.prediction import LOG_PROB
from relaax_like.learn.draw import Draw
from relaax_like.learn.updates import CompiledUpdates

_OURS = "ours"
# Of each form, before anything is counted: ours compiles in the first one.
_WARM_UP = 3


def make_ours(case: Case) -> Callable[[], Any]:
    """Makes our update."""
    folder = find_algorithm("ppo")
    config = load_algorithm_module(folder, "config").Config(
        state_size=OBSERVATION,
        action_size=ACTION,
        network={"layers": ({"lstm": UNITS},) if case.recurrent else (UNITS, UNITS)},
        num_steps=case.steps * case.slots,
        rollout_steps=case.steps,
        epochs=EPOCHS,
        batch_size=case.minibatch,
        learning_rate=LEARNING_RATE,
        critic_learning_rate=LEARNING_RATE,
        adam_epsilon=EPSILON,
        gamma=DISCOUNT,
        gae_lambda=GAE_LAMBDA,
        clip=CLIP,
        value_coefficient=VALUE_COEFF,
        max_gradient_norm=GRAD_CLIP,
    )
    model = load_algorithm_module(folder, "model").make_model(config, 0)
    algorithm = load_algorithm_module(folder, "algorithm").make_algorithm(config, model, 0)
    compiled = CompiledUpdates(algorithm, config.optimizers)
    iteration = draw(case)
    memory = {
        name: np.zeros((case.slots, *shape), np.float32)
        for name, shape in compiled.state_shapes.items()
    }
    plan = config.plan

    def update() -> None:
        compiled.update(
            Draw(
                batch_size=plan.batch_size,
                minibatch_of=plan.minibatch_of,
                epochs=plan.epochs,
                seed=0,
            ),
            inputs={"observation": iteration.observations[:-1]},
            next_inputs={"observation": iteration.observations[1:]},
            next_alive={"alive": np.ones((case.steps, case.slots), np.float32)},
            rewards={"reward": iteration.rewards[..., None]},
            actions={"action": iteration.actions, LOG_PROB: iteration.log_probs},
            states=memory,
        )

    return update


def measure(key: str, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each update of each form."""
    update = make_ours(CASES[key])
    forms = ["torch", "sb3", *(["sb3, in one call"] if CASES[key].recurrent else [])]
    with start_peer("benchmarks.peers.torch_updates", key) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        if peer.stdout.readline() != "ready\n":
            raise RuntimeError("the peer's process has ended; what it said stands above")
        took: dict[str, list[float]] = {form: [] for form in (_OURS, *forms)}
        for _ in range(_WARM_UP + rounds):
            began = time.perf_counter()
            update()
            took[_OURS].append(time.perf_counter() - began)
            for form in forms:
                peer.stdin.write(f"{form}\n")
                peer.stdin.flush()
                took[form].append(float(peer.stdout.readline()))
        peer.stdin.close()
    return {form: seconds[_WARM_UP:] for form, seconds in took.items()}


def summarize(key: str, took: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Returns a row per form."""
    ours = statistics.median(took[_OURS])
    return [
        {
            "update": CASES[key].name,
            "form": form,
            "median ms": 1e3 * statistics.median(seconds),
            "least ms": 1e3 * min(seconds),
            "most ms": 1e3 * max(seconds),
            "x ours": f"{statistics.median(seconds) / ours:.2f}",
        }
        for form, seconds in took.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures one case, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES, help="default: all")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args(argv)
    install()
    keys = CASES if args.case is None else [args.case]
    rows = [row for key in keys for row in summarize(key, measure(key, args.rounds))]
    report("ppo, one update", rows)


if __name__ == "__main__":
    main()
