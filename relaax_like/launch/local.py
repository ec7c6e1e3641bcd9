"""Agents and environments in the same process: nothing is serialised between them."""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client import interactor
from relaax_like.client.client import StepResult
from relaax_like.client.interactor import EnvironmentSlots, Interactor
from relaax_like.client.outcome import validate_flags, validate_outcome
from relaax_like.client.values import SpaceValues, Values
from relaax_like.config.algorithm_folder import SLOTS, load_folder_module
from relaax_like.config.loader import add_spaces, require_spaces
from relaax_like.config.models import EnvironmentConfig, Experiment
from relaax_like.config.seeds import derive_seed
from relaax_like.config.spaces import validate_run_spaces
from relaax_like.experience.magnitudes import EXPECTED, find_too_large
from relaax_like.launch.algorithm_code import locate_errors
from relaax_like.rlx_server.batch_slots import BatchSlots
from relaax_like.rlx_server.greeting import MASKS, PRESENT
from relaax_like.rlx_server.hosting import AgentHost, BatchHost
from relaax_like.rlx_server.slots import SlotSpec
from relaax_like.rlx_server.transition import ReceivedStep, find_absent
from relaax_like.runs.folders.versions import keep_versions
from relaax_like.wire import tracing
from relaax_like.wire.agents import validate_agents
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError, describe_exception
from relaax_like.wire.spaces import ACTION, OBSERVATION, RunSpaces, split_masks
from relaax_like.wire.versions import find_versions

# How often a waiting agent checks whether it must stop.
_READY_POLL_SEC = 0.2


