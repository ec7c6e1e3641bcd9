"""Targets in the store: mixed when their source's group is stepped, and again in a replay.

The process that is killed imports this file; it needs no TensorFlow, which takes seconds.
"""

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ROOT
from support.compare import compare

from relaax_like.algorithm import Algorithm, Losses, Target
from relaax_like.algorithm.model import Model, get_variables
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Follow, Variable, find_follows, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Publication, Push
from relaax_like.nn.layers import Dense
from relaax_like.nn.lazy_tensorflow import tf
from relaax_like.parameter_server.initial_values import load_variables, save_variables
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.push_journal import PushJournal
from relaax_like.parameter_server.snapshots import Snapshots, read_latest
from relaax_like.parameter_server.store import Store
from relaax_like.parameter_server.targets import get_follows, scale_to_unit_norm
from relaax_like.wire.errors import ConfigError, InvalidInputError

ADAM = OptimizerConfig(learning_rate=0.1)
OPTIMIZERS = {"actor": ADAM, "critic": ADAM}
HOWS = [
    {"every": 3},
    {"tau": 0.25},
    {"every": 2, "tau": 0.25},
    {"every": 2, "tau": 0.25, "unit_norm": True},
]


class ActorCritic(Model):
    """Two layers in groups of their own, of which the critic has a target.

    Args:
      unit_norm: whether the weights of the critic are scaled.
      how: arguments of `Target`.
    """

    groups = {"actor": ("actor",), "critic": ("critic",)}  # noqa: RUF012

    def __init__(self, unit_norm=False, **how):
        super().__init__()
        self.actor = Dense("actor", 2, 1, seed=1)
        self.critic = Dense("critic", 2, 1, seed=2)
        if unit_norm:
            self.critic.keep_unit_norm()
        self.slow = Target(self.critic, **how)

    def get_input_specs(self):
        return [("x", {"shape": [2]})]

    def get_action_specs(self):
        return [("action", {"shape": [1]})]

    def policy(self, inputs, memory):
        raise NotImplementedError


class Regression(Algorithm):
    """The critic goes to what its target says of another input; the actor to the critic."""

    def learn(self, batch):
        x, model = batch.inputs["x"], self.model
        goal = batch.returns[:, None] + 0.5 * model.slow.module(batch.next_inputs["x"])
        value = model.critic(x)
        return Losses(
            {
                "critic": tf.reduce_mean((tf.stop_gradient(goal) - value) ** 2),
                "actor": tf.reduce_mean((tf.stop_gradient(value) - model.actor(x)) ** 2),
            }
        )


def make_batch(seed, rows=8):
    random = np.random.default_rng(seed)
    return {
        "inputs": {"x": random.normal(size=(rows, 2)).astype(np.float32)},
        "next_inputs": {"x": random.normal(size=(rows, 2)).astype(np.float32)},
        "next_alive": {"alive": np.ones(rows, np.float32)},
        "rewards": {"reward": random.normal(size=(rows, 1)).astype(np.float32)},
        "actions": {"action": np.zeros((rows, 1), np.float32)},
    }


def make_store(variables):
    manifest = make_manifest(variables)
    by_name = {v.name: v.value for v in variables}
    flat = manifest.pack([by_name[s.name] for s in manifest.segments])
    return Store(manifest, flat, OPTIMIZERS, find_follows(variables))


def name_values(store):
    arrays = store.manifest.unpack(store.values.flat)
    return {s.name: a.copy() for s, a in zip(store.manifest.segments, arrays, strict=True)}


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_gradients_in_the_store_lead_to_what_the_compiled_update_does(how):
    from relaax_like.learn.compiled_algorithm import CompiledAlgorithm
    from relaax_like.learn.updates import CompiledUpdates

    compiled = CompiledUpdates(Regression(ActorCritic(**how)), OPTIMIZERS)
    slow = CompiledAlgorithm(Regression(ActorCritic(**how)))
    store = make_store(slow.get_variables())
    for seed in range(10):
        compiled.update(**make_batch(seed))
        gradients, _ = slow.compute_gradients(**make_batch(seed))
        store.apply(store.manifest.pack(gradients, gradient=True))
        slow.set_values(store.manifest.unpack(store.values.flat))
    for name, value in zip(name_values(store), compiled.get_values(), strict=True):
        np.testing.assert_allclose(name_values(store)[name], value, rtol=1e-5, atol=1e-6)
    moved = name_values(store)["target/critic.W"] - get_start()["target/critic.W"]
    assert np.abs(moved).min() > 1e-3


def get_start():
    return {v.name: v.value for v in get_variables(ActorCritic(tau=0.5))}


