"""The coordinator over its port: who gets what, time limits, and results that are refused."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.certificates import AGENT, OPERATOR, Authority, write_private
from support.cluster import find_free_port, wait_until
from support.jobs import Clock, Session, Site, make_config

from relaax_like.addons.coordinator.client import CoordinatorLink, JobsClient
from relaax_like.addons.coordinator.coordinator import POLL_SEC, SILENCE_SEC, STALL_SEC
from relaax_like.addons.coordinator.job import FORMAT, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, Attempt
from relaax_like.addons.coordinator.slave import LearnerSlave, _find_attempt
from relaax_like.addons.coordinator.tasks import (
    TASK_TIMEOUT_SEC,
    NameInUseError,
    RefusedAttemptError,
    TaskFail,
)
from relaax_like.addons.coordinator.versions import pack_version
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import (
    InvalidInputError,
    NotAllowedError,
    ProtocolError,
    ServerUnavailableError,
    SnapshotError,
)
from relaax_like.wire.security import ClientSecurity, ServerSecurity, Tokens

LEARNER = "learner-token-00000000000004"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def site(tmp_path: Path, clock: Clock) -> Iterator[Site]:
    with Site(tmp_path / "coordinator", clock=clock) as site:
        yield site


@pytest.fixture
def slave(site: Site) -> Iterator[Session]:
    session = Session(site.address)
    yield session
    session.close()


def test_jobs_are_given_in_order_to_free_slaves(site: Site, slave: Session) -> None:
    first, second = (site.jobs.submit(f"job-{n}", make_config()) for n in (1, 2))
    other = Session(site.address, "other")
    assert slave.take_job() == (first, 1)
    assert other.take_job() == (second, 1)
    assert not slave.poll((first, 1))
    assert slave.end((first, 1))
    assert site.get_state(first) == "done"
    assert site.get_state(second) == "running"
    third = site.jobs.submit("job-3", make_config())
    assert slave.take_job() == (third, 1)
    other.close()


def test_a_waiting_poll_returns_when_a_job_comes(site: Site, slave: Session) -> None:
    assert not slave.poll()
    came: list[pb.Task] = []
    waiting = threading.Thread(target=lambda: came.extend(slave.poll(wait_ms=9000)))
    waiting.start()
    job = site.jobs.submit("job", make_config(30))
    waiting.join(8.0)
    (task,) = came
    payload = json.loads(task.payload)
    assert (payload["job"], payload["attempt"], payload["has_version"]) == (job, 1, False)
    assert payload["config"] == make_config(30)


def test_a_slave_gets_only_jobs_whose_names_it_has(site: Site, slave: Session) -> None:
    """covers D23"""
    job = site.jobs.submit("job", make_config())
    assert site.get(job).reason == "no slave that runs jobs is connected"
    assert not slave.poll(algorithms=["sac"])
    assert site.get(job).reason == "no connected slave has 'ppo' among its algorithms"
    assert not slave.poll(environments=["memory"])
    assert "'OpenAI_Gym' among its environments" in site.get(job).reason
    assert not slave.poll(runs_jobs=False)
    assert slave.take_job() == (job, 1)


def test_a_module_of_environments_needs_a_slave_that_allows_it(site: Site, slave: Session) -> None:
    def submit(**environment: Any) -> int:
        config = make_config()
        config["environment"] |= environment
        return site.jobs.submit("job", config)

    plain = submit(env="envs.walk:Walk-v0")
    slave.poll()
    assert site.get(plain).reason == (
        "no connected slave has 'module-envs.walk' among its environments"
    )
    own = ["OpenAI_Gym", "module-envs.walk"]
    assert slave.take_job(environments=own) == (plain, 1)
    assert slave.end((plain, 1))
    with_args = submit(env="envs.walk:Walk-v0", args={"size": 3})
    assert not slave.poll(environments=own)
    assert "'module-envs.walk-args'" in site.get(with_args).reason
    assert slave.take_job(environments=[*own, "module-envs.walk-args"]) == (with_args, 1)


def test_results_of_older_attempts_are_refused(site: Site, slave: Session, clock: Clock) -> None:
    """covers D23"""
    job = site.jobs.submit("job", make_config())
    assert slave.take_job() == (job, 1)
    slave.poll((job, 1))
    assert slave.send_version((job, 1), b"first", step=10) == 1
    clock.ahead += SILENCE_SEC + 1  # the slave does not answer: SIGSTOP, or the network
    site.wait_state(job, "queued")
    other = Session(site.address, "other")
    assert other.take_job() == (job, 2)

    with pytest.raises(RefusedAttemptError, match="not the newest attempt"):
        slave.send_version((job, 1), b"too late", step=999)
    assert not slave.end((job, 1))
    (close,) = slave.poll((job, 1))
    assert close.name == "learner_close_task"
    with pytest.raises(RefusedAttemptError, match="not the newest"):
        slave.send_version((job, 2), b"another slave's attempt")
    assert site.get(job).version == 1
    assert Path(site.get(job).folder, "run", "file").read_bytes() == b"first"
    assert other.send_version((job, 2), b"second", step=20) == 2
    assert other.end((job, 2))
    assert not other.end((job, 2))
    assert (site.get_state(job), site.get(job).step) == ("done", 20)
    assert len(list((site.folder / "runs" / f"job-{job}").glob("v*"))) == 1
    other.close()


def test_the_limits_are_those_of_di_engine(site: Site) -> None:
    """covers D23"""
    assert TASK_TIMEOUT_SEC["learner_learn_task"] == STALL_SEC == 600.0
    assert TASK_TIMEOUT_SEC["learner_start_task"] == SILENCE_SEC == 30.0
    assert POLL_SEC <= SILENCE_SEC / 3


def test_a_slave_that_does_not_start_a_job_in_30_s_is_passed_over(
    site: Site, slave: Session, clock: Clock
) -> None:
    """covers D23"""
    job = site.jobs.submit("job", make_config())
    (task,) = wait_until(slave.poll, "the task")
    other = Session(site.address, "other")
    for _ in range(4):
        clock.ahead += 10
        slave.poll(sequence=slave.sequence + 1)  # it lives, and says nothing of the job
        other.poll()
    wait_until(lambda: site.get(job).attempts == 2, "the second attempt")
    assert site.get(job).reason == ""
    slave.answer(task)  # too late
    assert not slave.end((job, 1))
    other.close()


def test_an_attempt_without_progress_for_600_s_fails(
    site: Site, slave: Session, clock: Clock
) -> None:
    """covers D23"""
    job = site.jobs.submit("job", make_config())
    attempt = slave.take_job()
    for number in range(30):  # 600 s with progress
        clock.ahead += 20
        slave.poll(attempt, progress=json.dumps({"step": number}))
    assert site.get(job).attempts == 1
    assert json.loads(site.get(job).progress) == {"step": 29}
    for _ in range(31):
        clock.ahead += 20
        if tasks := slave.poll(attempt, progress=json.dumps({"step": 29})):
            break
    tasks = tasks or wait_until(lambda: slave.poll(attempt), "the task that ends it")
    assert tasks[0].name == "learner_close_task"
    assert "no progress for 600 s" in site.get(job).reason
    assert site.get_state(job) == "queued"


def test_a_slave_that_refuses_a_job_counts_as_a_failure(site: Site, slave: Session) -> None:
    job = site.jobs.submit("job", make_config())
    for number in (1, 2, 3):
        (task,) = wait_until(slave.poll, "the task")
        assert json.loads(task.payload)["attempt"] == number
        slave.answer(task, ok=False, payload='{"message": "no disk"}')
    failed = site.wait_state(job, "failed")
    assert failed.reason == "slave slave could not start it: no disk"


def test_a_start_that_fails_while_the_queue_cannot_be_written_is_reported_again(
    site: Site, slave: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise ServerUnavailableError("the disk is full")

    job = site.jobs.submit("job", make_config())
    (task,) = wait_until(slave.poll, "the task")
    with monkeypatch.context() as patch:
        patch.setattr(site.coordinator._queue, "end", refuse)
        with pytest.raises(ServerUnavailableError, match="the disk is full"):
            slave.answer(task, ok=False, payload='{"message": "no space"}')
    assert (site.get_state(job), site.get(job).attempts) == ("running", 1)
    slave.answer(task, ok=False, payload='{"message": "no space"}')
    wait_until(lambda: site.get(job).attempts == 2, "the second attempt")
    assert slave.take_job() == (job, 2)


def test_a_busy_slave_gets_no_job_before_its_next_poll(site: Site, slave: Session) -> None:
    job = site.jobs.submit("job", make_config())
    (task,) = wait_until(slave.poll, "the task")
    slave.answer(task, ok=False, payload='{"message": "the slave leaves", "busy": true}')
    assert (site.get_state(job), site.get(job).attempts) == ("queued", 1)
    other = Session(site.address, "other")
    assert other.take_job() == (job, 2)
    other.close()


def test_a_start_that_times_out_while_the_queue_cannot_be_written_ends_later(
    site: Site, slave: Session, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        refused.append(arguments)
        raise ServerUnavailableError("the disk is full")

    refused: list[Any] = []
    job = site.jobs.submit("job", make_config())
    wait_until(slave.poll, "the task")
    with monkeypatch.context() as patch:
        patch.setattr(site.coordinator._queue, "end", refuse)
        for _ in range(4):
            clock.ahead += 10
            slave.poll()
        wait_until(lambda: refused, "the time limit")
    wait_until(lambda: site.get(job).attempts == 2, "the second attempt")
    assert slave.take_job() == (job, 2)


def test_a_failed_job_is_retried_twice_and_keeps_its_tail(site: Site, slave: Session) -> None:
    job = site.jobs.submit("job", make_config())
    for number in (1, 2, 3):
        assert slave.take_job() == (job, number)
        assert slave.end((job, number), "FAILED", tail=f"error: number {number}")
    failed = site.wait_state(job, "failed")
    assert failed.tail == "error: number 3"
    assert failed.config == ""


def test_a_cancel_refuses_the_result_and_tells_the_slave(site: Site, slave: Session) -> None:
    waiting, running = (site.jobs.submit("job", make_config()) for _ in range(2))
    site.jobs.cancel(waiting)
    attempt = slave.take_job()
    assert attempt == (running, 1)
    site.jobs.cancel(running)
    site.jobs.cancel(running)  # the reply was lost
    (task,) = slave.poll(attempt)
    assert task.name == "learner_close_task"
    assert json.loads(task.payload) == {"job": running, "attempt": 1}
    assert not slave.end(attempt)
    with pytest.raises(RefusedAttemptError):
        slave.send_version(attempt)
    third = site.jobs.submit("job", make_config())
    assert slave.take_job() == (third, 1)
    slave.end((third, 1))
    with pytest.raises(RefusedAttemptError, match="has already ended: done"):
        site.jobs.cancel(third)
    with pytest.raises(InvalidInputError, match="no job 99"):
        site.jobs.cancel(99)


def test_a_slave_that_leaves_hands_its_job_on_at_once(site: Site, slave: Session) -> None:
    """covers D24"""
    job = site.jobs.submit("job", make_config())
    attempt = slave.take_job()
    slave.send_version(attempt, b"so far", step=7)
    slave.leave()
    assert site.jobs.list()[1] == []
    other = Session(site.address, "other")
    assert other.take_job() == (job, 2)
    request = pb.GetVersionRequest(format=FORMAT, slave="other", incarnation=1)
    request.attempt.job, request.attempt.attempt = job, 2
    parts = list(other.link.stream(other.link.stub.GetVersion, request, 10.0))
    assert [part.chunk for part in parts if part.chunk] == [b"so far"]
    request.attempt.attempt = 1
    with pytest.raises(RefusedAttemptError):
        list(other.link.stream(other.link.stub.GetVersion, request, 10.0))
    other.close()


def test_a_slave_returns_after_a_restart_of_the_coordinator_and_keeps_its_job(
    tmp_path: Path,
) -> None:
    """covers D24"""
    port = find_free_port()
    with Site(tmp_path, port=port) as site:
        job, lost = (site.jobs.submit("job", make_config()) for _ in range(2))
        slave, gone = Session(site.address), Session(site.address, "gone")
        assert slave.take_job() == (job, 1)
        assert gone.take_job() == (lost, 1)
        slave.send_version((job, 1), step=5)
    clock = Clock()
    with Site(tmp_path, port=port, clock=clock) as site:
        assert site.get_state(job) == "running"
        wait_until(lambda: _try(lambda: slave.poll((job, 1))) is not None, "the connection")
        assert slave.send_version((job, 1), step=6) == 2
        clock.ahead += SILENCE_SEC + 1
        slave.poll((job, 1))
        queued = site.wait_state(lost, "queued")
        assert queued.reason == "slave gone did not return"
        assert slave.end((job, 1))
        assert slave.take_job() == (lost, 2)
    slave.close()
    gone.close()


def _try(act: Any) -> Any:
    try:
        return act()
    except ServerUnavailableError:
        return None


def test_a_name_belongs_to_one_process_until_its_connection_ends(
    site: Site, slave: Session
) -> None:
    job = site.jobs.submit("job", make_config())
    attempt = slave.take_job()
    again = Session(site.address, incarnation=2)
    with pytest.raises(NameInUseError, match="'slave' is used by another process"):
        again.poll()
    waits = slave.sequence + 1
    waiting = threading.Thread(target=lambda: _try(lambda: slave.poll(attempt, wait_ms=9000)))
    waiting.start()

    def is_waiting() -> bool:
        return site.coordinator._slaves["slave"].sequence == waits

    wait_until(is_waiting, "the poll")
    slave.close()  # as `kill -9` would

    def take_over() -> Any:
        try:
            return again.poll() or True
        except NameInUseError:
            return None

    wait_until(take_over, "the name")
    waiting.join()
    assert site.get(job).attempts == 2
    again.close()


def test_a_program_of_the_coordinator_sends_tasks_to_slaves(
    site: Site, slave: Session, clock: Clock
) -> None:
    with pytest.raises(InvalidInputError, match="slave 'slave' is not known"):
        site.coordinator.send_task("slave", "resource", {})
    slave.poll(runs_jobs=False)
    result = site.coordinator.send_task("slave", "resource", {"x": 1})
    refused = site.coordinator.send_task("slave", "nonsense", {})
    first, second = slave.poll(runs_jobs=False)
    assert (first.name, json.loads(first.payload)) == ("resource", {"x": 1})
    assert slave.poll(runs_jobs=False) == []  # received once
    slave.answer(first, payload='{"gpu": 2}')
    slave.answer(second, ok=False, payload='{"message": "unknown"}')
    assert result.result(5.0) == {"gpu": 2}
    with pytest.raises(TaskFail, match="unknown"):
        refused.result(5.0)
    late = site.coordinator.send_task("slave", "learner_get_data_task", {})
    learn = site.coordinator.send_task("slave", "learner_learn_task", {})
    clock.ahead += 29
    slave.poll(runs_jobs=False)
    clock.ahead += 2
    with pytest.raises(TaskFail, match="did not answer the task learner_get_data_task within 30 s"):
        late.result(5.0)
    assert not learn.done()
    slave.leave()
    with pytest.raises(TaskFail, match=r"learn_task of slave .* not answered: its slave left"):
        learn.result(5.0)


def test_a_task_after_the_end_of_the_coordinator_is_cancelled(site: Site, slave: Session) -> None:
    slave.poll(runs_jobs=False)
    before = site.coordinator.send_task("slave", "resource", {})
    site.coordinator.close()
    after = site.coordinator.send_task("slave", "resource", {})
    assert before.cancelled()
    assert after.cancelled()


def test_tasks_of_a_program_do_not_keep_a_job_from_a_slave(site: Site, slave: Session) -> None:
    slave.poll(runs_jobs=False)
    for _ in range(64):
        site.coordinator.send_task("slave", "resource", {})
    with pytest.raises(InvalidInputError, match="slave has 64 unanswered tasks, the maximum"):
        site.coordinator.send_task("slave", "resource", {})
    job = site.jobs.submit("job", make_config())
    names: list[str] = []
    while "learner_start_task" not in names:
        names += [task.name for task in slave.poll(wait_ms=5000)]
    slave.poll((job, 1))
    site.jobs.cancel(job)
    (task,) = slave.poll((job, 1))
    assert task.name == "learner_close_task"


def test_large_tasks_come_in_several_replies(site: Site, slave: Session) -> None:
    slave.poll(runs_jobs=False)
    for number in range(10):
        site.coordinator.send_task("slave", "resource", {"n": number, "x": "x" * 500_000})
    numbers: list[int] = []
    while len(numbers) < 10:
        tasks = slave.poll(runs_jobs=False, wait_ms=5000)
        assert tasks
        numbers += [json.loads(task.payload)["n"] for task in tasks]
    assert numbers == list(range(10))


def test_a_result_that_cannot_be_read_fails_its_task(site: Site, slave: Session) -> None:
    slave.poll(runs_jobs=False)
    for payload, problem in (
        ("[]", "expected a JSON object"),
        ('"' + "x" * MAX_PAYLOAD_BYTES + '"', "payload: .* bytes, expected at most"),
    ):
        result = site.coordinator.send_task("slave", "resource", {})
        (task,) = slave.poll(runs_jobs=False)
        with pytest.raises(InvalidInputError, match=problem):
            slave.answer(task, payload=payload)
        with pytest.raises(TaskFail, match=r"a result that is not valid: results.payload: "):
            result.result(5.0)


def _refuse_with(result: Any) -> Callable[[], Any]:
    def refuse() -> Any:
        raise TaskFail({"message": "no GPU", "loss": result}, "no GPU")

    return refuse


def test_a_result_that_cannot_be_sent_fails_its_task_and_the_slave_continues(site: Site) -> None:
    size = r"\d{7} bytes, expected at most 524288; send less"
    kind = r"cannot be sent as JSON \(TypeError: Object of type float32 .*use only JSON types"
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: {"priority_info": [1 / 3] * 60_000}, f"^result of the task resource: {size}"),
        (_refuse_with("x" * MAX_MESSAGE_BYTES), f"^no GPU; result of the task resource: {size}"),
        (lambda: {"loss": np.float32(1.0)}, f"^result of the task resource: {kind}"),
        (_refuse_with(np.float32(1.0)), f"^no GPU; result of the task resource: {kind}"),
        (lambda: [][0], "^IndexError: list index out of range$"),
    ]
    callbacks: dict[str, Callable[[], Any]] = {}
    with LearnerSlave(site.address, "slave", callbacks):
        wait_until(lambda: site.jobs.list()[1], "the slave")
        for callback, problem in cases:
            callbacks["deal_with_resource"] = callback
            with pytest.raises(TaskFail, match=problem):
                site.coordinator.send_task("slave", "resource", {}).result(5.0)
        callbacks["deal_with_resource"] = lambda: {"gpu": 0}
        assert site.coordinator.send_task("slave", "resource", {}).result(5.0) == {"gpu": 0}


def test_a_report_that_is_retried_is_logged_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problems = [ServerUnavailableError("the disk is full")] * 2

    def report(request: pb.ReportRequest) -> bool:
        if problems:
            raise problems.pop()
        return True

    monkeypatch.setattr(site.coordinator, "report", report)
    sender = LearnerSlave(site.address, "slave", {})
    assert sender.report_end(Attempt(1, 1), pb.Ended.DONE, "it ended", "")
    (line,) = caplog.messages
    assert line.startswith("a report was not acknowledged, retrying: the coordinator at localhost:")
    assert line.endswith(": the disk is full")
    sender.close()


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(site: Site) -> None:
    most = "x" * MAX_MESSAGE_BYTES
    with CoordinatorLink(site.address) as link:
        with pytest.raises(
            InvalidInputError,
            match=r"^SubmitRequest: a message of 1048582 bytes, expected at most 1048576; shorten",
        ):
            link.call(link.stub.Submit, pb.SubmitRequest(format=FORMAT, name=most))
    with pytest.raises(
        InvalidInputError, match=r"^config: .* bytes, expected at most 65536; short"
    ):
        site.jobs.submit("job", {**make_config(), "other": most})


def test_spaces_around_an_address_are_ignored(site: Site) -> None:
    with JobsClient(f" {site.address}\n", patience_sec=0.0) as jobs:
        assert jobs.list() == ([], [])


def test_a_version_whose_file_became_shorter_is_named_so(
    site: Site, slave: Session, tmp_path: Path
) -> None:
    site.jobs.submit("job", make_config())
    attempt = Attempt(*slave.take_job())
    file = tmp_path / "run" / "file"
    file.parent.mkdir()
    file.write_bytes(b"0123456789")

    def make_parts(header: Any) -> Iterator[Any]:
        parts = pack_version(file.parent, header)
        yield next(parts)
        file.write_bytes(b"0")
        yield from parts

    sender = LearnerSlave(site.address, "slave", {})
    with pytest.raises(InvalidInputError, match="shrank while it was being read"):
        sender.send_version(attempt, 1, make_parts)
    sender.close()


def test_a_start_task_of_another_kind_starts_no_job_of_the_queue() -> None:
    for payload in (
        {},
        {"job": "mine", "attempt": 1},
        {"job": 1},
        {"job": -1, "attempt": 1},
        {"job": 1, "attempt": 1 << 32},
    ):
        task = pb.Task(name="learner_start_task", payload=json.dumps(payload))
        assert _find_attempt(task) is None
    task = pb.Task(name="learner_start_task", payload='{"job": 3, "attempt": 2}')
    assert _find_attempt(task) == Attempt(3, 2)


def test_a_start_task_that_is_dropped_does_not_count_as_running() -> None:
    sender = LearnerSlave("localhost:1", "slave", {})
    for number in range(65):  # the last one does not fit
        sender._queue_task(
            pb.Task(id=number, name="learner_start_task", payload='{"job": 1, "attempt": 1}')
        )
    assert sender._starting is None
    sender.ended.set()  # there is no coordinator to leave
    sender.close()


def test_an_answer_that_cannot_be_processed_ends_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender = LearnerSlave("localhost:1", "slave", {})

    def fail() -> None:
        sender._queue_task(pb.Task(id=1, name="learner_start_task", payload="[]"))

    monkeypatch.setattr(sender, "_poll", fail)
    sender.start()
    assert sender.ended.wait(10)
    assert isinstance(sender.error, ProtocolError)
    assert "at localhost:1 failed (AttributeError" in str(sender.error)
    sender.close()


@pytest.mark.parametrize("method", ["Submit", "List", "Cancel", "Poll", "Report", "Leave"])
def test_a_newer_format_is_refused_by_number(site: Site, method: str) -> None:
    kinds = {"Submit": pb.SubmitRequest, "List": pb.ListRequest, "Cancel": pb.CancelRequest}
    kinds |= {"Poll": pb.PollRequest, "Report": pb.ReportRequest, "Leave": pb.LeaveRequest}
    with CoordinatorLink(site.address) as link:
        with pytest.raises(InvalidInputError, match="format: 3, but the coordinator speaks format"):
            link.call(getattr(link.stub, method), kinds[method](format=3))
        with pytest.raises(InvalidInputError, match="format: 3"):
            link.call(link.stub.SendVersion, iter([pb.VersionPart(header={"format": 3})]))
        with pytest.raises(InvalidInputError, match="format: 3"):
            list(link.stream(link.stub.GetVersion, pb.GetVersionRequest(format=3), 5.0))


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "key: 'short'": ("Submit", {"key": "short", "name": "x", "config": json.dumps(make_config())}),
    "name: '../x'": (
        "Submit",
        {"key": "x" * 16, "name": "../x", "config": json.dumps(make_config())},
    ),
    "config: '{' is not valid JSON": ("Submit", {"key": "x" * 16, "name": "x", "config": "{"}),
    "config: 70000 bytes": ("Submit", {"config": "x" * 70_000}),
    "run_dir: a job cannot": (
        "Submit",
        {"key": "x" * 16, "name": "x", "config": json.dumps({**make_config(), "run_dir": "/x"})},
    ),
    "slave: ''": ("Poll", {}),
    "slave: '../../etc'": ("Poll", {"slave": "../../etc"}),
    r"slave: '\\x1b\[2J'": ("Report", {"slave": "\x1b[2J", "ended": {"outcome": "DONE"}}),
    "algorithms: '/etc'": ("Poll", {"slave": "x", "algorithms": ["/etc"]}),
    "algorithms: 1001 names": ("Poll", {"slave": "x", "algorithms": ["a"] * 1001}),
    "progress: 5000 bytes": (
        "Poll",
        {"slave": "x", "sequence": 1, "progress": "x" * 5000, "running": {"job": 1}},
    ),
    "tail: 20000 bytes": (
        "Report",
        {"slave": "x", "ended": {"outcome": "DONE", "tail": "x" * 20_000}},
    ),
    "outcome: 0 is unknown": ("Report", {"slave": "x", "ended": {"reason": "x"}}),
    "outcome: 77 is unknown": ("Report", {"slave": "x", "ended": {"outcome": 77}}),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_wrong_request_is_refused_by_field(site: Site, problem: str) -> None:
    method, fields = WRONG[problem]
    kind = {"Submit": pb.SubmitRequest, "Poll": pb.PollRequest, "Report": pb.ReportRequest}[method]
    with CoordinatorLink(site.address) as link:
        with pytest.raises(InvalidInputError, match=problem):
            link.call(getattr(link.stub, method), kind(format=FORMAT, **fields))
    assert site.jobs.list()[0] == []


def test_a_slaves_name_is_checked_in_every_call_and_is_in_no_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    own: dict[str, Any] = {"format": FORMAT, "slave": "x\nattempt 1 of job 1: DONE"}
    with caplog.at_level("INFO"), CoordinatorLink(site.address) as link:
        for call in (
            lambda: link.call(link.stub.Poll, pb.PollRequest(**own)),
            lambda: link.call(link.stub.Report, pb.ReportRequest(**own, ended={"outcome": "DONE"})),
            lambda: link.call(link.stub.Leave, pb.LeaveRequest(**own)),
            lambda: link.call(link.stub.SendVersion, iter([pb.VersionPart(header=own)])),
            lambda: list(link.stream(link.stub.GetVersion, pb.GetVersionRequest(**own), 5.0)),
        ):
            with pytest.raises(InvalidInputError, match=r"slave: 'x\\nattempt 1 .*, expected 1 to"):
                call()
    assert "attempt 1" not in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"algorithms": ["/etc"]}, {"environments": ["/etc"]}, {"progress": "x" * 5000}]
)
def test_a_poll_that_is_refused_has_no_effect(site: Site, wrong: dict[str, Any]) -> None:
    refused = Session(site.address, incarnation=1)
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        refused.poll((1, 1), **wrong)
    assert site.jobs.list()[1] == []
    other = Session(site.address, incarnation=2)  # the name is free
    other.poll()
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        other.poll((1, 1), **wrong)
    (slave,) = site.jobs.list()[1]
    assert not slave.HasField("running")
    refused.close()
    other.close()


def test_a_submission_whose_reply_was_lost_is_one_job(site: Site) -> None:
    request = pb.SubmitRequest(
        format=FORMAT, key="k" * 16, name="job", config=json.dumps(make_config())
    )
    with CoordinatorLink(site.address) as link:
        numbers = {link.call(link.stub.Submit, request).job for _ in range(3)}
    assert len(numbers) == len(site.jobs.list()[0]) == 1


def test_long_lists_come_in_pages(site: Site) -> None:
    for number in range(401):
        site.coordinator.submit(f"{number:016}", "job", make_config())
    assert [job.job for job in site.jobs.list()[0]] == list(range(1, 402))
    with CoordinatorLink(site.address) as link:
        reply = link.call(link.stub.List, pb.ListRequest(format=FORMAT))
    assert (len(reply.jobs), reply.more) == (200, True)


def test_a_full_queue_says_so(tmp_path: Path) -> None:
    with Site(tmp_path, max_jobs=1) as site:
        site.jobs.submit("job", make_config())
        with JobsClient(site.address, patience_sec=0.0) as jobs:
            with pytest.raises(
                ServerUnavailableError, match=r"wait or run: 1, and .* accepts at most 1 "
            ):
                jobs.submit("job", make_config())


def test_the_folder_belongs_to_one_coordinator(site: Site) -> None:
    with pytest.raises(SnapshotError, match=r"in use by another coordinator \(pid"):
        Site(site.folder)


def test_something_else_at_the_address_is_named(tmp_path: Path) -> None:
    from relaax_like.bridge.metrics_servicer import create_metrics_server
    from relaax_like.config.address import Address
    from relaax_like.core.metrics import NullMetrics

    server, port = create_metrics_server(Address("127.0.0.1", 0), NullMetrics())  # type: ignore[arg-type]
    server.start()
    with JobsClient(f"localhost:{port}") as jobs:
        with pytest.raises(ProtocolError, match=r"is not a coordinator .*; use the address of"):
            jobs.list()
    server.stop(None)


def test_operators_and_slaves_have_roles_of_their_own_and_tls(tmp_path: Path) -> None:
    """covers D24"""
    from relaax_like.wire.tls import ServerTls

    authority = Authority(tmp_path / "ca")
    tokens = write_private(
        tmp_path / "tokens", f"agent {AGENT}\nlearner {LEARNER}\noperator {OPERATOR}\n"
    )
    tls = ServerTls(cert=authority.cert, key=authority.key, ca=authority.ca)
    operator = ClientSecurity(token=OPERATOR, tls_ca=authority.ca)
    security = ServerSecurity(tls=tls, tokens=Tokens(tokens))
    with Site(tmp_path / "c", security, operator) as site:
        site.jobs.submit("job", make_config())
        slave = Session(site.address, security=ClientSecurity(token=LEARNER, tls_ca=authority.ca))
        attempt = slave.take_job()
        assert slave.send_version(attempt) == 1
        for method, request in (
            ("Submit", pb.SubmitRequest()),
            ("List", pb.ListRequest()),
            ("Cancel", pb.CancelRequest()),
        ):
            with pytest.raises(NotAllowedError, match="has role learner, but role operator"):
                slave.link.call(getattr(slave.link.stub, method), request)
        assert slave.end(attempt)
        slave.close()
        for token, problem in ((AGENT, "has role agent, but role learner"), ("", "no token")):
            session = Session(
                site.address, security=ClientSecurity(token=token, tls_ca=authority.ca)
            )
            with pytest.raises(NotAllowedError, match=problem):
                session.poll()
            with pytest.raises(NotAllowedError, match=problem):
                session.send_version((1, 1))
            session.close()
        plain = Session(site.address)
        with pytest.raises(NotAllowedError, match="TLS"):
            plain.poll()
        plain.close()
