"""BaseLearner: trains a real policy serially and in its own loop, with hooks and checkpoints."""

# covers D1, D2, D3, D4, D5, D6, D7, D8, D11, D12, D18, D19, D20, D25

import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.event_files import read_scalars
from support.regression import BIAS, WEIGHTS, Regression, RowSource, make_rows
from support.threads import WAIT_SEC, Caller

from relaax_like.learn.base_learner import BaseLearner
from relaax_like.learn.checkpoint import load_checkpoint
from relaax_like.learn.hooks import LearnerHook
from relaax_like.metrics.recorder import TensorBoardRecorder
from relaax_like.wire.errors import ConfigError, SnapshotError

BATCH = 16
ANSWER = np.append(WEIGHTS, BIAS)


class CallHook(LearnerHook):
    """Calls a function with the learner."""

    def __init__(self, position: str, call: Any, priority: float = 20):
        super().__init__("call", priority, position=position)
        self._call = call

    def __call__(self, engine: BaseLearner) -> None:
        self._call(engine)


def make_learner(tmp_path: Path, config: dict[str, Any] | None = None, **more: Any) -> BaseLearner:
    learner = BaseLearner(config, exp_dir=tmp_path / "exp", **more)
    learner.policy = Regression()
    return learner


@pytest.fixture
def parallel(tmp_path: Path) -> Iterator[Any]:
    """Makes learners whose data loader draws from the rows; closes them."""
    learners = []

    def make(config: dict[str, Any], get_data: Any = None, **more: Any) -> BaseLearner:
        learner = make_learner(tmp_path, {"dataloader": {"batch_size": BATCH}, **config}, **more)
        learner.get_data = get_data or RowSource()
        learner.setup_dataloader()
        learners.append(learner)
        return learner

    yield make
    for learner in learners:
        learner.close()


def values_of(learner: BaseLearner) -> np.ndarray:
    return np.asarray(learner.policy.state_dict()["values"])


def checkpoints_of(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "exp").glob("ckpt/*"))


def test_it_logs_who_it_is_and_its_merged_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    make_learner(tmp_path, {"max_iterations": 7, "load_path": ""})
    name, _, settings = caplog.text.splitlines()[0].rpartition(" 0: ")
    assert name.endswith("BaseLearner")
    merged = json.loads(settings)
    assert (merged["max_iterations"], merged["dataloader"]["num_workers"]) == (7, 1)
    assert merged["hook"]["log_show_after_iter"]["ext_args"] == {"freq": 100}  # a default


# Training, serially and in its own loop.


