"""Proves that a group of one grows to three and to five under load, with its log, and keeps its promises meanwhile."""

from pathlib import Path

import pytest

from tests.faults.growth import KILL, figures, grown

RATE = 30.0  # records a second of each producer: all of them are held against five logs in the end
pytestmark = [pytest.mark.faults, pytest.mark.lab, pytest.mark.slow]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_group_of_one_grows_to_three_and_five_with_its_log(tmp_path: Path) -> None:
    report = grown(tmp_path, 1, [3, 5], 1.0, rate=RATE)
    assert report.findings == []
    assert [one.kind for one in report.done] == ["grow", "grow", KILL, "grow", "grow", KILL]
    assert report.acknowledged > 500
    assert figures(report).startswith("started to voting ")
