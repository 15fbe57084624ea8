"""Connections that come in at a port: each one's handshake, its messages, and what is said to it; all of it bounded.

One epoll may watch several of these and more beside: who owns it says which descriptors something happened at. Who calls is
bounded in all that it can take: places, memory of messages that are not complete, time until it says something.
"""

from __future__ import annotations

import contextlib
import enum
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tutti import limits
from tutti.data.frames.frame import Buffer
from tutti.errors import FormatError
from tutti.zmtp.connection import Caller, Terms
from tutti.zmtp.frame_reader import SCRATCH_BYTES, Ended, Stream, TooLarge
from tutti.zmtp.framing import HANDSHAKE_BYTES_MAX, PING, Formed, Handshake, frame, pong
from tutti.zmtp.listener import Door

if TYPE_CHECKING:
    from tutti.zmtp.curve import Box, Listening, Pair
    from tutti.zmtp.curve_stream import Opening

_READ, _WRITE, _OVER = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
_MORE_COMES_BYTES = 64 * limits.KIB  # who sent so much is asked again at once: a turn costs more than to ask in vain
_FRAMES_A_MESSAGE = 2  # of most; what somebody sends in smaller pieces has fewer messages in a turn
_FRAMES_A_TURN = 32  # that each one may give, however many wait behind it: to take few of many costs as much as to take many
_BEAT = Formed([PING], len(PING))


class Sent(enum.Enum):
    """What became of what was said to a caller: it left (to nobody, where the connection broke), it was dropped because too much
    waits already, or the caller is gone, and what it had said was read.
    """

    LEFT = 1
    FULL = 2
    GONE = 3


