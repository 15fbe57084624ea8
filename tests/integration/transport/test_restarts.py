"""Tests of restarts: a gateway that restarts at once does not count as a second process of its name."""

from __future__ import annotations

import socket

import pytest

from tests.integration.transport.meshes import LOG, Node, Town, clock_us, exchange, run, town
from tests.support.ports import free_ports
from tutti.zmtp.framing import NullHandshake, frame
from tutti_gateway.transport.codec import encode_introduction
from tutti_gateway.transport.interface import Introduction
from tutti_gateway.transport.keys import Keyring
from tutti_gateway.transport.mesh.authentication import KeyAuthenticator
from tutti_gateway.transport.mesh.peer_state import PeerLink

pytestmark = pytest.mark.usefixtures("wire")


def introduced(port: int, process: bytes, address: str, jfk: Node) -> socket.socket:
    """Return a connection to a group port on which gateway b has sent its introduction, and nothing else."""
    said = Introduction(group="ingest", gateway="b", incarnation=b"b" * 16, number=2, log=LOG, process=process, address=address)
    connection = socket.create_connection(("127.0.0.1", port))
    if Town.keyed is None:
        connection.sendall(NullHandshake(b"DEALER", b"ROUTER", process).data_to_send() + frame(encode_introduction(said)))
        return connection
    keyring = Keyring.open(Town.keyed / "b.secret", Town.keyed / "group.keys", "b")
    link = PeerLink(1, "a", "", keyring.public_of("a"))
    calling = KeyAuthenticator(keyring, clock_us, lambda *_: None).client_handshake(link, process)
    connection.setblocking(False)

    def shook() -> bool:
        connection.sendall(calling.data_to_send())
        try:
            return calling.receive_data(connection.recv(1024)) is not None
        except BlockingIOError:
            return False

    run([jfk], shook)
    assert calling.box is not None
    connection.setblocking(True)
    connection.sendall(calling.box.seal(0, encode_introduction(said)))
    return connection


def heard(node: Node) -> int:
    return len(list(node.transport.inbound_peers()))  # type: ignore[attr-defined]  # it is a mesh


@pytest.mark.parametrize("read_before", [True, False])
def test_an_introduction_that_is_read_after_its_process_ended_keeps_the_next_one_from_nothing(read_before: bool) -> None:
    with town() as place:
        ports = free_ports(4)
        a, b = f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{ports[3]}"
        jfk, again = place.add("a", 1, a), place.add("b", 2, b)
        jfk.transport.set_peers([(2, "b", b)])
        run([jfk, again], lambda: jfk.up(2))
        introduced(ports[1], b"firstone", b, jfk).close()
        if read_before:
            run([jfk], lambda: heard(jfk) == 1)
        again.transport.set_peers([(1, "a", a)])
        exchange(again, jfk, [jfk, again])
        assert jfk.said == []
        assert again.said == []


def test_a_second_process_of_one_gateway_is_rejected_while_the_first_is_connected() -> None:
    with town() as place:
        ports = free_ports(4)
        a, b = f"127.0.0.1:{ports[0]}/{ports[1]}", f"127.0.0.1:{ports[2]}/{ports[3]}"
        jfk, copy = place.add("a", 1, a), place.add("b", 2, b)
        jfk.transport.set_peers([(2, "b", b)])
        run([jfk, copy], lambda: jfk.up(2))
        with introduced(ports[1], b"firstone", b, jfk):
            run([jfk], lambda: heard(jfk) == 1)
            copy.transport.set_peers([(1, "a", a)])
            run([jfk, copy], lambda: copy.said)
        assert "copies" in copy.said[0]
