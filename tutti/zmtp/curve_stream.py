"""Receive and send side of an encrypted connection, with the interfaces of a plain socket and a `SendQueue`."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tutti import limits
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.zmtp.curve import MESSAGE_OVERHEAD, Box
from tutti.zmtp.framing import COMMAND, LENGTH, LONG, MORE, EncodedMessage, frame_header
from tutti.zmtp.send_queue import SendQueue

_READ_BYTES = 64 * limits.KIB
# Limit of encrypted bytes in one queue. Later messages wait unencrypted, because all connections share unencrypted buffers.
_ENCRYPTED_BYTES_MAX = 256 * limits.KIB
_JOINED_BYTES_MAX = 4 * limits.KIB  # larger buffers stay separate, because joining copies them


class CurveReceiver:
    """Receives and decrypts frames. A `FrameReader` reads from this object as from a non-blocking socket.

    As with a socket, a read that fills only a part of the given memory means that no more data is available.

    Attributes:
        assembly_bytes: size of the incomplete frame, which is buffered until it can be decrypted; 0 without an incomplete frame.
    """

    def __init__(
        self, connection: socket.socket, box: Box, received: bytes, part_max: int, may_buffer: Callable[[int], bool]
    ) -> None:
        """Start to receive.

        Args:
            connection: non-blocking socket.
            box: decrypts the frames.
            received: bytes that arrived after the handshake.
            part_max: limit of a frame, bytes; a larger frame ends the connection.
            may_buffer: returns True if a frame of this size may be buffered; called only above `INTRODUCTION_BYTES_MAX` bytes.

        Raises:
            FormatError: a frame in `received` cannot be decrypted, or is too large.
        """
        self._socket = connection
        self._box = box
        self._received = bytearray(received)
        self._part_max = part_max + MESSAGE_OVERHEAD
        self._may_buffer = may_buffer
        self._decrypted: deque[memoryview] = deque()
        self._eof = False
        self._error: FormatError | None = None  # error of an invalid frame, raised after all frames before it are read
        self.assembly_bytes = 0
        self._decrypt_received()

    @property
    def unread(self) -> bool:
        """True if this object holds decrypted data, which the socket's descriptor does not signal."""
        return bool(self._decrypted) or self._error is not None

    def recv_into(self, buffer: memoryview) -> int:
        """Read as `socket.recv_into`.

        Raises:
            BlockingIOError: nothing is available.
            OSError: the connection is broken.
            FormatError: a frame cannot be decrypted, or is too large.
        """
        filled, decrypted = 0, self._decrypted
        while filled < len(buffer):
            if not decrypted and not self._read_more(required=not filled):
                break
            first = decrypted.popleft()
            copied = min(len(buffer) - filled, len(first))
            buffer[filled : filled + copied] = first[:copied]
            if copied < len(first):
                decrypted.appendleft(first[copied:])
            filled += copied
        return filled

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """Read into buffers as `socket.recvmsg_into` does, but return a tuple with only the number of bytes."""
        filled = 0
        for buffer in buffers:
            if filled and not self._decrypted and not self._read_more(required=False):
                break
            copied = self.recv_into(buffer)
            filled += copied
            if copied < len(buffer):
                break
        return (filled,)

    def _read_more(self, *, required: bool) -> bool:
        """Read until a frame is decrypted. If no data is available, raise an error if `required`, else return False."""
        while not self._decrypted and not self._eof:
            if self._error is not None:
                if required:
                    raise self._error
                return False
            try:
                data = self._socket.recv(max(_READ_BYTES, self.assembly_bytes - len(self._received)))
            except OSError:  # also BlockingIOError: nothing is available
                if required:
                    raise
                return False
            if not data:
                self._eof = True
                break
            self._received += data
            self._decrypt_received()
        return bool(self._decrypted)

    def _decrypt_received(self) -> None:
        """Decrypt the complete frames in the receive buffer."""
        received, offset, end = self._received, 0, len(self._received)
        if self.assembly_bytes and end < self.assembly_bytes:
            return  # the frame is still incomplete: do not parse its header again
        self.assembly_bytes = 0
        decrypted: list[Buffer] = []
        try:
            offset = self._decrypt_frames(memoryview(received), offset, end, decrypted)
        except FormatError as error:
            if not decrypted:
                raise
            self._error = error
        if offset:
            # A new bytearray is needed: the traceback of an error may still hold a view of the old one, which then cannot shrink.
            self._received = received[offset:]
        small: list[Buffer] = []
        for buffer in decrypted:
            if len(buffer) <= _JOINED_BYTES_MAX:
                small.append(buffer)
            else:
                self._decrypted += (memoryview(b"".join(small)), memoryview(buffer))
                small.clear()
        if small:
            self._decrypted.append(memoryview(b"".join(small)))

    def _decrypt_frames(self, received: memoryview, offset: int, end: int, decrypted: list[Buffer]) -> int:
        """Decrypt the frames between two offsets. Return the offset of the first incomplete frame."""
        while offset + 2 <= end:
            flags, start, length = received[offset], offset + 2, received[offset + 1]
            if flags & LONG:
                start = offset + 1 + LENGTH.size
                if start > end:
                    break
                length = LENGTH.unpack_from(received, offset + 1)[0]
            if flags & ~(LONG | COMMAND | MORE) or length > self._part_max:
                raise FormatError(f"an encrypted frame of {length} bytes (flags {flags:#x}) is invalid")
            frame_end = start + length
            if frame_end > end:
                self._expect_frame(frame_end - offset)
                break
            plain_flags, data = self._box.open(received[start:frame_end])
            decrypted += (frame_header(len(data), plain_flags), data)
            offset = frame_end
        return offset

    def _expect_frame(self, size: int) -> None:
        """Check that an incomplete frame of this size may be buffered, and wait for its rest."""
        if size > limits.INTRODUCTION_BYTES_MAX and not self._may_buffer(size):
            raise FormatError(f"an unauthenticated peer sent a frame of {size} bytes")
        self.assembly_bytes = size


