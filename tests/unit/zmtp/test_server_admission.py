"""Tests of a server that admits listed keys only: it refuses others with a reason, and a crowd of them never displaces an admitted
client.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from tests.unit.zmtp.port import HELLO, TERMS, WAIT_S, Port, read_all
from tutti.zmtp import z85
from tutti.zmtp.curve import Box, Calling, Listening, Pair, new_pair
from tutti.zmtp.framing import COMMAND, GREETING, Handshake, Mismatch, OtherKey, Rejected, frame, ready

SERVER, ONE, OTHER, STRANGER = (new_pair() for _ in range(4))
LISTED = {ONE.public, OTHER.public}


class Guarded(Port):
    """A port that admits two keys, and the keys it was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        super().__init__(TERMS._replace(named=True), lambda _: False, SERVER, self.admits)

    def admits(self, host: str, key: bytes) -> bool:
        self.asked.append((host, key))
        return key in LISTED

    def shake(self, own: Pair, identity: bytes = b"") -> tuple[socket.socket, Box]:
        """A connection whose handshake is over.

        Raises:
            Mismatch: it was refused.
        """
        calling = Calling([SERVER.public], own, identity)
        connection = self.call(calling.said())
        deadline = time.monotonic() + WAIT_S
        while calling.box is None:
            assert time.monotonic() < deadline
            self.look(0.1)
            with contextlib.suppress(BlockingIOError):
                calling.take(connection.recv(1024, socket.MSG_DONTWAIT))
            connection.sendall(calling.said())
        return connection, calling.box


@pytest.fixture
def port() -> Iterator[Guarded]:
    with contextlib.closing(Guarded()) as port:
        yield port


def test_listed_keys_are_admitted_and_others_get_the_reason(port: Guarded) -> None:
    connection, box = port.shake(ONE)
    connection.sendall(box.seal(0, b"hello"))
    ((routing, parts, _),) = port.first()
    assert parts == [b"hello"]
    assert port.callers.peer(routing) == ONE.public
    with pytest.raises(Rejected, match="400"):
        port.shake(STRANGER)
    port.has(1)
    assert port.asked == [("127.0.0.1", ONE.public), ("127.0.0.1", STRANGER.public)]


def test_an_unencrypted_client_learns_that_this_end_encrypts(port: Guarded) -> None:
    stranger = port.call(HELLO)
    port.look()  # it is accepted
    port.has(0)
    with pytest.raises(Mismatch, match="another mechanism"):
        Handshake(b"DEALER", b"ROUTER").take(read_all(stranger, 1000))
    assert port.asked == [("127.0.0.1", b"")]


def test_only_the_holder_of_its_key_replaces_a_connection(port: Guarded) -> None:
    routings = []
    for number, own in enumerate((ONE, OTHER, ONE)):
        connection, box = port.shake(own, b"the same")
        connection.sendall(box.seal(0, bytes([number])))
        routings.append(port.first()[0][0])
    assert routings[0] == routings[2]
    assert routings[0] != routings[1]
    port.has(2)


def test_a_crowd_displaces_no_listed_key_even_before_its_first_message(port: Guarded) -> None:
    connection, box = port.shake(ONE)
    for number in range(2 * TERMS.connections):
        port.call(GREETING[: 1 + number])
        port.look()
    port.look(0.1)
    assert len(port.callers) == TERMS.connections
    port.now_us += 60_000_000
    port.callers.keep()
    port.has(1)
    connection.sendall(box.seal(0, b"late"))
    assert port.first()[0][1] == [b"late"]


def test_a_zeromq_client_learns_that_its_key_is_not_listed(port: Guarded) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.set(zmq.CURVE_SERVERKEY, z85.encode(SERVER.public).encode())
        dealer.set(zmq.CURVE_PUBLICKEY, z85.encode(STRANGER.public).encode())
        dealer.set(zmq.CURVE_SECRETKEY, z85.encode(STRANGER.secret).encode())
        with dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH) as monitor:
            dealer.connect(f"tcp://127.0.0.1:{port.number}")
            deadline = time.monotonic() + WAIT_S
            while not monitor.poll(0):
                assert time.monotonic() < deadline
                port.look(0.01)
            assert recv_monitor_message(monitor)["value"] == 400
            dealer.disable_monitor()


def test_a_zeromq_server_reports_that_our_key_is_not_listed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with contextlib.ExitStack() as closing:
        context = closing.enter_context(zmq.Context())
        door = ThreadAuthenticator(context)
        closing.callback(door.stop)
        router = closing.enter_context(context.socket(zmq.ROUTER))
        door.start()
        door.configure_curve(domain="*", location=str(tmp_path_factory.mktemp("nobody")))
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, z85.encode(SERVER.secret).encode())
        router.set(zmq.ZAP_DOMAIN, b"tutti")
        number = router.bind_to_random_port("tcp://127.0.0.1")
        calling = Calling([SERVER.public], STRANGER)
        with socket.create_connection(("127.0.0.1", number), WAIT_S) as connection, pytest.raises(Rejected, match="400"):
            calls(calling, connection)


def calls(calling: Calling, connection: socket.socket) -> None:
    while calling.box is None:
        connection.sendall(calling.said())
        calling.take(connection.recv(1024))


def test_another_key_is_known_from_its_greeting() -> None:
    calling, listening = Calling([OTHER.public], ONE), Listening(SERVER, lambda _: True)
    with pytest.raises(OtherKey):
        calling.take(listening.said())


def test_a_refusal_in_place_of_any_answer_is_received() -> None:
    calling = Calling([SERVER.public])
    with pytest.raises(Rejected):
        calling.take(Listening(SERVER, lambda _: True).said() + frame(b"\x05ERROR\x03400", COMMAND))


def test_an_unencrypted_client_may_be_admitted_too() -> None:
    listening = Listening(SERVER, lambda key: not key)
    listening.said()
    assert listening.take(GREETING + ready(b"DEALER", b"")) == b""
