"""UDP multicast for what all members get alike, and the mesh for everything else (design, section 8).

ORDER, CONFIRM and what repairs them leave once, however many gateways take them. Heartbeats do not: each holds an echo of its own
receiver. A gateway is sent to by multicast only while its beacons say, by multicast, that it hears this one; until then, and where
the network does not carry it, it gets all over the mesh. Datagrams are heard of gateways alone that the mesh has let in.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import islice

import msgspec

from tutti.data.frames.frame import padded
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Confirm, Message, Missing, Order, Repair, Repairing
from tutti_gateway.transport.codec import decode, encode
from tutti_gateway.transport.inbound_peers import Guest
from tutti_gateway.transport.interface import Introduction, Trouble
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.multicast.datagrams import (
    BEACON,
    DATA,
    PROCESS_AT,
    PROCESS_BYTES,
    Assembly,
    Cutter,
    Datagram,
    Pace,
    cut_runs,
    group_hash,
    opened,
    parse,
)
from tutti_gateway.transport.multicast.socket import RUN_MAX, MulticastSocket
from tutti_gateway.transport.warnings_limited import Troubles

TO_ALL = (Order, Confirm, Missing, Repairing, Repair)
_COUNT = struct.Struct("<H")
_NUMBER_BYTES = 2


class _Ear:
    """What comes from one process of another gateway."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.assembly = Assembly()
        self.heard_us = self.hears_us = 0  # when it was heard last, and when it said last that it hears this gateway
        self.received = 0


