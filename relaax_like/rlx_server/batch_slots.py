"""Hosts a batch-native agent: one client's k slots as arrays."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.agent.batch_agent import BatchAgent
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.agent.history import ObservationHistory
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import Episode
from relaax_like.experience.ranges import UNWATCHED, Ranges
from relaax_like.experience.rollout import Executed
from relaax_like.nn.action_heads import actions_from_wire, actions_to_wire
from relaax_like.rlx_server.greeting import EXECUTED, PRESENT
from relaax_like.rlx_server.slot_agents import (
    AgentFailure,
    Decision,
    PlainAgents,
    watch_ranges,
)
from relaax_like.rlx_server.transition import Arrays, Transition
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.spaces import Spaces

logger = logging.getLogger(__name__)


class BatchSlots:
    """Translates between a session's steps and a `BatchAgent`. Nothing blocks.

        slots.observe(transition)
        if slots.ready: decision = slots.decide(prediction_of(slots.request()))

    Predictions are made together with those of other sessions.

    Attributes:
      unsupported: feature of the protocol -> why these agents cannot use it.

    Args:
      make_agent: builds the agent from the callback that it calls when the learner has answered it.
      processor: of the agent's main task; knows when the training has finished.
      action_spaces: of the hello.
      shapes: leaf -> shape of one observation as the model's inputs have it, where it differs.
      starts: leaf of integers -> the client's smallest one, which is 0 for the model.
      cuts_traces: whether the plan can learn from steps with gaps between them.
      takes_executed: whether the plan can use steps whose action was overridden.
      needs_finals: whether the final observation of a terminated episode is needed, as for the goal
        that it has achieved.
      history: joins the newest observations; None: the model sees one at a time.
      on_ready: the callback for `make_agent`; see `AgentHost`.
      exploit: whether the client exploits; it then also continues after the end of training.
      ranges: watch observations and executed actions; closed with the agent.
    """

    def __init__(
        self,
        make_agent: Callable[[Callable[[], None]], BatchAgent],
        processor: ComputationDataProcessor,
        action_spaces: Spaces,
        shapes: Mapping[str, Sequence[int]],
        on_ready: Callable[[], None],
        exploit: bool = False,
        history: ObservationHistory | None = None,
        starts: Mapping[str, int] | None = None,
        cuts_traces: bool = True,
        takes_executed: bool = True,
        needs_finals: bool = False,
        ranges: Ranges = UNWATCHED,
    ):
        self._agent = make_agent(on_ready)
        self._ranges = ranges
        self._processor = processor
        self._action_spaces = action_spaces
        self._shapes = shapes
        self._starts = starts or {}
        self._exploit = exploit
        self._needs_finals = needs_finals and not exploit
        self._goes_on = False
        self._history = history
        if history is not None:
            self._agent.observation_history = history.length
        self._rewards = max(part.stop for part in processor.reward_columns.values())
        self._all_begin = False
        self.unsupported = self._find_unsupported(cuts_traces, takes_executed)
        self._given: Arrays = {}  # newest actions

    def _find_unsupported(self, cuts_traces: bool, takes_executed: bool) -> dict[str, str]:
        both = (PRESENT, EXECUTED)
        if not self._agent.can_be_absent:
            why = "the agents of this algorithm store steps themselves, or have several tasks"
            return dict.fromkeys(both, why)
        unsupported = {}
        if self._history is not None:
            unsupported[PRESENT] = (
                f"algorithm.observation_history is {self._history.length}, expected 1"
            )
        for feature, learns in ((PRESENT, cuts_traces), (EXECUTED, takes_executed)):
            if not (learns or self._exploit):
                unsupported[feature] = "the algorithm's plan cannot learn from such steps"
        return unsupported

    @property
    def remembers(self) -> bool:
        """Whether actions depend on earlier steps of an episode."""
        return self._history is not None or self._agent.has_memory

    @property
    def ready(self) -> bool:
        """False while the agent must wait for the learner.

        Until it has answered, which calls `AgentHost.on_ready`, or until the agent's longest wait
        is over, which calls nothing.
        """
        return not self._agent.waiting

    @property
    def discarded_steps(self) -> int:
        """Environment steps that were not learned from because no learner was ready."""
        return self._agent.discarded_steps

    @property
    def unfinished_steps(self) -> int:
        """Environment steps of rollouts that are not complete yet, which `close` discards."""
        return self._agent.unfinished_steps

    def observe(self, transition: Transition) -> None:
        """Passes a transition to the agent.

        Raises:
          ProtocolError: the number of rewards per slot is not the model's.
          InvalidInputError: final observations are needed, and missing; or the third rollout in a
            row has numbers that cannot be learned from.
          Exception: an error of the agent's own code, or of the learner; see `Learner.submit`.
        """
        watch_ranges(self._ranges, transition)
        self._goes_on = transition.observations is not None
        if transition.rewards is None:
            self._all_begin = True
        elif transition.rewards.shape[1] != self._rewards and not self._exploit:
            columns = self._processor.reward_columns
            names = [f"{name} [{part.stop - part.start}]" for name, part in columns.items()]
            raise ProtocolError(
                f"rewards: {transition.rewards.shape[1]} per slot, but the model has "
                f"{self._rewards} ({', '.join(names)}); send these in this order, or set "
                "algorithm.rewards to a weight for each of the environment's",
                "SPACE_MISMATCH",
                "rewards",
            )
        elif self._needs_finals and transition.final_observations is None:
            _validate_continuing(transition.terminated)
        # First, because the next episodes' observations replace the history before these.
        finals = self._shape(transition.final_observations)
        if self._history is not None and finals is not None:
            finals = self._history.join_finals(finals)
        executed, begins = None, transition.ended
        if transition.executed is not None:
            executed = self._find_executed(transition.executed, transition.overridden)
        if executed is not None and self._agent.cuts_overridden:
            begins = executed.overridden if begins is None else begins | executed.overridden
        self._agent.observe(
            self._join(self._shape(transition.observations), begins),
            transition.rewards,
            transition.terminated,
            transition.truncated,
            transition.ended,
            finals,
            # A slot that was absent from the complete episode played none.
            [Episode(e.episode_return, e.length, e.slot) for e in transition.episodes if e.length],
            executed,
            transition.absent,
        )

    def request(self) -> Request | None:
        """Returns the rows that need actions; None if every slot or the training has ended.

        Raises:
          Exception: an error of the agent's own code.
        """
        if not self._goes_on or self._finished():
            return None
        return self._agent.request()

    def decide(self, prediction: Prediction | None) -> Decision | None:
        """Converts the prediction to the answer; None if there is another request first.

        Raises:
          AgentFailure: the model has an action that the client does not have.
          Exception: an error of the agent's own code.
        """
        if prediction is None:
            return Decision(actions=None, finished=self._finished(), version=0)
        actions = self._agent.take(prediction)
        if actions is None:
            return None
        self._given = {k: self._to_wire(k, array) for k, array in actions.items()}
        return Decision(actions=self._given, finished="", version=prediction.version)

    def take_state(self) -> dict[str, Any] | None:
        """Removes and returns what the agent needs to resume, after `observe`.

        Returns:
          Arrays and JSON types, nested; None, and nothing is removed, while a rollout is being
          learned from; see `BatchAgent`.
        """
        agent = self._agent.take_state()
        history = None if self._history is None else self._history.get_state()
        return None if agent is None else {"agent": agent, "history": history}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `take_state` returned; the next call is `request`."""
        self._agent.set_state(state["agent"])
        if self._history is not None:
            self._history.set_state(state["history"])
        self._goes_on = True

    def close(self) -> None:
        """Forgets the unfinished rollout; its steps, and episodes that ended in it, still count.

        Raises:
          Exception: an error of the agent's own code, or of the learner; see `Learner.submit`.
        """
        self._ranges.close()
        self._agent.close()
        if self._agent.discarded_rollouts:
            logger.warning(
                "discarded %d rollout(s) of a client that were not learned from in time",
                self._agent.discarded_rollouts,
            )

    def _shape(self, observations: Arrays | None) -> Arrays | None:
        """Gives rows the model's shape, and makes integers start at 0.

        So the rows of all clients can be packed.
        """
        if observations is None or not self._shapes:
            return observations
        if self._starts:
            observations = {
                name: (array - self._starts[name]).astype(np.int64, copy=False)
                if name in self._starts
                else array
                for name, array in observations.items()
            }
        return {
            name: array.reshape(len(array), *self._shapes.get(name, array.shape[1:]))
            for name, array in observations.items()
        }

    def _join(self, observations: Arrays | None, ended: np.ndarray | None) -> Arrays | None:
        if self._history is None:
            return observations
        if observations is None:  # all slots ended
            self._all_begin = True
            return None
        if self._all_begin:
            ended = np.ones(len(next(iter(observations.values()))), np.bool_)
            self._all_begin = False
        return self._history.add(observations, ended)

    def _find_executed(self, executed: Arrays, overridden: np.ndarray | None) -> Executed | None:
        """Returns the executed actions, and the slots where they replace the policy's.

        None: they do so in no slot.
        """
        if overridden is None:
            overridden = np.zeros(len(next(iter(executed.values()))), np.bool_)
            for name, array in executed.items():
                others = (array != self._given[name]).reshape(len(array), -1)
                overridden |= others.any(1)
        if not overridden.any():
            return None
        actions = {n: actions_from_wire(self._action_spaces[n], a) for n, a in executed.items()}
        return Executed(actions, overridden)

    def _finished(self) -> str:
        return "" if self._exploit else self._processor.finished

    def _to_wire(self, name: str, array: np.ndarray) -> np.ndarray:
        space = self._action_spaces.get(name)
        if space is None:
            raise AgentFailure(
                f"the model's action {name!r} is not one of the client's "
                f"{sorted(self._action_spaces)}; give the model's actions the client's names"
            )
        return actions_to_wire(space, array)


def _validate_continuing(terminated: np.ndarray | None) -> None:
    """Checks that no episode has terminated, in a step without final observations."""
    if terminated is not None and np.any(terminated):
        raise InvalidInputError(
            f"final_observations: missing, but slot {np.flatnonzero(terminated)[0]} was "
            "terminated; with algorithm.hindsight, also send the last observation of that episode "
            "(state of reward_and_reset), which contains the achieved goal",
            "final_observations",
        )


SlotAgents = PlainAgents | BatchSlots
