"""Tests with real gateways of the remedy for a permanently halted lane: a group of one gets a new lane and keeps
its ordered log.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import tutti
from tests.integration.lanes.sender import Sender
from tests.integration.lanes.test_lost_end import lose_end
from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tests.support.waiting import wait_until
from tutti.data.lane_name import NEW_LANE_REMEDY, LaneName
from tutti.io.admin import AdminClient
from tutti.log.files.lane_paths import lane_path

RECORDS = 40


def members(gateway: GatewayProcess) -> dict[str, bool]:
    """The gateways that one knows, and whether they vote."""
    with AdminClient(gateway.url, timeout=60, learn=False) as control:
        return {str(member["name"]): bool(member["voter"]) for member in control.members()}


def change(gateway: GatewayProcess, change: str, name: str, address: str = "") -> None:
    with AdminClient(gateway.url, timeout=60, learn=False) as control:
        control.change_roster(change, name, address)


def halted(gateway: GatewayProcess, lane: str) -> str:
    with AdminClient(gateway.url, timeout=60, learn=False) as control:
        return next((str(line["halted"]) for line in control.status()["lanes"] if line["lane"] == lane), "")


@pytest.mark.timeout(300)
def test_a_group_of_one_gets_a_new_lane_and_keeps_its_ordered_log(tmp_path: Path) -> None:
    placements = {name: Placement("127.0.0.1", free_base()) for name in ("g1", "g2")}
    address = {name: f"{placement.host}:{placement.port}" for name, placement in placements.items()}
    named = ", ".join(f'{name} = "{place}"' for name, place in address.items())
    second = GatewayProcess(tmp_path, "g2", f"members = {{ {named} }}\n", placements["g2"])
    with GatewayProcess(tmp_path, "g1", placement=placements["g1"]) as first:
        try:
            with tutti.Producer(first.url, "orders") as producer:
                for number in range(RECORDS):
                    producer.send("t", str(number).encode())
            with closing(Sender(first.port, "p").open()) as sender:
                sender.send_until(RECORDS)
            lane = LaneName.parse(sender.lane)
            assert lane is not None
            first.kill()
            lose_end(Path(lane_path(str(first.data), lane)), RECORDS // 2)
            first.start()
            wait_until(lambda: NEW_LANE_REMEDY in halted(first, sender.lane), "the lane does not say what to do")

            second.start(wait=False)
            change(first, "add", "g2", address["g2"])
            wait_until(lambda: members(first) == {"g1": True, "g2": True}, "g2 does not vote")
            change(second, "remove", "g1")
            change(second, "add", "g1", address["g1"])
            wait_until(lambda: members(second) == {"g1": True, "g2": True}, "g1 does not vote")
            assert first.stop() == 0, first.log_tail()
            first.start()
            change(first, "remove", "g2")

            again = Sender(first.port, "p", sender.instance, epoch=2)
            with closing(again.open()):
                again.send_until(RECORDS)
            assert again.lane != sender.lane
            assert sorted(again.acknowledged) == list(range(1, RECORDS + 1))
            with tutti.Reader(first.url, start=0) as reader:
                kept = [value for batch in reader for value in batch.column("value").to_pylist()]
            assert kept == [str(number).encode() for number in range(RECORDS)]
        finally:
            second.__exit__()
