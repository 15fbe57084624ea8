"""The two directions of an encrypted connection, to those who read and send frames as by a plain one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from tutti import limits
from tutti.errors import FormatError
from tutti.zmtp.curve import MESSAGE_OVERHEAD, Box
from tutti.zmtp.framing import COMMAND, LENGTH, LONG, MORE, Formed, frame
from tutti.zmtp.send_queue import Outgoing

_READ_BYTES = 64 * limits.KIB


class Opening:
    """What comes by an encrypted connection, as the frames that were sealed. Read as a socket that never waits: less than there is
    room for means that there is no more.

    Attributes:
        held: bytes that the box under way takes before it can be opened.
    """

    def __init__(self, connection: socket.socket, box: Box, came: bytes, part_max: int, keeps: Callable[[int], bool]) -> None:
        """Begin to read.

        Args:
            connection: is read, and never waited for.
            box: opens what comes.
            came: behind the handshake.
            part_max: bytes of a frame; a larger one ends the connection.
            keeps: whether a frame of so many bytes, over `INTRODUCTION_BYTES_MAX`, may be kept until it is complete.
        """
        self._socket = connection
        self._box = box
        self._came = bytearray(came)
        self._part_max = part_max + MESSAGE_OVERHEAD
        self._keeps = keeps
        self._opened = memoryview(b"")
        self._ended = False
        self._trouble: FormatError | None = None  # behind what was opened
        self.held = 0
        self._open_all()

    @property
    def unread(self) -> bool:
        """Whether something lies here of which no descriptor tells any more."""
        return bool(self._opened)

    def recv_into(self, room: memoryview) -> int:
        """As of a socket.

        Raises:
            BlockingIOError: nothing is there.
            OSError: the connection is no more.
            FormatError: what came cannot be opened, or is out of bounds.
        """
        filled = 0
        while filled < len(room):
            if not self._opened and not self._fill(wanted=not filled):
                break
            taken = min(len(room) - filled, len(self._opened))
            room[filled : filled + taken] = self._opened[:taken]
            self._opened = self._opened[taken:]
            filled += taken
        return filled

    def recvmsg_into(self, rooms: Sequence[memoryview]) -> tuple[int]:
        """As of a socket, as far as it is used."""
        filled = 0
        for room in rooms:
            if filled and not self._opened and not self._fill(wanted=False):
                break
            taken = self.recv_into(room)
            filled += taken
            if taken < len(room):
                break
        return (filled,)

    def _fill(self, *, wanted: bool) -> bool:
        """Read until something is opened; False when there is nothing more now, or ever, which is an error where it is `wanted`."""
        while not self._opened and not self._ended:
            if self._trouble is not None:
                if wanted:
                    raise self._trouble
                return False
            try:
                data = self._socket.recv(max(_READ_BYTES, self.held - len(self._came)))
            except BlockingIOError:
                if wanted:
                    raise
                return False
            if not data:
                self._ended = True
                break
            self._came += data
            self._open_all()
        return bool(self._opened)

    def _open_all(self) -> None:
        """Open what is complete."""
        came, at, end = self._came, 0, len(self._came)
        if self.held and end < self.held:
            return
        self.held = 0
        opened: list[bytes] = []
        try:
            at = self._open_some(at, end, opened)
        except FormatError as error:
            if not opened:
                raise
            self._trouble = error
        del came[:at]
        self._opened = memoryview(b"".join(opened))

    def _open_some(self, at: int, end: int, opened: list[bytes]) -> int:
        """Open the frames between the two places; where what is not complete begins."""
        came = self._came
        while at + 2 <= end:
            flags, start, length = came[at], at + 2, came[at + 1]
            if flags & LONG:
                start = at + 1 + LENGTH.size
                if start > end:
                    break
                length = LENGTH.unpack_from(came, at + 1)[0]
            if flags & ~(LONG | COMMAND | MORE) or length > self._part_max:
                raise FormatError(f"a sealed frame of {length} bytes (flags {flags:#x})")
            stop = start + length
            if stop > end:
                self._await(stop - at)
                break
            inside, data = self._box.open(bytes(came[start:stop]))
            opened.append(frame(data, inside))
            at = stop
        return at

    def _await(self, size: int) -> None:
        """A frame under way is to have so many bytes."""
        if size > limits.INTRODUCTION_BYTES_MAX and not self._keeps(size):
            raise FormatError(f"a frame of {size} bytes of who was not let in")
        self.held = size


class Sealing(Outgoing):
    """What is to be sent by an encrypted connection, each frame sealed when it is put."""

    def __init__(self, connection: socket.socket, box: Box) -> None:
        """Nothing waits."""
        super().__init__(connection)
        self._box = box

    def put(self, message: Formed) -> None:
        """Have a message wait for the next `send`."""
        buffers = message.buffers
        data = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
        sealed: list[bytes] = []
        at = 0
        while at < len(data):
            flags, start, length = data[at], at + 2, data[at + 1]
            if flags & LONG:
                start, length = at + 1 + LENGTH.size, LENGTH.unpack_from(data, at + 1)[0]
            sealed.append(self._box.seal(flags, data[start : start + length]))
            at = start + length
        super().put(Formed([*sealed], sum(map(len, sealed))))
