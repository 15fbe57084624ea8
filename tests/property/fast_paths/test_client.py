"""Properties of the fast paths of a client's connection: a message that arrives alone, a small message, and one receipt."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.fast_paths.test_zmtp import Outgoing, Socket
from tutti import limits
from tutti.common.gateway_url import Address
from tutti.data.client_protocol import Committed, decode_receipts, encode_receipts
from tutti.errors import FormatError
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection
from tutti.zmtp.frame_reader import SCRATCH_BYTES, FrameReader
from tutti.zmtp.framing import JOINED_PART_MAX, PING, encode_message, frame
from tutti.zmtp.send_queue import SendQueue

_READ = 1  # EPOLLIN
_SPACE = 1_000_000  # more than all messages of a test


@contextmanager
def two_connections() -> Iterator[list[ZmtpConnection]]:
    """Two connections that have completed their handshakes, and whose sockets the test replaces."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        both = [ZmtpConnection(Address("127.0.0.1", listener.getsockname()[1])) for _ in range(2)]
        try:
            for connection in both:
                connection._mask, connection._keepalive_at, connection.up = _READ, inf, True
                connection._poll.modify(connection._socket, _READ)  # type: ignore[arg-type]  # a socket until the end
                connection.readable = connection.has_events = False
            yield both
        finally:
            for connection in both:
                connection._outgoing = None
                connection.close()


