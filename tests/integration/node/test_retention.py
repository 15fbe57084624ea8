"""Tests of retention with real gateways: the oldest records are deleted on all gateways from the same offset, and a gateway that
missed this continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tests.support.waiting import wait_until
from tutti import Producer, Reader
from tutti.errors import OffsetOutOfRange
from tutti.log.files.layout import list_positions
from tutti_gateway.core import limits
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.verify import verify

SEGMENT = limits.SEGMENT_BYTES_MIN
RECORD = 1_000_000
KEPT = f"[log]\nsegment_bytes = {SEGMENT}\nprepared_segments = 0\n[retention]\nbytes = {2 * SEGMENT}\n"


def fill(url: str, name: str, records: int) -> None:
    with Producer(url, producer=name, delivery_timeout=60) as producer:
        for number in range(records):
            producer.send("t", b"%09d" % number + bytes(RECORD))


def segments(gateway: GatewayProcess) -> int:
    return len(list_positions(str(gateway.data), "seg", include_trimmed=True))


def refused(**where: Any) -> str:
    with pytest.raises(OffsetOutOfRange) as caught:
        Reader(start=0, **where)
    return str(caught.value)


def test_a_gateway_applies_retention_and_reports_the_log_start(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path, extra=KEPT) as gateway:
        fill(gateway.url, "p", 5 * SEGMENT // RECORD)
        wait_until(lambda: segments(gateway) == 2)
        found = gateway.status()
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
        assert (gateway.status()["start"], gateway.status()["frontier"]) == (start, frontier)
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
            GatewayProcess(tmp_path, f"g{number}", f"members = {{ {members} }}\n{KEPT}", Placement("127.0.0.1", port))
            for number, port in enumerate(ports, 1)
        ]
        for gateway in gateways:
            running.callback(end, gateway)
            gateway.start(wait=False)
        for gateway in gateways:
            gateway.wait_ready()
        yield gateways


def test_frames_for_an_absent_member_wait_up_to_twice_the_limit_before_a_snapshot(
    three: list[GatewayProcess],
) -> None:
    first, second, third = three
    url = f"{first.url},{second.url.removeprefix('tutti://')}"
    fill(url, "p", SEGMENT // RECORD)
    wait_until(lambda: third.status()["frontier"] == SEGMENT // RECORD)
    third.kill()
    fill(url, "q", 6 * SEGMENT // RECORD)
    wait_until(lambda: segments(first) == segments(second) == limits.RETENTION_LAG_FACTOR * 2)
    start = first.status()["start"]
    assert start > SEGMENT // RECORD  # what the third one has is gone
    third.start()
    wait_until(lambda: third.status()["frontier"] == first.status()["frontier"])
    wait_until(lambda: segments(first) == segments(second) == segments(third) == 2)
    starts = {gateway.status()["start"] for gateway in three}
    assert len(starts) == 1
    assert "a snapshot replaced the log" in third.log_tail(100_000)
    fill(third.url, "r", 3)
    begin = starts.pop()
    end = first.status()["frontier"]
    wait_until(lambda: all(gateway.status()["frontier"] == end for gateway in three))
    for gateway in three:
        gateway.kill()
    assert len({digest(gateway.data, begin, end - 3).sha256 for gateway in three}) == 1
    assert not any(verify(gateway.data).damage for gateway in three)
