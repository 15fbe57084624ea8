"""UDP multicast for messages to all members, and the mesh for all others (docs/explanation/protocol/transport.md).

ORDER, CONFIRM and their repair are multicast once, for any number of receivers. Heartbeats use the mesh, because each heartbeat
contains an echo for one receiver. This gateway multicasts to a peer only while the peer's multicast beacons confirm that the peer
receives this gateway. All other peers get all messages over the mesh. This gateway ignores datagrams of a process that has not
introduced itself over the mesh, and drops messages of a process that is not a member of the group.
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
from tutti_gateway.transport.inbound_peers import InboundPeer
from tutti_gateway.transport.interface import Introduction, Trouble
from tutti_gateway.transport.mesh.mesh import Mesh
from tutti_gateway.transport.multicast.datagrams import (
    BEACON,
    DATA,
    PROCESS_AT,
    PROCESS_BYTES,
    Datagram,
    Fragmenter,
    Reassembly,
    TokenBucket,
    group_hash,
    parse,
    split_runs,
    verified_payload,
)
from tutti_gateway.transport.multicast.socket import RUN_MAX, MulticastSocket
from tutti_gateway.transport.rate_limited_log import TroubleLog

TO_ALL = (Order, Confirm, Missing, Repairing, Repair)  # types of messages that the core sends to all members, as one object
_COUNT = struct.Struct("<H")
_NUMBER_BYTES = 2


class _MulticastPeer:
    """One process of another gateway, as a sender of datagrams.

    Attributes:
        inbound: the same process as an inbound peer of the mesh, which has its introduction.
        last_received_us: time at which the last datagram of the process arrived.
        confirmed_us: time at which a beacon of the process last confirmed that the process receives this gateway.
    """

    def __init__(self, inbound: InboundPeer) -> None:
        self.inbound = inbound
        self.assembly = Reassembly()
        self.last_received_us = self.confirmed_us = 0
        self.received = 0


class Multicast:
    """Transport over UDP multicast and a mesh. Owned by one thread."""

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
        """Use a mesh and a socket. `close` closes both.

        Args:
            me: introduction of this gateway, as on the mesh; if `me.seal` is set, datagrams without a keyed seal are ignored.
            mesh: carries all other messages, and knows which processes have introduced themselves.
            socket: socket of the multicast group.
            clock_us: monotonic clock, us.
            datagram_bytes: largest datagram.
            bytes_a_second: limit of the bytes sent.
        """
        self._me = me
        self._mesh = mesh
        self._socket = socket
        self._clock_us = clock_us
        self._group = group_hash(me.group)
        self._fragmenter = Fragmenter(me.group, me.process, me.seal, datagram_bytes)
        self._bucket = TokenBucket(bytes_a_second, _burst(socket.receive_bytes), clock_us())
        self._troubles = TroubleLog()
        if socket.buffer_warning:
            self._troubles.report(me.gateway, socket.buffer_warning, clock_us())
        self._member_names: dict[int, str] = {}
        self._peers: dict[bytes, _MulticastPeer] = {}
        self._refreshed_us = self._beacon_us = clock_us()
        self._queue: list[tuple[int, Message]] = []
        self._datagram_queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._messages_sent = self._datagrams_sent = self._bytes_sent = self._mesh_messages = 0
        self._ignored = self._corrupt = self._malformed = 0

    def introduce(self, number: int, log: bytes) -> None:
        """Set this gateway's number and log."""
        self._me = msgspec.structs.replace(self._me, number=number, log=log)
        self._mesh.introduce(number, log)

    def set_peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Set the gateways to connect to."""
        self._member_names = {number: name for number, name, _ in peers}
        self._mesh.set_peers(peers)

    # Sending

    def send(self, to: int, message: Message) -> None:
        """Queue a message for the gateway with number `to`. The next `flush` sends or loses the message."""
        if isinstance(message, TO_ALL):
            self._queue.append((to, message))
        else:
            self._mesh.send(to, message)

    def flush(self) -> None:
        """Send the queued messages, as far as the limit of bytes per second allows now."""
        queue, self._queue = self._queue, []
        if queue:
            receivers = self._receivers()
            # keyed by `id(message)`: the core passes one object for all receivers
            by_message: dict[int, tuple[Message, list[int]]] = {}
            for to, message in queue:
                by_message.setdefault(id(message), (message, []))[1].append(to)
            for message, numbers in by_message.values():
                self._distribute(message, [number for number in numbers if number in receivers], numbers)
        # The mesh is flushed after the distribution, which queues messages for peers that receive no multicast.
        self._mesh.flush()
        now_us = self._clock_us()
        if now_us >= self._beacon_us and self._member_names:
            self._beacon_us = now_us + limits.MULTICAST_BEACON_US
            self._refresh_peers(now_us)
            if self._queued_bytes <= limits.MULTICAST_QUEUE_BYTES_MAX:  # else a beacon would only add to the backlog
                self._enqueue(self._fragmenter.fragment(BEACON, self._beacon_payload(now_us)))
        self._send_datagrams(now_us)

    def _receivers(self) -> set[int]:
        """Return the numbers of the members that receive this gateway's multicast, as their beacons confirm."""
        since_us = self._clock_us() - limits.MULTICAST_SILENT_US
        return {peer.inbound.number for peer in self._peers.values() if peer.inbound.number and peer.confirmed_us > since_us}

    def _distribute(self, message: Message, receivers: Sequence[int], all_: Sequence[int]) -> None:
        """Send a message once by multicast if several gateways receive multicast, and over the mesh to each of the others."""
        # Use the mesh for a single receiver, because a lost datagram would need a repair.
        by_multicast = set(receivers) if len(receivers) > 1 and self._multicast(message, receivers) else set()
        for number in all_:
            if number not in by_multicast:
                self._mesh_messages += 1
                self._mesh.send(number, message)

    def _multicast(self, message: Message, to: Sequence[int]) -> bool:
        """Queue a message as datagrams. If the message is too large or the queue is full, queue nothing and return False."""
        # The numbers of the receivers precede the message, because every member gets the datagrams: others ignore the message.
        head = _COUNT.pack(len(to)) + struct.pack(f"<{len(to)}H", *to)
        head += bytes(padded(len(head)) - len(head))
        # One payload carries all bodies, because a datagram has no message parts.
        payloads = [head + bytes(encode(part, single_part=True)[0]) for part in _runs(message)]
        size = sum(len(payload) for payload in payloads)
        if (
            max(map(len, payloads)) > limits.MULTICAST_PAYLOAD_BYTES_MAX
            or self._queued_bytes + size > limits.MULTICAST_QUEUE_BYTES_MAX
        ):
            return False
        for payload in payloads:
            self._messages_sent += 1
            self._enqueue(self._fragmenter.fragment(DATA, payload))
        return True

    def _enqueue(self, datagrams: Sequence[bytes]) -> None:
        self._datagram_queue.extend(datagrams)
        self._queued_bytes += sum(map(len, datagrams))

    def _send_datagrams(self, now_us: int) -> None:
        queue = self._datagram_queue
        while queue and self._bucket.may_send(now_us):
            run = self._next_run()
            if not self._socket.send(run):
                return  # the send buffer is full
            size = sum(map(len, run))
            for _ in run:
                queue.popleft()
            self._bucket.spend(size)
            self._queued_bytes -= size
            self._datagrams_sent += len(run)
            self._bytes_sent += size

    def _next_run(self) -> list[bytes]:
        """Return the next datagrams to send in one call. All have the same length, except that the last may be shorter."""
        first = self._datagram_queue[0]
        # UDP_SEGMENT splits a buffer into datagrams of equal length, of which only the last may be shorter.
        run, remaining = [first], self._socket.run_bytes_max - len(first)
        for data in islice(self._datagram_queue, 1, RUN_MAX):
            remaining -= len(data)
            if remaining < 0 or len(data) > len(first):
                break
            run.append(data)
            if len(data) < len(first):
                break
        return run

    def _beacon_payload(self, now_us: int) -> bytes:
        """Return the ids of the introduced processes whose multicast this gateway receives."""
        since_us = now_us - limits.MULTICAST_SILENT_US
        return b"".join(process for process, peer in self._peers.items() if peer.last_received_us > since_us)

    def next_us(self) -> int | None:
        """Return the microseconds until queued datagrams, a beacon or the mesh need `flush`, or None if nothing is due."""
        due_us = self._mesh.next_us()
        if self._datagram_queue:
            own_us = self._bucket.wait_us() or limits.MULTICAST_RETRY_US  # else the send buffer was full
        elif self._member_names:
            own_us = max(0, self._beacon_us - self._clock_us())
        else:
            return due_us
        return own_us if due_us is None else min(own_us, due_us)

    # Receiving

    @property
    def unread(self) -> bool:
        """True if received messages or link changes wait for `drain` that none of the `descriptors` signals."""
        return self._mesh.unread

    def descriptors(self) -> Sequence[int]:
        """Return the descriptors that become readable when messages or link changes wait for `drain`."""
        return [*self._mesh.descriptors(), self._socket.fd]

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """Return received messages and link changes, as `Transport.drain` does."""
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
                received = self._receive_datagram(data, now_us)
                if received is not None:
                    events.append(received)
            # Stop at the limits, so that a flood of datagrams does not delay clients and the mesh.
            if len(events) >= messages_max or size >= bytes_max:
                break

    def _receive_datagram(self, data: memoryview, now_us: int) -> Received | None:
        if data[PROCESS_AT] == self._me.process:
            return None  # sent by this gateway, and looped back for other gateways on this host
        datagram = parse(data, self._group)
        if datagram is None:
            self._ignored += 1
            return None
        peer = self._peers.get(datagram.process) or self._find_peer(datagram.process, now_us)
        # In a group with keys, a datagram with only a checksum is ignored, because anybody could have sent it.
        if peer is None or bool(peer.inbound.introduction.seal) != bool(self._me.seal):
            self._ignored += 1
            return None
        payload = verified_payload(data, peer.inbound.introduction.seal)
        if payload is None:
            self._corrupt += 1
            return None
        peer.last_received_us = now_us
        if datagram.kind == BEACON:
            self._receive_beacon(peer, datagram, payload, now_us)
            return None
        message = peer.assembly.add(datagram, payload, now_us)
        return self._receive_message(peer, message) if message is not None else None

    def _receive_beacon(self, peer: _MulticastPeer, datagram: Datagram, payload: memoryview, now_us: int) -> None:
        peer.assembly.update_highest(datagram.number)
        processes = bytes(payload)
        # Beacons list processes instead of gateways, so a restart of this gateway ends all earlier confirmations.
        if self._me.process in [processes[at : at + PROCESS_BYTES] for at in range(0, len(processes), PROCESS_BYTES)]:
            peer.confirmed_us = now_us

    def _receive_message(self, peer: _MulticastPeer, data: bytes | memoryview) -> Received | None:
        try:
            (count,) = _COUNT.unpack_from(data)
            numbers = struct.unpack_from(f"<{count}H", data, _COUNT.size)
            # Members without working multicast are not among the receivers, because they get the same message over the mesh.
            if self._me.number not in numbers or not peer.inbound.number:
                return None
            message = decode([memoryview(data)[padded(_COUNT.size + count * _NUMBER_BYTES) :]])
        except (FormatError, struct.error) as error:
            self._malformed += 1
            self._warn(peer.inbound.name, f"one of its multicast messages was dropped: {error}")
            return None
        peer.received += 1
        return Received(peer.inbound.number, message, peer.inbound.incarnation)

    # Peers

    def _find_peer(self, process: bytes, now_us: int) -> _MulticastPeer | None:
        """Return the sender of a datagram; None if the process has not introduced itself over the mesh."""
        # A flood of unknown datagrams must not cause a refresh for each datagram.
        if now_us - self._refreshed_us > limits.MULTICAST_CHECK_US:
            self._refresh_peers(now_us)
        return self._peers.get(process)

    def _refresh_peers(self, now_us: int) -> None:
        """Update the peers from the mesh: all processes that have introduced themselves over it, including non-members."""
        self._refreshed_us = now_us
        peers: dict[bytes, _MulticastPeer] = {}
        for inbound in self._mesh.inbound_peers():
            process = inbound.introduction.process
            peer = peers.get(process) or self._peers.get(process) or _MulticastPeer(inbound)
            if inbound.introduced_us >= peer.inbound.introduced_us:  # a process that reconnected is listed twice
                peer.inbound = inbound
            peers[process] = peer
        self._peers = peers

    # The rest

    def _warn(self, peer: str, reason: str) -> None:
        self._troubles.report(peer, reason, self._clock_us())

    def _report_unreachable(self) -> None:
        """Report members that are active on the mesh but with which multicast does not work in both directions."""
        now_us = self._clock_us()
        since_us = now_us - limits.MULTICAST_SILENT_US
        known = [
            peer
            for peer in self._peers.values()
            if peer.inbound.number and now_us - peer.inbound.introduced_us > limits.MULTICAST_TRY_US
        ]
        talking = [peer for peer in known if peer.inbound.last_received_us > since_us]
        unreachable = [
            peer for peer in talking if now_us - max(peer.confirmed_us, peer.inbound.introduced_us) > limits.MULTICAST_TRY_US
        ]
        where = f"{self._socket.group[0]}:{self._socket.group[1]}"
        # If multicast reaches no peer, the network is the likely cause, and one message replaces a message for each peer.
        if len(unreachable) > 1 and len(unreachable) == len(talking):
            names = ", ".join(sorted(peer.inbound.name for peer in unreachable))
            reason = f"the network does not carry multicast to {where} between this gateway and {names}"
            self._warn(self._me.gateway, f"{reason}: everything goes over the mesh; {_REMEDY}")
            return
        for peer in unreachable:
            problem = "does not receive this gateway" if peer.last_received_us > since_us else "is not received"
            self._warn(peer.inbound.name, f"it {problem} by multicast on {where}: it gets everything over the mesh; {_REMEDY}")

    def maintain(self) -> list[Trouble]:
        """Maintain the mesh, and report gateways that multicast does not reach, as `Transport.maintain` requires."""
        self._report_unreachable()
        return [*self._mesh.maintain(), *self._troubles.drain()]

    def release_memory(self) -> None:
        """Drop received messages, and close every accepted connection."""
        self._peers.clear()  # also drops incomplete messages
        self._mesh.release_memory()

    def facts(self) -> dict[str, object]:
        """Return counters for the status."""
        receivers = self._receivers()
        peers = {
            peer.inbound.name: {"hears": peer.inbound.number in receivers, "received": peer.received, "lost": peer.assembly.lost}
            for peer in self._peers.values()
            if peer.inbound.number
        }
        multicast = {
            "address": f"{self._socket.group[0]}:{self._socket.group[1]}",
            "sealed": bool(self._me.seal),
            "messages": self._messages_sent,
            "datagrams": self._datagrams_sent,
            "bytes": self._bytes_sent,
            "waiting_bytes": self._queued_bytes,
            "over_mesh": self._mesh_messages,
            "not_taken": self._ignored,
            "damaged": self._corrupt,
            "malformed": self._malformed,
            "not_sent": self._socket.not_sent,
            "dropped_by_kernel": self._socket.dropped,
            "receive_buffer_bytes": self._socket.receive_bytes,
            "send_buffer_bytes": self._socket.send_bytes,
            "untold": self._troubles.suppressed,
            "peers": peers,
        }
        return self._mesh.facts() | {"kind": "multicast", "multicast": multicast}

    def close(self) -> None:
        """Stop. Allow a short time for sending queued messages."""
        self._socket.close()
        self._mesh.close()


def _burst(receive_bytes: int) -> int:
    """Return the largest burst, bytes: small enough that bursts of four gateways at once fill half of a similar receive buffer."""
    return max(limits.MULTICAST_BURST_BYTES_MIN, min(limits.MULTICAST_BURST_BYTES_MAX, receive_bytes // 8))


_REMEDY = (
    'check that it has transport = "multicast" with the same [multicast] address, that `interface` is right on both, and that '
    "switches forward multicast (IGMP snooping needs a querier)"
)


def _runs(message: Message) -> list[Message]:
    """Split a message into messages with fewer frames, so that a lost fragment loses only one of these messages."""
    if not isinstance(message, Order | Repair):
        return [message]
    frames = message.frames
    runs = split_runs([frame.size for frame in frames], limits.MULTICAST_RUN_BYTES)
    return [type(message)(message.view, frames[first:end]) for first, end in runs] or [message]
