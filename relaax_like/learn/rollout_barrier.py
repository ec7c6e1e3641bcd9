"""RolloutBarrier: decides which agents wait until an iteration has been learned from."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# The others do not wait for an agent that has been silent for twice as long as its newest rollout
# took, within these bounds.
_MIN_SILENCE_SEC, _MAX_SILENCE_SEC = 2.0, 10.0
# A silent agent is forgotten after this time.
_FORGET_SEC = 2 * _MAX_SILENCE_SEC


@dataclass
class _Agent:
    """What the barrier knows about one agent.

    Attributes:
      columns: slots per rollout.
      heard: seconds of the clock when it last sent a rollout or was released.
      took_sec: time between its newest rollout and the previous `heard`.
      held: number of its rollouts that wait to be learned from.
    """

    columns: int
    heard: float
    took_sec: float = 0.0
    held: int = 0

    def plays(self, now: float) -> bool:
        """Returns whether a rollout of this agent is expected."""
        patience = min(max(2 * self.took_sec, _MIN_SILENCE_SEC), _MAX_SILENCE_SEC)
        return not self.held and now - self.heard <= patience


class RolloutBarrier:
    """Decides whether the agents behind an incomplete iteration wait for it.

        barrier.add("client-1/agent-3", ticket, columns=8)
        for ticket in barrier.find_released(missing_columns): ...   # these agents keep acting
        barrier.release(tickets_that_were_learned_from)

    On-policy learning needs agents to wait until an iteration has been learned from. But if the
    agents that still play cannot complete it, the waiting agents would wait forever; they then
    continue with the same policy. Not thread-safe.

    Args:
      waits: whether agents wait for an incomplete iteration; False: none does.
      clock: returns monotonic seconds.
    """

    def __init__(self, waits: bool = True, clock: Callable[[], float] = time.monotonic):
        self._waits = waits
        self._clock = clock
        self._agents: dict[str, _Agent] = {}
        self._held: dict[int, str] = {}  # ticket -> agent

    def add(self, agent: str, ticket: int, columns: int) -> None:
        """Notes that an agent has sent a rollout and waits."""
        now = self._clock()
        known = self._agents.setdefault(agent, _Agent(columns, heard=now))
        known.took_sec, known.heard = now - known.heard, now
        known.columns = columns
        known.held += 1
        self._held[ticket] = agent

    def leave(self, agent: str) -> None:
        """Notes that an agent will send nothing more."""
        self._agents.pop(agent, None)

    @property
    def is_empty(self) -> bool:
        """Whether all agents that have sent a rollout have left or were forgotten."""
        return not self._agents

    def release(self, tickets: Iterable[int]) -> None:
        """Notes that the agents of these rollouts continue to act; ignores unknown tickets."""
        now = self._clock()
        for ticket in tickets:
            agent = self._agents.get(self._held.pop(ticket, ""))
            if agent is not None and agent.held:
                agent.held -= 1
                agent.heard = now  # from now on it plays

    def find_released(self, missing_columns: int) -> list[int]:
        """Returns the tickets of all waiting agents, if the others cannot fill the iteration.

        If agents do not wait for incomplete iterations, it returns all tickets, too; otherwise [].
        Forgets agents that do not wait and have been silent for 20 s.

        Args:
          missing_columns: number of columns that the iteration lacks, 1 or more.
        """
        now = self._clock()
        limit = now - _FORGET_SEC
        for name in [n for n, a in self._agents.items() if not a.held and a.heard < limit]:
            del self._agents[name]
        to_come = sum(agent.columns for agent in self._agents.values() if agent.plays(now))
        waits = self._waits and to_come >= missing_columns
        return [] if waits else list(self._held)
