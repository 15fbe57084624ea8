"""The transport within one process, for tests: gateways that share a `Wires` talk through bytes and lists, without a socket.

Who is let in, what is refused and how a message looks in bytes is the same as on a network; what is lost, doubled or late is
decided by a seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from random import Random

import msgspec

from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.transport.codec import decode, encode
from tutti_gateway.transport.inbound_peers import Guests
from tutti_gateway.transport.interface import Introduction, Trouble
from tutti_gateway.transport.warnings_limited import Troubles


class Wires:
    """Who is connected to whom.

    Attributes:
        loss, twice, disorder: shares of messages that are lost, come twice, or come behind the one that follows them.
        lost: how many did not arrive, for whatever reason.
    """

    def __init__(self, seed: int = 0, *, loss: float = 0.0, twice: float = 0.0, disorder: float = 0.0) -> None:
        """A network without gateways."""
        self.loss, self.twice, self.disorder = loss, twice, disorder
        self.lost = 0
        self._chance = Random(seed)
        self._ends: dict[str, MemoryTransport] = {}
        self._cut: set[frozenset[str]] = set()

    def add(self, end: MemoryTransport) -> None:
        """A gateway comes; one of the same name that was there before is gone."""
        self.remove(end.name)
        self._ends[end.name] = end
        self.look()

    def remove(self, name: str) -> None:
        """A gateway goes."""
        if self._ends.pop(name, None) is not None:
            self.look()

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between two gateways any more."""
        self._cut.add(frozenset((one, other)))
        self.look()

    def mend(self, one: str, other: str) -> None:
        """What `cut` did is over."""
        self._cut.discard(frozenset((one, other)))
        self.look()

    def look(self) -> None:
        """Have every end see whom it reaches."""
        for end in self._ends.values():
            end.look()

    def reached(self, sender: str, to: str) -> MemoryTransport | None:
        """The other end, None if it cannot be reached."""
        return None if frozenset((sender, to)) in self._cut else self._ends.get(to)

    def carry(self, sender: MemoryTransport, to: str, data: bytes) -> None:
        """One message leaves; it may arrive."""
        end, chance = self.reached(sender.name, to), self._chance.random
        if end is None or chance() < self.loss:
            self.lost += 1
            return
        for _ in range(2 if chance() < self.twice else 1):
            if not end.arrives(sender.name, data, late=chance() < self.disorder):
                self.lost += 1


class MemoryTransport:
    """One gateway's end. Owned by one thread, as all ends of its `Wires` are."""

    def __init__(self, me: Introduction, wires: Wires, clock_us: Callable[[], int]) -> None:
        """Connect; `clock_us` is a monotonic clock, us."""
        self.name = me.gateway
        self._me = me
        self._wires = wires
        self._clock_us = clock_us
        self._guests = Guests(me, clock_us)
        self._troubles = Troubles()
        self._peers: dict[int, str] = {}
        self._up: dict[int, Introduction] = {}
        self._queue: list[tuple[int, Message]] = []
        self._came: deque[tuple[str, bytes]] = deque()
        self._changed: list[LinkChanged] = []
        self._sent = 0
        wires.add(self)

    @property
    def introduction(self) -> Introduction:
        """What this gateway says of itself."""
        return self._me

    def introduce(self, number: int, log: bytes) -> None:
        """This gateway has that number and that log from now on."""
        self._me = self._guests.me = msgspec.structs.replace(self._me, number=number, log=log)
        self._guests.look_again()
        self._wires.look()

    def peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Whom to talk to."""
        self._guests.named({name: number for number, name, _ in peers})
        self._peers = {number: name for number, name, _ in peers}
        self.look()

    def look(self) -> None:
        """See whom this gateway reaches."""
        wanted = {number: name for number, (name, _) in self._guests.unnamed().items()} | self._peers
        for number, name in wanted.items():
            end = self._wires.reached(self.name, name)
            there = end.introduction if end is not None else None
            before = self._up.get(number)
            if before is not None and (there is None or there.process != before.process):
                del self._up[number]
                self._changed.append(LinkChanged(number, up=False))
            if there is not None and number not in self._up:
                self._up[number] = there
                self._changed.append(LinkChanged(number, up=True))

    def send(self, to: int, message: Message) -> None:
        """Queue a message; it leaves at the next `flush`, or is lost."""
        self._queue.append((to, message))

    def flush(self) -> None:
        """Send what was queued."""
        queue, self._queue = self._queue, []
        made: dict[int, bytes] = {}
        for to, message in queue:
            peer = self._up.get(to)
            if peer is None:
                self._wires.lost += 1
                continue
            data = made.get(id(message))
            if data is None:
                data = made[id(message)] = bytes(encode(message, whole=True)[0])
            self._sent += 1
            self._wires.carry(self, peer.gateway, data)

    def arrives(self, sender: str, data: bytes, *, late: bool) -> bool:
        """A message of another end came; whether there was room."""
        if len(self._came) >= limits.MESH_HIGH_WATER_MARK:
            return False
        self._came.append((sender, data))
        if late and len(self._came) > 1:
            self._came[-1], self._came[-2] = self._came[-2], self._came[-1]
        return True

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """What came."""
        events: list[Received | LinkChanged] = []
        events += self._changed
        self._changed = []
        size = 0
        while self._came and messages_max and size < bytes_max:
            sender, data = self._came.popleft()
            messages_max -= 1
            size += len(data)
            received = self._take(sender, data)
            if received is not None:
                events.append(received)
        return events

    def _take(self, sender: str, data: bytes) -> Received | None:
        end = self._wires.reached(self.name, sender)
        if end is None:
            return None
        theirs = end.introduction
        guest = self._guests.heard(sender.encode())
        if guest is None or guest.introduction != theirs:
            verdict = self._guests.met(sender.encode(), theirs, self._clock_us())
            if verdict.reason:
                self._troubles.tell(sender, verdict.reason, self._clock_us())
            if verdict.connect:
                self.look()
            guest = self._guests.heard(sender.encode())
        if guest is None or not guest.number:
            return None
        return Received(guest.number, decode([data]), guest.incarnation)

    @property
    def unread(self) -> bool:
        """Its descriptor tells of everything."""
        return False

    def sockets(self) -> Sequence[int]:
        """None: whoever runs the ends knows when to drain them."""
        return ()

    def next_us(self) -> int | None:
        """Nothing waits for time."""
        return None

    def troubles(self) -> list[Trouble]:
        """What went wrong since this was asked last."""
        return self._troubles.take()

    def relieve(self) -> None:
        """Memory is short: drop what came and was not taken."""
        self._wires.lost += len(self._came)
        self._came.clear()

    def facts(self) -> dict[str, object]:
        """For the status."""
        return {"kind": "memory", "sent": self._sent, "lost": self._wires.lost, "peers": sorted(self._up)}

    def close(self) -> None:
        """Gone."""
        self._wires.remove(self.name)
