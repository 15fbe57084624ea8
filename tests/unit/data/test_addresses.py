"""Tests of gateway addresses: they parse as written, including the group port, and invalid ones are refused."""

from __future__ import annotations

import pytest

from tutti.data.member_address import Address, client_address, is_loopback, parse_host_port, parse_member
from tutti.errors import UsageError


@pytest.mark.parametrize(
    ("text", "clients", "group"),
    [
        ("127.0.0.1:7400", ("127.0.0.1", 7400), 7401),
        ("lga.example:7400/9000", ("lga.example", 7400), 9000),
        ("[::1]:7400", ("::1", 7400), 7401),
        ("[fe80::1]:65535/7", ("fe80::1", 65_535), 7),
        ("[fe80::1%br-0]:7400", ("fe80::1%br-0", 7400), 7401),
        ("host.example.:7400", ("host.example.", 7400), 7401),
        ("*:7400", ("*", 7400), 7401),
    ],
)
def test_both_ports_are_read_and_written_again(text: str, clients: tuple[str, int], group: int) -> None:
    address = parse_member(text)
    assert address.clients == Address(*clients)
    assert address.group == Address(clients[0], group)
    assert str(address) == text
    assert client_address(text) == str(address.clients)


NONE = (
    "",
    "7400",
    "h:",
    ":7400",
    "h:0",
    "h:65536",
    "h:65535",
    "h:²",
    f"h:{'9' * 5000}",
    "h:1/",
    "h:1/0",
    "h:1/x",
    "h:1/1/2",
    "a b:1",
)
NO_HOST = ("::1:7400", "]x[:1", "[::1:1", "::1]:1", "[]:1", "[::1%a b]:1")


@pytest.mark.parametrize("text", [*NONE, *NO_HOST])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write "):
        parse_member(text)


@pytest.mark.parametrize("host", ["[127.0.0.1]", "[localhost]", "b\xfccher.example", "gw1-", "gw1%eth0"])
def test_addresses_of_an_earlier_release_stay_valid(host: str) -> None:
    """The roster in the log has it: who does not read it finds no majority, and cannot mend it without one."""
    assert parse_member(f"{host}:07400").group == Address(host.strip("[]"), 7401)


def test_port_0_is_for_listeners() -> None:
    assert parse_host_port("[::]:0", port_min=0) == ("::", 0)
    with pytest.raises(UsageError, match=r"'0' in 'h:0' is not a port \(1 to 65535\)"):
        parse_host_port("h:0")


@pytest.mark.parametrize(
    ("host", "loopback"), [("localhost", True), ("127.1.2.3", True), ("::1", True), ("::", False), ("h", False)]
)
def test_addresses_for_this_machine_only(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
