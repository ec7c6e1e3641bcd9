"""CompiledGradients: with a parameter server it makes the updates of CompiledUpdates."""

# covers F6, F9

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.scalars import Chase, Scalars, make_x, read

from relaax_like.algorithm import Algorithm, Losses, Phase
from relaax_like.bridge.in_process import InProcessClient
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.learn.draw import Draw
from relaax_like.learn.gradients import CompiledGradients
from relaax_like.learn.updates import CompiledUpdates
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.store import Store
from relaax_like.wire.errors import ConfigError, InvalidInputError

OPTIMIZERS = dict.fromkeys(("critic", "actor"), OptimizerConfig(learning_rate=0.3, epsilon=1e-3))


class PreparedVersion(Chase):
    """The actor also goes to where the critic was when `prepare` was called."""

    phases = (Phase("critic"), Phase("actor", every=2))

    def prepare(self, batch: Any) -> dict[str, tf.Tensor]:
        return {"before": tf.ones_like(batch.inputs["x"]) * self.model.critic}

    def learn(self, batch: Any) -> Losses:
        losses = super().learn(batch)
        before = batch.extras["before"]
        actor = losses.costs["actor"] + batch.mean((self.model.actor - before) ** 2)
        rows = {"before": before + batch.inputs["x"]}
        return Losses({**losses.costs, "actor": actor}, rows, losses.metrics)


class Frozen(PreparedVersion):
    phases = ()
    frozen = ("critic",)

    def learn(self, batch: Any) -> Losses:
        losses = super().learn(batch)
        return Losses({"actor": losses.costs["actor"]}, losses.rows)


class Measured(PreparedVersion):
    """Its metrics are the critic, as each of the two phases sees it."""

    def learn(self, batch: Any) -> Losses:
        losses, critic = super().learn(batch), self.model.critic * 1.0
        seen = {"first": critic, "actor": {"second": critic}}
        return Losses(losses.costs, losses.rows, seen)

    def stop(self, metrics: Any) -> Any:
        return metrics["second"] > 1e6


def serve(algorithm: Algorithm) -> ParameterServer:
    variables = CompiledGradients(algorithm).get_variables()
    manifest = make_manifest(variables)
    values = manifest.pack([variable.value for variable in variables])
    return ParameterServer(Store(manifest, values, OPTIMIZERS), metrics=NullMetrics())


def push_all(compiled: CompiledGradients, client: InProcessClient, batch: Any) -> Iterator[Any]:
    for gradient in compiled.compute_updates(**batch):
        compiled.set_values(client.push_pull(gradient.arrays, gradient.groups))
        yield gradient


@pytest.mark.parametrize("xla", [False, True], ids=["plain", "xla"])
@pytest.mark.parametrize("kind", [Chase, PreparedVersion, Frozen])
def test_its_pushes_lead_to_what_one_compiled_update_leads_to(kind: Any, xla: bool) -> None:
    whole = CompiledUpdates(kind(Scalars(xla)), OPTIMIZERS)
    compiled = CompiledGradients(kind(Scalars(xla)))
    compiled.wants_rows = True
    with serve(kind(Scalars())) as server, InProcessClient(server) as client:
        for number in range(1, 6):
            batch = make_x(np.arange(number, number + 3))
            if xla and number == 3:  # the next one of this shape is compiled for it
                seen = json.loads(json.dumps(compiled.get_seen()))  # as a stopped run keeps it
                compiled.set_seen([[key, 1_000_000] for key, _ in seen])
            wanted = whole.update(**batch)
            first, *rest = push_all(compiled, client, batch)
            assert len(rest) == (kind is PreparedVersion and number % 2 == 0)
            assert [one.is_last for one in (first, *rest)] == [False, True][-1 - len(rest) :]
            if kind is PreparedVersion:
                assert ("actor" in first.numbers) == bool(rest)
            assert read(compiled) == pytest.approx(read(whole), rel=1e-6)
            numbers = {name: y for one in (first, *rest) for name, y in one.numbers.items()}
            for group in kind.phases[-1].groups if rest else ():
                assert numbers[group] == pytest.approx(wanted.costs[group])
            for name, rows in wanted.rows.items():
                np.testing.assert_allclose(first.rows[name], rows, rtol=1e-6)
        steps = server.lease().steps
    alone = whole.export_optimizers().steps
    assert {group: steps[group] for group in alone} == dict(alone)


