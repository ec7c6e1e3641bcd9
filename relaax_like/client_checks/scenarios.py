"""The scenarios: what the server does in one run of the client."""

import functools
import operator
import time
from collections.abc import Callable

import numpy as np

from relaax_like.client_checks import respelling
from relaax_like.client_checks.checks import CHECKS, Fault
from relaax_like.client_checks.judge import judge, list_rows
from relaax_like.client_checks.stage import Stage
from relaax_like.client_checks.talk import HELLO, LATER, PLAIN, Talk
from relaax_like.rlx_server.greeting import FEATURES, HELLO_PING, PING
from relaax_like.rlx_server.transition import Arrays
from relaax_like.wire.errors import ProtocolError

Scenario = Callable[[Stage], None]
_STEPS, _PLAY_SEC, _MAX_BYTES = 400, 5.0, 1 << 27
_LATE_SEC, _GOODBYE_SEC, _EXIT_SEC, _RETURN_SEC, _MOMENT_SEC = 2.0, 3.0, 5.0, 12.0, 0.4
# One of the pauses before so many attempts to reconnect is at least this long.
_PAUSE_SEC, _ATTEMPTS = 0.25, 3
_FEW_NUMBERS = 4
_REASON = "the check has ended – 完"
# Each is the form of a few answers; None: they are spelled as usual.
_FORMS: dict[str, respelling.Change | None] = {
    "answers.split": None,
    "answers.unknown_fields": respelling.add_unknown,
    "answers.field_order": respelling.reverse_fields,
    "answers.map_order": respelling.reverse_maps,
    "answers.without_version": None,
    "answers.large_numbers": None,
}
_VERSIONS = {"answers.without_version": 0, "answers.large_numbers": (1 << 64) - 1}


