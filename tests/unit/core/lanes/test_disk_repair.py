"""Tests of the repair of lane frames that a disk lost, also of its own lane: one gateway after another is asked until the repair is
complete.
"""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_group import Group, group, under_way
from tutti.data.frames.frame import Frame
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import RepairLane
from tutti_gateway.core.protocol.events import LaneCorrupt
from tutti_gateway.core.protocol.messages import LaneFetch, LaneFetched


def sent(batches: int = 3) -> Group:
    """Three gateways; the first one's lane has a VIEW and some batches, decided and known everywhere."""
    made = group()
    for sequence in range(1, batches + 1):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    made.settle(limits.LANE_ENDS_HEARTBEATS)
    return made


def lose(made: Group, number: int, first: int, last: int) -> None:
    """Report a loss of the first one's lane from the disk of a gateway."""
    layer = made[number].layer
    assert layer is not None
    layer.on_corrupt(LaneCorrupt(*made[1].key, first, last))
    made.carry_out(number)


def bodies(frames: tuple[Frame, ...]) -> list[bytes]:
    return [bytes(frame.body) for frame in frames]


@pytest.mark.parametrize("number", [1, 3])
def test_lost_frames_are_fetched_and_written_in_place(number: int) -> None:
    made = sent()
    lose(made, number, 2, 3)
    made.settle(limits.RESEND_HEARTBEATS)
    (mend,) = made[number].mends
    assert bodies(mend.frames)[0] == b"1"
    assert len(mend.frames) <= 2  # and no more than is lost, whatever the source gives
    lose(made, number, 0, 0)
    made.settle(2 * limits.REPAIR_WAIT_HEARTBEATS)
    assert len(made[number].mends) == 1


def test_a_source_that_sends_nothing_or_other_frames_is_skipped() -> None:
    made = sent()
    del made[1].disks[made[1].key].frames[1:]
    lose(made, 3, 2, 4)
    while not made[3].mends:
        made.settle()
    lose(made, 3, 2, 4)  # what came was not what stood there
    asked = len(under_way(made, LaneFetch))
    assert asked == 0  # nobody else is left
    made.settle(limits.REPAIR_WAIT_HEARTBEATS + 2 * limits.RESEND_HEARTBEATS)
    assert len(made[3].mends) > 1


def test_a_gateway_alone_sends_no_requests() -> None:
    made = sent()
    for number in (2, 3):
        made.crash(number)
    made.settle()
    lose(made, 1, 2, 2)
    made.settle(2 * limits.REPAIR_WAIT_HEARTBEATS)
    assert not under_way(made, LaneFetch)
    made.start(2)
    made.settle(limits.LANE_ENDS_HEARTBEATS + limits.RESEND_HEARTBEATS)
    assert made[1].mends


def test_frames_that_do_not_continue_each_other_are_not_written() -> None:
    made = sent()
    lose(made, 3, 2, 4)
    layer, frames = made[3].layer, made[2].disks[made[1].key].frames
    assert layer is not None
    (asked,) = {to for _, to, message in made.network if isinstance(message, LaneFetch)}
    layer.on_message(asked, LaneFetched(*made[1].key, (frames[1], frames[3])))
    made.carry_out(3)
    assert made[3].mends == [RepairLane(*made[1].key, (frames[1],))]


@pytest.mark.parametrize("late", [1, 4, 8, 3 * limits.REPAIR_WAIT_HEARTBEATS])
def test_an_answer_is_accepted_however_many_heartbeats_it_needs(late: int) -> None:
    made = sent()
    lose(made, 3, 2, 3)
    asked: list[tuple[int, int]] = []  # when, and whom
    for now in range(8 * limits.REPAIR_WAIT_HEARTBEATS):
        asked += [(now, to) for sender, to, message in made.network if sender == 3 and isinstance(message, LaneFetch)]
        made.network.clear()
        if made[3].mends:
            break
        for when, source in asked:
            if now == when + late:
                answer(made, source)
        made.beat(3)
    assert [bodies(mend.frames) for mend in made[3].mends] == [[b"1", b"2"]]


def answer(made: Group, source: int) -> None:
    """Deliver a gateway's answer to the request for what the third one lost."""
    layer = made[3].layer
    assert layer is not None
    layer.on_message(source, LaneFetched(*made[1].key, tuple(made[source].disks[made[1].key].frames[1:3])))
    made.carry_out(3)
