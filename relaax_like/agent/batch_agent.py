"""BatchAgent: acts for one client's k slots, as arrays, with one or several Algorithms."""

import abc
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.agent.online_helper import OnlineHelper
from relaax_like.core.metrics import Metrics
from relaax_like.core.prediction import Prediction, Request, make_ranks
from relaax_like.core.records import Episode
from relaax_like.experience.rollout import ALIVE, TERMINATED, TRUNCATED, Executed
from relaax_like.wire.spaces import OBSERVATION, split_masks

Arrays = Mapping[str, np.ndarray]
# Name of an Algorithm -> name -> [k, ...].
States = Mapping[str, Arrays]
# Yields requests to Algorithms, receives their predictions, and returns actions and next states.
Predicting = Generator[Request, Prediction, tuple[Arrays, States]]


class BatchAgent(abc.ABC):
    """Acts for k slots with one or several Algorithms, and makes them learn.

    Its owner calls `observe` with what happened, then, when the agent is not `waiting`, answers its
    requests until the agent returns its actions:

        agent.observe(observations, rewards, next_alive, finals, episodes)
        actions = None
        while actions is None:
            actions = agent.take(predict(agent.request()))

    In this way, the requests of many agents can be answered in one call. `run` does the same for
    one environment in this process. Three hooks determine what the Algorithms predict and store:
    `_get_init_states`, `_cts_predict` and `_cts_store_data`.

    Attributes:
      main_algorithm: the Algorithm that stores every step. It alone counts the environment's steps
        and reports the episodes. Set by the class; None: the first one.
      helpers: name of an Algorithm -> its helper.
      config: the algorithm's `Config`, if the agent has one.
      learning: if False, the agent stores and learns nothing, and chooses the best actions.
      exploit: whether to choose the best actions. Set by the owner; at first, not `learning`.
      observation_history: number of observations that are joined in each one that `observe`
        receives. Set by the owner.

    Args:
      helpers: as the attribute.
      slots: k.
      config: as the attribute.
      learning: as the attribute.
      reward_shaping_f: applied to `[k, r]` rewards before they are stored.
    """

    main_algorithm: str | None = None
    observation_history: int = 1

    def __init__(
        self,
        helpers: Mapping[str, OnlineHelper],
        slots: int,
        *,
        config: Any = None,
        learning: bool = True,
        reward_shaping_f: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.helpers = dict(helpers)
        self.config = config
        self.learning = learning
        self.exploit = not learning
        self._main = self.helpers[self.main_algorithm or next(iter(self.helpers))]
        self._ranks = make_ranks(self._main.client, slots)
        for helper in self.helpers.values():
            helper.counts_steps = helper is self._main
        self._storing = list(self.helpers.values())
        self._slots = slots
        self._shape = reward_shaping_f
        self._alive = np.full(slots, ALIVE, np.float32)
        self._init_states = self._get_init_states()
        self._states: States = self._init_states
        self._observations: Arrays = {}
        # Of the current step: absent slots, what was carried out, slots absent from the next step.
        self._absent: np.ndarray | None = None
        self._executed: Executed | None = None
        self._absent_next: np.ndarray | None = None
        # The request to each Algorithm in the current step, and the prediction.
        self._asked: dict[str, tuple[Request, Prediction]] = {}
        self._predicting: Predicting | None = None
        self._request: Request | None = None

    @property
    def waiting(self) -> bool:
        """Whether an Algorithm has so much experience to learn from that the agent should pause."""
        for helper in self._storing:  # noqa: SIM110 - used in each step: faster than `any`
            if helper.waiting:
                return True
        return False

    @property
    def can_be_absent(self) -> bool:
        """Whether `observe` supports absent slots, and actions that were not the agent's."""
        stores_all = type(self)._cts_store_data is BatchAgent._cts_store_data
        return stores_all and len(self.helpers) == 1

    @property
    def cuts_overridden(self) -> bool:
        """Whether memory starts empty after a step whose action was overridden."""
        return self.learning and self._main.overridden == "cut"

    @property
    def has_memory(self) -> bool:
        """Whether something is remembered from one step of an episode to the next."""
        return any(self._init_states.values())

    @property
    def discarded_rollouts(self) -> int:
        """Number of complete rollouts that were dropped because the learner was not ready."""
        return sum(helper.discarded_rollouts for helper in self._storing)

    @property
    def discarded_steps(self) -> int:
        """Number of environment steps in the main Algorithm's discarded rollouts."""
        return sum(helper.discarded_steps for helper in self._storing if helper.counts_steps)

    @property
    def unfinished_steps(self) -> int:
        """Number of environment steps in the main Algorithm's unfinished rollout."""
        return sum(helper.unfinished_steps for helper in self._storing if helper.counts_steps)

    def metrics(self) -> Metrics:
        """Returns the recorder of metrics."""
        return self._main.metrics()

    # The hooks.

    def _get_init_states(self) -> States:
        """Returns the memory at the start of an episode: Algorithm -> name -> `[k, ...]`; zeros.

        Entries other than those of the Algorithms are memory of the agent itself.
        """
        return {name: helper.make_init_states() for name, helper in self.helpers.items()}

    @abc.abstractmethod
    def _cts_predict(self, observations: Arrays, states: States) -> Predicting:
        """Requests predictions, and returns the actions that they lead to.

        A request is made with `prediction = yield self._ask(name, inputs, states[name])`. Not every
        call leads to a step: what must be remembered belongs in the returned memory, which is reset
        in slots whose episode ended.

        Args:
          observations: name -> `[k, ...]`.
          states: Algorithm -> name -> `[k, ...]`, the memory before this step.

        Returns:
          Actions for the environment, name -> `[k, ...]`; and the memory after this step.
        """

    def _cts_store_data(
        self,
        asked: Mapping[str, tuple[Request, Prediction]],
        rewards: np.ndarray,
        next_alive: np.ndarray,
        next_observations: Arrays,
        final_observations: Arrays | None,
    ) -> None:
        """Stores a step; by default, in each Algorithm that was asked, with the same reward.

        To store fewer or other steps for an Algorithm, call `add_actions` and `add_outcome` of its
        helper, at any time but always alternately.

        Args:
          asked: Algorithm -> its request in this step, and the prediction.
          rewards: `[k, r]`, shaped.
          next_alive: `[k]`: 1 alive, 0 terminated, -1 truncated.
          next_observations: name -> `[k, ...]`; where an episode ended, the next one's first.
          final_observations: as in `observe`.
        """
        for name, (request, prediction) in asked.items():
            helper = self.helpers[name]
            helper.add_actions(
                request.inputs,
                request.states,
                prediction,
                self._find_joined(request.inputs),
                self._absent,
            )
            helper.add_outcome(
                rewards,
                next_alive,
                next_observations,
                final_observations,
                self._executed,
                self._absent_next,
            )

    def _find_joined(self, inputs: Arrays) -> Mapping[str, int]:
        """Returns, by name, how many observations are joined in each input that was not changed."""
        number = self.observation_history
        if number == 1:
            return {}
        joined, _ = split_masks(inputs)
        names = (name for name, x in joined.items() if x is self._observations.get(name))
        return dict.fromkeys(names, number)

    def _split(self, name: str) -> list[OnlineHelper]:
        """Makes a helper for each slot, `[1, ...]`, if its slots store different steps.

        Call it once, in the constructor, and use the helpers in `_cts_store_data` instead of the
        Algorithm's common helper.
        """
        helpers = self.helpers[name].split()
        self._storing.remove(self.helpers[name])
        self._storing += helpers
        return helpers

    def _ask(self, name: str, inputs: Arrays, states: Arrays) -> Request:
        """Returns the request to yield in `_cts_predict`."""
        return Request(inputs, states, self.exploit, name, self._ranks, self.learning)

    # What the owner calls.

    def observe(
        self,
        observations: Arrays | None,
        rewards: np.ndarray | None = None,
        next_alive: np.ndarray | None = None,
        final_observations: Arrays | None = None,
        episodes: Sequence[Episode] = (),
        executed: Executed | None = None,
        absent: np.ndarray | None = None,
    ) -> None:
        """Receives the outcome of the last actions, or the first observations.

        Args:
          observations: name -> [k, ...]; where an episode ended, the next one's first. None if
            all slots ended and no new episode has begun yet.
          rewards: [k, r]; None at the start, when there were no actions.
          next_alive: [k]: 1 alive, 0 terminated, -1 truncated; None if no episode ended.
          final_observations: see `RolloutBuffer.add_outcome`.
          episodes: those that ended in this step.
          executed: what was carried out instead of the last actions; None: the actions themselves.
            Like `absent` only for agents whose `can_be_absent` is True.
          absent: [k] bool, slots that need no action; None: no slot.

        Raises:
          InvalidInputError: the third rollout in a row has numbers that cannot be learned from; the
            error names array, step and slot.
          Exception: an error of the learner; see `Learner.submit`.
        """
        self._executed, self._absent_next = executed, absent
        if rewards is None:
            self._states = self._get_init_states()
        elif self.learning:
            if next_alive is not None:
                self._main.add_episodes(episodes)
            # The value after a terminal state is multiplied by zero: any array will do.
            following = self._observations if observations is None else observations
            alive = self._alive if next_alive is None else next_alive
            shaped = rewards if self._shape is None else self._shape(rewards)
            self._cts_store_data(self._asked, shaped, alive, following, final_observations)
        elif next_alive is not None:
            for helper in self._storing:
                helper.refresh()
        if next_alive is not None:
            self._reset_states(next_alive != ALIVE)
        if executed is not None and self.cuts_overridden:
            # The trace ends there, and the next one begins without a memory.
            self._reset_states(executed.overridden)
        self._absent = absent
        if observations is not None:
            self._observations = observations

    def request(self) -> Request:
        """Returns the request to be answered next; the same one until `take` is called."""
        if self._request is None:
            self._asked = {}
            self._predicting = self._cts_predict(self._observations, self._states)
            self._request = next(self._predicting)
        return self._request

    def take(self, prediction: Prediction) -> Arrays | None:
        """Receives the prediction for `request`.

        Returns:
          The actions, name -> [k, ...]; None if another Algorithm must be asked first.
        """
        assert self._predicting is not None
        assert self._request is not None
        self._asked[self._request.algorithm] = (self._request, prediction)
        try:
            self._request = self._predicting.send(prediction)
        except StopIteration as end:
            self._request = self._predicting = None
            actions, states = end.value
            self._remember(states)
            return actions
        return None

    def take_state(self) -> dict[str, Any] | None:
        """Removes and returns the state from which an agent in another process can resume.

        Call it after `observe`; `close` then has nothing left to report. A subclass that keeps
        state outside its memory and its helpers adds it here and in `set_state`.

        Returns:
          Arrays and JSON types, nested; None, and nothing is removed, while a rollout is being
          learned from.
        """
        if any(helper.under_way for helper in self._storing):
            return None
        assert self._request is None, "a request waits for its answer"
        return {
            "observations": dict(self._observations),
            "states": {name: dict(arrays) for name, arrays in self._states.items()},
            "helpers": [helper.take_state() for helper in self._storing],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `take_state` returned; the next call is `request`."""
        self._observations = state["observations"]
        self._states = state["states"]
        for helper, part in zip(self._storing, state["helpers"], strict=True):
            helper.set_state(part)

    def close(self) -> None:
        """Forgets unfinished rollouts; their steps and episodes are still reported.

        Raises:
          Exception: an error of the learner; see `Learner.submit`.
        """
        for helper in self._storing:
            helper.close()

    # The loop of scripts and tests, without servers.

    def run(self, env: Any, num_games: int, action_repeat: int = 1) -> list[float]:
        """Plays complete episodes of one environment in this process, and learns from them.

            with ParameterServer(store, metrics=recorder) as server:
                host = make_agent_host(experiment, lambda name: InProcessClient(server, name))
                host.make_agent().run(gymnasium.make("CartPole-v1"), num_games=500)
                host.close()

        Actions and observations are passed on unchanged: wrap the environment to clip, flatten or
        stack them. The agent must have one slot. If the agent learns and `info` has "success" at an
        episode's end, the curve `success` is recorded: 1 if it is more than 0, otherwise 0.

        Args:
          env: an environment with Gymnasium's `reset` and `step`; is stepped, but not closed.
          num_games: number of episodes; fewer if the training finishes.
          action_repeat: steps of the environment per action, 1 or more, rewards summed; they count
            as one.

        Returns:
          The total reward of each episode, not shaped. The learner has answered all complete
          rollouts except discarded and refused ones, and the newest `ahead`, which can still be in
          progress; see `OnlineHelper`.

        Raises:
          ValueError: the agent has several slots.
          InvalidInputError: see `observe`.
          Exception: an error of the environment or the learner; see also
            `ComputationDataProcessor.predict`.
        """
        if self._slots != 1:
            raise ValueError(f"run: the agent has {self._slots} slots; make it with slots=1")
        totals: list[float] = []
        while len(totals) < num_games and not (self.learning and self._main.finished):
            totals.append(self._run_one_episode(env, action_repeat))
        self._wait()
        return totals

    def _run_one_episode(self, env: Any, action_repeat: int = 1) -> float:
        """Plays one episode; returns its total reward.

        FLARE's order: reset, init states; while alive and not timed out: predict, step, store; then
        one more prediction at the final observation. FLARE also stores that one, with zero rewards,
        because its rows do not have a successor. Here, the last step is stored with the final
        observation and with what ended the episode, so the extra row would add no information. The
        last prediction and its memory are dropped.
        """
        observation, info = env.reset()
        self.observe(_to_rows(observation))
        total, length, ended = 0.0, 0, False
        while not ended:
            action = self._choose()
            observation, reward, terminated, truncated, info = _repeat(env, action, action_repeat)
            rows, states = _to_rows(observation), self._states
            total += reward
            length += 1
            ended = terminated or truncated
            self.observe(
                None if ended else rows,
                np.array([[reward]]),
                np.array([TERMINATED if terminated else TRUNCATED]) if ended else None,
                rows if ended else None,
                [Episode(total, length)] if ended else (),
            )
        self._predict_once(rows, states)
        if self.learning and info.get("success") is not None:
            self.metrics().scalar("success", float(info["success"] > 0))
        return total

    def _choose(self) -> Any:
        """Returns the next action of the only slot, as an environment takes it."""
        self._wait()
        actions = None
        while actions is None:
            request = self.request()
            actions = self.take(self.helpers[request.algorithm].answer(request))
        rows = {name: array[0] for name, array in actions.items()}
        return rows if len(rows) > 1 else next(iter(rows.values()))

    def _wait(self) -> None:
        for helper in self._storing:
            helper.wait()

    def _predict_once(self, observations: Arrays, states: States) -> None:
        predicting = self._cts_predict(observations, states)
        request = next(predicting)
        while True:
            try:
                request = predicting.send(self.helpers[request.algorithm].answer(request))
            except StopIteration:
                return

    def _remember(self, states: States) -> None:
        """Sets the memory after a step; that of absent slots does not change."""
        if self._absent is not None:
            states = _choose_rows(self._absent, self._states, states)
        self._states = states

    def _reset_states(self, ended: np.ndarray) -> None:
        self._states = _choose_rows(ended, self._init_states, self._states)


class SimpleRLAgent(BatchAgent):
    """An agent that maps observations to actions by one Algorithm: `RL`, or the first of several.

    Several Algorithms must have the same Model; all of them store each step.
    """

    def _cts_predict(self, observations: Arrays, states: States) -> Predicting:
        name = next(iter(self.helpers))
        prediction = yield self._ask(name, observations, states[name])
        return prediction.actions, dict.fromkeys(self.helpers, prediction.next_states)

    def request(self) -> Request:
        """See `BatchAgent`; does in each step what it does, without a generator."""
        if type(self)._cts_predict is not SimpleRLAgent._cts_predict:
            return super().request()
        if self._request is None:
            name = next(iter(self.helpers))
            self._request = self._ask(name, self._observations, self._states[name])
        return self._request

    def take(self, prediction: Prediction) -> Arrays | None:
        """See `BatchAgent`."""
        if self._predicting is not None:
            return super().take(prediction)
        assert self._request is not None
        self._asked = dict.fromkeys(self.helpers, (self._request, prediction))
        self._request = None
        self._remember(dict.fromkeys(self.helpers, prediction.next_states))
        return prediction.actions


def _repeat(env: Any, action: Any, times: int) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Repeats an action up to `times` times, or until the episode ends.

    Returns what `step` returns, with the rewards summed.
    """
    reward = 0.0
    for _ in range(times):
        observation, part, terminated, truncated, info = env.step(action)
        reward += float(part)
        if terminated or truncated:
            break
    # Gymnasium sets both when a time limit meets a terminal state; the state decides.
    return observation, reward, bool(terminated), bool(truncated and not terminated), info


def _to_rows(observation: Any) -> dict[str, np.ndarray]:
    named = observation if isinstance(observation, Mapping) else {OBSERVATION: observation}
    # Copied: an environment can reuse the array that it returned.
    return {name: np.array(array)[None] for name, array in named.items()}


def _choose_rows(slots: np.ndarray, those: States, others: States) -> States:
    """Returns arrays with the rows of `slots` from `those`, and everything else from `others`."""
    return {
        name: {
            key: np.where(_widen(slots, array.ndim), those[name][key], array)
            for key, array in arrays.items()
        }
        for name, arrays in others.items()
    }


def _widen(mask: np.ndarray, axes: int) -> np.ndarray:
    return mask.reshape(mask.shape + (1,) * (axes - 1))
