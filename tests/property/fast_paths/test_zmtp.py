"""Properties of the fast paths of connections: a message that arrives alone, and a message that is sent at once."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.zmtp.test_curve import shake
from tutti import limits
from tutti.errors import FormatError
from tutti.zmtp import frame_reader
from tutti.zmtp.curve import Box, CurveClientHandshake, CurveServerHandshake, new_key_pair
from tutti.zmtp.curve_stream import CurveReceiver, CurveSendQueue
from tutti.zmtp.frame_reader import SCRATCH_BYTES, ConnectionEnded, FrameReader
from tutti.zmtp.framing import COMMAND, LENGTH, LONG, MORE, EncodedMessage, frame, frame_header
from tutti.zmtp.send_queue import SendQueue

WINDOW_BYTES, PART_MAX, PARTS_MAX = 600, 5000, 3
SERVER = new_key_pair()


class Socket:
    """The receive side of a socket whose data the test adds. `asked` has the size of each buffer that was to be filled."""

    def __init__(self) -> None:
        self.arrived = bytearray()
        self.ended = False
        self.asked: list[int] = []

    def recv_into(self, buffer: memoryview) -> int:
        return self.recvmsg_into([buffer])[0]

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        self.asked.append(sum(map(len, buffers)))
        if not self.arrived:
            if self.ended:
                return (0,)
            raise BlockingIOError
        filled = 0
        for buffer in buffers:
            part = self.arrived[: len(buffer)]
            buffer[: len(part)] = part
            del self.arrived[: len(part)]
            filled += len(part)
        return (filled,)


class Received:
    """What a reader has brought: messages, commands and the error that ended the connection."""

    def __init__(self, *, alone: bool, box: Box | None, skips: bool, part_max: int = PART_MAX) -> None:
        self.socket = Socket()
        self.came: list[object] = []
        self.over = False
        self._alone = alone
        connection: Any = self.socket
        if box is not None:
            connection = CurveReceiver(connection, box, b"", PART_MAX, lambda _: True)
        self.reader = FrameReader(
            connection,
            memoryview(bytearray(SCRATCH_BYTES)),
            part_max,
            lambda size: size % 2 == 0,
            window=WINDOW_BYTES,
            parts_max=PARTS_MAX,
            skips_oversized=skips,
            on_command=self.came.append,
        )

    def read(self, frames_max: int) -> None:
        """Read as a server does after an event: until a read does not fill the buffer."""
        full = True
        while full and not self.over:
            try:
                full = self._read_once(frames_max)
            except BlockingIOError:
                return
            except (FormatError, ConnectionEnded) as error:
                self.came.append((type(error), str(error)))
                self.over = True

    def _read_once(self, frames_max: int) -> bool:
        reader = self.reader
        if self._alone and (lone := reader.read_lone()) is not None:
            self.came.append(([lone], len(lone)))
            return False
        for parts, size in reader.read(frames_max):
            self.came.append(([bytes(part) for part in parts], size))
        return reader.buffer_full


def long_frame(data: bytes, flags: int = 0) -> bytes:
    """A frame with the long form of its header, whatever its size."""
    return bytes((flags | LONG,)) + LENGTH.pack(len(data)) + data


def body(chance: Random, size: int) -> bytes:
    """Bytes that look like frames."""
    return (long_frame(b"x" * chance.choice((0, 300, 300))) * (size // 9 + 1))[:size]


def pieces(chance: Random) -> list[bytes]:
    """Frames as they leave a peer: alone, several at once, or cut anywhere; sometimes with a fault at the end."""
    out: list[bytes] = []
    exact = WINDOW_BYTES - 9
    for _ in range(chance.randint(1, 12)):
        data = body(chance, chance.choice((0, 1, 100, 255, 256, exact - 1, exact, exact + 1, 2500)))
        kind = chance.choice(("lone", "lone", "lone", "short", "command", "parts", "large"))
        if kind == "lone":
            out.append(long_frame(data[:exact]))
        elif kind == "short":
            out.append(frame(data[:255]))
        elif kind == "command":
            out.append(frame(b"\4PING" + data[:50], COMMAND))
        elif kind == "parts":
            out += [long_frame(data[:100], MORE) for _ in range(chance.randint(0, PARTS_MAX))] + [long_frame(data[:exact])]
        else:
            out.append(frame(body(chance, chance.choice((2499, PART_MAX)))))
    if chance.random() < 0.3:
        out.append(chance.choice((b"\xff\3abc", long_frame(bytes(PART_MAX + 1)), long_frame(b"x", COMMAND | 8), b"\2\xff")))
    how = chance.random()
    if how < 0.2:
        return [b"".join(out)]
    if how < 0.5:  # each piece looks like a frame, also in the middle of a large part
        return [piece for data in out for piece in re.split(rb"(?<=x{300})(?=\x02)|(?<=^.{9})(?=\x02)", data, flags=re.DOTALL)]
    if how < 0.7:
        data, cuts = b"".join(out), []
        while data:
            size = chance.choice((1, 9, 100, WINDOW_BYTES, 4000))
            cuts.append(data[:size])
            data = data[size:]
        return cuts
    return out


def boxes() -> tuple[Box, Box]:
    return shake(CurveClientHandshake([SERVER.public]), CurveServerHandshake(SERVER))


CLIENT, OURS = boxes()


def sealed(box: Box, data: bytes) -> bytes:
    """The frames of the data, encrypted; the data may end inside a frame, and that end is one frame more."""
    out = bytearray()
    while data:
        flags, start, size = data[0], 2, data[1] if len(data) > 1 else 0
        if flags & LONG and len(data) >= 9:
            start, size = 9, LENGTH.unpack_from(data, 1)[0]
        out += box.seal(flags & (MORE | COMMAND), data[start : start + size])
        data = data[start + size :]
    return bytes(out)


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=100)
def test_a_reader_brings_the_same_with_and_without_the_fast_path_for_a_lone_message(seed: int, encrypted: bool) -> None:
    chance = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "INTRODUCTION_BYTES_MAX", 1000)
        patch.setattr(frame_reader, "ASSEMBLED_BYTES_MAX", 9000)
        patch.setattr(frame_reader, "_SKIPPED_BYTES_MAX", 15_000)
        patch.setattr(frame_reader, "_TAIL_BYTES", 100)
        for _ in range(3):
            compare(chance, encrypted)


def compare(chance: Random, encrypted: bool) -> None:
    sent, skips, part_max = pieces(chance), chance.random() < 0.5, chance.choice((PART_MAX, PART_MAX, 300))
    if encrypted:
        box = copy.copy(CLIENT)
        sent = [sealed(box, piece) for piece in sent]
    both = [
        Received(alone=alone, box=copy.copy(OURS) if encrypted else None, skips=skips, part_max=part_max) for alone in (True, False)
    ]
    for piece in [*sent, b""]:
        frames_max = chance.choice((1, 2, 1000))
        for one in both:
            one.socket.arrived += piece
            one.socket.ended = not piece
            one.read(frames_max)
        fast, general = both
        assert fast.came == general.came
        assert fast.reader.assembly_bytes == general.reader.assembly_bytes
        assert fast.socket.arrived == general.socket.arrived
        assert fast.socket.asked == general.socket.asked


def test_a_lone_message_takes_the_fast_path() -> None:
    one = Received(alone=True, box=None, skips=False)
    one.socket.arrived += long_frame(b"x" * 300)
    assert one.reader.read_lone() == b"x" * 300


class Outgoing:
    """The send side of a socket with free space for `space` bytes, of which one call fills at most `call_max`."""

    def __init__(self, call_max: int) -> None:
        self.sent = bytearray()
        self.space = 0
        self._call_max = call_max

    def send(self, data: bytes) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Sequence[bytes]) -> int:
        if not self.space:
            raise BlockingIOError
        data = b"".join(map(bytes, buffers))[: min(self.space, self._call_max)]
        self.sent += data
        self.space -= len(data)
        return len(data)


def message(data: bytes) -> EncodedMessage:
    return EncodedMessage([frame_header(len(data), 0), data], len(frame(data)))


@given(
    st.lists(st.sampled_from([0, 0, 1, 2, 8, 300, 10_000]), max_size=5),
    st.sampled_from([1, 3, 200, 10_000]),
    st.sampled_from([0, 1, 255, 256, 700]),
    st.booleans(),
)
@settings(max_examples=100)
def test_a_message_sent_at_once_leaves_like_one_that_is_queued_and_sent(
    spaces: list[int], call_max: int, size: int, encrypted: bool
) -> None:
    sockets = [Outgoing(call_max), Outgoing(call_max)]
    queues: list[SendQueue] = [
        CurveSendQueue(one, copy.copy(CLIENT)) if encrypted else SendQueue(one)  # type: ignore[arg-type]  # a part of a socket
        for one in sockets
    ]
    data = (bytes(range(256)) * 3)[:size]

    def send(space: int) -> None:
        for queue, one in zip(queues, sockets, strict=True):
            one.space += space
            queue.send()

    space = spaces.pop() if spaces else 0
    for one in sockets:
        one.space = space
    fast, general = queues
    fast.send_first(frame(data))
    general.append(message(data))
    for space in (0, *spaces, 10_000):
        send(space)
        assert (fast.bytes, len(fast), sockets[0].sent) == (general.bytes, len(general), sockets[1].sent)
    for queue in queues:
        queue.append(message(b"later"))
    send(10_000)
    assert sockets[0].sent == sockets[1].sent
    assert encrypted or sockets[0].sent == frame(data) + frame(b"later")
    assert (fast.bytes, len(fast)) == (0, 0)


def test_the_first_message_takes_one_call() -> None:
    one = Outgoing(10_000)
    one.space = 10_000
    queue = SendQueue(one)  # type: ignore[arg-type]  # a part of a socket
    queue.send_first(frame(b"answer"))
    assert (bytes(one.sent), len(queue)) == (frame(b"answer"), 0)