class Piecewise(Socket):
    """A socket of which each read returns one piece. In place of a `CurveReceiver`, it has `unread` pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.error: OSError | None = None

    @property
    def unread(self) -> bool:
        return bool(self.pieces)

    def recv_into(self, buffer: memoryview) -> int:
        if self.error is not None:
            raise self.error
        if not self.arrived and self.pieces:
            self.arrived += self.pieces.pop(0)
        return super().recv_into(buffer)


def reading(connection: ZmtpConnection, *, encrypted: bool) -> Piecewise:
    """Let the connection read from a socket of the test. An encrypted one may bring several pieces with one event."""
    source = Piecewise()
    stands_for: Any = source
    connection._opening = stands_for if encrypted else None
    scratch = memoryview(bytearray(SCRATCH_BYTES))
    connection._stream = FrameReader(stands_for, scratch, limits.ANSWER_BYTES_MAX, lambda _: True, on_command=connection._command)
    return source


def handle_generally(connection: ZmtpConnection) -> None:
    """Read without the fast path."""
    connection._on_socket_event(_READ)
    connection.readable, connection.has_events = bool(connection._received), bool(connection._events)


def taken(connection: ZmtpConnection, most: int) -> list[object]:
    """The next messages, and the error of a malformed one."""
    found: list[object] = []
    while len(found) < most:
        try:
            message = connection.receive()
        except FormatError as error:
            found.append(str(error))
            continue
        if message is None:
            return found
        found.append(message)
    return found


def piece(chance: Random) -> bytes:
    """One or several frames, or a part of a frame; sometimes malformed."""
    frames = [frame(chance.randbytes(chance.choice((0, 1, 40, 300)))) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    if chance.random() < 0.1:
        frames.insert(chance.randrange(2), PING)
    data = b"".join(frames)
    if chance.random() < 0.03:
        data += b"\xff\3abc"
    return data[: chance.randint(1, len(data))] if chance.random() < 0.15 else data


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_connection_brings_the_same_with_and_without_the_fast_path_for_a_lone_message(seed: int, encrypted: bool) -> None:
    chance = Random(seed)
    with two_connections() as both:
        sources = [reading(connection, encrypted=encrypted) for connection in both]
        fast, general = both
        if chance.random() < 0.3:  # nobody has asked for the first event yet
            for connection in both:
                connection._events.append(ConnectionEvent.UP)
                connection.has_events = True
        for _ in range(chance.randint(1, 12)):
            pieces = [piece(chance) for _ in range(chance.choice((1, 1, 2, 3)) if encrypted else 1)]
            how = chance.random()
            for source in sources:
                source.pieces += pieces if how < 0.9 else []
                source.ended = how > 0.97
                source.error = OSError(104, "Connection reset by peer") if 0.95 < how < 0.97 else None
            most = chance.choice((1, 1, 2, 1000))
            handle_generally(general)
            lone = fast.handle(0.0)
            assert lone is None or not (fast.readable or fast.has_events or fast._received)
            found: list[object] = [] if lone is None else [lone]
            assert found + taken(fast, most - len(found)) == taken(general, most)
            assert list(map(str, fast._received)) == list(map(str, general._received))
            assert (fast.readable, fast.has_events, fast._events) == (general.readable, general.has_events, general._events)
            assert (fast.loss, fast._unanswered, sources[0].unread) == (general.loss, general._unanswered, sources[1].unread)
            if chance.random() < 0.5:
                assert fast.next_event() == general.next_event()
                fast.has_events = general.has_events = bool(general._events)


def test_a_message_that_arrives_alone_takes_the_fast_path_and_is_a_sign_of_life() -> None:
    with two_connections() as (connection, _):
        connection._unanswered = 3
        reading(connection, encrypted=False).pieces.append(frame(b"receipt"))
        connection.is_ready = True
        assert connection.handle(0.0) == b"receipt"
        assert (connection._unanswered, connection.is_ready) == (0, False)


class Breaking(Outgoing):
    """An `Outgoing` whose peer may reset the connection."""

    broken = False

    def sendmsg(self, buffers: Any) -> int:
        if self.broken:
            raise OSError(104, "Connection reset by peer")
        return super().sendmsg(buffers)


def send_generally(connection: ZmtpConnection, parts: list[bytes]) -> bool:
    """Queue a message, and then send the queue if nothing else waits."""
    outgoing = connection._outgoing
    if outgoing is None:
        return True
    was_empty = not outgoing.bytes
    if not was_empty and len(outgoing) >= limits.CLIENT_WINDOW_FRAMES:
        return False
    outgoing.append(encode_message(parts))
    if was_empty:
        connection._send()
    return True


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_connection_sends_the_same_with_and_without_the_fast_path_for_a_small_message(seed: int) -> None:
    chance = Random(seed)
    with two_connections() as both, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CLIENT_WINDOW_FRAMES", 3)
        sockets = [Breaking(_SPACE), Breaking(_SPACE)]
        for connection, one in zip(both, sockets, strict=True):
            connection._outgoing = SendQueue(one)  # type: ignore[arg-type]  # a part of a socket
        senders: list[Callable[[list[bytes]], bool]] = [both[0].send, lambda parts: send_generally(both[1], parts)]
        for _ in range(chance.randint(1, 12)):
            sizes = [chance.choice((0, 1, 255, 256, 800, JOINED_PART_MAX, JOINED_PART_MAX + 1))] * chance.choice((1, 1, 1, 2, 3))
            parts = [chance.randbytes(size) for size in sizes]
            space, broken = chance.choice((0, 10, 1000, _SPACE)), chance.random() < 0.05
            for one in sockets:
                one.space, one.broken = space, broken
            assert len({send([*parts]) for send in senders}) == 1
            if chance.random() < 0.5:
                for connection in both:
                    connection._send()
            assert sockets[0].sent == sockets[1].sent
            fast, general = both
            assert (fast._mask, fast.loss, fast._outgoing is None) == (general._mask, general.loss, general._outgoing is None)
            if fast._outgoing is not None and general._outgoing is not None:
                assert (fast._outgoing.bytes, len(fast._outgoing)) == (general._outgoing.bytes, len(general._outgoing))


def test_a_small_message_takes_one_call() -> None:
    with two_connections() as (connection, _):
        one = Outgoing(10_000)
        one.space = 10_000
        queue = connection._outgoing = SendQueue(one)  # type: ignore[arg-type]  # a part of a socket
        queue.append = None  # type: ignore[assignment,method-assign]  # the fast path queues nothing
        assert connection.send([bytes(800)])
        assert bytes(one.sent) == frame(bytes(800))


ROWS = st.lists(
    st.builds(
        Committed,
        producer=st.integers(0, 2**64 - 1),
        epoch=st.integers(0, 2**32 - 1),
        first_sequence=st.integers(0, 2**64 - 1),
        count=st.integers(0, 2**32 - 1),
        offset=st.integers(-1, 2**63 - 1),
    ),
    max_size=3,
)


def receipts_of(data: bytes) -> object:
    try:
        return [Committed(*row[:1], row[3], row[1], row[4], row[2]) for row in decode_receipts(data)]
    except FormatError as error:
        return str(error)


@given(ROWS, st.sampled_from([None, 0, 1, 2, 257, 1 << 16, 1 << 24]), st.sampled_from([0, 0, 0, 1, 32, -1, -32, -40]))
def test_receipts_are_decoded_as_their_length_and_number_say(rows: list[Committed], count: int | None, more: int) -> None:
    data = encode_receipts(rows)
    if count is not None:
        data = data[:4] + struct.pack("<I", count) + data[8:]
    data = data[:more] if more < 0 else data + bytes(more) if count is not None else data
    found = receipts_of(data)
    if len(data) < 8:
        assert found == f"a receipts message of {len(data)} bytes is too short: it needs at least 8"
        return
    (stated,) = struct.unpack_from("<I", data, 4)
    if len(data) != 8 + 32 * stated:
        assert found == f"a receipts message of {stated} rows has the wrong length, {len(data)} bytes"
    elif stated <= len(rows):
        assert found == rows[:stated]
    else:
        assert isinstance(found, list)
        assert len(found) == stated
