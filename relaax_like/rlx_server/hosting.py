"""Builds the agents of a session from the experiment's algorithm folder."""

import abc
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from relaax_like.agent.agent import Agent
from relaax_like.agent.batch_agent import BatchAgent, SimpleRLAgent
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.agent.history import ObservationHistory
from relaax_like.agent.online_helper import AGENT_SHARE, OnlineHelper
from relaax_like.bridge.client import make_client_id
from relaax_like.bridge.client_view import ClientView
from relaax_like.config.leaves import ObservationConfig
from relaax_like.config.plan import Plan, get_own_plan, get_rollout_steps
from relaax_like.config.spaces import describe_mismatch, validate_run_spaces
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.roles import ParameterServerClient
from relaax_like.experience.ranges import Ranges, RangeWatch
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.greeting import Greeting
from relaax_like.rlx_server.plain_slots import PlainSlots
from relaax_like.rlx_server.slots import Slots, SlotSpec
from relaax_like.rlx_server.transition import Arrays
from relaax_like.wire.errors import (
    ConfigError,
    InvalidInputError,
    ProtocolError,
    RelaaxError,
    ServerUnavailableError,
)
from relaax_like.wire.spaces import Spaces, split_masks

_START_WAIT_SEC = 5.0
_VERBS = ("act", "reward_and_act", "reward_and_reset")


