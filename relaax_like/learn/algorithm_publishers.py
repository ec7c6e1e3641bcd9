"""Publishers of several Algorithms: each learner publishes its own part of one run's state.

A parameter server knows one learner, which publishes complete states. With several Algorithms there
is one learner for each, at its own pace. `AlgorithmPublishers` holds the run's only lease; a
publication of one Algorithm is merged into the newest complete state, which becomes the run's next
publication.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

from relaax_like.core.manifest import Manifest
from relaax_like.core.metrics import Metrics
from relaax_like.core.records import Counts, Lease, Publication, Received, Reply, TrainReturn
from relaax_like.core.roles import Publisher
from relaax_like.wire.errors import InvalidInputError, RelaaxError

T = TypeVar("T")


class AlgorithmPublishers:
    """Gives each of several Algorithms its own Publisher; what these share. Thread-safe.

        manifests = {"goal": goal_manifest, "control": control_manifest}
        publishers = AlgorithmPublishers(server, manifests)
        lease = publishers.make_publisher("goal").lease()  # only of the variables of `goal`

    In the run, the variables and groups of an Algorithm are named `ALGORITHM/NAME` and
    `ALGORITHM/GROUP`, and its clients `ALGORITHM/CLIENT` in `received`. An Algorithm sees its own
    names, without the prefix. Those of a Model that several share have the names that
    `NamedAlgorithms` gives them: `FIRST/NAME`, and `FIRST+SECOND/GROUP`.

    Args:
      publisher: of the run; used only by these Algorithms.
      manifests: name -> the layout of the values that it leases and publishes.
      sharing: name -> all Algorithms with its Model, in order; one that is missing has its own.

    Attributes:
      publisher, manifests: the arguments.
      owners: name -> prefix of its variables in the run.
      labels: name -> prefix of its variable groups in the run.
      lock: guards the following; held while a publication is applied.
      newest: the complete state; None: the run has not been leased yet.
      places: name -> where its variables are in the run.
    """

    def __init__(
        self,
        publisher: Publisher,
        manifests: Mapping[str, Manifest],
        sharing: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ):
        self.publisher = publisher
        self.manifests = dict(manifests)
        self.owners = {name: sharing.get(name, [name])[0] for name in manifests}
        self.labels = {name: "+".join(sharing.get(name, [name])) for name in manifests}
        self.lock = threading.Lock()
        self.newest: Lease | None = None
        self.places: dict[str, Sequence[int]] = {}

    def make_publisher(self, name: str) -> "AlgorithmPublisher":
        """Returns the publisher of one Algorithm."""
        return AlgorithmPublisher(self, name)


class AlgorithmPublisher(Publisher):
    """One Algorithm's view of the run's Publisher; made by `AlgorithmPublishers`.

    Args:
      run: what the publishers of all Algorithms share.
      name: of the Algorithm.
    """

    def __init__(self, run: AlgorithmPublishers, name: str):
        self._run = run
        self._name = name

    def lease(self) -> Lease:
        """Returns the Algorithm's part of the run's newest state; the first call leases the run.

        Raises:
          InvalidInputError: the run lacks a variable of an Algorithm, or has a different one.
          RelaaxError: an error of the run's publisher; see `Publisher.lease`.
        """
        run, name = self._run, self._name
        with run.lock:
            if run.newest is None:
                newest = run.publisher.lease()
                run.places = {
                    other: _find_places(run.owners[other], run.labels[other], own, newest.manifest)
                    for other, own in run.manifests.items()
                }
                run.newest = newest
            newest, own, label = run.newest, run.manifests[name], run.labels[name]
            arrays = newest.manifest.unpack(newest.values)
            return Lease(
                number=newest.number,
                manifest=own,
                values=own.pack([arrays[place] for place in run.places[name]]),
                slots=_remove_prefix(label, newest.slots),
                slot_names=_remove_prefix(label, newest.slot_names),
                steps=_remove_prefix(label, newest.steps),
                version=newest.version,
                global_t=run.publisher.global_t,
                finished=run.publisher.finished,
                received=_remove_prefix(name, newest.received),
            )

    def publish(self, publication: Publication) -> Reply:
        """Publishes the run's newest state with its own part replaced, under the next number.

        The number of the Algorithm's own publication is not used.

        Raises:
          RelaaxError: the run already has a publication with that number; or an error of the run's
            publisher.
        """
        run, name = self._run, self._name
        with run.lock:
            newest = self._require_lease()
            values = newest.values.copy()
            arrays = newest.manifest.unpack(values)
            own = run.manifests[name].unpack(publication.values)
            for place, array in zip(run.places[name], own, strict=True):
                arrays[place][...] = array
            values.flags.writeable = False
            merged = replace(
                publication,
                number=newest.number + 1,
                values=values,
                slots={**newest.slots, **_add_prefix(run.labels[name], publication.slots)},
                steps={**newest.steps, **_add_prefix(run.labels[name], publication.steps)},
                received=_merge_received(name, newest.received, publication.received),
            )
            reply = run.publisher.publish(merged)
            if reply.outcome != "applied" and not reply.finished:
                raise RelaaxError(
                    f"publication {merged.number} of {name} was ignored, because the run "
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
            run.newest = replace(newest, received=merged.received)
            return reply

    def count(self, counts: Counts) -> Reply:
        """Counts steps and episodes that no publication of its own contains; see `Publisher`."""
        with self._run.lock:
            newest = self._require_lease()
            received = _merge_received(self._name, newest.received, counts.received)
            reply = self._run.publisher.count(replace(counts, received=received))
            self._run.newest = replace(newest, received=received)
            return reply

    def wait_published(self) -> None:
        """Waits for the run's newest publication, of any Algorithm; see `Publisher`."""
        with self._run.lock:
            self._run.publisher.wait_published()

    def _require_lease(self) -> Lease:
        assert self._run.newest is not None, "a learner publishes after it has a lease"
        return self._run.newest

    @property
    def global_t(self) -> int:
        """Environment steps of the run, counted by any Algorithm."""
        return self._run.publisher.global_t

    @property
    def finished(self) -> str:
        """What ended the training; "": it has not ended."""
        return self._run.publisher.finished

    @property
    def best_score(self) -> float | None:
        """Best score of the run's saved snapshots; see `Publisher`."""
        return self._run.publisher.best_score

    @property
    def train_return(self) -> TrainReturn | None:
        """Training return of the run; see `Publisher`."""
        return self._run.publisher.train_return

    def save_next_publication(self, score: float) -> None:
        """Saves the run's next publication, of any Algorithm; see `Publisher`."""
        self._run.publisher.save_next_publication(score)

    def metrics(self) -> Metrics:
        """Returns the recorder."""
        return self._run.publisher.metrics()


