"""Proves what the driver does about who holds it up, and about a client that asks and does not read."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from gateway.core.actions import Suspect
from gateway.core.events import SpaceChanged
from tests.unit.node.test_driver import Bench


@pytest.mark.parametrize(("low", "told"), [(False, 1), (True, 0)])
def test_who_holds_the_group_up_is_told_once_and_not_beside_the_disk_that_is_the_reason(low: bool, told: int) -> None:
    bench = Bench()
    bench.answers[SpaceChanged] = [Suspect(1, "no vote since position 7")]
    with capture_logs() as lines:
        for _ in range(3):
            bench.happen(SpaceChanged(low, "1 MiB is free"))
    assert bench.driver.suspected == "no vote since position 7"
    assert [line["event"] for line in lines].count("a member holds the group up") == told
