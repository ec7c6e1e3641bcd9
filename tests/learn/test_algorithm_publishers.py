"""Each Algorithm's learner publishes its part of one run. covers F2, F10, F11"""

import threading
from typing import ClassVar

import numpy as np
import pytest
from support.hierarchy import load, make_store

from relaax_like.algorithm.model import get_variables
from relaax_like.config.optimizer import OptimizerConfig
from relaax_like.core.manifest import Variable, make_manifest
from relaax_like.core.metrics import NullMetrics
from relaax_like.core.records import Counts, Lease, Publication, Received
from relaax_like.learn.algorithm_publishers import AlgorithmPublishers
from relaax_like.learn.named_algorithms import NamedAlgorithms
from relaax_like.nn.layers import Dense
from relaax_like.nn.normalization import Normalizer
from relaax_like.parameter_server.parameter_server import ParameterServer
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.wire.errors import ConfigError, InvalidInputError, RelaaxError

CONFIG = load("config").Config()
LinearPolicy, Reinforce = load("algorithm").LinearPolicy, load("algorithm").Reinforce


class Normalized(LinearPolicy):
    """Holds a running statistic, and two groups in reverse order of their layers."""

    groups: ClassVar = {"late": ("layer",), "early": ("trunk",)}

    def __init__(self, chooses, seed, trunk=None):
        super().__init__("observation", chooses, seed)
        self.normalizer = Normalizer("norm", (2,))
        self.trunk = trunk or Dense("trunk", 2, 2, seed=seed + 7)


def make_named(**trunks):
    return NamedAlgorithms(
        {
            name: Reinforce(Normalized(name, seed, trunks.get(name)), CONFIG, 0)
            for seed, name in enumerate(("goal", "control"))
        }
    )


OPTIMIZERS = {
    "control/early": OptimizerConfig(name="sgd", learning_rate=0.1),
    "default": OptimizerConfig(),
}


def make_server(named, **options):
    store = make_store(named.algorithms, OPTIMIZERS)
    return ParameterServer(store, metrics=NullMetrics(), **options)


def get_manifest(named, name):
    return make_manifest(get_variables(named.algorithms[name].model))


def make_publishers(server, named):
    return AlgorithmPublishers(
        server, {name: get_manifest(named, name) for name in named.algorithms}
    )


@pytest.fixture
def named():
    return make_named()


@pytest.fixture
def server(named):
    with make_server(named) as server:
        yield server


def make_publication(lease: Lease, number: float, **fields) -> Publication:
    """Publishes one number in all that a learner has learned."""
    values = lease.values.copy()
    for array in lease.manifest.unpack(values):
        array[...] = number
    return Publication(
        number=lease.number + 1,
        values=values,
        slots={group: np.full_like(slots, number) for group, slots in lease.slots.items()},
        steps=dict.fromkeys(lease.steps, int(number)),
        **fields,
    )


def read(server):
    """Returns the values of all variables, by name."""
    arrays = server.get_values()
    return {s.name: array for s, array in zip(server.manifest.segments, arrays, strict=True)}


def test_a_lease_has_the_variables_of_its_algorithm_in_the_order_of_its_algorithm(server, named):
    publishers = make_publishers(server, named)
    whole = read(server)
    for name, algorithm in named.algorithms.items():
        lease = publishers.make_publisher(name).lease()
        names = [segment.name for segment in lease.manifest.segments]
        assert names[:4] == ["logits.W", "logits.b", "trunk.W", "trunk.b"]
        assert len(names) == 7  # and a running statistic
        for own, array in zip(names, lease.manifest.unpack(lease.values), strict=True):
            np.testing.assert_array_equal(array, whole[f"{name}/{own}"])
        assert set(lease.slots) == set(lease.steps) == {"late", "early"}
        few = name == "control"
        assert [len(lease.slot_names[group]) for group in ("early", "late")] == [0 if few else 2, 2]
        assert (lease.number, lease.version, lease.global_t, lease.finished) == (0, 0, 0, "")
        assert len(algorithm.model.find_variables()) == 7


def test_publications_of_algorithms_are_merged_and_counted_on(server, named):
    publishers = make_publishers(server, named)
    goal, control = (publishers.make_publisher(name) for name in ("goal", "control"))
    first, second = goal.lease(), control.lease()
    assert goal.publish(make_publication(first, 1.0)).version == 1
    assert control.publish(make_publication(second, 2.0, env_steps=8)).version == 2
    # The same number as before, as the learner counts its own: it is the run's third all the same.
    reply = goal.publish(make_publication(first, 3.0, env_steps=0))
    assert (reply.outcome, reply.version, reply.global_t) == ("applied", 3, 8)
    for name, array in read(server).items():
        assert np.all(array == (3.0 if name.startswith("goal/") else 2.0)), name
    whole = server.lease()
    assert whole.number == 3
    assert whole.steps == {"goal/late": 3, "goal/early": 3, "control/late": 2, "control/early": 2}
    for group, slots in whole.slots.items():
        assert np.all(slots == (3.0 if group.startswith("goal/") else 2.0)), group
    # A learner that begins again finds what the other Algorithm has published meanwhile, too.
    again = goal.lease()
    assert (again.number, again.version, again.global_t) == (3, 3, 8)
    assert all(np.all(array == 3.0) for array in again.manifest.unpack(again.values))


