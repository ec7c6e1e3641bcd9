"""Makes the environments as objects, for commands without an rlx server, such as `relaax train`."""

from typing import Any

from relaax_like.client.program import refuse_keys

from .bits import BitSlots, make_bits


def make_slots(environment: Any, seed: int) -> BitSlots:
    """Makes the environments described by the section `environment` of an experiment.

    Args:
      environment: the section: `slots`, `args`.
      seed: seed of bits and goals.

    Raises:
      ConfigError: an argument is unknown or invalid, or a key is set for which the program has no
        flag.
    """
    refuse_keys(environment, "bit_flip")
    return make_bits(environment.args, environment.slots, seed)