def test_trained_serially_it_finds_the_known_answer(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    for number in range(200):
        learner.train(make_rows(number, BATCH))
    np.testing.assert_allclose(values_of(learner), ANSWER, atol=1e-6)
    assert learner.last_iter == 200
    assert learner.last_step == 200 * BATCH * 2
    # Without `start` nothing was begun or ended.
    assert checkpoints_of(tmp_path) == []
    assert not learner.learn_info["finished"]


@pytest.mark.parametrize("chunks", [{}, {"chunk_size": 4, "num_workers": 3}])
def test_in_its_own_loop_it_finds_the_known_answer(parallel: Any, chunks: Any) -> None:
    learner = parallel({"max_iterations": 300, "dataloader": {"batch_size": BATCH, **chunks}})
    Caller(learner.start).get()
    np.testing.assert_allclose(values_of(learner), ANSWER, atol=1e-6)
    assert (learner.last_iter, learner.last_step) == (300, 300 * BATCH * 2)
    assert learner.learn_info["finished"]


def test_both_ways_are_the_same_to_the_bit(tmp_path: Path, parallel: Any) -> None:
    serial = make_learner(tmp_path)
    for number in range(20):
        serial.train(make_rows(number, BATCH))
    learner = parallel({"max_iterations": 20})
    learner.start()
    np.testing.assert_array_equal(values_of(learner), values_of(serial))


# One iteration.


def test_hooks_see_the_old_iteration_and_run_around_the_policy(tmp_path: Path) -> None:
    notes: list[Any] = []

    class Noting(Regression):
        def data_preprocess(self, data: Any) -> Any:
            notes.append("preprocess")
            return super().data_preprocess(data)

        def forward(self, data: Any) -> Any:
            notes.append("forward")
            return super().forward(data)

    learner = make_learner(tmp_path)
    learner.policy = Noting()
    for position in ("before_iter", "after_iter"):
        learner.register_hook(
            CallHook(position, lambda e, p=position: notes.append((p, e.last_iter, e.updates)))
        )
    for number in range(2):
        learner.train(make_rows(number, BATCH))
    assert notes == [
        ("before_iter", 0, 0),
        "preprocess",
        "forward",
        ("after_iter", 0, 1),
        ("before_iter", 1, 1),
        "preprocess",
        "forward",
        ("after_iter", 1, 2),
    ]
    assert learner.last_iter == 2


def test_registered_hooks_run_by_priority_among_those_of_the_settings(tmp_path: Path) -> None:
    order: list[str] = []
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": None}})
    for name, priority in (("late", 30), ("first", 5), ("second", 5)):
        learner.register_hook(CallHook("after_iter", lambda e, n=name: order.append(n), priority))
    learner.train(make_rows(0, BATCH))
    assert order == ["first", "second", "late"]


def test_priorities_leave_the_log_variables_and_name_their_rows(tmp_path: Path) -> None:
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": None}})
    assert learner.priority_info is None
    rows = make_rows(3, 4)
    learner.train(rows)
    info = learner.priority_info
    assert info is not None
    assert info["replay_buffer_idx"] == [0, 1, 2, 3]
    assert info["replay_unique_id"] == ["3-0", "3-1", "3-2", "3-3"]
    # The first prediction of all is 0: the errors are the targets.
    np.testing.assert_allclose(info["priority"], [abs(row["y"]) for row in rows])
    assert "priority" not in learner.log_buffer
    assert learner.learn_info["priority_info"] is info


class Silent(Regression):
    """Learns nothing and has no priorities."""

    def data_preprocess(self, data: Any) -> Any:
        return data

    def forward(self, data: Any) -> dict[str, Any]:
        return {}


class Fields:
    """A batch with fields."""

    replay_unique_id = ("a", "b")
    env_steps = np.int64(9)


@pytest.mark.parametrize(
    ("data", "index", "unique", "env_steps"),
    [
        ({"replay_buffer_idx": [4, 5], "env_steps": 7}, [4, 5], None, 7),
        (Fields(), None, ("a", "b"), 9),
        (
            [{"replay_buffer_idx": 4, "env_steps": 3}, {"env_steps": 4}, {}],
            [4, None, None],
            None,
            7,
        ),
        ([Fields(), Fields()], [None, None], [("a", "b")] * 2, 18),
        (np.zeros((2, 3)), None, None, 0),
    ],
)
def test_fields_are_read_from_batches_of_any_form(
    tmp_path: Path, data: Any, index: Any, unique: Any, env_steps: int
) -> None:
    learner = make_learner(tmp_path)
    learner.policy = Silent()
    learner.train(data)
    info = learner.priority_info
    assert info is not None
    assert info["replay_buffer_idx"] == index
    if unique is not None:
        assert info["replay_unique_id"] == unique
    assert info["priority"] is None
    assert learner.last_step == env_steps


def test_times_are_in_the_log_buffer_those_of_training_from_the_next_iteration_on(
    tmp_path: Path,
) -> None:
    seen: list[set[str]] = []
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": None}})
    learner.register_hook(CallHook("after_iter", lambda e: seen.append(set(e.log_buffer))))
    assert learner.tick_time == 0
    for number in range(2):
        learner.train(make_rows(number, BATCH))
    variables = {"loss", "[histogram]errors", "[scalars]weights", "data_preprocess_time"}
    assert seen == [variables, variables | {"train_time"}]
    buffer = learner.log_buffer
    assert 0 < buffer["data_preprocess_time"] <= buffer["train_time"] <= learner.tick_time


def test_waiting_for_data_is_measured_and_part_of_the_tick(parallel: Any) -> None:
    release = threading.Event()
    waits: list[float] = []
    source = RowSource()

    def get_data(batch_size: int, /) -> Any:
        return source(batch_size) if release.wait(0.01) else None

    learner = parallel({"max_iterations": 1, "hook": {"log_show_after_iter": None}}, get_data)
    learner.register_hook(CallHook("after_iter", lambda e: waits.append(e.log_buffer["data_time"])))
    learner.register_hook(CallHook("before_run", lambda e: release.set()))
    learner.start()
    assert len(waits) == 1
    assert learner.tick_time >= waits[0] + learner.log_buffer["train_time"] > 0


@pytest.mark.parametrize("use", ["train", "start", "save_checkpoint", "policy"])
def test_without_a_policy_it_says_so(tmp_path: Path, use: str) -> None:
    learner = BaseLearner({}, exp_dir=tmp_path)
    uses = {
        "train": lambda: learner.train([]),
        "start": learner.start,
        "save_checkpoint": learner.save_checkpoint,
        "policy": lambda: learner.policy,
    }
    with pytest.raises(RuntimeError, match=r"no policy; set learner\.policy first"):
        uses[use]()


# The run.


def test_a_run_calls_hooks_before_and_after_it_and_saves(tmp_path: Path, parallel: Any) -> None:
    notes: list[Any] = []
    learner = parallel({"max_iterations": 3})
    for position in ("before_run", "after_run"):
        learner.register_hook(
            CallHook(
                position,
                lambda e, p=position: notes.append((p, e.last_iter, e.learn_info["finished"])),
            )
        )
    learner.start()
    assert notes == [("before_run", 0, False), ("after_run", 3, True)]
    assert checkpoints_of(tmp_path) == ["iteration_3.npz"]


def test_a_run_without_limit_ends_when_it_is_asked_to(tmp_path: Path, parallel: Any) -> None:
    """As an evaluation does that has seen enough, from another thread."""
    learned = threading.Event()
    learner = parallel({})
    learner.register_hook(CallHook("after_iter", lambda e: e.updates >= 5 and learned.set()))
    run = Caller(learner.start)
    assert learned.wait(WAIT_SEC)
    learner.request_stop()
    run.get()
    assert learner.last_iter >= 5
    assert learner.learn_info["finished"]
    assert checkpoints_of(tmp_path) == [f"iteration_{learner.last_iter}.npz"]


def test_a_stop_that_a_hook_asks_for_ends_after_that_iteration(parallel: Any) -> None:
    learner = parallel({"max_iterations": 100})
    learner.register_hook(CallHook("after_iter", lambda e: e.updates == 4 and e.request_stop()))
    learner.start()
    assert learner.last_iter == 4


@pytest.mark.parametrize("end", ["request_stop", "close"])
def test_a_run_that_waits_for_data_is_let_go(tmp_path: Path, parallel: Any, end: str) -> None:
    asked = threading.Event()

    def get_data(batch_size: int, /) -> None:
        asked.set()

    learner = parallel({}, get_data)
    run = Caller(learner.start)
    assert asked.wait(WAIT_SEC)
    getattr(learner, end)()
    run.get()
    assert checkpoints_of(tmp_path) == ["iteration_0.npz"]


@pytest.mark.parametrize("when", ["before the loader", "before the start"])
def test_an_early_stop_is_not_forgotten(parallel: Any, when: str) -> None:
    learner = parallel({"max_iterations": 3})
    learner.request_stop()
    if when == "before the loader":
        learner.setup_dataloader()
    learner.start()
    assert learner.last_iter == 0


class SourceError(Exception):
    pass


def make_failing_source(failing_batch: int) -> Any:
    source = RowSource()
    numbers = iter(range(failing_batch))

    def get_data(batch_size: int, /) -> Any:
        if next(numbers, None) is None:
            raise SourceError("the source broke")
        return source(batch_size)

    return get_data


def test_a_failure_saves_a_checkpoint_and_is_raised_on(tmp_path: Path, parallel: Any) -> None:
    ended: list[BaseLearner] = []
    learner = parallel({}, make_failing_source(3))
    learner.register_hook(CallHook("after_run", ended.append))
    with pytest.raises(SourceError, match="the source broke"):
        learner.start()
    assert checkpoints_of(tmp_path) == ["iteration_3.npz"]
    saved = load_checkpoint(tmp_path / "exp" / "ckpt" / "iteration_3.npz")
    np.testing.assert_array_equal(saved.policy["values"], values_of(learner))
    assert (saved.last_iter, saved.last_step) == (3, 3 * BATCH * 2)
    assert not ended
    assert not learner.learn_info["finished"]


def test_a_failing_hook_saves_what_was_just_learned(tmp_path: Path, parallel: Any) -> None:
    def fail(engine: BaseLearner) -> None:
        raise KeyboardInterrupt

    learner = parallel({})
    learner.register_hook(CallHook("after_iter", fail))
    with pytest.raises(KeyboardInterrupt):
        learner.start()
    saved = load_checkpoint(tmp_path / "exp" / "ckpt" / "iteration_1.npz")
    assert saved.last_iter == 1
    np.testing.assert_array_equal(saved.policy["values"], values_of(learner))


@pytest.mark.parametrize("why", ["no hook", "no folder"])
def test_a_checkpoint_that_fails_after_a_failure_does_not_hide_it(
    tmp_path: Path, parallel: Any, caplog: pytest.LogCaptureFixture, why: str
) -> None:
    hook = {"hook": {"save_ckpt_after_run": why != "no hook"}}
    if why == "no folder":
        (tmp_path / "exp").write_text("in the way")
    learner = parallel(hook, make_failing_source(1))
    with pytest.raises(SourceError, match="the source broke"):
        learner.start()
    assert "could not save a checkpoint" in caplog.text
    assert checkpoints_of(tmp_path) == []


def test_a_failure_before_the_run_writes_nothing(tmp_path: Path, parallel: Any) -> None:
    learner = parallel({"load_path": str(tmp_path / "none.npz")})
    with pytest.raises(SnapshotError, match=r"none\.npz: no such checkpoint"):
        learner.start()
    assert checkpoints_of(tmp_path) == []


def test_without_data_loader_or_source_it_says_so(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    with pytest.raises(RuntimeError, match=r"no data loader; call setup_dataloader\(\)"):
        learner.start()
    with pytest.raises(RuntimeError, match=r"set learner\.get_data before setup_dataloader\(\)"):
        learner.setup_dataloader()


def test_a_subclass_may_bring_its_data_and_its_name(tmp_path: Path) -> None:
    class Mine(BaseLearner):
        _name = "Mine"

        def get_data(self, batch_size: int, /) -> Any:
            return make_rows(0, batch_size)

    learner = Mine({"max_iterations": 2}, exp_dir=tmp_path)
    learner.policy = Regression()
    learner.setup_dataloader()
    learner.start()
    learner.close()
    assert (learner.name, learner.last_iter) == ("Mine", 2)


def test_closed_it_has_no_threads_and_no_recorder(tmp_path: Path, parallel: Any) -> None:
    recorder = TensorBoardRecorder(tmp_path / "metrics")
    learner = parallel({"max_iterations": 1}, metrics=recorder)
    learner.start()
    learner.close()
    learner.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("data loader")]
    recorder.scalar("late", 1.0)
    assert recorder.dropped == 1
    with pytest.raises(RuntimeError, match="no data loader"):
        learner.start()


# Checkpoints.


def test_checkpoints_are_written_after_each_freq_iterations(tmp_path: Path) -> None:
    learner = make_learner(tmp_path, {"hook": {"save_ckpt_after_iter": 3}})
    at: dict[int, np.ndarray] = {}
    for number in range(7):
        learner.train(make_rows(number, BATCH))
        at[number + 1] = values_of(learner)
    assert checkpoints_of(tmp_path) == ["iteration_3.npz", "iteration_6.npz"]
    for n in (3, 6):
        saved = load_checkpoint(tmp_path / "exp" / "ckpt" / f"iteration_{n}.npz")
        np.testing.assert_array_equal(saved.policy["values"], at[n])
        assert (saved.last_iter, saved.last_step) == (n, n * BATCH * 2)


@pytest.mark.parametrize("how", ["load_path", "hook"])
def test_a_run_that_goes_on_from_a_checkpoint_equals_one_that_never_ended(
    tmp_path: Path, parallel: Any, how: str
) -> None:
    whole = make_learner(tmp_path)
    for number in range(20):
        whole.train(make_rows(number, BATCH))
    parallel({"max_iterations": 8}).start()
    path = str(tmp_path / "exp" / "ckpt" / "iteration_8.npz")
    source = RowSource()
    for _ in range(8):
        source(BATCH)
    where = {"load_path": path} if how == "load_path" else {"hook": {"load_ckpt_before_run": path}}
    rest = parallel({"max_iterations": 20, **where}, source)
    rest.start()
    assert (rest.last_iter, rest.last_step) == (20, whole.last_step)
    assert rest.load_path == (path if how == "load_path" else "")
    for name, array in whole.policy.state_dict().items():
        np.testing.assert_array_equal(rest.policy.state_dict()[name], array)


def test_a_checkpoint_may_have_a_name_of_its_own(tmp_path: Path) -> None:
    learner = make_learner(tmp_path)
    learner.train(make_rows(0, BATCH))
    learner.save_checkpoint("best")
    learner.train(make_rows(1, BATCH))
    learner.save_checkpoint()
    assert checkpoints_of(tmp_path) == ["best.npz", "iteration_2.npz"]
    assert load_checkpoint(tmp_path / "exp" / "ckpt" / "best.npz").last_iter == 1


def test_saving_without_its_hook_is_refused(tmp_path: Path) -> None:
    learner = make_learner(tmp_path, {"hook": {"save_ckpt_after_run": False}})
    with pytest.raises(ConfigError, match="hook save_ckpt_after_run is off"):
        learner.save_checkpoint()


def test_saving_calls_the_hook_of_that_name_whatever_it_does(tmp_path: Path) -> None:
    class OwnHook(CallHook):
        name = "save_ckpt_after_run"  # type: ignore[assignment]

    calls: list[BaseLearner] = []
    learner = make_learner(tmp_path, {"hook": {"save_ckpt_after_run": False}})
    learner.register_hook(OwnHook("after_run", calls.append))
    learner.save_checkpoint()
    assert calls == [learner]
    assert checkpoints_of(tmp_path) == []


def test_a_full_disk_in_the_middle_of_a_run_is_told_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "exp").write_text("in the way")
    learner = make_learner(tmp_path, {"hook": {"save_ckpt_after_iter": 2}})
    for number in range(5):
        learner.train(make_rows(number, BATCH))
    assert learner.last_iter == 5
    assert caplog.text.count("the checkpoint could not be written") == 2
    with pytest.raises(SnapshotError, match="the checkpoint could not be written"):
        learner.save_checkpoint()


