"""Certificates from files, and what is said about those that do not do."""

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import Authority, write_private

from relaax_like.wire import watched_files
from relaax_like.wire.errors import ConfigError
from relaax_like.wire.tls import ClientTls, describe_tls_error, find_tls_mistake


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.contextmanager
def accept(context: ssl.SSLContext | None) -> Iterator[int]:
    """Greets each client with a byte, over TLS or in the clear."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                if context is None:
                    connection.sendall(b"hello")
                    connection.recv(1 << 16)
                    continue
                with context.wrap_socket(connection, server_side=True) as secured:
                    secured.sendall(b"x")
                    secured.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def find(port: int, tls: ClientTls | None, host: str = "localhost") -> str:
    return find_tls_mistake(host, port, tls)


def test_a_right_pair_has_no_mistake(authority: Authority) -> None:
    with accept(authority.server_tls().make_context()) as port:
        assert find(port, authority.client().tls) == ""
    with accept(authority.server_tls(client_cert_required=True).make_context()) as port:
        assert find(port, authority.client(certificate=True).tls) == ""
    with accept(None) as port:
        assert find(port, None) == ""


def test_nobody_there_is_no_mistake_of_tls(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert find(port, None) == ""
    assert find(port, authority.client().tls) == ""


@pytest.mark.parametrize(
    ("case", "want"),
    [
        ("foreign", "tls_ca must contain the certificate that signed it"),
        ("expired", "certificate has expired.*renew it"),
        ("other name", "issue it for this name"),
        ("other address", "issue it for this address"),
        ("no certificate", "rejected our certificate .*set tls_cert"),
        ("foreign certificate", "rejected our certificate .*set tls_cert"),
        ("in the clear", "does not use TLS"),
        ("unexpected", "it uses TLS: set tls_ca"),
    ],
)
def test_each_mistake_is_told_with_its_cure(
    case: str, want: str, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign")
    client, host = authority.client(), "localhost"
    context = authority.server_tls(client_cert_required="certificate" in case).make_context()
    if case == "foreign":
        client = foreign.client()
    elif case == "expired":
        authority.issue(expired=True)
        context = authority.server_tls().make_context()
    elif case.startswith("other"):
        authority.issue("example.org")
        context = authority.server_tls().make_context()
        host = "127.0.0.1" if case == "other address" else host
    elif case == "foreign certificate":
        write_private(authority.client_cert, foreign.client_cert.read_bytes())
        write_private(authority.client_key, foreign.client_key.read_bytes())
        client = authority.client(certificate=True)
    with accept(None if case == "in the clear" else context) as port:
        mistake = find(port, None if case == "unexpected" else client.tls, host)
    assert re.search(want, mistake), mistake


def test_a_file_that_is_being_replaced_is_no_mistake(authority: Authority) -> None:
    tls = authority.client().tls
    with accept(authority.server_tls().make_context()) as port:
        authority.ca.unlink()
        assert find(port, tls) == ""


def test_a_loss_is_no_mistake() -> None:
    assert describe_tls_error(ConnectionResetError()) == ""
    assert describe_tls_error(ssl.SSLEOFError(8, "EOF occurred in violation of protocol")) == ""


# Files.


@pytest.mark.parametrize(
    ("file", "text", "want"),
    [
        (
            "cert",
            "nonsense",
            r"tls_cert .* and tls_key .*: cannot be loaded \(.+\), expected a certificate",
        ),
        (
            "key",
            "nonsense",
            r"tls_cert .* and tls_key .*: cannot be loaded \(.+\), expected a certificate",
        ),
        ("ca", "nonsense", r"tls_ca .*: cannot be loaded \(.+\), expected certificates in PEM"),
        ("cert", None, "tls_cert .*: cannot be read: No such file"),
        ("key", None, "tls_key .*: cannot be read: No such file"),
        ("ca", None, "tls_ca .*: cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    authority: Authority, file: str, text: str | None, want: str
) -> None:
    path = getattr(authority, file)
    if text is None:
        path.unlink()
    else:
        write_private(path, text)
    with pytest.raises(ConfigError, match=want):
        authority.server_tls()


def test_a_key_of_another_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    write_private(authority.key, Authority(tmp_path, "other").key.read_bytes())
    with pytest.raises(ConfigError, match=r"tls_key .*KEY_VALUES_MISMATCH"):
        authority.server_tls()


@pytest.mark.posix
def test_a_key_that_others_may_read_is_refused(authority: Authority) -> None:
    authority.key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"tls_key .*mode 644.*chmod 600"):
        authority.server_tls()


def test_a_context_that_could_not_be_loaded_is_loaded_later(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_SEC", 0.0)
    server = authority.server_tls()
    loaded, context = server.get(), server.make_context()
    authority.issue()
    assert server.get() is not loaded

    def fail(*paths: Path) -> None:
        raise ConfigError("tls_cert: cannot be read: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("relaax_like.wire.tls._load_chain", fail)
        assert [server.refresh(context, loaded) for _ in range(3)] == [loaded] * 3
    assert caplog.text.count("Too many open files") == 1
    assert server.refresh(context, loaded) is server.get()


def test_a_half_replaced_pair_waits_for_its_other_half(
    authority: Authority, tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(watched_files, "CHECK_SEC", 0.0)
    tls, before, other = (
        authority.server_tls(),
        authority.cert.read_bytes(),
        Authority(tmp_path, "b"),
    )
    write_private(authority.cert, other.cert.read_bytes())
    assert tls.get().cert == before
    assert "remain in effect" in caplog.text
    write_private(authority.key, other.key.read_bytes())
    assert tls.get() == (authority.ca.read_bytes(), other.cert.read_bytes(), other.key.read_bytes())


@pytest.mark.parametrize(
    ("days", "want"), [(-1, "has expired, at"), (13, "will expire, at"), (15, ""), (30 * 365, "")]
)
def test_a_servers_certificate_that_has_expired_or_soon_will_is_a_warning(
    days: int, want: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and when it is replaced; beyond 2050 a date has another form."""
    tls = authority.server_tls()
    authority.issue(days=days, expired=days < 0)
    for read in (authority.server_tls, tls._read):
        caplog.clear()
        read()
        assert len(caplog.messages) == bool(want), caplog.text
        assert not want or f"tls_cert {authority.cert}: the certificate {want}" in caplog.text


def test_a_bundle_of_authorities_can_have_one_that_has_expired(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Authority(tmp_path, "old")
    old.issue(expired=True)
    write_private(authority.ca, old.cert.read_bytes() + authority.ca.read_bytes())
    authority.server_tls()
    assert caplog.messages == []
    write_private(authority.ca, old.cert.read_bytes())
    authority.server_tls()
    assert f"tls_ca {authority.ca}: the certificate has expired" in caplog.text
