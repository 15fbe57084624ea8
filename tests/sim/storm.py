"""The repair layer alone in a lossy network, in virtual time: what repairing costs, how long it takes, and that it is no storm.

    python -m tests.sim.storm [--seed N] [--members 3 7 25 100] [--loss 0.1 1 5 10 30]

The coordinator multicasts a stream to all members over links that lose each message with the same probability: of the stream,
requests, claims, repairs, heartbeats. Layer and receiver are the real ones; order and atomic are not there, so nothing is decided.
A *pair* is one member that missed one position; the time to recover it counts from when the gap showed to that member, in distances
(d, the mean time over a link). Requests, claims and repairs are multicasts; a message goes to one member. A minute of
CPU with the sizes of the default, most of it for the hundred.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import cast

from tutti.data.frames.frame import Frame, Kind, payload_crc
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.order.receiver import Receiver
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.actions import ReadLog, Send, SetTimer
from tutti_gateway.core.protocol.events import Identity, LogRead, Now, StackConfig
from tutti_gateway.core.protocol.messages import Heartbeat, Message, Missing, Order, Repair, Repairing
from tutti_gateway.core.repair.layer import Repair as Layer
from tutti_gateway.core.view.view_state import ViewState

VIEW = 1 << 16 | 1
SOURCE = 1
INTERVAL_US = 2_000  # between messages of the stream
FRAMES_MAX = 3  # of one message of it
LATENCY_US = (2_000, 6_000)  # one way, drawn for each pair: above the floor, so that nothing hides behind it
JITTER = 0.1


class _Table:
    """The received-table and what is below the receiver: whatever comes in order goes into the window."""

    def __init__(self, window: Window) -> None:
        self._window = window

    def apply(self, frame: Frame) -> None:
        """Nothing is kept of producers."""

    def append(self, frames: Sequence[Frame]) -> None:
        self._window.extend(frames)

    def find(self, frame: Frame) -> None:
        return None


class Node:
    """A member: the real receiver and repair layer."""

    def __init__(self, number: int, members: int, distances: Callable[[int], int], seed: str) -> None:
        self.view_state = ViewState()
        self.view_state.me = number
        self.view_state.durable(HardState(VIEW, VIEW))
        self.view_state.install(VIEW, tuple(range(1, members + 1)), SOURCE)
        self.outbox = Outbox(self.view_state)
        self.window = Window(LogState())
        identity = Identity(f"g{number}", b"", "storm", {})
        chance = random.Random(seed)
        context = Context(StackConfig(), self.view_state, self.outbox, self.window, identity, chance)
        table = _Table(self.window)
        self.receiver = Receiver(context, cast("ReceivedTable", table), cast("ForwardTable", table), table)
        self.receiver.installed()
        self.repair = Layer(context, self.receiver, distances, chance)
        self.repair.installed()

    def receive(self, sender: int, message: Message) -> None:
        """What the stack does with it."""
        if isinstance(message, Order):
            self.receiver.on_order(sender, message)
        elif isinstance(message, Heartbeat):
            self.repair.log_end_reported(sender, message.end)
        elif isinstance(message, Missing):
            self.repair.on_missing(sender, message)
        elif isinstance(message, Repairing):
            self.repair.on_repairing(sender, message)
        elif isinstance(message, Repair):
            self.repair.on_repair(sender, message)

    def log_read(self, read: ReadLog) -> None:
        """The log was read."""
        frames = tuple(self.window.at(position) for position in range(read.first, read.last + 1))
        self.repair.on_log_read(LogRead(read.token, frames, read.last))


@dataclass
class Figures:
    """What a run cost. `recovered_us`: of each pair, from when the gap showed to the member."""

    members: int
    distance_us: float
    lost: int = 0
    recovered_us: list[int] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    joined: int = 0
    claims: int = 0
    repairs: int = 0
    repaired: int = 0
    refused: int = 0
    missing: int = 0

    @property
    def messages(self) -> int:
        """Messages that repairing cost, each to one member."""
        return sum(self.sent.get(kind.__name__, 0) for kind in (Missing, Repairing, Repair))


#: Whether a message from one member to another is lost.
Loses = Callable[[int, int, Message], bool]


class Storm:
    """A group, its links and its time."""

    def __init__(self, members: int, loses: Loses, seed: int = 0, body_bytes: int = 0) -> None:
        self.now_us = 0
        self._body = bytes(body_bytes)
        self._body_crc = payload_crc(b"", self._body)
        self.loses = loses
        self._random = random.Random(f"{seed}/links")
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._links: dict[tuple[int, int], int] = {}
        self._free_us: dict[tuple[int, int], int] = {}
        for one in range(1, members + 1):
            for other in range(one + 1, members + 1):
                self._links[one, other] = self._links[other, one] = self._random.randint(*LATENCY_US)
        self.nodes = {
            number: Node(number, members, self._distances(number), f"{seed}/{number}") for number in range(1, members + 1)
        }
        self.figures = Figures(members, fmean(self._links.values()))
        self._lost: dict[int, set[int]] = {number: set() for number in self.nodes}  # not yet shown
        self._shown: dict[tuple[int, int], int] = {}

    def _distances(self, number: int) -> Callable[[int], int]:
        return lambda peer: self._links[number, peer]

    def at(self, when_us: int, act: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._events, (when_us, self._count, act))

    def run(self, until_us: int) -> None:
        """Let time go on."""
        while self._events and self._events[0][0] <= until_us:
            self.now_us, _, act = heapq.heappop(self._events)
            act()
        self.now_us = until_us

    def _step(self, number: int, act: Callable[[Node], None]) -> None:
        node = self.nodes[number]
        node.outbox.now = Now(self.now_us, self.now_us)
        act(node)
        node.repair.end_of_step()
        lost = self._lost[number]
        for position in [position for position in lost if position <= node.receiver.highest]:
            lost.remove(position)
            self._shown[number, position] = self.now_us
        for action in node.outbox.drain(node.repair.deadline_us):
            if isinstance(action, Send):
                self.send(number, action.to, action.message)
            elif isinstance(action, SetTimer):
                self.at(max(action.at_us, self.now_us), lambda: self._step(number, _wake))
            elif isinstance(action, ReadLog):
                self.at(self.now_us + 1, partial(self._step, number, partial(Node.log_read, read=action)))

    def send(self, sender: int, to: int, message: Message) -> None:
        """A message over a link, which keeps their order."""
        kind = type(message).__name__
        self.figures.sent[kind] = self.figures.sent.get(kind, 0) + 1
        if self.loses(sender, to, message):
            if isinstance(message, Order):
                self._lost[to] |= {frame.position for frame in message.frames}
                self.figures.lost += len(message.frames)
            return
        link = sender, to
        latency_us = self._links[link] * (1 + JITTER * self._random.random())
        arrival_us = self._free_us[link] = max(self.now_us + round(latency_us), self._free_us.get(link, 0))
        self.at(arrival_us, lambda: self._arrive(sender, to, message))

    def _arrive(self, sender: int, to: int, message: Message) -> None:
        if isinstance(message, Repair):
            for frame in message.frames:
                shown_us = self._shown.pop((to, frame.position), None)
                if shown_us is not None:
                    self.figures.recovered_us.append(self.now_us - shown_us)
        self._step(to, lambda node: node.receive(sender, message))

    # What there is to repair

    def stream(self, messages: int) -> None:
        """The coordinator orders frames, a message each interval."""
        for place in range(messages):
            self.at(self.now_us + place * INTERVAL_US, lambda: self._step(SOURCE, self._order))

    def _order(self, node: Node) -> None:
        window, frames = node.window, []
        for _ in range(self._random.randint(1, FRAMES_MAX)):
            frame = Frame(Kind.BATCH, self._body, origin=SOURCE, body_crc=self._body_crc)
            frame.stamp(VIEW, window.end + 1, window.chain)
            window.extend((frame,))
            frames.append(frame)
        for member in node.view_state.others:
            node.outbox.send(member, Order(VIEW, tuple(frames)))

    def beat(self) -> None:
        """Heartbeats of all, each at its own time, for ever."""
        for number in self.nodes:
            self.at(self.now_us + self._random.randrange(limits.HEARTBEAT_US), partial(self._step, number, self._beat))

    def _beat(self, node: Node) -> None:
        number = node.view_state.me
        for member in node.view_state.others:
            node.outbox.send(member, Heartbeat(sent_us=self.now_us, view=VIEW, end=node.window.end))
        self.at(self.now_us + limits.HEARTBEAT_US, lambda: self._step(number, self._beat))

    @property
    def whole(self) -> bool:
        """Whether every member has everything."""
        end = self.nodes[SOURCE].window.end
        return all(node.window.end == end for node in self.nodes.values())

    def finish(self, beats: int = 100) -> Figures:
        """Run until everything is everywhere, `beats` heartbeats at most."""
        for _ in range(beats):
            self.run(self.now_us + limits.HEARTBEAT_US)
            if self.whole and not self._shown:
                break
        figures, repairs = self.figures, [node.repair for node in self.nodes.values()]
        figures.requests = sum(repair.requester.requests for repair in repairs)
        figures.joined = sum(repair.requester.joined for repair in repairs)
        figures.repairs = sum(repair.responder.repairs for repair in repairs)
        figures.claims = sum(repair.responder.claims for repair in repairs)
        figures.repaired = sum(repair.responder.repaired for repair in repairs)
        figures.refused = sum(repair.requester.bucket.refused + repair.responder.refused for repair in repairs)
        end = self.nodes[SOURCE].window.end
        figures.missing = sum(end - node.window.end for node in self.nodes.values())
        return figures


def _wake(node: Node) -> None:
    node.outbox.timer_fired()
    node.repair.on_timer()


def independent(members: int, loss: float, messages: int, seed: int = 0, body_bytes: int = 0) -> Figures:
    """Every message to every member is lost with the probability `loss`."""
    chance = random.Random(f"{seed}/{members}/{loss}")
    storm = Storm(members, lambda sender, to, message: chance.random() < loss, seed, body_bytes)
    storm.beat()
    storm.stream(messages)
    storm.run(messages * INTERVAL_US)
    return storm.finish()


def common(members: int, missing: int, seed: int = 0, body_bytes: int = 0, *, last: bool = False) -> Figures:
    """One message of the stream, its last one or not, is lost on its way to the last `missing` members, and nothing else is."""
    messages, ordered = 20, list[int]()

    def loses(sender: int, to: int, message: Message) -> bool:
        if not isinstance(message, Order) or to <= members - missing:
            return False
        first = message.frames[0].position
        if first not in ordered:
            ordered.append(first)
        return ordered.index(first) == (messages - 1 if last else messages // 2)

    storm = Storm(members, loses, seed, body_bytes)
    storm.beat()
    storm.stream(messages)
    storm.run(messages * INTERVAL_US)
    return storm.finish()


HEAD = {
    "members": "of the view, the coordinator included",
    "lost": "each message with this probability; or one message of the stream alone, by so many members",
    "body": "of the frames: small ones (100 bytes) are repaired to all at once, large ones (8 KiB) are claimed first",
    "pairs": "(member, position) that was missed",
    "requests": "multicasts that asked for something",
    "joined": "requests that were held back because another member's was heard",
    "claims": "multicasts that said who repairs",
    "repairs": "multicasts that repaired",
    "refused": "what was not asked for or repaired at once, for want of tokens or of room to remember it",
    "bodies": "frames in repairs, for each pair",
    "messages": "to one member, of requests, claims and repairs, for each pair",
    "mean d": "time from a gap that shows to its repair, in distances",
    "worst d": "the longest one",
}


def _row(what: str, body_bytes: int, runs: Sequence[Figures]) -> list[str]:
    """Figures of runs of one kind, together: counts, then bodies and messages for each pair, then times."""
    recovered_d = [one / run.distance_us for run in runs for one in run.recovered_us]
    counts = [sum(getattr(run, name) for run in runs) for name in ("lost", "requests", "joined", "claims", "repairs", "refused")]
    lost = max(1, counts[0])
    bodies, messages = sum(run.repaired for run in runs) / lost, sum(run.messages for run in runs) / lost
    size = "large" if body_bytes > limits.REPAIR_TO_ALL_BYTES else "small"
    times = (fmean(recovered_d or [0.0]), max(recovered_d, default=0.0))
    return [str(runs[0].members), what, size, *map(str, counts), *(f"{one:.2f}" for one in (bodies, messages, *times))]


def table(members: Sequence[int], losses: Sequence[float], seed: int) -> Iterator[tuple[list[str], Sequence[Figures], str]]:
    """Rows of the table as they are made, with the runs behind each, and what fell short in them."""
    for count in members:
        for loss in losses:
            # About as many pairs in each row, so that the worst of each is the worst of as many.
            messages = max(30, min(4000, round(PAIRS / (loss * (count - 1) * (1 + FRAMES_MAX) / 2))))
            for body_bytes in BODIES:
                runs = [independent(count, loss, messages, seed, body_bytes)]
                yield _row(f"{loss:.1%}", body_bytes, runs), runs, short(runs, body_bytes)
        for name, missing in (("by one", 1), ("by half", count // 2), ("by all", count - 1), ("last, by all", count - 1)):
            for body_bytes in BODIES:
                runs = [common(count, missing, seed + place, body_bytes, last="last" in name) for place in range(COMMON_RUNS)]
                yield _row(name, body_bytes, runs), runs, short(runs, body_bytes)


def short(runs: Sequence[Figures], body_bytes: int) -> str:
    """What fell short in runs of one kind; empty if nothing did."""
    lost, requests, repaired = (sum(getattr(run, name) for run in runs) for name in ("lost", "requests", "repaired"))
    if any(run.missing for run in runs):
        return "something was never repaired"
    if requests > max(lost, REQUESTS_MAX * len(runs)):
        return f"{requests} requests for {lost} pairs"
    if body_bytes > limits.REPAIR_TO_ALL_BYTES and repaired > BODIES_MAX * lost:
        return f"{repaired} bodies for {lost} pairs"
    return ""


PAIRS = 1500
COMMON_RUNS = 5
BODIES = (100, 8192)
REQUESTS_MAX = 10  # for one message, whoever missed it
BODIES_MAX = 2  # large ones, for one pair


MEMBERS_MAX = 200  # more take hours
LOSS_MAX = 80  # with more of it nothing comes through in a hundred heartbeats


def _members(text: str) -> int:
    number = int(text)
    if not 1 < number <= MEMBERS_MAX:
        raise argparse.ArgumentTypeError(f"{text} members repair nothing here: 2 to {MEMBERS_MAX} do")
    return number


def _loss(text: str) -> float:
    percent = float(text)
    if not 0 < percent <= LOSS_MAX:
        raise argparse.ArgumentTypeError(f"a loss of {text} % is none that can be repaired: more than 0 and up to {LOSS_MAX}")
    return percent


def main() -> int:
    """Print the table; 1 when something fell short."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.storm",
        description="Requests and repairs for what is lost, by the repair layer alone.",
        epilog="columns:\n" + "\n".join(f"  {name:<9} {what}" for name, what in HEAD.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--members", type=_members, nargs="+", default=[3, 7, 25, 100], metavar="N", help=f"2 to {MEMBERS_MAX}")
    parser.add_argument("--loss", type=_loss, nargs="+", default=[0.1, 1, 5, 10, 30], metavar="PERCENT", help="of each message")
    arguments = parser.parse_args()
    everything: list[Figures] = []
    print(" ".join(f"{name:>12}" if name == "lost" else f"{name:>8}" for name in HEAD))
    shorts: list[str] = []
    for row, runs, wrong in table(arguments.members, [loss / 100 for loss in arguments.loss], arguments.seed):
        print(" ".join(f"{cell:>12}" if place == 1 else f"{cell:>8}" for place, cell in enumerate(row)), flush=True)
        everything += runs
        if wrong:
            shorts.append(wrong)
            print(f"storm: {wrong}", file=sys.stderr)
    missing, lost = sum(run.missing for run in everything), sum(run.lost for run in everything)
    requests, repairs = sum(run.requests for run in everything), sum(run.repairs for run in everything)
    print(
        f"storm: seed {arguments.seed}, {len(everything)} runs, {lost} pairs lost, {requests / lost:.2f} requests and "
        f"{repairs / lost:.2f} repairs a pair, {missing} never repaired, {len(shorts)} rows fell short"
    )
    return 1 if shorts else 0


if __name__ == "__main__":
    sys.exit(main())
