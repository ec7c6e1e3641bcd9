"""DI-engine's names: a comm learner that a coordinator drives over its port."""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cluster import wait_until
from support.jobs import Site
from support.regression import Regression, make_rows

from relaax_like.addons.coordinator.comm_hooks import SendLearnInfoHook, SendPolicyHook
from relaax_like.addons.coordinator.comm_learner import (
    BaseCommLearner,
    RemoteCommLearner,
    run_learner_task,
)
from relaax_like.addons.coordinator.slave import LearnerSlave, Slave
from relaax_like.addons.coordinator.tasks import TaskFail
from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.hooks import LearnerHook
from relaax_like.wire.array_file import read_arrays
from relaax_like.wire.errors import ConfigError

BATCH = 4
ROWS = make_rows(1, 64)


def make_info(iterations: int = 3, **config: Any) -> dict[str, Any]:
    learner = {"max_iterations": iterations, "dataloader": {"batch_size": BATCH}, **config}
    return {"learner_cfg": learner, "policy": {"kind": 1}, "task_id": "t1", "buffer_id": "b1"}


def sample(batch_size: int) -> list[dict[str, Any]]:
    assert batch_size == BATCH
    return [{**row, "x": row["x"].tolist()} for row in ROWS[:batch_size]]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "coordinator") as site:
        yield site


@pytest.fixture
def comm(site: Site, tmp_path: Path) -> Iterator[RemoteCommLearner]:
    comm = RemoteCommLearner(
        {"address": site.address, "name": "comm"},
        lambda config: Regression(),
        exp_dir=tmp_path / "exp",
    )
    comm.start()
    wait_until(lambda: site.jobs.list()[1], "the slave")
    yield comm
    comm.close()


# BaseCommLearner.


class ListCommLearner(BaseCommLearner):
    """Keeps what it is sent."""

    def __init__(self, tmp_path: Path, **options: Any):
        self.policies: list[Mapping[str, Any]] = []
        self.infos: list[Mapping[str, Any]] = []
        super().__init__(
            {"use_distributed": options.get("world_size", 1) > 1},
            self.create_policy,
            exp_dir=tmp_path,
            **options,
        )

    def create_policy(self, config: Mapping[str, Any]) -> Any:
        self.policy_config = config

        class Modes:
            learn_mode = Regression()

        return Modes()

    def send_policy(self, state_dict: Mapping[str, Any]) -> None:
        self.policies.append(state_dict)

    def get_data(self, batch_size: int) -> Any:
        return ROWS[:batch_size]

    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        self.infos.append(learn_info)

    @property
    def hooks4call(self) -> Sequence[LearnerHook]:
        return [
            SendPolicyHook("send_policy", 100, position="before_run"),
            SendPolicyHook("send_policy", 100, position="after_iter"),
            SendLearnInfoHook("send_learn_info", 110, position="after_iter", freq=1000),
            SendLearnInfoHook("send_learn_info", 110, position="after_run", freq=1000),
        ]


def test_a_created_learner_has_the_methods_a_loader_and_the_policy_in_learn_mode(
    tmp_path: Path,
) -> None:
    """covers D13"""
    comm = ListCommLearner(tmp_path)
    assert comm._end_flag
    comm.start()
    assert not comm._end_flag
    learner = comm._create_learner(make_info())
    assert isinstance(learner, BaseLearner)
    for name in ("get_data", "send_policy", "send_learn_info"):
        assert getattr(learner, name) == getattr(comm, name)
    assert type(learner.policy) is Regression
    assert comm.policy_config == {"kind": 1}
    learner.start()  # it has a data loader
    assert learner.last_iter == 3
    learner.close()
    comm.close()
    assert comm._end_flag


def test_the_interface_cannot_be_used_without_its_methods(tmp_path: Path) -> None:
    """covers D13"""
    with pytest.raises(TypeError, match=r"get_data.*hooks4call.*send_learn_info.*send_policy"):
        BaseCommLearner({}, lambda config: None, exp_dir=tmp_path)  # type: ignore[abstract]