class AgentHost(abc.ABC):
    """Makes the agents that serve a client.

    Attributes:
      on_ready: called, from any thread, when the learner has answered an agent, which might have
        waited for it; not when an agent's longest wait is over.
      ranges: of what the environments return.
    """

    def __init__(self) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.ranges = RangeWatch()

    def make_agents(self, greeting: Greeting) -> Slots:
        """Builds the agents of a greeted client; see `make_slot_agents`."""
        spec = SlotSpec(
            greeting.inputs,
            greeting.action_spaces,
            greeting.slots,
            make_client_id(greeting.client_name),
            greeting.exploit,
            greeting.max_wait_sec,
            greeting.wants_pings,
            agents=greeting.agents,
            kinds=greeting.kinds,
        )
        return self.make_slot_agents(spec)

    @abc.abstractmethod
    def make_slot_agents(self, spec: SlotSpec) -> Slots:
        """Builds the agents of k slots.

        Raises:
          ProtocolError: SPACE_MISMATCH, when the algorithm cannot use the spaces.
          InvalidInputError: `max_wait_sec` is set, but the agents can block.
          ServerUnavailableError: the parameter server or the learner is not ready.
          ConfigError: the algorithm folder's code fails, the agent class or the settings do not fit
            its Algorithms, or the run has another model.
          RelaaxError: the parameter server or the learner refuses these agents; see
            `Learner.start`.
          Exception: raised by the constructor of the agent class.
        """

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers the requests of batch-native agents; plain agents make no requests.

        Raises:
          NotImplementedError: the host makes plain agents.
          RelaaxError: see `BatchHost.predict`.
        """
        raise NotImplementedError("plain agents do not request predictions")

    def close(self) -> None:
        """Releases what the agents share, and reports values outside of their boxes.

        Raises:
          Exception: see `BatchHost.close`.
        """
        self.ranges.close()


def predict_by_name(
    names: Sequence[str],
    requests: Sequence[Request],
    predict: Callable[[str, list[Request]], Sequence[Prediction]],
) -> list[Prediction]:
    """Returns the predictions for requests, of which those of equal names are asked together."""
    answers: dict[int, Prediction] = {}
    for name in dict.fromkeys(names):
        chosen = [number for number, own in enumerate(names) if own == name]
        answers.update(zip(chosen, predict(name, [requests[n] for n in chosen]), strict=True))
    return [answers[number] for number in range(len(requests))]


class BatchHost(AgentHost):
    """Makes batch-native agents, which share one model and one processor for each Algorithm.

    Args:
      config: the algorithm's `Config`; its `rollout_steps` is a number, or one for each Algorithm.
      make_processors: opens the shared processors, name -> processor, for the first agent; returns
        them without starting them.
      agent_class: of the agents.
      rollouts_ahead: see `ahead` of `OnlineHelper`.
      max_segment_sec: see `OnlineHelper`; for plans that can learn from steps with gaps.
      recorded_steps: T of rollouts that are recorded, whatever the plan is; None: that of the plan.
      is_greedy: whether agents that learn also choose the best actions.
    """

    def __init__(
        self,
        config: Any,
        make_processors: Callable[[], Mapping[str, ComputationDataProcessor]],
        agent_class: type[BatchAgent] = SimpleRLAgent,
        rollouts_ahead: int = 0,
        max_segment_sec: float | None = None,
        recorded_steps: int | None = None,
        is_greedy: bool = False,
    ):
        super().__init__()
        self._config = config
        self._agent_class = agent_class
        self._recorded_steps = recorded_steps
        self._is_greedy = is_greedy
        self._rollouts_ahead = rollouts_ahead
        self._max_segment_sec = max_segment_sec
        self._make_processors = make_processors
        self._lock = threading.Lock()  # guards the making of _processors
        self._processors: Mapping[str, ComputationDataProcessor] = {}
        self._predict: Callable[[Sequence[Request]], list[Prediction]] = self._predict_by_name

    def make_slot_agents(self, spec: SlotSpec) -> Slots:
        """Builds one agent for all slots; see `AgentHost`, also for the errors."""
        _validate_spaces(self._config, spec)
        observation_spaces = spec.observation_spaces
        processors = self._get_processors()
        if not spec.exploit:
            _validate_privileged(processors.values(), observation_spaces)
        if self._agent_class is SimpleRLAgent:  # others can change the policy's actions
            for processor in processors.values():
                try:
                    processor.expect_actions(spec.action_spaces)
                except ConfigError as error:
                    raise ProtocolError(str(error), "SPACE_MISMATCH", "action_spaces") from error
        length = self._config.observation_history
        agent = self.make_agent(
            spec.slots,
            not spec.exploit,
            lambda: self.on_ready(),
            spec.client_id,
            spec.max_wait_sec,
        )
        agent.exploit = agent.exploit and not spec.draws
        return BatchSlots(
            agent,
            processors[self._main_algorithm],
            spec,
            self._get_plan(self._main_algorithm),
            ObservationHistory(length, spec.slots) if length > 1 else None,
            _make_shaper(self._config, processors.values(), observation_spaces),
            any(self._get_plan(name).replaces_goals for name in processors),
            Ranges(self.ranges, observation_spaces, spec.action_spaces),
        )

    def make_agent(
        self,
        slots: int = 1,
        learning: bool = True,
        on_learned: Callable[[], None] = lambda: None,
        client: str = "",
        max_wait_sec: float | None = None,
    ) -> BatchAgent:
        """Builds an agent for k slots; scripts call this without a session, and then its `run`.

        Args:
          slots: k.
          learning: see `BatchAgent`.
          on_learned: see `OnlineHelper`.
          client: see `OnlineHelper`.
          max_wait_sec: longest time from a step to its answer; None: no limit.

        Raises:
          ServerUnavailableError: the parameter server or the learner is not ready.
          ConfigError: the algorithm folder's code fails, the agent class or the settings do not fit
            its Algorithms, or the run has another model.
          RelaaxError: see `Learner.start`.
          Exception: raised by the constructor of the agent class.
        """
        wait_sec = None if max_wait_sec is None else max_wait_sec * AGENT_SHARE
        helpers = {}
        for name, processor in self._get_processors().items():
            plan = self._get_plan(name) if self._recorded_steps is None else Plan()
            helpers[name] = OnlineHelper(
                processor,
                slots,
                self._recorded_steps or get_rollout_steps(self._config, name),
                plan=plan,
                ahead=self._rollouts_ahead,
                max_wait_sec=wait_sec,
                client=client,
                max_segment_sec=self._max_segment_sec if plan.takes_gaps else None,
            )
            helpers[name].on_learned = on_learned
        agent = self._agent_class(helpers, slots, config=self._config, learning=learning)
        agent.exploit = agent.exploit or self._is_greedy
        return agent

    def predict(self, requests: Sequence[Request]) -> list[Prediction]:
        """Answers the requests of all agents, in one call for each Algorithm.

        Raises:
          RelaaxError: there are several Algorithms, and an agent asked for one that does not exist;
            or see `ComputationDataProcessor.predict`.
        """
        return self._predict(requests)

    def take_state(self) -> dict[str, Any]:
        """Returns the shared processors' state by name; call while nothing is in progress."""
        return {name: processor.take_state() for name, processor in self._processors.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `take_state` returned, after agents were made.

        Raises:
          InvalidInputError: see `Learner.set_state`.
        """
        for name, processor in self._processors.items():
            processor.set_state(state[name])

    def close(self) -> None:
        """Stops learning, after the gradients in progress.

        Raises:
          Exception: raised by the first learner that failed to stop.
        """
        super().close()
        # All at once: each might have to wait for the parameter server.
        with futures.ThreadPoolExecutor(max(1, len(self._processors))) as executor:
            stops = [executor.submit(p.stop) for p in self._processors.values()]
        for stop in stops:
            stop.result()

    def _predict_by_name(self, requests: Sequence[Request]) -> list[Prediction]:
        if unknown := {request.algorithm for request in requests} - self._processors.keys():
            raise RelaaxError(
                f"class {self._agent_class.__name__} asked for the Algorithm {min(unknown)!r}, but "
                f"there are {', '.join(self._processors)}; ask for one of them"
            )
        names = [request.algorithm for request in requests]
        return predict_by_name(
            names, requests, lambda name, own: self._processors[name].predict(own)
        )

    def _get_plan(self, name: str) -> Plan:
        return get_own_plan(self._config, name) or Plan()

    @property
    def _main_algorithm(self) -> str:
        return self._agent_class.main_algorithm or next(iter(self._processors))

    def _get_processors(self) -> Mapping[str, ComputationDataProcessor]:
        # Hellos must not wait for each other while the parameter server is unavailable.
        if not self._lock.acquire(timeout=_START_WAIT_SEC):
            raise ServerUnavailableError(
                "the parameter server or the learner is not ready; retry later"
            )
        try:
            if not self._processors:
                self._processors = self._start_processors()
            processors = self._processors
        finally:
            self._lock.release()
        if processors[self._main_algorithm].finished:
            # The parameter server might have been restarted since, with a larger budget.
            for processor in processors.values():
                refreshed = threading.Event()
                processor.refresh(refreshed.set)
                refreshed.wait(_START_WAIT_SEC)
        return processors

    def _start_processors(self) -> Mapping[str, ComputationDataProcessor]:
        processors = dict(self._make_processors())
        main = self._agent_class.main_algorithm
        if main is not None and main not in processors:
            raise ConfigError(
                f"class {self._agent_class.__name__}: main_algorithm is {main!r}, expected one "
                f"of {', '.join(processors)}, or None for the first one; set it to one of these"
            )
        try:
            for processor in processors.values():
                processor.start()
        except BaseException:
            for processor in processors.values():
                processor.stop()
            raise
        if len(processors) == 1:
            self._predict = next(iter(processors.values())).predict
        return processors


class PlainHost(AgentHost):
    """Makes plain agents: one instance and one view of the parameter server per slot.

    Args:
      config: the algorithm's `Config`.
      agent_class: the algorithm folder's `Agent(config, parameter_server)`.
      make_client: opens another agent's view of the parameter server, given its client id.

    Raises:
      ConfigError: the class lacks a verb, or is abstract.
    """

    def __init__(
        self,
        config: Any,
        agent_class: Callable[[Any, ParameterServerClient], Any],
        make_client: Callable[[str], ParameterServerClient],
    ):
        super().__init__()
        _validate_agent_class(agent_class)
        self._config = config
        self._agent_class = agent_class
        self._make_client = make_client

    def make_slot_agents(self, spec: SlotSpec) -> Slots:
        """Builds one plain agent per slot; see `AgentHost`, also for the errors."""
        if spec.max_wait_sec is not None:
            raise InvalidInputError(
                "max_wait_ms: the agents of this algorithm run their own code (agent.py), which "
                "can block; connect without max_wait_ms, or derive Agent from BatchAgent"
            )
        _validate_spaces(self._config, spec)
        clients = [self._make_client(f"{spec.client_id}-{slot}") for slot in range(spec.slots)]
        if spec.exploit:
            clients = [ClientView(client, is_read_only=True) for client in clients]

        def make_agent(client: ParameterServerClient) -> Any:
            agent = self._agent_class(self._config, client)
            agent.exploit = spec.exploit
            return agent

        spaces = split_masks(spec.observation_spaces)[0], spec.action_spaces
        ranges = Ranges(self.ranges, *spaces)
        return PlainSlots(make_agent, clients, *spaces, not spec.exploit, ranges)


def _validate_spaces(config: Any, spec: SlotSpec) -> None:
    if spec.kinds:
        raise ProtocolError(
            "kinds: this run has one policy, whose slots have the same leaves; send no kinds, or "
            "give the run `policies`",
            "SPACE_MISMATCH",
            "kinds",
        )
    try:
        validate_run_spaces(config, spec.observation_spaces, spec.action_spaces)
    except InvalidInputError as error:
        text = describe_mismatch(error) if spec.exploit else str(error)
        raise ProtocolError(text, "SPACE_MISMATCH", error.field) from error


def _make_shaper(
    config: Any, processors: Iterable[ComputationDataProcessor], observation_spaces: Spaces
) -> Callable[[Arrays], Arrays] | None:
    """Returns what gives rows the model's shape, and makes integers start at 0.

    So the rows of all clients can be packed. None: they have this form.
    """
    length = config.observation_history
    # Inputs that the client does not send are made by the agent.
    shapes = {
        name: (*shape[:-1], shape[-1] // length) if length > 1 else shape
        for processor in processors
        for name, shape in split_masks(processor.input_shapes)[0].items()
        if name in observation_spaces
    }
    if all(shape == observation_spaces[name].shape for name, shape in shapes.items()):
        return None
    # Of the leaves that the settings describe as integers.
    starts = {
        leaf: getattr(observation_spaces[leaf], "start", 0)
        for leaf, space in config.observation_spaces.items()
        if "num" in ObservationConfig.measure(space) and leaf in observation_spaces
    }

    def shape_rows(observations: Arrays) -> Arrays:
        shaped = {}
        for name, array in observations.items():
            if name in starts:
                array = (array - starts[name]).astype(np.int64, copy=False)
            shaped[name] = array.reshape(len(array), *shapes.get(name, array.shape[1:]))
        return shaped

    return shape_rows


def _validate_privileged(
    processors: Iterable[ComputationDataProcessor], observation_spaces: Spaces
) -> None:
    for name in (name for processor in processors for name in processor.privileged):
        if name not in observation_spaces:
            raise ProtocolError(
                f"observation_spaces: {name!r} is missing, but the model learns from it "
                "(get_privileged_specs); send it, or connect in EXPLOIT mode to act without "
                "learning",
                "SPACE_MISMATCH",
                "observation_spaces",
            )


def _validate_agent_class(agent_class: Any) -> None:
    name = getattr(agent_class, "__name__", repr(agent_class))
    missing = [verb for verb in _VERBS if not callable(getattr(agent_class, verb, None))]
    if missing:
        raise ConfigError(
            f"class {name} lacks {', '.join(missing)}, expected methods {', '.join(_VERBS)}; "
            "define them"
        )
    if inspect.isabstract(agent_class) and issubclass(agent_class, Agent):
        missing = sorted(agent_class.__abstractmethods__)
        raise ConfigError(f"class {name} is abstract; implement {', '.join(missing)}")
