"""Runs that learn from recorded batches: what they compute is compared with files, and commits.

    python tests/golden/cases.py FOLDER          # writes FOLDER/CASE-SEED.npz for all cases
    python tests/golden/cases.py FOLDER ppo a2c  # for these

The shipped algorithms, each in all the ways in which it learns: gradients that a parameter server's
store applies, updates that two learners make together, whole iterations of a learner in the server,
the same in one thread, files.

Cases without XLA compute the same with TensorFlow's own functions, and start much sooner.
"""

import argparse
import dataclasses
import importlib
import os
import queue
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.algorithm_folder import load_algorithm_module
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment
from relaax_like.core.manifest import find_follows
from relaax_like.core.records import Counts, Episode, Origin, Publication, Push, Reply
from relaax_like.experience.rollout import Rollout
from relaax_like.experience.trajectory_files import TrajectoryWriter
from relaax_like.launch.initial_values_main import make_initial_values
from relaax_like.launch.recordings import find_recordings
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots, read_latest
from relaax_like.parameter_server.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.uncompiled import copy_uncompiled

BATCHES = Path(__file__).parent / "batches"
# Newest place first: these runs are also made with the packages of older commits.
_MAKE_MANIFEST = ("core.manifest:make_manifest", "bridge.manifest:make_manifest")
_NULL_METRICS = ("core.metrics:NullMetrics", "bridge.service:NullMetrics")
_REQUEST = ("core.records:LearnRequest", "computation.learning:Work")
_LOG_PROB = ("core.prediction:LOG_PROB", "computation.prediction:LOG_PROB")
_COMPILED = (
    "learn.compiled_algorithm:CompiledAlgorithm",
    "learn.computation_task:ComputationTask",
    "computation.computation_task:ComputationTask",
)
# Updates, or iterations of several, after which the state is looked at.
CHECKPOINTS = (1, 10)
# For updates where a difference of the last bit grows.
EARLY = (1, 4)
SEEDS = (0, 1)
# Longer than the slowest machine takes.
_WAIT_SEC = 600
# Gradients that are kept, of the first pushes.
GRADIENTS = 2
# By name: "initial/...", "cost/...", "gradient/...", and "1/..." and "10/..." after so many; then
# "table/...", what is in a replay table at the end, and what the parameter server was sent:
# "pushed", "published" and "pushed gradient/...".
Result = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One algorithm with settings.

    Attributes:
      batches: name of the file that it learns from.
      algorithm: its section of the experiment.
      learn: goes through the rollouts; yields after each update or iteration, and perhaps once
        more, with arrays of the result.
      learner: the section of that name; FILES stands for the folder of recorded files.
      seeds: that are run.
      combine: `relaax-parameter-server.combine`.
      change: makes the rollouts that it learns from of the recorded ones.
      checkpoints: numbers of the updates or iterations after which the state is looked at; nothing
        is learned after the last.
      xla: whether XLA compiles the algorithm.
    """

    batches: str
    algorithm: str
    learn: Callable[[Experiment, "RecordingServer", list[Rollout]], Iterator[Result]]
    learner: str = "{}"
    seeds: tuple[int, ...] = SEEDS
    combine: str = "{method: fifo}"
    change: Callable[[list[Rollout]], list[Rollout]] = list
    checkpoints: tuple[int, ...] = CHECKPOINTS
    xla: bool = True


class RecordingServer(ParameterServer):
    """A parameter server that notes what it is sent.

    Attributes:
      pushed: client; sequence, bytes and version of the gradient, steps, episodes, and rows of
        running statistics of each push.
      gradients: the first ones.
      published: number (0: only counts), steps, episodes, what the learner has counted of its
        client and learned from, version and steps of the run.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.pushed: list[tuple[str, list[int]]] = []
        self.gradients: list[np.ndarray] = []
        self.published: list[list[int]] = []

    def push(self, push: Push, timeout_sec: float | None = None) -> Reply:
        """Notes a push of one client."""
        self._note(push)
        return super().push(push, timeout_sec)

    def push_joint(self, push: Push) -> Reply:
        """Notes a gradient that all learners have made together."""
        self._note(push)
        return super().push_joint(push)

    def publish(self, publication: Publication) -> Reply:
        """Notes a publication."""
        return self._note_published(publication.number, publication, super().publish(publication))

    def count(self, counts: Counts) -> Reply:
        """Notes counts without values."""
        return self._note_published(0, counts, super().count(counts))

    def describe(self) -> Result:
        """Returns all as arrays; pushes are sorted, since chance decides which learner is first."""
        clients = sorted({client for client, _ in self.pushed})
        pushed = [[clients.index(client), *numbers] for client, numbers in self.pushed]
        arrays = {"pushed": pushed and sorted(pushed), "published": self.published}
        return {
            **{name: np.array(rows) for name, rows in arrays.items() if rows},
            **{f"pushed gradient/{n}": array for n, array in enumerate(self.gradients)},
        }

    def _note(self, push: Push) -> None:
        gradient, version = push.gradient, 0
        if gradient is not None:
            version = push.gradient_version
            if len(self.gradients) < GRADIENTS:
                self.gradients.append(np.array(gradient.view(np.float32)))
        rows = sum(int(moments.count) for moments in push.statistics.values())
        size = 0 if gradient is None else gradient.nbytes
        numbers = [push.sequence, size, version, push.env_steps, len(push.episodes), rows]
        self.pushed.append((push.client_id, numbers))

    def _note_published(self, number: int, item: Publication | Counts, reply: Reply) -> Reply:
        received = [list(one[1:]) for one in item.received.values()]
        counted, learned = received[0] if received else (0, 0)
        numbers = [number, item.env_steps, len(item.episodes), counted, learned]
        self.published.append([*numbers, reply.version, reply.global_t])
        return reply


