"""Reads the messages of one connection with few system calls, at most one copy, and bounded memory."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tutti import limits
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.zmtp.framing import COMMAND, LENGTH, LONG, MORE

if TYPE_CHECKING:
    from tutti.zmtp.curve_stream import CurveReceiver

_FLAGS = MORE | LONG | COMMAND
_LONG_HEADER_BYTES = 1 + LENGTH.size  # the header of a part of more than 255 bytes
_unpack_length = LENGTH.unpack_from
ASSEMBLED_BYTES_MAX = 2 * limits.MESSAGE_BYTES_MAX  # a reader allocates no memory for a message above this size
_UNLIMITED = 2**31
# Above this size, even a skipped message ends the connection, because the message may be endless.
_SKIPPED_BYTES_MAX = 2 * ASSEMBLED_BYTES_MAX
_WINDOW_BYTES = 64 * limits.KIB  # size of one read of small messages
_TAIL_BYTES = 4 * limits.KIB  # bytes read after a large part; few, because a large part that begins in them must be copied
# An incomplete frame up to this size is copied into the next read. A larger frame gets memory of its own.
_SMALL_PART_BYTES_MAX = 2 * limits.KIB
SCRATCH_BYTES = _WINDOW_BYTES + _SMALL_PART_BYTES_MAX

Message = tuple[list[Buffer], int]  # parts, total bytes


class ConnectionEnded(Exception):
    """The peer closed the connection."""


class MessageTooLarge(FormatError):
    """A message exceeds the limit of bytes or parts; `size` is the number of bytes so far."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} or more bytes is above the limit of {ASSEMBLED_BYTES_MAX}, or has too many parts")
        self.size = size


