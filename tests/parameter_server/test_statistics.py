"""Training statistics, with a clock that the tests move. covers R11, R29"""

import json
import sys

import pytest

from relaax_like.core.records import MAX_SERVED_CLIENTS, ClientsReport, Episode, ServedClient
from relaax_like.parameter_server.statistics import Statistics


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_mean_return_is_of_the_newest_episodes_only(clock: Clock) -> None:
    statistics = Statistics(3, clock)
    assert statistics.means == (None, None, 0, 0, False)
    for number in range(1, 6):
        statistics.add(0, [Episode(float(number), number)])
        assert statistics.means.is_full == (number >= 3)
    assert statistics.means == (4.0, 4.0, 3, 5, True)  # 3, 4, 5


def test_integer_returns_are_not_truncated(clock: Clock) -> None:
    statistics = Statistics(2, clock)
    statistics.add(0, [Episode(1, 1), Episode(2, 1)])
    assert statistics.means.mean_return == 1.5


@pytest.mark.parametrize("number", [1.5e308, sys.float_info.max, -sys.float_info.max])
@pytest.mark.parametrize("episodes", [3, 7, 100])  # with 3, the largest float's thirds sum to more
def test_returns_near_the_largest_float_do_not_overflow(
    clock: Clock, number: float, episodes: int
) -> None:
    statistics = Statistics(100, clock)
    statistics.add(0, [Episode(number, 1)] * episodes)
    assert statistics.means.mean_return == pytest.approx(number)


def test_mean_of_equal_returns_is_that_return(clock: Clock) -> None:
    statistics = Statistics(100, clock)
    statistics.add(0, [Episode(475.0, 1)] * 100)
    assert statistics.means.mean_return == 475.0


def test_speed_is_of_the_last_ten_seconds(clock: Clock) -> None:
    statistics = Statistics(clock=clock)
    statistics.add(50)
    assert statistics.env_steps_per_sec == 50  # not divided by nearly no time
    clock.now += 2
    statistics.add(50)
    assert statistics.env_steps_per_sec == 50  # 100 in 2 s
    for _ in range(100):
        clock.now += 0.25
        statistics.add(5)
    assert statistics.env_steps_per_sec == pytest.approx(20, rel=0.06)
    clock.now += 10.5
    assert statistics.env_steps_per_sec == 0


def test_the_speed_can_be_measured_from_a_later_start(clock: Clock) -> None:
    statistics = Statistics(clock=clock)
    statistics.add(1000)
    clock.now += 5
    statistics.restart_speed()
    assert statistics.env_steps_per_sec == 0
    statistics.add(60)
    clock.now += 2
    assert statistics.env_steps_per_sec == 30


def test_silent_clients_are_not_counted(clock: Clock) -> None:
    statistics = Statistics(clock=clock)
    statistics.see_client("early")
    clock.now += 10
    statistics.see_client("late")
    assert statistics.clients == 2
    clock.now += 6
    assert statistics.clients == 1
    statistics.see_client("early")
    assert statistics.clients == 2


def test_table_of_clients_is_bounded_and_forgets_the_longest_silent(clock: Clock) -> None:
    statistics = Statistics(clock=clock)
    statistics.see_client("first")
    statistics.see_client("second")
    statistics.see_client("first")
    for number in range(9_999):
        statistics.see_client(f"client-{number}")
    assert statistics.clients == 10_000
    assert "second" not in statistics._clients
    assert "first" in statistics._clients


def test_refused_pushes_are_counted_by_reason_within_a_bound(clock: Clock) -> None:
    statistics = Statistics(clock=clock)
    for number in range(100):
        statistics.count_refused(f"reason {number}")
    statistics.count_refused("reason 1")
    assert statistics.refused["reason 1"] == 2
    assert statistics.refused["other"] == 36
    assert sum(statistics.refused.values()) == 101


@pytest.mark.parametrize(("window", "want"), [(4, 3.5), (2, 4.5), (9, 3.5)])
def test_restored_statistics_go_on(window: int, want: float, clock: Clock) -> None:
    saved = Statistics(4, clock)
    saved.add(3, [Episode(float(number), number) for number in range(1, 6)])
    saved.count_refused("busy")
    restored = Statistics(window, clock)
    restored.restore(json.loads(json.dumps(saved.to_dict())))
    assert restored.means.mean_return == want
    assert restored.means.episodes == 5
    assert restored.refused == {"busy": 1}
    assert restored.means.is_full == (window <= 4)


def test_window_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="window: 0"):
        Statistics(0)


# Clients of rlx servers.


def make_report(server_id: str, *late: int, num_clients: int = 0, stall: str = "") -> ClientsReport:
    clients = tuple(
        ServedClient(name=f"{server_id}-{n}", session="s", slots=1, late=n, stall=stall)
        for n in late
    )
    return ClientsReport(
        server_id=server_id, clients=clients, num_clients=num_clients or len(clients)
    )


def test_the_newest_report_of_each_server_counts_for_ten_seconds() -> None:
    now = [0.0]
    statistics = Statistics(clock=lambda: now[0])
    statistics.take_report(make_report("a", 1, 2))
    statistics.take_report(make_report("b", 3))
    now[0] = 6.0
    statistics.take_report(make_report("b", 7))
    clients, number = statistics.served
    assert [client.late for client in clients] == [7, 2, 1]
    assert number == 3
    now[0] = 10.5
    assert [client.late for client in statistics.served[0]] == [7]
    now[0] = 17.0
    assert statistics.served == ((), 0)


def test_the_silent_and_the_latest_come_first_and_no_more_than_a_hundred() -> None:
    statistics = Statistics()
    statistics.take_report(make_report("a", *range(MAX_SERVED_CLIENTS), num_clients=8192))
    statistics.take_report(make_report("b", 0, stall="the client has been silent for 12 s"))
    clients, number = statistics.served
    assert len(clients) == MAX_SERVED_CLIENTS
    assert clients[0].name == "b-0"
    assert clients[1].late == MAX_SERVED_CLIENTS - 1
    assert number == 8193