# What is shown.


def test_curves_are_means_against_iterations_and_environment_steps(tmp_path: Path) -> None:
    losses: list[float] = []

    class Noting(Regression):
        def forward(self, data: Any) -> Any:
            variables = super().forward(data)
            losses.append(float(variables["loss"]))
            return variables

    recorder = TensorBoardRecorder(tmp_path / "metrics")
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": 2}}, metrics=recorder)
    learner.policy = Noting()
    for number in range(5):
        learner.train(make_rows(number, BATCH))
    learner.close()
    curves = read_scalars(tmp_path / "metrics")
    names = {"loss", "weights/first", "weights/last", "data_preprocess_time", "train_time"}
    groups = ("Optimizer", "Optimizer_by_iteration")
    assert set(curves) == {f"{group}/{name}" for group in groups for name in names}
    want = [np.mean(losses[0:2]), np.mean(losses[2:4])]
    for group, xs in (("Optimizer_by_iteration", [2, 4]), ("Optimizer", [64, 128])):
        points = curves[f"{group}/loss"]
        assert [x for x, _ in points] == xs
        np.testing.assert_allclose([y for _, y in points], want, rtol=1e-6)


class Recorder(TensorBoardRecorder):
    """Also keeps the histograms."""

    def __init__(self, directory: Path):
        super().__init__(directory)
        self.histograms: list[tuple[str, int, float | None]] = []

    def histogram(self, name: str, values: np.ndarray, x: float | None = None) -> None:
        self.histograms.append((name, values.size, x))
        super().histogram(name, values, x)


