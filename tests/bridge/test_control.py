"""The link to a parameter server: what it says while it waits."""

import logging

import pytest

from relaax_like.bridge.control import BridgeControl
from relaax_like.wire.reports import Reporter


@pytest.mark.parametrize(
    ("is_started", "advice"), [(False, "; start it with relaax-parameter-server"), (True, "")]
)
def test_who_started_all_processes_need_not_start_one(
    is_started: bool,
    advice: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `relaax run`, a second parameter server would find its port taken."""
    monkeypatch.setattr(Reporter, "is_started", is_started)
    caplog.set_level(logging.INFO)
    with BridgeControl().connect("localhost:1") as link:
        link._note_wait(2.0)
    assert caplog.messages == [f"waiting for the parameter server at localhost:1 (2 s){advice}"]
