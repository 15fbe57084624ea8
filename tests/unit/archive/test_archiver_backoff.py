"""Tests of the archiver's backoff: progress resets it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.unit.archive.memory_archive import SETTINGS, TABLE
from tests.unit.archive.memory_log import LOG, Log
from tutti import limits
from tutti.archive.archiver import Archiver
from tutti.archive.catalog import Archive
from tutti.errors import Unavailable


def test_progress_resets_the_backoff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_US_MIN", 1_000_000)
    archiver = Archiver(Log(TABLE), Archive(tmp_path, LOG, make=True), SETTINGS)
    waited: list[float] = []
    fails = iter([True, True, False, True])

    def step() -> int:
        failed = next(fails, None)
        if failed is None:
            stop.set()
        if failed:
            raise Unavailable("away")
        return 1

    stop = threading.Event()
    monkeypatch.setattr(stop, "wait", waited.append)
    monkeypatch.setattr(archiver, "step", step)
    archiver.run(stop, lambda: None)
    assert waited == [1, 2, 1]
