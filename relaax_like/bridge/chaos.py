"""Simulates a bad network: loses requests and replies of pushes, and repeats pushes in progress.

    RELAAX_CHAOS=request_lost=0.1,reply_lost=0.1,in_flight=0.05,seed=3 relaax-rlx-server --config F

For testing its effects on a run; off by default. One random number is drawn for each attempt to
send a push.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from relaax_like.core.records import Reply
from relaax_like.wire.errors import ConfigError, RelaaxError, ServerUnavailableError

ENVIRONMENT_VARIABLE = "RELAAX_CHAOS"


@dataclass
class Chaos:
    """Probabilities of the failures of a call.

    Attributes:
      request_lost: probability that the server does not receive the call.
      reply_lost: probability that the call takes effect, but its caller receives no reply.
      in_flight: probability that the caller gives up immediately and repeats the call while it is
        still in progress.
      seed: seed of the random numbers.
    """

    request_lost: float = 0.0
    reply_lost: float = 0.0
    in_flight: float = 0.0
    seed: int = 0
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def call(self, call: Callable[[], Reply]) -> Reply:
        """Makes a call, or simulates a failure.

        Raises:
          ServerUnavailableError: the request or the reply was lost, or the caller is to repeat the
            call while it is in progress.
          Exception: what the call itself raised.
        """
        draw = self._random.random()
        if draw < self.request_lost:
            raise ServerUnavailableError(f"{ENVIRONMENT_VARIABLE}: the request was lost")
        draw -= self.request_lost
        if draw < self.in_flight:
            threading.Thread(target=_forget, args=(call,), name="in flight", daemon=True).start()
            raise ServerUnavailableError(f"{ENVIRONMENT_VARIABLE}: repeated while in progress")
        draw -= self.in_flight
        reply = call()
        if draw < self.reply_lost:
            raise ServerUnavailableError(f"{ENVIRONMENT_VARIABLE}: the reply was lost")
        return reply


def _forget(call: Callable[[], Reply]) -> None:
    with contextlib.suppress(RelaaxError):  # the caller receives it when it repeats the call
        call()


def from_environment() -> Chaos | None:
    """Returns the failures that RELAAX_CHAOS defines; None: the variable is unset or empty.

    Raises:
      ConfigError: see `parse`.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    return parse(text) if text else None


def parse(text: str) -> Chaos:
    """Parses `NAME=PROBABILITY` and `seed=N`, separated by commas.

    Raises:
      ConfigError: a name is unknown, a value is not a number, a probability is not within 0 to 1,
        or the probabilities add up to more than 1.
    """
    names = [one.name for one in fields(Chaos) if one.init]
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in names:
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE}: unknown name {name!r:.60}, expected one of "
                f"{', '.join(names)}"
            )
        try:
            values[name] = int(value) if name == "seed" else float(value)
        except ValueError:
            number = "an integer" if name == "seed" else "a number"
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE}: {name} is {value!r:.60}, expected {number}"
            ) from None
    chances = {name: value for name, value in values.items() if name != "seed"}
    for name, chance in chances.items():
        if not 0 <= chance <= 1:
            raise ConfigError(
                f"{ENVIRONMENT_VARIABLE}: {name} is {chance}, expected a probability from 0 to 1"
            )
    if (total := sum(chances.values())) > 1:
        raise ConfigError(
            f"{ENVIRONMENT_VARIABLE}: the probabilities add up to {total}, expected at most 1"
        )
    return Chaos(**values)  # type: ignore[arg-type]  # the seed is an int
