"""Connections that come in at a port: each one's handshake, its messages, and what is said to it; all of it bounded.

One epoll may watch several of these and more beside: who owns it says which descriptors something happened at. Who calls is
bounded in all that it can take: places, memory of messages that are not complete, time until it says something.
"""

from __future__ import annotations

import enum
import errno
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator

from gateway.core import limits
from gateway.data.frame import Buffer
from gateway.errors import FormatError
from gateway.zmtp.caller import Caller, Terms
from gateway.zmtp.form import GREETING, HANDSHAKE_BYTES_MAX, PING, Formed, frame, pong, ready
from gateway.zmtp.listening import descriptors_for, lowered, lowest_free
from gateway.zmtp.stream import SCRATCH_BYTES, Ended, Stream, TooLarge

_HELLO = GREETING + ready(b"ROUTER", b"")
_READ, _WRITE, _OVER = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MORE_COMES_BYTES = 64 * limits.KIB  # who sent so much is asked again at once: a turn costs more than to ask in vain
_FRAMES_A_MESSAGE = 2  # of most; what somebody sends in smaller pieces has fewer messages in a turn
_RAISE = "raise the limit of open files"
_BEAT = Formed([PING], len(PING))


class Sent(enum.Enum):
    """What became of what was said to a caller: it left, it was dropped because too much waits already, or the caller is gone."""

    LEFT = 1
    FULL = 2
    GONE = 3


