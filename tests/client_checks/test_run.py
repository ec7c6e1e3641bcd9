"""What `relaax check-client` finds out about broken, unusual and shipped clients."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support import broken_clients, json_client

from relaax_like.client_checks.checks import FAILED, NOT_APPLICABLE, PASSED, Check, Setting
from relaax_like.client_checks.run import check_client
from relaax_like.client_checks.scenarios import SCENARIOS, _can_be_equal
from relaax_like.config.address import Address
from relaax_like.wire.errors import ConfigError, RelaaxError

CART = [sys.executable, broken_clients.__file__]
JSON = [sys.executable, json_client.__file__]
TOKEN = "a-token-of-the-tests-0123456789abcdef"
# The cart gives up a silent server after 4 s.
SILENCE_SEC = 8.0
# Fault -> the scenario in which it shows, and the checks that fail there.
PLAIN, FEATURES, FORMS, LOST = list(SCENARIOS)[:4]
FOUND = {
    "little_endian_length": (PLAIN, "frames.carrier"),
    "hello_twice": (PLAIN, "hello.once"),
    "step_before_hello": (PLAIN, "hello.first"),
    "does_not_wait_for_ready": (PLAIN, "hello.waits_for_ready"),
    "own_name": (PLAIN, "hello.given_name"),
    "token_in_name": (PLAIN, "hello.given_name", "hello.token", "hello.no_secret"),
    "unsorted_features": (PLAIN, "hello.features"),
    "bounds_swapped": (PLAIN, "spaces.observations"),
    "rewards_first": (PLAIN, "order.first_step"),
    "no_outcome": (PLAIN, "order.outcome"),
    "steps_ahead": (PLAIN, "order.one_at_a_time"),
    "other_dtype": (PLAIN, "steps.dtype"),
    "swapped_bytes": (PLAIN, "steps.byte_order"),
    "masks_unasked": (PLAIN, "features.masks_off"),
    "short_masks": (FEATURES, "features.masks"),
    "agents_miscounted": (PLAIN, "hello.agents"),
    "sends_nan": (PLAIN, "steps.values"),
    "flags_as_floats": (PLAIN, "steps.flags"),
    "one_row_after_reset": (PLAIN, "steps.shape"),
    "no_final_observations": (PLAIN, "ends.final_at_truncation"),
    "final_of_next_episode": (PLAIN, "ends.final_is_last"),
    "both_flags": (PLAIN, "ends.one_flag"),
    "rewards_of_other_slot": (PLAIN, "slots.own_reward"),
    "actions_of_other_slot": (PLAIN, "slots.own_reward", "slots.own_action"),
    "equal_seeds": (PLAIN, "slots.differ"),
    "other_leaf": (PLAIN, "actions.every_leaf"),
    "requires_version": (FORMS, "answers.without_version"),
    "one_recv_is_one_message": (FORMS, "answers.split"),
    "drops_rest_of_recv": (FEATURES, "answers.merged"),
    "dies_of_unknown_fields": (FORMS, "answers.unknown_fields"),
    "fixed_field_order": (FORMS, "answers.field_order"),
    "fixed_map_order": (FORMS, "answers.map_order"),
    "impatient": (PLAIN, "answers.late"),
    "never_gives_up": ("silence", "answers.silence"),
    "answers_pings": (FEATURES, "features.ping"),
    "pings_unasked": (PLAIN, "features.ping_off"),
    "unnumbered_steps": (FEATURES, "features.step_id"),
    "ignores_error": ("a wrong step", "errors.stops"),
    "status_0_after_error": ("a wrong step", "errors.status"),
    "ignores_finished": (PLAIN, "finished.stops"),
    "returns_after_finished": ("the end at once", "finished.stays_away"),
    "returns_unauthenticated": ("a wrong token", "errors.unauthenticated"),
    "reconnects_at_once": (LOST, "reconnect.pause"),
    "continues_old_episode": (LOST, "reconnect.first_step"),
    "keeps_state": (LOST, "reconnect.reset"),
    "repeats_step": (LOST, "reconnect.no_repeat"),
}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


def check_carts(
    plays: Iterable[tuple[str, ...]], token_file: Path
) -> dict[str, tuple[list[str], list[Check]]]:
    """Checks several carts at a time, which mostly wait.

    Args:
      plays: fault or oddity, and titles of scenarios; without titles all are played.
      token_file: with the token that each cart is given.

    Returns:
      Fault or oddity -> ids of the checks that have failed, and all checks.
    """

    def check(play: tuple[str, ...]) -> tuple[list[str], list[Check]]:
        word, *titles = play
        program = [*CART, word, "--token-file", str(token_file)]
        setting = Setting(program, token=TOKEN, silence_sec=SILENCE_SEC)
        results = check_client(setting, titles or SCENARIOS.keys())
        return [one.id for one in results if one.outcome == FAILED], results

    plays = list(plays)
    with ThreadPoolExecutor(8) as pool:
        return dict(zip((word for word, *_ in plays), pool.map(check, plays), strict=True))


def test_each_broken_client_is_named(token_file: Path) -> None:
    assert FOUND.keys() == broken_clients.FAULTS.keys()
    found = check_carts(((fault, title) for fault, (title, *_) in FOUND.items()), token_file)
    wrong = {
        fault: [one for one in results if one.outcome == FAILED]
        for fault, (failed, results) in found.items()
        if failed != list(FOUND[fault][1:])
    }
    assert wrong == {}


def test_unusual_clients_pass(token_file: Path) -> None:
    # What is sent matters in the first scenarios; one client shows that the others pass, too.
    found = check_carts(
        (
            (oddity, *([] if oddity == "sends_points" else (PLAIN, FEATURES, FORMS)))
            for oddity in broken_clients.ODDITIES
        ),
        token_file,
    )
    assert {oddity: failed for oddity, (failed, _) in found.items() if failed} == {}
    passed = {one.id for _, results in found.values() for one in results if one.outcome == PASSED}
    # All together they show nearly everything.
    missing = {one.id for one in found["one_slot"][1]} - passed
    assert missing == {
        *("hello.max_wait", "hello.versions", "ends.success"),
        *("features.step_id", "features.present", "features.executed"),
    }


def test_a_check_that_does_not_apply_gives_the_reason(token_file: Path) -> None:
    found = check_carts([("one_slot",), ("no_features",)], token_file)
    for word, id, reason in (
        ("one_slot", "slots.own_reward", "the client has one slot"),
        ("no_features", "features.timings", "the client does not list timings"),
        ("no_features", "answers.merged", "the client does not list ping"),
    ):
        (check,) = (one for one in found[word][1] if one.id == id)
        assert (check.outcome, check.seen) == (NOT_APPLICABLE, reason)


# Fault of a client in JSON -> the same.
FOUND_IN_JSON = {
    "both_flags": (PLAIN, "ends.one_flag"),
    "illegal": (FEATURES, "features.masks"),
    "masks_unasked": (PLAIN, "features.masks_off"),
    "short_masks": (FEATURES, "features.masks"),
    "first_key": (FORMS, "answers.field_order", "answers.map_order"),
    "one_recv_is_one_line": (FORMS, "answers.split"),
    "no_step_before_ready": (PLAIN, "hello.waits_for_ready"),
}


def test_clients_in_json_are_checked_in_the_same_way() -> None:
    assert FOUND_IN_JSON.keys() == json_client.FAULTS.keys()
    plays: list[tuple[list[str], list[str], list[str]]] = [
        (words, list(SCENARIOS), []) for words in ([], ["web_socket"])
    ]
    for fault, (title, *ids) in FOUND_IN_JSON.items():
        plays.append(([fault], [title], ids))
    plays.append((["web_socket", "both_flags"], [PLAIN], ["ends.one_flag"]))

    def check(play: tuple[list[str], list[str], list[str]]) -> list[Check]:
        words, titles, _ = play
        return check_client(Setting([*JSON, *words]), titles)

    with ThreadPoolExecutor(8) as pool:
        for (words, titles, ids), results in zip(plays, pool.map(check, plays), strict=True):
            failed = [one for one in results if one.outcome == FAILED]
            assert [one.id for one in failed] == ids, (words, failed)
            passed = sum(one.outcome == PASSED for one in results)
            assert len(titles) == 1 or passed > 70, words
            if len(titles) > 1:
                (masks,) = (one for one in results if one.id == "features.masks")
                assert masks.outcome == PASSED, masks


def test_a_client_that_its_user_starts_is_checked_on_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines: list[str] = []
    cart: list[subprocess.Popen[bytes]] = []

    def start(line: str) -> None:
        lines.append(line)
        if not cart:
            flags = ["--rlx-server", f"127.0.0.1:{port}", "--name", "by hand"]
            cart.append(subprocess.Popen([*CART, *flags], stderr=subprocess.DEVNULL))

    setting = Setting(bind=Address("127.0.0.1", port), say=start)
    try:
        results = check_client(setting, [FEATURES, LOST])
    finally:
        for process in cart:
            process.kill()
            process.wait()
    assert [one for one in results if one.outcome == FAILED] == []
    assert {"reconnect.reset", "features.ping"} <= {
        one.id for one in results if one.outcome == PASSED
    }
    assert [line.partition(":")[0] for line in lines] == [FEATURES, LOST]
    assert f"127.0.0.1:{port}" in lines[0]


def test_few_whole_numbers_can_be_equal_by_chance() -> None:
    for array, want in (([[3]], True), ([[0.5]], False), ([[0] * 16], False)):
        assert _can_be_equal({"observation": np.array(array)}) is want


def test_a_program_that_ends_at_once_has_not_connected() -> None:
    code = "import sys; print('no such flag'); sys.exit(3)"
    results = check_client(Setting([sys.executable, "-c", code]), [PLAIN, LOST])
    (failed,) = (one for one in results if one.outcome == FAILED)
    assert failed.id == "hello.in_time"
    assert "status 3" in failed.seen
    assert "it printed: no such flag" in failed.seen
    assert all(
        one.seen.startswith(("not reached: hello.in_time", "the client has"))
        for one in results
        if one.outcome == NOT_APPLICABLE
    )


def test_the_check_ends_when_its_time_is_over() -> None:
    setting = Setting([*CART, "never_gives_up"], silence_sec=1e6)
    setting.deadline = time.monotonic() + 2.0
    results = check_client(setting, ["silence"])
    assert [one for one in results if one.outcome == FAILED] == []
    assert "time limit" in next(one.seen for one in results if one.id == "answers.silence")


def test_an_interruption_ends_all_scenarios_at_any_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit_one(pool: ThreadPoolExecutor, *arguments: object) -> None:
        ThreadPoolExecutor.submit(pool, *arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    class Interrupted(ThreadPoolExecutor):
        submit = submit_one  # type: ignore[assignment]

    monkeypatch.setattr("relaax_like.client_checks.run.ThreadPoolExecutor", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_client(Setting([*CART, "never_gives_up"], silence_sec=1e6), ["silence"])


def test_what_this_machine_refuses_is_an_error() -> None:
    with pytest.raises(RelaaxError, match="cannot start /no/such/program"):
        check_client(Setting(["/no/such/program"]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"--bind {address}: Address already in use"):
            check_client(Setting(CART, address))
