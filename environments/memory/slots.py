"""The environments as objects, for training in one process (`relaax train`, `relaax eval`)."""

from typing import Any

from relaax_like.wire import ConfigError

from .recall import RecallSlots, make_recall


def make_slots(environment: Any, seed: int) -> RecallSlots:
    """Makes the environments described by the section `environment` of an experiment.

    Args:
      environment: the section: `slots`, `args`.
      seed: seed of the cues.

    Raises:
      ConfigError: an argument is invalid, or the program has no flag for a key.
    """
    for key, default in (
        ("env", None),
        ("action_repeat", 1),
        ("random_steps", 0),
        ("max_episode_steps", None),
    ):
        value = getattr(environment, key)
        if value != default:
            raise ConfigError(
                f"environment.{key}: {value!r} is not supported by the program memory, which "
                f"has no --{key.replace('_', '-')}; remove the key"
            )
    return make_recall(environment.args, environment.slots, seed)