class LocalAgents:
    """Agents in this process, with the `step` of an `RlxClient`, for an `Interactor`.

    Args:
      slots: environments.
      host: of the agents.
      exploit: choose the best actions; learn nothing.
      stop: once it is set, batch-native agents still process the outcome of their actions, but do
        not act; then their state can be taken. Plain agents ignore it.
      resumable: whether the state will be taken. False: `stop` also ends a wait for the learner.
      name: unique name of the agents in a run, for the parameter server.

    Attributes:
      has_state: whether these agents are batch-native.
      spaces: of the environments.
      waiting_sec: seconds for which batch-native agents have waited for a learner so far.
      policies: of each slot; () if the run has one.

    Raises:
      ProtocolError: the algorithm cannot use the environments' spaces.
      ConfigError: a space is not valid, the algorithm's code fails, or its learner cannot be made.
      RelaaxError, Exception: see `AgentHost.make_slot_agents`.
    """

    def __init__(
        self,
        slots: EnvironmentSlots,
        host: AgentHost,
        exploit: bool = False,
        stop: threading.Event | None = None,
        resumable: bool = True,
        name: str = "local",
    ):
        self._observations = SpaceValues(slots.observation_space, OBSERVATION)
        self._actions = SpaceValues(slots.action_space, ACTION)
        self._k = slots.slots
        self._host = host
        self._stop = stop
        self._resumable = resumable
        self._ready = threading.Event()
        self.waiting_sec = 0.0
        host.on_ready = self._ready.set
        spec = make_slot_spec(slots, name, exploit)
        self.spaces = RunSpaces(spec.observation_spaces, spec.action_spaces)
        self._slots = host.make_slot_agents(spec)
        self.has_state = isinstance(self._slots, BatchSlots)
        self.policies = self._slots.policies
        if (why := self._slots.unsupported.get(MASKS)) and split_masks(self.spaces.observations)[1]:
            raise ConfigError(
                f"environment: it says which actions are legal, but {why}; set environment.masks: "
                "off to play without"
            )

    def step(
        self,
        observations: Any = None,
        rewards: Any = None,
        terminated: Any = None,
        truncated: Any = None,
        final_observations: Any = None,
        success: Any = None,
        present: np.ndarray | None = None,
    ) -> StepResult:
        """Processes a step of all slots and returns the next actions; see `RlxClient.step`.

        Raises:
          InvalidInputError: an array does not fit, or these agents cannot use `present`; or see
            `BatchSlots.observe`.
          RelaaxError: an agent's code, the policy or the learner failed.
          Exception: a hook of the learner failed.
        """
        ended = _find_ended(terminated, truncated)
        if present is not None and (why := self._slots.unsupported.get(PRESENT)):
            raise InvalidInputError(
                f"present: some agents of this environment are absent in a step, but {why}; use "
                "an algorithm whose plan is OnPolicy"
            )
        if present is not None:
            present = validate_flags(present, self._k, "present")
        transition = ReceivedStep(
            observations=self._to_leaves(observations, "observations"),
            rewards=None if rewards is None else np.asarray(rewards).reshape(self._k, -1),
            terminated=terminated,
            truncated=truncated,
            ended=ended,
            final_observations=self._to_leaves(final_observations, "final_observations", ended),
            success=success,
            absent=None if present is None else find_absent(present),
        )
        self._slots.observe(self._slots.count(transition))
        return self.go_on()

    def go_on(self) -> StepResult:
        """Returns the next actions, after `set_state`.

        Raises:
          RelaaxError: an agent's code, the policy or the learner failed.
        """
        if not self._slots.ready:
            self._wait_ready()
        if self._is_stopped() and not self._slots.blocking:
            return StepResult(actions=None, finished="stopped", version=0)
        decision = None
        while decision is None:
            request = self._slots.request()
            prediction = None if request is None else self._host.predict([request])[0]
            decision = self._slots.decide(prediction)
        actions = None
        if decision.actions is not None:
            actions = self._actions.from_leaves(dict(decision.actions))
        return StepResult(actions=actions, finished=decision.finished, version=decision.version)

    def _wait_ready(self) -> None:
        began = time.perf_counter()
        with tracing.span("wait for learner"):
            while not (self._slots.ready or (self._is_stopped() and not self._resumable)):
                self._ready.clear()
                if not self._slots.ready:
                    self._ready.wait(_READY_POLL_SEC)
        self.waiting_sec += time.perf_counter() - began

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def take_state(self) -> dict[str, Any] | None:
        """Removes and returns the state from which agents in another process can resume.

        Call it after the last `step`.

        Returns:
          Arrays and JSON types, nested; None: a rollout is being learned from, or these are not
          batch-native agents.
        """
        slots, host = self._slots, self._host
        if not isinstance(slots, BatchSlots) or not isinstance(host, BatchHost):
            return None
        taken = slots.take_state()
        if taken is None:
            return None
        return {"agents": taken, "processors": host.take_state(), "episodes": slots.get_counts()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resumes from what `take_state` returned, before the first `step`; call `go_on` next.

        The state can also be returned to the agents from which it was taken.

        Raises:
          InvalidInputError: see `Learner.set_state`.
        """
        slots, host = self._slots, self._host
        assert isinstance(slots, BatchSlots)
        assert isinstance(host, BatchHost)
        slots.set_state(state["agents"])
        host.set_state(state["processors"])
        slots.set_counts(state["episodes"])

    def close(self) -> None:
        """Closes the agents and what they share.

        Raises:
          Exception: an agent, a learner or one of its hooks failed to stop.
        """
        try:
            self._slots.close()
        finally:
            self._host.close()

    def _to_leaves(
        self, values: Any, field: str, chosen: np.ndarray | None = None
    ) -> dict[str, np.ndarray] | None:
        if values is None:
            return None
        leaves = self._observations.to_leaves(values, self._k, field, chosen)
        # Agents store them one step later, when environments can have reused their arrays.
        return {name: leaf.copy() for name, leaf in leaves.items()}


def make_slot_spec(slots: EnvironmentSlots, name: str, exploit: bool = False) -> SlotSpec:
    """Describes environments for a host of agents; see `SlotSpec`."""
    return SlotSpec(
        SpaceValues(slots.observation_space, OBSERVATION).spaces,
        SpaceValues(slots.action_space, ACTION).spaces,
        slots.slots,
        name,
        exploit,
        agents=getattr(slots, "agents", None) or (),
        kinds=getattr(slots, "kinds", None) or (),
    )


class CheckedSlots:
    """Environments whose wrong values are refused; errors name the environment.

        slots = CheckedSlots(slots, "CartPole-v1")

    Such values would end or damage the training: NaN, infinity and numbers too large to learn from,
    wrong shapes and types. All other attributes are those of the environments.

    Args:
      env_slots: the environments.
      name: of the environment, for the errors.

    Raises:
      ConfigError: a space is neither a `Space` nor a dict of them.
      InvalidInputError: `agents`, `games` or `kinds` are wrong; see `validate_agents`.
    """

    def __init__(self, env_slots: EnvironmentSlots, name: str):
        self.slots = env_slots.slots
        self.observation_space = env_slots.observation_space
        self.action_space = env_slots.action_space
        self._env_slots: Any = env_slots
        self._name = name
        self._observations = SpaceValues(env_slots.observation_space, OBSERVATION)
        leaves = {*self._observations.spaces}, {*SpaceValues(self.action_space, ACTION).spaces}
        try:
            validate_agents(self.slots, leaves, **interactor.get_agents(env_slots))
        except InvalidInputError as error:
            raise self._name_environment(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env_slots, name)

    def reset(self, mask: np.ndarray | None = None) -> Values:
        """Resets all slots, or those in `mask`; see `EnvironmentSlots`.

        Raises:
          InvalidInputError: a wrong value; the error names environment and field, and the slot of a
            wrong number.
          RelaaxError: the environment's code failed; the error names the environment.
        """
        try:
            observations: Values = self._env_slots.reset(mask)
            self._validate(observations, "observations")
        except Exception as error:
            raise self._name_environment(error) from error
        return observations

    def step(self, actions: Any) -> interactor.Transition:
        """Steps all slots; see `EnvironmentSlots`. Raises the same as `reset`."""
        return self._step(self._env_slots.step, actions)

    @property
    def partial_step(self) -> Callable[..., interactor.Transition]:
        """The function that steps some of the slots; see `EnvironmentSlots`.

        Raises:
          AttributeError: the environments can only step all slots together.
        """
        return functools.partial(self._step, self._env_slots.partial_step)

    def _step(
        self, step: Callable[..., interactor.Transition], *arguments: Any
    ) -> interactor.Transition:
        try:
            transition = step(*arguments)
            self._validate_transition(transition)
        except Exception as error:
            raise self._name_environment(error) from error
        return transition

    def _validate_transition(self, transition: interactor.Transition) -> None:
        rewards, terminated, truncated = validate_outcome(
            self.slots, transition.rewards, transition.terminated, transition.truncated
        )
        index = find_too_large(rewards)
        if index is not None:
            raise _make_too_large("rewards", rewards[index], index[0])
        self._validate(transition.observations, "observations")
        if transition.final_observations is not None:
            self._validate(
                transition.final_observations, "final_observations", terminated | truncated
            )

    def _validate(self, values: Values, field: str, chosen: np.ndarray | None = None) -> None:
        """Checks the slots in `chosen`, `[k]` bool; None: all."""
        leaves = self._observations.to_leaves(values, self.slots, field, chosen)
        for name, leaf in leaves.items():
            index = find_too_large(leaf)
            if index is not None and chosen is not None:
                index = find_too_large(np.where(_widen(chosen, leaf.ndim), leaf, 0))
            if index is not None:
                where = field if self._observations.bare else f"{field}[{name}]"
                raise _make_too_large(where, leaf[index], index[0])

    def _name_environment(self, error: Exception) -> RelaaxError:
        text = str(error) if isinstance(error, RelaaxError) else describe_exception(error)
        text = f"environment {self._name}: {text}"
        if isinstance(error, InvalidInputError):
            return InvalidInputError(text, error.field)
        return ConfigError(text) if isinstance(error, ConfigError) else RelaaxError(text)


def _make_too_large(field: str, number: Any, slot: int) -> InvalidInputError:
    return InvalidInputError(f"{field}: {float(number):g} in slot {slot}; {EXPECTED}")


def _widen(mask: np.ndarray, axes: int) -> np.ndarray:
    return mask.reshape(-1, *[1] * (axes - 1))


def _find_ended(terminated: np.ndarray | None, truncated: np.ndarray | None) -> np.ndarray | None:
    if terminated is None or truncated is None:
        return None
    ended = terminated | truncated
    return ended if ended.any() else None


def keep_slots_versions(experiment: Experiment, client: str, slots: EnvironmentSlots) -> None:
    """Notes the versions of the environments' packages in RUN/versions.json, if they are known.

    Args:
      experiment: can have `environment.versions: off`.
      client: name of the process, for a warning.
      slots: can have an attribute `simulator`; see `EnvironmentSlots`.
    """
    simulator, environment = getattr(slots, "simulator", None), experiment.environment
    if simulator is not None and (environment is None or environment.versions == "on"):
        keep_versions(experiment.run_dir, client, find_versions(simulator))


def require_program(experiment: Experiment) -> tuple[EnvironmentConfig, Path]:
    """Returns the section `environment` and the environment's program.

    Raises:
      ConfigError: there is no environment.
    """
    environment, program = experiment.environment, experiment.environment_program
    if environment is None or program is None:
        raise ConfigError(
            f"{experiment.file}: there is no `environment` section, but this command steps "
            "environments in its own process; add the section"
        )
    return environment, program


@contextlib.contextmanager
def open_slots(
    experiment: Experiment, purpose: str, draw: bool = False
) -> Iterator[EnvironmentSlots]:
    """Makes the experiment's environments in this process, and closes them afterwards.

    Args:
      experiment: defines them in its `environment` section.
      purpose: any text, such as "train" or "eval"; each has its own seeds.
      draw: whether slot 0 will be drawn; passed to a `make_slots` that has this parameter.

    Yields:
      Environments that refuse wrong values; see `CheckedSlots`.

    Raises:
      ConfigError: there is no environment, its folder has no slots.py that can be loaded and has a
        function `make_slots`, that function fails, its observation space is not valid, or it has
        another number of rewards than `algorithm.rewards`.
      Exception: an error of `close`, at the end.
    """
    environment, program = require_program(experiment)
    module = load_folder_module(program.parent, Path(SLOTS).stem)
    if not hasattr(module, "make_slots"):
        raise ConfigError(
            f"{program.parent / SLOTS}: no function make_slots found; define "
            "make_slots(environment, seed), which returns environments (see EnvironmentSlots)"
        )
    options = {"draw": True} if draw and "draw" in signature(module.make_slots).parameters else {}
    seed = derive_seed(experiment.seed, "environment", purpose)
    with locate_errors(program.parent):
        slots = module.make_slots(environment, seed, **options)
    name = environment.env or program.parent.name
    try:
        _validate_rewards(experiment, slots, name)
        yield CheckedSlots(slots, name)
    finally:
        slots.close()


def set_slots(experiment: Experiment, number: int) -> Experiment:
    """Returns the experiment with this number as `environment.slots`."""
    if experiment.environment is None:  # `open_slots` reports what is missing
        return experiment
    environment = experiment.environment.model_copy(update={"slots": number})
    return dataclasses.replace(experiment, environment=environment)


def open_one_slot(
    experiment: Experiment, purpose: str, draw: bool = False
) -> contextlib.AbstractContextManager[EnvironmentSlots]:
    """Makes one environment, or game, instead of `environment.slots`; see `open_slots`."""
    return open_slots(set_slots(experiment, 1), purpose, draw)


def _validate_rewards(experiment: Experiment, slots: EnvironmentSlots, name: str) -> None:
    """Compares the number of rewards, if the slots know it, with that of `algorithm.rewards`."""
    if not hasattr(experiment.algorithm, "rewards"):
        return
    weights = experiment.algorithm.rewards or {}
    number = getattr(slots, "reward_size", None)
    if number is not None and number != max(len(weights), 1):
        raise ConfigError(
            f"environment {name}: {number} rewards per step, but algorithm.rewards has "
            f"{len(weights)} ({', '.join(weights) or 'none'}); map a name of each, in the order of "
            "the environment, to its weight"
        )


def make_interactor(
    experiment: Experiment, slots: EnvironmentSlots, agents: Any, **options: Any
) -> Interactor:
    """Makes the loop that steps environments as the experiment's `environment` section says.

    Args:
      experiment: has the section.
      slots: environments.
      agents: see `Interactor`.
      options: of the `Interactor`.

    Raises:
      ConfigError: see `Interactor`.
    """
    environment = experiment.environment
    assert environment is not None
    return Interactor(
        slots,
        agents,
        random_steps=environment.random_steps,
        max_episode_steps=environment.max_episode_steps,
        **{"seed": experiment.seed, **options},
    )


def ask_environment(experiment: Experiment) -> tuple[Experiment, list[str]]:
    """Completes an experiment with the environment's spaces; see `add_spaces`.

    Returns:
      The complete experiment, and overrides. If the file defines the spaces, the experiment is
      unchanged and there are no overrides.

    Raises:
      ConfigError: there is no environment, or the algorithm cannot use its spaces; or see
        `open_slots`.
      Exception: see `open_slots`.
    """
    if not experiment.algorithm.lacks_spaces:
        return experiment, []
    if experiment.environment is None:
        require_spaces(experiment)
    return add_spaces(experiment, *_find_spaces(experiment, "train"))


def validate_environment(experiment: Experiment, purpose: str) -> RunSpaces:
    """Makes one environment, compares its spaces with the settings, and returns them.

    Args:
      experiment: defines both.
      purpose: see `open_slots`.

    Raises:
      InvalidInputError: the algorithm cannot use the environment's spaces.
      ConfigError, Exception: see `open_slots`.
    """
    spaces = _find_spaces(experiment, purpose)
    validate_run_spaces(experiment.algorithm, *spaces)
    return spaces


def _find_spaces(experiment: Experiment, purpose: str) -> RunSpaces:
    """Makes one environment, and returns the spaces of its observations and actions."""
    with open_one_slot(experiment, purpose) as slots:
        return RunSpaces(*make_slot_spec(slots, purpose)[:2])
