"""The folder that is checked for conformance: its parts, and data for them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from relaax_like.algorithm.acting import Actor, make_actor
from relaax_like.algorithm.model import get_groups, get_learning_specs, get_reward_columns
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.models import Experiment
from relaax_like.config.optimizer import OptimizerConfig, choose_optimizer
from relaax_like.config.plan import Episodes, LearningPlan, Offline, Replay, get_plan
from relaax_like.experience.collector import TrainingData
from relaax_like.experience.rollout import Rollout
from relaax_like.launch.algorithm_code import (
    has_plain_agents,
    load_model_module,
    make_algorithm,
    make_model,
)
from relaax_like.learn.replayed import ReplayIteration, make_table
from relaax_like.runs.processes.process import without_native_stderr
from relaax_like.wire.spaces import MASK

if TYPE_CHECKING:  # It imports TensorFlow.
    from relaax_like.learn.learning_policy import LearningPolicy

_OPEN_COLUMNS, _OPEN_STEPS = 4, 8


class NotApplicable(Exception):
    """A check does not apply to this folder; the text says why."""


class Failed(Exception):
    """The folder fails a check; the text says why."""


class Subject:
    """Makes a folder's parts for each check separately, with the same values each time.

    Only `learned` is shared, because tracing an update is slow.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.folder = experiment.algorithm_folder
        self.config = experiment.algorithm

    def make_model(self) -> Any:
        """Makes the model with its initial values.

        Raises:
          NotApplicable: the folder has no make_model.
        """
        if load_model_module(self.experiment) is None:
            raise NotApplicable(
                "there is no make_model in model.py, as in a folder with several Algorithms, or "
                "with agents that have a policy of their own"
            )
        with without_native_stderr():
            return make_model(self.experiment)

    def make_algorithm(self, xla: bool = False) -> Any:
        """Makes the algorithm; compiling without XLA takes a tenth of the time.

        Raises:
          NotApplicable: the folder has no make_algorithm, or no make_model.
          Failed: the folder has no algorithm.py, but its agents need it.
        """
        model = self.make_model()
        model.xla = xla and model.xla
        if not (self.folder / "algorithm.py").is_file():
            if not has_plain_agents(self.experiment):
                raise Failed(
                    f"{self.folder}: there is no algorithm.py, by which the agents of this folder "
                    "learn; add one with make_algorithm, or an agent.py with a plain Agent"
                )
            raise NotApplicable(
                "there is no algorithm.py, so the agents of this folder learn by themselves"
            )
        module = load_algorithm_module(self.folder, "algorithm")
        if not hasattr(module, "make_algorithm"):
            raise NotApplicable("there is no make_algorithm in algorithm.py")
        return make_algorithm(self.experiment, model, self.config.seed)

    @property
    def plan(self) -> LearningPlan:
        """The plan of the folder's Config.

        Raises:
          NotApplicable: the Config has no plan, or one for each Algorithm.
        """
        plan = get_plan(self.config)
        if isinstance(plan, LearningPlan):
            return plan
        if isinstance(plan, Mapping):
            raise NotApplicable(
                f"the Config has a plan for each Algorithm ({', '.join(plan)}), and the check only "
                "supports one Algorithm"
            )
        raise NotApplicable(
            "the Config has no plan, but the check makes updates by a plan; define plan if a "
            "learner learns for the agents"
        )

    def make_actor(self, model: Any) -> Actor:
        """Makes an actor for the model's policy."""
        return make_actor(model, 0, self.config)

    def draw(self, specs: Sequence[tuple[str, Mapping[str, Any]]], *axes: int, seed: int) -> Any:
        """Draws random arrays for specs: name -> `[*axes, ...]`; masks have a legal choice each."""
        random = np.random.default_rng(seed)
        return {
            name: _draw(random, (*axes, *p["shape"]), p)
            if not name.startswith(MASK)
            else _draw_mask(random, axes, self.config.masks[name.removeprefix(MASK)])
            for name, p in specs
        }

    def make_data(self, model: Any, seed: int, padding: int = 0) -> Any:
        """Returns an iteration of the plan: actions of the initial policy for random observations.

        Args:
          model: determines the specs.
          seed: for observations, rewards and the ends of episodes.
          padding: number of rows at the end of each column that are not valid.

        Raises:
          NotApplicable: see `plan`.
        """
        steps, columns = self._find_size()
        specs = get_learning_specs(model)
        inputs = self.draw(specs, steps + padding + 1, columns, seed=seed)
        random = np.random.default_rng(seed)
        alive = random.choice([1.0, 1.0, 1.0, 0.0, -1.0], (steps + padding, columns))
        alive = alive.astype(np.float32)
        if isinstance(self.plan, Episodes):
            alive[:] = 1.0
            alive[steps - 1] = 0.0
        states = make_zeros(model.get_state_specs(), columns)
        actions, log_prob = self._act(model, inputs, dict(states), alive)
        width = max(part.stop for part in get_reward_columns(model).values())
        valid = None
        if padding:
            valid = np.ones(alive.shape, np.bool_)
            valid[steps:] = False
        rollout = Rollout(
            inputs={name: array[:-1] for name, array in inputs.items()},
            next_inputs={name: array[1:] for name, array in inputs.items()},
            next_alive=alive,
            rewards=random.standard_normal((*alive.shape, width)).astype(np.float32),
            actions=actions,
            log_prob=log_prob,
            states=states,
            versions=np.zeros(len(alive), np.int64),
            valid=valid,
        )
        if isinstance(self.plan, Replay):
            return self._replay(model, self.plan, rollout)
        keys = np.stack([np.ones(columns, np.int64), np.arange(columns)], 1)
        return TrainingData(
            rollout=rollout, tickets=(1,), env_steps=rollout.env_steps, mean_version=0.0, keys=keys
        )

    def _act(
        self, model: Any, inputs: Any, memory: Any, alive: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the actions of the initial policy in a rollout, and their log-probabilities."""
        actor, predictions = self.make_actor(model), []
        for step, row in enumerate(alive):
            seen = {name: inputs[name][step] for name, _ in model.get_input_specs()}
            predictions.append(actor.act(seen, memory))
            memory = {
                name: np.where(_widen(row > 0, array.ndim), array, 0).astype(array.dtype)
                for name, array in predictions[-1].next_states.items()
            }
        names = predictions[0].actions
        actions = {n: np.stack([np.asarray(p.actions[n]) for p in predictions]) for n in names}
        return actions, np.stack([np.asarray(p.log_prob, np.float32) for p in predictions])

    def _replay(self, model: Any, plan: Replay, rollout: Rollout) -> ReplayIteration:
        """Returns minibatches of a rollout's steps."""
        number = rollout.next_alive.size
        plan = replace(plan, capacity=4 * number, warm_up_steps=0, updates_per_step=1.0)
        agents = np.arange(rollout.slots, dtype=np.int64)
        starts = np.stack([agents, np.zeros_like(agents), np.zeros_like(agents)], 1)
        table = make_table(plan, model, {}, 0)
        table.insert(replace(rollout, starts=starts))
        minibatches = table.sample(plan.updates_at_once)
        assert minibatches is not None, "there are enough steps"
        return ReplayIteration(minibatches, number, (1,), 0.0)

    def _find_size(self) -> tuple[int, int]:
        plan = self.plan
        if isinstance(plan, Replay):
            needed = 2 * plan.batch_size * plan.updates_at_once + plan.n_step
            return _OPEN_STEPS, -(-needed // _OPEN_STEPS) + _OPEN_COLUMNS
        if isinstance(plan, Offline):
            needed = plan.batch_size
            if plan.minibatch_of == "rollouts":
                return _OPEN_STEPS, 2 * needed
            return _OPEN_STEPS, -(-2 * needed // _OPEN_STEPS)
        columns = plan.columns if plan.has_fixed_size else max(plan.columns, _OPEN_COLUMNS)
        return plan.rollout_steps, columns

    def make_learning(
        self, optimizers: Mapping[str, OptimizerConfig], plan: Any = None, xla: bool = False
    ) -> "LearningPolicy":
        """Returns a policy that makes complete updates of a new algorithm, by its plan or another.

        Raises:
          NotApplicable, Failed: see `make_algorithm` and `plan`.
        """
        from relaax_like.learn.learning_policy import LearningPolicy
        from relaax_like.learn.updates import CompiledUpdates

        compiled = CompiledUpdates(self.make_algorithm(xla), optimizers)
        return LearningPolicy(compiled, plan or self.plan, seed=7)

    @functools.cached_property
    def learned(self) -> "LearningPolicy":
        """A policy that has made updates with the folder's optimizers in two or more iterations.

        Raises:
          NotApplicable, Failed: see `make_learning` and `optimizers`.
        """
        policy = self.make_learning(self.optimizers, xla=self.compiles)
        model = self.make_model()
        for seed in (6, 7):
            policy.forward(policy.data_preprocess(self.make_data(model, seed)))
        return policy

    @property
    def compiles(self) -> bool:
        """Whether complete updates are compiled with XLA, which no training of the folder does."""
        is_offline = isinstance(get_plan(self.config), Offline)
        return is_offline or self.experiment.learner.placement == "agent"

    @property
    def optimizers(self) -> dict[str, OptimizerConfig]:
        """The optimizer of each variable group.

        Raises:
          Failed: a group has no optimizer.
          NotApplicable: see `make_model`.
        """
        own = self.experiment.optimizers
        chosen = {group: choose_optimizer(group, own) for group in get_groups(self.make_model())}
        if lacking := [group for group, name in chosen.items() if not name]:
            raise Failed(
                f"{self.folder}: the variable group {lacking[0]!r} has no optimizer; configure one "
                "for it (relaax-parameter-server.optimizers, or `optimizers` of the algorithm's "
                "Config)"
            )
        return {group: own[name] for group, name in chosen.items()}


def _draw(random: np.random.Generator, shape: tuple[int, ...], properties: Any) -> np.ndarray:
    dtype = np.dtype(properties.get("dtype", "float32"))
    if dtype == np.uint8:
        return random.integers(256, size=shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return random.integers(2, size=shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _draw_mask(
    random: np.random.Generator, axes: tuple[int, ...], sizes: Sequence[int]
) -> np.ndarray:
    """Draws a mask `[*axes, sum(sizes)]`: one choice of each component, and half of the others."""
    parts = []
    for n in sizes:
        numbers = random.random((*axes, n))
        parts.append((numbers > 0.5) | (numbers == numbers.max(-1, keepdims=True)))
    return np.concatenate(parts, -1)


def make_zeros(specs: Any, rows: int) -> dict[str, np.ndarray]:
    """Returns arrays of zeros by name, `[rows, ...]`."""
    return {k: np.zeros((rows, *p["shape"]), p.get("dtype", "float32")) for k, p in specs}


def _widen(mask: np.ndarray, axes: int) -> np.ndarray:
    return mask.reshape(-1, *[1] * (axes - 1))
