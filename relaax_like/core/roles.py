"""The roles of the system. Each is an object; across the network, a stub with its methods is used.

    environment           `client.EnvironmentSlots`, in its own process or in that of its agent
        | act, reward_and_act, reward_and_reset
    agent                 `agent.Agent`, in the rlx server, `relaax train` or one of its workers
        | LearnRequest up, LearnerUpdate down
    Learner               turns rollouts into new values, in one of two places:
        |
        |-- beside its agents: gradients up, values down
        |   ParameterServerClient ==bridge==> ParameterServerBackend
        |
        '-- in the parameter server's process, or in its own: experience up, values down
            ExperienceSink, whose learner publishes complete states to the Publisher; with
            several Algorithms, there is one for each, and their states are merged

In both places a learner is a `learn.LearnerLoop`: source -> update -> sink.

The parameter server is `ParameterServerBackend` and `Publisher`. It owns the weights, the optimizer
steps, `global_t`, the journal and the snapshots. What the roles exchange is in `core.records`.
"""

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import (
    ClientsReport,
    Counts,
    EpisodeReport,
    Experience,
    GroupReply,
    GroupRequest,
    LearnerUpdate,
    LearnRequest,
    Lease,
    Publication,
    Push,
    Reply,
    Status,
    StreamProgress,
    TrainReturn,
)
from relaax_like.wire.closing import Closing
from relaax_like.wire.errors import LeasedError

# Answer to a learner that wants to join a group where there is none.
NO_GROUP = (
    "relaax-parameter-server.combine.method: the learner's is sync, but the parameter server's is "
    "not; set it to sync for both, or to another method for both"
)
OnUpdate = Callable[[LearnerUpdate], None]


class Learner(abc.ABC):
    """Turns rollouts into new values, in this process or in another.

    Attributes:
      keeps_requests: whether requests are kept until they have been acknowledged, so that agents
        can wait for that; False: requests can be lost, and their agents continue.
    """

    keeps_requests = True

    @abc.abstractmethod
    def start(self, on_update: OnUpdate) -> None:
        """Starts to learn; calls `on_update` with the first values before this method returns.

        Later, `on_update` is called with each answer, possibly from another thread.

        Raises:
          ConfigError: the learner's model or settings are not those of the run.
          ServerUnavailableError: no values are available yet; call it again later.
          RelaaxError: this learner does not fit the run, is not allowed to learn for it, or cannot
            read the data that it has kept; a retry would fail, too.
          Exception: an error of a hook of before_run.
        """

    @abc.abstractmethod
    def submit(self, request: LearnRequest) -> None:
        """Submits a request; it is answered, unless the learner is stopped.

        A learner without a thread, such as `SerialLearner`, learns if it can, and answers, before
        this returns; any other does not make the caller wait.

        Raises:
          RelaaxError: a learner without a thread could not take the request, or could not learn.
          Exception: a hook of a learner without a thread has failed.
        """

    def leave(self, agent: str) -> None:  # noqa: B027 - optional
        """Reports that an agent submits nothing more, so that nothing waits for it."""

    def take_state(self) -> dict[str, Any]:
        """Returns the state that no parameter server holds; requires that no request is pending.

        Steps and episodes in the state are counted by the learner that restores it, not by this
        learner.
        """
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Restores what `take_state` returned, after `start` and before the first request.

        Raises:
          InvalidInputError: the state does not fit this learner, such as a replay table of another
            size; parts of it can have been restored.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Stops after the current update; waits some seconds at most. Idempotent.

        Raises:
          RelaaxError: steps and episodes that no publication or push contains cannot be counted.
          Exception: a hook of after_run has failed.
        """


class GroupConnection(abc.ABC):
    """A learner's connection to the group that makes each update together; see `LearnerGroup`."""

    @abc.abstractmethod
    def exchange(self, request: GroupRequest) -> GroupReply:
        """Makes a request, and waits for its answer.

        Raises:
          InvalidInputError: the request differs from those of most learners, or is not valid (not
            finite, ...), and this learner has left the group; or the sum of all gradients is too
            large, or gradients cannot update all variables of the run.
          ServerUnavailableError: the connection has ended, join again; or the update failed.
          RelaaxError: another error of a connection over the network; see `GroupStream.exchange`.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Leaves the group. Idempotent."""


