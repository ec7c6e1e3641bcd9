"""Records that the roles exchange: plain data, independent of where the other end runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np

from relaax_like.core.manifest import Manifest
from relaax_like.core.moments import Moments
from relaax_like.experience.rollout import Rollout

# What happened to the gradient of a push. nothing: there is no gradient. applied: immediately.
# pending: held back until others arrive. dropped: not used; nor is the rest of a push that arrived
# late, or whose version was lost in a restart.
Outcome = Literal["nothing", "applied", "pending", "dropped"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
# Which changes survive `kill -9` of the parameter server: all that were acknowledged, or those that
# the newest written publication, or the newest snapshot, contains.
Durability = Literal["journal", "publication", "snapshot"]
# Episodes in one message. Python makes objects of them, and no other caller is answered meanwhile.
MAX_EPISODES = 1_000
# Maximum number of environment steps in one push, or in one episode.
MAX_ENV_STEPS = 1 << 40


@dataclass(frozen=True)
class Episode:
    """One finished episode of training.

    Attributes:
      episode_return: undiscounted sum of rewards.
      length: environment steps.
      slot: index of its slot among those of the player.
      player: name of the agent that played it, unique in the run; "": the sender of the message.
    """

    episode_return: float
    length: int
    slot: int = 0
    player: str = ""


@dataclass(frozen=True)
class Playing:
    """That an agent plays. It travels with the episodes, as the mean return is one over all slots.

    Attributes:
      player: name of the agent, unique in the run; "": the sender of the message.
      slots: number of slots that it plays with; 0: it has left.
      env_steps: environment steps of all its slots since its last report.
      unlearned_steps: those of them that count nowhere, as they are not learned from: the learner
        did not acknowledge their rollouts.
    """

    player: str
    slots: int
    env_steps: int
    unlearned_steps: int = 0


# What agents report of their episodes.
EpisodeReport = Episode | Playing


# Agents and their learner.


@dataclass(frozen=True)
class LearnRequest:
    """A rollout to learn from; without one, counts to report and a request for the newest values.

    Attributes:
      number: repeated in the answer; unique among the requests in progress.
      rollout: the rollout, whose arrays are not copied; None: there is nothing to learn from.
      episodes: episodes that ended since the last request.
      env_steps: environment steps to count when the request is accepted: those of the rollout
        (unless another Algorithm of the agent counts them), and others that no rollout contains.
      agent: name of the agent that acted, among those of this process.
      is_leaving: the agent submits nothing more; see `Learner.leave`.
      is_urgent: the agent cannot wait: a replay table takes the rollout although the learner is
        behind.
    """

    number: int
    rollout: Rollout | None
    episodes: Sequence[EpisodeReport] = ()
    env_steps: int = 0
    agent: str = ""
    is_leaving: bool = False
    is_urgent: bool = False


@dataclass(frozen=True)
class LearnerUpdate:
    """What a learner reports: its answer to requests, newer values, or newer counts.

    Attributes:
      numbers: numbers of the answered requests, if any, whose agents can continue: each rollout was
        learned from, is in a replay table, waits for an iteration that it does not complete, cannot
        be used, or was lost.
      version: version of the newest known values.
      global_t: newest known environment steps of all agents of the run.
      finished: what ended the training, or "".
      values: of all variables of the agents' model, in the order of its manifest; the reader must
        not change them. None: no newer ones.
    """

    numbers: Sequence[int]
    version: int
    global_t: int
    finished: str
    values: Sequence[np.ndarray] | None


# A learner beside its agents, and the parameter server.


@dataclass(frozen=True, kw_only=True)
class Push:
    """The changes of one push; they are accepted together or not at all.

    An accepted gradient can still be held back or dropped; see `Outcome`.

    Attributes:
      client_id: name of the pushing client, unique in the run.
      incarnation: grows each time that client restarts.
      sequence: 1, 2, 3, ... within one incarnation; a retry repeats it. 0: the push has no number,
        and a retry takes effect again.
      gradient: laid out like the manifest's `pushed` (of `groups`), [gradient_bytes] uint8 or
        [gradient_bytes / 4] float32; or None.
      gradient_version: version of the values with which the gradient was computed.
      gradient_epoch: epoch of those values; 0 if unknown.
      env_steps: environment steps to count that were in no earlier push.
      episodes: episodes that ended since the last push.
      fingerprint: of the manifest that the gradient follows; not used without a gradient.
      statistics: name of a running statistic -> moments of the rows since the last push.
      groups: variable groups that the gradient is for, laid out as in `Manifest.select_groups`;
        no other trainable variable or optimizer changes. Empty: all.
    """

    client_id: str
    incarnation: int = 0
    sequence: int = 0
    gradient: np.ndarray | None = None
    gradient_version: int = 0
    gradient_epoch: int = 0
    env_steps: int = 0
    episodes: tuple[EpisodeReport, ...] = ()
    fingerprint: int = 0
    statistics: Mapping[str, Moments] = field(default_factory=dict)
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Values:
    """An immutable state of the flat vector.

    Attributes:
      version: of the values.
      flat: [total_bytes] uint8, read-only.
    """

    version: int
    flat: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer of the parameter server, or of a learner to its agents.

    Attributes:
      outcome: what happened to the gradient; for a publication: "applied", or "nothing" if it did
        not change the values; for counts: "nothing".
      reason: why the gradient, or the complete push, was dropped; "" if it was not.
      durability: in the parameter server's answer to a push or pull, what a crash of it can lose.
        "journal": nothing that was acknowledged; "publication": what a learner has learned since
        its newest publication that was written; "snapshot": the pushes since the newest snapshot.
      version: version after the request (of a repeated push: the first one): initially 0, +1 for
        each record that changed the values, by a gradient, statistics or a publication.
      global_t: environment steps of all clients together at that time.
      epoch: grows each time the parameter server starts. In a learner's answer: term of its lease,
        or id of its process.
      finished: what ended the training, or "" during training.
      values: newest values, if they were requested and the client has another version; None: they
        were not requested, or the client has them.
    """

    outcome: Outcome = "nothing"
    reason: str = ""
    durability: Durability = "snapshot"
    version: int = 0
    global_t: int = 0
    epoch: int = 0
    finished: str = ""
    values: Values | None = None


