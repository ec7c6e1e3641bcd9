"""Gradients for some variable groups alone: nothing else moves. covers F10, R2"""

import numpy as np
import pytest

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import STATISTIC, Manifest, Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.moments import Moments
from relaax_like.core.records import Push
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import BufferPool, Store
from relaax_like.wire.errors import ConfigError, InvalidInputError

ADAM = OptimizerConfig(learning_rate=0.1)
VARIABLES = (
    Variable("a/w", np.arange(6, dtype=np.float32).reshape(2, 3), "a"),
    Variable("b/w", np.ones(4, np.float32), "b"),
    Variable("a/b", np.zeros(2, np.float32), "a"),
    Variable("c/w", np.full(3, 5, np.float32), "c"),
    Variable("s.count", np.zeros(()), kind=STATISTIC),
    Variable("s.mean", np.zeros(()), kind=STATISTIC),
    Variable("s.m2", np.zeros(()), kind=STATISTIC),
)


def make_store(groups="abc"):
    variables = [v for v in VARIABLES if v.group in groups or v.kind == STATISTIC]
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    return Store(manifest, flat, dict.fromkeys(groups, ADAM))


def make_gradient(manifest: Manifest, groups: str, seed: int) -> np.ndarray:
    size = manifest.select_groups(tuple(groups)).gradient_bytes // 4
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def read(store: Store, group: str) -> list[np.ndarray]:
    """Weights and Adam's slots of a group."""
    elements = store.manifest.groups()[group]
    weights = store.values.flat[: store.manifest.gradient_bytes].view(np.float32)[elements]
    return [weights.copy(), store.export_state().slots[group].copy()]


@pytest.fixture(autouse=True)
def soiled(monkeypatch):
    """Buffers come with garbage in them, so that what is not written shows."""
    take = BufferPool.take

    def take_soiled(pool):
        buffer = take(pool)
        buffer[...] = 0xAA
        return buffer

    monkeypatch.setattr(BufferPool, "take", take_soiled)


def test_groups_that_are_not_named_keep_weights_slots_and_step_numbers_bit_by_bit():
    store = make_store()
    store.apply(make_gradient(store.manifest, "abc", 0))
    before = {group: read(store, group) for group in "abc"}
    assert store.apply(make_gradient(store.manifest, "b", 1), 3, None, ("b",)) == 2
    for group in "ac":
        for now, then in zip(read(store, group), before[group], strict=True):
            np.testing.assert_array_equal(now, then)
    for now, then in zip(read(store, "b"), before["b"], strict=True):
        assert (now != then).all()
    assert store.export_state().steps == {"a": 1, "b": 2, "c": 1}
    assert store.global_t == 3


def test_a_zero_gradient_for_all_groups_would_have_moved_them():
    store = make_store()
    store.apply(make_gradient(store.manifest, "abc", 0))
    before = read(store, "a")[0]
    store.apply(np.zeros(15, np.float32))
    assert (read(store, "a")[0] != before).all()


def test_pushes_of_different_groups_by_turns_equal_runs_that_know_nothing_of_each_other():
    # Bias correction and slots are each group's own.
    together, alone = make_store(), {group: make_store(group) for group in "abc"}
    for seed, groups in enumerate(["a", "b", "b", "ca", "b", "abc", "a", "bc"]):
        gradient = make_gradient(together.manifest, groups, seed)
        together.apply(gradient, 0, None, tuple(groups))
        start = 0
        for group in sorted(groups):  # as the manifest has them
            size = alone[group].manifest.gradient_bytes // 4
            alone[group].apply(gradient[start : start + size])
            start += size
        assert start == gradient.size
    for group, store in alone.items():
        for got, want in zip(read(together, group), read(store, group), strict=True):
            np.testing.assert_array_equal(got, want)
        assert together.export_state().steps[group] == store.export_state().steps[group]


def test_statistics_go_with_a_gradient_of_one_group():
    store = make_store()
    store.apply(make_gradient(store.manifest, "a", 0), 1, {"s": Moments.of(np.ones(3))}, ("a",))
    count, mean, _ = store.manifest.view_statistic(store.values.flat, "s")
    assert (count, mean, store.version) == (3, 1, 1)


def test_a_restored_run_goes_on_with_each_group_s_own_steps():
    one, other = make_store(), make_store()
    for groups in ("a", "b", "a"):
        one.apply(make_gradient(one.manifest, groups, 1), 0, None, tuple(groups))
    other.import_state(one.export_state())
    for store in (one, other):
        store.apply(make_gradient(store.manifest, "bc", 2), 0, None, ("b", "c"))
    np.testing.assert_array_equal(one.values.flat, other.values.flat)
    assert other.export_state().steps == {"a": 2, "b": 2, "c": 1}


