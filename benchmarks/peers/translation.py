"""An experiment with our ppo as settings for Stable-Baselines3's.

What the two understand differently:

- the norm of gradients is bounded for all weights together there, for actor and critic each here;
- `kl` is the divergence of the two policies here, and an estimate of it from the actions there,
  where the bound counts 1.5 times (that is taken out);
- mean and deviation of observations move with every step there; here they are measured before the
  training (`prenorm`), or after each iteration (`update_norm`);
- `bounded` has no counterpart there: actions are clipped to their bounds.
"""

from typing import Any

from benchmarks.peers.peer import Settings
from relaax_like.config.models import Experiment
from relaax_like.config.network import DenseConfig

# Stable-Baselines3 stops at so many times its `target_kl`.
_KL_FACTOR = 1.5
_ENDLESS = 1e9


def make_settings(experiment: Experiment) -> Settings:
    """Returns the same training for `benchmarks.peers.sb3`, without an evaluation.

    All environments of all clients are in its one process.

    Raises:
      ValueError: a setting of the experiment has no counterpart; names it.
    """
    config: Any = experiment.algorithm
    environment = experiment.environment
    if environment is None or environment.env is None:
        raise ValueError("environment: none of Gymnasium's")
    _validate(config)
    slots = environment.clients * environment.slots
    hyperparameters = {
        "n_steps": config.num_steps // slots,
        "batch_size": config.batch_size,
        "n_epochs": config.epochs,
        "gamma": config.gamma,
        "gae_lambda": config.gae_lambda,
        "learning_rate": config.learning_rate,
        "clip_range": config.clip,
        "clip_range_vf": config.clip_value,
        "normalize_advantage": config.normalize_advantage == "minibatch",
        "ent_coef": config.entropy_coefficient,
        "vf_coef": config.value_coefficient,
        "max_grad_norm": config.max_gradient_norm or _ENDLESS,
        "target_kl": None if config.kl is None else config.kl / _KL_FACTOR,
    }
    schedules = {"learning_rate": config.lr_schedule, "clip_range": config.clip_schedule}
    return {
        "algorithm": "ppo",
        "env": environment.env,
        "env_args": dict(environment.args),
        "n_envs": slots,
        "steps": config.max_global_step,
        "seed": experiment.seed,
        "hyperparameters": hyperparameters,
        "falling": [name for name, schedule in schedules.items() if schedule == "linear"],
        "policy": {
            "net_arch": [layer.units for layer in config.network.layers],
            "activation_fn": config.network.activation,
            "log_std_init": config.log_std_init,
            "optimizer_kwargs": {"eps": config.adam_epsilon},
        },
        "normalize_observations": config.has_normalizer,
        "normalize_rewards": config.normalize_rewards,
        "target": experiment.learner.target_return,
        "limit_sec": _ENDLESS,
        "started": 0.0,
        "eval_episodes": 0,
    }


def _validate(config: Any) -> None:
    wrong = {
        "network": not all(isinstance(layer, DenseConfig) for layer in config.network.layers),
        "shared_network": config.shared_network,
        "critic_learning_rate": config.critic_learning_rate != config.learning_rate,
        "normalize_advantage": config.normalize_advantage == "batch",
        "mirror": config.mirror != 0,
        "entropy_schedule": config.entropy_coefficient != 0
        and config.entropy_schedule != "constant",
        "observation_history": config.observation_history > 1,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"{name}: {getattr(config, name)} has no counterpart in its PPO")
