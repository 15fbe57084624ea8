"""Tests with three real gateways of an own lane with a lost end: it names the gateways that it waits for, is recovered completely,
and continues.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.lanes.lane_files import agree, digests, frontiers, in_order, values
from tests.integration.lanes.sender import Sender
from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.verify import verify_lanes

BEFORE, LAST, LATER = 20, 60, 120  # sequences: the last one that g3 has, that g1 has when it dies, that is sent in the end
PATIENCE_S = 120.0


def lose_end(directory: Path, offset: int) -> None:
    """Flip a bit in the header of a decided batch, and in that of the last one: nothing leads from one to the other any more."""
    batches = [frame for frame in inspect(directory) if frame.kind == "BATCH"]
    for found in (next(frame for frame in batches if frame.offset == offset), batches[-1]):
        with Path(found.file).open("r+b") as file:
            file.seek(found.byte + 20)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))


def halted(group: RunningGroup, lane: str) -> str:
    """Return why g1's lane accepts nothing."""
    return next((str(line["halted"]) for line in group.status("g1")["lanes"] if line["lane"] == lane), "no lane yet")


@pytest.mark.timeout(400)
@pytest.mark.soak
def test_an_own_lane_comes_back_when_all_are_there_that_may_have_more_of_it(tmp_path: Path) -> None:
    """g3 is down when g1 writes the frames that its disk loses. g2 has them, and is down when g1 restarts."""
    with RunningGroup(tmp_path) as group:
        with closing(Sender(group["g1"].port, "p").open()) as sender:
            sender.send_until(BEFORE)
            wait_until(lambda: agree(group, {sender.lane: BEFORE}), "the lanes are not equal")
            group["g3"].kill()
            sender.send_until(LAST)
        lane = LaneName.parse(sender.lane)
        assert lane is not None
        group["g1"].kill()
        group["g2"].kill()
        lose_end(Path(lane_path(str(group["g1"].data), lane)), BEFORE + 10)
        group["g1"].start(wait=False)
        group["g3"].start()
        group["g1"].wait_ready()
        wait_until(lambda: "waits for gateway 'g2'" in halted(group, sender.lane), "g1 does not say for whom it waits")
        assert frontiers(group, "g1")[sender.lane] < LAST
        group["g2"].start()
        wait_until(lambda: not halted(group, sender.lane), "the lane does not come back")
        again = Sender(group["g1"].port, "p", sender.instance)
        with closing(again.open()):
            again.acknowledged = sender.acknowledged
            again.send_until(LATER, timeout_s=PATIENCE_S)
            wait_until(lambda: agree(group, {sender.lane: LATER}), "the lanes are not equal")
        for name in NAMES:
            assert group[name].stop() == 0, group[name].log_tail()
        first, *others = (digests(group[name].data) for name in NAMES)
        assert all(other == first for other in others)
        found = values(group["g1"].data, lane)
        assert in_order("p", found) == list(range(1, LATER + 1))
        assert {sequence: found[offset] for sequence, offset in again.acknowledged.items()} == {
            sequence: f"p-{sequence}" for sequence in range(1, LATER + 1)
        }
        assert [one.damage for one in verify_lanes(group["g1"].data)] == [[]] * 3
