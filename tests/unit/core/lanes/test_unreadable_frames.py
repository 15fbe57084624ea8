"""Tests of frames that a disk cannot read: another gateway is asked, and no lane waits for a member that lacks them."""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_group import Gateway, Group, answers, arrive, members
from tutti.data.client_protocol import Committed
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LaneRead, StackConfig
from tutti_gateway.core.protocol.messages import LaneFetch, LaneFetched, LaneMessage

PERIOD = StackConfig().atomic_period_heartbeats
CATCH_UP = 2 * (PERIOD + limits.LANE_WAIT_HEARTBEATS + limits.RESEND_HEARTBEATS + limits.LANE_ENDS_HEARTBEATS)


class Unreadable(Group):
    """Some gateways' disks give nothing back.

    Attributes:
        asked: how many LaneFetch were sent.
    """

    def __init__(self, *unreadable: int) -> None:
        self.unreadable = unreadable
        self.asked = 0
        super().__init__(3)

    def sent(self, gateway: Gateway, message: LaneMessage) -> None:
        self.asked += isinstance(message, LaneFetch)
        super().sent(gateway, message)

    def read(self, number: int) -> None:
        if number not in self.unreadable:
            super().read(number)
            return
        gateway = self[number]
        assert gateway.layer is not None
        gateway.layer.read(LaneRead(gateway.reads.pop(0).token, ()))
        self.carry_out(number)


def behind(*unreadable: int) -> Unreadable:
    """A group whose third gateway is down and lacks three batches of the first one's lane."""
    made = Unreadable(*unreadable)
    made.settle(20)
    made.crash(3)
    made.settle(12)
    for sequence in (1, 2, 3):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    assert len(answers(made, 1)) == 3
    return made


@pytest.mark.parametrize("beats", [0, 1, 2, 3])
def test_a_source_that_cannot_read_is_passed_over_for_one_that_can(beats: int) -> None:
    """Whichever of them reports more first, and for any timing of their messages."""
    made = behind(1)
    for _ in range(beats):
        made.beat(2)
    made.start(3)
    made.settle(CATCH_UP)
    assert made.lane(3, made[1].key) == [b"1", b"2", b"3"]
    made.submit(1, (1, 4, b"4"))
    made.settle()
    assert members(made, 1) == (1, 2, 3)
    assert made.lane(3, made[1].key)[3:] == [b"4"]


def test_a_lane_continues_without_a_member_whose_frames_are_lost_and_readmits_it_when_a_source_appears() -> None:
    made = behind(1)
    made.crash(1)
    made.crash(2)
    made.start(1)
    made.start(3)
    made.settle()
    made.submit(1, (1, 4, b"4"))
    made.settle(limits.LANE_WAIT_HEARTBEATS + PERIOD + 1)
    assert [type(answer) for answer in answers(made, 1)] == [Committed]
    assert made.lane(3, made[1].key) == []
    told = len(made.suspects)
    assert any(suspect.member == 3 and "the lane continues without it" in suspect.reason for suspect in made.suspects)
    made.settle(10 * PERIOD)
    assert members(made, 1) == (1,)
    assert len(made.suspects) == told  # it holds nobody up any more
    made.submit(1, (1, 5, b"5"))
    made.settle()
    assert [type(answer) for answer in answers(made, 1)] == [Committed]
    made.unreadable = ()
    made.settle(CATCH_UP)
    assert members(made, 1) == (1, 3)
    assert made.lane(3, made[1].key) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_slow_sole_source_is_asked_again() -> None:
    """There is no other source, and an answer may have been lost."""
    made = behind()
    made.crash(2)
    made.start(3)
    for _ in range(2 * limits.RESEND_HEARTBEATS):
        made.settle(0)
        for number in (1, 3):
            made.tell(number)
            made.beat(number)
        arrive(made, lambda sender, to, message: not isinstance(message, LaneFetch))
    assert made.lane(3, made[1].key) == []
    made.settle(limits.RESEND_HEARTBEATS + 1)
    assert made.lane(3, made[1].key) == [b"1", b"2", b"3"]


def test_an_empty_answer_is_no_reason_to_ask_again_at_once() -> None:
    """Otherwise that gateway would be asked at the speed of the network."""
    made = behind(1)
    made.crash(2)
    made.start(3)
    while not made.asked:
        made.settle()
    asked, layer = made.asked, made[3].layer
    assert layer is not None
    for _ in range(3):
        layer.on_message(1, LaneFetched(*made[1].key, ()))
        made.carry_out(3)
    assert made.asked == asked
