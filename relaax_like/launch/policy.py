"""A trained policy in a user's program: observations in, actions out."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.client.user_spaces import make_space_values
from relaax_like.client.values import LeafPath, SpaceValues, name_leaves
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.config.run_folder import find_experiment
from relaax_like.config.run_spaces import find_run_spaces
from relaax_like.config.spaces import describe_mismatch, validate_run_spaces
from relaax_like.launch.saved_policy import SavedPolicy, read_snapshot
from relaax_like.rlx_server.slots import Decision, Slots, SlotSpec
from relaax_like.rlx_server.transition import ReceivedStep
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import ConfigError, InvalidInputError
from relaax_like.wire.spaces import ACTION, MASK, OBSERVATION, Spaces, make_masks, split_masks

_FIELD = "observation"


class Policy(Closing):
    """Acts like the agents of a run, with the weights of one of its snapshots.

        policy = relaax_like.load("runs/cartpole")
        observation, _ = env.reset()
        while True:
            action = policy.act(observation)
            observation, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                observation, _ = env.reset()
                policy.reset()

    Observations are passed as the environment returns them: the policy normalises them, joins them
    with earlier ones (`observation_history`), and keeps the memory of recurrent networks. Nothing
    is learned, and nothing is written. Not thread-safe. Make one with `relaax_like.load`.

    Attributes:
      version: of the weights.
      global_t: environment steps of the run at that version.

    Raises:
      ConfigError, InvalidInputError, SnapshotError: see `relaax_like.load`.
    """

    def __init__(
        self,
        experiment: Experiment,
        version: str = "latest",
        observation_space: Any = None,
        action_space: Any = None,
    ):
        self._observations, self._actions = _find_spaces(
            experiment, observation_space, action_space
        )
        try:
            spaces = self._observations.spaces, self._actions.spaces
            validate_run_spaces(experiment.algorithm, *spaces)
        except InvalidInputError as error:
            raise InvalidInputError(describe_mismatch(error), error.field) from None
        self._masks = experiment.algorithm.masks
        self._saved = SavedPolicy(experiment, read_snapshot(experiment, version), "policy")
        self.version, self.global_t = self._saved.version, self._saved.global_t
        self._agents: Slots | None = None
        self._starts = True  # the agents have not acted yet
        self._ended = np.ones(0, np.bool_)  # [B], rows that begin an episode with the next step

    def act(self, observation: Any, greedy: bool = True, mask: Any = None) -> Any:
        """Chooses an action for one observation, or for each of a batch.

        The observation is a batch if its first leaf has one axis more than the observation space.
        The rows of a batch are B episodes that advance together, each with its own memory.

        Args:
          observation: an array of the space's shape, `[...]`, or a batch `[B, ...]`. Several leaves
            are a dict with their names as keys, or nested like the space. Images are uint8.
          greedy: choose the best action, as `relaax eval` does; False: draw one, as in training.
          mask: which choices of the only action are legal, `[n] bool`, or `[B, n]`; of several
            actions, a dict by name. None: all.

        Returns:
          The action for the environment, with the action space's dtype: for one observation an int
          (Discrete) or an array `[...]`, for a batch an array `[B, ...]`.

        Raises:
          InvalidInputError: the observation does not fit the space; the size of the batch has
            changed in the middle of its episodes; or `greedy` is False, and the algorithm's agents
            do not support that.
          RelaaxError, Exception: no agents can be made (see `AgentHost.make_slot_agents`), or an
            agent's code or the model's policy failed.
        """
        values, slots, is_batch = self._read(observation)
        values |= self._read_masks(mask, slots)
        agents = self._prepare(slots)
        decision = self._decide(agents, self._make_transition(values), greedy)
        self._starts = False
        self._ended = np.zeros(slots, np.bool_)
        assert decision.actions is not None, "agents that exploit never finish"
        actions = self._actions.from_leaves(decision.actions)
        return actions if is_batch else self._actions.first_row(actions)

    def reset(self, ended: Any = None) -> None:
        """Begins new episodes: memory and earlier observations are forgotten.

        Args:
          ended: `[B] bool`, the rows of the batch whose episodes have ended; None: all.

        Raises:
          InvalidInputError: `ended` does not have one entry per observation of the newest batch.
        """
        if ended is None:
            self._ended = np.ones_like(self._ended)
            return
        mask = np.asarray(ended, np.bool_)
        if mask.shape != self._ended.shape:
            raise InvalidInputError(
                f"ended: shape {list(mask.shape)}, expected {list(self._ended.shape)}, one entry "
                "per observation of the newest batch"
            )
        self._ended = self._ended | mask

    def close(self) -> None:
        """Releases the agents' resources; afterwards the policy must not be used.

        Idempotent; optional at the end of a program.
        """
        if self._agents is not None:
            self._agents.close()
            self._agents = None
        self._saved.close()

    def _read(self, observation: Any) -> tuple[dict[str, np.ndarray], int, bool]:
        """Returns leaf -> `[B, ...]`, B, and whether a batch was passed."""
        spaces = self._observations
        if type(spaces) is SpaceValues and not spaces.bare:
            observation = _join_names(observation, spaces.spaces)
        slots = spaces.count_slots(observation, _FIELD)
        if slots is None:
            return spaces.row_to_leaves(observation, _FIELD), 1, False
        if not slots:
            raise InvalidInputError(
                "observation: an empty batch, expected 1 or more observations", _FIELD
            )
        return spaces.to_leaves(observation, slots, _FIELD), slots, True

    def _read_masks(self, mask: Any, slots: int) -> dict[str, np.ndarray]:
        """Returns the masks by their names among the observations.

        Raises:
          InvalidInputError: the run has no masks, or one does not fit.
        """
        if mask is None:
            return {}
        given = mask if isinstance(mask, Mapping) else {ACTION: mask}
        spaces = make_masks(self._actions.spaces)
        found = {}
        for leaf, flags in given.items():
            name = f"{MASK}{leaf}"
            if leaf not in self._masks or name not in spaces:
                raise InvalidInputError(
                    f"mask: of {leaf!r:.60}, but the run was trained with masks of "
                    f"{sorted(self._masks) or 'no action'}; omit it"
                )
            array = np.asarray(flags)
            array = array.reshape(slots, -1) if array.size else array
            found[name] = spaces[name].validate(array.astype(np.bool_), slots, "mask")
        return found

    def _prepare(self, slots: int) -> Slots:
        """Returns the agents of a batch of this size."""
        agents, before = self._agents, len(self._ended)
        if agents is not None and slots == before:
            return agents
        if agents is not None:
            if agents.remembers and not self._ended.all():
                raise InvalidInputError(
                    f"observation: a batch of {slots}, but episodes of a batch of {before} are in "
                    "progress (a single observation is a batch of 1); call reset() first",
                    _FIELD,
                )
            agents.close()
            self._agents = None  # also if no others can be made
        spec = SlotSpec(self._observations.spaces, self._actions.spaces, slots, "policy", True)
        self._agents = self._saved.host.make_slot_agents(spec)
        self._starts = True
        self._ended = np.zeros(slots, np.bool_)
        return self._agents

    def _make_transition(self, values: Mapping[str, np.ndarray]) -> ReceivedStep:
        if self._starts:
            return ReceivedStep(observations=values)
        slots = len(self._ended)
        return ReceivedStep(
            observations=values,
            rewards=np.zeros((slots, 1)),
            terminated=self._ended,
            truncated=np.zeros(slots, np.bool_),
            ended=self._ended if self._ended.any() else None,
        )

    def _decide(self, agents: Slots, transition: ReceivedStep, greedy: bool) -> Decision:
        if agents.blocking and not greedy:
            raise InvalidInputError(
                "greedy: False, but the algorithm's Agent always chooses the best actions; omit "
                "greedy"
            )
        agents.observe(transition)
        decision, prediction = None, None
        while decision is None:
            if request := agents.request():
                prediction = self._saved.host.predict([request._replace(exploit=greedy)])[0]
            decision = agents.decide(prediction)
        return decision


def load_policy(
    run: Path, version: str = "latest", observation_space: Any = None, action_space: Any = None
) -> Policy:
    """Loads a run's policy; see `relaax_like.load`, also for the errors."""
    file, folders = find_experiment(run)
    return Policy(load_experiment(file, folders), version, observation_space, action_space)


