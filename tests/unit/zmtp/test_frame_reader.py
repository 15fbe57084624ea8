"""Tests of the frame reader: messages arrive complete, however the network splits them, an oversized one allocates no memory, and
received equals sent.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tutti import limits
from tutti.errors import FormatError
from tutti.zmtp import frame_reader
from tutti.zmtp.frame_reader import SCRATCH_BYTES, ConnectionEnded, FrameReader, MessageTooLarge
from tutti.zmtp.framing import COMMAND, GREETING, MORE, HandshakeError, NullHandshake, encode_message, frame, ready

SIZES = st.one_of(st.integers(0, 300), st.integers(2000, 5000), st.integers(60_000, 70_000), st.integers(200_000, 300_000))
PARTS_MAX = 20


class Reader:
    """One end of a connection, read by a stream, and the bytes that come to it."""

    def __init__(
        self,
        ends: tuple[socket.socket, socket.socket],
        may_buffer: Callable[[int], bool] = lambda _: True,
        *,
        skips_oversized: bool = False,
    ) -> None:
        self.there, here = ends
        here.setblocking(False)
        self.there.setblocking(False)
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.stream = FrameReader(
            here, scratch, limits.MESSAGE_BYTES_MAX, may_buffer, parts_max=PARTS_MAX, skips_oversized=skips_oversized
        )
        self.came: list[tuple[list[bytes], int]] = []
        self.held_most = 0

    def read(self) -> bool:
        """Whether there was something."""
        try:
            for parts, size in self.stream.read():
                self.came.append(([bytes(part) for part in parts], size))
        except BlockingIOError:
            return False
        self.held_most = max(self.held_most, self.stream.assembly_bytes)
        return True

    def take(self, data: bytes, step: int) -> None:
        """Data that comes in steps of so many bytes."""
        view = memoryview(data)
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[self.there.send(view[:step]) :]
            self.read()
        while self.read():
            continue


@contextlib.contextmanager
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@given(st.lists(st.lists(SIZES, min_size=1, max_size=4), max_size=6), st.sampled_from([1 << 20, 65_536, 4096, 1000]))
def test_messages_arrive_complete_and_in_order_however_they_are_split(sizes: list[list[int]], step: int) -> None:
    wanted = [[bytes([number % 251]) * size for number, size in enumerate(parts)] for parts in sizes]
    data = b"".join(bytes(buffer) for parts in wanted for buffer in encode_message(parts).buffers)
    assert len(data) == sum(encode_message(parts).size for parts in wanted)
    with ends() as pair:
        reader = Reader(pair)
        reader.take(data, step)
        assert reader.came == [(parts, sum(map(len, parts))) for parts in wanted]
        assert reader.stream.assembly_bytes == 0


def test_input_byte_by_byte_gives_the_same_messages() -> None:
    with ends() as pair:
        reader = Reader(pair)
        parts = [b"head", b"x" * 3000, b"", b"end"]
        data = b"".join(bytes(buffer) for buffer in encode_message(parts).buffers)
        reader.take(frame(b"\x04PING", COMMAND) + data + data, 1)
        assert reader.came == [(parts, 3007)] * 2


def test_for_an_unknown_peer_a_large_message_is_dropped_and_the_next_one_is_received() -> None:
    with ends() as pair:
        reader = Reader(pair, lambda _: False)
        large = limits.INTRODUCTION_BYTES_MAX + 1
        reader.take(frame(b"I" + bytes(large)) + frame(b"next"), 10_000)
        reader.take(frame(b"I" + bytes(large - 5000), MORE) + frame(bytes(20_000), MORE) + frame(b"", 0) + frame(b"next"), 10_000)
        assert reader.came == [([b"I"], large + 1), ([b"next"], 4), ([b"I"], large + 15_001), ([b"next"], 4)]
        assert reader.held_most <= limits.INTRODUCTION_BYTES_MAX


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x02" + (limits.MESSAGE_BYTES_MAX + 1).to_bytes(8, "big") + b"x", FormatError),
        (b"\x02" + b"\xff" * 8, FormatError),
        (b"\x10\x01x", FormatError),
        (frame(bytes(100_000), COMMAND), FormatError),
        (frame(b"", MORE) * (PARTS_MAX + 1), MessageTooLarge),
        (frame(bytes(8 << 20), MORE) * 5, MessageTooLarge),
    ],
)
def test_an_oversized_message_ends_the_connection(data: bytes, error: type[Exception]) -> None:
    with ends() as pair:
        reader = Reader(pair)
        with pytest.raises(error):
            reader.take(data, 65_536)
        assert reader.held_most <= 2 * limits.MESSAGE_BYTES_MAX


def test_a_message_that_never_ends_is_not_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_reader, "ASSEMBLED_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(frame_reader, "_SKIPPED_BYTES_MAX", 2 << 20)
    with ends() as pair:
        reader = Reader(pair, skips_oversized=True)
        reader.take(frame(bytes(1 << 20), MORE) + frame(bytes(500_000)) + frame(b"next"), 65_536)
        assert reader.came == [([], (1 << 20) + 500_000), ([b"next"], 4)]
        with pytest.raises(MessageTooLarge):
            reader.take(frame(bytes(500_000), MORE) * 5, 65_536)


def test_a_connection_that_ends_inside_a_message_is_reported_too() -> None:
    for data in (b"", b"\x00", frame(bytes(100_000))[:50_000]):
        with ends() as pair:
            reader = Reader(pair)
            reader.take(data, 100_000)
            pair[0].close()
            with pytest.raises(ConnectionEnded):
                reader.read()


@given(st.integers(1, 130))
def test_a_handshake_is_accepted_in_any_chunks_and_the_rest_is_left(step: int) -> None:
    said = GREETING + ready(b"DEALER", b"jfk") + b"rest"
    handshake = NullHandshake(b"ROUTER", b"DEALER")
    rest = None
    at = 0
    while rest is None:
        rest = handshake.receive_data(said[at : at + step])
        at += step
    assert (rest + said[at:], handshake.identity) == (b"rest", b"jfk")


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        GREETING.replace(b"NULL\0", b"CURVE"),
        GREETING[:10] + b"\x01" + GREETING[11:],
        GREETING + ready(b"PUB", b""),
        GREETING + frame(b"message"),
        GREETING + frame(b"\x05ERROR", COMMAND),
        GREETING + frame(b"\x05READY\x0bSocket-Type\xff\xff\xff\xff", COMMAND),
        GREETING + b"\x06" + b"\xff" * 8,
        GREETING + frame(b"\x05READY" + bytes(2000), COMMAND),
    ],
)
def test_a_handshake_that_is_not_from_a_gateway_without_keys_is_recognised(said: bytes) -> None:
    with pytest.raises(HandshakeError):
        NullHandshake(b"ROUTER", b"DEALER").receive_data(said)
