"""Learning-rate schedules, as functions of the environment steps of all clients together."""

from relaax_like.config.optimizer import OptimizerConfig


def compute_learning_rate(config: OptimizerConfig, global_t: int) -> float:
    """Computes the learning rate in force at `global_t`.

    Args:
      config: the optimizer; its schedule is "constant" or "linear".
      global_t: environment steps, 0 or more.

    Returns:
      For "constant": `learning_rate`. For "linear": interpolated from `learning_rate` at step 0 to
      `learning_rate_end` at `schedule_env_steps`, and `learning_rate_end` afterwards.
    """
    if config.schedule == "constant":
        return config.learning_rate
    # The configuration guarantees that both are set with schedule: linear.
    assert config.learning_rate_end is not None
    assert config.schedule_env_steps is not None
    if global_t >= config.schedule_env_steps:
        return config.learning_rate_end
    done = global_t / config.schedule_env_steps
    return config.learning_rate + done * (config.learning_rate_end - config.learning_rate)
