"""What is written while power may go must not depend on the clock, so that the same moves give the same instants."""

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