class CurveSendQueue(SendQueue):
    """Send queue that encrypts a message shortly before sending it.

    Frames must be sent in the order of their nonces. Until the encryption, all connections that send a message share its buffers.
    """

    def __init__(self, connection: socket.socket, box: Box) -> None:
        """Create an empty queue."""
        super().__init__(connection)
        self._box = box
        self._plaintext: deque[EncodedMessage] = deque()
        self._plaintext_bytes = 0

    def __len__(self) -> int:
        """Return the number of queued messages."""
        return len(self._plaintext) + super().__len__()

    def append(self, message: EncodedMessage) -> None:
        """Queue a message for the next `send`."""
        self._plaintext.append(message)
        self._plaintext_bytes += message.size
        self.bytes += message.size

    def send_first(self, data: bytes) -> None:
        """Encrypt and send one message at once. The queue must be empty."""
        self.append(EncodedMessage([data], len(data)))
        self.send()

    def send(self) -> None:
        """Encrypt and send queued messages until the socket buffer is full.

        Raises:
            OSError: the connection is broken.
        """
        while True:
            self._encrypt()
            super().send()
            if self._queue or not self._plaintext:
                return

    def _encrypt(self) -> None:
        # `bytes` counts encrypted and plain messages, so this difference is the encrypted part of the queue.
        while self._plaintext and self.bytes - self._plaintext_bytes < _ENCRYPTED_BYTES_MAX:
            message = self._plaintext.popleft()
            self._plaintext_bytes -= message.size
            self.bytes -= message.size
            encrypted: list[Buffer] = []
            for flags, data in _frames(message):
                if len(data) <= _JOINED_BYTES_MAX:
                    encrypted.append(self._box.seal(flags, data))
                else:
                    encrypted += self._box.seal_parts(flags, data)
            super().append(EncodedMessage(encrypted, sum(map(len, encrypted))))

    def clear(self) -> None:
        """Drop all queued messages."""
        super().clear()
        self._plaintext.clear()
        self._plaintext_bytes = 0


def _frames(message: EncodedMessage) -> Iterator[tuple[int, Buffer]]:
    """Yield flags and content of each frame of a message, in which a large part is a separate buffer (`encode_message`)."""
    flags, separate = 0, False
    for buffer in message.buffers:
        data = memoryview(buffer)
        if separate:
            separate = False
            yield flags, data
            continue
        offset = 0
        while offset < len(data):
            flags, start, length = data[offset], offset + 2, data[offset + 1]
            if flags & LONG:
                start, length = offset + 1 + LENGTH.size, LENGTH.unpack_from(data, offset + 1)[0]
            offset = start + length
            # A header at the end of its buffer belongs to a large part, and the next buffer is the content of this part.
            separate = start == len(data) and length > 0
            if separate:
                break
            yield flags, data[start:offset]
