"""Tests of three gateways with `transport = "multicast"` on the loopback interface: they commit over it, continue without one of
them, and have equal logs at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer
from tutti_gateway.log.tools.digest import digest

WAIT_S = 60.0
COUNT = 200
LARGE = b"x" * 20_000  # several datagrams


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    port = free_port()  # that no other test's group has
    with RunningGroup(tmp_path, f'transport = "multicast"\n[multicast]\naddress = "239.255.84.86:{port}"\nttl = 0\n') as three:
        yield three


def multicast(group: RunningGroup, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = group.status(name)["transport"]["multicast"]
    return facts


def wait_for(holds: Callable[[], bool], group: RunningGroup) -> None:
    wait_until(holds, lambda: {name: group.status(name) for name, gateway in group.all.items() if gateway.runs})


def hears(group: RunningGroup, name: str, count: int) -> bool:
    return [peer["hears"] for peer in multicast(group, name)["peers"].values()].count(True) == count


def expect_by_multicast(group: RunningGroup, sender: str) -> None:
    """Check that all others received the frames of `sender` by multicast."""
    assert multicast(group, sender)["messages"]
    assert all(multicast(group, name)["peers"][sender]["received"] for name in NAMES if name != sender)


def test_a_group_over_multicast_commits_loses_a_member_and_has_one_log(group: RunningGroup) -> None:
    wait_for(lambda: all(hears(group, name, 2) for name in NAMES), group)
    with Producer(group.url, producer="p", delivery_timeout=WAIT_S) as producer:

        def send_more() -> None:
            for _ in range(COUNT):
                producer.send("t", LARGE)
            assert producer.flush(WAIT_S) == 0

        lost = group.coordinator()
        send_more()
        expect_by_multicast(group, lost.name)
        lost.kill()
        send_more()  # what goes to one alone goes over the mesh
        lost.start()
        wait_for(lambda: group.status(lost.name)["state"] == "primary", group)
        wait_for(lambda: all(hears(group, name, 2) for name in NAMES), group)
        send_more()
        expect_by_multicast(group, group.coordinator().name)
    wait_for(lambda: all(group.status(name)["frontier"] == 3 * COUNT for name in NAMES), group)
    assert [gateway.stop() for gateway in group.all.values()] == [0, 0, 0]
    assert len({digest(gateway.data, 0, 3 * COUNT).sha256 for gateway in group.all.values()}) == 1