class Multicast:
    """The transport over UDP multicast and a mesh. Owned by one thread."""

    def __init__(
        self,
        me: Introduction,
        mesh: Mesh,
        socket: MulticastSocket,
        clock_us: Callable[[], int],
        *,
        datagram_bytes: int = limits.MULTICAST_DATAGRAM_BYTES,
        bytes_a_second: int = limits.MULTICAST_BYTES_A_SECOND,
    ) -> None:
        """Put it together; both are closed with it.

        Args:
            me: who this gateway is, as the mesh says it; where it has a `seal`, datagrams without one are not heard.
            mesh: what carries the rest, and says whom to hear.
            socket: the group address.
            clock_us: a monotonic clock, us.
            datagram_bytes: the most that one datagram has.
            bytes_a_second: no more than this leaves.
        """
        self._me = me
        self._mesh = mesh
        self._socket = socket
        self._clock_us = clock_us
        self._group = group_hash(me.group)
        self._cutter = Cutter(me.group, me.process, me.seal, datagram_bytes)
        self._pace = Pace(bytes_a_second, _burst(socket.receive_bytes), clock_us())
        self._troubles = Troubles()
        if socket.small:
            self._troubles.tell(me.gateway, socket.small, clock_us())
        self._names: dict[int, str] = {}
        self._ears: dict[bytes, _Ear] = {}
        self._looked_us = self._beacon_us = clock_us()
        self._queue: list[tuple[int, Message]] = []
        self._waiting: deque[bytes] = deque()  # datagrams
        self._waiting_bytes = 0
        self._messages = self._datagrams = self._bytes = self._over_mesh = 0
        self._strange = self._damaged = self._malformed = 0

    def introduce(self, number: int, log: bytes) -> None:
        """This gateway has that number and that log from now on."""
        self._me = msgspec.structs.replace(self._me, number=number, log=log)
        self._mesh.introduce(number, log)

    def peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Whom to talk to."""
        self._names = {number: name for number, name, _ in peers}
        self._mesh.peers(peers)

    # Sending

    def send(self, to: int, message: Message) -> None:
        """Queue a message; it leaves at the next `flush`, or is lost."""
        if isinstance(message, TO_ALL):
            self._queue.append((to, message))
        else:
            self._mesh.send(to, message)

    def flush(self) -> None:
        """Send what was queued, as far as its pace lets it leave now."""
        queue, self._queue = self._queue, []
        if queue:
            hearing = self._hearing()
            receivers: dict[int, tuple[Message, list[int]]] = {}
            for to, message in queue:
                receivers.setdefault(id(message), (message, []))[1].append(to)
            for message, numbers in receivers.values():
                self._share_out(message, [number for number in numbers if number in hearing], numbers)
        self._mesh.flush()
        now_us = self._clock_us()
        if now_us >= self._beacon_us and self._names:
            self._beacon_us = now_us + limits.MULTICAST_BEACON_US
            self._look(now_us)
            if self._waiting_bytes <= limits.MULTICAST_QUEUE_BYTES_MAX:  # a kernel that takes nothing: no beacon behind the others
                self._put(self._cutter.cut(BEACON, self._heard_of(now_us)))
        self._pump(now_us)

    def _hearing(self) -> set[int]:
        """Who takes multicast from here."""
        since_us = self._clock_us() - limits.MULTICAST_SILENT_US
        return {ear.guest.number for ear in self._ears.values() if ear.guest.number and ear.hears_us > since_us}

    def _share_out(self, message: Message, hearing: Sequence[int], all_: Sequence[int]) -> None:
        """Once by multicast to those who hear it, if they are several, and to each of the others over the mesh."""
        by_multicast = set(hearing) if len(hearing) > 1 and self._multicast(message, hearing) else set()
        for number in all_:
            if number not in by_multicast:
                self._over_mesh += 1
                self._mesh.send(number, message)

    def _multicast(self, message: Message, to: Sequence[int]) -> bool:
        """Queue it as datagrams; False, and nothing is, when it is too large or too much waits."""
        head = _COUNT.pack(len(to)) + struct.pack(f"<{len(to)}H", *to)
        head += bytes(padded(len(head)) - len(head))
        payloads = [head + bytes(encode(part, whole=True)[0]) for part in _runs(message)]
        size = sum(len(payload) for payload in payloads)
        if (
            max(map(len, payloads)) > limits.MULTICAST_PAYLOAD_BYTES_MAX
            or self._waiting_bytes + size > limits.MULTICAST_QUEUE_BYTES_MAX
        ):
            return False
        for payload in payloads:
            self._messages += 1
            self._put(self._cutter.cut(DATA, payload))
        return True

    def _put(self, datagrams: Sequence[bytes]) -> None:
        self._waiting.extend(datagrams)
        self._waiting_bytes += sum(map(len, datagrams))

    def _pump(self, now_us: int) -> None:
        waiting = self._waiting
        while waiting and self._pace.room(now_us):
            run = self._run()
            if not self._socket.send(run):
                return  # the kernel's queue is full
            size = sum(map(len, run))
            for _ in run:
                waiting.popleft()
            self._pace.spend(size)
            self._waiting_bytes -= size
            self._datagrams += len(run)
            self._bytes += size

    def _run(self) -> list[bytes]:
        """The next datagrams that leave by one call: all of one length, but that the last may be shorter."""
        first = self._waiting[0]
        run, room = [first], self._socket.run_bytes_max - len(first)
        for data in islice(self._waiting, 1, RUN_MAX):
            room -= len(data)
            if room < 0 or len(data) > len(first):
                break
            run.append(data)
            if len(data) < len(first):
                break
        return run

    def _heard_of(self, now_us: int) -> bytes:
        """The processes that this gateway hears by multicast."""
        since_us = now_us - limits.MULTICAST_SILENT_US
        return b"".join(process for process, ear in self._ears.items() if ear.heard_us > since_us)

    def next_us(self) -> int | None:
        """Microseconds until `flush` wants to be called, for what waits, a beacon, or a connection of the mesh."""
        due_us = self._mesh.next_us()
        if self._waiting:
            mine_us = self._pace.wait_us() or limits.MULTICAST_RETRY_US
        elif self._names:
            mine_us = max(0, self._beacon_us - self._clock_us())
        else:
            return due_us
        return mine_us if due_us is None else min(mine_us, due_us)

    # Receiving

    @property
    def unread(self) -> bool:
        """Whether there is something to drain that none of `sockets` tells of."""
        return self._mesh.unread

    def sockets(self) -> Sequence[int]:
        """What becomes readable when there is something to drain."""
        return [*self._mesh.sockets(), self._socket.fd]

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """What came, without waiting; looked for only at those of `sockets` that are `ready`, at all without it."""
        events = self._mesh.drain(messages_max, bytes_max, ready)
        if ready is None or self._socket.fd in ready:
            self._receive(events, messages_max, bytes_max)
        return events

    def _receive(self, events: list[Received | LinkChanged], messages_max: int, bytes_max: int) -> None:
        now_us = self._clock_us()
        size = 0
        for _ in range(limits.MULTICAST_DATAGRAMS_A_TURN_MAX):
            run = self._socket.receive()
            if run is None:
                break
            for data in run:
                size += len(data)
                received = self._take(data, now_us)
                if received is not None:
                    events.append(received)
            if len(events) >= messages_max or size >= bytes_max:
                break

    def _take(self, data: memoryview, now_us: int) -> Received | None:
        if data[PROCESS_AT] == self._me.process:
            return None  # what leaves comes back, for other gateways of this host
        datagram = parse(data, self._group)
        if datagram is None:
            self._strange += 1
            return None
        ear = self._ears.get(datagram.process) or self._found(datagram.process, now_us)
        if ear is None or bool(ear.guest.introduction.seal) != bool(self._me.seal):
            self._strange += 1
            return None
        payload = opened(data, ear.guest.introduction.seal)
        if payload is None:
            self._damaged += 1
            return None
        ear.heard_us = now_us
        if datagram.kind == BEACON:
            self._beacon(ear, datagram, payload, now_us)
            return None
        message = ear.assembly.take(datagram, payload, now_us)
        return self._whole(ear, message) if message is not None else None

    def _beacon(self, ear: _Ear, datagram: Datagram, payload: memoryview, now_us: int) -> None:
        ear.assembly.heard(datagram.number)
        processes = bytes(payload)
        if self._me.process in [processes[at : at + PROCESS_BYTES] for at in range(0, len(processes), PROCESS_BYTES)]:
            ear.hears_us = now_us

    def _whole(self, ear: _Ear, data: bytes | memoryview) -> Received | None:
        try:
            (count,) = _COUNT.unpack_from(data)
            numbers = struct.unpack_from(f"<{count}H", data, _COUNT.size)
            if self._me.number not in numbers or not ear.guest.number:
                return None
            message = decode([memoryview(data)[padded(_COUNT.size + count * _NUMBER_BYTES) :]])
        except (FormatError, struct.error) as error:
            self._malformed += 1
            self._tell(ear.guest.name, f"a message of it that came by multicast is not taken: {error}")
            return None
        ear.received += 1
        return Received(ear.guest.number, message, ear.guest.incarnation)

    # Who is there

    def _found(self, process: bytes, now_us: int) -> _Ear | None:
        """Somebody new is heard; whoever the mesh has not let in stays unheard."""
        if now_us - self._looked_us > limits.MULTICAST_CHECK_US:
            self._look(now_us)
        return self._ears.get(process)

    def _look(self, now_us: int) -> None:
        """See whom the mesh has let in."""
        self._looked_us = now_us
        ears: dict[bytes, _Ear] = {}
        for guest in self._mesh.guests():
            process = guest.introduction.process
            ear = ears.get(process) or self._ears.get(process) or _Ear(guest)
            if guest.met_us >= ear.guest.met_us:
                ear.guest = guest
            ears[process] = ear
        self._ears = ears

    # The rest

    def _tell(self, peer: str, reason: str) -> None:
        self._troubles.tell(peer, reason, self._clock_us())

    def _unheard(self) -> None:
        """Tell of gateways that talk over the mesh and do not hear, or are not heard, by multicast."""
        now_us = self._clock_us()
        since_us = now_us - limits.MULTICAST_SILENT_US
        known = [ear for ear in self._ears.values() if ear.guest.number and now_us - ear.guest.met_us > limits.MULTICAST_TRY_US]
        talking = [ear for ear in known if ear.guest.heard_us > since_us]
        deaf = [ear for ear in talking if now_us - max(ear.hears_us, ear.guest.met_us) > limits.MULTICAST_TRY_US]
        where = f"{self._socket.group[0]}:{self._socket.group[1]}"
        if len(deaf) > 1 and len(deaf) == len(talking):
            names = ", ".join(sorted(ear.guest.name for ear in deaf))
            reason = f"the network carries no multicast to {where} between this gateway and {names}"
            self._tell(self._me.gateway, f"{reason}: everything goes over the mesh; {_DO}")
            return
        for ear in deaf:
            heard = "is heard and does not hear this gateway" if ear.heard_us > since_us else "is not heard"
            self._tell(ear.guest.name, f"it {heard} by multicast on {where}: it gets everything over the mesh; {_DO}")

    def troubles(self) -> list[Trouble]:
        """What went wrong since this was asked last."""
        self._unheard()
        return [*self._mesh.troubles(), *self._troubles.take()]

    def relieve(self) -> None:
        """Memory is short: drop what came and was not taken, and every connection that came in."""
        self._ears.clear()
        self._mesh.relieve()

    def facts(self) -> dict[str, object]:
        """For the status."""
        hearing = self._hearing()
        ears = {
            ear.guest.name: {"hears": ear.guest.number in hearing, "received": ear.received, "lost": ear.assembly.lost}
            for ear in self._ears.values()
            if ear.guest.number
        }
        multicast = {
            "address": f"{self._socket.group[0]}:{self._socket.group[1]}",
            "sealed": bool(self._me.seal),
            "messages": self._messages,
            "datagrams": self._datagrams,
            "bytes": self._bytes,
            "waiting_bytes": self._waiting_bytes,
            "over_mesh": self._over_mesh,
            "not_taken": self._strange,
            "damaged": self._damaged,
            "malformed": self._malformed,
            "not_sent": self._socket.not_sent,
            "dropped_by_kernel": self._socket.dropped,
            "receive_buffer_bytes": self._socket.receive_bytes,
            "send_buffer_bytes": self._socket.send_bytes,
            "untold": self._troubles.untold,
            "peers": ears,
        }
        return self._mesh.facts() | {"kind": "multicast", "multicast": multicast}

    def close(self) -> None:
        """Stop; what was sent has a moment to leave."""
        self._socket.close()
        self._mesh.close()


def _burst(receive_bytes: int) -> int:
    """What may leave at once, from what this kernel keeps for a receiver: the others' will not differ much, and four may send."""
    return max(limits.MULTICAST_BURST_BYTES_MIN, min(limits.MULTICAST_BURST_BYTES_MAX, receive_bytes // 8))


_DO = (
    'see that it has transport = "multicast" with the same [multicast] address, that `interface` is the right one on both, and '
    "that switches pass multicast on (IGMP snooping needs a querier)"
)


def _runs(message: Message) -> list[Message]:
    """The message in pieces that stand alone: one lost fragment then costs no more than a piece."""
    if not isinstance(message, Order | Repair):
        return [message]
    frames = message.frames
    runs = cut_runs([frame.size for frame in frames], limits.MULTICAST_RUN_BYTES)
    return [type(message)(message.view, frames[first:end]) for first, end in runs] or [message]
