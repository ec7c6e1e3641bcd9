"""Combining gradients: means, delay compensation, the staleness bound; and their replay."""

import shutil
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from support.bridge import ONES, VARIABLES, make_backend, serve

from relaax_like.bridge.control import BridgeControl
from relaax_like.config.combine import CombineConfig
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Publication, Push
from relaax_like.parameter_server.combining.combiner import METHODS as STRATEGIES
from relaax_like.parameter_server.combining.strategy import HeldBack
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.store import Store

START = np.concatenate([one.value.reshape(-1) for one in VARIABLES])  # 0 1 2 3 4 5, 0 0 0


class Clock:
    """Seconds that the test sets."""

    now = 100.0

    def __call__(self):
        return self.now


def make_push(backend, client, sequence, value, version=0, **fields):
    gradient = np.full(9, value, np.float32) if np.isscalar(value) else np.float32(value)
    return Push(
        client_id=client,
        incarnation=1,
        sequence=sequence,
        gradient=gradient.view(np.uint8),
        gradient_version=version,
        env_steps=fields.pop("env_steps", 2),
        fingerprint=backend.manifest.fingerprint,
        **fields,
    )


def introduce(backend, clients):
    """As if each of them had pushed a gradient a moment ago."""
    for client in clients:
        backend._applier.combiner.strategy.note_client(client)


def get_weights(backend):
    return backend.pull().values.flat.view(np.float32).tolist()


def average(**fields):
    return CombineConfig(method="avg", **fields)


def test_a_mean_is_applied_when_enough_have_come():
    with make_backend(combine=average(num_gradients=3)) as backend:
        introduce(backend, "abc")
        version, start = backend.version, np.array(get_weights(backend))
        replies = [
            backend.push(make_push(backend, name, 2, value, version))
            for name, value in (("a", 1.0), ("b", 2.0), ("c", 6.0))
        ]
        assert [reply.outcome for reply in replies] == ["pending", "pending", "applied"]
        assert [reply.version - version for reply in replies] == [0, 0, 1]
        assert get_weights(backend) == (start - 3.0).tolist()  # SGD with rate 1; (1 + 2 + 6) / 3
        assert backend.global_t == 6  # also of those that wait


def test_a_client_s_own_gradients_count_too_and_others_are_not_waited_for_when_they_have_gone():
    clock = Clock()
    with make_backend(combine=average(num_gradients=4), clock=clock) as backend:
        outcomes = []
        for client, number in (("a", 1), ("b", 1), ("a", 2)):
            push = make_push(backend, client, number, 1.0, backend.version)
            outcomes.append(backend.push(push).outcome)
        assert outcomes == ["applied", "pending", "applied"]  # of one, of two
        clock.now += 11.0  # b has gone
        push = make_push(backend, "a", 3, 1.0, backend.version)
        assert backend.push(push).outcome == "applied"


def test_after_the_longest_wait_the_next_one_applies_all():
    clock = Clock()
    config = average(num_gradients=3, max_wait_sec=2.0)
    with make_backend(combine=config, clock=clock) as backend:
        introduce(backend, "abc")
        version = backend.version
        assert backend.push(make_push(backend, "a", 2, 1.0, version)).outcome == "pending"
        clock.now += 2.5
        assert backend.push(make_push(backend, "b", 2, 3.0, version)).outcome == "applied"
        assert get_weights(backend) == (START - 2.0).tolist()


def test_with_a_mean_a_gradient_of_older_weights_is_dropped_and_its_steps_count():
    with make_backend(combine=average(num_gradients=1)) as backend:
        backend.push(make_push(backend, "a", 1, 1.0, 0))
        push = make_push(backend, "b", 1, 5.0, 0)
        reply, again = backend.push(push), backend.push(push)
        assert (reply.outcome, reply.version, reply.global_t) == ("dropped", 1, 4)
        assert "avg only accepts fresh gradients" in reply.reason
        assert (again.outcome, backend.global_t) == ("dropped", 4)
        assert get_weights(backend) == (START - 1.0).tolist()
        assert backend.status().refused == {"stale": 1}


def test_a_repeated_pending_push_is_held_back_once():
    with make_backend(combine=average(num_gradients=2)) as backend:
        introduce(backend, "ab")
        version = backend.version
        push = make_push(backend, "a", 2, 1.0, version)
        assert [backend.push(push).outcome for _ in range(3)] == ["pending"] * 3
        assert backend.push(make_push(backend, "b", 2, 3.0, version)).outcome == "applied"
        assert get_weights(backend) == (START - 2.0).tolist()


