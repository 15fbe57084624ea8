"""Tests of the port check: a port that is released shortly is waited for, and one that stays in use is named with its owner."""

from __future__ import annotations

import socket
import threading

import pytest

from tutti.errors import TuttiError
from tutti_gateway.config import Address
from tutti_gateway.core import limits
from tutti_gateway.node.common.port_check import PortInUse, wait_free


def test_a_port_released_by_a_dying_process_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        giver = threading.Timer(0.2, holder.close)
        giver.start()
        wait_free({"reads": Address("127.0.0.1", port)})
        giver.join()
        assert holder.fileno() == -1


def test_a_port_that_stays_in_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PORT_WAIT_US", 50_000)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} on 127\.0\.0\.1 \(admin\) is in use: stop the process"):
            wait_free({"admin": Address("127.0.0.1", port)})


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
def test_an_address_of_another_host_is_reported_with_the_setting(host: str) -> None:
    with pytest.raises(TuttiError, match=r"\(clients\) cannot be opened: .+; set `listen` to an address of this host$"):
        wait_free({"clients": Address(host, 7400)})


def test_a_name_that_no_host_can_have_is_one_sentence() -> None:
    with pytest.raises(TuttiError, match=r"port 7400 on a\.\.b \(clients\) cannot be opened: the host name is invalid"):
        wait_free({"clients": Address("a..b", 7400)})
