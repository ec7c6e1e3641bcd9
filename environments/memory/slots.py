"""Makes the environments as objects, for commands without an rlx server, such as `relaax train`."""

from typing import Any

from relaax_like.client.program import refuse_keys

from .recall import RecallSlots, make_recall


def make_slots(environment: Any, seed: int) -> RecallSlots:
    """Makes the environments described by the section `environment` of an experiment.

    Args:
      environment: the section: `slots`, `args`.
      seed: seed of the cues.

    Raises:
      ConfigError: an argument is unknown or invalid, or a key is set for which the program has no
        flag.
    """
    refuse_keys(environment, "memory")
    return make_recall(environment.args, environment.slots, seed)