def test_delay_compensation_is_the_paper_s_formula():
    """Equation 10: g + lambda g*g*(w_now - w_then)."""
    config = CombineConfig(method="dc", dc_lambda=0.5)
    with make_backend(combine=config) as backend:
        backend.push(make_push(backend, "a", 1, 2.0, 0))  # fresh: as it is
        assert get_weights(backend) == (START - 2.0).tolist()
        backend.push(make_push(backend, "b", 1, 3.0, 0))  # 3 + 0.5 * 9 * (-2) = -6
        assert get_weights(backend) == (START - 2.0 + 6.0).tolist()
        backend.push(make_push(backend, "a", 2, 1.0, 1))  # 1 + 0.5 * 1 * 6 = 4
        assert get_weights(backend) == (START - 2.0 + 6.0 - 4.0).tolist()
        assert vars(backend._applier.combiner.counts) == {
            "compensated": 3,
            "not_compensated": 0,
            "held_back": 0,
            "dropped": 0,
        }


def test_a_version_that_is_no_longer_kept_is_a_miss_and_counted():
    config = CombineConfig(method="dc", dc_lambda=0.5, dc_history=2)
    with make_backend(combine=config) as backend:
        for number in (1, 2):
            backend.push(make_push(backend, "a", number, 1.0, number - 1))
        backend.push(make_push(backend, "b", 1, 3.0, 0))  # versions 1 and 2 are kept
        assert get_weights(backend) == (START - 5.0).tolist()
        counts = backend._applier.combiner.counts
        assert (counts.compensated, counts.not_compensated) == (2, 1)


@pytest.mark.parametrize("value", [5e18, 1e12])
def test_a_gradient_whose_square_is_too_large_is_applied_as_it_is(value):
    config = CombineConfig(method="dc", dc_lambda=0.5)
    with make_backend(combine=config) as backend:
        for sequence in range(1, 5):
            reply = backend.push(make_push(backend, "a", sequence, value, 0))
            assert reply.outcome == "applied"
        assert np.isfinite(get_weights(backend)).all()
        np.testing.assert_allclose(get_weights(backend), -4 * value, rtol=1e-6)
        assert backend._applier.combiner.counts.not_compensated == 3


def test_history_is_of_changed_weights_and_not_of_versions():
    """Versions that only merged statistics, as with normalised observations, cost no history."""
    statistic = [
        Variable(f"seen.{part}", np.zeros(shape), kind="statistic")
        for part, shape in (("count", ()), ("mean", (1,)), ("m2", (1,)))
    ]
    from relaax_like.core.moments import Moments

    config = CombineConfig(method="dc", dc_lambda=0.5, dc_history=2)
    with make_backend([*VARIABLES, *statistic], combine=config) as backend:
        rows = {"seen": Moments.of(np.ones((4, 1)))}
        backend.push(make_push(backend, "a", 1, 2.0, 0))
        for number in range(2, 9):
            backend.push(Push(client_id="a", incarnation=1, sequence=number, statistics=rows))
        assert backend.version == 8
        backend.push(make_push(backend, "b", 1, 1.0, 5))  # the weights of version 1: fresh
        backend.push(make_push(backend, "c", 1, 2.0, 8))  # those, too: 2 + 0.5 * 4 * (-1) = 0
        weights = backend.pull().values.flat[:36].view(np.float32)
        np.testing.assert_array_equal(weights, START - 2.0 - 1.0)
        assert backend._applier.combiner.counts.not_compensated == 0


def test_compensation_of_some_groups_takes_their_own_weights():
    variables = [
        Variable("one/W", np.zeros(2, np.float32), group="one"),
        Variable("two/W", np.zeros(3, np.float32), group="two"),
    ]
    manifest = make_manifest(variables)
    sgd = OptimizerConfig(name="sgd", learning_rate=1.0)
    flat = manifest.pack([variable.value for variable in variables])
    store = Store(manifest, flat, {"one": sgd, "two": sgd})
    config = CombineConfig(method="dc", dc_lambda=1.0)
    with ParameterServer(store, metrics=NullMetrics(), combine=config) as backend:
        for sequence, (group, gradient, version) in enumerate(
            [("two", [1, 2, 3], 0), ("two", [1, 1, 1], 0), ("one", [5, 5], 0)], 1
        ):
            push = make_push(backend, "a", sequence, gradient, version, groups=(group,))
            assert backend.push(push).outcome == "applied"
        # two: -(1 2 3), then g = 1 + 1 * (-1 -2 -3) = 0 -1 -2; one has not moved.
        assert get_weights(backend) == [-5, -5, -1, -1, -1]


