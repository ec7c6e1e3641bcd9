"""The page for Prometheus: what `relaax status` says, in its format."""

import urllib.request

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.bridge import make_backend

from relaax_like.config.address import Address
from relaax_like.core.records import Episode, Push, ServedClient, Status
from relaax_like.metrics.prometheus import PrometheusPage
from relaax_like.parameter_server.snapshots import Snapshots
from relaax_like.wire.errors import ConfigError, InvalidInputError


def scrape(page):
    with urllib.request.urlopen(f"http://127.0.0.1:{page.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, *s.labels.values()): s.value for s in samples}


def test_the_numbers_of_the_status_are_there_and_move(tmp_path):
    with make_backend(snapshots=Snapshots(tmp_path, 3)) as backend:
        with PrometheusPage(Address("localhost", 0), backend.status) as page:
            before = scrape(page)
            assert before["relaax_env_steps_total",] == 0
            assert ("relaax_mean_return",) not in before
            assert ("relaax_snapshot_age_seconds",) not in before
            for number in (1, 2):
                push = Push(
                    client_id="one",
                    incarnation=1,
                    sequence=number,
                    gradient=np.ones(9, np.float32).view(np.uint8),
                    fingerprint=backend.manifest.fingerprint,
                    env_steps=7,
                    episodes=(Episode(3.5, 7),),
                )
                backend.push(push)
            with pytest.raises(InvalidInputError):
                backend.push(Push(client_id=""))
            backend.save_checkpoint()
            after = scrape(page)
    assert after["relaax_env_steps_total",] == 14
    assert after["relaax_version",] == 2
    assert after["relaax_mean_return",] == 3.5
    assert after["relaax_snapshot_env_steps",] == 14
    assert 0 <= after["relaax_snapshot_age_seconds",] < 60
    assert after["relaax_refused_pushes_total", "bad client id"] == 1
    assert after["relaax_client_staleness", "one"] == 1
    assert after["relaax_crash_loses_updates",] == 1
    assert after["relaax_resident_memory_bytes",] > 1e7


@pytest.mark.parametrize(("error", "loses"), [("", 0), ("the journal cannot be synced", 1)])
def test_a_failed_journal_is_a_loss(error, loses):
    status = Status(durability="journal", journal_error=error)
    with PrometheusPage(Address("localhost", 0), lambda: status) as page:
        assert scrape(page)["relaax_crash_loses_updates",] == loses


@pytest.mark.parametrize(
    ("durability", "loses"), [("journal", 0), ("publication", 0), ("snapshot", 1)]
)
def test_updates_are_lost_where_neither_they_nor_their_result_is_written(durability, loses):
    with PrometheusPage(Address("localhost", 0), lambda: Status(durability=durability)) as page:
        assert scrape(page)["relaax_crash_loses_updates",] == loses


def test_a_port_that_is_taken_is_named():
    with make_backend() as backend, PrometheusPage(Address("localhost", 0), backend.status) as page:
        with pytest.raises(ConfigError, match=f"prometheus_bind: .*{page.port}"):
            PrometheusPage(Address("localhost", page.port), backend.status)


def test_environments_have_their_times_and_late_answers():
    client = ServedClient(
        name="robot", session="s-1", slots=1, p99_ms=12.5, late=3, discarded_steps=64
    )
    status = Status(served=(client,), served_clients=40)
    with PrometheusPage(Address("localhost", 0), lambda: status) as page:
        found = scrape(page)
    assert found["relaax_environments",] == 40
    assert found["relaax_late_answers_total", "robot", "s-1"] == 3
    assert found["relaax_discarded_steps_total", "robot", "s-1"] == 64
    assert found["relaax_answer_seconds_p99", "robot", "s-1"] == 0.0125
