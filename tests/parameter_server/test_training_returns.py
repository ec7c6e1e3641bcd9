"""The training return is one over all slots, however long their episodes are. covers R11, R29

Half of the episodes, or another share, end after one step with return 1, the others after 100 steps
with return 0. Short ones end first: the newest ones of all slots together have a mean near 1.
"""

import json
import logging
from collections.abc import Iterator

import numpy as np
import pytest

from relaax_like.core.episode_reports import read_reports, write_reports
from relaax_like.core.records import Episode, EpisodeReport, Playing
from relaax_like.learn.tally import Tally
from relaax_like.parameter_server.statistics import Statistics
from relaax_like.parameter_server.stop_condition import StopCondition
from relaax_like.v1 import parameter_server_pb2

SLOTS, WINDOW, ROLLOUT, LONG = 64, 100, 16, 100
PLAYERS = {"one session of 64": 1, "8 sessions of 8": 8, "64 sessions of 1": 64}


class Clock:
    """Monotonic seconds that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def play(
    players: int, share: float, seed: int, endless: int = 0
) -> Iterator[tuple[str, list[EpisodeReport]]]:
    """Yields what each player reports after each rollout.

    Args:
      players: their number; they share 64 slots.
      share: of the short episodes.
      seed: of their lengths.
      endless: number of slots of the first player whose episodes never end.
    """
    rng = np.random.default_rng(seed)
    slots = SLOTS // players
    ends = np.where(rng.random(SLOTS) < share, 1, LONG)
    began = np.zeros(SLOTS, np.int64)
    ends[:endless] = 1 << 40
    while True:
        for player in range(players):
            reports: list[EpisodeReport] = [Playing(f"p{player}", slots, ROLLOUT * slots)]
            for slot in range(slots):
                row = player * slots + slot
                while ends[row] <= ROLLOUT:
                    length = int(ends[row] - began[row])
                    reports.append(Episode(float(length == 1), length, slot, f"p{player}"))
                    began[row] = ends[row]
                    ends[row] += 1 if rng.random() < share else LONG
                began[row] -= ROLLOUT
                ends[row] -= ROLLOUT
            yield f"client-{player}", reports


def send(statistics: Statistics, sender: str, reports: list[EpisodeReport]) -> None:
    """Adds what a message to the server has brought."""
    header = parameter_server_pb2.PushHeader()
    write_reports(header, reports)
    steps = sum(one.env_steps for one in reports if isinstance(one, Playing))
    statistics.add(steps, read_reports(header), sender)


def find_first_full(
    players: int, share: float, seed: int, through_learner: bool
) -> tuple[float, int]:
    """Returns the mean of the first full window, and the number of its episodes."""
    statistics, tally = Statistics(WINDOW, Clock()), Tally()
    for number, (sender, reports) in enumerate(play(players, share, seed)):
        if not through_learner:
            send(statistics, sender, reports)
        else:
            tally.add(ROLLOUT, reports)
            if number % players != players - 1:
                continue
            reports = list(tally.take().episodes)
            send(statistics, "learner", reports)
        if not any(isinstance(one, Episode) for one in reports):
            continue  # nothing else fills a window
        means = statistics.means
        if means.is_full:
            assert means.mean_return is not None
            return means.mean_return, means.return_episodes
    raise AssertionError


@pytest.mark.parametrize("through_learner", [False, True], ids=["pushed", "through a learner"])
@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("players", PLAYERS.values(), ids=PLAYERS)
def test_the_first_full_window_has_the_true_mean(
    players: int, share: float, through_learner: bool
) -> None:
    found = [find_first_full(players, share, seed, through_learner) for seed in range(50)]
    assert {number for _, number in found} == {128}  # two of each slot
    means = np.array([mean for mean, _ in found])
    error = means.std(ddof=1) / np.sqrt(len(means))
    assert abs(means.mean() - share) < 4 * error


@pytest.mark.parametrize("players", PLAYERS.values(), ids=PLAYERS)
def test_a_target_above_the_mean_is_not_reached(players: int) -> None:
    statistics = Statistics(WINDOW, Clock())
    stop = StopCondition(None, 0.8)
    steps = 0
    for sender, reports in play(players, 0.5, seed=5):
        send(statistics, sender, reports)
        steps += ROLLOUT * SLOTS // players
        stop.check(steps, statistics)
        assert not stop.reason
        if steps >= 12_000:
            break
    assert statistics.means.return_episodes == SLOTS


@pytest.mark.parametrize("players", PLAYERS.values(), ids=PLAYERS)
def test_a_target_below_the_mean_is_reached_when_the_window_is_full(players: int) -> None:
    statistics = Statistics(WINDOW, Clock())
    stop = StopCondition(None, 0.8)
    for sender, reports in play(players, 0.9, seed=5):
        send(statistics, sender, reports)
        stop.check(0, statistics)
        if statistics.means.is_full:
            break
        assert not stop.reason
    assert "of the last 128 episodes reached" in stop.reason


def test_a_slot_that_never_ends_is_left_out_and_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    statistics = Statistics(WINDOW, Clock())
    stop = StopCondition(None, 0.8)
    with caplog.at_level(logging.WARNING):
        for number, (sender, reports) in enumerate(play(8, 0.9, seed=3, endless=1)):
            send(statistics, sender, reports)
            stop.check(0, statistics)
            if number == 8 * 600:  # 9 600 steps of each slot
                assert statistics.means.mean_return is None
            if stop.reason:
                break
    assert 10_000 <= number / 8 * ROLLOUT <= 11_000
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "slot 0 of p0" in lines[0]
    assert "max_episode_steps" in lines[0]
    # When it ends after all, it counts again.
    send(statistics, "client-0", [Playing("p0", 8, 0), Episode(0.0, 20_000, 0, "p0")])
    assert not statistics.means.is_full
    assert statistics.means.return_episodes == SLOTS


def test_a_silent_player_is_left_out_while_others_report() -> None:
    clock = Clock()
    statistics = Statistics(2, clock)
    statistics.add(4, [Playing("a", 2, 4), Episode(1.0, 1, 0, "a"), Episode(3.0, 1, 1, "a")])
    statistics.add(4, [Playing("b", 2, 4), Episode(5.0, 1, 0, "b")])
    assert statistics.means.mean_return is None  # a slot of b has not ended one
    clock.now += 100.0
    assert statistics.means.mean_return is None  # nobody reports: a pause of all
    statistics.add(2, [Playing("a", 2, 2)])
    assert statistics.means[:3] == (2.0, 1.0, 2)
    # It reports seldom, and does not have to report more often now.
    statistics.add(2, [Playing("b", 2, 2), Episode(7.0, 1, 1, "b")])
    assert statistics.means[:3] == (4.0, 1.0, 4)
    clock.now += 150.0
    statistics.add(2, [Playing("a", 2, 2)])
    assert statistics.means.return_episodes == 4
    clock.now += 100.0
    statistics.add(2, [Playing("a", 2, 2)])
    assert statistics.means.return_episodes == 2


def test_slots_that_have_left_do_not_count() -> None:
    statistics = Statistics(4, Clock())
    statistics.add(0, [Playing("a", 1, 1), Playing("b", 1, 1), Episode(1.0, 1, 0, "a")])
    assert statistics.means.mean_return is None
    statistics.add(0, [Episode(9.0, 1, 0, "b"), Playing("b", 0, 0)])  # its last episode counts
    assert statistics.means == (1.0, 1.0, 1, 2, False)
    # When all have left, as at the end of a run, the mean stays; a new player begins another one.
    statistics.add(0, [Playing("a", 0, 0)])
    assert statistics.means == (5.0, 1.0, 2, 2, False)
    assert set(statistics.to_dict()["players"]) == {"a", "b"}
    statistics.add(0, [Playing("c", 1, 1)])
    assert statistics.means.mean_return is None
    assert set(statistics.to_dict()["players"]) == {"c"}


def test_fewer_slots_of_a_player_keep_their_episodes() -> None:
    statistics = Statistics(4, Clock())
    episodes = [Episode(float(slot), 1, slot, "a") for slot in range(3)]
    statistics.add(0, [Playing("a", 3, 3), *episodes])
    statistics.add(0, [Playing("a", 2, 2)])
    assert statistics.means[:3] == (0.5, 1.0, 2)
    statistics.add(0, [Playing("a", 3, 3)])  # the third slot begins again
    assert statistics.means.mean_return is None


def test_a_sender_that_reports_no_slots_counts_as_one() -> None:
    statistics = Statistics(4, Clock())
    statistics.add(7, [Episode(1.0, 3), Episode(3.0, 4)], "plain-1")
    statistics.add(7, [], "plain-2")
    assert statistics.means.mean_return is None
    statistics.add(7, [Episode(8.0, 7)], "plain-2")
    assert statistics.means[:3] == (5.5, 5.5, 2)


def test_the_score_of_a_snapshot_is_over_episodes_that_began_after_the_one_before() -> None:
    statistics = Statistics(20, Clock())

    def end(slot: int, *returns: float) -> None:
        statistics.add(0, [Playing("a", 2, 2), *(Episode(x, 1, slot, "a") for x in returns)])

    for slot in (0, 1):
        end(slot, *[1.0] * 4)
    assert statistics.take_score() is None  # 8 episodes of 10
    for slot in (0, 1):
        end(slot, 100.0, *[2.0] * 5)  # the first one began before
    assert statistics.take_score() == 2.0
    end(0, *[3.0] * 20)
    end(1, *[3.0] * 5)
    assert statistics.take_score() is None  # 4 of slot 1
    for slot in (0, 1):
        end(slot, *[5.0] * 30)
    assert statistics.take_score() == 5.0


@pytest.mark.parametrize("window", [4, 2, 9])
def test_restored_windows_continue(window: int) -> None:
    saved, clock = Statistics(4, Clock()), Clock()
    for number, (sender, reports) in enumerate(play(8, 0.7, seed=1)):
        send(saved, sender, reports)
        if number == 8 * 80:
            break
    saved.take_score()
    restored = Statistics(window, clock)
    restored.restore(json.loads(json.dumps(saved.to_dict())))
    assert restored.means.episodes == saved.means.episodes
    same = Statistics(window, clock)
    for number, (sender, reports) in enumerate(play(8, 0.7, seed=1)):
        send(same, sender, reports)
        if number == 8 * 80:
            same.take_score()
        if number > 8 * 80:
            send(restored, sender, reports)
        if number == 8 * 200:
            break
    assert restored.means == same.means
    assert restored.take_score() == same.take_score()


def test_more_slots_than_are_possible_are_not_tracked() -> None:
    statistics = Statistics(1, Clock())
    for player in range(2):
        statistics.add(0, [Playing(f"p{player}", 40_000, 0)])
    statistics.add(0, [Episode(1.0, 1, 39_999, "p1"), Playing("p1", 40_000, 0)])
    assert statistics.episodes == 1
    assert len(statistics._training._ended) == 65_536