class Callers:
    """Who called at one port. Owned by one thread.

    Attributes:
        door: who is taken there.
        room_fd: readable when there is something for `flush` to do; the epoll that watches all tells of that, too.
    """

    def __init__(
        self,
        terms: Terms,
        epoll: select.epoll,
        clock_us: Callable[[], int],
        *,
        knows: Callable[[bytes], bool] | None = None,
        tell: Callable[[str], None] = lambda _: None,
        keys: Pair | None = None,
        admits: Callable[[str, bytes], bool] | None = None,
    ) -> None:
        """Nobody can call yet: `door.listen` comes next.

        Args:
            terms: what they may take.
            epoll: watches them.
            clock_us: a monotonic clock, us.
            knows: of whom, by its routing, large messages are kept; without it, of all.
            tell: an operator must know it.
            keys: with them who calls may encrypt (CURVE); `peer` tells who did.
            admits: with keys, whether a caller is let in: its host, and its public key or nothing; without it, all are.

        Raises:
            OSError: no descriptor is left.
        """
        self._keys = keys
        self._admits = admits
        self._terms = terms
        self._epoll = epoll
        self._clock_us = clock_us
        self._knows = knows
        self._tell = tell
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._callers: dict[int, Caller] = {}
        self._mute: dict[int, Caller] = {}  # who said nothing yet, the one that is there for longest first
        self._routed: dict[bytes, Caller] = {}
        self._made = 0
        self._readable: deque[Caller] = deque()  # in the order of their turns; who had none in one drain is first in the next
        self._holding: set[Caller] = set()  # who may have memory for an unfinished message
        self._waiting_bytes = 0  # for all of them
        self._beat_us = 0
        self.door = Door(terms.name, terms.connections, terms.spares, epoll, tell)
        self._room = select.epoll()  # apart: what waits leaves, too, while nothing is read
        self.room_fd = self._room.fileno()
        epoll.register(self.room_fd, _READ)

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._callers)

    @property
    def unread(self) -> bool:
        """Whether something came that no poll tells of any more."""
        return bool(self._readable)

    # What happened

    def happened(self, fd: int, mask: int) -> bool:
        """The kernel tells of a descriptor; whether it is one of these."""
        caller = self._callers.get(fd)
        if caller is None:
            if fd == self.room_fd:
                self.flush()
                return True
            if not self.door.is_at(fd):
                return False
            for connection in self.door.accepted(self.__len__, self._make_room):
                self._take(connection)
            return True
        if caller.held_back and mask & _OVER:
            self._break(caller)
            self._send(caller)
        elif caller.stream is not None:
            self._has_some(caller)
        else:
            self._greet(caller)
        return True

    def _make_room(self) -> bool:
        """Close who said nothing, or whom nobody knows, the one that is there for longest; False: there is none."""
        least = next(iter(self._mute.values()), None)
        if least is None and self._knows is not None:
            least = next((one for one in self._callers.values() if not self._knows(one.routing)), None)
        if least is not None:
            self._drop(least)
        return least is not None

    def _take(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        fd = connection.fileno()
        try:
            handshake = self._handshake(connection)
            connection.send(handshake.said())  # the first bytes of a connection: there is room
        except OSError:
            connection.close()
            return
        self._callers[fd] = self._mute[fd] = Caller(connection, self._clock_us(), handshake)
        self._epoll.register(fd, _READ)

    def _handshake(self, connection: socket.socket) -> Handshake | Listening:
        if self._keys is None:
            return Handshake(b"ROUTER", b"DEALER")
        from tutti.zmtp.curve import Listening  # noqa: PLC0415 - the crypto, for those alone who have keys

        admits = self._admits
        if admits is None:
            return Listening(self._keys)
        host = str(connection.getpeername()[0])
        return Listening(self._keys, lambda key: admits(host, key))

    def _greet(self, caller: Caller) -> None:
        """Something came of a connection whose handshake is not over."""
        try:
            data = caller.socket.recv(HANDSHAKE_BYTES_MAX)
            if not data:
                raise Ended
            try:
                rest = caller.handshake.take(data)
            finally:
                if said := caller.handshake.said():
                    caller.socket.sendall(said)  # few: there is room
        except BlockingIOError:
            return
        except (OSError, Ended, FormatError):
            self._drop(caller)
            return
        if rest is None:
            return
        if self._admits is not None:
            self._spoke(caller)
        self._begin(caller, rest)

    def _spoke(self, caller: Caller) -> None:
        """It is no stranger any more, who makes room and is closed after a while."""
        caller.spoke = True
        self._mute.pop(caller.socket.fileno(), None)

    def _begin(self, caller: Caller, rest: bytes) -> None:
        """The handshake is over; `rest` came behind it."""
        self._made += 1
        identity = caller.handshake.identity if self._terms.named else b""
        if not identity or identity[0] == 0:  # nobody may choose what is given here: it is never given twice
            identity = b"\0" + self._made.to_bytes(8, "big")
        identity = caller.handshake.peer + identity  # nobody takes the place of one with another key
        earlier = self._routed.get(identity)
        if earlier is not None:  # who connects again is the same, though its old connection was not given up yet
            self._drop(earlier)
        caller.routing = identity
        self._routed[identity] = caller
        connection: socket.socket | Opening = caller.socket
        if caller.handshake.box is not None:
            try:
                connection = self._sealed(caller, caller.handshake.box, caller.handshake.peer, rest)
            except FormatError:
                self._drop(caller)
                return
            rest = b""
        caller.stream = Stream(
            connection,
            self._scratch,
            limits.MESSAGE_BYTES_MAX,
            lambda size: self._keeps(caller, size),
            rest,
            parts_max=self._terms.parts,
            forgives=self._terms.forgives,
            command=lambda command: self._command(caller, command),
        )
        if rest or (caller.opening is not None and caller.opening.unread):
            self._has_some(caller)

    def _sealed(self, caller: Caller, box: Box, peer: bytes, rest: bytes) -> Opening:
        """What comes by a connection that is encrypted."""
        from tutti.zmtp.curve_stream import Opening, Sealing  # noqa: PLC0415 - as above

        caller.peer = peer
        caller.outgoing = Sealing(caller.socket, box)
        keeps = self._keeps if self._admits is None else self._holds  # whose key is listed is no stranger
        caller.opening = Opening(caller.socket, box, rest, limits.MESSAGE_BYTES_MAX, lambda size: keeps(caller, size))
        return caller.opening

    def peer(self, routing: bytes) -> bytes | None:
        """The public key of who called, None for one that does not encrypt, or is gone."""
        caller = self._routed.get(routing)
        return None if caller is None else caller.peer

    def _keeps(self, caller: Caller, size: int) -> bool:
        """Whether a message of so many bytes is kept until it is complete.

        Raises:
            FormatError: there is no room for it.
        """
        return (self._knows is None or self._knows(caller.routing)) and self._holds(caller, size)

    def _holds(self, caller: Caller, size: int) -> bool:
        """Make room for a message of so many bytes, if need be: who takes most is cut off.

        Raises:
            FormatError: the caller is the one.
        """
        held = {one: one.held for one in self._holding if one is not caller and one.held}
        held[caller] = size
        self._holding = set(held)
        while sum(held.values()) > self._terms.assembly_bytes:
            most = max(held, key=lambda one: held[one])
            self._tell(
                f"messages on the {self._terms.name} that are not complete take more than {self._terms.assembly_bytes} bytes: the "
                "connection that has most of them is closed"
            )
            if most is caller:
                raise FormatError(f"no room for a message of {size} bytes")
            del held[most]
            self._drop(most)
        return True

    def _command(self, caller: Caller, command: bytes) -> None:
        answer = pong(command)
        if answer and caller.stream is not None and len(caller.outgoing) < self._terms.waiting:
            self._put(caller, Formed([answer], len(answer)))

    # Messages

    def arrivals(self, messages_max: int, bytes_max: int) -> Iterator[tuple[bytes, list[Buffer], int]]:
        """What came, by those at whom something happened, each of them in its turn, in which it gives no more than its
        share while others wait: by whom, the parts, the bytes.

        Of a message that is too large, or in too many parts, there are no parts; of a large one of who is not known, its first byte
        alone.
        """
        readable = self._readable
        left, size = _FRAMES_A_MESSAGE * messages_max, 0
        while readable and left > 0 and size < bytes_max:
            caller = readable.popleft()
            caller.waits = False
            stream = caller.stream
            if stream is None or self._held_back(caller):
                continue
            caller.heard = True
            try:
                for parts, length in stream.read(min(left, max(left // (1 + len(readable)), _FRAMES_A_TURN))):
                    if not caller.spoke:
                        self._spoke(caller)
                    yield caller.routing, parts, length
            except BlockingIOError:
                continue
            except TooLarge as error:
                self._drop(caller)
                yield caller.routing, [], error.size
                continue
            except (OSError, Ended, FormatError):
                self._drop(caller)
                continue
            size += stream.came
            left -= stream.took + 1  # a read that takes none costs, too
            if stream.full or stream.came >= _MORE_COMES_BYTES:
                self._has_some(caller)  # when all others had their turn

    def _held_back(self, caller: Caller) -> bool:
        """Whether nothing is read of a caller before it has read what it was told; from then on the kernel tells of it again."""
        caller.held_back = caller.waiting_bytes > self._terms.held_back_bytes
        if caller.held_back:
            self._epoll.modify(caller.socket, 0)  # it tells of the end alone
        return caller.held_back

    def _has_some(self, caller: Caller) -> None:
        if not caller.waits:
            caller.waits = True
            self._readable.append(caller)

    def stands(self, routing: bytes) -> bool:
        """Whether a connection was not ended by the other side, as the kernel knows it: what that sent before may be unread."""
        caller = self._routed.get(routing)
        if caller is None:
            return False
        poll = select.poll()
        poll.register(caller.socket, select.POLLRDHUP)
        return not poll.poll(0)

    def say(self, routing: bytes, data: Buffer) -> Sent:
        """Send one message, or drop it; never waits."""
        caller = self._routed.get(routing)
        if caller is None:
            return Sent.GONE
        if len(caller.outgoing) >= self._terms.waiting:
            return Sent.FULL
        said = frame(data)
        self._put(caller, Formed([said], len(said)))
        return Sent.LEFT if caller.stream is not None else Sent.GONE

    def _put(self, caller: Caller, message: Formed) -> None:
        if caller.broken:
            return
        caller.outgoing.put(message)
        if not caller.full:
            self._send(caller)
        else:
            self._count(caller)
        while self._waiting_bytes > self._terms.waiting_bytes:
            most = max(self._callers.values(), key=lambda one: one.waiting_bytes)
            self._tell(
                f"answers on the {self._terms.name} that nobody reads take more than {self._terms.waiting_bytes} bytes: the "
                "connection that has most of them is closed"
            )
            self._drop(most)

    def _send(self, caller: Caller) -> None:
        outgoing = caller.outgoing
        try:
            outgoing.send()
        except OSError:
            self._break(caller)
        caller.heard |= outgoing.bytes < caller.waiting_bytes
        self._count(caller)
        if bool(outgoing) != caller.full:
            caller.full = not caller.full
            if caller.full:
                self._room.register(caller.socket, _WRITE)
            else:
                self._room.unregister(caller.socket)
        if caller.held_back and caller.waiting_bytes <= self._terms.held_back_bytes:
            caller.held_back = False
            self._epoll.modify(caller.socket, _READ)
            self._has_some(caller)  # what came before may lie here

    def _break(self, caller: Caller) -> None:
        """Nothing can be said to it any more. What it said before may lie here: its end is read behind that."""
        caller.broken = True
        caller.outgoing.forget()
        with contextlib.suppress(OSError):  # it is over for the kernel, too
            caller.socket.shutdown(socket.SHUT_RDWR)
        self._has_some(caller)

    def _count(self, caller: Caller) -> None:
        """What waits for it became more, or less."""
        self._waiting_bytes += caller.outgoing.bytes - caller.waiting_bytes
        caller.waiting_bytes = caller.outgoing.bytes

    def flush(self) -> None:
        """Send what waits to those for whom the kernel has room again. Nothing is read."""
        for fd, _ in self._room.poll(0):
            caller = self._callers.get(fd)
            if caller is not None:
                self._send(caller)

    def _drop(self, caller: Caller) -> None:
        fd = caller.socket.fileno()
        if self._callers.pop(fd, None) is None:
            return
        self._mute.pop(fd, None)
        if self._routed.get(caller.routing) is caller:
            del self._routed[caller.routing]
        self._waiting_bytes -= caller.waiting_bytes
        caller.waiting_bytes = 0
        caller.stream = None
        caller.socket.close()  # the kernel stops watching it with that

    # Time

    def keep(self, *, reads: bool = True) -> None:
        """Called about once a second: close who said nothing for long, and take others again when there may be descriptors. Nothing
        counts as silence while this end does not read (`reads`).
        """
        now_us = self._clock_us()
        self.door.keep(now_us)
        since_us = now_us - limits.HANDSHAKE_MS_MAX * 1000
        for caller in list(self._mute.values()):
            if caller.since_us >= since_us:
                break
            if reads or caller.stream is None:  # else it may have said something
                self._drop(caller)
        if self._terms.beat_us and 2 * (now_us - self._beat_us) > self._terms.beat_us:  # a bit early leaves no beat out
            self._beat_us = now_us
            for caller in list(self._callers.values()):
                self._beat(caller, reads)

    def _beat(self, caller: Caller, reads: bool) -> None:
        """Say that this end is there, and ask whether the other one is."""
        if caller.stream is None:
            return
        if caller.heard or caller.waits or not reads:  # who waits for its turn said something
            caller.silent = 0
        else:
            caller.silent += 1
        caller.heard = False
        if caller.silent > self._terms.beats:
            self._drop(caller)
        elif not caller.outgoing:
            self._put(caller, _BEAT)

    def clear(self) -> None:
        """Drop every connection, and what came by them."""
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._readable.clear()

    def close(self, until_us: int) -> None:
        """Stop; what was said has until then (on the clock) to leave."""
        self.door.refuse()
        for caller in list(self._callers.values()):
            caller.outgoing.leave((until_us - self._clock_us()) / 1e6)
            self._drop(caller)
        self._room.close()
