"""Fixtures of the archive tests: fsync is skipped, because these tests simulate no power loss."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip fsync: no power is lost here, and a sync on a busy disk takes time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
