"""The two directions of an encrypted connection, to those who read and send frames as by a plain one."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tutti import limits
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.zmtp.curve import MESSAGE_OVERHEAD, Box
from tutti.zmtp.framing import COMMAND, LENGTH, LONG, MORE, Formed, head
from tutti.zmtp.send_queue import Outgoing

_READ_BYTES = 64 * limits.KIB
_SEALED_BYTES = 256 * limits.KIB  # that wait, of one connection; what is above is not sealed yet
_JOINED_BYTES_MAX = 4 * limits.KIB  # larger data is not copied to be joined with what is before and behind it


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
        self._opened: deque[memoryview] = deque()
        self._ended = False
        self._trouble: FormatError | None = None  # behind what was opened
        self.held = 0
        self._open_all()

    @property
    def unread(self) -> bool:
        """Whether something lies here of which no descriptor tells any more."""
        return bool(self._opened) or self._trouble is not None

    def recv_into(self, room: memoryview) -> int:
        """As of a socket.

        Raises:
            BlockingIOError: nothing is there.
            OSError: the connection is no more.
            FormatError: what came cannot be opened, or is out of bounds.
        """
        filled, opened = 0, self._opened
        while filled < len(room):
            if not opened and not self._fill(wanted=not filled):
                break
            first = opened.popleft()
            taken = min(len(room) - filled, len(first))
            room[filled : filled + taken] = first[:taken]
            if taken < len(first):
                opened.appendleft(first[taken:])
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
            except OSError:
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
        opened: list[Buffer] = []
        try:
            at = self._open_some(memoryview(came), at, end, opened)
        except FormatError as error:
            if not opened:
                raise
            self._trouble = error
        if at:
            self._came = came[at:]  # another one, as an error may hold a view of this one
        small: list[Buffer] = []
        for buffer in opened:
            if len(buffer) <= _JOINED_BYTES_MAX:
                small.append(buffer)
            else:
                self._opened += (memoryview(b"".join(small)), memoryview(buffer))
                small.clear()
        if small:
            self._opened.append(memoryview(b"".join(small)))

    def _open_some(self, came: memoryview, at: int, end: int, opened: list[Buffer]) -> int:
        """Open the frames between the two places; where what is not complete begins."""
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
            inside, data = self._box.open(came[start:stop])
            opened += (head(len(data), inside), data)
            at = stop
        return at

    def _await(self, size: int) -> None:
        """A frame under way is to have so many bytes."""
        if size > limits.INTRODUCTION_BYTES_MAX and not self._keeps(size):
            raise FormatError(f"a frame of {size} bytes of who was not let in")
        self.held = size


class Sealing(Outgoing):
    """What is to be sent by an encrypted connection. A message is sealed when its turn to leave comes: until then all connections
    that it waits for have the same bytes.
    """

    def __init__(self, connection: socket.socket, box: Box) -> None:
        """Nothing waits."""
        super().__init__(connection)
        self._box = box
        self._unsealed: deque[Formed] = deque()
        self._unsealed_bytes = 0

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._unsealed) + super().__len__()

    def put(self, message: Formed) -> None:
        """Have a message wait for the next `send`."""
        self._unsealed.append(message)
        self._unsealed_bytes += message.size
        self.bytes += message.size

    def send(self) -> None:
        """Send what waits, as far as the kernel takes it.

        Raises:
            OSError: the connection is no more.
        """
        while True:
            self._seal()
            super().send()
            if self._waiting or not self._unsealed:
                return

    def _seal(self) -> None:
        while self._unsealed and self.bytes - self._unsealed_bytes < _SEALED_BYTES:
            message = self._unsealed.popleft()
            self._unsealed_bytes -= message.size
            self.bytes -= message.size
            sealed: list[Buffer] = []
            for flags, data in _frames(message):
                if len(data) <= _JOINED_BYTES_MAX:
                    sealed.append(self._box.seal(flags, data))
                else:
                    sealed += self._box.sealed(flags, data)
            super().put(Formed(sealed, sum(map(len, sealed))))

    def forget(self) -> None:
        """Let go of what waits."""
        super().forget()
        self._unsealed.clear()
        self._unsealed_bytes = 0


def _frames(message: Formed) -> Iterator[tuple[int, Buffer]]:
    """Flags and data of each frame of a message. A large one's data is a buffer of its own (`form`)."""
    flags, apart = 0, False
    for buffer in message.buffers:
        data = memoryview(buffer)
        if apart:
            apart = False
            yield flags, data
            continue
        at = 0
        while at < len(data):
            flags, start, length = data[at], at + 2, data[at + 1]
            if flags & LONG:
                start, length = at + 1 + LENGTH.size, LENGTH.unpack_from(data, at + 1)[0]
            at = start + length
            apart = start == len(data) and length > 0
            if apart:
                break
            yield flags, data[start:at]
