"""Proves C1 to C8 on three real gateways over one fault of each kind; `make soak` mixes them for as long as it is told to."""

from pathlib import Path

import pytest

from tests.faults.group.faults import FAULTS
from tests.faults.group.trial import Trial

pytestmark = [pytest.mark.faults, pytest.mark.lab, pytest.mark.slow]

PROCESSES = ["kill-coordinator", "kill-producer", "clock", "pause-coordinator", "kill-all", "rolling-restart"]
WIRES = ["partial", "isolate-coordinator", "one-way", "mute", "flap", "unplug", "clients-cut", "loss", "loss-everywhere", "narrow"]
DISKS = ["full-disk", "slow-disk", "sync-error", "write-error", "rot-tail", "rot-closed", "wipe"]
COVERED = {
    *PROCESSES,
    *WIRES,
    *DISKS,
    "kill",
    "pause",
    "isolate",
    "remove-and-add",
    "old-copy",
}  # the last do what others do too, to another


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kinds", [PROCESSES, WIRES, DISKS], ids=["processes", "wires", "disks"])
def test_a_group_keeps_its_promises_through(kinds: list[str], tmp_path: Path) -> None:
    report = Trial(tmp_path, 1).run(kinds, together=0.5)
    assert report.findings == []
    assert [one.kind for one in report.done] == kinds
    assert report.acknowledged > 1000
    assert report.frontiers > 100


def test_every_kind_of_fault_is_done_here() -> None:
    assert set(FAULTS) == COVERED