def _find(*places: str) -> Any:
    """Returns what is at the first of some places, MODULE:NAME, whose module exists."""
    for place in places:
        name, _, attribute = place.partition(":")
        try:
            return getattr(importlib.import_module(f"relaax_like.{name}"), attribute)
        except ModuleNotFoundError:
            continue
    raise ImportError(f"none of {', '.join(places)}")


def learn_by_gradients(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As a learner beside its agents does."""
    yield from _learn_beside_agents(experiment, server, [rollouts])


def learn_together(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As two learners that make each update together do, each with half of the slots."""
    half = rollouts[0].slots // 2
    halves = [
        [take_slots(rollout, part) for rollout in rollouts]
        for part in (slice(0, half), slice(half, None))
    ]
    yield from _learn_beside_agents(experiment, server, halves)


def _learn_beside_agents(
    experiment: Experiment, server: RecordingServer, parts: list[list[Rollout]]
) -> Iterator[Result]:
    """With one learner for each part of the slots."""
    from relaax_like.launch.learners import make_learners

    # By each learner: updates, or an error after which it learns nothing more.
    answers = [queue.SimpleQueue[Any]() for _ in parts]
    learners = [
        make_learners(
            experiment,
            lambda name: InProcessClient(server, name),
            f"golden{index}",
            on_failure=errors.put,
        )
        for index, errors in enumerate(answers)
    ]

    def wait_for(answered: "queue.SimpleQueue[Any]", number: int) -> None:
        while True:
            answer = answered.get(timeout=_WAIT_SEC)
            if isinstance(answer, Exception):
                raise answer
            if number in answer.numbers:
                return

    waiting = []
    try:
        for (learner,), answered in zip((each.values() for each in learners), answers, strict=True):
            learner.start(answered.put)
            waiting.append(learner)
        for number, rollouts in enumerate(zip(*parts, strict=True)):
            for learner, rollout in zip(waiting, rollouts, strict=True):
                steps, episodes = rollout.env_steps, _find_episodes(rollout)
                learner.submit(_find(*_REQUEST)(number, rollout, episodes, steps))
            for answered in answers:
                wait_for(answered, number)
            yield {}
        yield from (_describe_table(learner.take_state()["loop"]) for learner in waiting[:1])
    finally:
        for learner in waiting:
            learner.stop()


def learn_iterations(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As a learner in the parameter server's process does."""
    from relaax_like.launch.learners import make_iteration_learner

    learner = make_iteration_learner(experiment, server)
    learner.load()
    source = getattr(learner, "source", learner)  # in older commits the learner itself
    for number, rollout in enumerate(rollouts, 1):
        source.add(rollout, _find_episodes(rollout), origin=Origin("golden", 1, number))
        assert learner.learn() is not None
        while source.has_iteration:
            learner.learn()
        yield {}
    yield _describe_table(learner.take_state())
    learner.close()


def learn_serially(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As `relaax train` does, in one thread with its agents."""
    from relaax_like.launch.learners import make_iteration_learner
    from relaax_like.learn.serial_learner import SerialLearner

    learner = SerialLearner(make_iteration_learner(experiment, server))
    learner.start(lambda update: None)
    for number, rollout in enumerate(rollouts):
        steps, episodes = rollout.env_steps, _find_episodes(rollout)
        learner.submit(_find(*_REQUEST)(number, rollout, episodes, steps))
        yield {}
    yield _describe_table(learner.take_state())
    learner.stop()


def learn_hierarchy_by_gradients(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As the learners of several Algorithms beside their agents do, one after another."""
    from relaax_like.launch.learners import make_learners

    learners = make_learners(experiment, lambda name: InProcessClient(server, name), "golden")
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for learner in learners.values():
        learner.start(answers.put)
        answers.get(timeout=_WAIT_SEC)
    try:
        for parts in _split_hierarchy(rollouts):
            for number, (name, part, steps) in enumerate(parts):
                learners[name].submit(_find(*_REQUEST)(number, part, (), steps))
                while number not in answers.get(timeout=_WAIT_SEC).numbers:
                    pass
            yield {}
    finally:
        for learner in learners.values():
            learner.stop()


def learn_hierarchy(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As the learners of several Algorithms in the parameter server's process do."""
    from relaax_like.launch.learners import make_iteration_learners

    learners = make_iteration_learners(experiment, server)
    for learner in learners.values():
        learner.load()
    for parts in _split_hierarchy(rollouts):
        for name, part, steps in parts:
            learners[name].source.add(part, (), steps)
            while learners[name].source.has_iteration:
                learners[name].learn()
        yield {}
    yield _describe_table(learners["goal"].take_state())
    for learner in learners.values():
        learner.close()


def learn_offline(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """From files."""
    from relaax_like.launch.learners import make_offline_learner

    assert experiment.learner.offline is not None
    files = find_recordings(experiment.learner.offline)
    learner = make_offline_learner(experiment, server, files)
    learner.load()
    for _ in rollouts:
        learner.learn()
        yield {}
    learner.close()


def learn_episodes(
    experiment: Experiment, server: RecordingServer, rollouts: list[Rollout]
) -> Iterator[Result]:
    """As an agent of its own does: the first slot of each batch is an episode."""
    module = load_algorithm_module(experiment.algorithm_folder, "agent")
    agent = module.Agent(experiment.algorithm, InProcessClient(server, "golden"))
    for rollout in rollouts:
        states, rewards = rollout.inputs["observation"][:, 0], rollout.rewards[:, 0, 0].tolist()
        agent.act(states[0])
        for reward, state in zip(rewards[:-1], states[1:], strict=True):
            agent.reward_and_act(reward, state)
        agent.reward_and_reset(rewards[-1])
        yield {}


def _split_hierarchy(rollouts: list[Rollout]) -> Iterator[list[tuple[str, Rollout, int]]]:
    """Yields names in `hierarchical_algorithm`, their rollouts, and the steps that these count.

    A goal sees two numbers, and is what was done; a rollout has four goals, or eight steps.
    """

    def see(inputs: Any) -> dict[str, np.ndarray]:
        return {"observation": np.ascontiguousarray(inputs["observation"][..., :2])}

    goals, controls = [], []
    for rollout in rollouts:
        actions = rollout.actions["action"]
        chosen = {"goal": np.eye(2, dtype=np.float32)[actions]}
        goal = dataclasses.replace(
            rollout,
            inputs=see(rollout.inputs),
            next_inputs=see(rollout.next_inputs),
            actions={"goal": actions},
        )
        goals += [take_steps(goal, slice(start, start + 4)) for start in (0, 4, 8, 12)]
        control = dataclasses.replace(rollout, inputs=chosen, next_inputs=chosen)
        controls += [take_steps(control, slice(start, start + 8)) for start in (0, 8)]
    parts = [("goal", rollout, 0) for rollout in add_starts(goals)]
    steps = [("control", rollout, rollout.env_steps) for rollout in add_starts(controls)]
    for number in range(len(rollouts)):
        yield [*parts[4 * number : 4 * number + 4], *steps[2 * number : 2 * number + 2]]


def take_slots(rollout: Rollout, part: slice) -> Rollout:
    """Returns some slots of a rollout."""

    def cut(arrays: Any) -> dict[str, np.ndarray]:
        return {name: array[:, part] for name, array in arrays.items()}

    return dataclasses.replace(
        rollout,
        inputs=cut(rollout.inputs),
        next_inputs=cut(rollout.next_inputs),
        next_alive=rollout.next_alive[:, part],
        rewards=rollout.rewards[:, part],
        actions=cut(rollout.actions),
        log_prob=rollout.log_prob[:, part],
        states={name: array[part] for name, array in rollout.states.items()},
        valid=None if rollout.valid is None else rollout.valid[:, part],
        starts=None if rollout.starts is None else rollout.starts[part],
    )


def take_steps(rollout: Rollout, part: slice) -> Rollout:
    """Returns some steps of a rollout without memory, and without known starts."""

    def cut(arrays: Any) -> dict[str, np.ndarray]:
        return {name: array[part] for name, array in arrays.items()}

    return dataclasses.replace(
        rollout,
        inputs=cut(rollout.inputs),
        next_inputs=cut(rollout.next_inputs),
        next_alive=rollout.next_alive[part],
        rewards=rollout.rewards[part],
        actions=cut(rollout.actions),
        log_prob=rollout.log_prob[part],
        versions=rollout.versions[part],
    )


def add_starts(rollouts: list[Rollout]) -> list[Rollout]:
    """Adds what a replay table tells slots and episodes by; versions grow from batch to batch."""
    starts = np.array([[7 + slot, 0, 0] for slot in range(rollouts[0].slots)])
    changed = []
    for number, rollout in enumerate(rollouts):
        versions = np.full(len(rollout.versions), number)
        changed.append(dataclasses.replace(rollout, starts=starts.copy(), versions=versions))
        for alive in rollout.next_alive:
            starts[:, 2] += 1
            starts[alive != 1, 1] += 1
            starts[alive != 1, 2] = 0
    return changed


def add_goals(rollouts: list[Rollout]) -> list[Rollout]:
    """Makes a goal of each observation: its first two numbers, of which zeros are desired."""

    def split(inputs: Any) -> dict[str, np.ndarray]:
        achieved = np.ascontiguousarray(inputs["observation"][..., :2])
        return {"achieved_goal": achieved, "desired_goal": np.zeros_like(achieved)}

    return add_starts(
        [
            dataclasses.replace(one, inputs=split(one.inputs), next_inputs=split(one.next_inputs))
            for one in rollouts
        ]
    )


def add_overrides(rollouts: list[Rollout]) -> list[Rollout]:
    """Marks most steps as those of a human, which are the only ones that are learned from."""
    random = np.random.default_rng(3)
    return [
        dataclasses.replace(one, valid=random.uniform(size=one.next_alive.shape) < 0.7)
        for one in rollouts
    ]


def number_states(rollouts: list[Rollout]) -> list[Rollout]:
    """Makes each step a rollout of its own, of one of 16 states: the signs of four numbers."""
    numbered = [_number(rollout) for rollout in rollouts[:3]]
    return [take_steps(one, slice(t, t + 1)) for one in numbered for t in range(len(one.rewards))]


def number_pairs(rollouts: list[Rollout]) -> list[Rollout]:
    """Makes each two steps a rollout, whose first step is the second of the one before."""
    numbered = [_number(rollout) for rollout in rollouts[:3]]
    return [
        take_steps(one, slice(t, t + 2)) for one in numbered for t in range(len(one.rewards) - 1)
    ]


def _number(rollout: Rollout) -> Rollout:
    def number(inputs: Any) -> dict[str, np.ndarray]:
        states = (inputs["observation"] > 0) @ np.array([8, 4, 2, 1])
        return {"observation": states[..., None]}

    return dataclasses.replace(
        rollout, inputs=number(rollout.inputs), next_inputs=number(rollout.next_inputs)
    )


def _find_episodes(rollout: Rollout) -> list[Episode]:
    """Returns an episode for each end, however much of it is in this rollout."""
    ends = np.argwhere(rollout.next_alive != 1).tolist()
    return [Episode(float(step), 1 + step, slot) for step, slot in ends]


def _describe_table(state: dict[str, Any]) -> Result:
    """Returns what tells one replay table from another; {} for learners without one."""
    table = state.get("table")
    if table is None:
        return {}
    columns = table["storage"]["columns"]
    contents = [zlib.crc32(np.ascontiguousarray(columns[name]).data) for name in sorted(columns)]
    drawn = table["random"]["state"]["state"].to_bytes(16, "little")
    result = {
        "table/counts": np.array([table["counts"][name] for name in sorted(table["counts"])]),
        "table/columns": np.array(contents, np.uint32),
        "table/random": np.frombuffer(drawn, np.uint8),
    }
    if "leaves" in table["selector"]:
        result["table/priorities"] = np.array(table["selector"]["leaves"])
    return result


_SMALL = "network: {layers: [16, 8]}"
_LSTM = "network: {layers: [{lstm: 8}]}"
_CARTPOLE = "state_size: 4, num_actions: 2"
_PENDULUM = "state_size: 3, action_size: 1"
_SERVER = "{placement: server}"
# No learner continues without the other, however busy the machine is.
_TOGETHER = "{method: sync, max_wait_sec: 1000}"
_OFFLINE = "{placement: server, offline: FILES}"
# Twice two updates after each batch, or twice after half of it.
_REPLAY = (
    "network: {layers: [8]}, capacity: 256, batch_size: 8, warm_up_steps: 0, rollout_steps: 16, "
    "updates_per_step: 0.0625, updates_at_once: 2, adam_epsilon: 1e-3"
)
# Large steps, beside which the rounding of other processors is small.
_STEPS = "tau: 0.1, learning_rate: 0.01, critic_learning_rate: 0.01"
_BOUNDED = f"{_PENDULUM}, action_low: -2, action_high: 2, {_STEPS}"
_HIERARCHY = Path(__file__).parents[1] / "support" / "hierarchical_algorithm"
_GOALS = "observations: {achieved_goal: {size: 2}, desired_goal: {size: 2}}"


def place(
    name: str,
    batches: str,
    algorithm: str,
    *places: str,
    checkpoints: tuple[int, ...] = EARLY,
    change: Callable[[list[Rollout]], list[Rollout]] = list,
) -> dict[str, Case]:
    """Returns a case of an algorithm in each of some places."""
    learn = {
        "gradients": learn_by_gradients,
        "together": learn_together,
        "server": learn_iterations,
        "serial": learn_serially,
        "offline": learn_offline,
    }
    learner = {"server": _SERVER, "serial": _SERVER, "offline": _OFFLINE}
    return {
        f"{name}-{where}": Case(
            batches,
            algorithm,
            learn[where],
            learner.get(where, "{}"),
            seeds=(0,),
            combine=_TOGETHER if where == "together" else "{method: fifo}",
            change=change,
            checkpoints=checkpoints,
            xla=False,
        )
        for where in places
    }


CASES = {
    "policy_gradient_tutorial": Case(
        "cartpole", "{name: policy_gradient_tutorial, hidden_layer_size: 10}", learn_episodes
    ),
    "policy_gradient": Case("cartpole", "{name: policy_gradient}", learn_episodes),
    "a2c": Case(
        "cartpole",
        f"{{name: a2c, {_CARTPOLE}, {_SMALL}, rollout_steps: 16, entropy_coefficient: 0.01}}",
        learn_by_gradients,
    ),
    "a2c-lstm": Case(
        "pendulum",
        f"{{name: a2c, {_PENDULUM}, {_LSTM}, rollout_steps: 16, normalize_observations: true, "
        "normalize_advantage: true, reward_scale: 0.1, learning_rate_end: 0.0, "
        "max_global_step: 1000}",
        learn_by_gradients,
        seeds=(0,),
    ),
    # One update in each iteration.
    "ppo": Case(
        "cartpole",
        f"{{name: ppo, {_CARTPOLE}, {_SMALL}, num_steps: 64, rollout_steps: 16, epochs: 1, "
        "batch_size: 64, entropy_coeff: 0.01}",
        learn_iterations,
        _SERVER,
    ),
    "ppo-epochs": Case(
        "cartpole",
        f"{{name: ppo, {_CARTPOLE}, {_SMALL}, num_steps: 64, rollout_steps: 16, epochs: 3, "
        "batch_size: 16, prenorm: true, update_norm: true, normalize_rewards: true, kl: 0.001, "
        "clip_schedule: linear, lr_schedule: linear, max_global_step: 1000, clip_value: 0.2, "
        "normalize_advantage: batch, shared_network: true}",
        learn_iterations,
        _SERVER,
    ),
    "ppo-lstm": Case(
        "pendulum",
        f"{{name: ppo, {_PENDULUM}, {_LSTM}, num_steps: 64, rollout_steps: 16, epochs: 2, "
        "batch_size: 2, mirror: 0.5, mirror_observation: [0.1, -1, -2], mirror_action: [-0.1]}",
        learn_iterations,
        _SERVER,
        seeds=(0,),
    ),
    "bc": Case(
        "cartpole",
        f"{{name: bc, {_CARTPOLE}, {_SMALL}, batch_size: 64}}",
        learn_offline,
        _OFFLINE,
    ),
    "bc-lstm": Case(
        "pendulum",
        f"{{name: bc, {_PENDULUM}, {_LSTM}, batch_size: 2, normalize_observations: true, "
        "shared_network: true}",
        learn_offline,
        _OFFLINE,
        seeds=(0,),
    ),
    **place(
        "a2c-one-layer",
        "cartpole",
        f"{{name: a2c, {_CARTPOLE}, network: {{layers: [8]}}, rollout_steps: 16, num_steps: 32, "
        "normalize_observations: true}",
        "together",
        "server",
    ),
    **place(
        "ppo-one-layer",
        "cartpole",
        f"{{name: ppo, {_CARTPOLE}, network: {{layers: [8]}}, num_steps: 32, rollout_steps: 16, "
        "epochs: 2, batch_size: 32, update_norm: true, normalize_rewards: true}",
        "gradients",
        "together",
        "serial",
    ),
    **place(
        "impala",
        "cartpole",
        f"{{name: impala, {_CARTPOLE}, network: {{layers: [8]}}, rollout_steps: 16, "
        "batch_rollouts: 2}",
        "gradients",
        "together",
        "server",
    ),
    **place(
        "bc-overridden",
        "cartpole",
        f"{{name: bc, {_CARTPOLE}, network: {{layers: [8]}}, learn_from: overridden, "
        "num_steps: 32, rollout_steps: 16, epochs: 2}",
        "gradients",
        "server",
        change=add_overrides,
    ),
    **place(
        "dqn",
        "cartpole",
        f"{{name: dqn, {_CARTPOLE}, {_REPLAY}, target_every: 3, n_step: 2, "
        "priority_exponent: 0.6}",
        "gradients",
        "together",
        "server",
        "serial",
        change=add_starts,
    ),
    **place(
        "dqn-quantiles",
        "cartpole",
        f"{{name: dqn, {_CARTPOLE}, {_REPLAY}, target_every: 3, dueling: true, noisy: true, "
        "distribution: {kind: quantile, atoms: 5}}",
        "server",
        change=add_starts,
    ),
    **place(
        "dqn-gru",
        "cartpole",
        f"{{name: dqn, {_CARTPOLE}, {_REPLAY.replace('[8]', '[{gru: 8}]')}, target_every: 3, "
        "sequence_steps: 6, burn_in_steps: 2, priority_exponent: 0.6}",
        "gradients",
        "server",
        change=add_starts,
    ),
    **place(
        "dqn-hindsight",
        "cartpole",
        f"{{name: dqn, num_actions: 2, {_GOALS}, {_REPLAY}, target_every: 3, hindsight: {{}}}}",
        "gradients",
        change=add_goals,
    ),
    **place(
        "sac",
        "pendulum",
        f"{{name: sac, {_BOUNDED}, {_REPLAY}}}",
        "gradients",
        "together",
        "server",
        change=add_starts,
    ),
    **place(
        "sac-many-updates",
        "pendulum",
        f"{{name: sac, {_BOUNDED}, {_REPLAY}, critic_layer_norm: true, critic_dropout: 0.1, "
        "target_critics: 1, actor_value: mean, actor_every: 2}",
        "server",
        change=add_starts,
    ),
    **place(
        "sac-discrete-hindsight",
        "cartpole",
        f"{{name: sac, num_actions: 2, {_GOALS}, {_REPLAY}, {_STEPS}, "
        "hindsight: {strategy: final}}",
        "server",
        change=add_goals,
    ),
    **place(
        "td3",
        "pendulum",
        f"{{name: td3, {_BOUNDED}, {_REPLAY}}}",
        "gradients",
        "together",
        "server",
        change=add_starts,
    ),
    **place(
        "ddpg",
        "pendulum",
        f"{{name: ddpg, {_BOUNDED}, {_REPLAY}, normalize_observations: true}}",
        "gradients",
        "together",
        "server",
        change=add_starts,
    ),
    **place(
        "cql",
        "pendulum",
        f"{{name: cql, {_BOUNDED}, network: {{layers: [8]}}, batch_size: 8, updates_at_once: 2, "
        "adam_epsilon: 1e-3, cql_actions: 3}",
        "offline",
    ),
    **place(
        "td3_bc",
        "pendulum",
        f"{{name: td3_bc, {_BOUNDED}, network: {{layers: [8]}}, batch_size: 8, updates_at_once: 2, "
        "adam_epsilon: 1e-3}",
        "offline",
    ),
    **place(
        "q_learning",
        "cartpole",
        "{name: q_learning, num_states: 16, num_actions: 2, updates_at_once: 2}",
        "gradients",
        "server",
        checkpoints=(1, 40),
        change=number_states,
    ),
    **place(
        "sarsa",
        "cartpole",
        "{name: sarsa, num_states: 16, num_actions: 2, updates_at_once: 2}",
        "gradients",
        "server",
        checkpoints=(1, 40),
        change=number_pairs,
    ),
    "hierarchical-gradients": Case(
        "cartpole",
        f"{{path: {_HIERARCHY}}}",
        learn_hierarchy_by_gradients,
        seeds=(0,),
        checkpoints=EARLY,
    ),
    "hierarchical-server": Case(
        "cartpole",
        f"{{path: {_HIERARCHY}, rollouts: {{control: 4}}, replayed: [goal], batch_size: 8}}",
        learn_hierarchy,
        _SERVER,
        seeds=(0,),
        checkpoints=EARLY,
    ),
}


def run_case(name: str, seed: int, folder: Path) -> Result:
    """Learns from all batches.

    Args:
      name: of `CASES`.
      seed: of the experiment.
      folder: for its files; empty.
    """
    case = CASES[name]
    rollouts = case.change(read_rollouts(case.batches))[: max(case.checkpoints)]
    writer = TrajectoryWriter(folder / "files", 1e9)
    for number, rollout in enumerate(rollouts if "FILES" in case.learner else ()):
        writer.write(number, rollout)
    learner = case.learner.replace("FILES", f"{folder / 'files'}")
    algorithm = case.algorithm
    if not case.xla:
        name = algorithm.removeprefix("{name: ").partition(",")[0]
        path = copy_uncompiled(name, folder / "code")
        algorithm = algorithm.replace(f"name: {name}", f"path: {path}", 1)
    file = folder / "experiment.yaml"
    file.write_text(
        f"seed: {seed}\nrun_dir: {folder / 'run'}\nlearner: {learner}\n"
        f"relaax-parameter-server: {{combine: {case.combine}}}\n"
        f"algorithm: {algorithm}\n"
    )
    experiment = load_experiment(file)
    server = _make_server(experiment, folder / "checkpoints")
    rollouts = [_add_memory(experiment, rollout) for rollout in rollouts]
    result = _read_state(server, folder, "initial")
    if case.xla:
        result.update(_compute_gradients(experiment, rollouts[0]))
    for number, more in enumerate(case.learn(experiment, server, rollouts), 1):
        result.update(more)
        if number in case.checkpoints:
            result.update(_read_state(server, folder, str(number)))
    result.update(server.describe())
    server.close(save=False)
    return result


def read_rollouts(name: str) -> list[Rollout]:
    """Reads the recorded batches."""
    with np.load(BATCHES / f"{name}.npz", allow_pickle=False) as arrays:
        recorded = dict(arrays)
    return [
        Rollout(
            inputs={"observation": recorded["observation"][i]},
            next_inputs={"observation": recorded["next_observation"][i]},
            next_alive=recorded["next_alive"][i],
            rewards=recorded["reward"][i][..., None],
            actions={"action": recorded["action"][i]},
            log_prob=recorded["log_prob"][i],
            states={},
            versions=np.zeros(len(recorded["reward"][i]), np.int64),
        )
        for i in range(len(recorded["reward"]))
    ]


def _make_server(experiment: Experiment, folder: Path) -> RecordingServer:
    variables = make_initial_values(experiment)
    manifest = _find(*_MAKE_MANIFEST)(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    store = Store(manifest, flat, experiment.optimizers, find_follows(variables))
    return RecordingServer(
        store,
        snapshots=Snapshots(folder),
        metrics=_find(*_NULL_METRICS)(),
        **_make_stop(experiment.algorithm.max_global_step),
        combine=experiment.parameter_server.combine,
    )


def _make_stop(max_global_step: int) -> dict[str, Any]:
    module = importlib.import_module("relaax_like.parameter_server.stop_condition")
    if hasattr(module, "Target"):  # of an older commit
        return {"max_global_step": max_global_step}
    return {"stop": module.StopCondition(max_global_step)}


def _add_memory(experiment: Experiment, rollout: Rollout) -> Rollout:
    """Gives the slots some memory, where the model has one."""
    from relaax_like.launch.algorithm_code import load_model_module, make_model

    if load_model_module(experiment) is None:
        return rollout
    random = np.random.default_rng(7)
    states = {
        name: random.uniform(-0.5, 0.5, (rollout.slots, *properties["shape"])).astype(np.float32)
        for name, properties in make_model(experiment).get_state_specs()
    }
    return dataclasses.replace(rollout, states=states)


def _read_state(server: ParameterServer, folder: Path, prefix: str) -> Result:
    server.save_checkpoint()
    state = read_latest(folder / "checkpoints")
    assert state is not None
    names = [segment.name for segment in state.manifest.segments]
    values = state.manifest.unpack(state.values)
    return {
        **{f"{prefix}/value/{n}": np.array(v) for n, v in zip(names, values, strict=True)},
        **{f"{prefix}/slots/{group}": np.array(slots) for group, slots in state.slots.items()},
        **{f"{prefix}/steps/{group}": np.array(n) for group, n in state.steps.items()},
    }


def _compute_gradients(experiment: Experiment, rollout: Rollout) -> Result:
    """Returns costs and gradients of one batch at the initial values; {} for plain agents."""
    from relaax_like.launch.algorithm_code import load_model_module, make_model

    if load_model_module(experiment) is None:
        return {}
    module = load_algorithm_module(experiment.algorithm_folder, "algorithm")
    if not hasattr(module, "make_algorithm"):  # the agent makes it
        return {}
    algorithm = module.make_algorithm(experiment.algorithm, make_model(experiment), 0)
    compiled = _find(*_COMPILED)(algorithm)
    gradients, costs = compiled.compute_gradients(
        inputs=rollout.inputs,
        next_inputs=rollout.next_inputs,
        next_alive={"alive": rollout.next_alive},
        rewards={"reward": rollout.rewards},
        actions={**rollout.actions, _find(*_LOG_PROB): rollout.log_prob},
        states=rollout.states,
    )
    names = [v.name for v in compiled.get_variables()]
    return {
        **{f"cost/{name}": np.float32(cost) for name, cost in costs.items()},
        **{f"gradient/{n}": g for n, g in zip(names, gradients, strict=False)},
    }


def main() -> None:
    """Writes the results of cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", default=[], metavar="CASE", help="default: all")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in arguments.cases or CASES:
        for seed in CASES[name].seeds:
            with tempfile.TemporaryDirectory() as folder:
                result = run_case(name, seed, Path(folder))
            np.savez_compressed(arguments.folder / f"{name}-{seed}.npz", **result)
            print(f"{name} seed {seed}: {len(result)} arrays", flush=True)


if __name__ == "__main__":
    main()
