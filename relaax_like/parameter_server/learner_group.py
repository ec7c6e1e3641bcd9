"""LearnerGroup: learners that share each update, in step with each other."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from relaax_like.core.manifest import Manifest
from relaax_like.core.records import GroupReply, GroupRequest, Push, Reply
from relaax_like.core.roles import GroupConnection, ParameterServerBackend
from relaax_like.parameter_server.combining.sync import GROUP
from relaax_like.parameter_server.push_validation import validate_gradient
from relaax_like.wire.errors import InvalidInputError, RelaaxError, ServerUnavailableError

_LOG = logging.getLogger(__name__)
# How long the others wait for a learner that compiles a function.
_COMPILING_SEC = 300.0
_POLL_SEC = 0.1
_MAX_TEXT = 200  # characters of what a learner has sent, in an error
MAX_LEARNERS = 64


@dataclass(eq=False)
class Membership(GroupConnection):
    """A learner's connection to its group, and its request.

    Attributes:
      group: the group.
      name: name of the learner.
      order: larger for those that joined later.
      heard: time when it made its part of a round; before that, it has no time of its own.
      silence_sec: how long the others then wait for it.
      asked: time of its request.
      request: that waits for an answer; None: no request does.
      answer: to its newest request; None: there is none yet.
    """

    group: "LearnerGroup"
    name: str
    order: int
    heard: float
    silence_sec: float
    asked: float = 0.0
    request: GroupRequest | None = None
    answer: GroupReply | RelaaxError | None = None

    def exchange(self, request: GroupRequest) -> GroupReply:
        """Makes a request, and waits for its answer.

        Raises:
          InvalidInputError: the request differs from those of most learners, or is invalid (not
            finite, ...), and this learner has left the group; or the sum of all gradients is too
            large, or gradients cannot update all variables (see `Store.prepare`).
          ServerUnavailableError: the parameter server is closing, or could not apply the update;
            or this learner has left the group.
        """
        return self.group.exchange(self, request)

    def close(self) -> None:
        """Leaves the group. Idempotent."""
        self.group.leave(self)


class LearnerGroup:
    """Learners that make each update together: one step per update, of the joint batch.

        group = LearnerGroup(parameter_server, push_joint, count_updates, max_wait_sec=10)
        learner = group.join("learner-1")
        entered = learner.exchange(GroupRequest(kind="enter", units=1024))
        total = learner.exchange(GroupRequest(kind="sum", ..., sums=counts)).sums
        learner.close()

    An iteration begins when all learners of the previous one, and those that have joined since,
    have entered it; learners that have not entered within `max_wait_sec` after the first one are
    left out, and enter a later iteration. In an iteration, each request is answered once all of its
    learners have made theirs. A learner for which the others have waited for `max_wait_sec` is out:
    the others repeat the current update without it, its later requests of this iteration get the
    outcome "out", and it can enter a later one. A learner whose connection ends leaves at once. So
    does a learner whose gradient or sums are invalid (not finite, too large, ...), or whose request
    differs from those of most others: it gets an error, and the others repeat the update without
    it.

    Thread-safe: each learner has its own thread, which waits in `exchange`.

    Args:
      backend: the parameter server.
      push_joint: applies the learners' joint gradient.
      count_updates: returns the number of optimizer steps so far.
      max_wait_sec: how long the others wait for a learner; longer while it compiles a function.
      clock: returns monotonic seconds.
    """

    def __init__(
        self,
        backend: ParameterServerBackend,
        push_joint: Callable[[Push], Reply],
        count_updates: Callable[[], int],
        max_wait_sec: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._backend = backend
        self._push_joint = push_joint
        self._count_updates = count_updates
        self._max_wait_sec = max_wait_sec
        self._clock = clock
        self._pushes = 0
        self._changed = threading.Condition()  # guards all that follows
        self._members: dict[str, Membership] = {}
        self._joined = 0
        self._iteration = 0
        self._generation = 0
        self._active: list[Membership] = []  # in the iteration, by rank
        self._expected: list[Membership] = []  # that the next iteration waits for
        self._applying = False  # the lock is free, but nothing is answered
        self._closed = False

    @property
    def learners(self) -> int:
        """Number of learners that the next iteration waits for."""
        return len(self._expected)

    def join(self, name: str) -> Membership:
        """Adds a learner; the returned object is its connection.

        An earlier connection with the same name ends.

        Raises:
          ServerUnavailableError: `MAX_LEARNERS` learners have already joined.
        """
        with self._changed:
            self._remove(self._members.get(name))
            if len(self._members) >= MAX_LEARNERS:
                raise ServerUnavailableError(
                    f"{MAX_LEARNERS} learners have already joined, which is the maximum; stop some "
                    "of them"
                )
            self._joined += 1
            member = Membership(self, name, self._joined, -math.inf, self._max_wait_sec)
            self._members[name] = member
            self._expected.append(member)
        return member

    def close(self) -> None:
        """Ends all waits: waiting learners get a ServerUnavailableError. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def exchange(self, member: Membership, request: GroupRequest) -> GroupReply:
        """Makes a learner's request, and waits for the answer; see `Membership.exchange`."""
        try:
            _validate_finite(request, self._backend.manifest)
        except InvalidInputError:
            self.leave(member)
            raise
        with self._changed:
            if request.kind == "compiling":  # once in a round
                member.silence_sec = max(_COMPILING_SEC, self._max_wait_sec)
                return GroupReply(outcome="done")
            if request.kind == "leave":
                self._deactivate(member)
                self._advance()
                return GroupReply(outcome="done")
            member.request, member.answer, member.asked = request, None, self._clock()
            self._advance()
            while member.answer is None:
                if self._closed:
                    raise ServerUnavailableError(
                        "the parameter server is closing; join again later"
                    )
                if self._members.get(member.name) is not member:
                    raise ServerUnavailableError("this learner has left the group; join again")
                self._changed.wait(_POLL_SEC)
                if member.answer is None:
                    self._drop_silent()
                    self._advance()
            answer = member.answer
            if isinstance(answer, RelaaxError):
                raise answer
            return answer

    def leave(self, member: Membership) -> None:
        """Removes a learner. Idempotent."""
        with self._changed:
            self._remove(member)
            self._advance()

    # Under the lock.

    def _remove(self, member: Membership | None) -> None:
        if member is None or self._members.get(member.name) is not member:
            return
        del self._members[member.name]
        self._take_out(member)

    def _take_out(self, member: Membership) -> None:
        """Removes a learner from the iteration, and does not wait for it in the next one."""
        if member in self._expected:
            self._expected.remove(member)
        self._deactivate(member)

    def _deactivate(self, member: Membership) -> None:
        """Ends a learner's part of the iteration."""
        if member in self._active:
            self._active.remove(member)
            self._generation += 1

    def _drop_silent(self) -> None:
        """Takes out learners that the others have waited for too long."""
        waiting = [m for m in self._members.values() if m.request is not None]
        if not waiting or self._applying:
            return
        now = self._clock()
        since = min(member.asked for member in waiting)
        for member in [*self._expected]:
            if member.request is None and now - max(member.heard, since) > member.silence_sec:
                _LOG.warning(
                    "learner %s has been silent for %.1f s, in which others waited for it, and is "
                    "left out of the iteration (combine.max_wait_sec); it can enter a later one",
                    member.name,
                    now - max(member.heard, since),
                )
                self._take_out(member)

    def _advance(self) -> None:
        """Answers the requests that need not wait any longer."""
        if self._applying:
            return
        for member in [*self._members.values()]:
            request = member.request
            if request is None:
                continue
            if request.kind == "enter":
                self._deactivate(member)
                newest = self._backend.pull()
                if newest.finished:  # there is no next iteration
                    if member in self._expected:
                        self._expected.remove(member)
                    self._answer(member, replace(self._make_reply(member, "out"), reply=newest))
            elif member not in self._active or request.iteration != self._iteration:
                self._answer(member, self._make_reply(member, "out"))
            elif request.generation != self._generation:
                self._answer(member, self._make_reply(member, "again"))
        if self._active:
            if all(member.request is not None for member in self._active):
                self._finish_round()
        elif self._members:
            self._begin_iteration()

    def _begin_iteration(self) -> None:
        entering = [
            m for m in self._members.values() if m.request is not None and m.request.kind == "enter"
        ]
        if not entering or any(member.request is None for member in self._expected):
            return
        self._iteration += 1
        self._generation += 1
        entering.sort(key=lambda member: member.order)
        self._active = [m for m in entering if m.request is not None and m.request.units > 0]
        self._expected = [*entering]
        units = [m.request.units for m in self._active if m.request is not None]
        before = dict(zip((m.name for m in self._active), np.cumsum([0, *units]), strict=False))
        reply, updates = self._backend.pull(), self._count_updates()
        for member in entering:
            outcome = self._make_reply(member, "done" if member in self._active else "out")
            self._note_part(member)
            self._answer(
                member,
                replace(
                    outcome,
                    units=sum(units),
                    units_before=int(before.get(member.name, 0)),
                    updates=updates,
                    reply=reply,
                ),
            )

    def _finish_round(self) -> None:
        """Answers all learners in the iteration with the sums, or with an error.

        If the requests have gradients, they are applied first. If requests differ, those learners
        whose request is unusual get an error and leave, and the others repeat the update.
        """
        members = [*self._active]
        requests = [m.request for m in members if m.request is not None]
        errors = _find_different(requests)
        if errors:
            for index, error in errors.items():
                self._answer(members[index], error)
                self._remove(members[index])
            self._advance()  # the others repeat the update
            return
        first = requests[0]
        answer: GroupReply | RelaaxError
        try:
            sums = np.zeros(len(first.sums))
            for request in requests:
                sums = sums + request.sums
            answer = GroupReply(outcome="done", sums=sums)
            if first.gradient is not None:
                answer = self._apply(answer, requests)
        except RelaaxError as error:
            answer = error
        except Exception as error:
            _LOG.exception("the learners' update failed")
            answer = ServerUnavailableError(
                "the parameter server could not apply the learners' update "
                f"({type(error).__name__}: {error}); see its log"
            )
        for member in members:
            self._note_part(member)
            if isinstance(answer, GroupReply):
                place = self._make_reply(member, "done")
                one = replace(place, sums=answer.sums, norms=answer.norms, reply=answer.reply)
                self._answer(member, one)
            else:
                self._answer(member, answer)

    def _apply(self, answer: GroupReply, requests: Sequence[GroupRequest]) -> GroupReply:
        """Clips and applies the sum of all gradients."""
        first, manifest = requests[0], self._backend.manifest
        assert first.gradient is not None
        total = first.gradient.copy()
        for request in requests[1:]:
            total += request.gradient
        norms = _clip(total, first.clip, manifest.select_groups(first.groups))
        self._pushes += 1
        newest = self._backend.pull(have_version=-1)
        push = Push(
            client_id=GROUP,
            incarnation=newest.epoch,  # grows with each start of the server
            sequence=self._pushes,
            gradient=total,
            gradient_version=newest.version,
            fingerprint=manifest.fingerprint,
            groups=first.groups,
        )
        # Without the lock: a slow disk must not stop those who ask how many learners there are.
        self._applying = True
        self._changed.release()
        try:
            reply = self._push_joint(push)
        finally:
            self._changed.acquire()
            self._applying = False
        values = self._backend.pull()
        reply = replace(reply, version=values.version, values=values.values, epoch=values.epoch)
        return replace(answer, norms=norms, reply=reply)

    def _make_reply(self, member: Membership, outcome: str) -> GroupReply:
        is_active = member in self._active
        return GroupReply(
            outcome=outcome,  # type: ignore[arg-type]
            iteration=self._iteration,
            generation=self._generation,
            rank=self._active.index(member) if is_active else 0,
            learners=len(self._active),
        )

    def _note_part(self, member: Membership) -> None:
        """Notes that a learner has made its part of a round, and restarts its time limit."""
        member.heard, member.silence_sec = self._clock(), self._max_wait_sec

    def _answer(self, member: Membership, answer: GroupReply | RelaaxError) -> None:
        member.request, member.answer = None, answer
        self._changed.notify_all()


