"""Publishers of several tasks: each learner publishes its task's part of one run's state.

A parameter server knows one learner, which publishes complete states. With several tasks there is
one learner for each, at its own pace. `TaskPublishers` holds the run's only lease; a publication of
one task is merged into the newest complete state, which becomes the run's next publication.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from relaax_like.core.manifest import Manifest, Segment
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import Counts, Lease, Publication, Received, Reply, TrainReturn
from relaax_like.core.roles import Publisher
from relaax_like.wire.errors import InvalidInputError, RelaaxError

T = TypeVar("T")


class TaskPublishers:
    """Gives each of several tasks its own Publisher. Thread-safe.

        publishers = TaskPublishers(server, {"goal": goal_manifest, "control": control_manifest})
        lease = publishers.make_publisher("goal").lease()  # only of the variables of `goal`

    In the run, the variables and groups of a task are named `TASK/NAME` and `TASK/GROUP`, and its
    clients `TASK/CLIENT` in `received`. A task sees its own names, without the prefix.

    Args:
      publisher: of the run; used only by these tasks.
      manifests: task -> the layout of the values that the task leases and publishes.

    Attributes:
      publisher: the argument.
    """

    def __init__(self, publisher: Publisher, manifests: Mapping[str, Manifest]):
        self.publisher = publisher
        self._manifests = dict(manifests)
        self._lock = threading.Lock()  # guards the following; held while a publication is applied
        self._newest: Lease | None = None  # the complete state
        self._places: dict[str, Sequence[int]] = {}  # task -> where its variables are in the run

    def make_publisher(self, task: str) -> "TaskPublisher":
        """Returns the publisher of one task."""
        return TaskPublisher(self, task)

    def lease(self, task: str) -> Lease:
        """Returns a task's part of the run's newest state; the first call leases the run.

        Raises:
          InvalidInputError: the run lacks a variable of a task, or has a different one.
          RelaaxError: an error of the run's publisher; see `Publisher.lease`.
        """
        with self._lock:
            if self._newest is None:
                newest = self.publisher.lease()
                self._places = {
                    name: _find_places(name, own, newest.manifest)
                    for name, own in self._manifests.items()
                }
                self._newest = newest
            return self._take_part(task, self._newest)

    def publish(self, task: str, publication: Publication) -> Reply:
        """Publishes the run's newest state with a task's part replaced, under the next number.

        The number of a task's own publication is not used.

        Raises:
          RelaaxError: the run already has a publication with that number; or an error of the run's
            publisher.
        """
        with self._lock:
            newest = self._require_lease()
            values = newest.values.copy()
            arrays = newest.manifest.unpack(values)
            own = self._manifests[task].unpack(publication.values)
            for place, array in zip(self._places[task], own, strict=True):
                arrays[place][...] = array
            merged = replace(
                publication,
                number=newest.number + 1,
                values=values,
                slots={**newest.slots, **_add_prefix(task, publication.slots)},
                steps={**newest.steps, **_add_prefix(task, publication.steps)},
                received=_merge_received(task, newest.received, publication.received),
            )
            reply = self.publisher.publish(merged)
            if reply.outcome != "applied" and not reply.finished:
                raise RelaaxError(
                    f"publication {merged.number} of task {task} was ignored, because the run "
                    "already has one with that number; restart the parameter server"
                )
            if reply.outcome == "applied":
                newest = replace(
                    newest,
                    number=merged.number,
                    values=values,
                    slots=merged.slots,
                    steps=merged.steps,
                    version=reply.version,
                )
            self._newest = replace(newest, received=merged.received)
            return reply

    def count(self, task: str, counts: Counts) -> Reply:
        """Counts steps and episodes that no publication of a task contains; see `Publisher`."""
        with self._lock:
            newest = self._require_lease()
            received = _merge_received(task, newest.received, counts.received)
            reply = self.publisher.count(replace(counts, received=received))
            self._newest = replace(newest, received=received)
            return reply

    def wait_published(self) -> None:
        """Waits for the newest publication of any task; see `Publisher`."""
        with self._lock:
            self.publisher.wait_published()

    def _require_lease(self) -> Lease:
        assert self._newest is not None, "a learner publishes after it has a lease"
        return self._newest

    def _take_part(self, task: str, newest: Lease) -> Lease:
        own = self._manifests[task]
        arrays = newest.manifest.unpack(newest.values)
        return Lease(
            number=newest.number,
            manifest=own,
            values=own.pack([arrays[place] for place in self._places[task]]),
            slots=_remove_prefix(task, newest.slots),
            slot_names=_remove_prefix(task, newest.slot_names),
            steps=_remove_prefix(task, newest.steps),
            version=newest.version,
            global_t=self.publisher.global_t,
            finished=self.publisher.finished,
            received=_remove_prefix(task, newest.received),
        )


class TaskPublisher(Publisher):
    """One task's view of the run's Publisher; made by `TaskPublishers`.

    Args:
      publishers: of all tasks.
      task: name of the task.
    """

    def __init__(self, publishers: TaskPublishers, task: str):
        self._publishers = publishers
        self._task = task

    def lease(self) -> Lease:
        """Returns the task's part of the newest state; see `TaskPublishers.lease`."""
        return self._publishers.lease(self._task)

    def publish(self, publication: Publication) -> Reply:
        """Publishes the task's part; see `TaskPublishers.publish`."""
        return self._publishers.publish(self._task, publication)

    def count(self, counts: Counts) -> Reply:
        """Counts the task's steps and episodes; see `Publisher`."""
        return self._publishers.count(self._task, counts)

    def wait_published(self) -> None:
        """Waits for the run's newest publication, of any task; see `Publisher`."""
        self._publishers.wait_published()

    @property
    def global_t(self) -> int:
        """Environment steps of the run, counted by any task."""
        return self._publishers.publisher.global_t

    @property
    def finished(self) -> str:
        """What ended the training; "": it has not ended."""
        return self._publishers.publisher.finished

    @property
    def best_score(self) -> float | None:
        """Best score of the run's saved snapshots; see `Publisher`."""
        return self._publishers.publisher.best_score

    @property
    def train_return(self) -> TrainReturn | None:
        """Training return of the run; see `Publisher`."""
        return self._publishers.publisher.train_return

    def save_next_publication(self, score: float) -> None:
        """Saves the run's next publication, of any task; see `Publisher`."""
        self._publishers.publisher.save_next_publication(score)

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._publishers.publisher.metrics()