class ParameterServerBackend(abc.ABC):
    """A parameter server as the bridge and in-process clients call it. Thread-safe.

    For the agents that connect to a learner in a process of its own, that learner is one, too: see
    `PublishedValues`.
    """

    @property
    @abc.abstractmethod
    def manifest(self) -> Manifest:
        """The layout of values and gradients; constant for the lifetime of a run."""

    @abc.abstractmethod
    def push(self, push: Push, timeout_sec: float | None = None) -> Reply:
        """Handles one push, and waits until its changes are applied, or its gradient held back.

        A repeated push, with the same client, incarnation and sequence number, has no effect. It is
        answered as before or, after a later push of its client, as dropped.

        Args:
          push: to apply.
          timeout_sec: longest wait in the queue; None: no limit.

        Raises:
          InvalidInputError: the push is malformed or not finite, or gradients cannot update all
            variables of the run; nothing took effect.
          LeasedError: the run learns from experience, and the push has a gradient or statistics;
            or this is the run's learner, which takes no pushes. Nothing took effect.
          ServerUnavailableError: too many pushes are waiting, or the server is closing; nothing
            took effect. Or the journal has failed; the push can have taken effect.
          TimeoutError: the push was still queued at the deadline, and was withdrawn; nothing took
            effect.
        """

    @abc.abstractmethod
    def count_refused(self, reason: str) -> None:
        """Counts a push that was refused before it reached `push`, or refused experience.

        Args:
          reason: under which it is counted in `Status.refused`.
        """

    @abc.abstractmethod
    def pull(self, client_id: str = "", have_version: int | None = None) -> Reply:
        """Returns the newest values, or no values if `have_version` is still the newest.

        Args:
          client_id: name of the client; "": no client.
          have_version: version of the values that the client has; None: it has none.

        Raises:
          InvalidInputError: the name is not valid.
          ServerUnavailableError: this is the run's learner, which has no values yet.
        """

    @abc.abstractmethod
    def status(self) -> Status:
        """Returns the run's current status.

        Raises:
          RelaaxError: this is the run's learner, and the parameter server does not answer it; see
            `Link.status`.
        """

    @abc.abstractmethod
    def report_clients(self, report: ClientsReport) -> None:
        """Stores an rlx server's numbers about its clients, for `status`.

        Raises:
          RelaaxError: this is the run's learner, and the parameter server does not answer it; see
            `Link.report_clients`.
        """

    @abc.abstractmethod
    def save_checkpoint(self) -> Path | None:
        """Writes a snapshot, unless the newest one has the same state; returns its directory.

        None if the run keeps no snapshots.

        Raises:
          LeasedError: this is the run's learner, which writes no snapshots.
          SnapshotError: the snapshot could not be written.
        """

    @abc.abstractmethod
    def request_stop(self) -> None:
        """Requests an orderly end of the server; returns immediately.

        Raises:
          LeasedError: this is the run's learner, which does not end the run.
        """

    @abc.abstractmethod
    def metrics(self) -> Metrics:
        """Returns the recorder."""

    def join_group(self, learner: str) -> GroupConnection:
        """Adds a learner to those that make each update together (combine.method: sync).

        Args:
          learner: unique name.

        Raises:
          LeasedError: learners of this run update independently.
          ServerUnavailableError: there are too many learners.
        """
        raise LeasedError(NO_GROUP)


