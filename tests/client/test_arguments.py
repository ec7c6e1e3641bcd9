"""Flags of environment programs: numbers out of range are refused before anything starts."""

import argparse
import runpy
import sys
from collections.abc import Callable

import pytest
from support.cluster import ROOT

from relaax_like.client.arguments import (
    add_security_arguments,
    make_security,
    parse_count,
    parse_positive,
)
from relaax_like.wire.errors import ConfigError


@pytest.mark.parametrize(("parse", "least"), [(parse_count, 0), (parse_positive, 1)])
def test_an_integer_below_the_least_is_refused(parse: Callable[[str], int], least: int) -> None:
    assert [parse(str(number)) for number in (least, 70)] == [least, 70]
    for text in (str(least - 1), "1.5", "many", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=f"an integer of {least} or more"):
            parse(text)


def test_a_token_in_the_environment_with_a_line_end_names_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELAAX_TOKEN", "secret\n")
    parser = argparse.ArgumentParser()
    add_security_arguments(parser)
    with pytest.raises(ConfigError, match="RELAAX_TOKEN: contains a line end") as raised:
        make_security(parser.parse_args([]))
    assert "secret" not in str(raised.value)
    assert make_security(parser.parse_args(["--token-file", "token"])).token == ""


@pytest.mark.parametrize("name", ["bandit", "bit_flip", "memory", "OpenAI_Gym"])
def test_a_program_says_which_flag_is_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["main", "--seed", "-1"])
    monkeypatch.setattr(sys, "path", list(sys.path))  # the program adds its folders
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "environments" / name / "main"), run_name="__main__")
    assert ended.value.code == 2
    assert "--seed: '-1', expected an integer of 0 or more" in capsys.readouterr().err