def test_histograms_go_to_the_recorder_as_such_and_numbers_that_are_not_finite_nowhere(
    tmp_path: Path,
) -> None:
    class Diverging(Regression):
        def forward(self, data: Any) -> Any:
            return {**super().forward(data), "loss": float("nan")}

    recorder = Recorder(tmp_path / "metrics")
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": 1}}, metrics=recorder)
    learner.policy = Diverging()
    learner.train(make_rows(0, BATCH))
    learner.close()
    assert recorder.histograms == [
        ("Optimizer_by_iteration/errors", BATCH, 1),
        ("Optimizer/errors", BATCH, 2 * BATCH),
    ]
    assert not [name for name in read_scalars(tmp_path / "metrics") if "loss" in name]


def test_a_line_tells_the_means_and_the_buffer_is_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": 2}})
    with caplog.at_level(logging.INFO):
        for number in range(2):
            learner.train(make_rows(number, BATCH))
    line = r"iteration 2 \| env steps 64 \| loss [\d.]+ \| weights/first "
    assert [r for r in caplog.messages if re.match(line, r)]
    assert set(learner.log_buffer) == {"train_time"}  # what came after the hook


def test_without_environment_steps_there_are_curves_against_iterations_only(
    tmp_path: Path,
) -> None:
    recorder = TensorBoardRecorder(tmp_path / "metrics")
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": 1}}, metrics=recorder)
    rows = make_rows(0, BATCH)
    for row in rows:
        del row["env_steps"]
    learner.train(rows)
    learner.close()
    assert {name.split("/")[0] for name in read_scalars(tmp_path / "metrics")} == {
        "Optimizer_by_iteration"
    }


