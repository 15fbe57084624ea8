"""Proves that each checker of the simulator fires: every promise is broken once on purpose."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.sim.gateways import Process
from tests.sim.options import Options
from tests.sim.violation import Violation
from tests.sim.world import World
from tutti.data.client_protocol import AbortedAnswer, Committed, Duplicate
from tutti.data.frames.bodies import EpochBody, RosterBody, TopicBody, ViewBody, Voter, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.actions import Deliver, Reply, ViewInstalled
from tutti_gateway.core.protocol.events import Identity, Now, Recovered, Started
from tutti_gateway.core.protocol.messages import Confirm, Heartbeat, Install, Installed, Message, Order, Propose, State, Vote
from tutti_gateway.core.stack import Stack

VIEW = 1 << 16 | 1
VIEW_2 = 2 << 16 | 2
DISKS = {number: gateway.incarnation for number, gateway in enumerate(World(Options(1)).gateways.values(), 1)}


def log_of(bodies: list[Frame], view: int = VIEW, after: Frame | None = None) -> list[Frame]:
    for frame in bodies:
        frame.stamp(view, after.position + 1 if after else 1, after.header_crc if after else 0)
        after = frame
    return bodies


def batch(tokens: str, first: int, epoch: int = 1) -> Frame:
    count = tokens.count(",") + 1
    return Frame(Kind.BATCH, tokens.encode(), producer=1, epoch=epoch, first_sequence=first, count=count, topic=1)


def epoch(number: int) -> Frame:
    return Frame(Kind.EPOCH, encode_body(EpochBody("p", b"i" * 16, 0, b"")), producer=1, epoch=number)


def beginning() -> list[Frame]:
    voters = tuple(Voter(number, f"g{number}", DISKS[number], "") for number in (1, 2, 3))
    return [
        Frame(Kind.ROSTER, encode_body(RosterBody("sim", b"log", voters))),
        Frame(Kind.VIEW, encode_body(ViewBody((1, 2, 3)))),
        Frame(Kind.TOPIC, encode_body(TopicBody("topic")), topic=1),
        epoch(1),
    ]


class Three:
    """Three members in a view; their disks hold the frames, nothing is shown yet."""

    def __init__(self, frames: list[Frame], members: tuple[int, ...] = (1, 2, 3)) -> None:
        self.world = World(Options(1))
        self.checks, self.log = self.world.checks, self.world.log
        self.frames = frames
        self.processes = []
        for gateway in self.world.gateways.values():
            disk = gateway.disk
            disk.frames, disk.durable, disk.scalars = list(frames), len(frames), HardState(VIEW, VIEW, VIEW)
            process = gateway.process = Process(gateway, self.world.options.config)
            process.view = ViewInstalled(VIEW, members, 1, True)
            self.checks.installed(process, process.view)
            self.processes.append(process)
        self.one, self.two, self.three = self.processes

    def deliver(self, process: Process, last: int, void: frozenset[int] = frozenset()) -> None:
        run = self.frames[process.frontier : last]
        offsets = [0]
        for frame in self.frames[:last]:
            offsets.append(offsets[-1] + (0 if frame.position in void else frame.count))
        self.checks.delivered(process, Deliver(tuple(run), tuple(offsets[process.frontier : -1]), void, offsets[-1]))
        process.frontier = process.gateway.frontier = last

    def send(self, process: Process, message: Message) -> None:
        self.checks.sent(process, 1, message)


def whole() -> Three:
    group = Three(log_of([*beginning(), batch("a-1,a-2", 1), batch("a-3", 3)]))
    group.deliver(group.one, 6)
    return group


def test_a_good_run_passes() -> None:
    group = whole()
    group.send(group.one, Confirm(VIEW, 6))
    group.deliver(group.two, 6)
    group.send(group.two, Vote(VIEW, 6))
    group.checks.replied(group.two, Reply(1, (Committed(1, 1, 1, 2, 0), Duplicate(1, 1, 3, 1))))
    assert group.log.end == 6


def decide(*frames: Frame) -> None:
    group = Three(log_of([*beginning(), *frames]))
    group.deliver(group.one, len(group.frames))


def decided_twice() -> None:
    """Another frame where others had one."""
    group = whole()
    group.frames = log_of([*beginning(), batch("b-1,b-2", 1), batch("b-3", 3)])
    group.deliver(group.two, 6)


def void_here_only() -> None:
    group = whole()
    group.deliver(group.two, 6, frozenset({6}))


def gap_in_positions() -> None:
    group = whole()
    group.two.frontier = 1
    group.checks.delivered(group.two, Deliver(tuple(group.frames[2:4]), (0, 0), frozenset(), 0))


def delivered_before_durable() -> None:
    group = whole()
    group.two.gateway.disk.durable = 5
    group.deliver(group.two, 6)


def decided_without_a_member() -> None:
    group = Three(log_of(beginning()))
    group.three.gateway.disk.durable = 3
    group.deliver(group.one, 4)


def decided_over_another_frame() -> None:
    group = Three(log_of(beginning()))
    group.three.gateway.disk.frames = log_of(beginning(), view=VIEW + 1)
    group.deliver(group.one, 4)


def decided_by_a_minority() -> None:
    group = Three(log_of(beginning()), members=(1,))
    group.deliver(group.one, 2)
    group.deliver(group.one, 4)


def decided_by_another_disk() -> None:
    """Two of three members have other disks than those that the roster counts."""
    group = Three(log_of(beginning()))
    for process in (group.two, group.three):
        process.gateway.incarnation = b"another disk    "
        assert process.view is not None
        group.checks.installed(process, process.view)
    group.deliver(group.one, 2)
    group.deliver(group.one, 4)


def decided_by_a_member() -> None:
    group = Three(log_of(beginning()))
    group.deliver(group.two, 4)


def decided_in_an_old_view() -> None:
    group = whole()
    group.log.add("g1", log_of([batch("a-4", 4)], VIEW_2, group.frames[-1])[0], 3, False, VIEW_2)
    group.frames = [place.frame for place in group.log.places]
    group.log.add("g1", log_of([batch("a-5", 5)], VIEW_2, group.frames[-1])[0], 4, False, VIEW)


def confirmed_after_a_higher_promise() -> None:
    group = whole()
    group.one.gateway.disk.scalars = HardState(VIEW_2, VIEW, VIEW)
    group.send(group.one, Confirm(VIEW, 6))


def confirmed_by_another() -> None:
    group = whole()
    group.send(group.two, Confirm(VIEW, 6))


def confirmed_before_all_have_it() -> None:
    group = Three(log_of(beginning()))
    group.two.gateway.disk.durable = 2
    group.send(group.one, Confirm(VIEW, 4))


def voted_before_synced() -> None:
    group = whole()
    group.two.gateway.disk.durable = 5
    group.send(group.two, Vote(VIEW, 6))


def voted_for_an_old_view() -> None:
    group = whole()
    group.two.gateway.disk.scalars = HardState(VIEW_2, VIEW, 0)
    group.send(group.two, Vote(VIEW, 6))


def ordered_by_another() -> None:
    group = whole()
    group.send(group.two, Order(VIEW, ()))


def proposed_twice() -> None:
    group = whole()
    group.send(group.one, Propose(VIEW, (1, 2)))
    group.send(group.one, Propose(VIEW, (1, 3)))


def proposed_before_promised() -> None:
    group = whole()
    group.send(group.one, Propose(3 << 16 | 1, (1, 2)))


def state_before_promised() -> None:
    group = whole()
    group.send(group.two, State(view=VIEW_2, accepted=VIEW, end=6, chain=0, base=0, table=(), frontier=0))


def state_beyond_durable() -> None:
    group = whole()
    group.send(group.two, State(view=VIEW, accepted=VIEW, end=7, chain=0, base=0, table=(), frontier=0))


def installed_by_another() -> None:
    group = whole()
    group.send(group.two, Install(view=VIEW, members=(1, 2), end=6, chain=0, base=0, table=()))


def installed_before_accepted() -> None:
    group = whole()
    group.send(group.two, Installed(VIEW_2))


def one_view_of_two_groups() -> None:
    group = whole()
    group.checks.installed(group.two, ViewInstalled(VIEW, (1, 2), 1, False))


def heartbeat_beyond_the_disk() -> None:
    group = whole()
    group.send(group.one, Heartbeat(sent_us=1, watermark=6))


def written_twice() -> None:
    group = whole()
    group.checks.written(group.one.gateway.disk, tuple(group.frames))
    group.checks.written(group.two.gateway.disk, tuple(log_of([*beginning(), batch("b-1,b-2", 1)])))


def cut_below_the_frontier() -> None:
    group = whole()
    group.checks.cut(group.one.gateway.disk, 5)


def cut_what_others_decided() -> None:
    group = whole()
    group.checks.cut(group.two.gateway.disk, 5)


def scalars_go_back() -> None:
    group = whole()
    group.checks.scalars_written(group.one.gateway.disk, HardState(VIEW - 1, VIEW - 1, 0))


def accepted_without_a_promise() -> None:
    group = whole()
    group.checks.scalars_written(group.one.gateway.disk, HardState(VIEW, VIEW_2, VIEW))


def started_beyond_what_was_shown() -> None:
    group = whole()
    group.checks.started(group.two.gateway, Recovered(b"", HardState(), LogState(position=3), ()))


def acknowledged_before_decided() -> None:
    group = whole()
    group.checks.replied(group.two, Reply(1, (Committed(1, 1, 1, 2, 0),)))


def duplicate_before_decided() -> None:
    group = whole()
    group.checks.replied(group.one, Reply(1, (Duplicate(1, 1, 3, 2),)))


def acknowledged_at_another_offset() -> None:
    group = whole()
    group.checks.replied(group.one, Reply(1, (Committed(1, 1, 1, 2, 1),)))


def aborted_and_the_epoch_goes_on() -> None:
    group = whole()
    group.checks.replied(group.one, Reply(1, (AbortedAnswer(1, 1, 4, 1, "no space"),)))


def aborted_and_decided() -> None:
    group = Three(log_of([*beginning(), batch("a-1", 1)]))
    group.log.told_aborted("a-1")
    group.deliver(group.one, 5)


def aborted_after_decided() -> None:
    whole().log.told_aborted("a-3")


def committed_and_missing() -> None:
    whole().log.told_committed("a-4", 3)


def overtook_an_acknowledged_one() -> None:
    group = Three(log_of([*beginning(), batch("a-1", 1)]))
    group.log.acknowledged = 0
    group.log.sent("a-1")
    group.deliver(group.one, 5)


def logs_differ_at_the_end() -> None:
    group = whole()
    group.one.gateway.disk.frames[5] = log_of([batch("b-3", 3)], VIEW, group.frames[4])[0]
    group.checks.whole()


def never_lets_go() -> None:
    group = Three(log_of(beginning()))
    group.deliver(group.one, 4)
    process = group.one
    stack = Stack(Random)
    process.stack = stack
    identity = Identity("g1", DISKS[1], "sim", {"g1": "g1:7400"})
    stack.step(Started(identity, b"e" * 16, Recovered(b"", HardState(), LogState(), ())), Now(0, 0))
    stack.layers.changes._waiting = [None] * 1000  # type: ignore[list-item]  # whatever it is, it is too much of it
    group.checks.whole()


BROKEN: list[Callable[[], None]] = [
    decided_twice,
    void_here_only,
    gap_in_positions,
    delivered_before_durable,
    decided_without_a_member,
    decided_over_another_frame,
    decided_by_a_minority,
    decided_by_another_disk,
    decided_by_a_member,
    decided_in_an_old_view,
    confirmed_after_a_higher_promise,
    confirmed_by_another,
    confirmed_before_all_have_it,
    voted_before_synced,
    voted_for_an_old_view,
    ordered_by_another,
    proposed_twice,
    proposed_before_promised,
    state_before_promised,
    state_beyond_durable,
    installed_by_another,
    installed_before_accepted,
    one_view_of_two_groups,
    heartbeat_beyond_the_disk,
    written_twice,
    cut_below_the_frontier,
    cut_what_others_decided,
    scalars_go_back,
    accepted_without_a_promise,
    started_beyond_what_was_shown,
    acknowledged_before_decided,
    duplicate_before_decided,
    acknowledged_at_another_offset,
    aborted_and_the_epoch_goes_on,
    aborted_and_decided,
    aborted_after_decided,
    committed_and_missing,
    overtook_an_acknowledged_one,
    logs_differ_at_the_end,
    never_lets_go,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_promise_is_found(broken: Callable[[], None]) -> None:
    with pytest.raises(Violation):
        broken()


@pytest.mark.parametrize(
    ("frames", "word"),
    [
        ([batch("a-1", 2)], "gap"),
        ([batch("a-1", 1), batch("a-2", 1)], "duplicate"),
        ([batch("a-1", 1), batch("a-1", 2)], "again"),
        ([batch("a-2", 1), batch("a-1", 2)], "sent later"),
        ([batch("a-1", 1, epoch=2)], "epoch"),
        ([epoch(1)], "epoch"),
    ],
)
def test_an_invalid_log_is_found(frames: list[Frame], word: str) -> None:
    with pytest.raises(Violation, match=word):
        decide(*frames)