@pytest.mark.parametrize(
    ("when_stale", "outcome", "want"),
    [("apply", "applied", 5.0), ("drop", "dropped", 2.0), ("compensate", "applied", -4.0)],
)
def test_the_staleness_bound(when_stale, outcome, want):
    config = CombineConfig(max_staleness=1, when_stale=when_stale, dc_lambda=0.5)
    with make_backend(combine=config) as backend:
        backend.push(make_push(backend, "a", 1, 1.0, 0))
        backend.push(make_push(backend, "b", 1, 1.0, 0))  # staleness 1 is allowed
        assert get_weights(backend) == (START - 2.0).tolist()
        reply = backend.push(make_push(backend, "c", 1, 3.0, 0))  # 3 + 0.5 * 9 * (-2) = -6
        assert reply.outcome == outcome
        assert backend.global_t == 6
        assert get_weights(backend) == (START - want).tolist()


def test_a_dropped_gradient_is_told_to_its_agent_and_the_log_is_not_flooded(caplog):
    config = CombineConfig(max_staleness=0)
    with make_backend(combine=config) as backend:
        with serve(backend) as address, BridgeControl().connect(address) as link:
            with link.parameter_server_stub() as one, link.parameter_server_stub() as other:
                other.get_values()
                for _ in range(5):
                    one.push_pull(ONES)
                    other.apply_gradients(ONES)  # never pulls
        assert backend.version == 5
    assert caplog.text.count("push dropped") == 1
    assert "combine.max_staleness" in caplog.text


ADAM = OptimizerConfig(learning_rate=0.1)
METHODS = {
    "avg": average(num_gradients=3),
    "dc": CombineConfig(method="dc", dc_lambda=0.3, dc_history=3),
    "bound": CombineConfig(max_staleness=1, when_stale="compensate", dc_lambda=0.3),
    "drop": CombineConfig(max_staleness=1),
}


def open_server(folder, config):
    manifest = make_manifest(VARIABLES)
    server = ParameterServer(
        Store(manifest, manifest.pack([one.value for one in VARIABLES]), {"default": ADAM}),
        snapshots=Snapshots(folder, 3),
        journal=PushJournal(folder / "journal", manifest.fingerprint),
        metrics=NullMetrics(),
        combine=config,
    )
    server.restore_latest_checkpoint()
    return server


def push_many(server, numbers):
    """Pushes of three clients that lag behind by 0, 1 and 2 versions."""
    outcomes = []
    for number in numbers:
        random = np.random.default_rng(number)
        lag = number % 3
        push = make_push(
            server,
            "abc"[lag],
            number,
            random.standard_normal(9),
            max(0, server.version - lag),
            gradient_epoch=0,
        )
        outcomes.append(server.push(push).outcome)
    return outcomes


def get_state(server):
    state = server._store.export_state()
    return (
        state.version,
        state.global_t,
        state.values.tobytes(),
        state.slots["default"].tobytes(),
        server._applier._dedup.to_dict(),
        {
            groups: (one.total.tolist(), one.count)
            for groups, one in server._applier.combiner.pending.items()
        },
    )


@pytest.mark.parametrize("save_after", [None, 5, 7])
@pytest.mark.parametrize("method", METHODS)
def test_a_crash_changes_nothing_bit_by_bit(tmp_path, method, save_after):
    server = open_server(tmp_path / "run", METHODS[method])
    outcomes = push_many(server, range(1, 12))
    if save_after:
        server.close(save=False)
        shutil.rmtree(tmp_path / "run")
        server = open_server(tmp_path / "run", METHODS[method])
        push_many(server, range(1, save_after + 1))
        server.save_checkpoint()
        assert outcomes == [*outcomes[:save_after], *push_many(server, range(save_after + 1, 12))]
    want = get_state(server)
    server._journal.close()
    shutil.copytree(tmp_path / "run", tmp_path / "left")
    server.close(save=False)
    with open_server(tmp_path / "left", METHODS[method]) as again:
        assert get_state(again) == want
    if method == "avg":
        assert {"pending", "applied"} <= set(outcomes)
    if method == "drop":
        assert "dropped" in outcomes


