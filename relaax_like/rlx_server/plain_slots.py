"""Hosts plain agents: one instance per slot, called one after another in the session's thread."""

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relaax_like.config.places import describe_error, find_folder
from relaax_like.core.records import Episode
from relaax_like.core.roles import ParameterServerClient
from relaax_like.experience.magnitudes import EXPECTED, find_too_large
from relaax_like.experience.ranges import UNWATCHED, Ranges
from relaax_like.rlx_server.slots import AgentFailure, Decision, Slots
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.wire.errors import InvalidInputError, RelaaxError, ServerUnavailableError
from relaax_like.wire.ndarray import DTYPES
from relaax_like.wire.spaces import ACTION, OBSERVATION, Spaces


class PlainSlots(Slots):
    """Combines k plain agents.

    Args:
      make_agent: builds the agent of one slot from its view of the parameter server.
      parameter_servers: one per slot.
      observation_spaces: of the hello.
      action_spaces: of the hello.
      learning: refuse numbers that are too large to learn from.
      ranges: watch observations; closed with the agents.
    """

    def __init__(
        self,
        make_agent: Callable[[ParameterServerClient], Any],
        parameter_servers: Sequence[ParameterServerClient],
        observation_spaces: Spaces,
        action_spaces: Spaces,
        learning: bool = True,
        ranges: Ranges = UNWATCHED,
    ):
        super().__init__(len(parameter_servers), ranges)
        self._learning = learning
        self._parameter_servers = parameter_servers
        self._plain_observation = list(observation_spaces) == [OBSERVATION]
        self._action_spaces = action_spaces
        self._plain_action = list(action_spaces) == [ACTION]
        self._agents: list[Any] = []
        try:
            for client in parameter_servers:
                self._agents.append(make_agent(client))
            self._reset_keywords = _reset_keywords(self._agents[0])
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is reported
                self.close()
            raise

    def step(self, transition: ReceivedStep) -> Decision:
        """Calls each slot's verb.

        Raises:
          AgentFailure: an agent raised or answered with something that is not an action.
          InvalidInputError: a reward or an observation is too large to learn from. Plain agents
            build their own rollouts, so the step is refused instead of a rollout.
          ServerUnavailableError: an agent could not reach the parameter server.
        """
        self._watch(transition)
        if self._learning:
            _validate_magnitudes(transition)
        # First, so that they are sent with the push that an agent makes at an episode's end.
        for episode in transition.episodes:
            client = self._parameter_servers[episode.slot]
            client.add_episodes([Episode(episode.episode_return, episode.length)])
        actions = []
        finished = ""
        for slot, agent in enumerate(self._agents):
            try:
                action = self._step_slot(slot, agent, transition)
            except ServerUnavailableError:
                raise
            except Exception as error:
                owner = type(agent)
                what = describe_error(error, find_folder(owner), owner.__name__)
                # Others, such as a refused token, have their own cure.
                is_own = not isinstance(error, RelaaxError) or isinstance(error, InvalidInputError)
                cure = "; correct the agent's code" if is_own else ""
                raise AgentFailure(f"slot {slot}: {what}{cure}") from error
            finished = finished or self._parameter_servers[slot].finished
            if action is None and transition.observations is not None:
                finished = finished or "the agent's budget is used up"
            actions.append(action)
        decided = transition.observations is not None and not finished
        return Decision(
            actions=self._pack(actions) if decided else None,
            finished=finished,
            version=self._parameter_servers[0].version,
        )

    def close(self) -> None:
        """Closes the agents and their views of the parameter server, even if closing one fails.

        Raises:
          Exception: an error of an agent's own `close`, or of `ParameterServerClient.close`.
        """
        with contextlib.ExitStack() as all_others:  # even if closing one fails
            all_others.callback(self._ranges.close)
            for client in self._parameter_servers:
                all_others.callback(client.close)
            for agent in self._agents:  # closed before the clients, which they use
                if hasattr(agent, "close"):
                    all_others.callback(agent.close)

    def _step_slot(self, slot: int, agent: Any, transition: ReceivedStep) -> Any:
        if transition.rewards is None:
            return agent.act(self._state(transition.observations, slot))
        rewards = transition.rewards[slot]
        reward = float(rewards[0]) if rewards.size == 1 else rewards
        if transition.ended is None or not transition.ended[slot]:
            return agent.reward_and_act(reward, self._state(transition.observations, slot))
        self._end_episode(slot, agent, reward, transition)
        if transition.observations is None or self._parameter_servers[slot].finished:
            return None
        return agent.act(self._state(transition.observations, slot))

    def _end_episode(self, slot: int, agent: Any, reward: Any, transition: ReceivedStep) -> None:
        assert transition.truncated is not None
        final = transition.final_observations
        success = None if transition.success is None else int(transition.success[slot])
        keywords = {
            "state": None if final is None else self._state(final, slot),
            "truncated": bool(transition.truncated[slot]),
            "success": None if success in (None, -1) else bool(success),
        }
        agent.reward_and_reset(reward, **{name: keywords[name] for name in self._reset_keywords})

    def _state(self, arrays: Mapping[str, np.ndarray] | None, slot: int) -> Any:
        assert arrays is not None
        if self._plain_observation:
            return arrays[OBSERVATION][slot]
        return {name: array[slot] for name, array in arrays.items()}

    def _pack(self, actions: Sequence[Any]) -> dict[str, np.ndarray]:
        packed = {}
        for name, space in self._action_spaces.items():
            try:
                rows = [action if self._plain_action else action[name] for action in actions]
                array = np.stack([np.asarray(row).reshape(space.shape) for row in rows])
                packed[name] = space.validate(
                    array.astype(DTYPES[space.dtype], casting="same_kind"), len(actions), name
                )
            except (InvalidInputError, ValueError, TypeError, KeyError, IndexError) as error:
                expected = f"{type(space).__name__} of {space.dtype}, shape {list(space.shape)}"
                if not self._plain_action:
                    names = ", ".join(map(repr, self._action_spaces))
                    expected = f"dict with the keys {names}, here a {expected}"
                raise AgentFailure(
                    f"action {name!r}: {type(error).__name__}: {error}; expected a {expected}; "
                    "correct what the agent returns"
                ) from error
        return packed


def _reset_keywords(agent: Any) -> list[str]:
    # The method as in the tutorial has only the reward.
    parameters = inspect.signature(agent.reward_and_reset).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return [name for name in ("state", "truncated", "success") if anything or name in parameters]


def _validate_magnitudes(transition: ReceivedStep) -> None:
    arrays = {} if transition.rewards is None else {"rewards": transition.rewards}
    for name, array in (transition.observations or {}).items():
        arrays[f"observations[{name}]"] = array
    if transition.final_observations is not None and transition.ended is not None:
        for name, array in transition.final_observations.items():
            rows = array.copy()
            rows[~transition.ended] = 0  # can be anything
            arrays[f"final_observations[{name}]"] = rows
    for field, array in arrays.items():
        index = find_too_large(array)
        if index is not None:
            raise InvalidInputError(
                f"{field}: {float(array[index]):g} in slot {index[0]}; {EXPECTED}; check what the "
                "environment sends there, or scale it down"
            )
