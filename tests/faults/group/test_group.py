"""Proves C1 to C8 on three real gateways over one fault of each kind; `make soak` mixes them for as long as it is told to."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.group.faults import FAULTS
from tests.faults.group.trial import Trial

pytestmark = [pytest.mark.faults, pytest.mark.lab, pytest.mark.slow]

PROCESSES = ["kill-coordinator", "kill-producer", "clock", "pause-coordinator", "kill-all", "rolling-restart"]
WIRES = [
    "partial",
    "isolate-coordinator",
    "one-way",
    "mute",
    "flap",
    "unplug",
    "unplug-coordinator",
    "clients-cut",
    "loss",
    "loss-everywhere",
    "narrow",
]
DISKS = ["full-disk", "slow-disk", "sync-error", "write-error", "rot-tail", "rot-closed", "rot-lane", "wipe"]
WITH_KEYS = ["kill", "remove-and-add", "old-copy"]
BY_MULTICAST = ["isolate", "pause"]
TRIALS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "processes": (PROCESSES, {"growing": True}),
    "wires": (WIRES, {}),
    "disks": (DISKS, {}),
    "with-keys": (WITH_KEYS, {"keys": True}),
    "by-multicast": (BY_MULTICAST, {"transport": "multicast"}),
}

#: The others are among the long runs.
ALWAYS = ("processes", "by-multicast")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("trial", [pytest.param(one, marks=[pytest.mark.soak] * (one not in ALWAYS)) for one in TRIALS])
def test_a_group_keeps_its_promises_through(trial: str, tmp_path: Path) -> None:
    kinds, options = TRIALS[trial]
    report = Trial(tmp_path, 1, **options).run(kinds, together=0.5)
    assert report.findings == []
    assert [one.kind for one in report.done] == kinds
    # Enough of each that something was held against the logs; how much more there is rests on the machine.
    assert report.acknowledged > 200
    assert report.beside > 100
    assert report.lanes >= 2
    assert report.frontiers > 20


def test_every_kind_of_fault_occurs_once() -> None:
    assert sorted(FAULTS) == sorted(kind for kinds, _ in TRIALS.values() for kind in kinds)


def test_a_fault_in_between_waits_until_a_gateway_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are down for a moment when all are killed; the trial ended there, with no gateway to choose."""
    trial = Trial(tmp_path, 1)
    chosen: list[str] = []

    @contextlib.contextmanager
    def fault(trial: Trial, chance: Random) -> Iterator[None]:
        chosen.append(trial.any(chance))
        yield

    monkeypatch.setitem(FAULTS, "flap", fault)
    monkeypatch.setattr(trial, "coordinator", lambda chance: "g1")
    monkeypatch.setattr(trial, "_down", dict.fromkeys(trial.lab.names, "killed with all"))
    monkeypatch.setattr(trial, "_second", "flap")
    trial.wait(0)
    assert chosen == []
    monkeypatch.setattr(trial, "_down", {"g2": "killed with all", "g3": "killed with all"})
    trial.wait(0)
    trial.wait(0)
    assert chosen == ["g1"]