def _validate_finite(request: GroupRequest, manifest: Manifest) -> None:
    """Checks the numbers of a request that would make the joint gradient useless.

    Raises:
      InvalidInputError: the gradient, or a number on which the others' gradients depend, is not
        finite; or the gradient has a wrong length or unknown groups, or is too large.
    """
    if request.gradient is not None:
        validate_gradient(request.gradient, manifest.select_groups(request.groups))
    if request.kind == "sum" and not np.isfinite(request.sums).all():
        place = int(np.flatnonzero(~np.isfinite(request.sums))[0])
        raise InvalidInputError(
            f"sums[{place}] of {request.tag[:_MAX_TEXT]!r}: {request.sums[place]}, expected a "
            "finite number; lower the learning rate, or check the rewards and observations",
            "sums",
        )


def _find_different(requests: Sequence[GroupRequest]) -> dict[int, InvalidInputError]:
    """Returns the requests that differ from those of most learners: index -> what is wrong.

    In a tie, the learner with the lowest rank counts as correct.
    """
    described = [_describe(request) for request in requests]
    if all(one == described[0] for one in described):
        return {}
    usual = max(described, key=described.count)
    errors = {}
    for index, fields in enumerate(described):
        for field, value in fields.items():
            if value != usual[field]:
                errors[index] = InvalidInputError(
                    f"{field}: this learner has {_show(field, value)}, but most learners (in a "
                    f"tie, the first one) have {_show(field, usual[field])}; start all learners "
                    "with the same algorithm and settings"
                )
                break
    return errors


