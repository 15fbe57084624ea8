"""Fixtures of the log properties: the log's writes do not depend on the clock, so equal calls leave equal marks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tutti_gateway.core import limits


@pytest.fixture(scope="module", autouse=True)
def marks_with_every_write() -> Iterator[None]:
    """A mark waits for no later sync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MARK_LATE_US", 0)
        yield
