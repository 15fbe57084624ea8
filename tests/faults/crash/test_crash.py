"""Proves C2 to C5, C7 and C8 over a few SIGKILLs of a real gateway under real load; `make soak` does it many times."""

from pathlib import Path

import pytest

from tests.faults.crash.run import crash_run
from tutti.log.files.layout import read_header
from tutti_gateway.core.limits import SEGMENT_BYTES_MIN

pytestmark = [pytest.mark.faults, pytest.mark.slow]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("seed", "growing", "size"), [(1, False, SEGMENT_BYTES_MIN), (2, True, 1_100_000)])
def test_a_killed_gateway_keeps_its_promises(tmp_path: Path, seed: int, growing: bool, size: int) -> None:
    report = crash_run(tmp_path, seed, kills=4, growing=growing)
    assert report.findings == []
    assert read_header(str(tmp_path / "g1"), 1).size == size
    assert report.kills == 4
    assert report.acknowledged > 100
    assert report.beside > 100
    assert report.frontiers > 10