@dataclass(frozen=True, kw_only=True)
class ClientStatus:
    """One client of the parameter server; see `relaax.v1.ClientStatus`."""

    client_id: str
    gradients: int = 0
    staleness: int | None = None
    silent_sec: float = 0.0


# Maximum number of clients in a report, and in a status.
MAX_SERVED_CLIENTS = 100


@dataclass(frozen=True, kw_only=True)
class ServedClient:
    """One client that an rlx server serves; see `relaax.v1.ServedClient`."""

    name: str
    session: str
    slots: int
    answers: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_wait_ms: int = 0
    late: int = 0
    discarded_steps: int = 0
    stall: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    games: int = 0


@dataclass(frozen=True, kw_only=True)
class ClientsReport:
    """What an rlx server reports about its clients; see `relaax.v1.ClientsReport`."""

    server_id: str
    clients: tuple[ServedClient, ...]
    num_clients: int


class TableStatus(NamedTuple):
    """What a learner reports about its replay table, for `Status`.

    Attributes:
      overdue_updates: updates that are due and have not been made; None without a table.
      given_up_step: the table's environment steps when its journal was given up; None: it was not.
      table_steps: the run's steps from which minibatches are drawn; None: without a prior.
      prior_steps: recorded steps from which the rest of each is drawn; None: without a prior.
    """

    overdue_updates: float | None = None
    given_up_step: int | None = None
    table_steps: int | None = None
    prior_steps: int | None = None


NO_TABLE = TableStatus()


@dataclass(frozen=True, kw_only=True)
class Status:
    """A parameter server's status, as `relaax status` prints it; see `relaax.v1.Status`."""

    global_t: int = 0
    version: int = 0
    epoch: int = 0
    uptime_sec: float = 0.0
    env_steps_per_sec: float = 0.0
    mean_return: float | None = None
    return_episodes: int = 0
    episodes: int = 0
    clients: int = 0
    finished: str = ""
    snapshot_global_t: int | None = None
    checkpoint_dir: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    durability: Durability = "snapshot"
    unsynced_records: int = 0
    unsynced_bytes: int = 0
    journal_bytes: int = 0
    snapshot_age_sec: float | None = None
    snapshot_failures: int = 0
    client_list: tuple[ClientStatus, ...] = ()
    held_back: int = 0
    resident_bytes: int = 0
    mirrored_global_t: int | None = None
    mirror_error: str = ""
    journal_error: str = ""
    served: tuple[ServedClient, ...] = ()
    served_clients: int = 0
    overdue_updates: float | None = None
    learner_address: str = ""
    learner_term: int = 0
    learner_silent_sec: float = 0.0
    joint_learners: int = 0
    unlearned_steps: int = 0
    given_up_version: int | None = None
    given_up_step: int | None = None
    table_steps: int | None = None
    prior_steps: int | None = None