def _find_places(owner: str, label: str, own: Manifest, run: Manifest) -> list[int]:
    """Returns the positions of an Algorithm's variables among those of the run.

    Args:
      owner: prefix of its variables.
      label: prefix of its variable groups.
      own: the Algorithm's layout.
      run: the run's layout.

    Raises:
      InvalidInputError: a variable is missing, or is a different array; the error names it.
    """
    places = {segment.name: index for index, segment in enumerate(run.segments)}
    found = []
    for segment in own.segments:
        name = f"{owner}/{segment.name}"
        place = places.get(name)
        expected = segment.describe(f"{label}/")
        if place is None or run.segments[place].describe() != expected:
            there = "no such variable" if place is None else run.segments[place].describe()
            raise InvalidInputError(
                f"{name}: the run has {there}, expected {expected}; start "
                "the run from the initial values of the same algorithm folder"
            )
        found.append(place)
    return found


def _add_prefix(owner: str, named: Mapping[str, T]) -> dict[str, T]:
    return {f"{owner}/{name}": value for name, value in named.items()}


def _remove_prefix(owner: str, named: Mapping[str, T]) -> dict[str, T]:
    prefix = f"{owner}/"
    return {
        name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)
    }


def _merge_received(
    owner: str, newest: Mapping[str, Received], own: Mapping[str, Received]
) -> dict[str, Received]:
    """Returns the progress of the clients of all Algorithms; those of this Algorithm come last."""
    prefix = f"{owner}/"
    others = {name: one for name, one in newest.items() if not name.startswith(prefix)}
    return {**others, **_add_prefix(owner, own)}
