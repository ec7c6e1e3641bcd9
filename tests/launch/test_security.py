"""What the section `security` means for servers and for the run's own clients."""

import logging
from pathlib import Path

import pytest
from support.certificates import AGENT, ALL_TOKENS, Authority, write_private, write_tokens
from support.cluster import BARE

from relaax_like.config.address import Address
from relaax_like.config.loader import load_experiment
from relaax_like.config.models import Experiment, SecurityConfig
from relaax_like.launch.run import make_client_argv, validate_servers
from relaax_like.launch.security import (
    make_client_security,
    make_server_security,
    validate_exposure,
)
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.security import ClientSecurity, Role, ServerSecurity

TLS = "tls_cert: own-cert.pem, tls_key: own-key.pem, tls_ca: own-ca.pem"
TOKENS = "tokens_file: tokens, token_file: token"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Authority(tmp_path)
    write_tokens(tmp_path / "tokens")
    write_private(tmp_path / "token", AGENT)
    return tmp_path


def load(folder: Path, section: str, *more: str) -> Experiment:
    file = folder / "experiment.yaml"
    file.write_text(
        "\n".join(
            [
                f"algorithm: {{path: '{BARE}'}}",
                f"security: {{{section}}}",
                "environment: {program: bandit}",
                *more,
            ]
        )
    )
    return load_experiment(file)


def test_everything_on(folder: Path) -> None:
    experiment = load(folder, f"{TLS}, {TOKENS}, tls_client_cert_required: true")
    server, client = make_server_security(experiment), make_client_security(experiment)
    assert server.tls is not None
    assert server.tls.client_cert_required
    assert server.tokens is not None
    assert server.tokens.find_role(client.read_token()) == Role.AGENT
    assert client.tls_cert == folder / "own-cert.pem"
    assert client.tls_ca == folder / "own-ca.pem"


def test_a_certificate_is_shown_only_where_one_is_asked_for(folder: Path) -> None:
    client = make_client_security(load(folder, TLS))
    assert client == ClientSecurity(tls_ca=folder / "own-ca.pem")
    assert make_server_security(load(folder, "")) == ServerSecurity()
    assert make_client_security(load(folder, "")) == ClientSecurity()


def test_servers_that_want_a_token_of_clients_that_have_none_are_refused(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"security\.token_file is missing, but the servers require"
    ):
        make_client_security(load(folder, "tokens_file: tokens"))


def test_environments_are_told_of_files_and_never_of_tokens(folder: Path) -> None:
    experiment = load(folder, f"{TLS}, {TOKENS}, tls_client_cert_required: true")
    assert experiment.environment is not None
    argv = make_client_argv(experiment, experiment.environment)
    assert argv[-8:] == [
        *("--token-file", str(folder / "token")),
        *("--tls-ca", str(folder / "own-ca.pem")),
        *("--tls-cert", str(folder / "own-cert.pem")),
        *("--tls-key", str(folder / "own-key.pem")),
    ]
    assert not any(token in part for token in ALL_TOKENS for part in argv)


# Beyond loopback.


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "LOCALHOST"])
def test_on_this_machine_nothing_is_needed(host: str) -> None:
    validate_exposure(Address(host, 0), SecurityConfig())


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "192.0.2.1", "example.org", "127.example.org", "localhost.example.org"],
)
def test_beyond_it_a_server_is_refused_with_the_cure(host: str) -> None:
    with pytest.raises(ConfigError, match=r"no TLS and no tokens\. .*--insecure"):
        validate_exposure(Address(host, 0), SecurityConfig())


def test_of_a_server_of_a_ray_cluster_the_error_does_not_propose_localhost() -> None:
    for on_ray in (False, True):
        with pytest.raises(ConfigError) as refused:
            validate_exposure(Address("10.1.2.3", 0), SecurityConfig(), on_ray=on_ray)
        assert ("bind to localhost" in str(refused.value)) == (not on_ray)
        assert ("10.1.2.3:0" in str(refused.value)) == (not on_ray)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        (SecurityConfig(tls_cert=Path("a"), tls_client_cert_required=True), r"has no tokens\. "),
        (SecurityConfig(tokens_file=Path("a")), r"has no TLS\. "),
        (SecurityConfig(tls_cert=Path("a"), tokens_file=Path("b")), ""),
    ],
)
def test_tls_and_tokens_are_both_needed(settings: SecurityConfig, want: str) -> None:
    if not want:
        validate_exposure(Address("0.0.0.0", 0), settings)
        return
    with pytest.raises(ConfigError, match=want):
        validate_exposure(Address("0.0.0.0", 0), settings)


def test_insecure_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        validate_exposure(Address("0.0.0.0", 0), SecurityConfig(insecure=True))
    assert "reached from other machines, without TLS and tokens" in caplog.text


@pytest.mark.parametrize(
    ("section", "bind", "want"),
    [
        ("", "relaax-rlx-server: {bind: '0.0.0.0:0'}", "no TLS and no tokens"),
        ("tokens_file: none, token_file: token", "", "none: cannot be read"),
        ("tokens_file: tokens, token_file: none", "", "none: cannot be read"),
        (f"{TLS}x", "", "own-ca.pemx: cannot be read"),
    ],
)
def test_relaax_run_finds_it_before_anything_is_started(
    folder: Path, section: str, bind: str, want: str
) -> None:
    experiment = load(folder, section, bind or "seed: 1")
    with pytest.raises(ConfigError, match=want):
        validate_servers(experiment)
