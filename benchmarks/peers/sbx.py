"""A training with SBX, on JAX; run by the programs beside it with a Python of its own.

    .venv-sbx/bin/python -m benchmarks.peers.sbx < settings.json

Like `benchmarks.peers.sb3`, whose loop, evaluation and result it has.
"""

import json
import sys
from typing import Any

import flax  # type: ignore[import-not-found]
import jax  # type: ignore[import-not-found]
import sbx  # type: ignore[import-not-found]

from benchmarks.peers.peer import Settings
from benchmarks.peers.sb3 import run

CLASSES = {"crossq": "CrossQ", "sac": "SAC"}


def make_model(settings: Settings, env: Any) -> Any:
    """Makes the algorithm."""
    policy = dict(settings["policy"])
    policy["activation_fn"] = getattr(flax.linen, policy["activation_fn"])
    hyperparameters = dict(settings["hyperparameters"])
    # One rate for all here; SBX would give its own to the critics.
    hyperparameters["qf_learning_rate"] = hyperparameters["learning_rate"]
    algorithm = getattr(sbx, CLASSES[settings["algorithm"]])
    return algorithm(
        "MlpPolicy", env, seed=settings["seed"], policy_kwargs=policy, **hyperparameters
    )


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin), make_model, (sbx, jax))))
