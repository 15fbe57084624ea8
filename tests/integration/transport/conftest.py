"""Fixtures of this folder: meshes without encryption, and with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.transport.meshes import Town
from tutti_gateway.transport.keys import generate

NAMES = ("a", "b", "jfk", "lga", "ewr")


@pytest.fixture(params=["clear", "keys"])
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Each in its turn; its name."""
    if request.param == "keys":
        generate(tmp_path / "wire", NAMES)
        monkeypatch.setattr(Town, "keyed", tmp_path / "wire")
    return str(request.param)