def test_a_publication_that_the_run_ignores_ends_its_learner(server, named):
    publishers = make_publishers(server, named)
    goal = publishers.make_publisher("goal")
    lease = goal.lease()
    server.publish(make_publication(server.lease(), 9.0))  # what a half-failed one leaves behind
    with pytest.raises(RelaaxError, match="publication 1 of goal was ignored"):
        goal.publish(make_publication(lease, 1.0))


def test_each_step_is_counted_once_whichever_algorithm_publishes(server, named):
    publishers = make_publishers(server, named)
    makers = {name: publishers.make_publisher(name) for name in ("goal", "control")}
    leases = {name: maker.lease() for name, maker in makers.items()}

    def publish(name, env_steps):
        for number in range(50):
            publication = make_publication(leases[name], number, env_steps=env_steps)
            makers[name].publish(publication)
            makers[name].count(Counts(env_steps=env_steps))

    threads = [threading.Thread(target=publish, args=one) for one in (("goal", 0), ("control", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert server.global_t == 2 * 50 * 3 == makers["goal"].global_t
    lease = server.lease()
    assert lease.number == 100  # none was taken for another's
    assert set(lease.steps.values()) == {49}


def test_clients_of_algorithms_do_not_mix(tmp_path, named):
    snapshots = Snapshots(tmp_path)
    with make_server(named, snapshots=snapshots) as server:
        publishers = make_publishers(server, named)
        goal, control = (publishers.make_publisher(name) for name in ("goal", "control"))
        first, second = goal.lease(), control.lease()
        goal.publish(make_publication(first, 1.0, received={"rlx": Received(5, 2, 1)}))
        received = {"rlx": Received(5, 9, 8), "goal/rlx": Received(1, 1, 1)}
        control.publish(make_publication(second, 2.0, received=received, env_steps=1))
        more = {"rlx": Received(5, 10, 8), "goal/rlx": Received(1, 1, 1)}
        control.count(Counts(env_steps=1, received=more))
        assert goal.lease().received == {"rlx": Received(5, 2, 1)}
        assert control.lease().received == more
        server.save_checkpoint()
    with make_server(named, snapshots=Snapshots(tmp_path)) as server:  # the next start
        assert server.restore_latest_checkpoint()
        publishers = make_publishers(server, named)
        lease = publishers.make_publisher("goal").lease()
        assert lease.received == {"rlx": Received(5, 2, 1)}
        assert lease.number == 2
        assert publishers.make_publisher("control").lease().received == more


def test_what_is_refused_changes_nothing(server, named):
    publishers = make_publishers(server, named)
    goal, control = (publishers.make_publisher(name) for name in ("goal", "control"))
    first, second = goal.lease(), control.lease()
    broken = make_publication(first, 1.0)
    first.manifest.unpack(broken.values)[0][0, 0] = np.nan
    with pytest.raises(InvalidInputError, match="contains nan"):
        goal.publish(broken)
    control.publish(make_publication(second, 2.0))
    np.testing.assert_array_equal(goal.lease().values, first.values)
    assert server.lease().number == 1


def test_after_the_end_values_stay_and_steps_are_counted(named):
    with make_server(named, stop=StopCondition(10)) as server:
        publishers = make_publishers(server, named)
        goal, control = (publishers.make_publisher(name) for name in ("goal", "control"))
        first, second = goal.lease(), control.lease()
        assert goal.finished == ""
        control.publish(make_publication(second, 2.0, env_steps=10))
        assert "10" in goal.finished  # before it has published anything
        reply = goal.publish(make_publication(first, 1.0, env_steps=2))
        assert (reply.outcome, reply.version, reply.global_t) == ("nothing", 1, 12)
        np.testing.assert_array_equal(goal.lease().values, first.values)


def test_a_run_of_other_variables_is_refused_by_name(server, named):
    other = make_manifest([Variable("logits.W", np.zeros((3, 2), np.float32))])
    publisher = AlgorithmPublishers(server, {"goal": other}).make_publisher("goal")
    with pytest.raises(InvalidInputError, match=r"goal/logits\.W: the run has .* expected"):
        publisher.lease()
    publisher = AlgorithmPublishers(server, {"act": get_manifest(named, "goal")}).make_publisher(
        "act"
    )
    with pytest.raises(InvalidInputError, match=r"act/logits\.W: the run has no such variable"):
        publisher.lease()


def test_what_the_run_says_is_what_an_algorithm_hears(server, named):
    publisher = make_publishers(server, named).make_publisher("goal")
    publisher.lease()
    assert publisher.best_score == server.best_score
    assert publisher.train_return == server.train_return
    assert publisher.metrics() is server.metrics()
    publisher.save_next_publication(2.5)
    assert server._next_score == 2.5


def test_algorithms_that_share_a_variable_are_refused_by_name():
    trunk = Dense("trunk", 2, 2, seed=0)
    make_named().validate_sharing("algorithm.py:1")
    with pytest.raises(ConfigError, match=r"algorithm\.py:1: .* goal, control share .*W"):
        make_named(goal=trunk, control=trunk).validate_sharing("algorithm.py:1")
