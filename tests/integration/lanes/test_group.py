"""Tests of unordered sends with three real gateways: an acknowledged record is in the lane of its origin once and in order, on
every gateway, whatever happens to the origin.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.lanes.lane_files import agree, digests, in_order, values
from tests.integration.lanes.sender import Sender
from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tutti.data.client_protocol import Denied
from tutti.data.lane_name import LaneName
from tutti.errors import TuttiError
from tutti.io.admin import AdminClient
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import FRAMES_AT

RECORDS = 300


class House:
    """The group, and the senders that were opened."""

    def __init__(self, group: RunningGroup) -> None:
        self.group = group
        self._senders: list[Sender] = []

    def sender(self, gateway: str, producer: str = "", instance: bytes = b"") -> Sender:
        """A producer that sends to a gateway."""
        sender = Sender(self.group[gateway].port, producer or f"p-{gateway}", instance)
        self._senders.append(sender)
        return sender.open()

    def close(self) -> None:
        for sender in self._senders:
            sender.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with RunningGroup(tmp_path) as three, closing(House(three)) as made:
        yield made


def checked(group: RunningGroup, senders: list[Sender]) -> None:
    """Stop all gateways. Check that every lane is the same everywhere, and has the acknowledged records at their offsets."""
    for name in NAMES:
        assert group[name].stop() == 0, group[name].log_tail()
    first, *others = [digests(group[name].data) for name in NAMES]
    assert all(other == first for other in others)
    for sender in senders:
        lane = LaneName.parse(sender.lane)
        assert lane is not None
        found = values(group["g1"].data, lane)
        assert in_order(sender.name, found) == list(range(1, max(sender.acknowledged) + 1))
        assert {sequence: found[offset] for sequence, offset in sender.acknowledged.items()} == {
            sequence: f"{sender.name}-{sequence}" for sequence in sender.acknowledged
        }


def test_a_killed_origin_resumes_its_lane(house: House) -> None:
    """Each gateway gets records; one is killed during writes and restarted, and its client resends unacknowledged ones."""
    group, senders = house.group, [house.sender(name) for name in NAMES]
    for sender in senders:
        sender.send_until(20)
    killed = senders[1]
    killed.submit(21, 200)  # some of it is under way when the origin dies
    group["g2"].kill()
    others = [Thread(target=sender.send_until, args=(RECORDS,)) for sender in (senders[0], senders[2])]
    for thread in others:
        thread.start()
    group["g2"].start()
    again = house.sender("g2", killed.name, killed.instance)
    assert again.lane == killed.lane
    again.acknowledged = killed.acknowledged
    again.send_until(RECORDS)
    for thread in others:
        thread.join()
    senders[1] = again
    wait_until(lambda: agree(group, {sender.lane: RECORDS for sender in senders}), "the lanes are not equal")
    checked(group, senders)


def test_the_others_keep_decided_records_of_a_dead_origin_and_continue(house: House) -> None:
    """Records that it decided just before its death and announced to no other are in doubt until it is back; then they are there,
    too.
    """
    group, dead, sender = house.group, house.sender("g3"), house.sender("g1")
    dead.send_until(49)
    wait_until(lambda: agree(group, {dead.lane: 49}), "the lanes are not equal")
    dead.send_until(50)
    group["g3"].kill()
    sender.send_until(RECORDS)
    wait_until(lambda: all(sure(found, dead, sender) for found in frontiers_of(group, ("g1", "g2"))), "the others do not go on")
    group["g3"].start()
    wait_until(lambda: agree(group, {dead.lane: 50, sender.lane: RECORDS}), "the lanes are not equal")
    checked(group, [dead, sender])


def sure(found: dict[str, int], dead: Sender, sender: Sender) -> bool:
    """Whether a gateway has what must be there without the dead origin."""
    return found.get(dead.lane, 0) >= 49 and found.get(sender.lane) == RECORDS


def frontiers_of(group: RunningGroup, names: tuple[str, ...]) -> list[dict[str, int]]:
    """Return the frontiers at some gateways of the lanes with records, without a lane that a gateway lost."""
    found = []
    for name in names:
        lanes = group.status(name)["lanes"]
        found.append({lane["lane"]: lane["frontier"] for lane in lanes if lane["frontier"] and not lane["halted"]})
    return found


@pytest.mark.soak
def test_a_damaged_lane_of_another_is_learned_again_and_the_own_one_halts_alone(house: House) -> None:
    group, senders = house.group, [house.sender(name) for name in NAMES]
    for sender in senders:
        sender.send_until(50)
    wait_until(lambda: agree(group, {sender.lane: 50 for sender in senders}), "the lanes are not equal")
    group["g1"].kill()
    for sender in senders[:2]:
        lane = LaneName.parse(sender.lane)
        assert lane is not None
        with Path(lane_path(str(group["g1"].data), lane), "log", f"{1:020d}.seg").open("r+b") as file:
            file.seek(FRAMES_AT + 20)
            file.write(b"\xff\xff\xff")
    group["g1"].start()
    status = group.status("g1")
    assert status["state"] == "primary"
    own = next(lane for lane in status["lanes"] if lane["lane"] == senders[0].lane)
    assert "accepts no more records" in own["halted"]
    assert own["frontier"] is None or 0 < own["frontier"] <= 50  # what its files still say, or that they do not
    assert "is fetched again" in group["g1"].log_tail(20_000)
    for sender in senders[1:]:
        sender.send_until(RECORDS)
    lanes = {sender.lane: RECORDS for sender in senders[1:]}
    wait_until(lambda: frontiers_of(group, ("g1",)) == [lanes], "g1 does not learn")
    assert house.sender("g1", "another").lane == ""
    wait_until(lambda: frontiers_of(group, ("g2",)) == [{**lanes, senders[0].lane: 50}], "g2 lost something")


def test_a_disk_that_is_lost_leaves_its_lane_to_the_others_and_gets_another(house: House) -> None:
    group, dead = house.group, house.sender("g3")
    dead.send_until(50)
    wait_until(lambda: agree(group, {dead.lane: 50}), "the lanes are not equal")
    group["g3"].kill()
    shutil.rmtree(group["g3"].data)
    group["g3"].start(wait=False)
    wait_until(lambda: replaced(group, "g3"), "the group does not take the new disk")
    group["g3"].wait_ready()
    new = house.sender("g3", "another")
    old, lane = LaneName.parse(dead.lane), LaneName.parse(new.lane)
    assert old is not None
    assert lane is not None
    assert (lane.origin, lane != old) == (old.origin, True)
    new.send_until(20)
    wait_until(lambda: agree(group, {dead.lane: 50, new.lane: 20}), "the lanes are not equal")
    checked(group, [dead, new])


def replaced(group: RunningGroup, name: str) -> bool:
    """Ask the group to replace a member that has another disk; return whether it did."""
    try:
        with AdminClient(group["g1"].url, timeout=5, learn=False) as control:
            control.change_roster("replace", name)
    except TuttiError:
        return False
    return True


def test_a_session_that_mixes_orderings_is_rejected(house: House) -> None:
    sender = house.sender("g1")
    sender.send_until(3)
    sender.submit(1, unordered=False)
    wait_until(
        lambda: sender.read(0.1) and any(isinstance(one, Denied) and one.code == "malformed" for one in sender.told), "no word"
    )