def play(stage: Stage) -> None:
    """Plays without features until enough has been seen, with one late answer."""
    talk = stage.begin()
    try:
        ready = talk.hear(HELLO)
        talk.listen(_MOMENT_SEC, "hello.waits_for_ready", "hello.waits_for_ready")
        stage.note("hello.waits_for_ready", True)
        answer = _exchange(talk, ready, 5)
        talk.listen(_LATE_SEC, "order.one_at_a_time", "answers.late")
        answer = talk.exchange(answer, "answers.late")
        end, most = time.monotonic() + _PLAY_SEC, min(_STEPS, _MAX_BYTES // len(talk.body))
        while len(talk.steps) < most and time.monotonic() < end:
            answer = talk.exchange(answer)
        for name in CHECKS:
            if name == "features.none" or name.endswith("_off"):
                stage.note(name, True)
    finally:
        judge(talk, stage.note, stage.skip)
    _finish(stage, talk, answer)


def features(stage: Stage) -> None:
    """Supports every feature that the client lists, also those that no server has yet."""
    talk = stage.begin(has_features=True)
    ready = talk.hear(HELLO)
    listed = talk.hello.features
    for name in {*FEATURES, *LATER, HELLO_PING}.difference(listed):
        for check in {f"features.{name}", f"hello.{name}"} & CHECKS.keys():
            stage.skip(check, f"the client does not list {name}")
    expect = "features.hello_ping" if HELLO_PING in listed else PLAIN
    for _ in range(2 * (HELLO_PING in listed)):
        talk.peer.send(talk.session.codec.ping)
        talk.listen(_MOMENT_SEC, "hello.waits_for_ready", expect)
    answer = talk.exchange(ready, expect)
    if PING in listed:
        answer = _ping(talk, answer)
    for name in ("answers.merged", "features.late_with_pings"):
        stage.skip(name, "the client does not list ping")
    answer = _exchange(talk, answer, 60)
    for name in talk.features & {"timings", "slot_versions"}:
        stage.note(f"features.{name}", True)
    for name in ("present", "executed", "masks"):
        stage.skip(f"features.{name}", f"the client lists {name}, but has not used it")
    _finish(stage, talk, answer)


def _ping(talk: Talk, answer: bytes) -> bytes:
    talk.peer.send(talk.session.codec.ping)
    talk.listen(_MOMENT_SEC, "features.ping", "features.ping")
    answer = talk.exchange(answer, "features.ping")
    talk.peer.send(talk.session.codec.ping, answer)
    answer = talk.hear("answers.merged")
    for _ in range(4):
        talk.peer.send(talk.session.codec.ping)
        talk.listen(_LATE_SEC / 4, "order.one_at_a_time", "features.late_with_pings")
    return talk.exchange(answer, "features.late_with_pings")


def forms(stage: Stage) -> None:
    """Spells answers in other ways; begins again after one that the client does not read."""
    waiting = list(_FORMS)
    while waiting:
        talk = stage.begin()
        answer = _exchange(talk, talk.hear(HELLO), 2)
        if len(talk.hello.action_spaces) == 1:
            stage.skip("answers.map_order", "the client has one action leaf")
            waiting = [name for name in waiting if name != "answers.map_order"]
        try:
            while waiting:
                answer = _send_forms(talk, waiting.pop(0), answer)
        except Fault as fault:
            if fault.id not in _FORMS or not stage.setting.program:
                raise
            stage.fail(fault)


def _send_forms(talk: Talk, name: str, answer: bytes) -> bytes:
    talk.version = _VERSIONS.get(name, 1)
    for _ in range(10):
        if change := _FORMS[name]:
            answer = respelling.respell(answer, change)
        if name == "answers.split":
            talk.peer.send_in_pieces(answer)
        else:
            talk.peer.send(answer)
        answer = talk.hear(name)
    return answer


def refused(stage: Stage) -> None:
    """Is full at first, and then sends an error without a code."""
    talk = stage.begin()
    talk.hear(HELLO)
    talk.send_error("OVERLOADED")
    talk.peer.close()
    if _wait_for_return(stage, "errors.overloaded"):
        talk = stage.accept()
        _exchange(talk, talk.exchange(talk.hear(HELLO), "reconnect.first_step"), 2)
        talk.send_error("ERROR_CODE_INVALID")
        _say_goodbye(stage, talk, "errors")
        stage.note("errors.unknown_code", True)


def silent(stage: Stage) -> None:
    """Answers no longer, as a server that has disappeared."""
    seconds = stage.setting.silence_sec
    if not seconds:
        stage.skip("answers.silence", "give the client a short limit, and this command --silence")
        return
    talk = stage.begin()
    _exchange(talk, talk.hear(HELLO), 5)
    try:
        talk.peer.receive(seconds)
    except EOFError:
        stage.note("answers.silence", True)
    except TimeoutError:
        stage.note("answers.silence", False, f"the connection is still open after {seconds:g} s")


def error(stage: Stage) -> None:
    """Refuses a step."""
    talk = stage.begin()
    _exchange(talk, talk.hear(HELLO), 5)
    talk.send_error("INVALID_FIELD", "observations")
    _say_goodbye(stage, talk, "errors")
    _note_status(stage, "errors.status", lambda status: status != 0)


def unauthenticated(stage: Stage) -> None:
    """Refuses the token."""
    for name in () if stage.setting.token else ("hello.token", "hello.no_secret"):
        stage.skip(name, "no token was given with --token-file")
    talk = stage.begin()
    talk.hear(HELLO)
    talk.send_error("UNAUTHENTICATED", "token")
    _say_goodbye(stage, talk, "errors")
    _stay_away(stage, "errors.unauthenticated")
    _note_status(stage, "errors.unauthenticated_status", lambda status: status == 2)


def early(stage: Stage) -> None:
    """Ends the training with the first answer, after an unusual Ready."""
    talk = stage.begin()
    ready = respelling.respell(talk.hear(HELLO), respelling.add_unknown)
    talk.peer.send_in_pieces(ready)
    talk.finish = _REASON
    talk.peer.send(talk.hear("answers.ready_forms"))
    _say_goodbye(stage, talk, "finished")
    stage.note("finished.early", True)


def _exchange(talk: Talk, answer: bytes, count: int) -> bytes:
    for _ in range(count):
        answer = talk.exchange(answer)
    return answer


def _finish(stage: Stage, talk: Talk, answer: bytes) -> None:
    """Ends the training, with the answer to the next step."""
    if not stage.setting.program:
        return  # a client that reconnects need not be started again
    talk.peer.send(answer)
    talk.finish = _REASON
    talk.peer.send(talk.hear())
    _say_goodbye(stage, talk, "finished")


def _say_goodbye(stage: Stage, talk: Talk, group: str) -> None:
    """Waits until the client closes the connection, in which nothing more is answered.

    Args:
      stage: of the scenario.
      talk: the conversation.
      group: of the checks: "finished" or "errors".
    """
    talk.peer.end()
    end, kind = time.monotonic() + _GOODBYE_SEC, "ping"
    try:
        while kind in ("ping", "scalars"):  # those can have been sent before
            kind, _ = talk.read(talk.peer.receive(end - time.monotonic()))
        raise Fault(f"{group}.stops", f"it sent a message ({kind})")
    except EOFError:
        stage.note(f"{group}.stops", True)
        stage.note(f"{group}.closes", True)
    except TimeoutError:
        stage.note(f"{group}.closes", False, f"it is still open after {_GOODBYE_SEC:g} s")
    except ProtocolError as error:
        raise Fault(f"{group}.stops", str(error)) from None
    talk.peer.close()
    if group == "finished":
        _stay_away(stage, "finished.stays_away")
        _note_status(stage, "finished.status", lambda status: status == 0)


def _stay_away(stage: Stage, check: str) -> None:
    if not stage.setting.program:
        stage.setting.say(f"for {_RETURN_SEC:g} s the client must not reconnect; do not start it")
    stage.note(check, not stage.wait_for_connection(_RETURN_SEC), "it has reconnected")


def _note_status(stage: Stage, check: str, is_right: Callable[[int], bool]) -> None:
    status = stage.wait_for_exit(_EXIT_SEC)
    if status is None:
        stage.skip(check, "no program was started, or it has not ended")
    else:
        stage.note(check, is_right(status), f"status {status}")


def _wait_for_return(stage: Stage, check: str) -> bool:
    """Returns whether the client reconnects; a program can also end, to be restarted."""
    if stage.wait_for_connection(_RETURN_SEC):
        stage.note(check, True)
        return True
    _note_status(stage, check, lambda status: status not in (0, 2))
    return False


def _lose(stage: Stage, check: str) -> None:
    """Loses the client in the middle of its episodes, and sees how it begins again.

    Args:
      stage: of the scenario.
      check: how it is lost: with an error if it is "reconnect.returns", in the middle of an answer
        if it is "reconnect.after_half", else by closing the connection.
    """
    talk = stage.begin()
    answer = _exchange(talk, talk.hear(HELLO), 5)
    for _ in range(20):
        if talk.steps[-1][1].ended is None:
            break
        answer = talk.exchange(answer)
    lost_at = time.monotonic()
    if check == "reconnect.returns":
        talk.send_error("UNAVAILABLE")
    elif check == "reconnect.after_half":
        talk.peer.send_in_pieces(answer, len(answer) // 2)
    talk.peer.close()
    if not _wait_for_return(stage, check):
        return
    pauses = [time.monotonic() - lost_at]
    again = stage.accept()
    while max(pauses) < _PAUSE_SEC and len(pauses) < _ATTEMPTS:
        lost_at = time.monotonic()
        again.peer.close()
        if not stage.wait_for_connection(_RETURN_SEC):
            return
        pauses.append(time.monotonic() - lost_at)
        again = stage.accept()
    seen = f"it reconnected {len(pauses)} times within {sum(pauses):.3f} s"
    stage.note("reconnect.pause", max(pauses) >= _PAUSE_SEC, seen)
    ready = again.hear(HELLO)
    for field in ("slots", "mode", "observation_spaces", "action_spaces"):
        is_same = getattr(again.hello, field) == getattr(talk.hello, field)
        stage.note("reconnect.same_hello", is_same, f"{field} differs")
    if talk.steps[-1][1].rewards is not None:  # else it can be equal to the first step by right
        again.repeat = talk.body
    answer = again.exchange(ready, "reconnect.first_step")
    again.repeat = b""
    stage.note("reconnect.no_repeat", True)
    _judge_reset(stage, talk, again)
    _exchange(again, answer, 5)


def _judge_reset(stage: Stage, talk: Talk, again: Talk) -> None:
    """Compares the first observations after a loss with the last ones before it."""
    rows, first = list_rows(talk.steps), list_rows(again.steps)[0]
    if len({row for slots in rows for row in slots}) < sum(map(len, rows)):
        stage.skip("reconnect.reset", "observations repeat themselves")
    elif _can_be_equal(talk.steps[0][1].observations or {}):
        stage.skip("reconnect.reset", "the first observation can be the last one by chance")
    else:
        is_kept = any(map(operator.eq, rows[-1], first))
        stage.note("reconnect.reset", not is_kept, "a slot continues with its old observations")


def _can_be_equal(observations: Arrays) -> bool:
    """Returns whether observations are so few whole numbers that two can be equal by chance."""
    arrays = list(observations.values())
    is_whole = all(np.array_equal(array, np.rint(array)) for array in arrays)
    return is_whole and sum(array[0].size for array in arrays) <= _FEW_NUMBERS


# Those after which a client ends come last: its user has to start it again.
SCENARIOS: dict[str, Scenario] = {
    "without features": play,
    "with features": features,
    "other spellings": forms,
    "lost with an error": functools.partial(_lose, check="reconnect.returns"),
    "lost without an error": functools.partial(_lose, check="reconnect.after_close"),
    "lost within an answer": functools.partial(_lose, check="reconnect.after_half"),
    "refused at first": refused,
    "silence": silent,
    "a wrong step": error,
    "a wrong token": unauthenticated,
    "the end at once": early,
}
