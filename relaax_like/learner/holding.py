"""Holding: which agents wait for the next iteration, and when waiting would be in vain."""

import time
from collections.abc import Callable
from dataclasses import dataclass

# An agent that has sent nothing for so long is not waited for.
_ACTIVE_SEC = 2.0


@dataclass
class _Agent:
    """One agent: slots of its rollouts, when it was heard, rollouts of it that are held."""

    columns: int
    heard: float
    held: int = 0


class Holding:
    """Decides whether the agents behind an iteration that is not whole are to wait for it.

        holding.add("client-1/agent-3", ticket, columns=8)
        for ticket in holding.find_released(missing_columns): ...   # these agents act on
        holding.release(tickets_that_were_learned_from)

    On-policy learning wants agents to wait until an iteration has been learned from. But when those
    that do not wait cannot fill it, all who wait would wait for ever: they act on with the same
    policy. Not thread-safe.

    Args:
      clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._agents: dict[str, _Agent] = {}
        self._held: dict[int, str] = {}  # ticket -> agent

    def add(self, agent: str, ticket: int, columns: int) -> None:
        """Notes that an agent has sent a rollout and waits."""
        known = self._agents.get(agent)
        held = 0 if known is None else known.held
        self._agents[agent] = _Agent(columns, self._clock(), held + 1)
        self._held[ticket] = agent

    def leave(self, agent: str) -> None:
        """Notes that an agent sends nothing more."""
        self._agents.pop(agent, None)

    def release(self, tickets: tuple[int, ...] | list[int]) -> None:
        """Notes that agents act on."""
        now = self._clock()
        for ticket in tickets:
            agent = self._agents.get(self._held.pop(ticket, ""))
            if agent is not None:
                agent.held -= 1
                agent.heard = now  # from here on it plays

    def find_released(self, missing_columns: int) -> list[int]:
        """Returns the tickets of all who wait, if the others cannot fill the iteration.

        Args:
          missing_columns: to a whole one, 1 or more.
        """
        limit = self._clock() - _ACTIVE_SEC
        for name in [n for n, a in self._agents.items() if not a.held and a.heard < limit]:
            del self._agents[name]
        to_come = sum(agent.columns for agent in self._agents.values() if not agent.held)
        return [] if to_come >= missing_columns else list(self._held)