def test_the_order_of_the_names_does_not_matter():
    one, other = make_store(), make_store()
    gradient = make_gradient(one.manifest, "ac", 0)
    one.apply(gradient, 0, None, ("a", "c"))
    other.apply(gradient, 0, None, ("c", "a"))
    np.testing.assert_array_equal(one.values.flat, other.values.flat)


@pytest.mark.parametrize(
    ("groups", "size", "want"),
    [
        (("d",), 4, "unknown variable group 'd'; this run has a, b, c"),
        (("a", "a"), 16, "duplicate name"),
        (("b",), 15, "expected 16"),
        (("a", "c"), 4, "expected 44"),
        ((), 4, "expected 60"),
    ],
    ids=["unknown", "twice", "all values for one group", "too short", "one group's for all"],
)
def test_a_wrong_group_or_length_changes_nothing_and_is_counted(groups, size, want):
    store = make_store()
    before = store.values
    gradient = np.zeros(size, np.float32)
    with pytest.raises(InvalidInputError, match=want):
        store.apply(gradient, 1, None, groups)
    with ParameterServer(store, metrics=NullMetrics()) as server:
        push = Push(
            client_id="c",
            gradient=gradient.view(np.uint8),
            fingerprint=server.manifest.fingerprint,
            env_steps=1,
            groups=groups,
        )
        with pytest.raises(InvalidInputError, match=want):
            server.push(push, 5)
        assert sum(server.status().refused.values()) == 1
    assert store.values.flat is before.flat
    assert store.global_t == 0


def test_groups_without_a_gradient_are_refused():
    with ParameterServer(make_store(), metrics=NullMetrics()) as server:
        with pytest.raises(InvalidInputError, match="groups: a, but there is no gradient"):
            server.push(Push(client_id="c", env_steps=2, groups=("a",)), 5)
        assert server.global_t == 0


def test_nan_names_the_variable_of_the_group_that_was_pushed():
    with ParameterServer(make_store(), metrics=NullMetrics()) as server:
        gradient = np.zeros(11, np.float32)
        gradient[-1] = np.nan
        push = Push(
            client_id="c",
            gradient=gradient.view(np.uint8),
            fingerprint=server.manifest.fingerprint,
            groups=("a", "c"),
        )
        with pytest.raises(InvalidInputError, match="c/w: the gradient contains nan"):
            server.push(push, 5)


# Which optimizer serves which group.


def make_optimizers(**rates: float) -> dict[str, OptimizerConfig]:
    return {
        name.replace("__", "/"): OptimizerConfig(name="sgd", learning_rate=rate)
        for name, rate in rates.items()
    }


def make_hierarchical_store(optimizers):
    variables = [
        Variable(group.replace("+", "-"), np.zeros(1, np.float32), group)
        for group in ("goal/default", "goal/critic", "goal+control/default")
    ]
    manifest = make_manifest(variables)
    return Store(manifest, manifest.pack([v.value for v in variables]), optimizers)


@pytest.mark.parametrize(
    ("rates", "want"),
    [
        ({"default": 1.0}, [1, 1, 1]),
        ({"default": 1.0, "critic": 2.0}, [1, 2, 1]),
        ({"default": 1.0, "critic": 2.0, "goal__default": 3.0}, [3, 2, 1]),
        ({"default": 1.0, "critic": 2.0, "goal__critic": 3.0, "goal__default": 4.0}, None),
    ],
    ids=["one for all", "by the model's group", "by the Algorithm's group", "one is left over"],
)
def test_an_algorithm_s_group_finds_its_optimizer(rates, want):
    optimizers = make_optimizers(**rates)
    if want is None:
        with pytest.raises(ConfigError, match="optimizer for 'critic', but no variable"):
            make_hierarchical_store(optimizers)
        return
    assert list(make_hierarchical_store(optimizers).compute_learning_rates().values()) == want


def test_an_algorithm_s_group_without_any_optimizer_is_named():
    with pytest.raises(ConfigError, match="'goal/critic' has no optimizer"):
        make_hierarchical_store(make_optimizers(goal__default=1.0))


def test_a_group_that_belongs_to_no_algorithm_still_needs_its_own():
    manifest = make_manifest([Variable("w", np.zeros(1, np.float32), "actor")])
    with pytest.raises(ConfigError, match="'actor' has no optimizer"):
        Store(manifest, np.zeros(4, np.uint8), make_optimizers(default=1.0))