def test_only_steps_of_the_source_s_group_count():
    store = make_store(get_variables(ActorCritic(every=2)))
    part = store.manifest.select_groups(("actor",)).gradient_bytes
    start = name_values(store)["target/critic.W"]
    for _ in range(4):
        store.apply(np.ones(part // 4, np.float32), groups=("actor",))
    store.apply(np.ones(store.manifest.gradient_bytes // 4, np.float32))
    np.testing.assert_array_equal(name_values(store)["target/critic.W"], start)
    part = store.manifest.select_groups(("critic",)).gradient_bytes
    store.apply(np.ones(part // 4, np.float32), groups=("critic",))
    values = name_values(store)
    np.testing.assert_array_equal(values["target/critic.W"], values["critic.W"])


def test_mixing_at_every_second_step_by_hand():
    store = make_store(get_variables(ActorCritic(every=2, tau=0.25)))
    start = name_values(store)
    for _ in range(3):
        store.apply(np.ones(store.manifest.gradient_bytes // 4, np.float32))
    want, source = start["target/critic.W"], start["critic.W"] - 0.2  # Adam moves by 0.1 per step
    np.testing.assert_allclose(
        name_values(store)["target/critic.W"], 0.75 * want + 0.25 * source, rtol=1e-5
    )


def test_a_publication_says_where_targets_are():
    store = make_store(get_variables(ActorCritic(every=2)))
    state = store.export_state()
    values = state.values.copy()
    values[store.manifest.gradient_bytes :].view(np.float32)[...] = 7.0
    publish = Publication(
        number=1, values=values, slots=state.slots, steps={"actor": 4, "critic": 4}
    )
    store.commit(store.prepare_publish(publish))
    np.testing.assert_array_equal(name_values(store)["target/critic.W"], 7.0)


def test_weights_are_scaled_to_unit_norm_before_the_target_is_mixed():
    store = make_store(get_variables(ActorCritic(tau=0.25, unit_norm=True)))
    start = name_values(store)
    np.testing.assert_allclose(np.linalg.norm(start["critic.W"], axis=0), 1.0, rtol=1e-6)
    store.apply(np.ones(store.manifest.gradient_bytes // 4, np.float32))
    values = name_values(store)
    moved = start["critic.W"] - 0.1  # Adam moves by 0.1 per step
    want = moved / np.linalg.norm(moved)
    np.testing.assert_allclose(values["critic.W"], want, rtol=1e-5)
    mixed = 0.25 * want + 0.75 * start["target/critic.W"]
    np.testing.assert_allclose(values["target/critic.W"], mixed, rtol=1e-5)
    np.testing.assert_allclose(values["critic.b"], start["critic.b"] - 0.1, rtol=1e-5)
    np.testing.assert_allclose(values["actor.W"], start["actor.W"] - 0.1, rtol=1e-5)


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        ([[3.0, 0.0], [4.0, 0.0]], [[0.6, 0.0], [0.8, 0.0]]),
        ([[[2.0], [1.0]], [[2.0], [0.0]]], [[[2 / 3], [1 / 3]], [[2 / 3], [0.0]]]),
        ([3.0, -0.5], [1.0, -1.0]),
    ],
)
def test_units_by_hand(weights, want):
    scaled = scale_to_unit_norm(np.array(weights, np.float32))
    np.testing.assert_allclose(scaled, want, rtol=1e-6)


@pytest.mark.parametrize("source", ["nothing", "mean", "b"])
def test_a_source_that_is_not_trainable_or_does_not_fit_is_refused(source):
    variables = [
        Variable("w", np.zeros(2, np.float32)),
        Variable("b", np.zeros(3, np.float32)),
        Variable("mean", np.zeros(2, np.float32), kind="counter"),
        Variable("target/w", np.zeros(2, np.float32), kind="target", follow=Follow(source, 3)),
    ]
    manifest = make_manifest(variables)
    flat = np.zeros(manifest.total_bytes, np.uint8)
    with pytest.raises(ConfigError, match=f"target/w follows '{source}', which .* a train"):
        Store(manifest, flat, {"default": ADAM}, find_follows(variables))


@pytest.mark.parametrize("follow", [Follow("w", 0), Follow("w", tau=0.0), Follow("w", tau=1.5)])
def test_how_a_target_follows_must_be_in_range(follow):
    variables = [
        Variable("w", np.zeros(2, np.float32)),
        Variable("target/w", np.zeros(2, np.float32), kind="target", follow=follow),
    ]
    manifest = make_manifest(variables)
    flat = np.zeros(manifest.total_bytes, np.uint8)
    with pytest.raises(ConfigError, match=r"target/w follows w with every=.* and tau=.* expected"):
        Store(manifest, flat, {"default": ADAM}, find_follows(variables))


@pytest.mark.parametrize("how", HOWS, ids=str)
def test_what_a_target_follows_survives_a_file_of_initial_values(tmp_path, how):
    variables = get_variables(ActorCritic(**how))
    save_variables(tmp_path / "initial.npz", variables)
    follows = find_follows(load_variables(tmp_path / "initial.npz"))
    assert follows == find_follows(variables)
    assert follows["target/critic.b"] == Follow("critic.b", how.get("every"), how.get("tau"))


def open_server(folder: Path, **how):
    return open_store(folder, make_store(get_variables(ActorCritic(**how))))


def open_store(folder: Path, store):
    server = ParameterServer(
        store,
        snapshots=Snapshots(folder, 3),
        journal=PushJournal(folder / "journal", store.manifest.fingerprint),
        metrics=NullMetrics(),
    )
    server.restore_latest_checkpoint()
    return server


def push(server, sequence):
    random = np.random.default_rng(sequence)
    gradient = random.standard_normal(server.manifest.gradient_bytes // 4).astype(np.float32)
    groups = ("critic",) if sequence % 4 == 0 else ()
    if groups:
        gradient = gradient[: server.manifest.select_groups(groups).gradient_bytes // 4]
    server.push(
        Push(
            client_id="a",
            incarnation=1,
            sequence=sequence,
            gradient=gradient.view(np.uint8),
            fingerprint=server.manifest.fingerprint,
            groups=groups,
        )
    )


def read(server):
    state, _ = server._applier.export()
    return {
        "values": state.values,
        "slots": dict(state.slots),
        "steps": dict(state.steps),
        "version": state.version,
        "follows": {k: vars(v) for k, v in get_follows(state.optimizers).items()},
    }


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("saved", [0, 4])
@pytest.mark.parametrize("killed", [5, 6, 7])
def test_after_a_kill_the_journal_leads_to_the_state_of_an_uninterrupted_run(
    tmp_path, how, saved, killed
):
    """Killed between two copies, at one, and after one; with a snapshot before it or without."""
    with open_server(tmp_path / "straight", **how) as straight:
        for sequence in range(1, 12):
            push(straight, sequence)
            if sequence == killed:
                at_kill = read(straight)
        wanted = read(straight)
    server = open_server(tmp_path / "killed", **how)
    for sequence in range(1, killed + 1):
        push(server, sequence)
        if sequence == saved:
            server.save_checkpoint()
    # What a killed process leaves: its files, and none of what a stop would write.
    shutil.copytree(tmp_path / "killed", tmp_path / "left")
    server.close(save=False)
    with open_server(tmp_path / "left", **how) as again:
        assert compare(read(again), at_kill) == ""
        for sequence in range(killed + 1, 12):
            push(again, sequence)
        assert compare(read(again), wanted) == ""


PUSH_UNTIL_KILLED = """
import os
import signal
import sys
from pathlib import Path

from parameter_server.test_targets import open_server, push

assert "tensorflow" not in sys.modules
server = open_server(Path(sys.argv[1]), every=3)
for sequence in range(1, 6):
    push(server, sequence)
    if sequence == 2:
        server.save_checkpoint()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_leaves_the_state_of_an_uninterrupted_one(tmp_path):
    argv = [sys.executable, "-c", PUSH_UNTIL_KILLED, tmp_path / "killed"]
    done = subprocess.run(argv, cwd=ROOT / "tests", capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_server(tmp_path / "straight", every=3) as straight:
        for sequence in range(1, 12):
            push(straight, sequence)
            if sequence == 5:
                at_kill = read(straight)
        wanted = read(straight)
    with open_server(tmp_path / "killed", every=3) as again:
        assert compare(read(again), at_kill) == ""
        for sequence in range(6, 12):
            push(again, sequence)
        assert compare(read(again), wanted) == ""


def leave_journal(tmp_path):
    """Leaves the folder of a killed run, `left`, with three pushes; returns what they led to."""
    server = open_server(tmp_path / "run", tau=0.25)
    for sequence in range(1, 4):
        push(server, sequence)
    before = read(server)
    shutil.copytree(tmp_path / "run", tmp_path / "left")
    server.close(save=False)
    return before


def test_a_replay_mixes_as_the_run_did_and_later_pushes_as_it_is_configured(tmp_path):
    before = leave_journal(tmp_path)
    with open_server(tmp_path / "left", tau=1.0) as again:
        assert compare(read(again)["values"], before["values"]) == ""
        push(again, 5)
        values = again.manifest.unpack(read(again)["values"])
        named = dict(zip([s.name for s in again.manifest.segments], values, strict=True))
        np.testing.assert_array_equal(named["target/critic.W"], named["critic.W"])
        again.save_checkpoint()
        state = read_latest(tmp_path / "left")
        assert state is not None
        assert get_follows(state.optimizers)["target/critic.W"] == Follow("critic.W", tau=1.0)


def test_a_replay_mixes_as_the_run_did_although_the_target_follows_nothing_now(tmp_path):
    before = leave_journal(tmp_path)
    variables = [replace(v, follow=None) for v in get_variables(ActorCritic(tau=0.25))]
    with open_store(tmp_path / "left", make_store(variables)) as again:
        assert compare(read(again)["values"], before["values"]) == ""
        with pytest.raises(InvalidInputError, match="follows no trainable variable"):
            push(again, 5)
