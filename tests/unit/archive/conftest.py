"""Fixtures of the archive tests: fsync is skipped, because these tests simulate no power loss."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is lost here, and a busy disk takes its time for each sync."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