def test_all_properties_of_a_learner_by_hand(tmp_path: Path) -> None:
    """Two iterations of four rows, each of two environment steps."""
    # covers D2
    recorder = TensorBoardRecorder(tmp_path / "metrics")
    learner = make_learner(tmp_path, {"hook": {"log_show_after_iter": 3}}, metrics=recorder)
    policy = learner.policy
    for number in range(2):
        learner.train(make_rows(number, 4))
    info = learner.priority_info
    assert info is not None
    assert info["replay_unique_id"] == ["1-0", "1-1", "1-2", "1-3"]
    assert learner.learn_info == {
        "last_iter": 2,
        "last_step": 16,
        "finished": False,
        "priority_info": info,
    }
    assert (learner.last_iter, learner.last_step, learner.updates) == (2, 16, 2)
    assert (learner.name, learner.rank, learner.load_path) == ("BaseLearner", 0, "")
    assert learner.policy is policy
    assert learner.tb_logger is recorder
    assert learner.logger.name.endswith("BaseLearner.0")
    assert learner.tick_time >= learner.log_buffer["train_time"] > 0
    assert learner.monitor is not None
    assert set(learner.monitor.take().means) >= {"loss", "weights/first"}
    learner.close()


# Several learners.


class Mean:
    """A `reduce_log` for learners in threads: each gets the mean once all have come."""

    def __init__(self, size: int):
        self._size = size
        self._sums: dict[str, float] = {}
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(size)

    def __call__(self, values: dict[str, float]) -> dict[str, float]:
        with self._lock:
            for name, value in values.items():
                self._sums[name] = self._sums.get(name, 0.0) + value / self._size
        self._barrier.wait(WAIT_SEC)
        means = dict(self._sums)
        if self._barrier.wait(WAIT_SEC) == 0:
            self._sums.clear()
        self._barrier.wait(WAIT_SEC)
        return means