# A learner in the parameter server's process, or in its own.


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Experience of one agent, for a learner in the parameter server's process or in its own.

    Attributes:
      client_id: name of the client that sent it, the same throughout its stream.
      incarnation: grows each time that process starts.
      sequence: 1, 2, 3, ... within one incarnation; a retry repeats it, so it takes effect once.
      agent: name of the agent that acted.
      columns: number of slots of the rollout.
      rollout: `[n] uint8`, a serialised `relaax.v1.Rollout`, or None.
      episodes: episodes that ended since the last message.
      is_leaving: the agent sends nothing more.
      env_steps: environment steps to count: those of the rollout (unless another Algorithm of the
        agent counts them), and others that no rollout contains.
      sampling_sec: seconds that the process has spent stepping environments and computing actions
        since its last message, waiting excluded; 0: unknown.
      is_urgent: see `LearnRequest`.
    """

    client_id: str
    incarnation: int
    sequence: int
    agent: str = ""
    columns: int = 0
    rollout: np.ndarray | None = None
    episodes: tuple[EpisodeReport, ...] = ()
    is_leaving: bool = False
    env_steps: int = 0
    sampling_sec: float = 0.0
    is_urgent: bool = False


@dataclass(frozen=True)
class StreamProgress:
    """The server's progress with a client's experience, as sequence numbers.

    Attributes:
      received: everything up to this number has been received.
      released: agents whose last experience has at most this number can continue to act.
    """

    received: int = 0
    released: int = 0


class Origin(NamedTuple):
    """Where experience came from: a client, its incarnation, and its sequence number."""

    client_id: str
    incarnation: int
    sequence: int


class Received(NamedTuple):
    """A learner's progress with the experience of one client.

    Attributes:
      incarnation: of the client.
      counted: sequence number up to which all environment steps were counted.
      learned: sequence number up to which all rollouts were learned from.
    """

    incarnation: int
    counted: int
    learned: int


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The state from which the run's learner continues.

    Attributes:
      number: number of the newest publication; 0: there is none yet.
      manifest: the layout of the values.
      values: `[total_bytes] uint8`, immutable.
      slots: variable group -> `[s, n] float32`, immutable.
      slot_names: variable group -> names of the rows of its slots.
      steps: variable group -> optimizer steps so far.
      version: of the values.
      global_t: environment steps so far.
      finished: what ended the training, or "".
      received: client id -> what `global_t` and the values contain of the client's experience.
    """

    number: int
    manifest: Manifest
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    slot_names: Mapping[str, tuple[str, ...]]
    steps: Mapping[str, int]
    version: int
    global_t: int
    finished: str
    received: Mapping[str, Received] = field(default_factory=dict)


class PublishTicket(NamedTuple):
    """Identifies a publication or count of a learner in a process of its own.

    Attributes:
      term: term of the learner's lease.
      sequence: 1, 2, 3, ... in the run, of publications and counts together.
    """

    term: int
    sequence: int


