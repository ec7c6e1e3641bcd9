"""An experiment of ours as settings for Stable-Baselines3.

What the two understand differently, in ppo:

- the norm of gradients is bounded for all weights together there, for actor and critic each here;
- `kl` is the divergence of the two policies here, and an estimate of it from the actions there,
  where the bound counts 1.5 times (that is taken out);
- mean and deviation of observations move with every step there; here they are measured before the
  training (`prenorm`), or after each iteration (`update_norm`);
- `bounded` has no counterpart there: actions are clipped to their bounds.

CrossQ (crossq.yaml of xqc) is that of SBX: there, inputs are normalised, too, but hidden layers
after their activation, by batch renormalisation with epsilon 1e-3, which is plain in the first
100 000 updates.

In dqn, sac, td3 and ddpg:

- the first `warm_up_steps` are played uniformly at random there, by the policy here;
- noise of actions is constant there: the end of the schedule `exploration_noise`;
- there is no double DQN there;
- Adam adds epsilon after the correction of the second moment there, before it here.
"""

from collections.abc import Mapping
from typing import Any

from benchmarks.peers.peer import Settings
from relaax_like.config.continuous import ContinuousReplayConfig, NoisyReplayConfig
from relaax_like.config.models import Experiment
from relaax_like.config.network import DenseConfig
from relaax_like.config.replay import ReplayConfig

# Stable-Baselines3 stops at so many times its `target_kl`.
_KL_FACTOR = 1.5
_ENDLESS = 1e9
# Settings of xqc that CrossQ does not have.
_XQC_ONLY = ("atoms", "unit_norm", "target_networks", "normalize_rewards")


def make_settings(experiment: Experiment, agents: int = 1) -> Settings:
    """Returns the same training for `benchmarks.peers.sb3`, without an evaluation.

    All environments of all clients are in its one process.

    Args:
      experiment: ours.
      agents: of each environment; all of them have the same policy.

    Raises:
      ValueError: a setting of the experiment has no counterpart; names it.
    """
    config: Any = experiment.algorithm
    environment = experiment.environment
    if environment is None or environment.env is None:
        raise ValueError("environment: none of Gymnasium's")
    slots = environment.clients * environment.slots * agents
    make = _make_replay if isinstance(config, ReplayConfig) else _make_ppo
    settings: Any = {
        "env": environment.env,
        "env_args": dict(environment.args),
        "n_envs": slots,
        "steps": config.max_global_step,
        "seed": experiment.seed,
        "target": experiment.learner.target_return,
        "limit_sec": _ENDLESS,
        "started": 0.0,
        "eval_episodes": 0,
        "evaluations": 0,
        "evaluation_episodes": 0,
        **make(config, slots),
    }
    return settings


def _make_ppo(config: Any, slots: int) -> Any:
    """Returns the settings of the algorithm and the normalisation."""
    wrong = {
        "shared_network": config.shared_network,
        "normalize_advantage": config.normalize_advantage == "batch",
        "mirror": config.mirror != 0,
        "entropy_schedule": config.entropy_coefficient != 0
        and config.entropy_schedule != "constant",
    }
    _validate(config, wrong)
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
        "hyperparameters": hyperparameters,
        "falling": [name for name, schedule in schedules.items() if schedule == "linear"],
        "policy": {**_describe_network(config), "log_std_init": config.log_std_init},
        "action_noise": None,
        "normalize_observations": config.has_normalizer,
        "normalize_rewards": config.normalize_rewards,
    }


def _make_replay(config: Any, slots: int) -> Any:
    """Returns the settings of dqn, sac, td3, ddpg or crossq."""
    calls = config.updates_at_once / config.updates_per_step / slots
    wrong = {
        "updates_at_once": calls != int(calls),
        "n_step": config.n_step > 1,
        "priority_exponent": config.priority_exponent is not None,
        "normalize_observations": config.has_normalizer,
    }
    hyperparameters = {
        "buffer_size": config.capacity,
        "learning_starts": config.warm_up_steps,
        "batch_size": config.batch_size,
        "train_freq": int(calls),
        "gradient_steps": config.updates_at_once,
        "gamma": config.gamma,
        "learning_rate": config.learning_rate,
    }
    policy = _describe_network(config)
    if isinstance(config, ContinuousReplayConfig):
        hyperparameters["tau"] = config.tau
    else:
        copied = config.target_every / config.updates_per_step
        fraction = config.epsilon.steps / config.max_global_step
        wrong["target_every"] = copied != int(copied)
        wrong["dueling"] = config.dueling
        wrong["epsilon"] = config.epsilon.kind != "linear" or fraction > 1
        hyperparameters |= {
            "target_update_interval": int(copied),
            "exploration_initial_eps": config.epsilon.start,
            "exploration_final_eps": config.epsilon.end,
            "exploration_fraction": fraction,
            "max_grad_norm": config.max_gradient_norm or _ENDLESS,
        }
    if config.name == "sac":
        policy["n_critics"] = config.critics
        target, fixed = config.entropy_target, config.temperature
        hyperparameters["target_entropy"] = "auto" if target is None else target
        hyperparameters["ent_coef"] = "auto" if fixed is None else fixed
    if config.name == "xqc":
        wrong |= {key: getattr(config, key) not in (None, False) for key in _XQC_ONLY}
        wrong["last_rate_share"] = config.last_rate_share < 1
        del hyperparameters["tau"]
        target, start = config.entropy_target, config.initial_temperature
        hyperparameters |= {
            "policy_delay": config.actor_every,
            "target_entropy": "auto" if target is None else target,
            "ent_coef": f"auto_{start}",
        }
        policy["n_critics"] = config.critics
        policy["optimizer_kwargs"]["b1"] = config.adam_beta1
    if config.name == "td3":
        hyperparameters |= {
            "policy_delay": config.policy_delay,
            "target_policy_noise": config.target_noise,
            "target_noise_clip": config.target_noise_clip,
        }
    _validate(config, wrong)
    noise = config.exploration_noise.end if isinstance(config, NoisyReplayConfig) else None
    return {
        "algorithm": "crossq" if config.name == "xqc" else config.name,
        "hyperparameters": hyperparameters,
        "falling": [],
        "policy": policy,
        "action_noise": noise,
        "normalize_observations": False,
        "normalize_rewards": False,
    }


def _describe_network(config: Any) -> dict[str, Any]:
    return {
        "net_arch": [getattr(layer, "units", 0) for layer in config.network.layers],
        "activation_fn": config.network.activation,
        "optimizer_kwargs": {"eps": config.adam_epsilon},
    }


def _validate(config: Any, more: Mapping[str, bool]) -> None:
    """Refuses settings without a counterpart: those of `more`, and those that all have."""
    rate = config.learning_rate
    wrong = {
        "network": not all(isinstance(layer, DenseConfig) for layer in config.network.layers),
        "critic_learning_rate": getattr(config, "critic_learning_rate", rate) != rate,
        "observation_history": config.observation_history > 1,
        **more,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(
                f"{name}: {getattr(config, name)} has no counterpart in Stable-Baselines3"
            )