def _find_spaces(
    experiment: Experiment, observation_space: Any, action_space: Any
) -> tuple[SpaceValues, SpaceValues]:
    """Returns the spaces that were passed, or else those of the run.

    Raises:
      ConfigError: the run does not know the environment's spaces; or see `find_run_spaces` and
        `make_space_values`.
      InvalidInputError: see `make_space_values`.
    """
    found, folder = find_run_spaces(experiment), experiment.algorithm_folder
    if observation_space is None:
        spaces, _ = split_masks(found.observations)
        observation_space = spaces.get(OBSERVATION, spaces) if len(spaces) == 1 else spaces
    if action_space is None:
        spaces = found.actions
        action_space = spaces.get(ACTION, spaces) if len(spaces) == 1 else spaces
    missing = [
        name
        for name, space in (
            ("observation_space", observation_space),
            ("action_space", action_space),
        )
        if space is None or space == {}
    ]
    if missing:
        raise ConfigError(
            f"{folder}: the algorithm's Config does not define the environment's "
            f"{' and '.join(missing)}; pass {' and '.join(f'{name}=...' for name in missing)}"
        )
    return (
        make_space_values(observation_space, OBSERVATION),
        make_space_values(action_space, ACTION),
    )


def _join_names(values: Any, spaces: Spaces) -> Any:
    """Names the leaves of nested dicts and tuples by their paths, as clients do.

    Raises:
      InvalidInputError: see `name_leaves`.
    """
    nested = isinstance(values, Mapping | tuple)
    if not nested or (isinstance(values, Mapping) and values.keys() == spaces.keys()):
        return values
    return {name: value for name, (_, value) in name_leaves(_collect(values), _FIELD).items()}


def _collect(values: Any, path: LeafPath = ()) -> Iterator[tuple[LeafPath, Any]]:
    """Yields the path of each leaf of nested dicts and tuples, and its value."""
    if isinstance(values, Mapping):
        members: Iterable[tuple[Hashable, Any]] = values.items()
    elif isinstance(values, tuple):
        members = enumerate(values)
    else:
        yield path, values
        return
    for key, value in members:
        yield from _collect(value, (*path, key))
