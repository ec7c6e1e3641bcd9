"""ReplayQueue: agents' requests as a source of minibatches, for the learner beside them."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relaax_like.core.records import LearnRequest
from relaax_like.learn.replayed import Replayed, ReplayIteration
from relaax_like.learn.request_queue import Requests, RequestSource
from relaax_like.learn.tally import Tally
from relaax_like.wire.errors import CollectorFullError


class ReplayQueue(RequestSource):
    """Puts agents' rollouts into a replay table beside them; see `RequestSource`.

    An agent's request is answered once the table has its rollout: immediately, unless the learner
    is too far behind.

    Args:
      replayed: holds the table; has no log.
      tally: the one that `replayed` counts with.
      holds_agents: whether a request is answered only when no minibatch is due any more. Then what
        agents see does not depend on the clock.
    """

    def __init__(self, replayed: Replayed, tally: Tally, holds_agents: bool = False):
        super().__init__()
        self._replayed = replayed
        self._tally = tally
        self._holds_agents = holds_agents
        self._numbers: list[int] = []  # of requests whose rollouts the table has
        self._held: deque[LearnRequest] = deque()  # for which there was no room
        self._reports: list[int] = []  # numbers of requests to be answered with the newest values
        self._slots: dict[str, Sequence[int]] = {}  # agent -> slots of its newest rollout
        self._failed: Requests | None = None

    def note_learned(
        self, number: int, iteration: ReplayIteration, results: Mapping[str, Any]
    ) -> None:
        """Sets priorities in the table, and passes the results to the data handler; see `Source`.

        Raises:
          ConfigError: the data handler has failed; the error names the line.
          InvalidInputError: a priority is not finite.
        """
        self._replayed.note_learned(number, iteration, results)

    def take_state(self) -> dict[str, Any]:
        """Returns the table, and removes what is to be counted; see `Source`."""
        return self._replayed.take_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `take_state` returned; see `Source`."""
        self._replayed.set_state(state)

    def close(self) -> None:
        """Stops accepting rollouts."""
        self._replayed.close()

    def _may_read(self) -> bool:
        return self._failed is None and not self._held

    def _take(self, request: LearnRequest) -> None:
        if request.is_leaving:
            self._replayed.forget(self._slots.pop(request.agent, ()))
        elif request.rollout is None or self._finished:
            self._report(request)
        else:
            self._insert(request)

    def _report(self, request: LearnRequest) -> None:
        self._tally.add(request.env_steps, request.episodes)
        self._reports.append(request.number)

    def _insert(self, request: LearnRequest) -> None:
        assert request.rollout is not None
        try:
            rollout = self._replayed.conform(request.rollout)
            self._replayed.add(
                rollout, request.episodes, request.env_steps, is_urgent=request.is_urgent
            )
        except CollectorFullError:
            self._held.append(request)
        except Exception as error:
            self._tally.add(request.env_steps, request.episodes)
            self._failed = Requests((request.number,), error=error)
        else:
            self._numbers.append(request.number)
            if rollout.starts is not None:
                self._slots[request.agent] = rollout.starts[:, 0].tolist()

    def _find(self) -> ReplayIteration | Requests | None:
        """Returns the next iteration or requests; None: nothing yet."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            return failed
        if self._finished:
            while self._held:
                self._report(self._held.popleft())
            self._reports += self._answer()
        if self._reports:
            reports, self._reports = self._reports, []
            return Requests(reports)
        for request in [self._held.popleft() for _ in range(len(self._held))]:
            self._insert(request)
        if self._numbers and not self._holds_agents:
            return Requests(self._answer(), wants_values=False)
        if not self._finished and self._replayed.has_iteration:
            try:
                iteration = self._replayed.get(0, timeout_sec=0.0)
            except Exception as error:  # such as one of `compute_rewards`
                return Requests(self._answer(), error=error)
            if iteration is not None and iteration.minibatches is not None:
                return replace(iteration, tickets=())
            return Requests(self._answer())  # whose steps are counted now
        if self._numbers:
            return Requests(self._answer(), wants_values=False)
        if self._has_read_end:
            self.has_ended = True
        return None

    def _answer(self) -> list[int]:
        numbers, self._numbers = self._numbers, []
        return numbers