class ParameterServerClient(Closing, abc.ABC):
    """The parameter server as an agent that learns, or a learner beside its agents, uses it.

    A context manager. Each agent or learner has its own client, which is not thread-safe. Over the
    network, methods that call the server also raise NotAllowedError and ProtocolError; see
    `ParameterServerStub`.

        with bridge.parameter_server_stub(address) as parameter_server:
            values = parameter_server.get_values()
            ...
            values = parameter_server.push_pull(gradients)
    """

    @property
    @abc.abstractmethod
    def manifest(self) -> Manifest:
        """The layout of values and gradients."""

    @property
    @abc.abstractmethod
    def version(self) -> int:
        """Version of the values that this client holds."""

    @property
    @abc.abstractmethod
    def global_t(self) -> int:
        """Newest known environment steps of all clients, including this client's unsent steps."""

    @property
    @abc.abstractmethod
    def finished(self) -> str:
        """What ended the training, or "" during training."""

    @abc.abstractmethod
    def increment_global_t(self, n: int = 1) -> int:
        """Counts `n` environment steps and returns the newest known `global_t`.

        Steps are sent with the next push, or separately after a while: not one call per step.

        Raises:
          InvalidInputError: `n` is not within 0 to 2^40, and nothing was counted; or the steps, or
            episodes or statistics that were sent with them, are not valid.
          LeasedError: the run learns from experience, and statistics were sent with the steps.
        """

    @abc.abstractmethod
    def add_episodes(self, reports: Sequence[EpisodeReport]) -> None:
        """Adds training episodes that have ended, and agents that play, for the next push.

        Raises:
          InvalidInputError: see `validate_reports`; nothing was added.
        """

    @abc.abstractmethod
    def add_statistics(self, name: str, moments: Moments) -> None:
        """Adds rows to a running statistic; they are merged locally and sent with the next push.

        The merged statistic is part of the values: `NAME.count`, `NAME.mean` and `NAME.m2` are
        variables of `manifest.segments`.

        Args:
          name: of the statistic, without ".count", ".mean", ".m2".
          moments: moments of the rows; if there are none, nothing happens.

        Raises:
          InvalidInputError: the statistic is unknown, or moments have a wrong shape or dtype, are
            not finite or out of range; the error names the statistic. Nothing was added.
        """

    @abc.abstractmethod
    def apply_gradients(self, gradients: Sequence[np.ndarray], groups: Sequence[str] = ()) -> None:
        """Pushes one gradient: a float32 array per trainable variable or buffer, in manifest order.

        While the server is not available, the push is discarded, with all that was to be sent with
        it.

        Args:
          gradients: the arrays.
          groups: variable groups that the gradient is for. Then `gradients` has only the variables
            of these groups, as `manifest.select_groups(groups).pushed` lists them, and no other
            trainable variable changes. Empty: all groups.

        Raises:
          InvalidInputError: wrong count, shape or dtype, or not finite; an unknown variable group;
            or gradients cannot update all variables of the run. Nothing took effect.
          LeasedError: the run learns from experience; nothing took effect.
        """

    @abc.abstractmethod
    def get_values(self) -> list[np.ndarray]:
        """Pulls the newest values: one array per variable, in manifest order. Read-only views.

        The trainable variables come first, then all others (targets, running statistics, counters).
        While the server is not available, the values are those that this client holds.

        Raises:
          ServerUnavailableError: the server is not available, and this client holds no values.
          InvalidInputError: the name of this client is not valid.
        """

    @abc.abstractmethod
    def push_pull(
        self, gradients: Sequence[np.ndarray] | None = None, groups: Sequence[str] = ()
    ) -> list[np.ndarray]:
        """Pushes a gradient (or none), steps, episodes and statistics; pulls the newest values.

        Returns all values, whatever was pushed.

        Args:
          gradients: see `apply_gradients`; None: no gradient.
          groups: see `apply_gradients`.

        Raises:
          InvalidInputError: see `apply_gradients` and `get_values`.
          LeasedError: the run learns from experience, and there is a gradient, or statistics were
            sent with the push; nothing took effect.
          ServerUnavailableError: see `get_values`.
        """

    @abc.abstractmethod
    def metrics(self) -> Metrics:
        """Returns the recorder."""

    def join_group(self) -> GroupConnection:
        """Joins the learners that make each update together (combine.method: sync).

        Values that arrive with an answer replace those that this client holds.

        Raises:
          LeasedError: learners of this run update independently.
          ServerUnavailableError: the server is not available, or there are too many learners.
          RelaaxError: see `GroupStream` for other errors of a connection over the network.
        """
        raise LeasedError(NO_GROUP)

    @abc.abstractmethod
    def close(self) -> None:
        """Sends what is pending, if possible, and releases everything. Idempotent.

        Raises:
          InvalidInputError, LeasedError: see `increment_global_t`.
        """


