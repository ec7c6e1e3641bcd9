"""The store: steps, versions, whole pulls. covers R2, R22"""

import threading

import numpy as np
import pytest

from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import (
    COUNTER,
    STATISTIC,
    TARGET,
    Manifest,
    Variable,
    make_manifest,
)
from relaax_like.core.records import Values
from relaax_like.parameter_server.store import BufferPool, Store, view_gradient
from relaax_like.wire.errors import ConfigError, InvalidInputError, SnapshotError

SGD = OptimizerConfig(name="sgd", learning_rate=1.0)
ADAM = OptimizerConfig()


def make_variables() -> list[Variable]:
    return [
        Variable("actor/w", np.arange(6, dtype=np.float32).reshape(2, 3), "actor"),
        Variable("critic/w", np.ones(4, np.float32), "critic"),
        Variable("actor/b", np.zeros(3, np.float32), "actor"),
        Variable("mean", np.full(2, 0.5, np.float64), kind=STATISTIC),
        Variable("count", np.array(7, np.int64), kind=COUNTER),
    ]


def make_store(
    variables: list[Variable] | None = None,
    expects_gradients: bool = True,
    **optimizers: OptimizerConfig,
) -> Store:
    variables = make_variables() if variables is None else variables
    manifest = make_manifest(variables)
    by_name = {variable.name: variable.value for variable in variables}
    flat = manifest.pack([by_name[segment.name] for segment in manifest.segments])
    optimizers = optimizers or {"actor": SGD, "critic": ADAM}
    return Store(manifest, flat, optimizers, expects_gradients=expects_gradients)