def test_learners_of_a_group_show_their_mean_and_rank_0_alone_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reduce_log = Mean(2)
    recorders = [TensorBoardRecorder(tmp_path / f"metrics-{rank}") for rank in range(2)]
    config = {
        "use_distributed": True,
        "hook": {"log_show_after_iter": 2, "save_ckpt_after_iter": 2},
    }
    learners = [
        make_learner(
            tmp_path / str(rank),
            config,
            rank=rank,
            world_size=2,
            metrics=recorders[rank],
            reduce_log=reduce_log,
        )
        for rank in range(2)
    ]
    losses: list[list[float]] = [[], []]
    for rank, learner in enumerate(learners):
        learner.register_hook(
            CallHook("after_iter", lambda e, r=rank: losses[r].append(e.log_buffer["loss"]), 5)
        )

    def train(rank: int) -> None:
        for number in range(4):
            learners[rank].train(make_rows(10 * rank + number, BATCH))

    caplog.set_level(logging.INFO)
    for run in [Caller(lambda r=rank: train(r)) for rank in range(2)]:
        run.get()
    for learner, recorder in zip(learners, recorders, strict=True):
        learner.close()
        recorder.close()
    curves = read_scalars(tmp_path / "metrics-0")
    means = np.mean(losses, axis=0)
    assert losses[0] != losses[1]
    np.testing.assert_allclose(
        [y for _, y in curves["Optimizer_by_iteration/loss"]],
        [means[0:2].mean(), means[2:4].mean()],
        rtol=1e-5,
    )
    assert "Optimizer/weights/first" in curves
    assert read_scalars(tmp_path / "metrics-1") == {}
    assert checkpoints_of(tmp_path / "0") == ["iteration_2.npz", "iteration_4.npz"]
    assert checkpoints_of(tmp_path / "1") == []
    assert sum("env steps" in line for line in caplog.messages) == 2
    assert (learners[1].monitor, learners[1].tb_logger) == (None, None)
    assert learners[1].logger is not learners[0].logger
    assert set(learners[1].log_buffer) == {"train_time"}


