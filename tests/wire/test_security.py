"""Roles and tokens, and the files that they stand in."""

import logging
import re
from pathlib import Path

import pytest
from support.certificates import (
    AGENT,
    ALL_TOKENS,
    ENVIRONMENT,
    OPERATOR,
    write_private,
    write_tokens,
)

from relaax_like.wire import watched_files
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.security import (
    ClientSecurity,
    Role,
    Tokens,
    describe_missing_role,
    read_token,
    watch_token,
)

GOOD = "0123456789abcdef"  # as short as a token can be


@pytest.fixture(autouse=True)
def check_files_at_each_use(monkeypatch):
    monkeypatch.setattr(watched_files, "CHECK_SEC", 0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "tokens")


def test_each_token_has_its_role_and_others_have_none(path: Path) -> None:
    tokens = Tokens(path)
    found = [tokens.find_role(token) for token in ALL_TOKENS]
    assert found == [Role.ENVIRONMENT, Role.AGENT, Role.OPERATOR]
    for unknown in ("", AGENT[:-1], AGENT + "x", AGENT.upper(), f"agent {AGENT}", "\udc80\u00e4"):
        assert tokens.find_role(unknown) is None


@pytest.mark.parametrize(
    ("token", "needed", "want"),
    [
        (ENVIRONMENT, Role.ENVIRONMENT, ""),
        (AGENT, Role.ENVIRONMENT, ""),
        (AGENT, Role.AGENT, ""),
        (OPERATOR, Role.AGENT, ""),
        (ENVIRONMENT, Role.AGENT, "has role environment, but role agent is required"),
        (AGENT, Role.OPERATOR, "has role agent, but role operator is required"),
        ("", Role.ENVIRONMENT, "no token was sent, but one of role environment is required"),
        (AGENT + "x", Role.ENVIRONMENT, "not known to this server"),
    ],
)
def test_a_role_may_what_lower_ones_may(path: Path, token: str, needed: Role, want: str) -> None:
    text = describe_missing_role(Tokens(path), token, needed)
    assert want in text
    assert bool(text) == bool(want)
    assert not token or token not in text


@pytest.mark.parametrize("token", ["", AGENT + "x"])
def test_the_tokens_file_is_named_as_a_key_and_as_the_coordinator_s_flag(
    path: Path, token: str
) -> None:
    text = describe_missing_role(Tokens(path), token, Role.LEARNER)
    assert "(security.tokens_file, or --tokens-file of `relaax jobs serve`)" in text


def test_only_digests_are_kept(path: Path) -> None:
    tokens = Tokens(path)
    assert not any(token.encode() in repr(tokens._digests.get()).encode() for token in ALL_TOKENS)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "contains no token"),
        ("# nothing\n\n", "contains no token"),
        (f"{GOOD}\n", ":1: 1 word, expected two"),
        (f"agent {GOOD} # mine\n", ":1: 4 words, expected two"),
        (f"# a\nmaster {GOOD}\n", ":2: the first word is not a role"),
        (f"{GOOD} agent\n", ":1: the first word is not a role"),
        (f"agent {GOOD[:-1]}\n", ":1: a token of 15 characters"),
        (f"agent {'x' * 513}\n", ":1: a token of 513 characters"),
        (f"agent {GOOD}\nagent {'y' * 16}\noperator {GOOD}\n", ":3: the same token as in line 1"),
        (f"agent {GOOD}\x7f\n", ":1: the token contains an unprintable character"),
        (f"agent {GOOD}\u00e4\n", "bytes that are not ASCII"),
    ],
)
def test_a_tokens_file_that_is_wrong_is_told_with_its_line_and_without_its_tokens(
    tmp_path: Path, text: str, want: str
) -> None:
    path = write_private(tmp_path / "tokens", text)
    with pytest.raises(ConfigError, match=re.escape(want)) as raised:
        Tokens(path)
    assert str(path) in str(raised.value)
    for secret in (GOOD, GOOD[:-1], "y" * 16, "x" * 513):
        assert secret not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