def _show(field: str, value: Any) -> str:
    """Returns a field of `_describe` as text of limited length."""
    if field in ("sums", "gradient"):
        return "none" if value < 0 else f"{value} number(s)"
    return str(value)[:_MAX_TEXT]


def _describe(request: GroupRequest) -> dict[str, Any]:
    """Returns the fields of a request that must be equal for all learners of a round."""
    return {
        "kind": request.kind,
        "tag": request.tag,
        "sums": len(request.sums),
        "groups": request.groups,
        "clip": dict(request.clip),
        "gradient": -1 if request.gradient is None else request.gradient.size,
    }


def _clip(total: np.ndarray, clip: Mapping[str, float], layout: Manifest) -> dict[str, float]:
    """Scales a gradient in place to norms of at most `clip`; returns the norms before.

    Args:
      total: `[n] float32`, the gradient.
      clip: variable group -> largest norm; "": of the complete gradient.
      layout: of the gradient.
    """
    norms: dict[str, float] = {}
    ranges = layout.groups()
    for group, most in clip.items():
        if group and group not in ranges:
            continue  # of another phase
        part = total[ranges[group]] if group else total
        with np.errstate(all="ignore"):
            norm = float(np.sqrt(np.dot(part, part)))
            if np.isfinite(norm) and norm > most:
                part *= np.float32(most / norm)
        norms[group] = norm
    return norms
