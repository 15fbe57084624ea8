"""Tests of a lane that cannot be completed: it reports which gateways have which part of its end, and what an operator can do."""

from __future__ import annotations

import pytest

from tests.unit.core.lanes.lane_group import Group, answers, arrive, beats, group, halted
from tutti.data.client_protocol import RefusedAnswer
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.messages import LaneFetched, Settled

_LONG = 4 * limits.LANE_WAIT_HEARTBEATS


def alone_since(first: int, *, also: int = 0) -> Group:
    """Gateways 1 and 2 acknowledge record 2, and gateway 2 dies before it hears that it is decided. Gateway 1 acknowledges two more
    records alone, then its disk loses its lane from a position on. Gateway 2 is back; `also` starts gateway 3 with it.

    The lane: 1 VIEW of all, 2 VIEW of 1 and 2, 3 record 1, 4 record 2, 5 VIEW of 1 alone, 6 and 7 records 3 and 4.
    """
    made = group()
    made.vote()
    made.crash(3)
    made.settle(_LONG)
    made.submit(1, (1, 1, b"1"))
    made.settle()
    made.submit(1, (1, 2, b"2"))
    arrive(made, lambda _sender, _to, message: not isinstance(message, Settled))
    made.crash(2)
    made.settle(_LONG)
    for sequence in (3, 4):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    key = made[1].key
    assert [frame.view for frame in made[1].disks[key].frames] == [1, 2, 2, 2, 3, 3, 3]
    assert len(made[2].disks[key].frames) == 4
    made.crash(1)
    made.network.clear()
    made[1].disks[key].lose(first, 7)
    made[1].answers.clear()
    made.suspects.clear()
    made.start(1)
    made.start(2)
    if also:
        made.start(also)
    made.settle(_LONG)
    return made


@pytest.mark.parametrize("first", [3, 4])
def test_an_end_that_only_the_lost_disk_could_decide_is_reported_with_its_holders(first: int) -> None:
    made = alone_since(first)
    assert "position 4 of 7 is at no gateway that has answered (gateway 2 holds position 4 undecided" in halted(made)
    assert halted(made).endswith("it waits for gateway 3")
    assert not made.suspects
    made.start(3)
    made.settle(_LONG)
    name = f"1-{made[1].key[1].hex()}"
    assert "position 4 of 7 is at no other gateway (gateway 2 holds position 4 undecided" in halted(made)
    assert f"`tutti log inspect DIR/lanes/{name}` lists the frames there as pending" in halted(made)
    assert "members remove" in halted(made)
    assert "is fetched" not in halted(made)
    assert [one.member for one in made.suspects] == [1], "the log says it once"
    made.submit(1, (1, 2, b"2"))
    (refused,) = answers(made, 1)
    assert isinstance(refused, RefusedAnswer)
    assert (refused.code, refused.retry) == ("lane", True)
    assert "gateway 2 holds position 4 undecided" in refused.reason
    assert made.lane(1, made[1].key) == [b"1"], "what gateway 2 knows as decided is here again"


def test_an_end_that_got_a_no_is_not_named() -> None:
    """The later attempt still exists, so gateway 2's frame at that position was never decided."""
    made = alone_since(6, also=3)
    assert "position 6 of 7 is at no other gateway; if it cannot be restored" in halted(made)
    assert "gateway 2 holds" not in halted(made)


def test_frames_another_gateway_knows_as_decided_come_back() -> None:
    """Gateway 3 learned all of it from gateway 1: it gives it, and what gateway 2 holds is decided with it."""
    made = alone_since(4)
    key = made[1].key
    source = made[1].disks[key]
    frames = [made.decided[key, position] for position in range(1, 8)]
    made[3].disks[key] = type(source)(frames=frames, attempt=3, delivered=7)
    made.start(3)
    made.settle(_LONG)
    assert halted(made) == ""
    assert made.lane(1, key) == made.lane(2, key) == [b"1", b"2", b"3", b"4"]


def test_a_gateway_that_has_it_and_is_away_is_waited_for() -> None:
    made = alone_since(4)
    key = made[1].key
    frames = [made.decided[key, position] for position in range(1, 8)]
    made[3].disks[key] = type(made[1].disks[key])(frames=frames, attempt=3, delivered=7)
    made.start(3)
    beats(made, _LONG, LaneFetched, sender=3)
    assert "gateway 3 has position 4 of 7 but cannot read it: see `damaged` in `lanes` of its status" in halted(made)
    made.crash(3)
    made.settle(_LONG)
    assert halted(made).endswith("it waits for gateway 3, which has position 4 of 7")
    made.start(3)
    made.settle(_LONG)
    assert halted(made) == ""


def test_requested_frames_are_reported_as_being_fetched() -> None:
    made = alone_since(4)
    key = made[1].key
    frames = [made.decided[key, position] for position in range(1, 8)]
    made[3].disks[key] = type(made[1].disks[key])(frames=frames, attempt=3, delivered=7)
    made.start(3)
    beats(made, 2, LaneFetched, sender=3)
    assert "position 4 of 7 is fetched from gateway 3" in halted(made)


def test_frames_decided_at_any_gateway_come_before_the_last_attempt_continues() -> None:
    """The copy of the only other member lost its end, and gateway 3, not a member, has it: no other frame takes its position."""
    made = group()
    made.vote()
    made.crash(3)
    made.settle(_LONG)
    for sequence in (1, 2, 3):
        made.submit(1, (1, sequence, b"%d" % sequence))
        made.settle()
    key = made[1].key
    made.crash(1)
    made.start(3)
    made.settle(_LONG)
    assert made.lane(3, key) == [b"1", b"2", b"3"]
    made.crash(2)
    copy = made[2].disks[key]
    del copy.frames[-2:]
    copy.delivered = min(copy.delivered, len(copy.frames))
    made[1].disks[key].lose(len(copy.frames) + 1, len(copy.frames))
    made.start(1)
    made.start(2)
    beats(made, _LONG, LaneFetched, to=1)
    assert halted(made)
    made.settle(_LONG)
    assert halted(made) == ""
    assert made.lane(1, key) == [b"1", b"2", b"3"]