def _find_places(task: str, own: Manifest, run: Manifest) -> list[int]:
    """Returns the positions of a task's variables among those of the run.

    Raises:
      InvalidInputError: a variable is missing, or is a different array; the error names it.
    """
    places = {segment.name: index for index, segment in enumerate(run.segments)}
    found = []
    for segment in own.segments:
        name = f"{task}/{segment.name}"
        place = places.get(name)
        if place is None or _describe(run.segments[place]) != _describe(segment, f"{task}/"):
            there = "no such variable" if place is None else _describe(run.segments[place])
            raise InvalidInputError(
                f"{name}: the run has {there}, expected {_describe(segment, f'{task}/')}; start "
                "the run from the initial values of the same algorithm folder",
                name,
            )
        found.append(place)
    return found


def _describe(segment: Segment, prefix: str = "") -> str:
    group = f" in group {prefix}{segment.group}" if segment.group else ""
    return f"{segment.kind} {segment.dtype} {list(segment.shape)}{group}"


def _add_prefix(task: str, named: Mapping[str, T]) -> dict[str, T]:
    return {f"{task}/{name}": value for name, value in named.items()}


def _remove_prefix(task: str, named: Mapping[str, T]) -> dict[str, T]:
    prefix = f"{task}/"
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def _merge_received(
    task: str, newest: Mapping[str, Received], own: Mapping[str, Received]
) -> dict[str, Received]:
    """Returns the progress of the clients of all tasks; those of this task come last."""
    prefix = f"{task}/"
    others = {name: one for name, one in newest.items() if not name.startswith(prefix)}
    return {**others, **_add_prefix(task, own)}