class Callers:
    """Who called at one port. Owned by one thread."""

    def __init__(
        self,
        terms: Terms,
        epoll: select.epoll,
        clock_us: Callable[[], int],
        *,
        knows: Callable[[bytes], bool] | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Nobody can call yet: `listen` comes next.

        Args:
            terms: what they may take.
            epoll: watches them.
            clock_us: a monotonic clock, us.
            knows: of whom, by its routing, large messages are kept; without it, of all.
            tell: an operator must know it.
        """
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
        self._unread = 0  # bytes that wait for all of them
        self._listener: socket.socket | None = None
        self._accepts = False
        self._descriptors = descriptors_for(terms.spares)  # below it those of connections lie
        self._crowded = False  # and none of them was left
        self._beat_us = 0

    def __len__(self) -> int:
        """How many connections there are."""
        return len(self._callers)

    @property
    def unread(self) -> bool:
        """Whether something came that no poll tells of any more."""
        return bool(self._readable)

    # The port

    def listen(self, listener: socket.socket) -> None:
        """Take who calls there from now on; the socket is this one's."""
        self._listener = listener
        self._accept_again()

    def _accept_again(self) -> None:
        if self._listener is not None and not self._accepts:
            self._accepts = True
            self._epoll.register(self._listener, _READ)

    def refuse(self) -> None:
        """Take nobody more, and let go of the port; who is connected stays so."""
        if self._listener is not None:
            self._listener.close()
        self._listener = None
        self._accepts = False

    # What happened

    def happened(self, fd: int, mask: int) -> bool:
        """The kernel tells of a descriptor; whether it is one of these."""
        caller = self._callers.get(fd)
        if caller is None:
            if self._listener is None or fd != self._listener.fileno():
                return False
            self._accept(self._listener)
            return True
        if mask & _WRITE:
            self._send(caller)
        if caller.held_back and mask & _OVER:
            self._drop(caller)
        if mask & ~_WRITE and fd in self._callers:
            if caller.stream is not None:
                self._has_some(caller)
            else:
                self._greet(caller)
        return True

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(limits.MESH_ACCEPTS_A_TURN_MAX):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NONE_LEFT:
                    self._tell(f"no connection is taken on the {self._terms.name}: {error.strerror}; {_RAISE}")
                    self._accepts = False
                    self._epoll.unregister(listener)
                    return
                continue  # it is gone already
            crowded = connection.fileno() >= self._descriptors
            if crowded and not self._crowded:
                self._crowded = True
                self._tell(
                    f"no descriptor is left for the {self._terms.name}: connections that said nothing make room, and where none is "
                    f"there new connections are refused; {_RAISE}"
                )
            if (crowded or len(self._callers) >= self._terms.connections) and not self._make_room():
                connection.close()
                continue
            self._take(lowered(connection) if crowded else connection)

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
            connection.send(_HELLO)  # the first bytes of a connection: there is room
        except OSError:
            connection.close()
            return
        self._callers[fd] = self._mute[fd] = Caller(connection, self._clock_us())
        self._epoll.register(fd, _READ)

    def _greet(self, caller: Caller) -> None:
        """Something came of a connection whose handshake is not over."""
        try:
            data = caller.socket.recv(HANDSHAKE_BYTES_MAX)
            if not data:
                raise Ended
            rest = caller.handshake.take(data)
        except BlockingIOError:
            return
        except (OSError, Ended, FormatError):
            self._drop(caller)
            return
        if rest is None:
            return
        self._made += 1
        identity = caller.handshake.identity
        if not identity or identity[0] == 0:  # nobody may choose what is given here
            identity = b"\0" + self._made.to_bytes(8, "big")
        earlier = self._routed.get(identity)
        if earlier is not None:  # who connects again is the same, though its old connection was not given up yet
            self._drop(earlier)
        caller.routing = identity
        self._routed[identity] = caller
        caller.stream = Stream(
            caller.socket,
            self._scratch,
            limits.MESSAGE_BYTES_MAX,
            lambda size: self._keeps(caller, size),
            rest,
            parts_max=self._terms.parts,
            forgives=self._terms.forgives,
            command=lambda command: self._command(caller, command),
        )
        if rest:
            self._has_some(caller)

    def _keeps(self, caller: Caller, size: int) -> bool:
        """Whether a message of so many bytes is kept until it is complete; who takes most makes room for it, if need be.

        Raises:
            FormatError: the caller is the one.
        """
        if self._knows is not None and not self._knows(caller.routing):
            return False
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
        """What came, by those at whom something happened, each of them in its turn: by whom, the parts, the bytes.

        Of a message that is too large, or in too many parts, there are no parts; of a large one of who is not known, its first byte
        alone.
        """
        readable = self._readable
        frames = size = 0
        while readable and frames < _FRAMES_A_MESSAGE * messages_max and size < bytes_max:
            caller = readable.popleft()
            caller.waits = False
            stream = caller.stream
            if stream is None or self._held_back(caller):
                continue
            caller.heard = True
            try:
                for parts, length in stream.read(_FRAMES_A_MESSAGE * messages_max - frames):
                    if not caller.spoke:
                        caller.spoke = True
                        self._mute.pop(caller.socket.fileno(), None)
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
            frames += stream.took + 1  # a read that takes none costs, too
            if stream.full or stream.came >= _MORE_COMES_BYTES:
                self._has_some(caller)  # when all others had their turn

    def _held_back(self, caller: Caller) -> bool:
        """Whether nothing is read of a caller before it has read what it was told; from then on the kernel tells of it again."""
        caller.held_back = caller.unread > self._terms.unread
        if caller.held_back:
            self._epoll.modify(caller.socket, _WRITE)
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
        caller.outgoing.put(message)
        if not caller.full:
            self._send(caller)
        else:
            self._count(caller)
        while self._unread > self._terms.waiting_bytes:
            most = max(self._callers.values(), key=lambda one: one.unread)
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
            self._drop(caller)
            return
        caller.heard |= outgoing.bytes < caller.unread
        self._count(caller)
        back = caller.held_back and caller.unread <= self._terms.unread
        if bool(outgoing) != caller.full or back:
            caller.full = bool(outgoing)
            caller.held_back &= not back
            self._epoll.modify(caller.socket, (0 if caller.held_back else _READ) | (_WRITE if caller.full else 0))
        if back:
            self._has_some(caller)  # what came before may lie here

    def _count(self, caller: Caller) -> None:
        """What waits for it became more, or less."""
        self._unread += caller.outgoing.bytes - caller.unread
        caller.unread = caller.outgoing.bytes

    def _drop(self, caller: Caller) -> None:
        fd = caller.socket.fileno()
        if self._callers.pop(fd, None) is None:
            return
        self._mute.pop(fd, None)
        if self._routed.get(caller.routing) is caller:
            del self._routed[caller.routing]
        self._unread -= caller.unread
        caller.unread = 0
        caller.stream = None
        caller.socket.close()  # the kernel stops watching it with that

    # Time

    def keep(self, *, reads: bool = True) -> None:
        """Called about once a second: close who said nothing for long, and take others again when there may be descriptors. Nothing
        counts as silence while this end does not read (`reads`).
        """
        self._accept_again()
        self._descriptors = descriptors_for(self._terms.spares)
        if self._crowded and lowest_free() < self._descriptors:
            self._crowded = False
            self._tell(f"descriptors are free again: connections on the {self._terms.name} are taken")
        now_us = self._clock_us()
        since_us = now_us - limits.HANDSHAKE_MS_MAX * 1000
        for caller in list(self._mute.values()):
            if caller.since_us >= since_us:
                break
            if reads or caller.stream is None:  # else it may have said something
                self._drop(caller)
        if self._terms.beat_us and now_us - self._beat_us >= self._terms.beat_us:
            self._beat_us = now_us
            for caller in list(self._callers.values()):
                self._beat(caller, reads)

    def _beat(self, caller: Caller, reads: bool) -> None:
        """Say that this end is there, and ask whether the other one is."""
        if caller.stream is None:
            return
        if caller.heard or not reads:
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
        self.refuse()
        for caller in list(self._callers.values()):
            caller.outgoing.leave((until_us - self._clock_us()) / 1e6)
            self._drop(caller)
