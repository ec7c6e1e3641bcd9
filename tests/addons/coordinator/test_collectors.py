"""Collectors: slaves that play for a job that another slave learns. covers D23, D26"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import wait_until
from support.jobs import Clock, Session, Site, make_config

from relaax_like.addons.coordinator.coordinator import SILENCE_SEC, STALL_SEC
from relaax_like.addons.coordinator.tasks import RefusedAttemptError
from relaax_like.v1 import coordinator_pb2 as pb
from relaax_like.wire.errors import InvalidInputError

LONG = 100_000  # steps that no test waits for
ADDRESS = "localhost:17001"
HERE: dict[str, Any] = {"machine": "one"}
START, CLOSE = "collector_start_task", "collector_close_task"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def site(tmp_path: Path, clock: Clock) -> Iterator[Site]:
    with Site(tmp_path / "coordinator", clock=clock) as site:
        yield site


class Slaves:
    """Sessions by name, each with the claims of its polls, and what it runs."""

    def __init__(self, site: Site):
        self.site = site
        self.sessions: dict[str, Session] = {}
        self.claims: dict[str, dict[str, Any]] = {}
        self.running: dict[str, tuple[int, ...] | None] = {}
        self.waiting: dict[str, list[pb.Task]] = {}  # received, but not taken yet

    def add(self, name: str, **claims: Any) -> None:
        """Connects a free slave, which perhaps gets a task at once."""
        self.sessions[name] = Session(self.site.address, name)
        self.claims[name] = claims or HERE
        self.running[name] = None
        self.waiting[name] = self.poll(name)

    def poll(self, name: str, **fields: Any) -> list[pb.Task]:
        """Returns the tasks of a slave that are not taken yet."""
        came = self.sessions[name].poll(self.running[name], **{**self.claims[name], **fields})
        self.waiting[name] = self.waiting.get(name, []) + came
        return self.waiting[name]

    def take(self, name: str, task: str, answer: str = "{}") -> dict[str, Any]:
        """Takes a task of this name, which the slave runs from now on, or ends."""
        tasks = wait_until(lambda: self.poll(name), f"a task for {name}")
        assert [one.name for one in tasks] == [task]
        self.waiting[name] = []
        payload = dict(json.loads(tasks[0].payload))
        self.sessions[name].answer(tasks[0], payload=answer)
        keys = [key for key in ("job", "attempt", "collector") if key in payload]
        self.running[name] = None if task == CLOSE else tuple(payload[key] for key in keys)
        return payload

    def learn(self, name: str, address: str = ADDRESS) -> int:
        """Takes a job, whose collectors connect to the address; returns its attempt."""
        answer = json.dumps({"address": address})
        return int(self.take(name, "learner_start_task", answer)["attempt"])

    def end(self, name: str, outcome: str, **fields: Any) -> bool:
        """Reports the end of what the slave runs."""
        running = self.running[name]
        assert running is not None
        self.running[name] = None
        return self.sessions[name].end(running, outcome, **fields)


@pytest.fixture
def slaves(site: Site) -> Iterator[Slaves]:
    slaves = Slaves(site)
    yield slaves
    for session in slaves.sessions.values():
        session.close()


def submit(site: Site, collectors: int, **config: Any) -> int:
    return site.jobs.submit("job", {**make_config(LONG), **config}, collectors)


def test_a_job_waits_for_two_slaves_and_its_collectors_learn_its_address(
    site: Site, slaves: Slaves
) -> None:
    slaves.add("a")
    job = submit(site, 2)
    assert not slaves.poll("a")
    assert "no two slaves" in site.get(job).reason
    slaves.add("b")
    answer = {"address": ADDRESS, "parameter_server": "localhost:17002"}
    slaves.take("a", "learner_start_task", json.dumps(answer))
    started = slaves.take("b", START)
    assert started == {
        "job": job,
        "attempt": 1,
        "collector": 1,
        "config": {**make_config(LONG)},
        **answer,
    }
    assert (site.get(job).collectors, site.get(job).collecting) == (2, 1)
    slaves.add("c")
    assert slaves.take("c", START)["collector"] == 2
    slaves.add("d")
    assert not slaves.poll("d")
    running = {one.name: one.running.collector for one in site.jobs.list()[1] if one.running.job}
    assert running == {"a": 0, "b": 1, "c": 2}


def test_a_job_without_collectors_does_not_take_the_last_slave_from_one_that_has_none(
    site: Site, slaves: Slaves
) -> None:
    job = submit(site, 1)
    slaves.add("a")
    slaves.add("b")
    slaves.learn("a", "")  # its servers are not there yet
    other = site.jobs.submit("plain", make_config(LONG))
    assert not slaves.poll("b")
    slaves.poll("a", address=ADDRESS)
    assert slaves.take("b", START)["job"] == job
    slaves.add("c")
    assert slaves.take("c", "learner_start_task")["job"] == other


@pytest.mark.parametrize(
    ("learner", "other", "reaches"),
    [
        (HERE, HERE, True),
        (HERE, {"machine": "two"}, False),
        ({"machine": ""}, {"machine": ""}, False),
        ({"machine": "one", "host": "10.0.0.1"}, {"machine": "two", "has_security": True}, True),
        ({"machine": "one", "host": "10.0.0.1"}, {"machine": "two"}, False),
    ],
)
def test_collectors_are_on_the_same_machine_or_have_token_and_certificates(
    site: Site, slaves: Slaves, learner: dict[str, Any], other: dict[str, Any], reaches: bool
) -> None:
    submit(site, 1)
    # Each is a learner only if the other one reaches it, so the order does not matter.
    slaves.add("a", **learner)
    slaves.add("b", **{"has_security": False, **other})
    if not reaches:
        assert not slaves.poll("a")
        return
    host = learner.get("host", "localhost")
    slaves.learn("a", f"{host}:17001")
    assert slaves.take("b", START)["address"] == f"{host}:17001"


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"address": "10.0.0.9:1"}, "address"),
        ({"address": "10.0.0.9:1", "host": "10.0.0.1"}, "address"),
        ({"address": "localhost:1", "host": "10.0.0.1"}, "address"),
        ({"address": "localhost:1", "parameter_server": "10.0.0.9:1"}, "parameter_server"),
        ({"address": "nonsense"}, "'nonsense'"),
        ({"host": "x" * 300}, "host"),
        ({"machine": "x" * 300}, "machine"),
    ],
)
def test_a_slave_cannot_send_collectors_to_the_address_of_another(
    site: Site, fields: dict[str, Any], refused: str
) -> None:
    session = Session(site.address, "a")
    with pytest.raises(InvalidInputError, match=f"^{refused}"):
        session.poll(**fields)
    session.close()


def test_collectors_are_added_and_removed_while_the_job_runs(site: Site, slaves: Slaves) -> None:
    job = submit(site, 1)
    for name in ("a", "b", "c"):
        slaves.add(name)
    slaves.learn("a")
    slaves.take("b", START)
    assert not slaves.poll("c")
    site.jobs.set_collectors(job, 2)
    assert slaves.take("c", START)["collector"] == 2
    site.jobs.set_collectors(job, 1)
    assert slaves.running["c"] == (job, 1, 2)
    running = slaves.running["c"]
    slaves.take("c", CLOSE)
    slaves.running["c"] = running  # until its episode has ended
    assert not slaves.poll("c")
    assert slaves.end("c", "STOPPED") is False  # it is no collector of the job any more
    assert not slaves.poll("c")
    assert not slaves.poll("b")
    assert site.get_state(job) == "running"


def test_numbers_of_collectors_are_refused_where_they_enter(site: Site, slaves: Slaves) -> None:
    for number in (-1, 256):
        with pytest.raises(InvalidInputError, match=r"^collectors"):
            submit(site, number)
    with pytest.raises(InvalidInputError, match=r"^learner\.workers"):
        submit(site, 1, learner={"workers": 2})
    plain, ended = submit(site, 0), submit(site, 1)
    with pytest.raises(RefusedAttemptError, match="plays in its own process"):
        site.jobs.set_collectors(plain, 1)
    site.jobs.cancel(ended)
    with pytest.raises(RefusedAttemptError, match="is cancelled"):
        site.jobs.set_collectors(ended, 2)
    with pytest.raises(InvalidInputError, match=r"^collectors"):
        site.jobs.set_collectors(ended, 0)


@pytest.mark.parametrize("how", ["leaves", "is silent", "restarts"])
def test_a_lost_collector_is_replaced_and_costs_the_job_nothing(
    site: Site, slaves: Slaves, clock: Clock, how: str
) -> None:
    job = submit(site, 1)
    for name in ("a", "b", "c"):
        slaves.add(name)
    slaves.learn("a")
    slaves.take("b", START)
    if how == "leaves":
        slaves.sessions["b"].leave()
    elif how == "restarts":
        slaves.running["b"] = None
        slaves.poll("b")
    else:
        clock.ahead += SILENCE_SEC - 5
        slaves.poll("a"), slaves.poll("c")
        clock.ahead += 10
    slaves.take("b" if how == "restarts" else "c", START)
    slaves.poll("a")
    assert (site.get(job).attempts, site.get_state(job)) == (1, "running")


def test_a_lost_learner_is_queued_again_and_its_collectors_follow(
    site: Site, slaves: Slaves
) -> None:
    job = submit(site, 1)
    for name in ("a", "b", "c"):
        slaves.add(name)
    slaves.learn("a")
    slaves.take("b", START)
    slaves.sessions["a"].leave()
    # The collector is not wanted any more; its slave and the free one do the next attempt.
    slaves.take("b", CLOSE)
    assert slaves.learn("b", "localhost:17002") == 2
    started = slaves.take("c", START)
    assert (started["job"], started["attempt"], started["address"]) == (job, 2, "localhost:17002")
    info = site.get(job)
    assert (info.attempts, info.collecting) == (2, 1)


def test_a_restarted_coordinator_keeps_learner_and_collectors(tmp_path: Path, clock: Clock) -> None:
    with Site(tmp_path / "coordinator", clock=clock) as site:
        slaves = Slaves(site)
        job = submit(site, 1)
        for name in ("a", "b"):
            slaves.add(name)
        slaves.learn("a")
        slaves.take("b", START)
        port = site.port
    with Site(tmp_path / "coordinator", clock=clock, port=port) as site:
        for name in ("b", "a"):
            assert not wait_until(lambda name=name: [slaves.poll(name)], "an answer")[0]
        assert not slaves.poll("b")
        clock.ahead += SILENCE_SEC - 1
        slaves.poll("a", address=ADDRESS), slaves.poll("b")
        info = site.get(job)
        assert (info.attempts, info.collecting, site.get_state(job)) == (1, 1, "running")
        slaves.add("c")
        assert not slaves.poll("c")
    for session in slaves.sessions.values():
        session.close()


def test_one_of_two_slaves_that_say_they_are_the_same_collector_is_closed(
    site: Site, slaves: Slaves
) -> None:
    job = submit(site, 1)
    for name in ("a", "b", "c"):
        slaves.add(name)
    slaves.learn("a")
    slaves.take("b", START)
    slaves.running["c"] = (job, 1, 1)
    slaves.take("c", CLOSE)
    assert not slaves.poll("c")
    assert not slaves.poll("b")
    assert site.get(job).collecting == 1


def test_the_address_of_the_attempt_before_is_not_that_of_the_next(
    site: Site, slaves: Slaves
) -> None:
    first, second = submit(site, 1), submit(site, 1)
    for name in ("a", "b"):
        slaves.add(name)
    slaves.learn("a", "localhost:17001")
    slaves.take("b", START)
    before = slaves.running["a"]
    assert slaves.end("a", "DONE")
    assert slaves.take("b", CLOSE)["at_once"]
    slaves.end("b", "STOPPED") if slaves.running["b"] else slaves.poll("b")
    assert site.get_state(first) == "done"
    # A poll that was sent before the end of the first job arrives.
    slaves.running["a"] = before
    slaves.poll("a", address="localhost:17001")
    slaves.running["a"] = None
    task = next(one for one in slaves.poll("a") if one.name == "learner_start_task")
    assert json.loads(task.payload)["job"] == second
    slaves.waiting["a"] = []
    slaves.sessions["a"].answer(task, payload=json.dumps({"address": "localhost:17002"}))
    slaves.running["a"] = (second, 1)
    assert slaves.take("b", START)["address"] == "localhost:17002"


def test_a_learner_that_waits_for_collectors_burns_no_budget(
    site: Site, slaves: Slaves, clock: Clock
) -> None:
    job = submit(site, 1)
    for name in ("a", "b"):
        slaves.add(name)
    slaves.learn("a")
    slaves.take("b", START)
    slaves.sessions["b"].leave()
    for _ in range(2 * int(STALL_SEC / 20)):
        clock.ahead += 20
        slaves.poll("a", address=ADDRESS)
    assert (site.get(job).attempts, site.get_state(job)) == (1, "running")
    slaves.add("c")
    slaves.take("c", START)
    for _ in range(int(STALL_SEC / 20) + 1):  # now it has one, and makes no progress
        clock.ahead += 20
        slaves.poll("c"), slaves.poll("a", address=ADDRESS)
    wait_until(lambda: site.get(job).reason.startswith("no progress"), "the end of the attempt")


def test_collectors_that_fail_again_and_again_fail_the_attempt(
    site: Site, slaves: Slaves, clock: Clock
) -> None:
    job = submit(site, 1)
    for name in ("a", "b"):
        slaves.add(name)
    slaves.learn("a")
    for count in range(1, 6):
        slaves.take("b", START)
        assert slaves.end("b", "FAILED", tail="first\nno such environment")
        if count == 2:
            slaves.poll("a", address=ADDRESS, progress='{"step": 7}')  # counted from 1 again
        if count == 5:
            assert "no such environment" in site.get(job).reason
            assert not slaves.poll("b")  # not at once
        clock.ahead += 11
        slaves.poll("a", address=ADDRESS)
    assert site.get(job).attempts == 1
    for _ in range(2):
        slaves.take("b", START)
        slaves.end("b", "FAILED")
        clock.ahead += 11
        slaves.poll("b"), slaves.poll("a", address=ADDRESS)
    wait_until(lambda: "5 of its collectors failed" in site.get(job).reason, "the end")
    slaves.take("a", "learner_close_task")


# With processes.


def test_slaves_play_for_another_and_the_learner_counts_each_step_once(
    site: Site, tmp_path: Path
) -> None:
    with (
        site.learner(tmp_path / "a", "a"),
        site.learner(tmp_path / "b", "b"),
        site.learner(tmp_path / "c", "c"),
    ):
        job = site.jobs.submit("job", make_config(60), 2)
        done = site.wait_state(job, "done")
    assert (done.reason, done.step) == ("60 steps", 60)
    played = [json.loads(line) for line in Path(done.folder, "played.txt").read_text().splitlines()]
    assert len({one["collector"] for one in played}) == 2
    assert len({(one["collector"], one["number"]) for one in played}) == len(played) == 60


def test_a_removed_collector_ends_its_episode_and_its_slave_is_free(
    site: Site, tmp_path: Path
) -> None:
    with (
        site.learner(tmp_path / "a", "a"),
        site.learner(tmp_path / "b", "b"),
        site.learner(tmp_path / "c", "c"),
    ):
        job = site.jobs.submit("job", make_config(LONG), 2)
        wait_until(lambda: site.get(job).collecting == 2 and site.get(job).step, "two collectors")
        site.jobs.set_collectors(job, 1)
        wait_until(
            lambda: sum(not one.running.job for one in site.jobs.list()[1]) == 1, "a free slave"
        )
        step = site.get(job).step
        wait_until(lambda: site.get(job).step > step, "progress with one collector")
        played = Path(site.get(job).folder, "played.txt").read_text().splitlines()
        ends = {json.loads(line)["collector"]: json.loads(line)["number"] for line in played}
        assert any(number % 10 == 0 for number in ends.values())  # the last of an episode
        site.jobs.cancel(job)


def test_a_killed_collector_process_is_started_again(site: Site, tmp_path: Path) -> None:
    import psutil

    with site.learner(tmp_path / "a", "a"), site.learner(tmp_path / "b", "b"):
        job = site.jobs.submit("job", make_config(LONG), 1)
        wait_until(lambda: site.get(job).step, "progress")
        (player,) = [
            child
            for child in psutil.Process().children(recursive=True)
            if "collect" in child.cmdline()
        ]
        player.send_signal(signal.SIGKILL)
        wait_until(lambda: "a collector failed" in site.get(job).reason, "the failure")
        step = site.get(job).step
        wait_until(lambda: site.get(job).step > step + 10, "progress with the next one")
        assert site.get(job).attempts == 1
        site.jobs.cancel(job)
