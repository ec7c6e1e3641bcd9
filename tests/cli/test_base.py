import sys
from types import SimpleNamespace

import pytest

from relaax_like.cli import base


def test_where_exec_does_not_wait_the_client_runs_in_this_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(base, "os", SimpleNamespace(name="nt"))
    monkeypatch.setattr(sys, "argv", ["relaax", "gym", "--no-such-flag"])
    monkeypatch.setattr(sys, "path", list(sys.path))  # the program adds its folders
    with pytest.raises(SystemExit) as exit_info:
        base.run_gym(["--no-such-flag"])
    assert exit_info.value.code == 2
    assert "unrecognized arguments: --no-such-flag" in capsys.readouterr().err
