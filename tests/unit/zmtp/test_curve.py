"""Tests of CURVE: both ends follow ZeroMQ's specification, and a frame that is changed, replayed or meant for another peer ends the
connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from tutti.errors import FormatError
from tutti.zmtp.curve import Box, CurveClientHandshake, CurveServerHandshake, KeyPair, greeting, new_key_pair
from tutti.zmtp.curve_stream import CurveReceiver, CurveSendQueue
from tutti.zmtp.frame_reader import SCRATCH_BYTES, ConnectionEnded, FrameReader
from tutti.zmtp.framing import GREETING, MORE, PING, EncodedMessage, HandshakeError, encode_message, ready

SERVER, OTHER = new_key_pair(), new_key_pair()


def shake(calling: CurveClientHandshake, listening: CurveServerHandshake, piece: int = 10_000) -> tuple[Box, Box]:
    """Have both ends speak, in pieces of so many bytes; their boxes."""
    to_caller, to_listener = listening.data_to_send(), calling.data_to_send()
    rests: list[bytes | None] = [None, None]
    while to_caller or to_listener:
        if to_listener:
            rests[0], to_listener = listening.receive_data(to_listener[:piece]), to_listener[piece:]
            to_caller += listening.data_to_send()
        if to_caller:
            rests[1], to_caller = calling.receive_data(to_caller[:piece]), to_caller[piece:]
            to_listener += calling.data_to_send()
    assert rests == [b"", b""]
    assert calling.box is not None
    assert listening.box is not None
    return calling.box, listening.box


@pytest.mark.parametrize("piece", [1, 7, 64, 10_000])
def test_two_ends_authenticate_each_other_however_their_messages_are_split(piece: int) -> None:
    own = new_key_pair()
    calling, listening = CurveClientHandshake([OTHER.public, SERVER.public], own), CurveServerHandshake(SERVER)
    mine, theirs = shake(calling, listening, piece)
    assert listening.peer_key == own.public
    for flags, data in ((0, b""), (MORE, b"x" * 300), (0, b"y" * 70_000)):
        for one, other in ((mine, theirs), (theirs, mine)):
            sealed = one.seal(flags, data)
            body = sealed[9:] if sealed[0] & 2 else sealed[2:]
            assert data == b"" or data not in sealed
            assert other.open(body) == (flags, data)


def test_a_peer_with_another_key_is_refused() -> None:
    calling, listening = CurveClientHandshake([OTHER.public]), CurveServerHandshake(SERVER)
    listening.receive_data(calling.data_to_send())
    with pytest.raises(HandshakeError, match="none of the public keys that are known here"):
        calling.receive_data(listening.data_to_send())
    calling = CurveClientHandshake([OTHER.public])  # one who says that it has the key that is wanted, and has not
    calling.receive_data(greeting(as_server=True, key_hint=OTHER.public))
    hello = calling.data_to_send()
    with pytest.raises(HandshakeError, match="cannot be decrypted"):
        CurveServerHandshake(SERVER).receive_data(hello)
    with pytest.raises(HandshakeError, match="does not encrypt, and credentials are never sent"):
        CurveClientHandshake([OTHER.public]).receive_data(GREETING + ready(b"ROUTER", b""))


def test_an_unencrypted_peer_is_handled_as_without_keys() -> None:
    listening = CurveServerHandshake(SERVER)
    first = listening.data_to_send()
    assert listening.receive_data(GREETING[:20]) is None
    assert listening.receive_data(GREETING[20:] + ready(b"DEALER", b"me") + b"rest") == b"rest"
    assert first + listening.data_to_send() == GREETING + ready(b"ROUTER", b"")
    assert (listening.box, listening.peer_key, listening.identity) == (None, b"", b"me")


def test_a_recorded_connection_opens_nothing_when_it_is_sent_again() -> None:
    calling, listening = CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER)
    recorded = []
    to_caller = listening.data_to_send()
    while said := calling.data_to_send():
        recorded.append(said)
        listening.receive_data(said)
        to_caller += listening.data_to_send()
        calling.receive_data(to_caller)
        to_caller = b""
    again = CurveServerHandshake(SERVER)
    again.data_to_send()
    assert [again.receive_data(said) for said in recorded[:-1]] == [None] * (len(recorded) - 1)
    with pytest.raises(HandshakeError, match="another connection"):
        again.receive_data(recorded[-1])


def test_a_frame_opens_once_in_its_place_unchanged() -> None:
    mine, theirs = shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))
    first, second = mine.seal(0, b"one")[2:], mine.seal(0, b"two")[2:]
    with pytest.raises(FormatError, match="modified on its way"):
        theirs.open(first[:-1] + bytes([first[-1] ^ 1]))
    mine, theirs = shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))
    first, second = mine.seal(0, b"one")[2:], mine.seal(0, b"two")[2:]
    assert theirs.open(second) == (0, b"two")
    for late in (first, second):
        with pytest.raises(FormatError, match="is a replay"):
            theirs.open(late)
    other, _ = shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))
    with pytest.raises(FormatError):
        theirs.open(other.seal(0, b"x")[2:][:8] + b"\xff" * 8 + other.seal(0, b"x")[18:])


@given(st.binary(max_size=600), st.integers(0, 3), st.data())
def test_garbage_ends_a_handshake_and_nothing_else(garbage: bytes, steps: int, data: st.DataObject) -> None:
    calling, listening = CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER)
    to_caller = listening.data_to_send()
    with contextlib.suppress(HandshakeError):
        for _ in range(steps):
            said = calling.data_to_send()
            listening.receive_data(said)
            to_caller, answer = b"", to_caller + listening.data_to_send()
            calling.receive_data(answer)
        ends: list[CurveClientHandshake | CurveServerHandshake] = [calling, listening]
        end = data.draw(st.sampled_from(ends))
        if isinstance(end, CurveClientHandshake) or end.box is None:
            end.receive_data(garbage)


# Against ZeroMQ itself


@contextlib.contextmanager
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield made
    finally:
        made.destroy(0)


def text(pair: KeyPair) -> tuple[bytes, bytes]:
    from zmq.utils import z85

    return z85.encode(pair.public), z85.encode(pair.secret)


class End:
    """One of our ends over a socket."""

    def __init__(self, connection: socket.socket, shaking: CurveClientHandshake | CurveServerHandshake) -> None:
        connection.settimeout(10)
        connection.sendall(shaking.data_to_send())
        rest = None
        while rest is None:
            rest = shaking.receive_data(connection.recv(1024))
            connection.sendall(shaking.data_to_send())
        assert shaking.box is not None
        connection.setblocking(False)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN | select.POLLOUT)
        self._poll_in = select.poll()
        self._poll_in.register(connection, select.POLLIN)
        self._came: list[list[bytes]] = []
        self.opening = CurveReceiver(connection, shaking.box, rest, 1 << 24, lambda _: True)
        self._stream = FrameReader(self.opening, memoryview(bytearray(SCRATCH_BYTES)), 1 << 24, lambda _: True, parts_max=9)
        self._outgoing = CurveSendQueue(connection, shaking.box)

    def send(self, message: EncodedMessage) -> None:
        self._outgoing.append(message)
        while self._outgoing:
            self._poll.poll(10_000)
            self._outgoing.send()

    def receive(self) -> list[bytes]:
        while not self._came:
            if not self.opening.unread:
                assert self._poll_in.poll(10_000)
            with contextlib.suppress(BlockingIOError):
                self._came += [[bytes(part) for part in parts] for parts, _ in self._stream.read()]
        return self._came.pop(0)


MESSAGES = [[b"one"], [b"", b"x" * 255, b"y" * 256], [b"z" * 3_000_000, b"end"]]


def test_zeromq_calls_us() -> None:
    own = new_key_pair()
    with context() as zeromq, socket.create_server(("127.0.0.1", 0)) as server:
        dealer = zeromq.socket(zmq.DEALER)
        dealer.setsockopt(zmq.CURVE_SERVERKEY, text(SERVER)[0])
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, text(own)[0])
        dealer.setsockopt(zmq.CURVE_SECRETKEY, text(own)[1])
        dealer.setsockopt(zmq.RCVTIMEO, 10_000)
        dealer.connect(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        connection, _ = server.accept()
        with connection:
            listening = CurveServerHandshake(SERVER)
            end = End(connection, listening)
            assert listening.peer_key == own.public
            for parts in MESSAGES:
                dealer.send_multipart(parts)
                assert end.receive() == parts
                end.send(encode_message(parts))
                end.send(EncodedMessage([PING], len(PING)))
                assert dealer.recv_multipart() == parts


def test_we_call_zeromq() -> None:
    with context() as zeromq:
        router = zeromq.socket(zmq.ROUTER)
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, text(SERVER)[1])
        router.setsockopt(zmq.RCVTIMEO, 10_000)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)) as connection:
            end = End(connection, CurveClientHandshake([SERVER.public]))
            for parts in MESSAGES:
                end.send(encode_message(parts))
                who, *came = router.recv_multipart()
                assert came == parts
                router.send_multipart([who, *parts])
                assert end.receive() == parts


def test_waiting_messages_are_encrypted_when_they_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then all connections have the same bytes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        mine, other = shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))
        sealed: list[int] = []
        seal = mine.seal_parts

        def counted(_: Box, flags: int, data: bytes) -> tuple[bytes, bytes]:
            sealed.append(len(data))
            return seal(flags, data)

        monkeypatch.setattr(Box, "seal_parts", counted)
        ours.setblocking(False)
        sealing = CurveSendQueue(ours, mine)
        messages = [[bytes([number]) * 100_000, b"end"] for number in range(100)]
        for parts in messages:
            sealing.append(encode_message(parts))
        assert not sealed
        sealing.send()
        assert 0 < sum(sealed) < 5_000_000, "what the kernel takes, and a little more"
        assert len(sealing) > 50
        assert 0 < sealing.bytes < 100 * 100_100
        theirs.setblocking(False)
        opening = CurveReceiver(theirs, other, b"", 1 << 20, lambda _: True)
        stream = FrameReader(opening, memoryview(bytearray(SCRATCH_BYTES)), 1 << 20, lambda _: True, parts_max=2)
        came: list[list[bytes]] = []
        while len(came) < len(messages):
            with contextlib.suppress(BlockingIOError):
                came += [[bytes(part) for part in parts] for parts, _ in stream.read()]
            sealing.send()
        assert came == messages
        assert (len(sealing), sealing.bytes) == (0, 0)
        sealing.append(encode_message([b"x"]))
        sealing.clear()
        assert (len(sealing), sealing.bytes) == (0, 0)


def test_an_encrypted_connection_reads_like_a_plain_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        mine, other = shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))
        ours.setblocking(False)
        opening = CurveReceiver(ours, mine, b"", 100_000, lambda size: size < 80_000)
        room = memoryview(bytearray(200_000))
        with pytest.raises(BlockingIOError):
            opening.recv_into(room)
        sealed = other.seal(0, b"a" * 70_000)
        theirs.sendall(sealed[:1000])
        with pytest.raises(BlockingIOError):
            opening.recv_into(room)
        assert opening.assembly_bytes == len(sealed)
        theirs.sendall(sealed[1000:])
        assert opening.recvmsg_into((room[:60_000], room[60_000:60_100])) == (60_100,)
        assert (opening.assembly_bytes, opening.unread) == (0, True)
        assert opening.recv_into(room) == 70_009 - 60_100
        theirs.sendall(other.seal(0, b"b"))
        theirs.shutdown(socket.SHUT_WR)
        assert opening.recv_into(room) == 3
        assert opening.recv_into(room) == 0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        mine, other = shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))
        opening = CurveReceiver(ours, mine, b"", 100_000, lambda size: size < 80_000)
        theirs.sendall(other.seal(0, b"a" * 90_000)[:100])
        with pytest.raises(FormatError, match="unauthenticated peer"):
            opening.recv_into(room)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        opening = CurveReceiver(ours, mine, b"", 100_000, lambda _: True)
        theirs.sendall(b"\x02" + (1 << 40).to_bytes(8, "big"))
        with pytest.raises(FormatError, match="an encrypted frame of"):
            opening.recv_into(room)
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        opening = CurveReceiver(ours, mine, b"", 100_000, lambda _: True)
        stream = FrameReader(opening, memoryview(bytearray(SCRATCH_BYTES)), 100, lambda _: True)
        with pytest.raises(ConnectionEnded):
            list(stream.read())
