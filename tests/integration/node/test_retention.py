"""Tests of retention with real gateways: the oldest records are deleted on all gateways from the same offset, and a gateway that
missed this continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.gateways import GatewayProcess, Seat
from tests.ports import free_base
from tutti import Producer, Reader
from tutti.errors import OffsetOutOfRange
from tutti.io.admin import AdminClient
from tutti.log.files.layout import list_positions
from tutti_gateway.core import limits
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.verify import verify

SEGMENT = limits.SEGMENT_BYTES_MIN
RECORD = 1_000_000
KEPT = f"[log]\nsegment_bytes = {SEGMENT}\nprepared_segments = 0\n[retention]\nbytes = {2 * SEGMENT}\n"


def until(condition: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def status(gateway: GatewayProcess) -> dict[str, Any]:
    with AdminClient(gateway.url) as control:
        found: dict[str, Any] = control.status()
    return found


def fill(url: str, name: str, records: int) -> None:
    with Producer(url, producer=name, delivery_timeout=60) as producer:
        for number in range(records):
            producer.send("t", b"%09d" % number + bytes(RECORD))


def segments(gateway: GatewayProcess) -> int:
    return len(list_positions(str(gateway.data), "seg", all_there=True))


def refused(**where: Any) -> str:
    with pytest.raises(OffsetOutOfRange) as caught:
        Reader(start=0, **where)
    return str(caught.value)


def test_a_gateway_keeps_what_retention_requires_and_reports_where_its_log_begins(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, extra=KEPT) as gateway:
        fill(gateway.url, "p", 5 * SEGMENT // RECORD)
        until(lambda: segments(gateway) == 2)
        found = status(gateway)
        start, frontier = found["start"], found["frontier"]
        assert 0 < start < frontier == 5 * SEGMENT // RECORD
        assert f"the log begins at {start}" in refused(url=gateway.url)
        with Reader(gateway.url) as reader:
            assert reader.position == start
            assert sum(batch.num_rows for batch in reader) == frontier - start
        gateway.kill()
        assert f"the log begins at {start}" in refused(path=str(gateway.data))
        assert not verify(gateway.data).damage
        gateway.start()
        assert (status(gateway)["start"], status(gateway)["frontier"]) == (start, frontier)
        with Producer(gateway.url, producer="p") as producer:
            assert producer.resume()[0] == frontier
            assert producer.send("t", b"more").result(30) == frontier


def end(gateway: GatewayProcess) -> None:
    if gateway.runs:
        gateway.kill()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    ports: list[int] = []
    while len(ports) < 3:
        port = free_base()
        if all(abs(port - other) > 4 for other in ports):
            ports.append(port)
    members = ", ".join(f'g{number} = "127.0.0.1:{port}"' for number, port in enumerate(ports, 1))
    with ExitStack() as running:
        gateways = [
            GatewayProcess(tmp_path, f"g{number}", f"members = {{ {members} }}\n{KEPT}", Seat("127.0.0.1", port))
            for number, port in enumerate(ports, 1)
        ]
        for gateway in gateways:
            running.callback(end, gateway)
            gateway.start(wait=False)
        for gateway in gateways:
            gateway.wait_ready()
        yield gateways


def test_retention_waits_for_a_late_member_up_to_twice_the_limit_then_it_installs_a_snapshot(
    three: list[GatewayProcess],
) -> None:
    first, second, third = three
    url = f"{first.url},{second.url.removeprefix('tutti://')}"
    fill(url, "p", SEGMENT // RECORD)
    until(lambda: status(third)["frontier"] == SEGMENT // RECORD)
    third.kill()
    fill(url, "q", 6 * SEGMENT // RECORD)
    until(lambda: segments(first) == segments(second) == limits.RETENTION_LAG_FACTOR * 2)
    start = status(first)["start"]
    assert start > SEGMENT // RECORD  # what the third one has is gone
    third.start()
    until(lambda: status(third)["frontier"] == status(first)["frontier"])
    until(lambda: segments(first) == segments(second) == segments(third) == 2)
    starts = {status(gateway)["start"] for gateway in three}
    assert len(starts) == 1
    assert "a snapshot replaced the log" in third.log_tail(100_000)
    fill(third.url, "r", 3)
    begin = starts.pop()
    end = status(first)["frontier"]
    until(lambda: all(status(gateway)["frontier"] == end for gateway in three))
    for gateway in three:
        gateway.kill()
    assert len({digest(gateway.data, begin, end - 3).sha256 for gateway in three}) == 1
    assert not any(verify(gateway.data).damage for gateway in three)
