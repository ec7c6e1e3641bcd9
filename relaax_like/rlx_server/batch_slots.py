"""Hosts a batch-native agent: one client's k slots as arrays."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relaax_like.agent.batch_agent import BatchAgent
from relaax_like.agent.data_processor import ComputationDataProcessor
from relaax_like.agent.history import ObservationHistory
from relaax_like.config.plan import Plan
from relaax_like.core.prediction import Prediction, Request
from relaax_like.core.records import Episode
from relaax_like.experience.ranges import UNWATCHED, Ranges
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Executed
from relaax_like.nn.action_heads import actions_from_wire, actions_to_wire
from relaax_like.rlx_server.greeting import EXECUTED, MASKS, PRESENT
from relaax_like.rlx_server.points import GatheredMetric
from relaax_like.rlx_server.slots import AgentFailure, Decision, Slots, SlotSpec
from relaax_like.rlx_server.transition import Arrays, ReceivedStep
from relaax_like.wire.errors import InvalidInputError, ProtocolError
from relaax_like.wire.spaces import split_masks

logger = logging.getLogger(__name__)
# Agents of one client whose returns have a curve of their own.
MAX_AGENT_CURVES = 64


class BatchSlots(Slots):
    """Translates between steps and a `BatchAgent`. Nothing blocks.

    Predictions are made together with those of other sessions.

    Args:
      agent: of all slots.
      processor: of the agent's main Algorithm; knows when the training has finished.
      spec: of the slots. Those that exploit also continue after the end of training.
      plan: of the main Algorithm.
      history: joins the newest observations; None: the model sees one at a time.
      shape: gives observations the model's form; None: they have it.
      needs_finals: whether the final observation of a terminated episode is needed, as for the goal
        that it has achieved.
      ranges: watch observations and executed actions; closed with the agent.
    """

    blocking = False
    plays_on = False
    """Whether the agents keep acting, without learning, after the end of their training."""

    def __init__(
        self,
        agent: BatchAgent,
        processor: ComputationDataProcessor,
        spec: SlotSpec,
        plan: Plan,
        history: ObservationHistory | None = None,
        shape: Callable[[Arrays], Arrays] | None = None,
        needs_finals: bool = False,
        ranges: Ranges = UNWATCHED,
    ):
        super().__init__(spec.slots, ranges)
        self._agent = agent
        # Of the model; those that the client does not send remain full of True.
        masks = split_masks(processor.input_shapes)[1]
        self._masks = {k: np.ones((spec.slots, *shape), np.bool_) for k, shape in masks.items()}
        self._processor = processor
        self._action_spaces = spec.action_spaces
        self._shape = shape
        self._exploit = spec.exploit
        self._needs_finals = needs_finals and not spec.exploit
        self._goes_on = False
        self._history = history
        if history is not None:
            self._agent.observation_history = history.length
        self._rewards = max(part.stop for part in processor.reward_columns.values())
        self._all_begin = False
        self.unsupported = self._find_unsupported(plan)
        if split_masks(spec.observation_spaces)[1] and not masks:
            self.unsupported[MASKS] = (
                "the settings of the run have no masks (algorithm.masks): a run that has begun "
                "keeps them, so begin another one with this environment"
            )
        self._given: Arrays = {}  # newest actions
        # Of each slot with an agent's name, if there are several: its returns.
        self._agents = spec.agents
        names = set() if spec.exploit else set(spec.agents)
        shown = sorted(names)[:MAX_AGENT_CURVES] if len(names) > 1 else ()
        self._agent_returns = {
            n: GatheredMetric(processor.metrics(), f"return of {n}", True) for n in shown
        }

    def _find_unsupported(self, plan: Plan) -> dict[str, str]:
        both = (PRESENT, EXECUTED)
        if not self._agent.can_be_absent:
            why = "the agents of this algorithm store steps themselves, or have several Algorithms"
            return dict.fromkeys(both, why)
        unsupported = {}
        if self._history is not None:
            unsupported[PRESENT] = (
                f"algorithm.observation_history is {self._history.length}, expected 1"
            )
        for feature, learns in ((PRESENT, plan.takes_gaps), (EXECUTED, plan.takes_executed)):
            if not (learns or self._exploit):
                unsupported[feature] = "the algorithm's plan cannot learn from such steps"
        return unsupported

    @property
    def remembers(self) -> bool:
        """See `Slots`."""
        return self._history is not None or self._agent.has_memory

    @property
    def ready(self) -> bool:
        """False while the agent must wait for the learner.

        Until it has answered, which calls `AgentHost.on_ready`, or until the agent's longest wait
        is over, which calls nothing.
        """
        return self._exploit or not self._agent.waiting

    @property
    def finished(self) -> str:
        """What ended the agents' training; "": it has not ended, or they do not learn."""
        return "" if self._exploit else self._processor.finished

    @property
    def discarded_steps(self) -> int:
        """See `Slots`."""
        return self._agent.discarded_steps

    @property
    def unfinished_steps(self) -> int:
        """See `Slots`."""
        return self._agent.unfinished_steps

    def observe(self, transition: ReceivedStep) -> None:
        """Passes a transition to the agent.

        Raises:
          ProtocolError: the number of rewards per slot is not the model's.
          InvalidInputError: final observations are needed, and missing; or the third rollout in a
            row has numbers that cannot be learned from.
          Exception: an error of the agent's own code, or of the learner; see `Learner.submit`.
        """
        self._watch(transition)
        self._note_returns(transition)
        if self.plays_on and self.finished:
            self._agent.learning = False
        self._goes_on = transition.observations is not None
        if transition.rewards is None:
            self._all_begin = True
        elif transition.rewards.shape[1] != self._rewards and not self._exploit:
            raise self._describe_rewards(transition.rewards.shape[1])
        elif self._needs_finals and transition.final_observations is None:
            _validate_continuing(transition.terminated)
        # First, because the next episodes' observations replace the history before these.
        observations, finals = transition.observations, transition.final_observations
        if self._shape is not None:
            observations = None if observations is None else self._shape(observations)
            finals = None if finals is None else self._shape(finals)
        if self._masks:
            observations = None if observations is None else {**self._masks, **observations}
            finals = None if finals is None else {**self._masks, **finals}
        if self._history is not None and finals is not None:
            finals = self._history.join_finals(finals)
        executed, begins = None, transition.ended
        if transition.executed is not None:
            executed = self._find_executed(transition.executed, transition.overridden)
        if executed is not None and self._agent.cuts_overridden:
            begins = executed.overridden if begins is None else begins | executed.overridden
        self._agent.observe(
            self._join(observations, begins),
            transition.rewards,
            None if transition.ended is None else _find_alive(transition),
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
        if not self._goes_on or (self.finished and not self.plays_on):
            return None
        return self._agent.request()

    def decide(self, prediction: Prediction | None) -> Decision | None:
        """Converts the prediction to the answer; None if there is another request first.

        Raises:
          AgentFailure: the model has an action that the client does not have.
          Exception: an error of the agent's own code.
        """
        if prediction is None:
            finished = "" if self.plays_on else self.finished
            return Decision(actions=None, finished=finished, version=0)
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
        for returns in self._agent_returns.values():
            returns.flush()
        self._agent.close()
        if self._agent.discarded_rollouts:
            logger.warning(
                "discarded %d rollout(s) of a client that were not learned from in time",
                self._agent.discarded_rollouts,
            )

    def _describe_rewards(self, number: int) -> ProtocolError:
        columns = self._processor.reward_columns
        names = [f"{name} [{part.stop - part.start}]" for name, part in columns.items()]
        return ProtocolError(
            f"rewards: {number} per slot, but the model has {self._rewards} ({', '.join(names)}); "
            "send these in this order, or set algorithm.rewards to a weight for each of the "
            "environment's",
            "SPACE_MISMATCH",
            "rewards",
        )

    def _note_returns(self, transition: ReceivedStep) -> None:
        for episode in transition.episodes if self._agent_returns else ():
            returns = self._agent_returns.get(self._agents[episode.slot])
            if returns is not None and episode.length:
                returns.add(episode.episode_return)

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

    def _to_wire(self, name: str, array: np.ndarray) -> np.ndarray:
        space = self._action_spaces.get(name)
        if space is None:
            raise AgentFailure(
                f"the model's action {name!r} is not one of the client's "
                f"{sorted(self._action_spaces)}; give the model's actions the client's names"
            )
        return actions_to_wire(space, array)


def _find_alive(transition: ReceivedStep) -> np.ndarray:
    """Returns 1, 0 or -1 for each slot; see `BatchAgent.observe`."""
    assert transition.ended is not None
    assert transition.truncated is not None
    return np.where(transition.truncated, TRUNCATED, np.where(transition.ended, TERMINATED, ALIVE))


def _validate_continuing(terminated: np.ndarray | None) -> None:
    """Checks that no episode has terminated, in a step without final observations."""
    if terminated is not None and np.any(terminated):
        raise InvalidInputError(
            f"final_observations: missing, but slot {np.flatnonzero(terminated)[0]} was "
            "terminated; with algorithm.hindsight, also send the last observation of that episode "
            "(state of reward_and_reset), which contains the achieved goal"
        )
