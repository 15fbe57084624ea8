"""What the meshes of a test are carried by."""

from __future__ import annotations

import pytest

from tests.integration.transport.meshes import WIRES, Town


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each in its turn; its name."""
    monkeypatch.setattr(Town, "openers", WIRES[request.param])
    return str(request.param)