@pytest.mark.parametrize("rank", [0, 1])
def test_policies_go_before_the_run_and_after_each_iteration_and_info_every_time(
    tmp_path: Path, rank: int
) -> None:
    """covers D22"""
    comm = ListCommLearner(tmp_path, rank=rank, world_size=2)
    learner = comm._create_learner(make_info(hook={"log_reduce_after_iter": False}))
    for hook in comm.hooks4call:
        learner.register_hook(hook)
    learner.start()
    learner.close()
    assert [policy["iter"] for policy in comm.policies] == ([0, 1, 2, 3] if rank == 0 else [])
    if rank == 0:
        assert set(comm.policies[0]["state_dict"]) == set(learner.policy.state_dict())
    # freq is 1000: it only thins the debug log.
    assert [(info["last_iter"], info["finished"]) for info in comm.infos] == [
        (0, False),
        (1, False),
        (2, False),
        (3, True),
    ]


@pytest.mark.parametrize("freq", [0, True, "1"])
def test_a_wrong_freq_is_refused(freq: Any) -> None:
    with pytest.raises(ConfigError, match="send_learn_info: freq is"):
        SendLearnInfoHook("send_learn_info", 1, position="after_iter", freq=freq)


# Over the port.


def test_a_resident_learner_does_several_tasks_one_after_another(
    site: Site, comm: RemoteCommLearner, tmp_path: Path
) -> None:
    """covers D14, D15, D16, D17, D22"""
    for iterations in (3, 2):
        infos: list[Mapping[str, Any]] = []
        last = run_learner_task(
            site.coordinator, "comm", make_info(iterations), sample, infos.append
        )
        assert last["finished"]
        assert last["last_iter"] == iterations
        assert [info["finished"] for info in infos] == [False] * (iterations - 1) + [True]
        saved = read_arrays(tmp_path / "exp" / "policy.npz", "policy 1")
        assert saved["relaax_iter"] == iterations
        # It is closed, and waits for the next start task.
        assert comm._learner is None
        with pytest.raises(TaskFail, match="there is no learner"):
            site.coordinator.send_task("comm", "learner_get_data_task", {}).result(10)