def make_gradient(manifest: Manifest, value: float = 1.0) -> np.ndarray:
    return np.full(manifest.gradient_bytes // 4, value, np.float32)


def read(store: Store) -> dict[str, np.ndarray]:
    arrays = store.manifest.unpack(store.values.flat)
    return {s.name: array for s, array in zip(store.manifest.segments, arrays, strict=True)}


def test_each_group_has_its_own_optimizer_and_the_rest_is_carried_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = BufferPool.take

    def take_soiled(pool: BufferPool) -> np.ndarray:  # what is not written shows
        buffer = take(pool)
        buffer[...] = 0xAA
        return buffer

    monkeypatch.setattr(BufferPool, "take", take_soiled)
    store = make_store()
    assert store.version == 0
    assert store.apply(make_gradient(store.manifest), env_steps=5) == 1
    got = read(store)
    np.testing.assert_array_equal(got["actor/w"], np.arange(6).reshape(2, 3) - 1)
    np.testing.assert_array_equal(got["actor/b"], [-1, -1, -1])
    np.testing.assert_allclose(got["critic/w"], 1 - 1e-3, rtol=1e-5)  # Adam's first step is lr
    np.testing.assert_array_equal(got["mean"], [0.5, 0.5])
    assert got["count"] == 7
    assert (store.version, store.global_t) == (1, 5)


def test_kernels_that_are_compiled_late_make_the_same_steps() -> None:
    states = []
    for expects_gradients in (True, False):
        store = make_store(expects_gradients=expects_gradients)
        for value in (1.0, -2.0):
            store.apply(make_gradient(store.manifest, value), env_steps=1)
        states.append(store.export_state())
    one, other = states
    assert one.values.tobytes() == other.values.tobytes()
    assert {group: slots.tobytes() for group, slots in one.slots.items()} == {
        group: slots.tobytes() for group, slots in other.slots.items()
    }


def test_steps_alone_make_no_version() -> None:
    store = make_store()
    before = store.values
    store.apply(None, env_steps=np.int64(3))  # type: ignore[arg-type]
    store.apply(None, env_steps=4)
    assert (store.version, store.global_t) == (0, 7)
    assert type(store.global_t) is int
    assert store.values.flat is before.flat


@pytest.mark.parametrize("form", ["uint8", "float32", "bytes", "unaligned", "strided"])
def test_gradient_in_any_form(form: str) -> None:
    store = make_store()
    gradient = np.arange(13, dtype=np.float32)
    raw = gradient.view(np.uint8)
    shifted = np.zeros(raw.size + 1, np.uint8)
    shifted[1:] = raw
    forms: dict[str, np.ndarray | bytes] = {
        "uint8": raw,
        "float32": gradient,
        "bytes": gradient.tobytes(),
        "unaligned": shifted[1:],
        "strided": np.repeat(gradient, 2)[::2],
    }
    store.apply(forms[form])
    np.testing.assert_array_equal(read(store)["actor/b"], -gradient[6:9])


@pytest.mark.parametrize(
    "gradient",
    [
        np.zeros(12, np.float32),
        np.zeros(14, np.float32),
        np.zeros(0, np.uint8),
        np.zeros((13, 1), np.float32),
        np.zeros(13, np.int32),
        b"",
    ],
)
def test_gradient_of_wrong_length_changes_nothing(gradient: np.ndarray | bytes) -> None:
    store = make_store()
    before = store.values
    with pytest.raises(InvalidInputError, match="expected"):
        store.apply(gradient, env_steps=1)
    assert store.values.flat is before.flat
    assert store.global_t == 0


def test_learning_rate_follows_the_schedule_of_its_group() -> None:
    linear = OptimizerConfig(
        name="sgd",
        learning_rate=1.0,
        schedule="linear",
        learning_rate_end=0.0,
        schedule_env_steps=10,
    )
    store = make_store([Variable("w", np.zeros(1, np.float32))], default=linear)
    weights = []
    for _ in range(4):
        store.apply(np.ones(1, np.float32), env_steps=5)
        weights.append(float(read(store)["w"][0]))
    assert weights == [-1.0, -1.5, -1.5, -1.5]
    assert store.compute_learning_rates() == {"default": 0.0}


@pytest.mark.parametrize(
    ("optimizers", "message"),
    [
        ({"actor": SGD}, "group 'critic' has no optimizer"),
        ({"actor": SGD, "critic": SGD, "critc": SGD}, "'critc'.*did you mean 'critic'"),
        ({"actor": SGD, "critik": SGD}, "group 'critic' has no optimizer .did you mean 'critik'"),
    ],
)
def test_group_and_optimizer_that_do_not_match_are_refused(
    optimizers: dict[str, OptimizerConfig], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_store(None, **optimizers)


def test_a_gradient_is_refused_where_there_are_target_variables() -> None:
    variables = [*make_variables(), Variable("old/w", np.zeros(1, np.float32), kind=TARGET)]
    store = make_store(variables)
    store.apply(None, env_steps=3)
    with pytest.raises(InvalidInputError, match=r"old/w: .*placement: server"):
        store.apply(np.zeros(store.manifest.gradient_bytes, np.uint8))
    assert (store.version, store.global_t) == (0, 3)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable"):
        make_store([Variable("n", np.zeros(1, np.int64), kind=COUNTER)])


def test_initial_values_that_are_not_finite_are_refused() -> None:
    variables = make_variables()
    variables[1].value[2] = np.nan
    with pytest.raises(InvalidInputError, match=r"critic/w: .* contains nan"):
        make_store(variables)


def test_initial_values_of_wrong_length_are_refused() -> None:
    manifest = make_manifest(make_variables())
    with pytest.raises(InvalidInputError, match="values: uint8"):
        Store(manifest, np.zeros(5, np.uint8), {"actor": SGD, "critic": SGD})


def test_store_copies_its_initial_values() -> None:
    variables = [Variable("w", np.zeros(2, np.float32))]
    manifest = make_manifest(variables)
    flat = manifest.pack([np.zeros(2, np.float32)])
    store = Store(manifest, flat, {"default": SGD})
    flat[...] = 99
    assert not store.values.flat.any()


def test_pulled_values_cannot_be_written_to_and_stay_as_they_are() -> None:
    store = make_store()
    held = store.values
    with pytest.raises(ValueError, match="read-only"):
        held.flat[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        held.flat.flags.writeable = True
    before = held.flat.copy()
    for _ in range(10):
        store.apply(make_gradient(store.manifest))
    np.testing.assert_array_equal(held.flat, before)
    assert (held.version, store.version) == (0, 10)


@pytest.mark.parametrize(
    "derive",
    [
        lambda flat: flat[4:20],
        lambda flat: flat[:24].view(np.float32).reshape(2, 3)[1],
        lambda flat: memoryview(flat)[2:],
        lambda flat: np.asarray(flat)[:][:8],
    ],
    ids=["slice", "reshaped", "memoryview", "slice_of_slice"],
)
def test_part_of_a_pull_keeps_the_whole_of_it(derive) -> None:  # type: ignore[no-untyped-def]
    store = make_store()
    store.apply(make_gradient(store.manifest))
    part = derive(store.values.flat)  # nothing else of this version is held
    before = bytes(part)
    for _ in range(10):
        store.apply(make_gradient(store.manifest))
    assert bytes(part) == before


def test_two_buffers_take_turns_when_nobody_reads() -> None:
    store = make_store()
    addresses = set()
    for _ in range(20):
        store.apply(make_gradient(store.manifest))
        addresses.add(store.values.flat.__array_interface__["data"][0])
    assert len(addresses) == 2


def test_pool_reuses_what_was_let_go_and_nothing_else() -> None:
    pool = BufferPool(8)
    first, second = pool.take(), pool.take()
    assert first is not second
    first_face, second_face = pool.publish(first), pool.publish(second)
    assert pool.take() is not first
    del first_face
    assert pool.take() is first
    assert pool.take() is not second
    assert second_face is not None


def test_pool_forgets_buffers_of_readers_that_never_let_go() -> None:
    pool = BufferPool(8)
    held = [pool.publish(pool.take()) for _ in range(50)]
    assert len(pool._published) <= 5
    assert len({face.__array_interface__["data"][0] for face in held}) == 50


def test_reader_threads_never_see_a_half_applied_version() -> None:
    # SGD with rate 1 and a gradient of -1: all elements equal the version, always.
    size = 50_000
    store = make_store([Variable("w", np.zeros(size, np.float32))], default=SGD)
    gradient = np.full(size, -1.0, np.float32)
    stop, errors = threading.Event(), []
    seen: set[int] = set()

    def read_on() -> None:
        held: list[Values] = []
        while not stop.is_set():
            values = store.values
            held = [*held[-3:], values]
            for old in held:
                weights = old.flat.view(np.float32)
                if weights.min() != old.version or weights.max() != old.version:
                    errors.append((old.version, weights.min(), weights.max()))
            seen.add(values.version)

    threads = [threading.Thread(target=read_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(seen) < 50 or store.version < 300:
        store.apply(gradient)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_state_is_of_one_moment_and_immutable() -> None:
    store = make_store()
    store.apply(make_gradient(store.manifest), env_steps=2)
    state = store.export_state()
    values, slots = state.values.copy(), state.slots["critic"].copy()
    for _ in range(5):
        store.apply(make_gradient(store.manifest, 3.0), env_steps=2)
    assert (state.version, state.global_t, dict(state.steps)) == (1, 2, {"actor": 1, "critic": 1})
    np.testing.assert_array_equal(state.values, values)
    np.testing.assert_array_equal(state.slots["critic"], slots)
    assert state.slots["actor"].shape == (0, 9)
    assert state.slot_names == {"actor": (), "critic": ("first_moment", "second_moment")}


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd"])
def test_imported_state_goes_on_bit_by_bit(name: str) -> None:
    config = OptimizerConfig(name=name, momentum=0.5)  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    one, other = (make_store(None, actor=config, critic=ADAM) for _ in range(2))
    gradients = random.normal(size=(6, 13)).astype(np.float32)
    for gradient in gradients[:3]:
        one.apply(gradient, env_steps=10)
    other.import_state(one.export_state())
    for gradient in gradients[3:]:
        one.apply(gradient, env_steps=10)
        other.apply(gradient, env_steps=10)
    assert one.values.flat.tobytes() == other.values.flat.tobytes()
    a, b = one.export_state(), other.export_state()
    assert (a.version, a.global_t, a.steps) == (b.version, b.global_t, b.steps) == (6, 60, a.steps)
    for group in ("actor", "critic"):
        assert a.slots[group].tobytes() == b.slots[group].tobytes()


def test_state_of_another_optimizer_is_refused() -> None:
    store, other = make_store(), make_store(None, actor=ADAM, critic=ADAM)
    before = other.values
    with pytest.raises(SnapshotError, match=r"group actor .*adam needs"):
        other.import_state(store.export_state())
    assert other.values.flat is before.flat


def test_state_of_another_layout_is_refused() -> None:
    store = make_store([Variable("w", np.zeros(2, np.float32))], default=SGD)
    with pytest.raises(SnapshotError, match="layout"):
        store.import_state(make_store().export_state())


def test_view_gradient_copies_nothing_when_aligned() -> None:
    store = make_store()
    gradient = np.zeros(13, np.float32)
    assert np.shares_memory(view_gradient(gradient.view(np.uint8), store.manifest), gradient)
