"""Proves that lanes are read as they stand on disks, and that what was done to them there is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.group.evidence import read_lanes
from tests.faults.group.journal import Life, Story, Use, value_of
from tests.faults.group.lane_checker import Copy, check_lanes
from tests.unit.log.history import History, write_log
from tests.unit.log.lane_history import LaneHistory, written
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import OWN, lane_path
from tutti.log.files.layout import FRAMES_AT

GATEWAYS = ("g1", "g2", "g3")
USES = [[1], [2, 3], [4], [5, 6, 7], [8]]  # batch by batch


class Disks:
    """Three directories with the lane of the first one, and what its producer was told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ordered = History()
        ordered.topic("faults")
        ordered.epoch("p")
        for gateway in GATEWAYS:
            (root / gateway).mkdir()
            write_log(root / gateway, ordered)
        identity = json.loads((root / "g1" / "identity.json").read_text())
        self.lane = LaneName(1, bytes.fromhex(identity["incarnation"]))
        uses = {use: Use(use, 10 * use, 0, "c", use - 1, 10 * use + 5, self.lane.text) for use in range(1, 9)}
        self.story = Story("~p", unordered=True, uses=uses, lives=[Life(0, 0, 0, 0, 0)])
        for gateway in GATEWAYS:
            self.write(gateway, USES)

    def write(self, gateway: str, uses: list[list[int]], decided: int | None = None) -> None:
        """Write the lane anew: these uses, decided up to a position (all of it)."""
        path = self.root / gateway
        shutil.rmtree(path / "lanes", ignore_errors=True)
        history = LaneHistory(self.lane)
        history.view()
        for some in uses:
            history.batch(*(value_of("~p", use, use) for use in some))
        written(path, history, len(history.frames) if decided is None else decided)
        if gateway == "g1":
            (path / OWN).write_text(f"{self.lane.text}\n")

    def copies(self) -> list[Copy]:
        return [copy for gateway in GATEWAYS for copy in read_lanes(gateway, self.root / gateway, {})]

    def check(self) -> list[str]:
        return check_lanes([self.story], [], self.copies(), GATEWAYS, set())


def behind(disks: Disks) -> None:
    disks.write("g3", USES[:4])


def undecided(disks: Disks) -> None:
    disks.write("g3", USES, decided=5)


def not_there(disks: Disks) -> None:
    shutil.rmtree(disks.root / "g2" / "lanes")


def others_there(disks: Disks) -> None:
    disks.write("g2", [[1], [2, 3], [4], [5, 6, 7], [9]])
    disks.story.uses[9] = Use(9, 90, 0)


def cut_otherwise(disks: Disks) -> None:
    """The same records, which came in another attempt: not the same bytes."""
    history = LaneHistory(disks.lane)
    history.view()
    history.view()
    for some in USES:
        history.batch(*(value_of("~p", use, use) for use in some))
    shutil.rmtree(disks.root / "g2" / "lanes")
    written(disks.root / "g2", history, len(history.frames))


def everywhere_lost(disks: Disks) -> None:
    for gateway in GATEWAYS:
        disks.write(gateway, USES[:4])


def everywhere_twice(disks: Disks) -> None:
    for gateway in GATEWAYS:
        disks.write(gateway, [*USES, [8]])


def everywhere_overtaken(disks: Disks) -> None:
    for gateway in GATEWAYS:
        disks.write(gateway, [[1], [2, 3], [5, 6, 7], [4], [8]])


def spoiled(disks: Disks) -> None:
    (segment,) = Path(lane_path(str(disks.root / "g3"), disks.lane), "log").glob("[0-9]*.seg")
    data = bytearray(segment.read_bytes())
    at = data.index(value_of("~p", 5, 5), FRAMES_AT)
    data[at] ^= 1
    segment.write_bytes(data)


def test_lanes_are_read_with_their_origin_and_undecided_end(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disks.write("g2", USES, decided=4)
    first, second, third = disks.copies()
    assert [(copy.gateway, copy.lane, copy.origin, copy.end, copy.doubt, copy.damage) for copy in (first, second, third)] == [
        ("g1", disks.lane.text, True, 8, 0, []),
        ("g2", disks.lane.text, False, 4, 4, []),
        ("g3", disks.lane.text, False, 8, 0, []),
    ]
    assert [(record.producer, record.sequence, record.use) for record in first.records] == [("~p", use, use) for use in range(1, 9)]
    assert first.records == third.records
    assert first.blocks == third.blocks


@pytest.mark.parametrize(
    ("doctor", "what"),
    [
        (behind, "C2"),
        (undecided, "C2"),
        (not_there, "C2"),
        (others_there, "C1"),
        (cut_otherwise, "C8"),
        (everywhere_lost, "C3"),
        (everywhere_twice, "C2"),
        (everywhere_overtaken, "C4"),
        (spoiled, "C5"),
    ],
)
def test_changes_of_a_lane_on_disk_are_found(tmp_path: Path, doctor: Callable[[Disks], None], what: str) -> None:
    disks = Disks(tmp_path)
    assert disks.check() == []
    doctor(disks)
    findings = disks.check()
    assert any(finding.startswith(what) for finding in findings), findings