class FrameReader:
    """Reads the messages of one connection.

    One read into `scratch` returns many small messages. A large part is read directly into memory of its own, which is allocated
    only after the announced length has passed the limits. The last read of a large part also reads the start of the next frames.

    A large message that must not be buffered is read and dropped; the yielded message has one part, the first byte. A skipped
    message above the limits is yielded without parts.

    Attributes:
        assembly_bytes: memory of the incomplete message, bytes.
        received_bytes: bytes of the last `read`.
        frames_read: frames in the last `read`.
        buffer_full: whether the last `read` filled the buffer, so that more data may be available.
    """

    def __init__(
        self,
        connection: socket.socket | CurveReceiver,
        scratch: memoryview,
        part_max: int,
        may_buffer: Callable[[int], bool],
        rest: bytes = b"",
        window: int = _WINDOW_BYTES,
        *,
        parts_max: int = 1,
        skips_oversized: bool = False,
        on_command: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Start to read.

        Args:
            connection: non-blocking socket, or the receive side of an encrypted connection.
            scratch: memory of `SCRATCH_BYTES` for reads; all connections of a thread share it.
            part_max: limit of a part, bytes; a larger part ends the connection.
            may_buffer: returns True if a message of this size may be buffered; called only above `INTRODUCTION_BYTES_MAX` bytes.
            rest: bytes that have already arrived.
            window: largest number of bytes that one `read` reads from the socket, apart from the body of a large part.
            parts_max: limit of parts of a message.
            skips_oversized: whether a message above the limits is skipped; otherwise such a message ends the connection.
            on_command: callback for each command.
        """
        self._socket = connection
        self._scratch = scratch
        self._scratch_window = scratch[:window]
        self._part_max = part_max
        self._may_buffer = may_buffer
        self._rest = rest
        self._rest_unparsed = bool(rest)  # `_rest` may hold complete frames
        self._window = window
        self._parts_max = parts_max
        self._skips_oversized = skips_oversized
        self._on_command = on_command
        self._tail_bytes = min(window, _TAIL_BYTES)
        self._lone_bytes_max = min(window - 1 - _LONG_HEADER_BYTES, part_max)
        self._after_large = False
        self._body: memoryview | None = None  # memory of the large part that is being assembled
        self._filled = self._flags = 0
        self._parts: list[Buffer] = []
        self._count = self._size = 0
        self._frames_max = _UNLIMITED
        self._received_end = 0  # end of the bytes in `scratch` that `read_lone` has read and `read` must parse; 0 if there are none
        self._dropping = False  # True if the current message is dropped
        self._drop_bytes = 0  # number of bytes of the current part that are still to be dropped
        self.assembly_bytes = self.received_bytes = self.frames_read = 0
        self.buffer_full = False

    def read_lone(self) -> bytes | None:
        """Read once. Return the message if the read brings exactly one message of one part; else None, and `read` must follow.

        A client with one record in flight sends such messages, and each takes a third of the calls of `read`.

        Raises:
            BlockingIOError: nothing is available.
            OSError, ConnectionEnded: the connection is broken or closed.
        """
        # Bytes that an earlier read left over, and parts of an incomplete message, are for `read`. A large part that is being
        # assembled sets `_after_large`.
        if self._rest or self._count or self._drop_bytes or self._after_large:
            return None
        scratch = self._scratch
        count = self._socket.recv_into(self._scratch_window)
        if not count:
            raise ConnectionEnded
        # A message in one part has no flag apart from that of its length. After a short read, the length may be of an earlier one.
        flags = scratch[0]
        start, length = (_LONG_HEADER_BYTES, _unpack_length(scratch, 1)[0]) if flags == LONG else (2, scratch[1])
        if flags & ~LONG == 0 and length <= self._lone_bytes_max and count == start + length:
            return bytes(scratch[start:count])
        self._received_end = count
        return None

    def read(self, frames_max: int = _UNLIMITED) -> Iterator[Message]:
        """Read once, and yield the messages that are complete after this read.

        After `frames_max` frames, the remaining bytes wait for the next `read`, and `buffer_full` is True.

        Raises:
            BlockingIOError: nothing is available.
            OSError, ConnectionEnded: the connection is broken or closed.
            FormatError: the data violates the protocol or the limits, so the caller must close the connection.
        """
        self.frames_read = 0
        self._frames_max = frames_max
        # Most reads neither begin nor end inside a large part, and need only one generator.
        if self._body is None and not self._drop_bytes:
            return self._parse(0, self._read())
        return self._read_large()

    def _read_large(self) -> Iterator[Message]:
        """Read once, while a large part is being assembled or dropped. See `read`."""
        body = self._body
        offset = 0
        if body is not None:
            end = self._read_body(body)
            if end < 0:
                return
            self._body = None
            message = self._add_part(body, len(body), self._flags)
            if message is not None:
                yield message
        else:
            end = self._read()
            if self._drop_bytes:  # the bytes in `scratch` belong to a large part that is being dropped
                offset = min(self._drop_bytes, end)
                self._drop_bytes -= offset
                if not self._drop_bytes:
                    message = self._add_part(b"", 0, self._flags)
                    if message is not None:
                        yield message
        yield from self._parse(offset, end)

    def _read(self) -> int:
        """Read into `scratch`, after the bytes that the last read left over. Return the offset of the end."""
        if end := self._received_end:
            self._received_end = 0
            self.received_bytes, self.buffer_full = end, end == self._window
            return end
        rest = self._rest
        kept = len(rest)
        if self._rest_unparsed:  # the last `read` stopped at its limit of frames, so parse its rest without a system call
            self._rest_unparsed = False
            self._scratch[:kept] = rest
            self._rest = b""
            self.received_bytes, self.buffer_full = kept, True
            return kept
        capacity = self._tail_bytes if self._after_large else self._window
        count = self._socket.recv_into(self._scratch[kept : kept + capacity])
        if not count:
            raise ConnectionEnded
        if kept:
            self._scratch[:kept] = rest
            self._rest = b""
        end = kept + count
        self.received_bytes = count
        self.buffer_full = count == capacity
        self._after_large = False
        return end

    def _read_body(self, body: memoryview) -> int:
        """Read the rest of a large part, and the bytes that follow the part into `scratch`.

        Return the end of the bytes in `scratch`, negative if the part is still incomplete.
        """
        # A single system call reads both.
        count: int = self._socket.recvmsg_into((body[self._filled :], self._scratch[: self._tail_bytes]))[0]
        if not count:
            raise ConnectionEnded
        self.received_bytes = count
        end = self._filled + count - len(body)
        self.buffer_full = end == self._tail_bytes
        if end < 0:
            self._filled += count
            return -1
        return end

    def _parse(self, offset: int, end: int) -> Iterator[Message]:
        """Yield the messages in `scratch` between two offsets, and keep an incomplete frame for the next read."""
        scratch = self._scratch
        while offset + 2 <= end:
            if self.frames_read >= self._frames_max:
                self._rest_unparsed = self.buffer_full = True
                break
            self.frames_read += 1
            flags = scratch[offset]
            start = offset + 2
            if flags & LONG:
                start = offset + 1 + LENGTH.size
                if start > end:
                    break
                length = _unpack_length(scratch, offset + 1)[0]
            else:
                length = scratch[offset + 1]
            if length > self._part_max or flags & ~_FLAGS:
                raise FormatError(f"a part of {length} bytes (flags {flags:#x}) is invalid")
            frame_end = start + length
            if frame_end > end:
                if frame_end - offset <= _SMALL_PART_BYTES_MAX:
                    break  # the small incomplete frame becomes `_rest`, and the next read appends to it
                self._begin_large_part(scratch[start:end], length, flags)
                return
            offset = frame_end
            if flags & COMMAND:
                self._on_command(bytes(scratch[start:frame_end]))
                continue
            # The most frequent message has one part.
            if not flags & MORE and not self._count:
                yield [bytes(scratch[start:frame_end])], length
                continue
            message = self._add_part(bytes(scratch[start:frame_end]), length, flags)
            if message is not None:
                yield message
        if offset < end:
            self._rest = bytes(scratch[offset:end])

    def _begin_large_part(self, received: memoryview, length: int, flags: int) -> None:
        """Start to assemble a large part, whose first bytes are `received`."""
        if flags & COMMAND:
            raise FormatError(f"a command of {length} bytes is too large")
        size = self._size + length
        # Check the limits before the part is assembled, so that no memory is allocated for an oversized message.
        if self._count == self._parts_max or size > ASSEMBLED_BYTES_MAX:
            self._reject_message(size)
        if not self._dropping and size > limits.INTRODUCTION_BYTES_MAX and not self._may_buffer(size):
            self._drop_message(bytes(received[:1]))
        self._flags = flags
        if self._dropping:
            self._size = size
            self._drop_bytes = length - len(received)
            return
        # Unlike a bytearray, an empty array is not zeroed first, which would cost time for a large part.
        self._body = body = np.empty(length, np.uint8).data
        body[: len(received)] = received
        self._filled = len(received)
        self._after_large = True
        self.assembly_bytes = size

    def _reject_message(self, size: int) -> None:
        """Handle a message above the limits."""
        if not self._skips_oversized or size > _SKIPPED_BYTES_MAX:
            raise MessageTooLarge(size)
        self._dropping = True
        self._parts = []
        self.assembly_bytes = 0

    def _drop_message(self, first: bytes) -> None:
        """Drop a message that must not be buffered, except its first byte, which shows its kind."""
        self._dropping = True
        self._parts = [bytes(self._parts[0][:1]) if self._parts else first]
        self.assembly_bytes = 0

    def _add_part(self, part: Buffer, length: int, flags: int) -> Message | None:
        """Add a complete part to the message. Return the message if this part is the last one."""
        self._size += length
        self._count += 1
        if self._count > self._parts_max or self._size > ASSEMBLED_BYTES_MAX:
            self._reject_message(self._size)
        if not self._dropping:
            self._parts.append(part)
        if flags & MORE:
            if not self._dropping and self._size > limits.INTRODUCTION_BYTES_MAX and not self._may_buffer(self._size):
                self._drop_message(b"")
            self.assembly_bytes = 0 if self._dropping else self._size
            return None
        message = self._parts, self._size
        self._parts = []
        self._count = self._size = self.assembly_bytes = 0
        self._dropping = False
        return message
