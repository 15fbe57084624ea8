"""Proves C2 to C5, C7 and C8 over a few SIGKILLs of a real gateway under real load; `make soak` does it many times."""

from pathlib import Path

import pytest

from tests.faults.crash.run import crash_run

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_gateway_keeps_its_promises(tmp_path: Path, seed: int) -> None:
    report = crash_run(tmp_path, seed, kills=4)
    assert report.findings == []
    assert report.kills == 4
    assert report.acknowledged > 100
    assert report.beside > 100
    assert report.frontiers > 10