class TrainReturn(NamedTuple):
    """The mean return of the run's newest training episodes.

    Attributes:
      mean: mean return of the newest training episodes.
      window: number of newest episodes in the mean.
      episodes: number of episodes of the run so far.
    """

    mean: float
    window: int
    episodes: int


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A state published by the run's learner; applied atomically.

    Attributes:
      number: 1, 2, 3, ... within the run. A number that was published before has no effect; with a
        ticket, this is decided by the ticket's sequence.
      values: `[total_bytes] uint8`, the flat vector.
      slots: variable group -> `[s, n] float32`, optimizer state. Arrays that are read-only are kept
        and must never change; all others are copied.
      steps: variable group -> optimizer steps since the start of the run.
      env_steps: environment steps that were accepted since the last publication or counts, whether
        or not they have been learned from.
      episodes: episodes that ended in these steps.
      received: client id -> what this and all earlier publications contain of the client's
        experience; at most a few thousand clients, the newest last.
      ticket: ticket of a learner in a process of its own; None: the learner is in the server's
        process.
      score: mean return of an evaluation of these values, which are then saved as a snapshot with
        this score; None: no score.
    """

    number: int
    values: np.ndarray
    slots: Mapping[str, np.ndarray]
    steps: Mapping[str, int]
    env_steps: int = 0
    episodes: tuple[EpisodeReport, ...] = ()
    received: Mapping[str, Received] = field(default_factory=dict)
    ticket: PublishTicket | None = None
    score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a learner has accepted since its last publication or counts.

    Attributes:
      env_steps: environment steps.
      episodes: episodes that ended in these steps.
      received: see `Publication`.
      ticket: see `Publication`.
    """

    env_steps: int
    episodes: tuple[EpisodeReport, ...] = ()
    received: Mapping[str, Received] = field(default_factory=dict)
    ticket: PublishTicket | None = None


@dataclass(frozen=True, kw_only=True)
class RunState(Reply):
    """The newest state of a run, for a learner in another process; see `relaax.v1.RunState`."""

    number: int = 0
    sequence: int = 0
    durable_sequence: int = 0
    best_score: float | None = None
    train_return: TrainReturn | None = None


# Learners that share each update (combine.method: sync), and the parameter server.

GroupKind = Literal["enter", "sum", "step", "leave", "compiling"]
GROUP_KINDS: tuple[GroupKind, ...] = get_args(GroupKind)
# "done": the request had its effect. "again": another learner has left the iteration, so the
# learner repeats its update with the new numbers of learners and rows. "out": this learner is not
# in the iteration any more; it enters the next one.
GroupOutcome = Literal["done", "again", "out"]
GROUP_OUTCOMES: tuple[GroupOutcome, ...] = get_args(GroupOutcome)


@dataclass(frozen=True, kw_only=True)
class GroupRequest:
    """What a learner sends to the group of learners that share each update.

    Attributes:
      kind: enter: takes part in the next iteration; sum: sums numbers over all learners; step: sums
        gradients, too, and applies the result; leave: ends its part of the iteration; compiling:
        the next request can take minutes.
      iteration: number of the iteration; for sum and step.
      generation: newest generation that this learner knows; it grows each time that a learner
        leaves the iteration, and with each iteration; for sum and step.
      tag: names what is summed; must be the same for all learners; for sum and step.
      units: number of rows or slots that this learner learns from; 0: it does not take part, and
        the outcome is "out"; for enter.
      sums: `[n] float64`, this learner's numbers; for sum and step.
      gradient: `[n] float32`, this learner's part, as the manifest lays out `groups`; for step.
      groups: variable groups of the gradient; (): all; for step.
      clip: variable group -> largest norm of its joint gradient; "": of the complete gradient; for
        step.
    """

    kind: GroupKind
    iteration: int = 0
    generation: int = 0
    tag: str = ""
    units: int = 0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(0))
    gradient: np.ndarray | None = None
    groups: tuple[str, ...] = ()
    clip: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupReply:
    """The answer to a `GroupRequest`; to leave and compiling, it only has the outcome.

    Attributes:
      outcome: see `GroupOutcome`.
      iteration: number of the iteration.
      generation: see `GroupRequest`.
      rank: of this learner among those in the iteration; 0 is the first.
      learners: number of learners in the iteration.
      units: number of rows or slots of all these learners; for enter.
      units_before: number of rows or slots of the learners with lower ranks; for enter.
      updates: optimizer steps of the run so far; for enter, but 0 once the training has finished.
      sums: `[n] float64`, over all learners; for sum and step.
      norms: norms before clipping, by the keys of `GroupRequest.clip`, without groups that are not
        in the gradient; for step.
      reply: the newest values, and what happened to the gradient; for enter and step.
    """

    outcome: GroupOutcome
    iteration: int = 0
    generation: int = 0
    rank: int = 0
    learners: int = 0
    units: int = 0
    units_before: int = 0
    updates: int = 0
    sums: np.ndarray = field(default_factory=lambda: np.zeros(0))
    norms: Mapping[str, float] = field(default_factory=dict)
    reply: Reply = field(default_factory=Reply)
