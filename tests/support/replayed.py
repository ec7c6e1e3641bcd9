"""Sources of minibatches from a replay table, of dqn; steps of one slot, each different."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.algorithm.model import get_normalizers
from relaax_like.experience.collector import DataHandler
from relaax_like.experience.rollout import Rollout
from relaax_like.learn.prior import make_prior
from relaax_like.learn.replay_log import ReplayLog
from relaax_like.learn.replayed import Replayed, make_table
from relaax_like.learn.request_queue import RequestQueue
from relaax_like.learn.rollout_layout import RolloutLayout
from relaax_like.learn.tally import Tally

from .batch import load

SETTINGS = {
    "state_size": 2,
    "num_actions": 3,
    "network": {"layers": (8,)},
    "target_every": 3,
    "batch_size": 4,
    "capacity": 64,
    "warm_up_steps": 6,
    "updates_per_step": 1.0,
    "updates_at_once": 2,
    "gamma": 0.5,
}


def make_config(**settings: Any) -> Any:
    """Makes dqn's settings."""
    return load("config", "dqn").Config.model_validate({**SETTINGS, **settings})


def make_source(
    config: Any,
    folder: Path | None = None,
    data_handler: DataHandler | None = None,
    prior: Sequence[Rollout] = (),
    **options: Any,
) -> tuple[Replayed, Tally]:
    """Makes a source and its tally.

    Args:
      config: of dqn.
      folder: of its log; None: it has none.
      data_handler: of what comes; None: it has none.
      prior: recorded rollouts, if `config` has a prior.
      options: of the log.
    """
    model = load("model", "dqn").make_model(config, 3)
    model.masks = config.masks
    plan, number = config.plan, config.observation_history
    history = {"observation": number} if number > 1 else {}
    table = make_table(plan, model, history, 0)
    if plan.has_prior:
        table.mix(make_prior(prior, plan, model, history, data_handler), plan.prior_size)
    tally = Tally()
    layout = RolloutLayout(model, plan.rollout_steps, config.action_spaces)
    log = None if folder is None else ReplayLog(folder, lambda: table.rows, **options)
    normalizers = get_normalizers(model)
    source = Replayed(table, tally, layout, plan, log, normalizers, data_handler)
    return source, tally


def make_replayed(config: Any) -> RequestQueue:
    """Makes the requests of a `GradientLearner` with a source without a log."""
    model = load("model", "dqn").make_model(config, 3)
    plan = config.plan
    table = make_table(plan, model, {}, 0)
    layout = RolloutLayout(model, plan.rollout_steps, config.action_spaces)
    return RequestQueue(Replayed(table, Tally(), layout, plan))


def make_step(number: int, alive: float = 1.0, version: int = 0, history: int = 1) -> Rollout:
    """Makes one step of one slot: observation [number, 0] to [number + 1, 0].

    Args:
      number: of the step, in the only episode.
      alive: `next_alive`.
      version: of the values that acted.
      history: observations that the model sees at once; the earlier ones are sent with the step.
    """

    def observe(n: int) -> dict[str, np.ndarray]:
        return {"observation": np.array([[[n, 0.0]]], np.float32)}

    return Rollout(
        inputs=observe(number),
        next_inputs=observe(number + 1),
        next_alive=np.array([[alive]], np.float32),
        rewards=np.array([[[float(number)]]], np.float32),
        actions={"action": np.array([[number % 3]])},
        log_prob=np.zeros((1, 1), np.float32),
        states={},
        versions=np.array([version]),
        starts=np.array([[7, 0, number]]),
        history={
            name: np.stack(
                [observe(max(number - age, 0))[name][0] for age in range(history - 1, 0, -1)]
            )
            for name in (["observation"] if history > 1 else [])
        },
    )
