"""Tests with three real gateways of a disk that cannot read a part of its own lane: no reader is blocked, no record is lost, and it
is repaired when a gateway with a copy is connected.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.lanes.lane_files import agree, digests, frontiers, in_order, values
from tests.integration.lanes.sender import Sender
from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tutti.data.frames.frame import HEADER_SIZE
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.verify import verify_lanes

BEFORE, MISSED, LATER = 20, 60, 120  # the last sequence that g3 has, of those that it lacks, of those that are sent when g2 is gone
PATIENCE_S = 120.0


def flip_a_body(directory: Path, offset: int) -> None:
    """Flip a bit of a decided batch, which no start and no writer looks at."""
    found = next(frame for frame in inspect(directory) if frame.kind == "BATCH" and frame.offset == offset)
    with Path(found.file).open("r+b") as file:
        file.seek(found.byte + HEADER_SIZE + found.body // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def damage_told(group: RunningGroup, name: str, lane: str) -> str:
    """Return the frames of a lane that a gateway reports as unreadable."""
    return next(str(line["damaged"]) for line in group.status(name)["lanes"] if line["lane"] == lane)


@pytest.mark.timeout(400)
@pytest.mark.soak
def test_unordered_sends_continue_although_the_origin_cannot_serve_a_lagging_member(tmp_path: Path) -> None:
    """g3 is down and g1's disk corrupts the frames that g3 lacks; then g2, which has them, goes down and returns."""
    with RunningGroup(tmp_path) as group, closing(Sender(group["g1"].port, "p").open()) as sender:
        sender.send_until(BEFORE)
        wait_until(lambda: agree(group, {sender.lane: BEFORE}), "the lanes are not equal")
        group["g3"].kill()
        sender.send_until(MISSED)
        lane = LaneName.parse(sender.lane)
        assert lane is not None
        own = Path(lane_path(str(group["g1"].data), lane))
        wait_until(lambda: frontiers(group, "g2")[sender.lane] == MISSED, "g2 does not hear what is decided")
        flip_a_body(own, BEFORE + 10)
        group["g2"].kill()
        group["g3"].start()
        sender.send_until(LATER, timeout_s=PATIENCE_S)  # with g3, which cannot take part, and g2, which is gone
        wait_until(lambda: damage_told(group, "g1", sender.lane), "g1 does not say what it cannot give")  # it may not be asked yet
        assert frontiers(group, "g3")[sender.lane] < MISSED
        group["g2"].start()
        wait_until(lambda: agree(group, {sender.lane: LATER}), "the lanes are not equal")
        group["g1"].kill()
        group["g1"].start()
        again = Sender(group["g1"].port, "p", sender.instance)
        with closing(again.open()):
            again.acknowledged = sender.acknowledged
            again.send_until(LATER + 20, timeout_s=PATIENCE_S)
            wait_until(lambda: agree(group, {sender.lane: LATER + 20}), "the lanes are not equal")
            wait_until(lambda: not damage_told(group, "g1", sender.lane), "g1 does not mend what it lost")
        for name in NAMES:
            assert group[name].stop() == 0, group[name].log_tail()
        first, *others = (digests(group[name].data) for name in NAMES)
        assert all(other == first for other in others)
        found = values(group["g3"].data, lane)
        assert in_order("p", found) == list(range(1, LATER + 21))
        assert {sequence: found[offset] for sequence, offset in again.acknowledged.items()} == {
            sequence: f"p-{sequence}" for sequence in range(1, LATER + 21)
        }
        assert [one.damage for one in verify_lanes(group["g1"].data)] == [[]] * 3