@pytest.mark.posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_read_is_refused_with_the_cure(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:o}.*chmod 600 {path}"):
        Tokens(path)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{tmp_path}/tokens: cannot be read: No such file"):
        Tokens(tmp_path / "tokens")


def test_a_replaced_file_counts_at_once(path: Path, caplog) -> None:
    tokens = Tokens(path)
    with caplog.at_level(logging.INFO):
        write_private(path, f"agent {GOOD}\n")
        assert tokens.find_role(GOOD) == Role.AGENT
        assert tokens.find_role(AGENT) is None
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_broken_new_file_changes_nothing_and_is_told_once(path: Path, caplog) -> None:
    tokens = Tokens(path)
    write_private(path, f"agent {GOOD}\nboss {'z' * 20}\n")
    for _ in range(3):
        assert tokens.find_role(AGENT) == Role.AGENT
        assert tokens.find_role(GOOD) is None
    path.unlink()
    assert tokens.find_role(AGENT) == Role.AGENT
    first, second = [record.getMessage() for record in caplog.records]
    assert f"{path}:2: the first word is not a role" in first
    assert "remain in effect" in first
    assert "No such file" in second
    assert GOOD not in caplog.text
    assert "z" * 20 not in caplog.text


@pytest.mark.posix
def test_chmod_cures_a_file_that_was_refused_while_running(path: Path) -> None:
    tokens = Tokens(path)
    path.write_text(f"agent {GOOD}\n")
    path.chmod(0o644)
    assert tokens.find_role(GOOD) is None
    path.chmod(0o600)
    assert tokens.find_role(GOOD) == Role.AGENT


def test_the_file_is_looked_at_once_a_second_at_most(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_SEC", 1000.0)
    tokens = Tokens(path)
    write_private(path, f"agent {GOOD}\n")
    assert tokens.find_role(GOOD) is None


# A client's own token.


def test_a_token_file_has_one_token_and_is_read_again(tmp_path: Path) -> None:
    path = write_private(tmp_path / "token", f"# mine\n\n{AGENT}\n")
    assert read_token(path) == AGENT
    assert ClientSecurity(token_file=path).read_token() == AGENT
    file = watch_token(path)
    assert file.get() == AGENT
    write_private(path, OPERATOR)
    assert file.get() == OPERATOR


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "contains no token"),
        (f"agent {GOOD}", ":1: 2 words, expected only a token"),
        (f"{GOOD}\n{AGENT}", ":2: a second token"),
        ("short", ":1: a token of 5 characters"),
    ],
)
def test_a_token_file_that_is_wrong_is_told(tmp_path: Path, text: str, want: str) -> None:
    with pytest.raises(ConfigError, match=want) as raised:
        read_token(write_private(tmp_path / "token", text))
    assert GOOD not in str(raised.value)
    assert AGENT not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ({"token": GOOD, "token_file": "f"}, "token and token_file f are both set"),
        ({"tls_ca": "a", "tls_cert": "c"}, "tls_key: missing, but tls_cert is c; set both"),
        ({"tls_ca": "a", "tls_key": "k"}, "tls_cert: missing, but tls_key is k; set both"),
        ({"tls_cert": "c", "tls_key": "k"}, "tls_ca: missing, but tls_cert is c; set"),
    ],
)
def test_contradictions_of_a_client_are_refused(arguments: dict, want: str) -> None:
    with pytest.raises(ConfigError, match=want):
        ClientSecurity(**arguments)


@pytest.mark.parametrize("end", ["\n", "\x00", "\u00e9"])
def test_a_token_that_grpc_would_refuse_is_refused_without_showing_it(end: str) -> None:
    with pytest.raises(ConfigError, match="token: contains a line end") as caught:
        ClientSecurity(token=GOOD + end)
    assert GOOD not in str(caught.value)


def test_a_client_does_not_show_its_token() -> None:
    assert GOOD not in repr(ClientSecurity(token=GOOD))