class Publisher(abc.ABC):
    """A parameter server as its learner uses it: the run's only learner, or that of one Algorithm.

    Attributes:
      is_stopping: returns whether this process has been asked to end; set by its owner.
    """

    is_stopping: Callable[[], bool] = staticmethod(lambda: False)

    @abc.abstractmethod
    def lease(self) -> Lease:
        """Makes the caller the run's only learner: gradients of others are refused from now on.

        A learner in a process of its own waits while another one holds the lease.

        Raises:
          InvalidInputError: the caller has a different model; or see `PublisherStub.acquire`.
          LeasedError: the run has no learner in a process of its own, but the caller is one.
          ServerUnavailableError: the caller was closed while it waited.
          NotAllowedError, ProtocolError: see `PublisherStub`.
        """

    @abc.abstractmethod
    def publish(self, publication: Publication) -> Reply:
        """Applies values, optimizer state, steps and episodes, atomically.

        Once the training has finished, only steps are counted; the values do not change.

        Raises:
          InvalidInputError: values or slots have a wrong length or are not finite, a running
            statistic is out of range, a return is not finite, a number is negative, or there are
            more than 2^40 environment steps; nothing took effect.
          LeasedError: the caller has lost the lease. Nothing took effect, unless the publication
            had been sent before and its answer was lost.
          ServerUnavailableError: the server is closing, and nothing took effect; or the caller is
            closing, the server did not answer, or its journal has failed, and the publication can
            have taken effect.
          NotAllowedError, ProtocolError: see `PublisherStub`.
          RelaaxError: the run already has a publication with this number, see
            `AlgorithmPublisher.publish`; or the previous publication, which was sent in the
            background, has failed, see `wait_published`, and this one was not sent.
        """

    @abc.abstractmethod
    def count(self, counts: Counts) -> Reply:
        """Counts steps and episodes that no publication contains; the values do not change.

        Once the training has finished, steps are still counted, but episodes are not.

        Raises:
          InvalidInputError: the number of steps is not within 0 to 2^40, or a return is not finite;
            nothing was counted.
          LeasedError: the caller has lost the lease. Nothing was counted, unless the counts had
            been sent before and their answer was lost.
          ServerUnavailableError: see `publish`.
          NotAllowedError, ProtocolError: see `PublisherStub`.
          RelaaxError: a publication that was sent in the background has failed, see
            `wait_published`; nothing was counted.
        """

    def wait_published(self) -> None:  # noqa: B027 - optional
        """Waits until publications that `publish` sends in the background have been answered.

        Raises:
          RelaaxError: the newest publication has failed; see `publish` for the causes.
        """

    @property
    @abc.abstractmethod
    def global_t(self) -> int:
        """Environment steps of the run so far."""

    @property
    @abc.abstractmethod
    def finished(self) -> str:
        """What ended the training, or "" during training."""

    @property
    @abc.abstractmethod
    def best_score(self) -> float | None:
        """Best score of the kept snapshots; None if no snapshot has a score."""

    @property
    @abc.abstractmethod
    def train_return(self) -> TrainReturn | None:
        """Newest known training return; None if there are too few episodes."""

    @abc.abstractmethod
    def save_next_publication(self, score: float) -> None:
        """Makes the server save the next publication as a snapshot with this score."""

    @abc.abstractmethod
    def metrics(self) -> Metrics:
        """Returns the recorder."""


class ExperienceSink(abc.ABC):
    """Receives the experience from which a run learns in one place. Thread-safe."""

    @property
    @abc.abstractmethod
    def max_rollout_bytes(self) -> int:
        """Maximum length of a serialised rollout, in bytes."""

    @property
    @abc.abstractmethod
    def version(self) -> int | None:
        """Version of the newest values of this learner; None until it is loaded."""

    @abc.abstractmethod
    def add(self, experience: Experience) -> None:
        """Accepts experience; waits while the learner is being loaded, or the queue is full.

        Experience that was accepted before has no effect.

        Raises:
          InvalidInputError: the experience is malformed, does not fit the model, or is from an
            earlier incarnation of its client; nothing was accepted.
          ServerUnavailableError: the server is closing, its disk or its learning has failed, or the
            queue stayed full for a long time.
        """

    @abc.abstractmethod
    def wait(
        self,
        client_id: str,
        incarnation: int,
        seen: StreamProgress,
        version: int,
        timeout_sec: float,
        is_over: Callable[[], bool] = lambda: False,
    ) -> StreamProgress:
        """Waits until a client's progress or the version has changed; returns the progress.

        Also returns after `timeout_sec`, or if `is_over` returns true.

        Args:
          client_id: the client's id.
          incarnation: the client's incarnation.
          seen: the progress that the caller knows.
          version: the version that the caller knows.
          timeout_sec: longest wait.
          is_over: called after each change and each `wake`.

        Raises:
          ServerUnavailableError: the server is closing; nothing will change again.
        """

    @abc.abstractmethod
    def wake(self) -> None:
        """Makes all calls of `wait` in progress call their `is_over` again."""