@pytest.mark.parametrize("save", [False, True])
def test_a_repeated_push_that_was_dropped_hears_why_also_after_a_crash(tmp_path, save):
    config = CombineConfig(max_staleness=0)
    server = open_server(tmp_path / "run", config)
    server.push(make_push(server, "a", 1, 1.0, 0))
    push = make_push(server, "b", 1, 1.0, 0, gradient_epoch=0)
    first = server.push(push)
    assert first.outcome == "dropped"
    assert "combine.max_staleness" in first.reason
    assert server.push(push) == first
    if save:
        server.save_checkpoint()
    server._journal.close()
    shutil.copytree(tmp_path / "run", tmp_path / "left")
    server.close(save=False)
    with open_server(tmp_path / "left", config) as again:
        assert replace(again.push(push), epoch=first.epoch) == first


def test_what_is_held_back_is_in_the_snapshot(tmp_path):
    config = average(num_gradients=3)
    with open_server(tmp_path / "run", config) as server:
        outcomes = push_many(server, range(1, 30))
        last = max(i for i, outcome in enumerate(outcomes) if outcome == "pending")
    with open_server(tmp_path / "cut", config) as server:
        push_many(server, range(1, last + 2))
        assert server._applier.combiner.pending
        want = get_state(server)
    shutil.rmtree(tmp_path / "cut" / "journal")  # the snapshot alone
    with open_server(tmp_path / "cut", config) as server:
        assert get_state(server) == want


def test_without_avg_what_was_held_back_before_is_dropped_and_told(tmp_path, caplog):
    with open_server(tmp_path / "run", average(num_gradients=3)) as server:
        introduce(server, "abc")
        push_many(server, [3])
        assert server._applier.combiner.pending
    with open_server(tmp_path / "run", CombineConfig()) as server:
        assert not server._applier.combiner.pending
        assert server.status().held_back == 0
    assert "combine.method is no longer avg: 1" in caplog.text


def test_what_a_newer_publication_replaces_is_dropped_and_told(tmp_path, caplog):
    """A run that held gradients back, and whose learner published afterwards."""
    with open_server(tmp_path / "run", average(num_gradients=3)) as server:
        introduce(server, "abc")
        push_many(server, [3])
        assert server._applier.combiner.pending
    with open_server(tmp_path / "run", average(num_gradients=3)) as server:
        assert server._applier.combiner.pending
        lease = server.lease()
        server.publish(
            Publication(number=1, values=lease.values, slots=lease.slots, steps=lease.steps)
        )
        server.close(save=False)
    with open_server(tmp_path / "run", average(num_gradients=3)) as server:
        assert not server._applier.combiner.pending
    assert "because the restored publication is newer: 1" in caplog.text


def test_no_memory_to_hold_a_gradient_back_costs_this_push_only(tmp_path, monkeypatch):
    with open_server(tmp_path / "run", average(num_gradients=3)) as server:
        introduce(server, "abc")
        push = make_push(server, "a", 1, 1.0, server.version, env_steps=10)
        with monkeypatch.context() as patch:
            patch.setattr(HeldBack, "plan_holding", fail_for_memory)
            with pytest.raises(MemoryError):
                server.push(push)
        assert server.push(push).outcome == "pending"
        assert server.global_t == 10


def test_each_method_of_the_config_has_its_strategy():
    assert set(get_args(CombineConfig.model_fields["method"].annotation)) == STRATEGIES.keys()


def test_a_mean_of_fresh_gradients_has_no_bound_of_staleness():
    config = average(num_gradients=2, max_staleness=0, when_stale="compensate")
    with make_backend(combine=config) as backend:
        introduce(backend, "ab")
        backend.push(make_push(backend, "a", 2, 1.0, 0))
        assert backend.push(make_push(backend, "b", 2, 3.0, 0)).outcome == "applied"
        reply = backend.push(make_push(backend, "a", 3, 1.0, 0))
        assert reply.outcome == "dropped"
        assert "avg only accepts fresh gradients" in reply.reason


def fail_for_memory(*arguments):
    raise MemoryError