def test_the_five_callbacks_and_their_results(site: Site, comm: RemoteCommLearner) -> None:
    """covers D14, D15, D21"""

    def send(name: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return site.coordinator.send_task("comm", name, payload or {}).result(20)

    assert send("resource") == {"gpu": len(list(Path("/dev").glob("nvidia[0-9]*")))}
    assert send("learner_start_task", make_info()) == {"message": "learner task has started"}
    names = {"task_id": "t1", "buffer_id": "b1"}
    demand = send("learner_get_data_task")
    assert demand == {**names, "batch_size": BATCH, "cur_learner_iter": 0}
    reply = send("learner_learn_task", {"data": sample(BATCH)})
    assert reply.pop("info")["last_iter"] == 0
    assert reply == names
    assert send("learner_close_task") == {"message": "learner task has closed"}
    with pytest.raises(TaskFail, match="unknown task 'learner_dance_task', expected one of"):
        send("learner_dance_task")
    with pytest.raises(TaskFail, match="there is no learner"):
        send("learner_learn_task", {"data": sample(BATCH)})


def test_get_data_waits_in_queues_of_length_one(site: Site, comm: RemoteCommLearner) -> None:
    """covers D16"""
    queues = (comm._data_demand_queue, comm._data_result_queue, comm._learn_info_queue)
    assert [one.maxsize for one in queues] == [1, 1, 1]
    assert comm.get_data(7) is None  # it has put its demand, and nothing has come
    assert comm.get_data(7) is None
    assert comm._data_demand_queue.get_nowait() == {"batch_size": 7, "cur_learner_iter": 0}
    assert comm._data_demand_queue.empty()
    came: list[Any] = []

    def get() -> None:
        while not came:
            came.extend(comm.get_data(7) or ())

    waiting = threading.Thread(target=get)
    waiting.start()
    comm._data_result_queue.put(["item"])
    waiting.join(10)
    assert came == ["item"]


def test_a_learner_that_fails_or_cannot_be_made_is_a_failed_task(
    site: Site, comm: RemoteCommLearner
) -> None:
    """covers D21"""
    for config, problem in (
        ({"max_iterations": 0}, "max_iterations"),
        ({"load_path": "/etc/x"}, "learner_cfg.load_path: a task cannot name a file"),
        ({"hook": {"load_ckpt_before_run": "x"}}, r"hook\.load_ckpt_before_run"),
    ):
        with pytest.raises(TaskFail, match=problem):
            site.coordinator.send_task(
                "comm", "learner_start_task", {"learner_cfg": config}
            ).result(20)
    site.coordinator.send_task("comm", "learner_start_task", make_info()).result(20)
    site.coordinator.send_task("comm", "learner_get_data_task", {}).result(20)
    with pytest.raises(TaskFail, match=r"the learner has ended: .*Error"):
        site.coordinator.send_task("comm", "learner_learn_task", {"data": {"x": 1}}).result(20)
    # The next one is not affected.
    assert run_learner_task(site.coordinator, "comm", make_info(1), sample)["finished"]


def test_a_learner_whose_policy_cannot_be_created_leaves_the_data_to_the_next(
    site: Site, comm: RemoteCommLearner
) -> None:
    create = comm._create_policy

    def fail(config: Mapping[str, Any]) -> Any:
        raise ValueError("no such policy")

    comm._create_policy = fail
    with pytest.raises(TaskFail, match="cannot be created: ValueError: no such policy"):
        site.coordinator.send_task("comm", "learner_start_task", make_info()).result(20)
    comm._create_policy = create
    assert run_learner_task(site.coordinator, "comm", make_info(2), sample)["finished"]


def test_data_that_come_before_a_learner_do_not_reach_it(
    site: Site, comm: RemoteCommLearner
) -> None:
    for _ in range(2):
        with pytest.raises(TaskFail, match="there is no learner; send learner_start_task first"):
            site.coordinator.send_task("comm", "learner_learn_task", {"data": "old"}).result(20)
    assert run_learner_task(site.coordinator, "comm", make_info(1), sample)["finished"]


def test_a_learner_that_waits_for_data_can_be_closed(site: Site, comm: RemoteCommLearner) -> None:
    """covers D17"""
    site.coordinator.send_task("comm", "learner_start_task", make_info()).result(20)
    site.coordinator.send_task("comm", "learner_get_data_task", {}).result(20)
    waits = site.coordinator.send_task("comm", "learner_get_data_task", {})
    site.coordinator.send_task("comm", "learner_close_task", {}).result(20)
    with pytest.raises(TaskFail, match=r"there is no learner|the learner has ended"):
        waits.result(20)


def test_a_learner_slave_is_a_slave_with_callbacks(tmp_path: Path) -> None:
    """covers D14"""
    called: list[Any] = []
    slave = LearnerSlave(
        "localhost:1", "slave", {"deal_with_learner_start": lambda info: called.append(info)}
    )
    assert isinstance(slave, Slave)
    assert slave._process_task({"name": "learner_start_task", "policy": 1})["message"]
    assert called == [{"policy": 1}]
    with pytest.raises(TaskFail, match="has no callback deal_with_resource") as caught:
        slave._process_task({"name": "resource"})
    assert json.dumps(caught.value.result)
    slave.close()


def test_a_comm_learner_needs_an_address_and_a_name(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "cfg.address: missing, expected text: HOST:PORT"),
        ({"address": "localhost:1"}, "cfg.name: missing, expected text: a name"),
        ({"address": "localhost:1", "name": 5}, "cfg.name: 5, expected text"),
        ({"address": 7001, "name": "comm"}, "cfg.address: 7001, expected text"),
    ]
    for cfg, problem in cases:
        with pytest.raises(ConfigError, match=problem):
            RemoteCommLearner(cfg, lambda config: None, exp_dir=tmp_path)
    with pytest.raises(ConfigError, match="'localhost': port missing"):
        RemoteCommLearner(
            {"address": "localhost", "name": "comm"}, lambda config: None, exp_dir=tmp_path
        )
