"""Waits and checks for tests of lanes: the frontier of each lane at each gateway, and its records."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.faults.three import Three
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path, list_lanes
from tutti.log.read.lane_reader import LaneReader
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.digest import digest

WAIT_S = 60.0


def until(holds: Callable[[], object], what: str) -> None:
    """Ask again and again until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: {found}"
        time.sleep(0.05)  # between two questions; nothing rests on how long it is


def frontiers(group: Three, name: str) -> dict[str, int]:
    """How far a gateway has each lane."""
    lanes: list[dict[str, Any]] = group.status(name)["lanes"]
    return {lane["lane"]: lane["frontier"] for lane in lanes}


def agree(group: Three, least: dict[str, int]) -> bool:
    """Whether all gateways have all lanes equally far, and these so far at least."""
    first, *others = [frontiers(group, name) for name in group.all]
    return all(other == first for other in others) and all(first.get(lane, 0) >= count for lane, count in least.items())


def values(data: Path, lane: LaneName) -> list[str]:
    """The values of all records of a lane, from its files."""
    with closing(LogReader(data)) as ordered, closing(LaneReader(ordered, lane)) as reader:
        found = scan(reader, 0, reader.frontier().offset, columns=("value",))
        return [bytes(value).decode() for batch in found for value in batch.column("value").to_pylist() if value is not None]


def digests(data: Path) -> dict[str, tuple[int, str]]:
    """Of each lane: how many records it has, and their digest, from its files."""
    found = {}
    for lane in list_lanes(str(data)):
        one = digest(lane_path(str(data), lane))
        found[lane.text] = one.end, one.sha256
    return found


def in_order(sent: str, found: list[str]) -> list[int]:
    """The sequences of a producer's records in a lane; each once, and in the order in which they were sent."""
    sequences = [int(value.rsplit("-", 1)[1]) for value in found if value.rsplit("-", 1)[0] == sent]
    assert sequences == sorted(set(sequences)), f"{sent}: {sequences}"
    return sequences
