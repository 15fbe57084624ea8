"""Tests of the listener: it binds the address that the system resolves, including its scope."""

from __future__ import annotations

import socket

import pytest

from tutti.zmtp.listener import open_port


def test_the_complete_address_that_the_system_returns_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 0, 0, 0))]  # what a host says that has no address of one link
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_port("fe80::1%nowhere", 0, 5) as listener:
        assert listener.getsockname()[0] == "::1"


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
def test_an_impossible_name_is_an_unavailable_address(host: str) -> None:
    with pytest.raises(OSError, match="not a valid host name"):
        open_port(host, 0, 5)
