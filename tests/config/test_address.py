"""Addresses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax_like.config.address import Address, parse_address
from relaax_like.wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("localhost:7000", Address("localhost", 7000)),
        ("0.0.0.0:0", Address("0.0.0.0", 0)),
        ("my-host_1.example.org:65535", Address("my-host_1.example.org", 65535)),
        (f"{'a' * 63}.b.:7001", Address(f"{'a' * 63}.b.", 7001)),
        ("[::1]:7001", Address("::1", 7001)),
        ("[fe80::1%eth0]:7001", Address("fe80::1%eth0", 7001)),
        (" localhost:07000 ", Address("localhost", 7000)),
        ("localhost", Address("localhost", 7009)),
        ("[::1]", Address("::1", 7009)),
    ],
)
def test_address_is_read(text: str, want: Address) -> None:
    assert parse_address(text, default_port=7009) == want


@settings(deadline=None)
@given(st.sampled_from(["localhost", "10.0.0.1", "::1", "a.b"]), st.integers(0, 65535))
def test_address_survives_its_text(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "is not an address"),
        (":7000", "is not an address"),
        ("a b:7000", "is not an address"),
        ("a..b:7000", "is not an address"),
        (".local:7000", "is not an address"),
        ("x" * 64 + ".local:7000", "is not an address"),
        ("::1:7000", "is not an address"),
        ("[localhost]:7000", "is not an address"),
        ("[::1:7000", "is not an address"),
        ("[::1", "is not an address"),
        ("[]:7000", "is not an address"),
        ("http://localhost:7000", "after the host is not a colon and a port"),
        ("localhost", "port missing"),
        ("localhost:", "port missing"),
        ("localhost:http", "after the host is not a colon and a port"),
        ("localhost:-1", "after the host is not a colon and a port"),
        ("localhost:7000\n:1", "after the host is not a colon and a port"),
        ("localhost\nx:7000", "is not an address"),
        ("localhost:²", "after the host is not a colon and a port"),
        ("localhost:65536", "port 65536 is above 65535"),
        ("localhost:999999", "after the host is not a colon and a port"),
        ("x" * 100_000, "is not an address"),
    ],
    ids=lambda text: text[:30],
)
def test_text_that_is_no_address_is_refused(text: str, want: str) -> None:
    with pytest.raises(ConfigError, match=want) as caught:
        parse_address(text)
    assert "expected host:port" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("one", "two", "want"),
    [
        ("localhost:1", "localhost:1", True),
        ("localhost:1", "localhost:2", False),
        ("localhost:0", "localhost:0", False),
        ("localhost:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "localhost:1", True),
        ("10.0.0.1:1", "[::]:1", True),
        ("10.0.0.1:1", "10.0.0.2:1", False),
        ("10.0.0.1:1", "localhost:1", False),
    ],
)
def test_collisions_are_seen_from_both_sides(one: str, two: str, want: bool) -> None:
    assert parse_address(one).collides_with(parse_address(two)) is want
    assert parse_address(two).collides_with(parse_address(one)) is want


def test_client_of_all_interfaces_connects_to_loopback() -> None:
    assert str(parse_address("0.0.0.0:7").to_connect()) == "127.0.0.1:7"
    assert str(parse_address("[::]:7").to_connect()) == "[::1]:7"
    assert str(parse_address("ps.local:7").to_connect()) == "ps.local:7"


@pytest.mark.parametrize(
    ("host", "want"),
    [("localhost", True), ("127.0.0.2", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_known(host: str, want: bool) -> None:
    assert Address(host, 1).is_loopback is want
