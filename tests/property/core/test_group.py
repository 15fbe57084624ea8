"""Properties of groups of one and three under random disks, networks and clients: C1, C2, C4 and the list of design, section 9
hold, the group continues when the faults stop, and a recorded run replays to equal actions.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.core.checker import check
from tests.property.core.clients import Client
from tests.transcripts.group import Group, Member, replay
from tutti.data.client_protocol import Done
from tutti.data.frames.bodies import OffsetsBody, decode_body
from tutti.data.frames.frame import Kind
from tutti.data.view_id import coordinator_of, counter_of, view_of
from tutti_gateway.core import limits
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.events import ForgetAsked, OffsetsAsked, SessionClosed, SpaceChanged, StackConfig
from tutti_gateway.core.protocol.messages import Forward, Order

NAMES = ["g1", "g2", "g3"]
VIEW = 1 << 16 | 1
CLIENTS = 3
#: Small bounds, so that they are met.
CONFIG = StackConfig(undecided_bytes_max=3000, producers_max=5, tick_interval_us=400_000)


class Run:
    """A group, its clients, and the moves of one example. A move takes two numbers and does what they choose."""

    def __init__(self, alone: bool) -> None:
        self.group = Group(CONFIG)
        self.alone = alone
        self.tampered = False
        self.view = VIEW
        if alone:
            self.group.start_alone("g1")
        else:
            self.group.start_group(NAMES, VIEW)
        self.names = list(self.group.members)
        self.group.settle()
        self.clients = [Client(f"p{number}", number, self.group, self._name(number)) for number in range(CLIENTS)]
        self._read: dict[str, int] = {}
        self.asking = 1_000_000  # far above those of clients: the session that asks for offset commits and forgetting
        self.commits: dict[int, tuple[int, str, int]] = {}  # request -> (gateway's number, reader, offset)
        for client in self.clients:
            client.connect(client.gateway)
        self.group.settle()
        self.answers()

    def _name(self, number: int) -> str:
        return self.names[number % len(self.names)]

    def answers(self) -> None:
        """Deliver the answers to the clients."""
        for name in self.names:
            member = self.group.members[name]
            for session, answer in member.replies[self._read.get(name, 0) :]:
                for client in self.clients:
                    if session == client.session and name == client.gateway:
                        client.on(answer)
            self._read[name] = len(member.replies)

    # Moves

    def produce(self, a: int, b: int) -> None:
        self.clients[a % CLIENTS].produce([1 + b % 3] * (1 + b % 4))

    def stage(self, a: int, b: int) -> None:
        self.clients[a % CLIENTS].produce([1 + b % 3] * (1 + b % 4), staged=True)

    def transact(self, a: int, b: int) -> None:
        """Commit recently staged batches: from any producer, perhaps for the second time, or of an ended epoch."""
        offers = [offer for client in self.clients for offer in client.offers[-3:]]
        if offers:
            first = b % len(offers)
            self.clients[a % CLIENTS].transact(offers[first : first + 1 + b % 2])

    def retry(self, a: int, b: int) -> None:
        self.clients[a % CLIENTS].retry()

    def gap(self, a: int, b: int) -> None:
        client = self.clients[a % CLIENTS]
        if client.open:
            client.send(0, leave_out=b % 3)

    def cut(self, a: int, b: int) -> None:
        client = self.clients[a % CLIENTS]
        if client.open and client.unanswered:
            sequences = list(client.unanswered)
            client.cuts = [sequences[b % len(sequences)]]
            client.send(0)

    def move(self, a: int, b: int) -> None:
        self.clients[a % CLIENTS].connect(self._name(b))

    def newer(self, a: int, b: int) -> None:
        client = self.clients[a % CLIENTS]
        client.instance += 1
        client.asked_epoch = client.epoch + 1
        client.open = False
        client.ask()

    def disk(self, a: int, b: int) -> None:
        member = self.group.members[self._name(a)]
        if member.persists:
            self.group.persisted(member, member.persists[b % len(member.persists)].token)

    def deliver(self, a: int, b: int) -> None:
        if self.group.network:
            self.group.deliver((a << 8 | b) % len(self.group.network))

    def in_order(self, a: int, b: int) -> None:
        for _ in range(min(1 + a % 8, len(self.group.network))):
            self.group.deliver(0)

    def lose(self, a: int, b: int) -> None:
        if self.group.network:
            self.group.network.pop((a << 8 | b) % len(self.group.network))

    def damage(self, a: int, b: int) -> None:
        """A message arrives with another body than was sent."""
        if not self.group.network:
            return
        sender, to, data = self.group.network.pop((a << 8 | b) % len(self.group.network))
        message = codec.decode_message(data)
        if isinstance(message, Forward | Order):
            body = bytes(message.frames[b % len(message.frames)].body)
            data = data.replace(body, b"?" * len(body), 1)
        self.group.hand_over(sender, to, data)

    def twice(self, a: int, b: int) -> None:
        if self.group.network:
            self.group.hand_over(*self.group.network[(a << 8 | b) % len(self.group.network)])

    def time(self, a: int, b: int) -> None:
        self.group.advance((1 + a % 4) * 100_000)

    def space(self, a: int, b: int) -> None:
        low = bool(b % 2)
        self.group.step(self.group.members[self._name(a)], SpaceChanged(low, "little is free" if low else ""))

    def decline(self, a: int, b: int) -> None:
        """Let the member vote NO on the frames of this move, as if its disk ran low after its last check."""
        client = self.clients[a % CLIENTS]
        atomic = client.member.stack.layers.atomic
        low, atomic._low = atomic._low, "it filled up"
        self.produce(a, b)
        atomic._low = low
        self.tampered = True

    def requests(self, a: int, b: int) -> None:
        member = self.group.members[self._name(a)]
        if b % 4 == 0:
            self.group.step(member, ForgetAsked(self.asking, 1, (self.clients[b % CLIENTS].name,)))
        elif b % 16 == 1:
            self.group.step(member, SessionClosed(self.asking))
            self.asking += 1
        else:
            self._commit(member, f"reader{b % 2}", b % (1 + member.stack.decided.next_offset), back=a % 2 == 0)

    def back(self, a: int, b: int) -> None:
        """Move a reader to the end and then back, perhaps before any of it is decided."""
        member, reader = self.group.members[self._name(a)], f"reader{b % 2}"
        decided = member.stack.decided
        was = decided.readers.get(reader, 0)
        self._commit(member, reader, decided.next_offset)
        self._commit(member, reader, was, back=True)

    def _commit(self, member: Member, reader: str, offset: int, back: bool = False) -> None:
        request = 2 + len(self.commits)
        self.commits[request] = member.stack.layers.context.view_state.me, reader, offset
        self.group.step(member, OffsetsAsked(self.asking, request, reader, offset, back))

    def again(self, a: int, b: int) -> None:
        """Advance the time without a message until everything is sent again."""
        self.group.advance(limits.RESEND_HEARTBEATS * limits.HEARTBEAT_US)

    def check_commits(self) -> None:
        """An offset commit is in the log when it is answered, and once at most, however often it was sent."""
        for member in self.group.members.values():
            found = Counter(
                (frame.origin, reader, offset)
                for frame, _, _ in member.delivered
                if frame.kind == Kind.OFFSETS
                for reader, offset in decode_body(OffsetsBody, frame.body).readers.items()
            )
            assert found <= Counter(self.commits.values()), "an offset commit was ordered again"
            logged = {(reader, offset) for _, reader, offset in found}
            for session, answer in member.replies:
                if session >= 1000 and isinstance(answer, Done) and answer.request in self.commits:
                    assert self.commits[answer.request][1:] in logged, "an offset commit was answered and is not in the log"

    def change(self, a: int, b: int) -> None:
        """End the view, and begin another one with any coordinator; messages in flight may be late, or lost."""
        members = list(self.group.members.values())
        if self.alone:
            return
        self._repair()
        if any(member.stack.layers.atomic._deferred for member in members):
            return  # what a member could not take when a view ends is for the view change to settle, which is given here
        self.view = view_of(counter_of(self.view) + 1, 1 + b % len(NAMES))
        if a % 2:
            self.group.network.clear()
        self.group.give_view(self.view)

    def restart(self, a: int, b: int) -> None:
        """Kill the member: unsynced writes may be lost, and the watermark may be old."""
        if not self.alone:
            return
        old = self.group.members["g1"]
        self.replay()
        keep = old.durable + b % (1 + len(old.log) - old.durable)
        watermark = old.runs[-1 - a % len(old.runs)]
        self.group.restart("g1", watermark, keep)
        self._read = {}
        self.tampered = False
        self.group.settle()
        for client in self.clients:
            client.connect("g1")

    def replay(self) -> None:
        """The same events again make the same actions, unless the test reached into the stack."""
        if self.alone and not self.tampered:
            replay(self.group.members["g1"], CONFIG)

    def heal(self) -> None:
        """The faults stop; what repair will do is done by hand."""
        for name in self.names:
            self.group.step(self.group.members[name], SpaceChanged(False, ""))
        for _ in range(30):
            self.group.settle()
            self._repair()
            self.group.settle()
            self.answers()
            for client in self.clients:
                client.retry()
            self.group.settle()
            self.answers()
            self.group.advance(200_000)

    def _repair(self) -> None:
        head = self.group.members[self.names[coordinator_of(self.view) - 1]]
        for member in self.group.members.values():
            missing = head.log[member.stack.layers.context.window.end :]
            if missing and member is not head:
                self.group.hand_over(head, member, codec.encode(Order(self.view, tuple(missing))))


MOVES = {
    "produce": (Run.produce, 6),
    "stage": (Run.stage, 3),
    "transact": (Run.transact, 4),
    "in_order": (Run.in_order, 6),
    "disk": (Run.disk, 6),
    "deliver": (Run.deliver, 3),
    "time": (Run.time, 2),
    "retry": (Run.retry, 2),
    "lose": (Run.lose, 1),
    "twice": (Run.twice, 1),
    "damage": (Run.damage, 1),
    "gap": (Run.gap, 1),
    "cut": (Run.cut, 1),
    "move": (Run.move, 1),
    "newer": (Run.newer, 1),
    "space": (Run.space, 1),
    "decline": (Run.decline, 1),
    "requests": (Run.requests, 1),
    "back": (Run.back, 1),
    "again": (Run.again, 2),
    "restart": (Run.restart, 1),
    "change": (Run.change, 1),
}
moves = st.lists(
    st.tuples(
        st.sampled_from([name for name, (_, weight) in MOVES.items() for _ in range(weight)]),
        st.integers(0, 255),
        st.integers(0, 255),
    ),
    min_size=30,
    max_size=120,
)


def play(run: Run, chosen: list[tuple[str, int, int]]) -> None:
    for name, a, b in chosen:
        MOVES[name][0](run, a, b)
        run.answers()
        check(run.group, run.clients)
        run.check_commits()
    run.heal()
    check(run.group, run.clients)
    run.check_commits()
    for client in run.clients:
        assert client.open, f"{client.name} did not get its epoch though the faults stopped"
        assert not client.unanswered, f"{client.name} has no outcome for {client.unanswered}"
    for member in run.group.members.values():
        assert member.stack.layers.order.quiet, f"somebody waits at {member.name} though the faults stopped"


@settings(max_examples=150)
@given(moves)
def test_one_member_keeps_the_contract(chosen: list[tuple[str, int, int]]) -> None:
    run = Run(alone=True)
    play(run, chosen)
    run.replay()


@settings(max_examples=60)
@given(moves)
def test_three_members_keep_the_contract(chosen: list[tuple[str, int, int]]) -> None:
    play(Run(alone=False), chosen)


@pytest.mark.slow
@settings(max_examples=250)
@given(moves)
def test_three_members_keep_the_contract_in_more_examples(chosen: list[tuple[str, int, int]]) -> None:
    play(Run(alone=False), chosen)
