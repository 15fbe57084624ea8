"""Messages as they come by one connection: in as few system calls as can be, copied once at most, in bounded memory."""

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
    from tutti.zmtp.curve_stream import Opening

_FLAGS = MORE | LONG | COMMAND
_LENGTH_OF = LENGTH.unpack_from
_WHOLE_MAX = 2 * limits.MESSAGE_BYTES_MAX
_ALL = 2**31
_ENDLESS = 2 * _WHOLE_MAX  # is no mistake any more
_WINDOW = 64 * limits.KIB  # of small messages that one read takes
_TAIL = 4 * limits.KIB  # that are read behind the end of a large part: they are copied if another large one begins there
_REST_MAX = 2 * limits.KIB  # a part up to this waits for its end among small ones; a larger one has memory of its own
SCRATCH_BYTES = _WINDOW + _REST_MAX

Message = tuple[list[Buffer], int]  # its parts, and its bytes


class Ended(Exception):
    """The other end closed the connection."""


class TooLarge(FormatError):
    """A message has more bytes (`size`, so far), or more parts, than any may have."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a message of {size} bytes or more, or in too many parts")
        self.size = size


class Stream:
    """Reads one connection.

    A part that is not all there with its first bytes is read straight into memory of its own, and with its end the beginning of
    what follows. That memory is had when the part's length is known and found to be in bounds. A large message of whom nothing is
    kept is read and dropped: its first byte is handed out as its only part, and no part of one that is out of bounds and forgiven.

    Attributes:
        held: bytes of memory that the unfinished message has.
        came: bytes that were read last.
        took: frames of them.
        full: there was no room for more, so that more may be there.
    """

    def __init__(
        self,
        connection: socket.socket | Opening,
        scratch: memoryview,
        part_max: int,
        keeps: Callable[[int], bool],
        rest: bytes = b"",
        window: int = _WINDOW,
        *,
        parts_max: int = 1,
        forgives: bool = False,
        command: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """Begin to read.

        Args:
            connection: is read, and never waited for.
            scratch: `SCRATCH_BYTES` that are read into; all connections of a thread have the same.
            part_max: bytes of a part; a larger one ends the connection.
            keeps: whether a message of so many bytes, over `INTRODUCTION_BYTES_MAX`, is kept until it is complete.
            rest: what came already.
            window: bytes that one `read` takes, beside a large part.
            parts_max: of a message.
            forgives: whether the connection goes on after a message of too many parts, or bytes.
            command: is told each command.
        """
        self._socket = connection
        self._scratch = scratch
        self._part_max = part_max
        self._keeps = keeps
        self._rest = rest
        self._fresh = bool(rest)  # it was not looked at
        self._window = window
        self._parts_max = parts_max
        self._forgives = forgives
        self._command = command
        self._tail = min(window, _TAIL)
        self._after_large = False
        self._body: memoryview | None = None  # of the part under way, if it is a large one
        self._filled = self._flags = 0
        self._parts: list[Buffer] = []
        self._count = self._size = 0
        self._frames_max = _ALL
        self._dropping = False  # the message under way, and
        self._drop = 0  # so many bytes more of its part
        self.held = self.came = self.took = 0
        self.full = False

    def read(self, frames_max: int = _ALL) -> Iterator[Message]:
        """Take what one system call brings: the messages that are complete with it. What is above so many frames is left for the
        next `read`, and `full` says so.

        Raises:
            BlockingIOError: nothing is there.
            OSError, Ended: the connection is no more.
            FormatError: what came is out of bounds; the connection is to be closed.
        """
        self.took = 0
        self._frames_max = frames_max
        body = self._body
        at = 0
        if body is not None:
            end = self._read_body(body)
            if end < 0:
                return
            self._body = None
            message = self._add(body, len(body), self._flags)
            if message is not None:
                yield message
        else:
            end = self._read()
            if self._drop:
                at = min(self._drop, end)
                self._drop -= at
                if not self._drop:
                    message = self._add(b"", 0, self._flags)
                    if message is not None:
                        yield message
        yield from self._messages(at, end)

    def _read(self) -> int:
        """Read behind the rest; where that ends."""
        rest = self._rest
        begin = len(rest)
        if self._fresh:
            self._fresh = False
            self._scratch[:begin] = rest
            self._rest = b""
            self.came, self.full = begin, True
            return begin
        room = self._tail if self._after_large else self._window
        count = self._socket.recv_into(self._scratch[begin : begin + room])
        if not count:
            raise Ended
        if begin:
            self._scratch[:begin] = rest
            self._rest = b""
        end = begin + count
        self.came = count
        self.full = count == room
        self._after_large = False
        return end

    def _read_body(self, body: memoryview) -> int:
        """Read the part under way and what follows it; where that ends, -1 if not all of the part is there."""
        count: int = self._socket.recvmsg_into((body[self._filled :], self._scratch[: self._tail]))[0]
        if not count:
            raise Ended
        self.came = count
        end = self._filled + count - len(body)
        self.full = end == self._tail
        if end < 0:
            self._filled += count
            return -1
        return end

    def _messages(self, at: int, end: int) -> Iterator[Message]:
        """Those in the scratch between the two places; the rest is kept."""
        scratch = self._scratch
        while at + 2 <= end:
            if self.took >= self._frames_max:
                self._fresh = self.full = True
                break
            self.took += 1
            flags = scratch[at]
            start = at + 2
            if flags & LONG:
                start = at + 1 + LENGTH.size
                if start > end:
                    break
                length = _LENGTH_OF(scratch, at + 1)[0]
            else:
                length = scratch[at + 1]
            if length > self._part_max or flags & ~_FLAGS:
                raise FormatError(f"a part of {length} bytes (flags {flags:#x})")
            stop = start + length
            if stop > end:
                if stop - at <= _REST_MAX:
                    break
                self._begin(scratch[start:end], length, flags)
                return
            at = stop
            if flags & COMMAND:
                self._command(bytes(scratch[start:stop]))
                continue
            message = self._add(bytes(scratch[start:stop]), length, flags)
            if message is not None:
                yield message
        if at < end:
            self._rest = bytes(scratch[at:end])

    def _begin(self, came: memoryview, length: int, flags: int) -> None:
        """A large part is under way, of which that much came."""
        if flags & COMMAND:
            raise FormatError(f"a command of {length} bytes")
        size = self._size + length
        if self._count == self._parts_max or size > _WHOLE_MAX:
            self._void(size)
        if not self._dropping and size > limits.INTRODUCTION_BYTES_MAX and not self._keeps(size):
            self._drop_message(bytes(came[:1]))
        self._flags = flags
        if self._dropping:
            self._size = size
            self._drop = length - len(came)
            return
        self._body = body = np.empty(length, np.uint8).data
        body[: len(came)] = came
        self._filled = len(came)
        self._after_large = True
        self.held = size

    def _void(self, size: int) -> None:
        """The message under way is out of bounds."""
        if not self._forgives or size > _ENDLESS:
            raise TooLarge(size)
        self._dropping = True
        self._parts = []
        self.held = 0

    def _drop_message(self, first: bytes) -> None:
        self._dropping = True
        self._parts = [bytes(self._parts[0][:1]) if self._parts else first]
        self.held = 0

    def _add(self, part: Buffer, length: int, flags: int) -> Message | None:
        """A part is complete; the message, if that is."""
        self._size += length
        self._count += 1
        if self._count > self._parts_max or self._size > _WHOLE_MAX:
            self._void(self._size)
        if not self._dropping:
            self._parts.append(part)
        if flags & MORE:
            if not self._dropping and self._size > limits.INTRODUCTION_BYTES_MAX and not self._keeps(self._size):
                self._drop_message(b"")
            self.held = 0 if self._dropping else self._size
            return None
        message = self._parts, self._size
        self._parts = []
        self._count = self._size = self.held = 0
        self._dropping = False
        return message
