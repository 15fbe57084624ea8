"""The network between gateways: latency, loss, duplication, disorder, partitions of every shape, full queues, clogged pairs.

Messages go by reference. Frames are shared on purpose, as a frame never changes once it has its place; those of FORWARD have none,
and are copied. Some messages go through their bytes, so that the codec is part of every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from tests.sim.schedule import SECOND, Schedule
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.messages import Fetched, FetchedSnapshot, Forward, Message, Order, Repair

BYTES_SHARE = 0.02  # of the messages go through their bytes
HEAD_BYTES = 64
QUEUE_US = SECOND  # of sending time that a connection holds; over it messages are lost


class Path:
    """One direction between two gateways.

    Attributes:
        latency: of this direction, microseconds. blocked: nothing passes; how many faults say so. clogged: what waits until it
            opens, None when it is open.
    """

    __slots__ = ("blocked", "clogged", "free_at", "last_at", "latency")

    def __init__(self, latency: float) -> None:
        self.latency = latency
        self.blocked = 0
        self.clogged: list[tuple[Message, bytes]] | None = None
        self.free_at = 0.0
        self.last_at = 0.0


class Network:
    """All paths.

    Attributes:
        loss, twice, disorder: shares of messages that are lost, come twice, or come later than those behind them.
        jitter: how much longer than its latency a message may take, as a share. us_a_byte: what a byte takes to be sent.
        sent, lost: messages.
    """

    def __init__(
        self,
        schedule: Schedule,
        chance: Random,
        hand_over: Callable[[str, str, Message, bytes], None],
        latency: Callable[[], float],
    ) -> None:
        self._schedule, self._chance, self._hand_over = schedule, chance, hand_over
        self._latency = latency
        self._paths: dict[tuple[str, str], Path] = {}
        self.loss = self.twice = self.disorder = 0.0
        self.jitter = 0.2
        self.us_a_byte = 0.001
        self.sent = self.lost = 0

    def path(self, sender: str, to: str) -> Path:
        """The direction from one gateway to another."""
        found = self._paths.get((sender, to))
        if found is None:
            back = self._paths.get((to, sender))
            found = self._paths[sender, to] = Path(back.latency if back else self._latency())
        return found

    @property
    def latency_max(self) -> float:
        """The longest latency between any two, microseconds."""
        return max((path.latency for path in self._paths.values()), default=0.0)

    def send(self, sender: str, to: str, message: Message, incarnation: bytes) -> None:
        """A message leaves; it may arrive."""
        self.sent += 1
        path = self._paths.get((sender, to)) or self.path(sender, to)
        random = self._chance.random
        if path.blocked or (self.loss and random() < self.loss):
            self.lost += 1
            return
        now = self._schedule.now
        size = HEAD_BYTES
        if isinstance(message, Forward):
            message = Forward(message.view, tuple([frame.unstamped() for frame in message.frames]))
            size += sum([frame.size for frame in message.frames])
        elif isinstance(message, Order | Repair | Fetched):
            size += sum([frame.size for frame in message.frames])
        elif isinstance(message, FetchedSnapshot):
            size += len(message.data)
        free_at = (path.free_at if path.free_at > now else now) + size * self.us_a_byte
        if free_at - now > QUEUE_US:
            self.lost += 1
            return
        path.free_at = free_at
        if random() < BYTES_SHARE:
            message = codec.decode_message(codec.encode(message))
        arrives = free_at + path.latency * (1 + self.jitter * random())
        if arrives < path.last_at and not (self.disorder and random() < self.disorder):
            arrives = path.last_at
        elif self.disorder and random() < self.disorder:
            arrives += path.latency * 3 * random() + 1000 * random()
        else:
            path.last_at = arrives
        self._schedule.at(int(arrives), self._arrive, sender, to, message, incarnation)
        if self.twice and random() < self.twice:
            late = arrives + (path.latency + 1000) * 20 * random() ** 3
            if isinstance(message, Forward):  # whoever orders the first copy gives its frames their places
                message = Forward(message.view, tuple([frame.unstamped() for frame in message.frames]))
            self._schedule.at(int(late), self._arrive, sender, to, message, incarnation)

    def _arrive(self, sender: str, to: str, message: Message, incarnation: bytes) -> None:
        path = self._paths[sender, to]
        if path.blocked:
            self.lost += 1
        elif path.clogged is not None:
            path.clogged.append((message, incarnation))
        else:
            self._hand_over(sender, to, message, incarnation)

    # Faults

    def block(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nothing passes in these directions any more."""
        for pair in pairs:
            self.path(*pair).blocked += 1

    def unblock(self, pairs: Iterable[tuple[str, str]]) -> None:
        """What `block` did is over."""
        for pair in pairs:
            self.path(*pair).blocked -= 1

    def clog(self, sender: str, to: str) -> None:
        """Everything waits."""
        path = self.path(sender, to)
        if path.clogged is None:
            path.clogged = []

    def unclog(self, sender: str, to: str) -> None:
        """What waited arrives at once."""
        path = self.path(sender, to)
        waiting, path.clogged = path.clogged or [], None
        for message, incarnation in waiting:
            self._hand_over(sender, to, message, incarnation)

    def calm(self) -> None:
        """No more faults; latencies stay as they are."""
        self.loss = self.twice = self.disorder = 0.0
