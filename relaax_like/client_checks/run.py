"""Checks a client: plays all scenarios, at once if each can have a port of its own."""

from collections.abc import Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from relaax_like.client_checks.checks import CHECKS, OUT_OF_TIME, Check, Fault, Setting
from relaax_like.client_checks.scenarios import SCENARIOS
from relaax_like.client_checks.stage import Stage

_SLICE_SEC = 0.1


def check_client(setting: Setting, titles: Collection[str] = SCENARIOS.keys()) -> list[Check]:
    """Returns the results of all checks, in the order of `CHECKS`.

    Args:
      setting: of the whole check.
      titles: of the scenarios to play.

    Raises:
      ConfigError: the server cannot listen.
      RelaaxError: the program cannot be started.
    """
    found: dict[str, Check] = {}
    is_parallel = bool(setting.program) and not setting.bind.port
    pool = ThreadPoolExecutor(len(titles) if is_parallel else 1)
    try:
        futures = [pool.submit(_perform, setting, title, found) for title in titles]
        waiting = set(futures)
        while waiting:  # in short waits, so that Ctrl-C arrives
            done, waiting = wait(waiting, _SLICE_SEC, FIRST_EXCEPTION)
            for future in done:
                future.result()  # an error ends all scenarios
    except BaseException:
        setting.deadline = 0.0  # ends the scenarios
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    why = next(filter(None, (future.result() for future in futures)), "nothing showed it")
    return [found.get(check.id, check._replace(seen=why)) for check in CHECKS.values()]


def _perform(setting: Setting, title: str, found: dict[str, Check]) -> str:
    """Plays one scenario; returns what ended it early, or ""."""
    with Stage(setting, title, found) as stage:
        try:
            stage.check_time()
            SCENARIOS[title](stage)
        except Fault as fault:
            stage.fail(fault)
            return f"not reached: {fault if fault.id == OUT_OF_TIME else f'{fault.id} failed'}"
        return ""
