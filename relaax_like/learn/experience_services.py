"""ExperienceServices: one `ExperienceService` for each Algorithm, started and ended together."""

import threading
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import TYPE_CHECKING

from relaax_like.core.records import TableStatus
from relaax_like.core.roles import ExperienceSink
from relaax_like.learn.experience_service import ExperienceService

if TYPE_CHECKING:  # They import TensorFlow.
    from relaax_like.learn.agent_source import AgentSource
    from relaax_like.learn.learner_loop import LearnerLoop

# How long `stop` waits for the current iterations.
_STOP_SEC = 2.0


class ExperienceServices:
    """Starts and ends the services of all Algorithms together.

        services = ExperienceServices(make_learners, make_service, on_failure, ("goal", "control"))
        services.start()
        BridgeControl().create_server(address, parameter_server, experience=services.sinks)
        services.stop()

    Args:
      make_learners: returns the learners of all Algorithms, by name; called once, in the thread of
        one of the services, because it can import TensorFlow.
      make_service: makes the service of an Algorithm, given its name, the function that makes its
        learner, and the callback for failures.
      on_failure: called once, from a thread, with the first failure of any Algorithm.
      names: of the Algorithms; "": the only one.

    Attributes:
      sinks: name -> sink of its experience.
    """

    def __init__(
        self,
        make_learners: "Callable[[], Mapping[str, LearnerLoop[AgentSource]]]",
        make_service: """Callable[
            [str, Callable[[], LearnerLoop[AgentSource]], Callable[[Exception], None]],
            ExperienceService,
        ]""",
        on_failure: Callable[[Exception], None],
        names: tuple[str, ...],
    ):
        self._make_learners = make_learners
        self._on_failure = on_failure
        self._making = threading.Lock()  # guards the next two attributes
        self._made: Mapping[str, LearnerLoop[AgentSource]] = {}
        self._error: Exception | None = None
        self._failing = threading.Lock()
        self._services = {name: self._make(name, make_service) for name in names}
        self.sinks: Mapping[str, ExperienceSink] = self._services

    @property
    def has_agents(self) -> bool:
        """Whether an Algorithm has agents that can still report steps; see `ExperienceService`."""
        return any(service.has_agents for service in self._services.values())

    @property
    def table_status(self) -> TableStatus:
        """Status of the tables of all loaded Algorithms: all overdue updates, the first step."""
        tables = [service.table_status for service in self._services.values()]
        if len(tables) == 1:
            return tables[0]
        overdue = [one.overdue_updates for one in tables if one.overdue_updates is not None]
        steps = [one.given_up_step for one in tables if one.given_up_step is not None]
        return TableStatus(sum(overdue) if overdue else None, min(steps, default=None))

    def start(self) -> None:
        """Loads the learners, and starts to learn; returns immediately."""
        for service in self._services.values():
            service.start()

    def stop(self, timeout_sec: float | None = _STOP_SEC) -> None:
        """Stops all services, each after its current iteration; see `ExperienceService.stop`."""
        with futures.ThreadPoolExecutor(len(self._services)) as executor:
            stops = [executor.submit(one.stop, timeout_sec) for one in self._services.values()]
        for stop in stops:
            stop.result()

    def join(self) -> None:
        """Waits for the end of all threads, after `stop`."""
        for service in self._services.values():
            service.join()

    def _make(self, name: str, make_service: Callable[..., ExperienceService]) -> ExperienceService:
        return make_service(name, lambda: self._get_learner(name), self._fail)

    def _get_learner(self, name: str) -> "LearnerLoop[AgentSource]":
        """Returns an Algorithm's learner; the first call makes the learners of all Algorithms."""
        with self._making:
            if self._error is not None:
                raise self._error
            if not self._made:
                try:
                    self._made = self._make_learners()
                except Exception as error:
                    self._error = error
                    raise
            return self._made[name]

    def _fail(self, error: Exception) -> None:
        if self._failing.acquire(blocking=False):  # it is never released
            self._on_failure(error)
