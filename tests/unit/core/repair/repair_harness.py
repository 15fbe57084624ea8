"""One member with the repair layer, its clock, and the messages that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.sim.storm import VIEW, Node
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.actions import ReadLog, Send
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.protocol.messages import Heartbeat, Message, Missing, Order, Repair, Repairing

MS = 1_000
D = 10 * MS  # to every member, unless a test says otherwise
LARGE = bytes(8192)  # a body that does not go to all unasked

Sent = TypeVar("Sent", Missing, Repairing, Repair)


def chain(count: int, body: bytes = b"", view: int = VIEW) -> list[Frame]:
    """The log of a view that begins with position 1."""
    frames: list[Frame] = []
    for position in range(1, count + 1):
        frame = Frame(Kind.BATCH, body, origin=1)
        frame.stamp(view, position, frames[-1].header_crc if frames else 0)
        frames.append(frame)
    return frames


class Bench:
    """The member `number` of a view of `members`, coordinated by member 1."""

    def __init__(self, number: int, members: int = 4, distances: dict[int, int] | None = None, seed: str = "") -> None:
        self.node = Node(number, members, lambda peer: (distances or {}).get(peer, D), seed)
        self.now_us = 1_000_000
        self.sent: list[tuple[int, int, Message]] = []  # (time, to, message)
        self.reads: list[ReadLog] = []

    def _do(self, act: Callable[[], object]) -> None:
        node = self.node
        node.outbox.now = Now(self.now_us, self.now_us)
        act()
        node.repair.end_of_step()
        for action in node.outbox.drain(None):
            if isinstance(action, Send):
                self.sent.append((self.now_us, action.to, action.message))
            elif isinstance(action, ReadLog):
                self.reads.append(action)

    def receive(self, sender: int, message: Message) -> None:
        """A message of another member."""
        self._do(lambda: self.node.receive(sender, message))

    def order(self, *frames: Frame) -> None:
        """Frames of the coordinator."""
        self.receive(1, Order(VIEW, frames))

    def beat(self, sender: int, end: int) -> None:
        """A heartbeat."""
        self.receive(sender, Heartbeat(sent_us=1, view=VIEW, end=end))

    def wait(self, us: int) -> None:
        """Time goes on, and the layer is woken whenever it wants to be."""
        until_us = self.now_us + us
        while (due_us := self.node.repair.deadline_us) is not None and due_us <= until_us:
            self.now_us = max(due_us, self.now_us)
            self._do(self.node.repair.on_timer)
        self.now_us = until_us

    def decide(self, up_to: int) -> None:
        """The frontier moves."""
        window = self.node.window
        for stage in (CommitStage.WRITING, CommitStage.DURABLE, CommitStage.VOTED):
            window.advance(stage, window.end)
        run = [window.frames.popleft() for _ in range(up_to - window.frontier)]
        window.state.position, window.state.chain = up_to, run[-1].header_crc

    def of(self, kind: type[Sent]) -> list[tuple[int, Sent]]:
        """What was sent of one kind since this was asked last, with to whom."""
        found = [(to, message) for _, to, message in self.sent if isinstance(message, kind)]
        self.sent = [one for one in self.sent if not isinstance(one[2], kind)]
        return found
