"""Tests of the job `counters`: counters of another topic or log are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tutti_spark.jobs import counters


def test_counters_of_another_topic_are_refused(tmp_path: Path) -> None:
    """Proves that no record of another topic passes for counted because it lies below what is counted of the first one."""
    file = str(tmp_path / "counters.sqlite")
    with counters.transaction(file) as database:
        database.execute("INSERT INTO counted VALUES ('log', 40)")  # as an earlier release left it
    counters.check_topic(file, "flights")
    counters.check_topic(file, "flights")
    with pytest.raises(ValueError, match=r"counters.sqlite are of topic 'flights', and this job reads 'other'"):
        counters.check_topic(file, "other")
