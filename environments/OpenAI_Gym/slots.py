"""Makes the environments as objects, for commands without an rlx server, such as `relaax train`."""

from typing import Any

from relaax_like.client.interactor import EnvironmentSlots
from relaax_like.wire.errors import ConfigError

from .gym_make import find_needs
from .gym_make import make_slots as make_gym_slots


def make_slots(environment: Any, seed: int, draw: bool = False) -> EnvironmentSlots:
    """Makes the environments described by the section `environment` of an experiment.

    Args:
      environment: the section: `env`, `slots`, `action_repeat`, `random_steps`,
        `max_episode_steps`, `seed_resets`, `masks`, `args`.
      seed: of the first reset.
      draw: whether slot 0 will be drawn.

    Raises:
      ConfigError: `env` is missing; or see `gym_make.make_slots`.
    """
    if environment.env is None:
        raise ConfigError(
            "environment.env: missing; set it to the name of an environment, such as CartPole-v1"
        )
    return make_gym_slots(
        environment.env,
        environment.slots,
        seed=seed,
        needs=find_needs(environment),
        action_repeat=environment.action_repeat,
        env_args=dict(environment.args),
        draw=draw,
        masks=environment.masks,
    )
