"""Proves that an address of a gateway is read as it was written, its group port included, and that others are refused."""

from __future__ import annotations

import pytest

from gateway.data.addresses import Address, client_part, parse_member
from gateway.errors import UsageError


@pytest.mark.parametrize(
    ("text", "clients", "group"),
    [
        ("127.0.0.1:7400", ("127.0.0.1", 7400), 7401),
        ("lga.example:7400/9000", ("lga.example", 7400), 9000),
        ("[::1]:7400", ("::1", 7400), 7401),
        ("[fe80::1]:65535/7", ("fe80::1", 65_535), 7),
    ],
)
def test_both_ports_are_read_and_written_again(text: str, clients: tuple[str, int], group: int) -> None:
    address = parse_member(text)
    assert address.clients == Address(*clients)
    assert address.group == Address(clients[0], group)
    assert str(address) == text
    assert client_part(text) == str(address.clients)


@pytest.mark.parametrize(
    "text",
    ["", "7400", "h:", ":7400", "h:0", "h:65536", "h:7400/", "h:7400/0", "h:7400/x", "h:7400/1/2", "::1:7400", "h:65535", "h:²"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write |brackets"):
        parse_member(text)
