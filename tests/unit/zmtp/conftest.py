"""Fixtures of the ZMTP tests: an open port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.zmtp.port import Port


@pytest.fixture
def port() -> Iterator[Port]:
    port = Port()
    yield port
    port.close()