def test_a_metric_under_a_group_is_computed_in_its_phase() -> None:
    whole = CompiledUpdates(Measured(Scalars(False)), OPTIMIZERS)
    compiled = CompiledGradients(Measured(Scalars(False)))
    with serve(Measured(Scalars())) as server, InProcessClient(server) as client:
        for number in range(1, 5):
            before, batch = read(whole)["critic"], make_x(np.arange(number, number + 2))
            costs = whole.update(**batch).costs
            pushed = [one.numbers for one in push_all(compiled, client, batch)]
            assert costs["first"] == pytest.approx(pushed[0]["first"]) == pytest.approx(before)
            if number % 2 == 0:
                after = pytest.approx(read(whole)["critic"])
                assert costs["second"] == after
                assert pushed[1]["second"] == after
            else:
                assert costs["second"] == 0
                assert len(pushed) == 1
                assert "second" not in pushed[0]


def test_a_batch_that_is_no_multiple_of_the_minibatch_is_refused() -> None:
    compiled = CompiledGradients(Chase(Scalars(False)))
    with pytest.raises(InvalidInputError, match="batch_size: 2, but the batch has 3 rows or seq"):
        list(compiled.compute_updates(Draw(batch_size=2), **make_x(np.arange(3.0))))


def test_phases_that_do_not_fit_the_groups_are_refused() -> None:
    class Wrong(Chase):
        phases = (Phase("actor"), Phase("citric"))

    with pytest.raises(ConfigError, match=r"test_gradients.py:\d+: phases: 'citric' .*'critic'\?"):
        CompiledGradients(Wrong(Scalars()))


class Stopping(PreparedVersion):
    """Looks at a cost that is due in every second update alone."""

    def stop(self, metrics: Any) -> Any:
        return metrics["actor"] < -1.0


class Failing(PreparedVersion):
    def stop(self, metrics: Any) -> Any:
        return metrics["no such cost"] > 0


def test_an_error_in_stop_names_its_line() -> None:
    compiled = CompiledGradients(Failing(Scalars(False)))
    draw = Draw(batch_size=2, epochs=2, seed=1)
    with pytest.raises(ConfigError, match=r"test_gradients\.py:\d+: KeyError: 'no such cost'"):
        list(compiled.compute_updates(draw, **make_x(np.arange(4.0))))


@pytest.mark.parametrize(
    ("draw", "want"),
    [
        (Draw(epochs=0, batch_size=2, seed=0), "epochs: 0, expected 1 or more"),
        (Draw(epochs=0), "epochs: 0, expected 1 or more"),
        (Draw(epochs=2, batch_size=2, seed=0, count=1), "count: 1, expected 2 .* to 4"),
        (Draw(epochs=2, batch_size=2, seed=0, count=5), "count: 5, expected 2 .* to 4"),
    ],
)
def test_numbers_with_which_no_update_would_be_the_last_are_refused(draw: Draw, want: str) -> None:
    compiled = CompiledGradients(PreparedVersion(Scalars(False)))
    with pytest.raises(InvalidInputError, match=want):
        next(compiled.compute_updates(draw, **make_x(np.arange(4.0))))


@pytest.mark.parametrize("minibatch", [2, 4])
@pytest.mark.parametrize("kind", [PreparedVersion, Stopping])
def test_results_of_rows_are_at_their_places_after_all_epochs(kind: Any, minibatch: int) -> None:
    compiled = CompiledGradients(kind(Scalars(False)))
    compiled.wants_rows = True
    x = np.arange(4.0, dtype=np.float32)
    draw = Draw(batch_size=minibatch, epochs=3, seed=1)
    *_, last = compiled.compute_updates(draw, **make_x(x))
    assert last.is_last
    assert last.rows
    for rows in last.rows.values():
        step = rows[1] - rows[0]
        assert step
        np.testing.assert_allclose(rows - rows[0], step * x, rtol=1e-5)