@pytest.mark.parametrize(
    ("config", "more", "want"),
    [
        ({}, {"world_size": 0}, "world_size is 0, expected 1 or more"),
        ({}, {"rank": 1}, "rank is 1, expected 0 or more and less than world_size, which is 1"),
        (
            {},
            {"rank": -1, "world_size": 2},
            "rank is -1, expected 0 or more and less than world_size, which is 2",
        ),
        ({}, {"world_size": 2}, "use_distributed is false, but world_size is 2"),
        (
            {"use_distributed": True},
            {"world_size": 2},
            "hook.log_reduce_after_iter is on, and world_size is 2, but there is no reduce_log",
        ),
        ({"max_iteration": 2}, {}, "did you mean max_iterations?"),
        (
            {"hook": {"x": {"type": "y", "position": "after_run"}}},
            {},
            "hook.x.type: unknown name 'y'",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    tmp_path: Path, config: Any, more: Any, want: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(want)):
        BaseLearner(config, exp_dir=tmp_path, **more)


@pytest.mark.parametrize(
    ("use_cuda", "rank", "want"),
    [(False, 9, "cpu"), (True, 0, "cuda:0"), (True, 7, "cuda:7"), (True, 9, "cuda:1")],
)
def test_the_device_is_the_rank_s(tmp_path: Path, use_cuda: bool, rank: int, want: str) -> None:
    off = {"log_reduce_after_iter": False}
    config = {"use_cuda": use_cuda, "use_distributed": True, "hook": off}
    learner = BaseLearner(config, exp_dir=tmp_path, rank=rank, world_size=10)
    assert (learner.device, learner.rank) == (want, rank)


def test_an_unknown_position_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'after_all', expected one of before_run, before_iter"):
        make_learner(tmp_path).call_hook("after_all")
